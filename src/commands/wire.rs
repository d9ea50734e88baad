//! One exchange with the running service: over its control socket, or over its admin listener with
//! the admin token. One request a connection.

use std::fmt;
use std::io;
use std::path::PathBuf;

use http::header::{AUTHORIZATION, HOST};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

use super::trust::Believed;

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
        let status = response.status();
        let body = response.into_body().collect().await;
        let body = body.map_err(later)?.to_bytes();
        let body = serde_json::from_slice(&body).map_err(later)?;
        Ok(Answer { status, body })
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

/// Why the service gave no stream: the sentence of its problem document, if it sent one.
async fn refused(response: Response<Incoming>) -> Result<String, Broken> {
    let status = response.status();
    let body = response.into_body().collect().await.map_err(later)?;
    let problem: Option<Value> = serde_json::from_slice(&body.to_bytes()).ok();
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
    sender.send_request(request).await.map_err(later)
}

fn later(error: impl fmt::Display) -> Broken {
    Broken::Later(error.to_string())
}
