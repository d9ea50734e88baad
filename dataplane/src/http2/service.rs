//! One stream of HTTP/2 as a request like any other: its head made one of HTTP/1.1, its end
//! noticed, its answer put into the stream. A task each.

use std::cell::Cell;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use http::header::{CONNECTION, CONTENT_LENGTH, DATE, EXPECT};
use http::request::Parts;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use hyper::body::Body as _;
use weir_shared::totals::ConnectionError;

use super::body::{Pump, Queued};
use super::head::{self, BadHead};
use super::output::Output;
use super::streams::{Stream, Streams};
use crate::client_body::{ClientBody, StreamBody};
use crate::downstream::Ending;
use crate::forward::response_body::ResponseBody;
use crate::forward::tunnel::TunnelSlot;
use crate::headers::number;
use crate::identity::{Identity, X_REQUEST_ID};
use crate::ladder::is_health_check;
use crate::refuse::Dropped;
use crate::worker::{Current, Worker};
use crate::{problem, request};

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
    streams.connection.take_settings(in_force);
    streams.refused.take();
    let Some(stream) = streams.open(in_force.timeouts, head::size(request.headers())) else {
        streams.refused.give_back();
        // It may come again when others have ended.
        return sink.send_reset(Reason::REFUSED_STREAM);
    };
    stream.downstream.take_settings(in_force);
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
    let response = match head::to_http1(&mut head) {
        Err(bad) => refuse_head(&worker, bad),
        Ok(()) => match answer(&worker, stream, head, received, &mut sink).await {
            Ok(response) => response,
            Err(reason) => return sink.send_reset(reason),
        },
    };
    note_worth(&worker, stream, &response, is_check);
    let (mut head, body) = finish(&worker, stream, response, is_head).into_parts();
    let fields = &mut head.headers;
    let date = || worker.date.value(worker.clock.wall_ms());
    fields.entry(DATE).or_insert_with(date);
    if let Some(id) = fields.get_mut(&X_REQUEST_ID) {
        // No two are alike: none is worth a place in the table of fields that both sides keep.
        id.set_sensitive(true);
    }
    let is_bare = body.is_end_stream();
    if !is_bare && let Some(length) = body.size_hint().exact() {
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
    let status = match work(worker, stream, head, received, sink).await {
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
    let (body, asks) = body(&head, received);
    let request = Request::from_parts(head, body);
    let tunnel = TunnelSlot::default();
    let serving = async { request::serve(worker, downstream, &tunnel, request).await };
    let mut serving = pin!(serving);
    poll_fn(|cx| {
        let ending = downstream.ending();
        if ending.is_cut() {
            return Poll::Ready(Answered::Cut(ending));
        }
        downstream.set_reads_little(stream.streams().is_crowded());
        match catch_unwind(AssertUnwindSafe(|| serving.as_mut().poll(cx))) {
            Ok(Poll::Ready(said)) => Poll::Ready(Answered::Said(said)),
            Ok(Poll::Pending) => {
                if asks.as_ref().is_some_and(|asks| asks.take()) {
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

/// The body of a request; and, where the client waits until it is asked for it, what is set then.
fn body(head: &Parts, received: RecvStream) -> (ClientBody, Option<Rc<Cell<bool>>>) {
    if received.is_end_stream() {
        return (ClientBody::Empty, None);
    }
    let length = head.headers.get(CONTENT_LENGTH).and_then(number);
    let expected = head.headers.get(EXPECT).map(HeaderValue::as_bytes);
    let waits = expected.is_some_and(|value| value.eq_ignore_ascii_case(b"100-continue"));
    let asks = waits.then(Rc::default);
    let body = StreamBody::new(received, length, asks.clone());
    (ClientBody::Http2(Box::new(body)), asks)
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
    for head in stream.downstream.interim.take_heads() {
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
        let length = HeaderValue::from(body.size_hint().lower());
        let headers = response.headers_mut();
        headers.entry(CONTENT_LENGTH).or_insert(length);
        *response.body_mut() = ResponseBody::empty();
    }
    let (downstream, streams) = (&stream.downstream, stream.streams());
    let who = Identity::of_peer(downstream.sender()).who();
    // Behind a refusal, or a health check (CONN-3).
    if downstream.is_short() && worker.refuses(who) && streams.connection.slot.gives_way_to_ban() {
        streams.close();
    }
    response
}
