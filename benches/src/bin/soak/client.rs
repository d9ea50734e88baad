//! The clients: each holds a connection, sends what chance says, and counts what it sees.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use weir_benches::message::{Message, head, receive};

use self::Who::Ordinary;

/// How long an answer may take until the run ends with an error.
const PATIENCE: Duration = Duration::from_secs(60);

/// Fields: of a WebSocket, of a last request, of an operator whose token is wrong in a letter, and
/// of who asks for the metrics.
const UPGRADE: &str = "Connection: Upgrade\r\nUpgrade: websocket\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n";
const CLOSE: &str = "Connection: close\r\n";
const WRONG_TOKEN: &str = "Authorization: Bearer benches-token-0123456789abcdef-abcdef\r\n";
const METRICS_TOKEN: &str = "Authorization: Bearer Benches-token-0123456789abcdef-abcdef\r\n";

/// How often among 1000 requests who sends what, and what follows.
#[rustfmt::skip]
const KINDS: [(u32, Who, Sends, Then); 24] = [
    (480, Ordinary, Sends::Get("/", ""), Then::Any),
    (80, Ordinary, Sends::Get("/chunked", ""), Then::Any),
    (20, Ordinary, Sends::Get("/large", ""), Then::Any),
    (30, Ordinary, Sends::Get("/missing", ""), Then::Any),
    (20, Ordinary, Sends::Get("/close", ""), Then::Any),
    (5, Ordinary, Sends::Get("/slow", ""), Then::Any),
    (5, Ordinary, Sends::Get("/reset", ""), Then::Any),
    (5, Ordinary, Sends::Get("/garbage", ""), Then::Any),
    (5, Ordinary, Sends::Get("/cut", ""), Then::Any),
    (80, Ordinary, Sends::Post, Then::Any),
    (40, Ordinary, Sends::Chunked, Then::Any),
    (20, Ordinary, Sends::Twice, Then::Any),
    (20, Ordinary, Sends::Get("/", CLOSE), Then::Any),
    (68, Who::Banned, Sends::Get("/", ""), Then::Whole("429", What::Banned)),
    (2, Who::Banned, Sends::Many, Then::Whole("429", What::Banned)),
    (60, Who::Greedy, Sends::Get("/", ""), Then::Any),
    (5, Ordinary, Sends::Get("/endless", ""), Then::Head("200", What::Aborted)),
    (5, Ordinary, Sends::Half, Then::Nothing),
    (5, Ordinary, Sends::Get("/socket", UPGRADE), Then::Head("101", What::Passed)),
    (10, Ordinary, Sends::Bad, Then::Whole("400", What::Bad)),
    (10, Ordinary, Sends::Get("/_waf/health", ""), Then::Whole("200", What::Health)),
    (10, Ordinary, Sends::Get("/_waf/nothing", ""), Then::Whole("404", What::NotFound)),
    (10, Ordinary, Sends::Get("/_waf/bans", WRONG_TOKEN), Then::Whole("401", What::Unauthorized)),
    (5, Ordinary, Sends::Get("/_waf/metrics", METRICS_TOKEN), Then::Whole("200", What::Metrics)),
];

/// One of 20,000 clients, one of a banned netblock, or one of a few that ask far too often.
#[derive(Clone, Copy, Debug)]
enum Who {
    Ordinary,
    Banned,
    Greedy,
}

#[derive(Clone, Copy, Debug)]
enum Sends {
    /// A GET with these fields besides, on a new connection where it is the last.
    Get(&'static str, &'static str),
    Post,
    Chunked,
    /// A POST with the beginning of its body.
    Half,
    /// Two GETs in one write.
    Twice,
    /// 17 POSTs and more in one write: more than a turn of a library has.
    Many,
    /// A head that is none.
    Bad,
}

#[derive(Clone, Copy, Debug)]
enum Then {
    /// Whatever the application answers, or its failure may lead to.
    Any,
    /// An answer with this status; to many, up to where the service says that it ends.
    Whole(&'static str, What),
    /// The head of one, and the client goes away.
    Head(&'static str, What),
    /// It goes away at once.
    Nothing,
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
pub(crate) struct Seen(RefCell<BTreeMap<What, u64>>);

impl Seen {
    pub(crate) fn of(&self, what: What) -> u64 {
        self.0.borrow().get(&what).copied().unwrap_or(0)
    }

    fn count(&self, what: What) {
        *self.0.borrow_mut().entry(what).or_default() += 1;
    }

    /// Everything that is a request to the proxy: counted, and a line of the log.
    pub(crate) fn requests(&self) -> u64 {
        let others = self.of(What::Bad) + self.of(What::Health);
        self.0.borrow().values().sum::<u64>() - others
    }
}

/// A client with its connection.
pub(crate) struct Client {
    address: SocketAddr,
    chance: fastrand::Rng,
    connection: Option<TcpStream>,
    buffer: Vec<u8>,
    seen: Rc<Seen>,
}

impl Client {
    pub(crate) fn new(address: SocketAddr, seed: u64, seen: Rc<Seen>) -> Self {
        Self {
            address,
            chance: fastrand::Rng::with_seed(seed),
            connection: None,
            buffer: Vec::new(),
            seen,
        }
    }

    /// Sends requests until `left`, which all clients share, is used up.
    pub(crate) async fn run(mut self, left: &AtomicI64) -> Result<()> {
        let all: u32 = KINDS.iter().map(|(share, ..)| share).sum();
        while left.fetch_sub(1, Ordering::Relaxed) > 0 {
            let mut at = self.chance.u32(..all);
            for (share, who, sends, then) in KINDS {
                if at < share {
                    let one = tokio::time::timeout(PATIENCE, self.one(who, sends, then));
                    let ended = one.await.map_err(anyhow::Error::from).flatten();
                    ended.with_context(|| format!("{who:?} {sends:?}"))?;
                    break;
                }
                at -= share;
            }
        }
        Ok(())
    }

    /// What is sent, and how many requests it is.
    fn requests(&mut self, who: Who, sends: Sends) -> (String, usize) {
        let number = self.chance.u32(..20_000);
        let who = match who {
            Ordinary => format!("10.9.{}.{}", number / 256, number % 256),
            Who::Banned => format!("203.0.113.{}", number % 256),
            Who::Greedy => format!("198.18.{}.1", number % 20),
        };
        let body = |length: usize| "x".repeat(length);
        let request = match sends {
            Sends::Get(path, fields) => get(path, &who, fields),
            Sends::Post => post(&who, &body(self.chance.usize(1..4000))),
            Sends::Chunked => post_chunked(&who),
            Sends::Half => post(&who, &body(100_000)).split_at(10_000).0.to_owned(),
            Sends::Twice => return (get("/", &who, "").repeat(2), 2),
            Sends::Many => {
                let count = self.chance.usize(17..50);
                let sized = post(&who, &body(self.chance.usize(1..2000)));
                let chunked = post_chunked(&who);
                let requests = (0..count).map(|_| match self.chance.bool() {
                    true => &*sized,
                    false => &*chunked,
                });
                return (requests.collect(), count);
            }
            Sends::Bad => "GET / HTTP/1.1\r\nHost: a\r\nBad Name: x\r\n\r\n".to_owned(),
        };
        (request, 1)
    }

    async fn one(&mut self, who: Who, sends: Sends, then: Then) -> Result<()> {
        if matches!(sends, Sends::Get(_, CLOSE)) {
            self.connection = None;
        }
        let (request, mut count) = self.requests(who, sends);
        self.send(&request).await?;
        match then {
            Then::Any => {
                for _ in 0..count {
                    // Where the answer broke off at once its head may not have been sent either. A
                    // connection that was closed before the request arrived would be found by the
                    // sums.
                    let message = self.received().await?;
                    let what = message.map_or(Ok(What::Cut), |message| seen(message.target()));
                    self.seen.count(what?);
                }
            }
            Then::Whole(status, what) => {
                self.expect(status, what).await?;
                while count > 1 && self.connection.is_some() {
                    self.expect(status, what).await?;
                    count -= 1;
                }
            }
            Then::Head(status, what) => {
                let mut stream = self.connection.take().context("a connection")?;
                let head = receive(&mut stream, &mut self.buffer, head).await?;
                let head = head.context("the connection ended without an answer")?;
                let found = head.split(' ').nth(1).unwrap_or_default();
                let what = if found == status { what } else { seen(found)? };
                self.seen.count(what);
            }
            Then::Nothing => {
                self.connection = None;
                self.seen.count(What::Aborted);
            }
        }
        Ok(())
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

    async fn received(&mut self) -> Result<Option<Message>> {
        let stream = self.connection.as_mut().context("a connection")?;
        let received = receive(stream, &mut self.buffer, Message::whole).await?;
        let connection = received.as_ref().map(|message| message.field("connection"));
        if matches!(connection, None | Some(Some("close"))) {
            self.connection = None;
        }
        Ok(received)
    }

    async fn expect(&mut self, status: &str, what: What) -> Result<()> {
        match self.received().await? {
            Some(message) if message.target() == status => self.seen.count(what),
            other => bail!("{status} was expected, and this came: {other:?}"),
        }
        Ok(())
    }
}

/// What an answer of the application, or of its failure, is.
fn seen(status: &str) -> Result<What> {
    Ok(match status {
        "200" | "404" => What::Passed,
        "502" | "504" => What::Failed,
        "429" => What::Limited,
        other => bail!("{other} was not expected"),
    })
}

fn get(path: &str, who: &str, fields: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: {who}\r\n{fields}\r\n")
}

fn post(who: &str, body: &str) -> String {
    let length = body.len();
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
