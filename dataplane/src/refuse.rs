//! A refusal as a response: status, `Retry-After`, `RateLimit` fields (BAN-6, LIMIT-8), and a body
//! for programs or for people (TELL-1).

use bytes::Bytes;
use http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use weir_shared::settings::{BanResponse, RateLimitHeaders};
use weir_shared::units::{in_words, retry_after_seconds};
use weir_shared::verdict::Action;

use crate::downstream::discard::discard_body;
use crate::exchange::Exchange;
use crate::ladder::Refusal;
use crate::negotiation::prefers_html;
use crate::problem;
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
    body: Incoming,
    refusal: Refusal,
) -> Result<Response<Full<Bytes>>, Dropped> {
    let left_unread = discard_body(body, &exchange.head.headers).await;
    let worker = &exchange.worker;
    let (answer, retry_ms) = answer(&exchange, &refusal);
    let BanResponse::Status(status) = answer else {
        exchange.finish(refusal.action());
        return Err(Dropped);
    };
    let text = Text {
        status,
        retry_seconds: retry_ms.map(retry_after_seconds),
        waits: refusal.waits(),
        is_page: wants_page(&exchange.head.headers),
    };
    let mut response = text.response(worker, &exchange.request_id);
    exchange.downstream.shorten_idle();
    if refusal.is_of_the_client() && exchange.downstream.slot.gives_way_to_ban() {
        problem::close(&mut response);
    }
    let of_limits = matches!(refusal, Refusal::RateLimited { .. } | Refusal::BodyTooLarge);
    if of_limits && worker.rate_limit_headers != RateLimitHeaders::Off {
        exchange.add_rate_limit_fields(response.headers_mut());
    }
    Ok(exchange.respond(response, refusal.action(), left_unread))
}

/// Whether a refusal is a page for people (TELL-1).
fn wants_page(headers: &HeaderMap) -> bool {
    headers.contains_key(ACCEPT) && prefers_html(headers.get_all(ACCEPT).iter())
}

/// What a refusal says.
struct Text {
    status: StatusCode,
    /// When a retry makes sense, if that is known.
    retry_seconds: Option<u64>,
    /// It is said how long to wait.
    waits: bool,
    /// For people.
    is_page: bool,
}

impl Text {
    fn response(&self, worker: &Worker, request_id: &HeaderValue) -> Response<Full<Bytes>> {
        let (content_type, body) = if self.is_page {
            let id = request_id.to_str().unwrap_or_default();
            let page = worker.refusal_page.load();
            let filled = page.fill(self.status.as_u16(), id, self.retry_seconds);
            (HTML, filled)
        } else {
            let detail = self.waits.then(|| self.detail());
            let document = problem::document(self.status, detail.as_deref(), Some(request_id));
            (problem::PROBLEM_JSON, document)
        };
        let mut response = Response::new(Full::new(Bytes::from(body)));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, content_type);
        headers.insert(CACHE_CONTROL, problem::NO_STORE);
        if let Some(seconds) = self.retry_seconds {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }

    /// One neutral sentence: what the status says already, and how long to wait.
    fn detail(&self) -> String {
        let reason = self.status.canonical_reason().unwrap_or("Refused");
        let mut detail = String::with_capacity(64);
        let mut characters = reason.chars();
        detail.extend(characters.next());
        detail.extend(characters.map(|character| character.to_ascii_lowercase()));
        detail.push('.');
        if let Some(seconds) = self.retry_seconds {
            detail.push_str(" Try again in ");
            detail.push_str(&in_words(seconds));
            detail.push('.');
        }
        detail
    }
}

/// The status of a refusal, and the milliseconds after which a retry makes sense.
fn answer(exchange: &Exchange, refusal: &Refusal) -> (BanResponse, Option<u64>) {
    let ban_response = exchange.worker.ban_response;
    let now_ms = exchange.decided.wall_ms;
    match refusal {
        Refusal::DeniedNet | Refusal::DeniedCountry | Refusal::Trapped { .. } => {
            (exchange.worker.deny_response, None)
        }
        Refusal::Banned(ban) => (ban_response, ban.expires.remaining_ms(now_ms)),
        Refusal::RateLimited {
            ban: Some(expiry), ..
        } if !exchange.ban_not_possible => (ban_response, expiry.remaining_ms(now_ms)),
        Refusal::RateLimited { exceeded, .. } => (
            BanResponse::Status(StatusCode::TOO_MANY_REQUESTS),
            exceeded.fits_in_ms,
        ),
        Refusal::BodyTooLarge => (BanResponse::Status(StatusCode::PAYLOAD_TOO_LARGE), None),
    }
}

/// Answers 405.
pub async fn method_not_allowed(exchange: Box<Exchange>, body: Incoming) -> Response<Full<Bytes>> {
    let left_unread = discard_body(body, &exchange.head.headers).await;
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
            let text = Text {
                status,
                retry_seconds,
                waits: true,
                is_page: false,
            };
            text.detail()
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
