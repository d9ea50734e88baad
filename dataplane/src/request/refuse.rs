//! A refusal as a response: status, `Retry-After`, `RateLimit` fields (BAN-6, LIMIT-8), and a body
//! for programs or for people (TELL-1).

use bytes::Bytes;
use http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use weir_shared::settings::{BanResponse, RateLimitHeaders};
use weir_shared::units::{in_words, retry_after_seconds};
use weir_shared::verdict::Action;

use crate::message::{Fields, Form};
use crate::request::body::{ClientBody, discard};
use crate::request::exchange::Exchange;
use crate::request::identity::X_REQUEST_ID;
use crate::request::ladder::Refusal;
use crate::request::problem::{self, Says, prefers_html};
use crate::request::record::Refused;
use crate::worker::Worker;

const HTML: HeaderValue = HeaderValue::from_static("text/html; charset=utf-8");

/// The connection closes unanswered (BAN-6).
#[derive(Debug, thiserror::Error)]
#[error("the connection is closed unanswered")]
pub struct Dropped;

/// Refuses a request, in enforce mode.
///
/// # Errors
/// [`Dropped`] where `WAF_BAN_RESPONSE` or `WAF_DENY_RESPONSE` says so.
pub async fn refuse(
    exchange: Box<Exchange>,
    body: ClientBody,
    refusal: Refusal,
) -> Result<Response<Bytes>, Dropped> {
    let left_unread = discard(body).await;
    let worker = &exchange.worker;
    let (now_ms, can_ban) = (exchange.decided.wall_ms, !exchange.ban_not_possible);
    let (answer, retry_ms) = worker.responses.to(&refusal, now_ms, can_ban);
    let BanResponse::Status(status) = answer else {
        exchange.finish(refusal.action());
        return Err(Dropped);
    };
    let (head, id) = (&exchange.head, &exchange.request_id);
    let mut response = say(worker, &refusal, (status, retry_ms), head, id).into_response(id);
    exchange.downstream.shorten_idle();
    // A banned netblock keeps no more connections than it may (CONN-3).
    if refusal.is_of_the_client() && exchange.downstream.slot.gives_way_to_ban() {
        problem::close(&mut response);
    }
    let of_limits = matches!(refusal, Refusal::RateLimited { .. } | Refusal::BodyTooLarge);
    if of_limits && worker.rate_limit_headers != RateLimitHeaders::Off {
        exchange.add_rate_limit_fields(response.headers_mut());
    }
    Ok(exchange.respond(response, refusal.action(), left_unread))
}

/// Refuses a client whatever is asked for, in enforce mode, where no body comes with it.
///
/// # Errors
/// [`Dropped`] where `WAF_BAN_RESPONSE` or `WAF_DENY_RESPONSE` says so.
pub fn refuse_client(
    refused: &Refused<'_, impl Form>,
    refusal: &Refusal,
) -> Result<RefusalText, Dropped> {
    let worker = refused.worker;
    let (answer, retry_ms) = worker.responses.to_client(refusal, refused.started.wall_ms);
    let BanResponse::Status(status) = answer else {
        refused.finish(refusal.action(), None, 0);
        return Err(Dropped);
    };
    let (head, id) = (refused.head, &refused.request_id);
    let mut said = say(worker, refusal, (status, retry_ms), head, id);
    refused.downstream.shorten_idle();
    said.closes = refused.downstream.slot.gives_way_to_ban();
    // The body of an answer to HEAD is not sent.
    let is_head = refused.head.method == Method::HEAD;
    let bytes = if is_head { 0 } else { said.body.len() as u64 };
    let content_type = said.content_type.clone();
    refused.finish(refusal.action(), Some((status, content_type)), bytes);
    Ok(said)
}

/// A refusal in words, in no form of HTTP yet.
pub struct RefusalText {
    /// Its status.
    pub status: StatusCode,
    /// Of its body.
    pub content_type: HeaderValue,
    /// `Retry-After`
    pub retry_seconds: Option<u64>,
    /// The document or the page.
    pub body: Vec<u8>,
    /// Whether the connection closes behind it.
    pub closes: bool,
}

/// Fields of a refusal at most. A map for more would be in another, slower class of memory.
const FIELDS: usize = 6;

impl RefusalText {
    /// As a map of fields.
    pub fn into_response(self, request_id: &HeaderValue) -> Response<Bytes> {
        let mut response = Response::new(Bytes::from(self.body));
        *response.status_mut() = self.status;
        let mut headers = HeaderMap::with_capacity(FIELDS);
        headers.append(CONTENT_TYPE, self.content_type);
        headers.append(CACHE_CONTROL, problem::NO_STORE);
        headers.append(X_REQUEST_ID, request_id.clone());
        if let Some(seconds) = self.retry_seconds {
            headers.append(RETRY_AFTER, HeaderValue::from(seconds));
        }
        *response.headers_mut() = headers;
        if self.closes {
            problem::close(&mut response);
        }
        response
    }
}

impl RefusalText {
    /// Its head as it is written over HTTP/1. `connection` is the field that says whether the
    /// connection is kept, if one is needed, with its line end.
    pub fn write(
        &self,
        request_id: &HeaderValue,
        date: &str,
        (version, connection): (&str, &str),
        out: &mut Vec<u8>,
    ) {
        let reason = self.status.canonical_reason().unwrap_or("<none>");
        let (mut length, mut retry) = (itoa::Buffer::new(), itoa::Buffer::new());
        let length = length.format(self.body.len());
        let (retry_name, retry) = match self.retry_seconds {
            Some(seconds) => ("\r\nretry-after: ", retry.format(seconds)),
            None => ("", ""),
        };
        let mut put = |piece: &[u8]| out.extend_from_slice(piece);
        put(version.as_bytes());
        put(b" ");
        put(self.status.as_str().as_bytes());
        put(b" ");
        put(reason.as_bytes());
        put(b"\r\ncontent-type: ");
        put(self.content_type.as_bytes());
        put(b"\r\ncache-control: no-store\r\nx-request-id: ");
        put(request_id.as_bytes());
        put(retry_name.as_bytes());
        put(retry.as_bytes());
        put(b"\r\n");
        put(connection.as_bytes());
        put(b"content-length: ");
        put(length.as_bytes());
        put(b"\r\ndate: ");
        put(date.as_bytes());
        put(b"\r\n\r\n");
    }
}

/// A refusal in words: a page for people, or a document (TELL-1).
fn say(
    worker: &Worker,
    refusal: &Refusal,
    (status, retry_ms): (StatusCode, Option<u64>),
    head: &impl Fields,
    request_id: &HeaderValue,
) -> RefusalText {
    let retry_seconds = retry_ms.map(retry_after_seconds);
    let (content_type, body) = if prefers_html(head.values_of(&ACCEPT)) {
        let id = request_id.to_str().unwrap_or_default();
        let page = worker.refusal_page.load();
        (HTML, page.fill(status.as_u16(), id, retry_seconds))
    } else {
        let says = Says {
            status,
            retry_seconds,
            waits: refusal.waits(),
        };
        let detail = || says.waits.then(|| detail(status, retry_seconds));
        let document = worker.last_refusal.with(says, detail, request_id);
        (problem::PROBLEM_JSON, document)
    };
    RefusalText {
        status,
        content_type,
        retry_seconds,
        body,
        closes: false,
    }
}

/// One neutral sentence: what the status says already, and how long to wait.
fn detail(status: StatusCode, retry_seconds: Option<u64>) -> String {
    let reason = status.canonical_reason().unwrap_or("Refused");
    let mut detail = String::with_capacity(64);
    detail.push_str(reason);
    // All but the first letter of a reason is made small.
    if let Some(rest) = detail.get_mut(1..) {
        rest.make_ascii_lowercase();
    }
    detail.push('.');
    if let Some(seconds) = retry_seconds {
        detail.push_str(" Try again in ");
        detail.push_str(&in_words(seconds));
        detail.push('.');
    }
    detail
}

/// Answers 405.
pub async fn method_not_allowed(exchange: Box<Exchange>, body: ClientBody) -> Response<Bytes> {
    let left_unread = discard(body).await;
    let response = problem::method_not_allowed(&exchange.request_id);
    exchange.respond(response, Action::Answered, left_unread)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// TELL-1: the sentence says no more than the status and the time to wait.
    #[test]
    fn a_detail_is_one_neutral_sentence() {
        let detail = |status, retry_seconds| {
            let status = StatusCode::from_u16(status).unwrap();
            super::detail(status, retry_seconds)
        };
        assert_eq!(
            detail(429, Some(2460)),
            "Too many requests. Try again in 41 minutes."
        );
        assert_eq!(detail(403, None), "Forbidden.");
        assert_eq!(detail(404, Some(1)), "Not found. Try again in 1 second.");
        assert_eq!(detail(599, None), "Refused.");
    }
}
