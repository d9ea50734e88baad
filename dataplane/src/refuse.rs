//! A refusal as a response: status, `Retry-After`, `RateLimit` fields (BAN-6, LIMIT-8).

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use weir_shared::settings::{BanResponse, RateLimitHeaders};
use weir_shared::verdict::Action;

use crate::downstream::discard::discard_body;
use crate::exchange::Exchange;
use crate::ladder::Refusal;
use crate::problem;

/// The connection closes unanswered (BAN-6).
#[derive(Debug, thiserror::Error)]
#[error("the connection is closed unanswered")]
pub struct Dropped;

/// Refuses a request, in enforce mode.
///
/// # Errors
/// [`Dropped`] where `WAF_BAN_RESPONSE` says so.
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
    let mut response = problem::problem(status);
    exchange.downstream.shorten_idle();
    if refusal.is_of_the_client() && exchange.downstream.slot.gives_way_to_ban() {
        problem::close(&mut response);
    }
    if let Some(milliseconds) = retry_ms {
        problem::retry_after(&mut response, milliseconds);
    }
    let of_limits = matches!(refusal, Refusal::RateLimited { .. } | Refusal::BodyTooLarge);
    if of_limits && worker.rate_limit_headers != RateLimitHeaders::Off {
        exchange.add_rate_limit_fields(response.headers_mut());
    }
    Ok(exchange.respond(response, refusal.action(), left_unread))
}

/// The status of a refusal, and the milliseconds after which a retry makes sense.
fn answer(exchange: &Exchange, refusal: &Refusal) -> (BanResponse, Option<u64>) {
    let ban_response = exchange.worker.ban_response;
    let now_ms = exchange.decided.wall_ms;
    match refusal {
        Refusal::DeniedNet | Refusal::DeniedCountry => (ban_response, None),
        Refusal::Banned { until } => (ban_response, until.remaining_ms(now_ms)),
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
    exchange.respond(problem::method_not_allowed(), Action::Answered, left_unread)
}
