//! One connection of an operator: hyper serves one request, then the connection ends.

use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, HOST};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::{BodyExt, Either, Full, LengthLimitError, Limited};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Semaphore;
use tokio::sync::mpsc::Receiver;
use tokio::time::timeout;
use weir_shared::handover::{Body, OwnRequest, OwnResponse, Step};

use crate::admin::door::Door;
use crate::admin::problem::Problem;
use crate::admin::{MAX_BODY, Router, Streamed};
use crate::bans::feed::TooManyFollow;
use crate::events::{Events, TooMany};

use super::places::Place;

/// How long the head of the request may take.
const HEAD: Duration = Duration::from_secs(10);
/// How long the body may take, and a long body.
const BODY: Duration = Duration::from_secs(10);
const LONG_BODY: Duration = Duration::from_secs(60);
/// How long the whole exchange may take, except a stream, which has no end.
const WHOLE: Duration = Duration::from_secs(300);
/// How long a stop waits for requests under way.
const LAST: Duration = Duration::from_millis(500);
const LOOK: Duration = Duration::from_millis(5);
/// The buffer of a connection, and so the largest head.
const BUFFER: usize = 16 * 1024;

/// The values that all connections share.
pub(super) struct Shared {
    router: Arc<Router>,
    pub(super) events: Arc<Events>,
    requests: AtomicU64,
    /// Long bodies are read and checked one after the other, because each takes memory.
    long_bodies: Semaphore,
    /// Connections without a complete answer; a stream is not counted once it has begun.
    answering: AtomicUsize,
}

impl Shared {
    pub(super) fn new(router: Arc<Router>, events: Arc<Events>) -> Self {
        Self {
            router,
            events,
            requests: AtomicU64::new(0),
            long_bodies: Semaphore::new(1),
            answering: AtomicUsize::new(0),
        }
    }

    /// Waits a short time until all requests are answered.
    pub(super) async fn all_answered(&self) {
        let answered = async {
            // Relaxed: nothing else is read with it.
            while self.answering.load(Ordering::Relaxed) > 0 {
                tokio::time::sleep(LOOK).await;
            }
        };
        let _ = timeout(LAST, answered).await;
    }
}

type Answer = Response<Either<Full<Bytes>, Stream>>;

/// The body of a stream: lines, as they come.
struct Stream(Receiver<Bytes>);

impl hyper::body::Body for Stream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        (self.0.poll_recv(cx)).map(|line| line.map(|line| Ok(Frame::data(line))))
    }
}

/// Serves one connection to its end.
pub(super) async fn serve<S>(stream: S, shared: Arc<Shared>, door: Door, place: &Place)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let streams = Arc::new(AtomicBool::new(false));
    let _counted = Answering::new(Arc::clone(&shared), Arc::clone(&streams));
    let service = service_fn(|request| {
        place.has_asked();
        let (shared, streams) = (Arc::clone(&shared), Arc::clone(&streams));
        async move { Ok::<_, Infallible>(answer(&shared, door, request, (place, &streams)).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .keep_alive(false)
        .max_buf_size(BUFFER)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    // An error of the connection needs no report: the operator's side sees it.
    let late = timeout(WHOLE, connection.as_mut()).await.is_err();
    if late && streams.load(Ordering::Relaxed) {
        let _ = connection.await;
    }
}

/// Counts a connection in `answering` until it ends or gives way.
struct Answering {
    shared: Arc<Shared>,
    /// True once the connection is a stream, which is not counted.
    streams: Arc<AtomicBool>,
}

impl Answering {
    fn new(shared: Arc<Shared>, streams: Arc<AtomicBool>) -> Self {
        shared.answering.fetch_add(1, Ordering::Relaxed);
        Self { shared, streams }
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        if !self.streams.load(Ordering::Relaxed) {
            self.shared.answering.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

async fn answer(
    shared: &Shared,
    door: Door,
    request: Request<Incoming>,
    (place, streams): (&Place, &AtomicBool),
) -> Answer {
    // Relaxed: only a number for the id.
    let number = shared.requests.fetch_add(1, Ordering::Relaxed);
    let id = format!("operator-{number:012x}");
    let (head, body) = request.into_parts();
    if door == Door::Admin && !names_this_machine(&head) {
        return whole(Problem::Misdirected.answer(&id));
    }
    let own = own_request(&head, id);
    if let Some(asked) = shared.router.asks_for_stream(door, &own) {
        let lines = asked.and_then(|asked| match asked {
            Streamed::Events => (shared.events.listen())
                .map_err(|TooMany { most }| Problem::TooManyListeners { most }),
            Streamed::Bans(after) => {
                let followed = Arc::clone(shared.events.bans()).follow(after);
                followed.map_err(|TooManyFollow { most }| Problem::TooManyListeners { most })
            }
        });
        return match lines {
            Ok(_) if !place.streams() => whole(Problem::Busy.answer(&own.request_id)),
            Ok(lines) => {
                streams.store(true, Ordering::Relaxed);
                shared.answering.fetch_sub(1, Ordering::Relaxed);
                stream(lines)
            }
            Err(problem) => whole(problem.answer(&own.request_id)),
        };
    }
    whole(answer_whole(shared, door, own, body).await)
}

/// Asks the router, and reads the body if the router wants it. A long body is checked on a thread
/// of its own, because that takes seconds; one at a time.
async fn answer_whole(
    shared: &Shared,
    door: Door,
    mut own: OwnRequest,
    body: Incoming,
) -> OwnResponse {
    let id = own.request_id.clone();
    let busy = || Problem::Busy.answer(&id);
    let mut body = Some(body);
    let mut alone = None;
    loop {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let respond = Box::new(move |answer| {
            // The operator may have gone.
            let _ = sender.send(answer);
        });
        let step = match &alone {
            None => shared.router.step(door, own.clone(), respond),
            Some(_) => {
                let (router, own) = (Arc::clone(&shared.router), own.clone());
                let judged = tokio::task::spawn_blocking(move || router.step(door, own, respond));
                judged.await.unwrap_or_else(|_| Step::Done(busy()))
            }
        };
        let limit = match step {
            Step::Done(answer) => return answer,
            Step::Later => return receiver.await.unwrap_or_else(|_| busy()),
            Step::ReadBody { limit } => limit,
        };
        // The router asks for the body once at most.
        let Some(body) = body.take() else {
            return busy();
        };
        let mut patience = BODY;
        if limit > MAX_BODY {
            alone = shared.long_bodies.acquire().await.ok();
            patience = LONG_BODY;
        }
        match timeout(patience, read(body, limit)).await {
            Ok(content) => own.body = Some(content),
            Err(_) => {
                let seconds = patience.as_secs();
                let late = format!("the body did not come within {seconds} s");
                return Problem::BadRequest(late).answer(&id);
            }
        }
    }
}

fn own_request(head: &Parts, request_id: String) -> OwnRequest {
    let mut authorizations = head.headers.get_all(AUTHORIZATION).iter();
    let only = authorizations.next();
    OwnRequest {
        method: head.method.clone(),
        path: head.uri.path().to_owned(),
        query: head.uri.query().map(str::to_owned),
        authorization: only.filter(|_| authorizations.next().is_none()).cloned(),
        client: None,
        request_id,
        announced: (head.headers.get(CONTENT_LENGTH))
            .and_then(|length| length.to_str().ok()?.parse().ok()),
        body: None,
    }
}

async fn read(body: Incoming, limit: usize) -> Body {
    match Limited::new(body, limit).collect().await {
        Ok(body) => Body::Whole(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Body::TooLarge,
        // The operator may still read an answer.
        Err(_) => Body::CutOff,
    }
}

/// Whether the request's host is an address or `localhost`. A web page that makes its own name
/// point to this machine (DNS rebinding) would send that name.
fn names_this_machine(head: &Parts) -> bool {
    let mut hosts = head.headers.get_all(HOST).iter();
    let (Some(host), None) = (hosts.next(), hosts.next()) else {
        return false;
    };
    let target = head.uri.host();
    host.to_str()
        .is_ok_and(|host| is_address(without_port(host)))
        && target.is_none_or(is_address)
}

fn without_port(authority: &str) -> &str {
    match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => authority,
    }
}

fn is_address(host: &str) -> bool {
    let inner = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    match inner {
        Some(v6) => v6.parse::<std::net::Ipv6Addr>().is_ok(),
        None => host.eq_ignore_ascii_case("localhost") || host.parse::<IpAddr>().is_ok(),
    }
}

fn whole(answer: OwnResponse) -> Answer {
    response(
        answer.status,
        answer.headers,
        Either::Left(Full::new(answer.body)),
    )
}

fn stream(lines: Receiver<Bytes>) -> Answer {
    let mut headers = HeaderMap::new();
    let kind = HeaderValue::from_static("application/x-ndjson");
    headers.insert(CONTENT_TYPE, kind);
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response(http::StatusCode::OK, headers, Either::Right(Stream(lines)))
}

fn response(
    status: http::StatusCode,
    headers: HeaderMap,
    body: Either<Full<Bytes>, Stream>,
) -> Answer {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(target: &str, hosts: &[&str]) -> bool {
        let mut request = Request::get(target);
        for host in hosts {
            request = request.header(HOST, *host);
        }
        names_this_machine(&request.body(()).unwrap().into_parts().0)
    }

    /// CONTROL-1: addresses and localhost are accepted, with any port; other names and a second
    /// `Host` are not.
    #[test]
    fn a_host_is_an_address_or_localhost() {
        for right in [
            "127.0.0.1:9180",
            "[::1]:9180",
            "localhost",
            "LOCALHOST:1",
            "192.0.2.7",
        ] {
            assert!(names("/v1/status", &[right]), "{right}");
        }
        for wrong in [
            "attacker.example",
            "attacker.example:9180",
            "",
            "localhost.",
            "127.0.0.1.x",
        ] {
            assert!(!names("/v1/status", &[wrong]), "{wrong}");
        }
        assert!(!names("/v1/status", &[]));
        assert!(!names("/v1/status", &["127.0.0.1", "localhost"]));
        assert!(!names("http://attacker.example/v1/status", &["127.0.0.1"]));
        assert!(names("http://localhost:9180/v1/status", &["127.0.0.1"]));
    }
}
