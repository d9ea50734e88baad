//! One exchange with the running service: over its control socket, or over its admin listener with
//! the admin token. One request a connection.

use std::fmt;
use std::io;
use std::path::PathBuf;

use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use weir_shared::health::Health;

use super::trust::Believed;

/// The most bytes of an answer that are read. The largest one is the list of bans, and bans.json,
/// which has the same bans, is at most as large. A stream of lines is not bounded as a whole.
const ANSWER: usize = 256 << 20;

/// The content type of a stream of lines.
const LINES: &str = "application/x-ndjson";

/// A line of a stream that is longer than this is left out.
const LINE: usize = 64 << 10;

/// Where a service answers.
pub enum Service {
    /// The control socket, and the users whose socket is believed.
    Socket(PathBuf, Believed),
    /// The admin listener.
    Admin {
        /// Host and port.
        address: String,
        /// `Authorization`
        bearer: HeaderValue,
    },
}

/// An answer.
pub struct Answer {
    pub status: StatusCode,
    pub body: Value,
}

/// Why there is no answer.
pub enum Broken {
    /// No service accepts connections there.
    Connect(io::Error),
    /// The exchange failed after the connection was made.
    Later(String),
    /// The answer is none that a service of weir gives.
    Foreign(String),
    /// The service refused, with this sentence.
    Refused(String),
    /// The process that answers is not believed.
    Doubted(String),
}

impl fmt::Display for Service {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(path, _) => write!(formatter, "{}", path.display()),
            Self::Admin { address, .. } => formatter.write_str(address),
        }
    }
}

impl Service {
    /// Sends one request and reads the answer.
    pub async fn exchange(
        &self,
        method: Method,
        target: &str,
        body: Vec<u8>,
    ) -> Result<Answer, Broken> {
        let response = self.send(method, target, body).await?;
        let (status, kind) = (response.status(), kind(&response).to_owned());
        let body = whole(response).await?;
        let foreign = |why| Broken::Foreign(format!("{status} with {kind}, {why}"));
        let body = serde_json::from_slice(&body).map_err(|_| foreign("which is no JSON"))?;
        let answer = Answer { status, body };
        match status.is_success() || answer.is_refusal() {
            true => Ok(answer),
            false => Err(foreign("which is no problem document of weir")),
        }
    }

    /// Passes each line of an endless answer to `take`, until `take` returns false or the service
    /// ends.
    pub async fn lines(
        &self,
        target: &str,
        mut take: impl FnMut(&[u8]) -> bool,
    ) -> Result<(), Broken> {
        let response = self.send(Method::GET, target, Vec::new()).await?;
        if !response.status().is_success() {
            return Err(Broken::Refused(refused(response).await?));
        }
        let kind = kind(&response);
        if kind != LINES {
            let why = format!("{} with {kind} instead of {LINES}", response.status());
            return Err(Broken::Foreign(why));
        }
        let mut body = response.into_body();
        let mut held = Vec::new();
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame.map_err(later)?.into_data() else {
                continue;
            };
            for piece in data.split_inclusive(|byte| *byte == b'\n') {
                held.extend_from_slice(piece);
                if held.ends_with(b"\n") {
                    if !take(&held) {
                        return Ok(());
                    }
                    held.clear();
                } else if held.len() > LINE {
                    held.clear();
                }
            }
        }
        Ok(())
    }

    async fn send(
        &self,
        method: Method,
        target: &str,
        body: Vec<u8>,
    ) -> Result<Response<Incoming>, Broken> {
        let request = Request::builder().method(method).uri(target);
        match self {
            Self::Socket(path, believed) => {
                let stream = UnixStream::connect(path).await.map_err(Broken::Connect)?;
                let process = stream.peer_cred().map_err(later)?.uid();
                if let Some(doubt) = believed.doubt(path, process) {
                    return Err(Broken::Doubted(doubt));
                }
                send_on(stream, request.header(HOST, "localhost"), body).await
            }
            Self::Admin { address, bearer } => {
                let stream = TcpStream::connect(address).await.map_err(Broken::Connect)?;
                // The admin listener refuses any other `Host` than its address.
                let host = stream.peer_addr().map_err(later)?.to_string();
                let request = request.header(HOST, host).header(AUTHORIZATION, bearer);
                send_on(stream, request, body).await
            }
        }
    }
}

impl Answer {
    /// Whether it is a problem document, or what a health check says of a service that stops.
    fn is_refusal(&self) -> bool {
        match self.body.get("status") {
            Some(Value::Number(number)) => number.as_u64() == Some(self.status.as_u16().into()),
            Some(Value::String(word)) => [Health::Draining, Health::Fail]
                .iter()
                .any(|health| word == health.word()),
            _ => false,
        }
    }
}

/// The content type of an answer, in words where there is none.
fn kind(response: &Response<Incoming>) -> &str {
    let kind = response.headers().get(CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.to_str().ok());
    kind.unwrap_or("no content type")
}

/// The whole body of an answer, which is bounded.
async fn whole(response: Response<Incoming>) -> Result<Bytes, Broken> {
    let body = Limited::new(response.into_body(), ANSWER).collect().await;
    let body = body.map_err(|error| match error.is::<LengthLimitError>() {
        true => Broken::Foreign(format!("more than {} MiB", ANSWER >> 20)),
        false => later(error),
    });
    Ok(body?.to_bytes())
}

/// Why the service gave no stream: the sentence of its problem document, if it sent one.
async fn refused(response: Response<Incoming>) -> Result<String, Broken> {
    let status = response.status();
    let problem: Option<Value> = serde_json::from_slice(&whole(response).await?).ok();
    let detail = problem
        .as_ref()
        .and_then(|problem| problem.get("detail")?.as_str());
    Ok(detail.map_or_else(|| format!("the service answered {status}"), str::to_owned))
}

async fn send_on(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: http::request::Builder,
    body: Vec<u8>,
) -> Result<Response<Incoming>, Broken> {
    let handshake = http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(later)?;
    tokio::spawn(connection);
    let request = request.body(Full::new(Bytes::from(body))).map_err(later)?;
    let sent = sender.send_request(request).await;
    sent.map_err(|error| match error.is_parse() {
        true => Broken::Foreign(format!("what is no HTTP ({error})")),
        false => later(error),
    })
}

fn later(error: impl fmt::Display) -> Broken {
    Broken::Later(error.to_string())
}
