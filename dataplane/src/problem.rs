//! Responses of our own: problem documents and the health check. The status of a refusal is decided
//! by `Action` and the ban response; this file gives it a body.

use std::cell::RefCell;

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use http_body_util::Full;
use weir_shared::health::Health;

/// A response that is written whole.
pub type Own = Response<Full<Bytes>>;

pub const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");
pub const PROBLEM_JSON: HeaderValue = HeaderValue::from_static("application/problem+json");
const HEALTH_JSON: HeaderValue = HeaderValue::from_static("application/health+json");
const CLOSE: HeaderValue = HeaderValue::from_static("close");

/// 400 for what was no request.
pub fn bad_request() -> Own {
    no_request(StatusCode::BAD_REQUEST)
}

/// Marks the answer to what was no request, among the extensions of the response.
#[derive(Clone, Copy, Debug)]
pub struct NoRequest;

/// For what was no request: it has no id (TELL-1).
pub fn no_request(status: StatusCode) -> Own {
    let mut response = response(status, PROBLEM_JSON, document(status, None, None).into());
    response.extensions_mut().insert(NoRequest);
    response
}

/// A problem document (RFC 9457) that says no more than the status and the request's id.
pub fn problem(status: StatusCode, request_id: &HeaderValue) -> Own {
    let body = document(status, None, Some(request_id));
    response(status, PROBLEM_JSON, body.into())
}

/// The document of a status. `detail` is plain text of ours: nothing in it needs an escape.
pub fn document(
    status: StatusCode,
    detail: Option<&str>,
    request_id: Option<&HeaderValue>,
) -> Vec<u8> {
    let mut body = beginning(status, detail);
    end(&mut body, request_id);
    body
}

/// What the document of a refusal says besides its id.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Says {
    /// Its status.
    pub status: StatusCode,
    /// It is a matter of time.
    pub waits: bool,
    /// When a retry makes sense, if that is known.
    pub retry_seconds: Option<u64>,
}

/// The document of the last refusal, but for its id: who is refused asks again, and mostly within
/// the same second.
#[derive(Default)]
pub struct LastDocument(RefCell<Option<(Says, Vec<u8>)>>);

impl LastDocument {
    /// The document that says this; `detail` is asked where it is not the last one.
    pub fn with(
        &self,
        says: Says,
        detail: impl FnOnce() -> Option<String>,
        request_id: &HeaderValue,
    ) -> Vec<u8> {
        let mut held = self.0.borrow_mut();
        if held.as_ref().is_none_or(|(held, _)| *held != says) {
            let beginning = beginning(says.status, detail().as_deref());
            *held = Some((says, beginning));
        }
        let mut body = Vec::with_capacity(256);
        if let Some((_, beginning)) = &*held {
            body.extend_from_slice(beginning);
        }
        end(&mut body, Some(request_id));
        body
    }
}

/// A document up to its id.
fn beginning(status: StatusCode, detail: Option<&str>) -> Vec<u8> {
    let mut body = Vec::with_capacity(256);
    body.extend_from_slice(br#"{"type":"about:blank","title":""#);
    let title = status.canonical_reason().unwrap_or("Error");
    body.extend_from_slice(title.as_bytes());
    body.extend_from_slice(br#"","status":"#);
    body.extend_from_slice(status.as_str().as_bytes());
    if let Some(detail) = detail {
        body.extend_from_slice(br#","detail":""#);
        body.extend_from_slice(detail.as_bytes());
        body.push(b'"');
    }
    body
}

/// The end of a document.
fn end(body: &mut Vec<u8>, request_id: Option<&HeaderValue>) {
    if let Some(id) = request_id {
        body.extend_from_slice(br#","request_id":""#);
        push_id(body, id.as_bytes());
        body.push(b'"');
    }
    body.push(b'}');
}

/// Ids are visible ASCII: two of it need an escape, and no id of ours has them.
fn push_id(body: &mut Vec<u8>, id: &[u8]) {
    let needs_escape = |byte: &u8| matches!(byte, b'"' | b'\\');
    if !id.iter().any(needs_escape) {
        body.extend_from_slice(id);
        return;
    }
    for byte in id {
        if needs_escape(byte) {
            body.push(b'\\');
        }
        body.push(*byte);
    }
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
pub fn method_not_allowed(request_id: &HeaderValue) -> Own {
    let mut response = problem(StatusCode::METHOD_NOT_ALLOWED, request_id);
    let allowed = HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS");
    response.headers_mut().insert(ALLOW, allowed);
    response
}

/// The health check (CHECK-1).
pub fn health(health: Health) -> Own {
    let body = Bytes::from_static(health.json().as_bytes());
    response(health.status(), HEALTH_JSON, body)
}

/// A response of the control plane.
pub fn own(status: StatusCode, headers: HeaderMap, body: Bytes) -> Own {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

/// Says that the connection ends with this response.
pub fn close<B>(response: &mut Response<B>) {
    response.headers_mut().insert(CONNECTION, CLOSE);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(status: StatusCode, detail: Option<&str>, id: Option<&'static str>) -> String {
        let id = id.map(HeaderValue::from_static);
        String::from_utf8(document(status, detail, id.as_ref())).unwrap()
    }

    /// TELL-1: a document has what is known: its status, a detail, the request's id as JSON.
    #[test]
    fn a_problem_says_its_status_and_its_request() {
        assert_eq!(
            text(StatusCode::BAD_GATEWAY, None, Some(r#"a"b\c"#)),
            r#"{"type":"about:blank","title":"Bad Gateway","status":502,"request_id":"a\"b\\c"}"#
        );
        assert_eq!(
            text(StatusCode::TOO_MANY_REQUESTS, Some("Wait."), None),
            r#"{"type":"about:blank","title":"Too Many Requests","status":429,"detail":"Wait."}"#
        );
    }

    /// RFC 9457: a status without a title of its own has one all the same.
    #[test]
    fn a_status_without_a_name_has_a_title() {
        let status = StatusCode::from_u16(599).unwrap();
        assert_eq!(
            text(status, None, None),
            r#"{"type":"about:blank","title":"Error","status":599}"#
        );
    }
}
