//! One stream of HTTP/2 as a request like any other: its head made one of HTTP/1.1, its end
//! noticed, its answer put into the stream.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use h2::Reason;
use http::header::{CONNECTION, CONTENT_LENGTH};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use hyper::body::{Body as _, Incoming};
use hyper::rt::Executor;
use weir_shared::client::Client;
use weir_shared::totals::ConnectionError;

use super::body::StreamBody;
use super::head::{self, BadHead};
use super::streams::{Stream, Streams};
use crate::counters::Counters;
use crate::downstream::Ending;
use crate::forward::response_body::ResponseBody;
use crate::forward::tunnel::TunnelSlot;
use crate::identity::X_REQUEST_ID;
use crate::refuse::Dropped;
use crate::worker::{Current, Worker};
use crate::{problem, request};

/// Answers the request of one stream.
///
/// # Errors
/// What the stream is reset with.
pub fn serve(
    current: &Current,
    streams: &Rc<Streams>,
    request: Request<Incoming>,
) -> impl Future<Output = Result<Response<StreamBody>, h2::Error>> + use<> {
    let worker = current.worker();
    let in_force = &worker.in_force;
    streams.connection.take_settings(in_force);
    streams.refused.take();
    let opened = streams.open(in_force.timeouts, head::size(request.headers()));
    if let Some(stream) = &opened {
        stream.downstream.take_settings(in_force);
        // The library starts the task of the stream right behind this.
        streams.next.set(Some(Rc::clone(stream)));
    }
    if opened.is_none() {
        streams.refused.give_back();
    }
    async move {
        // It may come again when others have ended.
        let stream = opened.ok_or(Reason::REFUSED_STREAM)?;
        let response = answer(&worker, &stream, request).await?;
        stream.has_response.set(true);
        Ok(response.map(|body| StreamBody::new(body, stream)))
    }
}

/// How the work on a request ended.
enum Answered {
    Said(Result<Response<ResponseBody>, Dropped>),
    Cut(Ending),
    /// By a bug of ours.
    Panicked,
}

async fn answer(
    worker: &Rc<Worker>,
    stream: &Stream,
    request: Request<Incoming>,
) -> Result<Response<ResponseBody>, h2::Error> {
    let downstream = &stream.downstream;
    let (mut head, body) = request.into_parts();
    let is_head = head.method == Method::HEAD;
    if let Err(bad) = head::to_http1(&mut head) {
        return Ok(refuse_head(worker, bad));
    }
    let request = Request::from_parts(head, body);
    let answered = {
        let tunnel = TunnelSlot::default();
        let serving = async { request::serve(worker, downstream, &tunnel, request).await };
        let mut serving = pin!(serving);
        poll_fn(|cx| {
            let ending = downstream.ending();
            if ending.is_cut() {
                return Poll::Ready(Answered::Cut(ending));
            }
            downstream.set_reads_little(stream.streams().is_crowded());
            // A bug of ours costs its stream, not the worker and all that it serves.
            match catch_unwind(AssertUnwindSafe(|| serving.as_mut().poll(cx))) {
                Ok(polled) => polled.map(Answered::Said),
                Err(_) => Poll::Ready(Answered::Panicked),
            }
        })
        .await
        // The request is dropped here, and has said its id.
    };
    let status = match answered {
        Answered::Said(Ok(response)) => return Ok(finish(worker, stream, response, is_head)),
        Answered::Said(Err(Dropped)) => {
            // A trusted peer speaks for others, whose streams go on.
            if !downstream.trusted() {
                stream.streams().connection.finish(Ending::Abort);
            }
            return Err(Reason::CANCEL.into());
        }
        Answered::Cut(Ending::TooSlow) => {
            worker.counters.connection_error(ConnectionError::TooSlow);
            StatusCode::REQUEST_TIMEOUT
        }
        Answered::Cut(_) => return Err(Reason::CANCEL.into()),
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
    let peer = downstream.peer;
    // Behind a refusal, or a health check (CONN-3).
    if downstream.is_short()
        && worker.refuses(Client::of(peer), peer)
        && streams.connection.slot.gives_way_to_ban()
    {
        streams.close();
    }
    response
}

/// Has the tasks of the streams of one connection run on this thread.
#[derive(Clone)]
pub struct Tasks {
    /// The streams.
    pub streams: Rc<Streams>,
    /// For what goes wrong.
    pub counters: Arc<Counters>,
}

impl<F: Future<Output = ()> + 'static> Executor<F> for Tasks {
    fn execute(&self, task: F) {
        let stream = self.streams.next.take();
        tokio::task::spawn_local(run(task, stream, Arc::clone(&self.counters)));
    }
}

/// Runs the task of a stream until it ends, or is to end. What is dropped is reset.
async fn run(task: impl Future<Output = ()>, stream: Option<Rc<Stream>>, counters: Arc<Counters>) {
    let mut task = pin!(task);
    poll_fn(|cx| {
        if let Some(stream) = &stream {
            stream.downstream.note_waker(cx);
            if stream.is_cut() {
                let is_too_slow = |ending| ending == Ending::TooSlow;
                let connection = stream.streams().connection.ending();
                if is_too_slow(stream.downstream.ending()) && !is_too_slow(connection) {
                    counters.connection_error(ConnectionError::TooSlow);
                }
                return Poll::Ready(());
            }
        }
        catch_unwind(AssertUnwindSafe(|| task.as_mut().poll(cx))).unwrap_or_else(|_| {
            counters.connection_error(ConnectionError::Panic);
            Poll::Ready(())
        })
    })
    .await;
    if let Some(stream) = stream {
        stream.has_task.set(false);
    }
}
