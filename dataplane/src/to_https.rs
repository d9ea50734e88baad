//! Plain requests that are sent to https (EDGE-2, `WAF_REDIRECT_HTTP`).

use bytes::Bytes;
use http::header::{HOST, LOCATION};
use http::{HeaderValue, Response, StatusCode};
use http_body_util::Full;
use weir_shared::verdict::Action;

use crate::client_body::ClientBody;
use crate::downstream::discard::discard_body;
use crate::exchange::Exchange;
use crate::head::Fields as _;
use crate::problem;

/// The port of https that is not written.
const USUAL: u16 = 443;

/// Answers 308 with the same target over https, at this port; 400 to a request without a host.
pub async fn redirect(
    exchange: Box<Exchange>,
    body: Option<ClientBody>,
    port: u16,
) -> Response<Full<Bytes>> {
    let left_unread = discard_body(body, exchange.head.map()).await;
    let head = &exchange.head;
    let host = head.values_of(&HOST).next();
    let host = host.and_then(|host| std::str::from_utf8(host).ok());
    let location = host.and_then(|host| location(host, port, &head.target()));
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
