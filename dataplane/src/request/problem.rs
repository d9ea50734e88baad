//! Responses of our own: problem documents, the health check, the `RateLimit` fields (LIMIT-8),
//! and whether a page for people is wanted (RFC 9110 §12.5.1). The status of a refusal is decided
//! by `Action` and the ban response; this file gives it a body.

use std::cell::RefCell;
use std::fmt::Write as _;

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use weir_shared::health::Health;
use weir_shared::units::retry_after_seconds;
use weir_shared::verdict::{Counts, LimitHit, LimitKind, Limits};

/// A response that is written whole.
pub type Own = Response<Bytes>;

pub const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");
pub const PROBLEM_JSON: HeaderValue = HeaderValue::from_static("application/problem+json");
const HEALTH_JSON: HeaderValue = HeaderValue::from_static("application/health+json");
/// `close`
pub const CLOSE: HeaderValue = HeaderValue::from_static("close");

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
    if memchr::memchr2(b'"', b'\\', id).is_none() {
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
    let mut response = Response::new(body);
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
    let mut response = Response::new(body);
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

/// Says that the connection ends with this response.
pub fn close<B>(response: &mut Response<B>) {
    response.headers_mut().insert(CONNECTION, CLOSE);
}

/// Whether the lines of `Accept` prefer HTML to JSON. Where both are wanted alike, the one that is
/// named more exactly is preferred, as browsers of all ages name HTML; and JSON where nothing says
/// otherwise.
pub fn prefers_html<'a>(mut lines: impl Iterator<Item = &'a [u8]>) -> bool {
    // What programs send, at a glance.
    let first = match (lines.next(), lines.next()) {
        (None | Some(b"*/*"), None) => return false,
        (first, second) => first.into_iter().chain(second),
    };
    prefers_html_by_weight(first.chain(lines))
}

fn prefers_html_by_weight<'a>(lines: impl Iterator<Item = &'a [u8]>) -> bool {
    let (mut html, mut problem, mut json) = <(Weight, Weight, Weight)>::default();
    let ranges = lines.flat_map(|line| line.split(|byte| *byte == b','));
    for range in ranges {
        let mut parts = range.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
        let Some((main, sub)) = parts.next().and_then(split_slash) else {
            continue;
        };
        let Some(quality) = quality(parts) else {
            continue;
        };
        html.take(main, sub, (b"text", b"html"), quality);
        problem.take(main, sub, (b"application", b"problem+json"), quality);
        json.take(main, sub, (b"application", b"json"), quality);
    }
    let json = if problem.order() > json.order() {
        problem
    } else {
        json
    };
    html.quality > 0 && html.order() > json.order()
}

/// How much a media type is wanted, as the most exact range says that has it.
#[derive(Clone, Copy, Default)]
struct Weight {
    /// `*/*`, `text/*` or `text/html`; 0 where no range has it.
    exactness: u8,
    /// Thousandths.
    quality: u16,
}

impl Weight {
    fn take(&mut self, main: &[u8], sub: &[u8], (our_main, our_sub): (&[u8], &[u8]), quality: u16) {
        let any_sub = sub == b"*";
        let exactness = if main == b"*" && any_sub {
            1
        } else if !main.eq_ignore_ascii_case(our_main) {
            return;
        } else if any_sub {
            2
        } else if sub.eq_ignore_ascii_case(our_sub) {
            3
        } else {
            return;
        };
        if exactness > self.exactness {
            *self = Self { exactness, quality };
        }
    }

    const fn order(self) -> (u16, u8) {
        (self.quality, self.exactness)
    }
}

fn split_slash(range: &[u8]) -> Option<(&[u8], &[u8])> {
    let slash = range.iter().position(|byte| *byte == b'/')?;
    let (main, sub) = range.split_at(slash);
    Some((main, sub.get(1..)?))
}

/// The quality that the parameters of a range give, in thousandths; none where it is no quality.
fn quality<'a>(mut parameters: impl Iterator<Item = &'a [u8]>) -> Option<u16> {
    let value = parameters.find_map(|parameter| match parameter {
        [b'q' | b'Q', b'=', value @ ..] => Some(value),
        _ => None,
    });
    match value {
        None => Some(1000),
        Some([b'1']) => Some(1000),
        Some([b'1', b'.', zeros @ ..]) => {
            (zeros.len() <= 3 && zeros.iter().all(|digit| *digit == b'0')).then_some(1000)
        }
        Some([b'0']) => Some(0),
        Some([b'0', b'.', digits @ ..]) if digits.len() <= 3 => {
            let mut value = 0;
            for place in 0..3 {
                let digit = digits.get(place).copied().unwrap_or(b'0');
                value = value * 10 + u16::from(digit.is_ascii_digit().then(|| digit - b'0')?);
            }
            Some(value)
        }
        Some(_) => None,
    }
}

const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// `RateLimit-Policy` and `RateLimit` (draft-ietf-httpapi-ratelimit-headers) for every limit that
/// is on.
///
/// The reset time `t` is that of the current bucket: what is left then is known for certain.
/// Nothing remains of a limit that is `broken`: the estimates are rounded down, and less than a
/// request may be left of it. Both fields are lists: what the application says in them stays.
pub fn add_fields(
    headers: &mut HeaderMap,
    limits: &Limits,
    counts: &Counts,
    broken: Option<LimitHit>,
    wall_ms: u64,
) {
    let (mut policy, mut state) = (String::new(), String::new());
    for kind in LimitKind::ALL {
        let (Some(limit), count) = (*limits.get(kind), *counts.get(kind)) else {
            continue;
        };
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
        let remaining = match broken {
            Some(LimitHit::Window(broken)) if broken == kind => 0,
            _ => limit.saturating_sub(count),
        };
        // Writing to a String does not fail.
        let _ = write!(policy, "{comma}\"{name}\";q={limit}{unit};w={window}");
        let _ = write!(state, "{comma}\"{name}\";r={remaining};t={reset}");
    }
    if policy.is_empty() {
        return;
    }
    for (name, value) in [(RATE_LIMIT_POLICY, policy), (RATE_LIMIT, state)] {
        if let Ok(value) = HeaderValue::try_from(value) {
            headers.append(name, value);
        }
    }
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

#[cfg(test)]
mod negotiation_tests {
    use super::*;

    fn prefers(lines: &[&str]) -> bool {
        prefers_html(lines.iter().map(|line| line.as_bytes()))
    }

    /// TELL-1: browsers get a page, programs a document.
    #[test]
    fn browsers_get_a_page() {
        for html in [
            "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8",
            "text/html, application/xhtml+xml, */*",
            "text/html",
            "text/*;q=0.9, application/json;q=0.8",
            "application/json;q=0.5, text/HTML; level=1; Q=0.6",
            "text/html, */*; q=0.01",
            "*/*;q=0.1, application/*;q=0.3, text/html;q=0.4",
        ] {
            assert!(prefers(&[html]), "{html}");
        }
        for json in [
            "",
            "*/*",
            "application/json",
            "application/json, text/plain, */*",
            "application/problem+json, text/html;q=0.9",
            "text/html, application/json",
            "text/html;q=0, */*",
            "text/html;q=0.000, image/png",
            "text/html;q=2, */*;q=0.1",
            "text/html;q=0.5, */*;q=0.6",
            "text/html;q=abc",
            "text/plain, image/*",
            "text/*;q=0.3, text/html;q=0.1, application/json;q=0.2",
            "html",
        ] {
            assert!(!prefers(&[json]), "{json}");
        }
        assert!(!prefers(&[]));
        // Lines are joined.
        assert!(prefers(&["application/json;q=0.1", "text/html;q=0.2"]));
        assert!(!prefers(&["text/html;q=0.1", "application/json"]));
    }
}

#[cfg(test)]
mod rate_limit_tests {
    use super::*;

    /// LIMIT-8: the fields name every limit that is on, its unit, what remains and when.
    #[test]
    fn rate_limit_fields_name_what_is_on() {
        let limits = Limits {
            requests: [Some(1000), None, None].into(),
            bytes: [Some(500), None, None].into(),
        };
        let counts = Counts {
            requests: [1001, 0, 0].into(),
            bytes: [20, 0, 0].into(),
        };
        let mut headers = HeaderMap::new();
        add_fields(
            &mut headers,
            &limits,
            &counts,
            None,
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
        add_fields(&mut none, &Limits::default(), &Counts::default(), None, 0);
        assert!(none.is_empty());
    }
}
