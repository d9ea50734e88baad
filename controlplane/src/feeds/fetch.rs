//! One fetch of a feed (FEED-3): conditional, bounded in time and size, and without redirects to
//! places that only the service can reach.

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, ETAG, HeaderMap, HeaderName, HeaderValue,
    IF_MODIFIED_SINCE, IF_NONE_MATCH, LAST_MODIFIED, LOCATION, USER_AGENT,
};
use http::{Request, Response, StatusCode, Uri, request};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustls::ClientConfig;

use super::location::follow;
use super::resolve::{Reach, Resolver};
use super::wanted::FeedUrl;
use crate::outgoing::{chain, retry_after};

/// The longest that a fetch may take, redirects included.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);
/// The largest list.
pub(super) const MAX_BYTES: usize = 64 << 20;
/// The header field with the key of a LAPI.
const API_KEY: &str = "x-api-key";
/// Redirects that are followed, one after the other.
const MAX_REDIRECTS: usize = 5;
/// The longest `ETag` and `Last-Modified` that are kept.
const MAX_VALIDATOR: usize = 1024;

/// The validators by which a publisher identifies a version.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Validators {
    pub(super) etag: Option<String>,
    pub(super) last_modified: Option<String>,
}

/// The result of a fetch.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Fetched {
    /// The version of the validators is still current.
    Unchanged,
    /// Another version.
    Body(Vec<u8>, Validators),
}

/// Why a fetch failed.
#[derive(PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error("nothing whole within {} s", PATIENCE.as_secs())]
    TimedOut,
    #[error("the connection failed: {0}")]
    Connection(String),
    #[error("the answer has status {status}")]
    Status {
        status: StatusCode,
        /// `Retry-After`
        pause: Option<Duration>,
    },
    #[error("it redirects to {0:?}, {1}")]
    Redirect(String, String),
    #[error("it redirects more than {MAX_REDIRECTS} times")]
    Redirects,
    #[error("it is larger than {} MiB", MAX_BYTES >> 20)]
    TooLarge,
    #[error("it was broken off: {0}")]
    Broken(String),
    #[error("it is encoded as {0:?}, which was not asked for")]
    Encoded(String),
}

impl Failure {
    /// The pause that the publisher asks for.
    pub(super) const fn pause(&self) -> Option<Duration> {
        match self {
            Self::Status { pause, .. } => *pause,
            _ => None,
        }
    }
}

/// Fetches a feed, unless the version of the validators is still current.
pub(super) async fn fetch(
    tls: &ClientConfig,
    url: &FeedUrl,
    validators: &Validators,
    now_ms: u64,
) -> Result<Fetched, Failure> {
    let reach = match url.is_loopback() {
        true => Reach::Loopback,
        false => Reach::Public,
    };
    let way = Way { tls, reach, now_ms };
    within(PATIENCE, way.fetch(url.clone(), validators)).await
}

/// Asks a LAPI for its decision stream: all decisions at a start, or what has changed since it was
/// last asked (FEED-7). No redirect is followed: the key is for this address only.
pub(super) async fn decisions(
    tls: &ClientConfig,
    url: &FeedUrl,
    key: &HeaderValue,
    is_start: bool,
    now_ms: u64,
) -> Result<Vec<u8>, Failure> {
    let reach = match url.is_loopback() {
        true => Reach::Loopback,
        false => Reach::Public,
    };
    let way = Way { tls, reach, now_ms };
    // Without `dedup=false` the LAPI sends one decision of each value, and without `scopes` only
    // those of ip and range.
    let target =
        format!("/v1/decisions/stream?startup={is_start}&dedup=false&scopes=ip,range,as,country");
    let asking = async {
        let mut parts = url.uri().clone().into_parts();
        parts.path_and_query = target.parse().ok();
        let uri = Uri::from_parts(parts).map_err(|error| Failure::Connection(chain(&error)))?;
        let request = Request::get(uri)
            .header(USER_AGENT, concat!("weir/", env!("CARGO_PKG_VERSION")))
            .header(API_KEY, key);
        let response = send(&way, request).await?;
        let status = response.status();
        if status != StatusCode::OK {
            let pause = retry_after(response.headers(), now_ms);
            return Err(Failure::Status { status, pause });
        }
        body(response).await
    };
    within(PATIENCE, asking).await
}

async fn within<T>(
    patience: Duration,
    fetching: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let fetched = tokio::time::timeout(patience, fetching).await;
    fetched.unwrap_or(Err(Failure::TimedOut))
}

/// How to send a request for a feed.
struct Way<'a> {
    tls: &'a ClientConfig,
    reach: Reach,
    now_ms: u64,
}

impl Way<'_> {
    async fn fetch(&self, mut url: FeedUrl, validators: &Validators) -> Result<Fetched, Failure> {
        for _ in 0..=MAX_REDIRECTS {
            let response = ask(self, &url, validators).await?;
            let status = response.status();
            let headers = response.headers();
            let location = headers.get(LOCATION).map(shown);
            match (status.as_u16(), location) {
                (200, _) => {
                    let named = named(headers);
                    return Ok(Fetched::Body(body(response).await?, named));
                }
                (304, _) if *validators != Validators::default() => return Ok(Fetched::Unchanged),
                (301 | 302 | 303 | 307 | 308, Some(location)) => {
                    url = follow(&url, &location, self.reach)
                        .map_err(|why| Failure::Redirect(location, why))?;
                }
                _ => {
                    let pause = retry_after(headers, self.now_ms);
                    return Err(Failure::Status { status, pause });
                }
            }
        }
        Err(Failure::Redirects)
    }
}

async fn ask(
    way: &Way<'_>,
    url: &FeedUrl,
    validators: &Validators,
) -> Result<Response<Incoming>, Failure> {
    let mut request = Request::get(url.uri()).header(USER_AGENT, "weir");
    for (name, value) in [
        (IF_NONE_MATCH, &validators.etag),
        (IF_MODIFIED_SINCE, &validators.last_modified),
    ] {
        if let Some(value) = value {
            request = request.header(name, value.as_str());
        }
    }
    send(way, request).await
}

/// Sends a request on a connection of its own.
async fn send(way: &Way<'_>, request: request::Builder) -> Result<Response<Incoming>, Failure> {
    let failed = |error: &dyn std::error::Error| Failure::Connection(chain(error));
    let mut connector = HttpConnector::new_with_resolver(Resolver::new(way.reach));
    connector.enforce_http(false);
    connector.set_connect_timeout(Some(PATIENCE));
    let connector = hyper_rustls::HttpsConnectorBuilder::new()
        .with_tls_config(way.tls.clone())
        .https_or_http()
        .enable_http1()
        .wrap_connector(connector);
    let client = HttpClient::builder(TokioExecutor::new())
        .pool_max_idle_per_host(0)
        .build(connector);
    let request = request.header(ACCEPT_ENCODING, "identity");
    let request = request.body(Empty::<Bytes>::new());
    let request = request.map_err(|error| failed(&error))?;
    client
        .request(request)
        .await
        .map_err(|error| failed(&error))
}

/// Reads the whole body.
async fn body(response: Response<Incoming>) -> Result<Vec<u8>, Failure> {
    let headers = response.headers();
    let encoding = headers.get(CONTENT_ENCODING).map(shown);
    if let Some(encoding) = encoding.filter(|name| !name.eq_ignore_ascii_case("identity")) {
        return Err(Failure::Encoded(encoding));
    }
    let announced = headers.get(CONTENT_LENGTH).map(shown);
    let announced = announced
        .and_then(|length| length.parse().ok())
        .unwrap_or(0);
    if announced > MAX_BYTES {
        return Err(Failure::TooLarge);
    }
    let mut whole = Vec::new();
    let mut body = response.into_body();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Failure::Broken(chain(&error)))?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        if whole.len() + data.len() > MAX_BYTES {
            return Err(Failure::TooLarge);
        }
        whole.extend_from_slice(&data);
    }
    Ok(whole)
}

fn named(headers: &HeaderMap) -> Validators {
    let of = |name: HeaderName| {
        let value = headers.get(name)?.to_str().ok()?;
        (value.len() <= MAX_VALIDATOR).then(|| value.to_owned())
    };
    Validators {
        etag: of(ETAG),
        last_modified: of(LAST_MODIFIED),
    }
}

fn shown(value: &HeaderValue) -> String {
    String::from_utf8_lossy(value.as_bytes()).into_owned()
}

#[cfg(test)]
mod tests;
