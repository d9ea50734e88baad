//! One stream of HTTP/2: its head, its request, its response.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use http::header::{CONNECTION, CONTENT_LENGTH, COOKIE, DATE, HOST};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri};
use weir_shared::totals::ConnectionError;

use crate::conn::{Downstream, Ending};
use crate::http1::MAX_FIELDS;
use crate::http2::body::{Output, Pump, Queued};
use crate::http2::streams::{Stream, Streams};
use crate::message::fields::{is_host, number};
use crate::message::{Head, RequestLength};
use crate::relay::delivery::ResponseBody;
use crate::request::body::{ClientBody, StreamBody};
use crate::request::identity::{Identity, X_REQUEST_ID};
use crate::request::ladder::is_health_check;
use crate::request::refuse::Dropped;
use crate::request::{self, Judged, judge, problem};
use crate::worker::{Current, Worker};

/// Begins with the request of a stream, in a task of its own.
pub fn begin(
    current: &Current,
    streams: &Rc<Streams>,
    output: &Rc<Output>,
    request: Request<RecvStream>,
    mut sink: SendResponse<Queued>,
) {
    let worker = current.worker();
    let in_force = &worker.in_force;
    in_force.apply_to(&streams.connection);
    streams.refused.take();
    let Some(stream) = streams.open(in_force.timeouts, size(&request)) else {
        streams.refused.give_back();
        // It may come again when others have ended.
        return sink.send_reset(Reason::REFUSED_STREAM);
    };
    in_force.apply_to(&stream.downstream);
    let output = Rc::clone(output);
    // Boxed: the runtime moves a task twice before it runs.
    tokio::task::spawn_local(Box::pin(run(worker, stream, output, request, sink)));
}

/// Runs the task of a stream until it ends, or is to end. What is dropped is reset.
async fn run(
    worker: Rc<Worker>,
    stream: Rc<Stream>,
    output: Rc<Output>,
    request: Request<RecvStream>,
    sink: SendResponse<Queued>,
) {
    let counters = Arc::clone(&worker.counters);
    {
        let mut task = pin!(talk(worker, &stream, output, request, sink));
        poll_fn(|cx| {
            stream.downstream.note_waker(cx);
            if stream.is_cut() {
                let is_too_slow = |ending| ending == Ending::TooSlow;
                let connection = stream.streams().connection.ending();
                if is_too_slow(stream.downstream.ending()) && !is_too_slow(connection) {
                    counters.connection_error(ConnectionError::TooSlow);
                }
                return Poll::Ready(());
            }
            // A bug of ours costs its stream, not the worker and all that it serves.
            catch_unwind(AssertUnwindSafe(|| task.as_mut().poll(cx))).unwrap_or_else(|_| {
                counters.connection_error(ConnectionError::Panic);
                Poll::Ready(())
            })
        })
        .await;
    }
    stream.has_task.set(false);
}

async fn talk(
    worker: Rc<Worker>,
    stream: &Rc<Stream>,
    output: Rc<Output>,
    request: Request<RecvStream>,
    mut sink: SendResponse<Queued>,
) {
    if stream.streams().is_worthless() {
        // It ends once the tasks of its streams have run.
        return sink.send_reset(Reason::ENHANCE_YOUR_CALM);
    }
    let (mut head, received) = request.into_parts();
    let is_head = head.method == Method::HEAD;
    let is_check = is_health_check(&head.method, head.uri.path());
    let response = match to_http1(&mut head) {
        Err(bad) => refuse_head(&worker, bad),
        Ok(()) => match answer(&worker, stream, head, received, &mut sink).await {
            Ok(response) => response,
            Err(reason) => return sink.send_reset(reason),
        },
    };
    note_worth(&worker, stream, &response, is_check);
    let (mut head, body) = finish(&worker, stream, response, is_head).into_parts();
    let fields = &mut head.headers;
    let date = || (worker.date).with(worker.clock.wall_ms(), |_, date| date.clone());
    fields.entry(DATE).or_insert_with(date);
    if let Some(id) = fields.get_mut(&X_REQUEST_ID) {
        // No two are alike: none is worth a place in the table of fields that both sides keep.
        id.set_sensitive(true);
    }
    let is_bare = body.is_end();
    if !is_bare && let Some(length) = body.length() {
        let length = || HeaderValue::from(length);
        fields.entry(CONTENT_LENGTH).or_insert_with(length);
    }
    stream.has_response.set(true);
    if is_bare {
        stream.end();
    }
    let Ok(pipe) = sink.send_response(Response::from_parts(head, ()), is_bare) else {
        return sink.send_reset(Reason::INTERNAL_ERROR);
    };
    drop(sink);
    if !is_bare {
        let mut pump = Pump::new(body, pipe, Rc::clone(stream), output);
        poll_fn(|cx| pump.poll(cx)).await;
    }
}

/// How the work on a request ended.
enum Answered {
    Said(Result<Response<ResponseBody>, Dropped>),
    Cut(Ending),
    /// By a bug of ours.
    Panicked,
    /// The client has given it up.
    GivenUp,
}

/// Answers a request.
///
/// # Errors
/// What the stream is reset with.
async fn answer(
    worker: &Rc<Worker>,
    stream: &Stream,
    head: Parts,
    received: RecvStream,
    sink: &mut SendResponse<Queued>,
) -> Result<Response<ResponseBody>, Reason> {
    let downstream = &stream.downstream;
    let answered = work(worker, stream, head, received, sink).await;
    stream.note_gathering();
    let status = match answered {
        Answered::Said(Ok(response)) => {
            send_interim(stream, sink);
            return Ok(response);
        }
        Answered::Said(Err(Dropped)) => {
            // A trusted peer speaks for others, whose streams go on.
            if !downstream.trusted() {
                stream.streams().connection.finish(Ending::Abort);
            }
            return Err(Reason::CANCEL);
        }
        Answered::Cut(Ending::TooSlow) => {
            worker.counters.connection_error(ConnectionError::TooSlow);
            StatusCode::REQUEST_TIMEOUT
        }
        Answered::Cut(Ending::BodyTimeout) => StatusCode::REQUEST_TIMEOUT,
        Answered::Cut(_) | Answered::GivenUp => return Err(Reason::CANCEL),
        Answered::Panicked => {
            worker.counters.connection_error(ConnectionError::Panic);
            StatusCode::INTERNAL_SERVER_ERROR
        }
    };
    stream.is_last_word.set(true);
    let mut response = Response::new(ResponseBody::empty());
    *response.status_mut() = status;
    if let Some(id) = downstream.cut_request() {
        response.headers_mut().insert(X_REQUEST_ID, id.clone());
    }
    Ok(response)
}

/// Works on a request, which has said its id where it ends before its time.
async fn work(
    worker: &Rc<Worker>,
    stream: &Stream,
    head: Parts,
    received: RecvStream,
    sink: &mut SendResponse<Queued>,
) -> Answered {
    let downstream = &stream.downstream;
    let mut serving = pin!(serve(worker, downstream, head, received));
    poll_fn(|cx| {
        let ending = downstream.ending();
        if ending.is_cut() {
            return Poll::Ready(Answered::Cut(ending));
        }
        downstream.set_reads_little(stream.streams().is_crowded());
        match catch_unwind(AssertUnwindSafe(|| serving.as_mut().poll(cx))) {
            Ok(Poll::Ready(said)) => Poll::Ready(Answered::Said(said)),
            Ok(Poll::Pending) => {
                stream.note_gathering();
                if downstream.interim().take_asking() {
                    ask_for_body(sink);
                }
                send_interim(stream, sink);
                sink.poll_reset(cx).map(|_| Answered::GivenUp)
            }
            Err(_) => Poll::Ready(Answered::Panicked),
        }
    })
    .await
}

/// The way of a request: judged by its head, and answered.
async fn serve(
    worker: &Rc<Worker>,
    downstream: &Rc<Downstream>,
    head: Parts,
    received: RecvStream,
) -> Result<Response<ResponseBody>, Dropped> {
    let length = length(&head, &received);
    let Some(head) = Head::of_parts(&head, length) else {
        return Ok(refuse_head(worker, BadHead::TooManyFields));
    };
    let exchange = match judge(worker, downstream, head) {
        Judged::Goes(exchange) => exchange,
        Judged::Refused(said, id) => return Ok(said.into_response(&id).map(ResponseBody::Own)),
        Judged::Health(response) => return Ok(response.map(ResponseBody::Own)),
        Judged::Dropped => return Err(Dropped),
    };
    let body = if received.is_end_stream() {
        ClientBody::Empty
    } else {
        let waits = exchange.head.known.expects_continue;
        let waits = waits.then(|| Rc::clone(downstream));
        ClientBody::Http2(Box::new(StreamBody::new(received, waits)))
    };
    let reply = request::answer(exchange, body).await?;
    Ok(Response::from_parts(reply.head, reply.body))
}

/// How long the body of a request is, which the library has checked against what is announced.
fn length(head: &Parts, received: &RecvStream) -> RequestLength {
    let announced = head.headers.get(CONTENT_LENGTH).and_then(number);
    match announced {
        Some(length) => RequestLength::Exact(length),
        None if received.is_end_stream() => RequestLength::Empty,
        None => RequestLength::Chunked,
    }
}

/// Asks for a body whose client waits for that.
fn ask_for_body(sink: &mut SendResponse<Queued>) {
    let mut head = Response::new(());
    *head.status_mut() = StatusCode::CONTINUE;
    // An error is that the stream has ended.
    let _ = sink.send_informational(head);
}

/// Sends what the application says before its response (FORWARD-6). An error is that the stream has
/// ended, or that a field cannot be sent: it is a hint.
fn send_interim(stream: &Stream, sink: &mut SendResponse<Queued>) {
    for head in stream.downstream.interim().take_heads() {
        let _ = sink.send_informational(head);
    }
}

/// Answers what is no request (TELL-1).
fn refuse_head(worker: &Worker, bad: BadHead) -> Response<ResponseBody> {
    let (kind, status) = match bad {
        BadHead::Malformed => (ConnectionError::BadRequest, StatusCode::BAD_REQUEST),
        BadHead::TooManyFields => (
            ConnectionError::HeadTooLarge,
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
        ),
    };
    worker.counters.connection_error(kind);
    problem::no_request(status).map(ResponseBody::Own)
}

/// Notes an answer that is neither counted nor logged: it gives its client nothing, and a client
/// that asks for nothing else loses its connection (CONN-16).
fn note_worth(worker: &Worker, stream: &Stream, response: &Response<ResponseBody>, is_check: bool) {
    let is_bad = response.extensions().get::<problem::NoRequest>().is_some();
    if is_bad || is_check {
        stream.earns_nothing();
    }
    if is_bad {
        stream.streams().note_bad_head();
    } else if is_check && worker.refuses(Identity::of_peer(stream.downstream.sender()).who()) {
        stream.streams().note_refused_check();
    }
}

/// A response as a stream has it: nothing is said of the connection, and none of HEAD has a body.
fn finish(
    worker: &Worker,
    stream: &Stream,
    mut response: Response<ResponseBody>,
    is_head: bool,
) -> Response<ResponseBody> {
    response.headers_mut().remove(CONNECTION);
    if is_head && let ResponseBody::Own(body) = response.body() {
        let length = HeaderValue::from(body.len() as u64);
        let headers = response.headers_mut();
        headers.entry(CONTENT_LENGTH).or_insert(length);
        *response.body_mut() = ResponseBody::empty();
    }
    let (downstream, streams) = (&stream.downstream, stream.streams());
    let who = Identity::of_peer(downstream.sender()).who();
    // Behind a refusal, or a health check (CONN-3).
    if downstream.deadlines().is_short()
        && worker.refuses(who)
        && streams.connection.slot.gives_way_to_ban()
    {
        streams.close();
    }
    response
}

/// What a field costs besides its name and value, as the size of a head is counted (RFC 9113
/// §6.5.2).
const FIELD_COST: usize = 32;

/// Why a request is not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BadHead {
    /// It is malformed (RFC 9113 §8.1.1): 400.
    Malformed,
    /// It has more than [`MAX_FIELDS`]: 431.
    TooManyFields,
}

/// The size of a head: of its target, and of its fields as a client counts it.
pub fn size<B>(request: &Request<B>) -> usize {
    let of = |(name, value): (&http::HeaderName, &HeaderValue)| {
        name.as_str().len() + value.len() + FIELD_COST
    };
    let uri = request.uri();
    let target = uri.path_and_query().map_or(0, |it| it.as_str().len());
    let authority = uri.authority().map_or(0, |it| it.as_str().len());
    let fields: usize = request.headers().iter().map(of).sum();
    target + authority + fields
}

/// Makes a head one of HTTP/1.1, but for its version.
///
/// # Errors
/// [`BadHead`] where the request is not taken.
pub fn to_http1(head: &mut Parts) -> Result<(), BadHead> {
    if !head.headers.values().all(is_trimmed) {
        return Err(BadHead::Malformed);
    }
    join_cookies(&mut head.headers)?;
    if head.headers.len() > MAX_FIELDS {
        return Err(BadHead::TooManyFields);
    }
    let mut lengths = head.headers.get_all(CONTENT_LENGTH).iter();
    if lengths.next().is_some() && lengths.next().is_some() {
        return Err(BadHead::Malformed);
    }
    set_host(head)?;
    if !names_one_host(&head.headers) {
        return Err(BadHead::Malformed);
    }
    if head.method == Method::CONNECT {
        return Ok(());
    }
    let Some(target) = head.uri.path_and_query().cloned() else {
        return Err(BadHead::Malformed);
    };
    let is_star = target == "*" && head.method == Method::OPTIONS;
    if !target.as_str().starts_with('/') && !is_star {
        return Err(BadHead::Malformed);
    }
    head.uri = Uri::from(target);
    Ok(())
}

/// Whether there is exactly one `Host`, and it can be one.
fn names_one_host(headers: &HeaderMap) -> bool {
    let mut hosts = headers.get_all(HOST).iter();
    let is_one = hosts.next().is_some_and(|host| is_host(host.as_bytes()));
    is_one && hosts.next().is_none()
}

/// A value neither begins nor ends with a blank (RFC 9113 §8.2.1).
fn is_trimmed(value: &HeaderValue) -> bool {
    let is_blank = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    let bytes = value.as_bytes();
    !is_blank(bytes.first()) && !is_blank(bytes.last())
}

/// One `Cookie` field of its pieces (RFC 9113 §8.2.3).
fn join_cookies(headers: &mut HeaderMap) -> Result<(), BadHead> {
    let mut pieces = headers.get_all(COOKIE).iter();
    let (Some(first), Some(second)) = (pieces.next(), pieces.next()) else {
        return Ok(());
    };
    let mut joined = first.as_bytes().to_vec();
    for piece in std::iter::once(second).chain(pieces) {
        joined.extend_from_slice(b"; ");
        joined.extend_from_slice(piece.as_bytes());
    }
    let joined = HeaderValue::from_maybe_shared(bytes::Bytes::from(joined));
    headers.insert(COOKIE, joined.map_err(|_| BadHead::Malformed)?);
    Ok(())
}

/// `:authority` becomes `Host`, which may only say the same (RFC 9113 §8.3.1).
fn set_host(head: &mut Parts) -> Result<(), BadHead> {
    let Some(authority) = head.uri.authority() else {
        return Ok(());
    };
    let is_http = head.uri.scheme_str().is_none_or(|scheme| {
        scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https")
    });
    // Who asks is no part of an authority here, and a host is not empty.
    let names_a_host = !authority.as_str().contains('@') && !authority.host().is_empty();
    let mut hosts = head.headers.get_all(HOST).iter();
    let is_same = |host: &HeaderValue| {
        let host = host.as_bytes();
        host.eq_ignore_ascii_case(authority.as_str().as_bytes())
    };
    let agrees = hosts.next().is_none_or(is_same) && hosts.next().is_none();
    if !is_http || !names_a_host || !agrees {
        return Err(BadHead::Malformed);
    }
    let host = HeaderValue::from_str(authority.as_str()).map_err(|_| BadHead::Malformed)?;
    head.headers.insert(HOST, host);
    Ok(())
}

#[cfg(test)]
mod tests {
    use http::{Request, Version};

    use super::*;

    fn head(method: &str, uri: &str, fields: &[(&str, &str)]) -> Parts {
        let mut request = Request::builder()
            .method(method)
            .uri(uri)
            .version(Version::HTTP_2);
        for (name, value) in fields {
            // As bytes: the library takes blanks at the ends, as that of HTTP/2 does.
            request = request.header(*name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        request.body(()).unwrap().into_parts().0
    }

    fn made(method: &str, uri: &str, fields: &[(&str, &str)]) -> Result<Parts, BadHead> {
        let mut head = head(method, uri, fields);
        to_http1(&mut head).map(|()| head)
    }

    /// EDGE-3: target, `Host` and `Cookie` are as HTTP/1.1 has them.
    #[test]
    fn a_head_becomes_one_of_http1() {
        let cookies = [
            ("cookie", "a=1"),
            ("x", "y"),
            ("cookie", "b=2"),
            ("cookie", "c"),
        ];
        let head = made("GET", "https://a.test:8443/p?q=1", &cookies).unwrap();
        assert_eq!(head.uri, "/p?q=1");
        assert_eq!(head.headers[HOST], "a.test:8443");
        let cookies: Vec<_> = head.headers.get_all(COOKIE).iter().collect();
        assert_eq!(cookies, ["a=1; b=2; c"]);
        let options = made("OPTIONS", "https://a.test/", &[]).unwrap();
        assert_eq!(options.uri, "/");
        let same = made("GET", "http://A.test/", &[("host", "a.TEST")]).unwrap();
        assert_eq!(same.headers.get_all(HOST).iter().count(), 1);
        let without = made("GET", "/p", &[("host", "a.test")]).unwrap();
        assert_eq!(
            (&without.uri, &without.headers[HOST]),
            (&Uri::from_static("/p"), &HeaderValue::from_static("a.test"))
        );
    }

    /// EDGE-3: what RFC 9113 §8 forbids and the library lets through is refused.
    #[test]
    fn what_is_malformed_is_refused() {
        let refused = |uri, fields: &[(&str, &str)]| made("GET", uri, fields).unwrap_err();
        for (uri, fields) in [
            ("http://a.test/", &[("host", "b.test")][..]),
            ("http://a.test/", &[("host", "a.test"), ("host", "a.test")]),
            ("http://a.test/", &[("host", "a.test"), ("host", "b.test")]),
            ("http://me@a.test/", &[]),
            ("ftp://a.test/", &[]),
            ("http://a.test/", &[("x", " y")]),
            ("http://a.test/", &[("x", "y\t")]),
            (
                "http://a.test/",
                &[("content-length", "1"), ("content-length", "2")],
            ),
            ("a.test", &[]),
        ] {
            assert_eq!(refused(uri, fields), BadHead::Malformed, "{uri} {fields:?}");
        }
        let many: Vec<_> = (0..101).map(|_| ("x", "y")).collect();
        assert_eq!(refused("http://a.test/", &many), BadHead::TooManyFields);
        let pieces: Vec<_> = (0..500).map(|_| ("cookie", "y")).collect();
        assert!(made("GET", "http://a.test/", &pieces).is_ok());
    }
}
