//! A client of HTTP/2 that keeps to it: the `h2` crate, plain, with prior knowledge.

use std::net::SocketAddr;

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Request, Response};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::time::timeout;

use super::PATIENCE;

/// A connection.
pub(crate) struct Http2 {
    runtime: Runtime,
    requests: SendRequest<Bytes>,
}

/// A whole response.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Option<HeaderMap>,
}

impl Answer {
    #[track_caller]
    pub(crate) fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{self:?}");
        self
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

/// A request whose body is still to come.
pub(crate) struct Open {
    pub(crate) response: ResponseFuture,
    pub(crate) body: SendStream<Bytes>,
}

/// A GET of this path.
pub(crate) fn get(path: &str, fields: &[(&str, &str)]) -> Request<()> {
    request("GET", path, fields)
}

pub(crate) fn request(method: &str, path: &str, fields: &[(&str, &str)]) -> Request<()> {
    let mut request = Request::builder()
        .method(method)
        .uri(format!("http://a.test{path}"));
    for (name, value) in fields {
        request = request.header(*name, *value);
    }
    request.body(()).expect("a request")
}

impl Http2 {
    #[track_caller]
    pub(crate) fn open(address: SocketAddr) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let requests = runtime.block_on(async {
            let stream = TcpStream::connect(address).await.expect("connects");
            let (requests, connection) = h2::client::handshake(stream).await.expect("HTTP/2");
            tokio::spawn(connection);
            requests.ready().await.expect("a connection")
        });
        Self { runtime, requests }
    }

    /// Sends a head; the body may follow.
    #[track_caller]
    pub(crate) fn begin(&mut self, request: Request<()>, ends: bool) -> Open {
        let (runtime, requests) = (&self.runtime, &mut self.requests);
        let ready = std::future::poll_fn(|cx| requests.poll_ready(cx));
        let ready = runtime.block_on(async { timeout(PATIENCE, ready).await });
        ready.expect("in time").expect("room for a stream");
        let (response, body) = requests.send_request(request, ends).expect("sent");
        Open { response, body }
    }

    /// Asks for so many at once, on as many streams as the other side takes: fewer, where it ends
    /// the connection.
    pub(crate) fn ask_at_once(
        &mut self,
        request: &Request<()>,
        count: usize,
    ) -> Vec<Result<Answer, h2::Error>> {
        let mut open = Vec::new();
        for _ in 0..count {
            let (runtime, requests) = (&self.runtime, &mut self.requests);
            let ready = std::future::poll_fn(|cx| requests.poll_ready(cx));
            let ready = runtime.block_on(async { timeout(PATIENCE, ready).await });
            if ready.expect("in time").is_err() {
                break;
            }
            match requests.send_request(request.clone(), true) {
                Ok((response, _)) => open.push(response),
                Err(_) => break,
            }
        }
        let answers = open.into_iter().map(|response| self.whole(response));
        answers.collect()
    }

    /// The head of a response, or what the stream ended with.
    #[track_caller]
    pub(crate) fn head(&self, response: ResponseFuture) -> Result<Response<RecvStream>, h2::Error> {
        let head = self
            .runtime
            .block_on(async { timeout(PATIENCE, response).await });
        head.expect("a head in time")
    }

    /// The rest of a body.
    #[track_caller]
    pub(crate) fn rest(&self, body: &mut RecvStream) -> Vec<u8> {
        let all = async {
            let mut read = Vec::new();
            while let Some(piece) = body.data().await {
                read.extend_from_slice(&piece.expect("a piece"));
            }
            read
        };
        let all = self
            .runtime
            .block_on(async { timeout(PATIENCE, all).await });
        all.expect("a body in time")
    }

    /// All of a response.
    #[track_caller]
    pub(crate) fn whole(&self, response: ResponseFuture) -> Result<Answer, h2::Error> {
        let (head, mut body) = self.head(response)?.into_parts();
        let mut read = Vec::new();
        let trailers = self.runtime.block_on(async {
            let all = async {
                while let Some(piece) = body.data().await {
                    let piece = piece?;
                    body.flow_control().release_capacity(piece.len())?;
                    read.extend_from_slice(&piece);
                }
                body.trailers().await
            };
            timeout(PATIENCE, all).await.expect("a body in time")
        })?;
        Ok(Answer {
            status: head.status.as_u16(),
            headers: head.headers,
            body: read,
            trailers,
        })
    }

    /// A request without a body, and its answer.
    #[track_caller]
    pub(crate) fn ask(&mut self, request: Request<()>) -> Answer {
        let open = self.begin(request, true);
        self.whole(open.response).expect("an answer")
    }

    /// A request with a body, and trailers where there are some, and its answer.
    #[track_caller]
    pub(crate) fn send(
        &mut self,
        request: Request<()>,
        body: &[u8],
        trailers: Option<HeaderMap>,
    ) -> Answer {
        let mut open = self.begin(request, false);
        let body = Bytes::copy_from_slice(body);
        open.body.send_data(body, trailers.is_none()).expect("sent");
        if let Some(trailers) = trailers {
            open.body.send_trailers(trailers).expect("sent");
        }
        self.whole(open.response).expect("an answer")
    }
}
