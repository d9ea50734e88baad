//! Responses of our own: problem documents and the health check. The status of a refusal is decided
//! by `Action` and the ban response; this file gives it a body.

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use http_body_util::Full;
use weir_shared::units::retry_after_seconds;

/// A response that is written whole.
pub type Own = Response<Full<Bytes>>;

const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");
const PROBLEM_JSON: HeaderValue = HeaderValue::from_static("application/problem+json");
const HEALTH_JSON: HeaderValue = HeaderValue::from_static("application/health+json");
const CLOSE: HeaderValue = HeaderValue::from_static("close");

/// A problem document (RFC 9457) that says no more than the status. Refusals are many: the bodies
/// of the two usual ones are made once, and the request's id stays in the log.
pub fn problem(status: StatusCode) -> Own {
    let body = match status {
        StatusCode::TOO_MANY_REQUESTS => Bytes::from_static(
            br#"{"type":"about:blank","title":"Too Many Requests","status":429}"#,
        ),
        StatusCode::FORBIDDEN => {
            Bytes::from_static(br#"{"type":"about:blank","title":"Forbidden","status":403}"#)
        }
        other => document(other, ""),
    };
    response(status, PROBLEM_JSON, body)
}

/// A problem document that names the request, for failures that somebody will ask about.
pub fn problem_of(status: StatusCode, request_id: &HeaderValue) -> Own {
    // Ids are visible ASCII; a quote or a backslash in a trusted proxy's is left out, not escaped.
    let id = request_id
        .to_str()
        .unwrap_or_default()
        .replace(['"', '\\'], "");
    let member = format!(r#","request_id":"{id}""#);
    response(status, PROBLEM_JSON, document(status, &member))
}

/// The document of a status, with further members.
fn document(status: StatusCode, members: &str) -> Bytes {
    Bytes::from(format!(
        r#"{{"type":"about:blank","title":"{}","status":{}{members}}}"#,
        status.canonical_reason().unwrap_or("Error"),
        status.as_u16()
    ))
}

fn response(status: StatusCode, content_type: HeaderValue, body: Bytes) -> Own {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response.headers_mut().insert(CACHE_CONTROL, NO_STORE);
    response
}

/// 405 for methods that a reverse proxy does not take: CONNECT would be a tunnel, TRACE would show
/// our own fields.
pub fn method_not_allowed() -> Own {
    let mut response = problem(StatusCode::METHOD_NOT_ALLOWED);
    let allowed = HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS");
    response.headers_mut().insert(ALLOW, allowed);
    response
}

/// The health check (CHECK-1).
pub fn health(draining: bool) -> Own {
    let (status, body): (_, &'static [u8]) = if draining {
        (StatusCode::SERVICE_UNAVAILABLE, br#"{"status":"draining"}"#)
    } else {
        (StatusCode::OK, br#"{"status":"pass"}"#)
    };
    response(status, HEALTH_JSON, Bytes::from_static(body))
}

/// A response of the control plane.
pub fn own(status: StatusCode, headers: HeaderMap, body: Bytes) -> Own {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

/// Says that the connection ends with this response.
pub fn close(response: &mut Own) {
    response.headers_mut().insert(CONNECTION, CLOSE);
}

/// `Retry-After` in whole seconds, rounded up, at least 1 (RFC 9110 §10.2.3).
pub fn retry_after(response: &mut Own, milliseconds: u64) {
    response.headers_mut().insert(
        RETRY_AFTER,
        HeaderValue::from(retry_after_seconds(milliseconds)),
    );
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use http_body_util::BodyExt;

    use super::*;

    fn text(response: Own) -> String {
        let collected =
            pin!(response.into_body().collect()).poll(&mut Context::from_waker(Waker::noop()));
        let Poll::Ready(Ok(whole)) = collected else {
            panic!("it is written whole")
        };
        String::from_utf8(whole.to_bytes().to_vec()).unwrap()
    }

    /// RFC 9457: every status has its document, whether made once or each time.
    #[test]
    fn a_problem_says_its_status() {
        for status in [403, 405, 413, 429, 503] {
            let status = StatusCode::from_u16(status).unwrap();
            let made = text(Response::new(Full::new(document(status, ""))));
            assert_eq!(text(problem(status)), made);
        }
    }

    /// RFC 9457: a failure names its request; an id that is no JSON string stays harmless.
    #[test]
    fn a_failure_names_its_request() {
        let id = HeaderValue::from_static(r#"a"b\c"#);
        assert_eq!(
            text(problem_of(StatusCode::BAD_GATEWAY, &id)),
            r#"{"type":"about:blank","title":"Bad Gateway","status":502,"request_id":"abc"}"#
        );
    }
}
