//! The answers of the dashboard: its files, and the requests of its page to the service. Another
//! page of the same browser gets neither: the path holds a secret, the host must be this one, and a
//! change needs a field that no other page can send.

use std::sync::Arc;

use http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, ORIGIN};
use http::header::{REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS};
use http::request::Parts;
use http::{HeaderName, HeaderValue, Method, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Bytes;
use serde_json::{Value, json};

use crate::commands::ask::{Answer, Asked, Place, typed};
use crate::commands::explain;
use crate::commands::paths::Paths;

const PAGE: &str = include_str!("page/index.html");
const STYLE: &str = include_str!("page/style.css");
const PLOTS: &str = include_str!("page/plots.js");
const SCRIPT: &str = include_str!("page/app.js");

/// Content-Security-Policy: scripts and styles from the page's own files only, nothing from other
/// origins, no framing.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The field that the page sends with each request. A page of another origin cannot send it without
/// a CORS preflight, which is refused.
const OWN: HeaderName = HeaderName::from_static("x-weir-dashboard");

/// What a request must show to be answered.
pub struct Door {
    /// `/`, a secret, `/`.
    pub prefix: String,
    /// The port of the listener, which `Host` must name.
    pub port: u16,
}

/// A request that may be answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Wanted {
    File(&'static str, &'static str),
    /// A request to pass on to the service: method and target.
    Service(Method, String),
    /// An explanation, in words.
    Explain(String),
    /// The paths of the last minute.
    Paths,
    /// The fleet, or null.
    Fleet,
}

/// The sources of the answers.
pub struct Asker {
    pub place: Arc<Place>,
    pub paths: Arc<Paths>,
}

impl Door {
    /// What a request asks for; or the status of the refusal, and the reason.
    pub fn judge(&self, head: &Parts) -> Result<Wanted, (StatusCode, &'static str)> {
        let mut hosts = head.headers.get_all(HOST).iter();
        let host = hosts.next().filter(|_| hosts.next().is_none());
        let host = host.and_then(|host| host.to_str().ok()).unwrap_or_default();
        let own = [
            format!("127.0.0.1:{}", self.port),
            format!("localhost:{}", self.port),
        ];
        if !own.iter().any(|name| name == host) {
            return Err((
                StatusCode::MISDIRECTED_REQUEST,
                "this is no name of this page",
            ));
        }
        let nothing = (StatusCode::NOT_FOUND, "there is nothing here");
        let path = head.uri.path().strip_prefix(&self.prefix).ok_or(nothing)?;
        let Some(path) = path.strip_prefix("api/") else {
            let file = match path {
                "" => Wanted::File(PAGE, "text/html; charset=utf-8"),
                "style.css" => Wanted::File(STYLE, "text/css; charset=utf-8"),
                "plots.js" => Wanted::File(PLOTS, "text/javascript; charset=utf-8"),
                "app.js" => Wanted::File(SCRIPT, "text/javascript; charset=utf-8"),
                _ => return Err(nothing),
            };
            let reads = head.method == Method::GET || head.method == Method::HEAD;
            let wrong = (StatusCode::METHOD_NOT_ALLOWED, "files are read");
            return reads.then_some(file).ok_or(wrong);
        };
        let origin = head.headers.get(ORIGIN).map(HeaderValue::as_bytes);
        let is_own = |origin: &[u8]| origin == format!("http://{host}").as_bytes();
        if !head.headers.contains_key(OWN) || !origin.is_none_or(is_own) {
            return Err((StatusCode::FORBIDDEN, "only the page itself may ask"));
        }
        let query = head
            .uri
            .query()
            .map_or(String::new(), |query| format!("?{query}"));
        let target = format!("/v1/{path}{query}");
        match (&head.method, path) {
            (&Method::GET, "explain") => Ok(Wanted::Explain(target)),
            (&Method::GET, "paths") => Ok(Wanted::Paths),
            (&Method::GET, "fleet") => Ok(Wanted::Fleet),
            (&Method::GET, "status" | "history" | "clients" | "groups" | "bans" | "alerts")
            | (&Method::POST, "bans") => Ok(Wanted::Service(head.method.clone(), target)),
            (&Method::DELETE, path) if path.starts_with("bans/") => {
                Ok(Wanted::Service(Method::DELETE, target))
            }
            _ => Err(nothing),
        }
    }
}

/// Asks the service. Blocks.
pub fn of_service(asker: &Asker, wanted: &Wanted, body: &[u8]) -> Response<Full<Bytes>> {
    let place = &asker.place;
    let body = serde_json::from_slice::<Value>(body).ok();
    let asked = match wanted {
        Wanted::File(text, kind) => return response(StatusCode::OK, kind, text),
        Wanted::Service(method, target) => place.ask(method.clone(), target, body.as_ref()),
        Wanted::Explain(target) => place.ask(Method::GET, target, None),
        Wanted::Fleet => place.ask(Method::GET, "/v1/fleet", None),
        Wanted::Paths => {
            let paths = asker.paths.report(place).json().to_string();
            return response(StatusCode::OK, "application/json", &paths);
        }
    };
    let failed = |sentence: String| {
        let problem = json!({"detail": sentence}).to_string();
        response(StatusCode::BAD_GATEWAY, "application/json", &problem)
    };
    match asked {
        // A browser would report a status of 404 as an error of the page.
        Ok(Asked::Answered(Answer { status, .. }))
            if *wanted == Wanted::Fleet && status == StatusCode::NOT_FOUND =>
        {
            response(StatusCode::OK, "application/json", "null")
        }
        Ok(Asked::Answered(Answer { status, body })) => {
            let body = match wanted {
                Wanted::Explain(_) if status.is_success() => match typed(body.clone()) {
                    Ok(explained) => {
                        let text = explain::in_words(&explained, &place.flags);
                        json!({"text": text, "explanation": body})
                    }
                    Err(failure) => return failed(failure.sentence),
                },
                _ => body,
            };
            response(status, "application/json", &body.to_string())
        }
        Ok(Asked::NoService(failure)) | Err(failure) => failed(failure.sentence),
    }
}

/// A refusal.
pub fn refused(status: StatusCode, why: &str) -> Response<Full<Bytes>> {
    response(
        status,
        "application/json",
        &json!({"detail": why}).to_string(),
    )
}

fn response(status: StatusCode, kind: &str, text: &str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(text.to_owned())));
    *response.status_mut() = status;
    let kind = HeaderValue::from_str(kind);
    let kind = kind.unwrap_or(HeaderValue::from_static("application/octet-stream"));
    let text = HeaderValue::from_static;
    response.headers_mut().extend([
        (CONTENT_TYPE, kind),
        (CACHE_CONTROL, text("no-store")),
        (CONTENT_SECURITY_POLICY, text(POLICY)),
        (X_CONTENT_TYPE_OPTIONS, text("nosniff")),
        (REFERRER_POLICY, text("no-referrer")),
        (
            HeaderName::from_static("cross-origin-resource-policy"),
            text("same-origin"),
        ),
        (
            HeaderName::from_static("cross-origin-opener-policy"),
            text("same-origin"),
        ),
    ]);
    response
}
