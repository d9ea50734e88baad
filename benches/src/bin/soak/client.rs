//! The clients: each holds a connection, sends what chance says, and counts what it sees.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::AddAssign;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::message::{METRICS_TOKEN, Received, head, receive};

/// How long an answer may take until the run ends with an error.
const PATIENCE: Duration = Duration::from_secs(60);

/// `WAF_ADMIN_TOKEN` but for a letter.
const WRONG_TOKEN: &str = "soak-admin-token-0123456789abcdef";

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
    (Kind::Own("/_waf/health", None, "200", What::Health), 10),
    (Kind::Own("/_waf/nothing", None, "404", What::NotFound), 10),
    (
        Kind::Own("/_waf/bans", Some(WRONG_TOKEN), "401", What::Unauthorized),
        10,
    ),
    (
        Kind::Own("/_waf/metrics", Some(METRICS_TOKEN), "200", What::Metrics),
        5,
    ),
];

#[derive(Clone, Copy, Debug)]
enum Kind {
    /// A GET of the application.
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
    /// A GET that the service answers itself: path, token, and with which status what was seen.
    Own(&'static str, Option<&'static str>, &'static str, What),
}

/// What a client sees of a request.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum What {
    /// A whole answer of the application: 200, 404 or a WebSocket.
    Passed,
    /// 502 or 504.
    Failed,
    /// An answer that ended early.
    Cut,
    /// A request that the client itself gave up.
    Aborted,
    /// 429 to a client of the banned netblock.
    Banned,
    /// 429 to a greedy client.
    Limited,
    /// 401.
    Unauthorized,
    /// 404 of the service itself.
    NotFound,
    /// The metrics.
    Metrics,
    /// 400.
    Bad,
    /// A health check.
    Health,
}

/// How often clients saw what.
#[derive(Default, Debug)]
pub(crate) struct Seen(BTreeMap<What, u64>);

impl Seen {
    pub(crate) fn of(&self, what: What) -> u64 {
        self.0.get(&what).copied().unwrap_or(0)
    }

    fn count(&mut self, what: What) {
        *self.0.entry(what).or_default() += 1;
    }

    /// Everything that is a request to the proxy: counted, and a line of the log.
    pub(crate) fn requests(&self) -> u64 {
        let others = self.of(What::Bad) + self.of(What::Health);
        self.0.values().sum::<u64>() - others
    }
}

impl AddAssign for Seen {
    fn add_assign(&mut self, other: Self) {
        for (what, count) in other.0 {
            *self.0.entry(what).or_default() += count;
        }
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
                self.send(&post(&who, body.len(), &body)).await?;
                self.answer_of_application().await
            }
            Kind::PostChunked => {
                self.send(&post_chunked(&who)).await?;
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
                self.expect("429", What::Banned).await
            }
            Kind::BannedPipeline => self.banned_pipeline().await,
            Kind::Greedy => {
                let who = format!("198.18.{}.1", self.chance.u8(..20));
                self.send(&get("/", &who, "")).await?;
                self.answer_of_application().await
            }
            Kind::EndlessAborted => {
                self.send(&get("/endless", &who, "")).await?;
                self.head_alone("200", What::Aborted).await
            }
            Kind::UploadAborted => {
                let part = "x".repeat(10_000);
                self.send(&post(&who, 100_000, &part)).await?;
                self.connection = None;
                self.seen.count(What::Aborted);
                Ok(())
            }
            Kind::WebSocket => {
                let fields = "Connection: Upgrade\r\nUpgrade: websocket\r\n\
                    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n";
                self.send(&get("/socket", &who, fields)).await?;
                self.head_alone("101", What::Passed).await
            }
            Kind::BadRequest => {
                self.send("GET / HTTP/1.1\r\nHost: a\r\nBad Name: x\r\n\r\n")
                    .await?;
                self.expect("400", What::Bad).await?;
                self.connection = None;
                Ok(())
            }
            Kind::Own(path, token, status, what) => {
                let field = token.map(|token| format!("Authorization: Bearer {token}\r\n"));
                let request = get(path, &who, &field.unwrap_or_default());
                self.send(&request).await?;
                self.expect(status, what).await
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
        let ends = !matches!(&received, Received::Whole(message) if message.field("connection") != Some("close"));
        if ends {
            self.connection = None;
        }
        Ok(received)
    }

    /// Whatever the application, or its failure, may lead to.
    async fn answer_of_application(&mut self) -> Result<()> {
        match self.received().await? {
            Received::Whole(message) => self.status(message.target()),
            // Where the answer broke off at once its head may not have been sent either. A
            // connection that was closed before the request arrived would be found by the sums.
            Received::Cut | Received::Nothing => {
                self.seen.count(What::Cut);
                Ok(())
            }
        }
    }

    fn status(&mut self, status: &str) -> Result<()> {
        self.seen.count(match status {
            "200" | "404" => What::Passed,
            "502" | "504" => What::Failed,
            "429" => What::Limited,
            other => bail!("{other} was not expected"),
        });
        Ok(())
    }

    async fn expect(&mut self, status: &str, what: What) -> Result<()> {
        match self.received().await? {
            Received::Whole(message) if message.target() == status => self.seen.count(what),
            other => bail!("{status} was expected, and this came: {other:?}"),
        }
        Ok(())
    }

    /// 17 requests and more, each with a body: refused one by one, or up to where the service says
    /// that the connection ends.
    async fn banned_pipeline(&mut self) -> Result<()> {
        let who = format!("203.0.113.{}", self.chance.u8(..));
        let body = "x".repeat(self.chance.usize(1..2000));
        let (sized, chunked) = (post(&who, body.len(), &body), post_chunked(&who));
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
            self.expect("429", What::Banned).await?;
            if self.connection.is_none() {
                break;
            }
        }
        Ok(())
    }

    /// Reads the head of an answer and goes away.
    async fn head_alone(&mut self, status: &str, what: What) -> Result<()> {
        let mut stream = self.connection.take().context("a connection")?;
        let Some(head) = head(&mut stream, &mut self.buffer).await? else {
            bail!("the connection ended without an answer");
        };
        let found = head.split(' ').nth(1).unwrap_or_default();
        if found != status {
            return self.status(found);
        }
        self.seen.count(what);
        Ok(())
    }
}

fn get(path: &str, who: &str, fields: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: {who}\r\n{fields}\r\n")
}

fn post(who: &str, length: usize, body: &str) -> String {
    format!(
        "POST /post HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: {who}\r\nContent-Length: {length}\r\n\r\n{body}"
    )
}

fn post_chunked(who: &str) -> String {
    format!(
        "POST /post HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: {who}\r\nTransfer-Encoding: chunked\r\n\r\n\
         5\r\nhello\r\n7\r\n, world\r\n0\r\n\r\n"
    )
}
