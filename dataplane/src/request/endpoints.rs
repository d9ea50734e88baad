//! Requests that the service answers itself: those under `/_waf/`, which are handed over to the
//! control plane, and plain ones that are sent to https (EDGE-2, `WAF_REDIRECT_HTTP`).

use std::future::poll_fn;
use std::task::Poll;

use bytes::Bytes;
use http::header::{AUTHORIZATION, LOCATION};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use weir_shared::handover::{Body, OwnRequest, OwnResponse, Step};
use weir_shared::verdict::{Action, History};

use crate::conn::Downstream;
use crate::message::{Fields, Piece};
use crate::request::body::{ClientBody, discard};
use crate::request::exchange::Exchange;
use crate::request::problem;

/// Answers a request under `/_waf/`.
pub async fn answer(mut exchange: Box<Exchange>, mut body: ClientBody) -> Response<Bytes> {
    let OwnResponse {
        status,
        headers,
        body: content,
        action,
        history,
    } = ask_control_plane(&exchange, &mut body).await;
    exchange.history = Some(history);
    let left_unread = discard(body).await;
    exchange.respond(problem::own(status, headers, content), action, left_unread)
}

async fn ask_control_plane(exchange: &Exchange, body: &mut ClientBody) -> OwnResponse {
    let request = |content| OwnRequest {
        method: exchange.head.method.clone(),
        path: exchange.head.path().to_owned(),
        query: exchange.head.query().map(str::to_owned),
        authorization: only_authorization(&exchange.head),
        client: Some(exchange.identity.client),
        request_id: exchange.request_id.to_str().unwrap_or_default().to_owned(),
        announced: exchange.head.length.announced(),
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
            Step::ReadBody { limit } if is_longer(exchange, limit) => {
                content = Some(Body::TooLarge);
            }
            Step::ReadBody { limit } => {
                let read = read_body(body, limit, &exchange.downstream).await;
                content = Some(read);
            }
        }
    }
}

/// Whether a body announces more than `limit` bytes: a client that waits for a 100 is told before
/// it sends them.
fn is_longer(exchange: &Exchange, limit: usize) -> bool {
    let announced = exchange.head.length.announced();
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
        let next = poll_fn(|cx| {
            let next = body.poll(cx);
            downstream.timed(|deadlines, now_ns| match &next {
                Poll::Pending => deadlines.await_body(now_ns),
                Poll::Ready(Some(Ok(Piece::Data(data)))) => {
                    deadlines.got_body(now_ns, data.len() as u64);
                }
                Poll::Ready(_) => deadlines.got_body(now_ns, 0),
            });
            next
        })
        .await;
        match next {
            None => return Body::Whole(Bytes::from(content)),
            // The connection of a broken body ends.
            Some(Err(_)) => return Body::CutOff,
            Some(Ok(Piece::Trailers(_))) => {}
            Some(Ok(Piece::Data(data))) => {
                if content.len() + data.len() > limit {
                    return Body::TooLarge;
                }
                downstream.upload().take(data.len(), None);
                content.extend_from_slice(&data);
            }
        }
    }
}

/// The port of https that is not written.
const USUAL: u16 = 443;

/// Answers 308 with the same target over https, at this port; 400 to a request without a host.
pub async fn redirect(exchange: Box<Exchange>, body: ClientBody, port: u16) -> Response<Bytes> {
    let left_unread = discard(body).await;
    let head = &exchange.head;
    let host = head.host();
    let host = host.and_then(|host| std::str::from_utf8(host).ok());
    let location = host.and_then(|host| location(host, port, head.target()));
    let response = match location {
        Some(location) => {
            let status = StatusCode::PERMANENT_REDIRECT;
            let mut response = problem::problem(status, &exchange.request_id);
            response.headers_mut().insert(LOCATION, location);
            response
        }
        None => problem::problem(StatusCode::BAD_REQUEST, &exchange.request_id),
    };
    exchange.respond(response, Action::Answered, left_unread)
}

/// Where a request goes; none where no host is named.
fn location(host: &str, port: u16, target: &str) -> Option<HeaderValue> {
    let name = without_port(host);
    if name.is_empty() {
        return None;
    }
    let target = if target == "*" { "/" } else { target };
    let location = if port == USUAL {
        format!("https://{name}{target}")
    } else {
        format!("https://{name}:{port}{target}")
    };
    HeaderValue::try_from(location).ok()
}

/// A host without its port; the colons of an IPv6 address stand in brackets.
fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if !port.contains(']') => name,
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// EDGE-2: host and target stay, the port is that of https.
    #[test]
    fn the_same_target_over_https() {
        let to = |host: &str, port, target: &str| {
            let location = location(host, port, target)?;
            Some(location.to_str().unwrap().to_owned())
        };
        for (host, port, target, expected) in [
            ("a.test", 443, "/x?y=z", Some("https://a.test/x?y=z")),
            ("a.test:8080", 443, "/", Some("https://a.test/")),
            ("a.test:80", 8443, "/", Some("https://a.test:8443/")),
            ("[::1]:80", 443, "/", Some("https://[::1]/")),
            ("[::1]", 8443, "/", Some("https://[::1]:8443/")),
            ("", 443, "/", None),
            (":80", 443, "/", None),
        ] {
            assert_eq!(to(host, port, target).as_deref(), expected, "{host}");
        }
    }
}
