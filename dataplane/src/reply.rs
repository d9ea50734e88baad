//! Answers we write ourselves: refusals, failures, the health check.
//!
//! `Action` and the ban response decide the status; this file gives it a body and the fields that limits carry
//! (LIMIT-8).

use std::fmt::Write as _;

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use http_body_util::Full;
use weir_shared::units::retry_after_seconds;
use weir_shared::verdict::LimitKind;

use crate::clients::limits::Limits;
use crate::forward::body::ReplyBody;

const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");
const PROBLEM: HeaderValue = HeaderValue::from_static("application/problem+json");
const HEALTH_JSON: HeaderValue = HeaderValue::from_static("application/health+json");
const CLOSE: HeaderValue = HeaderValue::from_static("close");

/// A problem document (RFC 9457) that says no more than the status: refusals are many, so the body of each status is
/// made once, and the request's id stays in the log.
pub fn problem(status: StatusCode) -> Response<ReplyBody> {
    let body = match status {
        StatusCode::TOO_MANY_REQUESTS => Bytes::from_static(
            br#"{"type":"about:blank","title":"Too Many Requests","status":429}"#,
        ),
        StatusCode::FORBIDDEN => {
            Bytes::from_static(br#"{"type":"about:blank","title":"Forbidden","status":403}"#)
        }
        other => Bytes::from(format!(
            r#"{{"type":"about:blank","title":"{}","status":{}}}"#,
            other.canonical_reason().unwrap_or("Error"),
            other.as_u16()
        )),
    };
    let mut response = Response::new(ReplyBody::Own(Full::new(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, PROBLEM);
    response.headers_mut().insert(CACHE_CONTROL, NO_STORE);
    response
}

/// A problem document that names the request, for failures that somebody will ask about.
pub fn problem_of(status: StatusCode, request_id: &HeaderValue) -> Response<ReplyBody> {
    let mut response = problem(status);
    // Ids are visible ASCII; a quote or a backslash of a trusted proxy's is left out rather than escaped.
    let id: String = request_id
        .to_str()
        .unwrap_or_default()
        .replace(['"', '\\'], "");
    let body = format!(
        r#"{{"type":"about:blank","title":"{}","status":{},"request_id":"{id}"}}"#,
        status.canonical_reason().unwrap_or("Error"),
        status.as_u16()
    );
    *response.body_mut() = ReplyBody::Own(Full::new(Bytes::from(body)));
    response
}

/// 405 for methods that a reverse proxy does not take: CONNECT would be a tunnel, TRACE would show our own fields.
pub fn method_not_allowed() -> Response<ReplyBody> {
    let mut response = problem(StatusCode::METHOD_NOT_ALLOWED);
    let allowed = HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS");
    response.headers_mut().insert(ALLOW, allowed);
    response
}

/// The health check (section 3, step 1).
pub fn health(draining: bool) -> Response<ReplyBody> {
    let (status, body): (_, &'static [u8]) = if draining {
        (StatusCode::SERVICE_UNAVAILABLE, br#"{"status":"draining"}"#)
    } else {
        (StatusCode::OK, br#"{"status":"pass"}"#)
    };
    let mut response = Response::new(ReplyBody::Own(Full::new(Bytes::from_static(body))));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HEALTH_JSON);
    response.headers_mut().insert(CACHE_CONTROL, NO_STORE);
    response
}

/// An answer of the control plane.
pub fn own(status: StatusCode, headers: HeaderMap, body: Bytes) -> Response<ReplyBody> {
    let mut response = Response::new(ReplyBody::Own(Full::new(body)));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

/// Says that the connection ends with this answer.
pub fn close(response: &mut Response<ReplyBody>) {
    response.headers_mut().insert(CONNECTION, CLOSE);
}

/// `Retry-After` in whole seconds, rounded up, at least 1 (RFC 9110 §10.2.3).
pub fn retry_after(response: &mut Response<ReplyBody>, milliseconds: u64) {
    response.headers_mut().insert(
        RETRY_AFTER,
        HeaderValue::from(retry_after_seconds(milliseconds)),
    );
}

/// `RateLimit-Policy` and `RateLimit` (draft-ietf-httpapi-ratelimit-headers) for every limit that is on.
///
/// The reset time `t` is that of the current bucket: what is left then is known for certain.
pub fn rate_limit_fields(
    headers: &mut HeaderMap,
    limits: &Limits,
    counts: &[u64; 6],
    wall_ms: u64,
) {
    let (mut policy, mut state) = (String::new(), String::new());
    let all = limits.requests.iter().chain(&limits.bytes);
    for ((kind, limit), count) in LimitKind::ALL.into_iter().zip(all).zip(counts) {
        let Some(limit) = *limit else { continue };
        let comma = if policy.is_empty() { "" } else { ", " };
        let span_ms = kind.span().ms();
        let unit = if kind.counts_bytes() {
            ";qu=\"content-bytes\""
        } else {
            ""
        };
        let window = span_ms / 1000;
        let reset = retry_after_seconds(span_ms - wall_ms % span_ms);
        let name = kind.name();
        let remaining = limit.saturating_sub(*count);
        // Writing to a String does not fail.
        let _ = write!(policy, "{comma}\"{name}\";q={limit}{unit};w={window}");
        let _ = write!(state, "{comma}\"{name}\";r={remaining};t={reset}");
    }
    if policy.is_empty() {
        return;
    }
    for (name, value) in [(RATE_LIMIT_POLICY, policy), (RATE_LIMIT, state)] {
        if let Ok(value) = HeaderValue::try_from(value) {
            headers.insert(name, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// LIMIT-8: the fields name every limit that is on, its unit, what remains and when.
    #[test]
    fn rate_limit_fields_name_what_is_on() {
        let limits = Limits {
            requests: [Some(1000), None, None],
            bytes: [Some(500), None, None],
        };
        let mut headers = HeaderMap::new();
        rate_limit_fields(
            &mut headers,
            &limits,
            &[1001, 0, 0, 20, 0, 0],
            1_795_276_800_000 + 18_500,
        );
        assert_eq!(
            headers[RATE_LIMIT_POLICY],
            r#""minute";q=1000;w=60, "minute_bytes";q=500;qu="content-bytes";w=60"#
        );
        assert_eq!(
            headers[RATE_LIMIT],
            r#""minute";r=0;t=42, "minute_bytes";r=480;t=42"#
        );
        let mut none = HeaderMap::new();
        rate_limit_fields(&mut none, &Limits::default(), &[0; 6], 0);
        assert!(none.is_empty());
    }
}
