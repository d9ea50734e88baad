//! The clients: each holds a connection, sends what chance says, and counts what it sees.

use std::net::SocketAddr;
use std::ops::AddAssign;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::message::{ADMIN_TOKEN, METRICS_TOKEN, Received, head, receive};

/// How long an answer may take until the run ends with an error.
const PATIENCE: Duration = Duration::from_secs(60);

/// One way to use the proxy, and how often among 1000 requests.
const KINDS: [(Kind, u32); 24] = [
    (Kind::Plain("/"), 480),
    (Kind::Plain("/chunked"), 80),
    (Kind::Plain("/large"), 20),
    (Kind::Plain("/missing"), 30),
    (Kind::Plain("/close"), 20),
    (Kind::Plain("/slow"), 5),
    (Kind::Plain("/reset"), 5),
    (Kind::Plain("/garbage"), 5),
    (Kind::Plain("/cut"), 5),
    (Kind::Post, 80),
    (Kind::PostChunked, 40),
    (Kind::Pipelined, 20),
    (Kind::NewConnection, 20),
    (Kind::Banned, 68),
    (Kind::BannedPipeline, 2),
    (Kind::Greedy, 60),
    (Kind::EndlessAborted, 5),
    (Kind::UploadAborted, 5),
    (Kind::WebSocket, 5),
    (Kind::BadRequest, 10),
    (Kind::Health, 10),
    (Kind::OwnMissing, 10),
    (Kind::WrongToken, 10),
    (Kind::Metrics, 5),
];

#[derive(Clone, Copy, Debug)]
enum Kind {
    /// A GET.
    Plain(&'static str),
    Post,
    PostChunked,
    /// Two GETs in one write.
    Pipelined,
    /// On a connection of its own, closed by the client.
    NewConnection,
    /// Of a client in a banned netblock.
    Banned,
    /// Of such a client, many requests with bodies in one write: more than a turn of a library has.
    BannedPipeline,
    /// Of one of a few clients that ask far too often.
    Greedy,
    /// The client goes away in the middle of an endless answer.
    EndlessAborted,
    /// The client goes away in the middle of its own body.
    UploadAborted,
    WebSocket,
    /// A head that is none.
    BadRequest,
    Health,
    /// Nothing of that name under `/_waf/`.
    OwnMissing,
    WrongToken,
    Metrics,
}

/// What clients saw.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Seen {
    /// Whole answers of the application: 200, 404 and WebSockets.
    pub(crate) passed: u64,
    /// 502 and 504.
    pub(crate) failed: u64,
    /// Answers that ended early.
    pub(crate) cut: u64,
    /// Requests that the client itself gave up.
    pub(crate) aborted: u64,
    /// 429 to clients of the banned netblock.
    pub(crate) banned: u64,
    /// 429 to greedy clients.
    pub(crate) limited: u64,
    /// 401.
    pub(crate) unauthorized: u64,
    /// 404 of the service itself.
    pub(crate) not_found: u64,
    /// The metrics.
    pub(crate) metrics: u64,
    /// 400.
    pub(crate) bad: u64,
    /// Health checks.
    pub(crate) health: u64,
}

impl Seen {
    /// Everything that is a request to the proxy: counted, and a line of the log.
    pub(crate) fn requests(&self) -> u64 {
        self.passed
            + self.failed
            + self.cut
            + self.aborted
            + self.banned
            + self.limited
            + self.unauthorized
            + self.not_found
            + self.metrics
    }
}

impl AddAssign for Seen {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.cut += other.cut;
        self.aborted += other.aborted;
        self.banned += other.banned;
        self.limited += other.limited;
        self.unauthorized += other.unauthorized;
        self.not_found += other.not_found;
        self.metrics += other.metrics;
        self.bad += other.bad;
        self.health += other.health;
    }
}

/// A client with its connection.
pub(crate) struct Client {
    address: SocketAddr,
    chance: fastrand::Rng,
    connection: Option<TcpStream>,
    buffer: Vec<u8>,
    seen: Seen,
}

impl Client {
    pub(crate) fn new(address: SocketAddr, seed: u64) -> Self {
        Self {
            address,
            chance: fastrand::Rng::with_seed(seed),
            connection: None,
            buffer: Vec::new(),
            seen: Seen::default(),
        }
    }

    /// Sends requests until `left`, which all clients share, is used up.
    pub(crate) async fn run(mut self, left: &AtomicI64) -> Result<Seen> {
        while left.fetch_sub(1, Ordering::Relaxed) > 0 {
            let kind = self.kind();
            tokio::time::timeout(PATIENCE, self.one(kind))
                .await
                .with_context(|| format!("{kind:?} took over {PATIENCE:?}"))?
                .with_context(|| format!("{kind:?}"))?;
        }
        Ok(self.seen)
    }

    fn kind(&mut self) -> Kind {
        let all: u32 = KINDS.iter().map(|(_, share)| share).sum();
        let mut at = self.chance.u32(..all);
        for (kind, share) in KINDS {
            if at < share {
                return kind;
            }
            at -= share;
        }
        Kind::Plain("/")
    }

    // long: a flat list of the kinds
    async fn one(&mut self, kind: Kind) -> Result<()> {
        let who = self.ordinary();
        match kind {
            Kind::Plain(path) => {
                self.send(&get(path, &who, "")).await?;
                self.answer_of_application().await
            }
            Kind::Post => {
                let body = "x".repeat(self.chance.usize(1..4000));
                let request = format!(
                    "POST /post HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: {who}\r\nContent-Length: {}\r\n\r\n{body}",
                    body.len()
                );
                self.send(&request).await?;
                self.answer_of_application().await
            }
            Kind::PostChunked => {
                let request = format!(
                    "POST /post HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: {who}\r\nTransfer-Encoding: chunked\r\n\r\n\
                     5\r\nhello\r\n7\r\n, world\r\n0\r\n\r\n"
                );
                self.send(&request).await?;
                self.answer_of_application().await
            }
            Kind::Pipelined => {
                self.send(&get("/", &who, "").repeat(2)).await?;
                self.answer_of_application().await?;
                if self.connection.is_none() {
                    bail!("the connection ended between two requests");
                }
                self.answer_of_application().await
            }
            Kind::NewConnection => {
                self.connection = None;
                self.send(&get("/", &who, "Connection: close\r\n")).await?;
                self.answer_of_application().await
            }
            Kind::Banned => {
                let who = format!("203.0.113.{}", self.chance.u8(..));
                self.send(&get("/", &who, "")).await?;
                self.expect("429").await?;
                self.seen.banned += 1;
                Ok(())
            }
            Kind::BannedPipeline => self.banned_pipeline().await,
            Kind::Greedy => {
                let who = format!("198.18.{}.1", self.chance.u8(..20));
                self.send(&get("/", &who, "")).await?;
                self.answer_of_application().await
            }
            Kind::EndlessAborted => {
                self.send(&get("/endless", &who, "")).await?;
                self.abort_answer().await
            }
            Kind::UploadAborted => {
                let request = format!(
                    "POST /post HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: {who}\r\nContent-Length: 100000\r\n\r\n{}",
                    "x".repeat(10_000)
                );
                self.send(&request).await?;
                self.connection = None;
                self.seen.aborted += 1;
                Ok(())
            }
            Kind::WebSocket => {
                let fields = "Connection: Upgrade\r\nUpgrade: websocket\r\n\
                    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n";
                self.send(&get("/socket", &who, fields)).await?;
                self.tunnel().await
            }
            Kind::BadRequest => {
                self.send("GET / HTTP/1.1\r\nHost: a\r\nBad Name: x\r\n\r\n")
                    .await?;
                self.expect("400").await?;
                self.connection = None;
                self.seen.bad += 1;
                Ok(())
            }
            Kind::Health => {
                self.send(&get("/_waf/health", &who, "")).await?;
                self.expect("200").await?;
                self.seen.health += 1;
                Ok(())
            }
            Kind::OwnMissing => {
                self.send(&get("/_waf/nothing", &who, "")).await?;
                self.expect("404").await?;
                self.seen.not_found += 1;
                Ok(())
            }
            Kind::WrongToken => {
                let wrong = format!("Authorization: Bearer {}\r\n", ADMIN_TOKEN.to_lowercase());
                self.send(&get("/_waf/bans", &who, &wrong)).await?;
                self.expect("401").await?;
                self.seen.unauthorized += 1;
                Ok(())
            }
            Kind::Metrics => {
                let token = format!("Authorization: Bearer {METRICS_TOKEN}\r\n");
                self.send(&get("/_waf/metrics", &who, &token)).await?;
                self.expect("200").await?;
                self.seen.metrics += 1;
                Ok(())
            }
        }
    }

    /// One of 20,000.
    fn ordinary(&mut self) -> String {
        let number = self.chance.u32(..20_000);
        format!("10.9.{}.{}", number / 256, number % 256)
    }

    async fn send(&mut self, bytes: &str) -> Result<()> {
        if self.connection.is_none() {
            let stream = TcpStream::connect(self.address).await?;
            stream.set_nodelay(true)?;
            self.connection = Some(stream);
            self.buffer.clear();
        }
        let stream = self.connection.as_mut().context("just opened")?;
        Ok(stream.write_all(bytes.as_bytes()).await?)
    }

    async fn received(&mut self) -> Result<Received> {
        let stream = self.connection.as_mut().context("a connection")?;
        let received = receive(stream, &mut self.buffer).await?;
        let ends = !matches!(&received, Received::Whole(message) if !message.close);
        if ends {
            self.connection = None;
        }
        Ok(received)
    }

    /// Whatever the application, or its failure, may lead to.
    async fn answer_of_application(&mut self) -> Result<()> {
        match self.received().await? {
            Received::Whole(message) => self.status(&message.target),
            // Where the answer broke off at once its head may not have been sent either. A
            // connection that was closed before the request arrived would be found by the sums.
            Received::Cut | Received::Nothing => {
                self.seen.cut += 1;
                Ok(())
            }
        }
    }

    fn status(&mut self, status: &str) -> Result<()> {
        match status {
            "200" | "404" => self.seen.passed += 1,
            "502" | "504" => self.seen.failed += 1,
            "429" => self.seen.limited += 1,
            other => bail!("{other} was not expected"),
        }
        Ok(())
    }

    async fn expect(&mut self, status: &str) -> Result<()> {
        match self.received().await? {
            Received::Whole(message) if message.target == status => Ok(()),
            other => bail!("{status} was expected, and this came: {other:?}"),
        }
    }

    /// 17 requests and more, each with a body: refused one by one, or up to where the service says
    /// that the connection ends.
    async fn banned_pipeline(&mut self) -> Result<()> {
        let head = format!(
            "POST /post HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 203.0.113.{}\r\n",
            self.chance.u8(..)
        );
        let body = "x".repeat(self.chance.usize(1..2000));
        let sized = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
        let chunked = format!("{head}Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n");
        let count = self.chance.usize(17..50);
        let requests = (0..count).map(|_| {
            if self.chance.bool() {
                &*sized
            } else {
                &*chunked
            }
        });
        let bytes: String = requests.collect();
        self.send(&bytes).await?;
        for _ in 0..count {
            self.expect("429").await?;
            self.seen.banned += 1;
            if self.connection.is_none() {
                break;
            }
        }
        Ok(())
    }

    async fn abort_answer(&mut self) -> Result<()> {
        let mut stream = self.connection.take().context("a connection")?;
        let Some(head) = head(&mut stream, &mut self.buffer).await? else {
            bail!("the connection ended without an answer");
        };
        match head.split(' ').nth(1) {
            Some("200") => self.seen.aborted += 1,
            other => self.status(other.unwrap_or_default())?,
        }
        Ok(())
    }

    async fn tunnel(&mut self) -> Result<()> {
        let mut stream = self.connection.take().context("a connection")?;
        let Some(head) = head(&mut stream, &mut self.buffer).await? else {
            bail!("the connection ended without an answer");
        };
        match head.split(' ').nth(1) {
            Some("101") => self.seen.passed += 1,
            other => self.status(other.unwrap_or_default())?,
        }
        Ok(())
    }
}

fn get(path: &str, who: &str, fields: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: {who}\r\n{fields}\r\n")
}
