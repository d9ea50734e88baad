//! Requests under `/_waf/`: handed over to the control plane, with their body where it asks for
//! one.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_LENGTH};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Body as _;
use weir_shared::handover::{Body, OwnRequest, OwnResponse, Step};
use weir_shared::verdict::{Action, History};

use crate::client_body::ClientBody;
use crate::downstream::Downstream;
use crate::downstream::discard::discard_body;
use crate::exchange::Exchange;
use crate::head::{Fields, Head as _};
use crate::headers::number;
use crate::problem;

/// Answers a request under `/_waf/`.
pub async fn answer(
    mut exchange: Box<Exchange>,
    mut body: Option<ClientBody>,
) -> Response<Full<Bytes>> {
    let OwnResponse {
        status,
        headers,
        body: content,
        action,
        history,
    } = ask_control_plane(&exchange, &mut body).await;
    exchange.history = Some(history);
    let left_unread = discard_body(body, exchange.head.map()).await;
    exchange.respond(problem::own(status, headers, content), action, left_unread)
}

async fn ask_control_plane(exchange: &Exchange, body: &mut Option<ClientBody>) -> OwnResponse {
    let request = |content| OwnRequest {
        method: exchange.head.verb().clone(),
        path: exchange.head.path().to_owned(),
        query: exchange.head.query().map(str::to_owned),
        authorization: only_authorization(&exchange.head),
        client: Some(exchange.identity.client),
        request_id: exchange.request_id.to_str().unwrap_or_default().to_owned(),
        body: content,
    };
    let mut content = None;
    loop {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let respond = Box::new(move |response| {
            // The client may have gone; nobody is left to tell.
            let _ = sender.send(response);
        });
        match (exchange.worker.handover)(request(content.clone()), respond) {
            Step::Done(response) => return response,
            Step::Later => return receiver.await.unwrap_or_else(|_| unavailable()),
            // Asked once at most: a second time would be a bug of the control plane, and ends here.
            Step::ReadBody { .. } if content.is_some() => return unavailable(),
            Step::ReadBody { limit } if is_longer(&exchange.head, limit) => {
                content = Some(Body::TooLarge);
            }
            Step::ReadBody { limit } => {
                let read = match body {
                    Some(body) => read_body(body, limit, &exchange.downstream).await,
                    None => Body::Whole(Bytes::new()),
                };
                content = Some(read);
            }
        }
    }
}

/// Whether a body announces more than `limit` bytes: a client that waits for a 100 is told before
/// it sends them.
fn is_longer(head: &impl Fields, limit: usize) -> bool {
    let announced = head.values_of(&CONTENT_LENGTH).next().and_then(number);
    announced.is_some_and(|length| length > limit as u64)
}

/// The `Authorization` field, if there is exactly one.
fn only_authorization(head: &impl Fields) -> Option<HeaderValue> {
    let mut all = head.values_of(&AUTHORIZATION);
    let only = all.next().filter(|_| all.next().is_none())?;
    HeaderValue::from_bytes(only).ok()
}

fn unavailable() -> OwnResponse {
    OwnResponse {
        status: StatusCode::SERVICE_UNAVAILABLE,
        headers: HeaderMap::new(),
        body: Bytes::new(),
        action: Action::Answered,
        history: History::Neither,
    }
}

/// Reads a body, bounded; a client that stalls is cut by its time-out.
async fn read_body(body: &mut ClientBody, limit: usize, downstream: &Downstream) -> Body {
    let mut content = Vec::new();
    loop {
        let frame = poll_fn(|cx| {
            let next = Pin::new(&mut *body).poll_frame(cx);
            match &next {
                Poll::Pending => downstream.await_body(),
                Poll::Ready(next) => {
                    let came = next
                        .as_ref()
                        .and_then(|frame| frame.as_ref().ok()?.data_ref());
                    downstream.got_body(came.map_or(0, Bytes::len));
                }
            }
            next
        })
        .await;
        match frame {
            None => return Body::Whole(Bytes::from(content)),
            // hyper ends the connection of a broken body; an empty one is refused in the meantime.
            Some(Err(_)) => return Body::Whole(Bytes::new()),
            Some(Ok(frame)) => {
                let Some(data) = frame.data_ref() else {
                    continue;
                };
                if content.len() + data.len() > limit {
                    return Body::TooLarge;
                }
                downstream.upload.take(data.len(), None);
                content.extend_from_slice(data);
            }
        }
    }
}
