//! One connection to the engine, with bounds on the time, bytes and values of a whole answer,
//! whoever sends it (FLEET-2). The crate `redis` writes the questions and parses the answers; it
//! has a time-out for single reads only, and no bound.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{Cmd, ConnectionLike, ErrorKind, Parser, RedisError, RedisResult, Value};
use rustix::net::sockopt::Timeout;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};

use super::access::{Access, Place};
use crate::fleet::engine::Fault;

/// How long an answer may take.
const TIMEOUT: Duration = Duration::from_secs(1);
/// The least time for which the socket is read when an answer is waited for.
const AT_LEAST: Duration = Duration::from_millis(2);
/// The most bytes of an answer: 64 batches of the log are four megabytes, the beats of a thousand
/// instances less.
const MAX_ANSWER: usize = 16 << 20;
/// The most line ends of an answer. Each value has one or two, and costs some 170 bytes when it is
/// read; the beats of a thousand instances have 6,000. The bytes of a sealed text are random: of
/// 16 MiB, 256 pairs look like a line end.
const MAX_LINES: usize = 100_000;
/// The most bytes of an engine's own words that are quoted.
const MAX_WORDS: usize = 200;

/// A connection.
pub(super) struct Wire {
    stream: Stream,
    parser: Parser,
    /// How long an answer may take.
    patience: Duration,
    left: Left,
}

enum Stream {
    Plain(Timed),
    Tls(Box<StreamOwned<ClientConnection, Timed>>),
}

/// A socket whose reads and writes end at a deadline.
struct Timed {
    socket: Socket,
    until: Instant,
}

/// How much of an answer may still come.
struct Left {
    bytes: usize,
    lines: usize,
    /// The last byte read so far.
    last: u8,
}

impl Default for Left {
    fn default() -> Self {
        Self {
            bytes: MAX_ANSWER,
            lines: MAX_LINES,
            last: 0,
        }
    }
}

/// An answer that is being read.
struct Answer<'a> {
    stream: &'a mut Stream,
    left: &'a mut Left,
}

enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Wire {
    /// Opens a connection, and logs in.
    pub(super) fn open(access: &Access, place: &Place) -> Result<Self, Fault> {
        let until = now() + TIMEOUT;
        let socket = match place {
            Place::Tcp(host, port, _) => reach(host, *port, until).map(Socket::Tcp),
            Place::Unix(path) => reach_file(path, TIMEOUT).map(Socket::Unix),
        };
        let timed = Timed {
            socket: socket.map_err(|error| fault(error.into()))?,
            until,
        };
        let stream = match place {
            Place::Tcp(host, _, true) => {
                let name = ServerName::try_from(host.clone())
                    .map_err(|_| Fault(format!("{host} is no name of a certificate")))?;
                let client = ClientConnection::new(Arc::new(access.tls()?), name)
                    .map_err(|error| Fault(error.to_string()))?;
                Stream::Tls(Box::new(StreamOwned::new(client, timed)))
            }
            Place::Tcp(_, _, false) | Place::Unix(_) => Stream::Plain(timed),
        };
        let mut wire = Self {
            stream,
            parser: Parser::new(),
            patience: TIMEOUT,
            left: Left::default(),
        };
        if let Some(password) = &access.password {
            let mut command = redis::cmd("AUTH");
            if let Some(user) = &access.user {
                command.arg(user);
            }
            let answer: RedisResult<()> = command.arg(password).query(&mut wire);
            answer.map_err(|error| Fault(format!("the login is refused: {}", fault(error).0)))?;
        }
        Ok(wire)
    }

    /// Adds `wait` to the time that an answer may take.
    pub(super) fn wait_longer(&mut self, wait: Duration) {
        self.patience = TIMEOUT + wait;
    }

    /// Sends a question without waiting for the answer. Returns the time, and the number of bytes.
    pub(super) fn ask(&mut self, question: &Cmd) -> RedisResult<(Instant, usize)> {
        let (asked, question) = (now(), question.get_packed_command());
        self.begin(&question)?;
        Ok((asked, question.len()))
    }

    /// The answer to the question that was sent at `asked`, and how long it took; none if it does
    /// not come within the wait. A partial answer is kept.
    pub(super) fn answer(
        &mut self,
        asked: Instant,
        wait: Duration,
    ) -> RedisResult<Option<(Value, Duration)>> {
        let (until, end) = (now() + wait, asked + self.patience);
        // Bytes that have come are read, even if the deadline has passed.
        self.timed().until = until.min(end.max(now() + AT_LEAST));
        match self.next() {
            Ok(value) => {
                self.left = Left::default();
                Ok(Some((value.extract_error()?, now() - asked)))
            }
            Err(error) if error.is_timeout() && now() < end => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn timed(&mut self) -> &mut Timed {
        match &mut self.stream {
            Stream::Plain(timed) => timed,
            Stream::Tls(stream) => &mut stream.sock,
        }
    }

    fn begin(&mut self, question: &[u8]) -> RedisResult<()> {
        self.timed().until = now() + self.patience;
        let written = match &mut self.stream {
            Stream::Plain(timed) => timed.write_all(question),
            Stream::Tls(stream) => stream.write_all(question).and_then(|()| stream.flush()),
        };
        written.map_err(RedisError::from)
    }

    /// Reads this many answers.
    fn answers(&mut self, count: usize) -> RedisResult<Vec<Value>> {
        self.left = Left::default();
        (0..count).map(|_| self.next()).collect()
    }

    fn next(&mut self) -> RedisResult<Value> {
        self.parser.parse_value(Answer {
            stream: &mut self.stream,
            left: &mut self.left,
        })
    }
}

impl ConnectionLike for Wire {
    fn req_packed_command(&mut self, command: &[u8]) -> RedisResult<Value> {
        self.begin(command)?;
        let answer = self.answers(1)?.pop();
        answer.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof).into())
    }

    fn req_packed_commands(
        &mut self,
        commands: &[u8],
        offset: usize,
        count: usize,
    ) -> RedisResult<Vec<Value>> {
        self.begin(commands)?;
        let answers = self.answers(offset + count)?;
        Ok(answers.into_iter().skip(offset).collect())
    }

    fn get_db(&self) -> i64 {
        0
    }

    fn check_connection(&mut self) -> bool {
        redis::cmd("PING").query::<Value>(self).is_ok()
    }

    /// Always open: after a fault the connection is dropped, because after half an answer nothing
    /// can be parsed.
    fn is_open(&self) -> bool {
        true
    }
}

impl Timed {
    /// How long the next read or write may take.
    fn wait(&self) -> io::Result<Option<Duration>> {
        let wait = self.until.saturating_duration_since(now());
        match wait.is_zero() {
            true => Err(io::ErrorKind::TimedOut.into()),
            false => Ok(Some(wait)),
        }
    }
}

impl Read for Answer<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let most = into.len().min(self.left.bytes);
        let Some(into) = into.get_mut(..most).filter(|into| !into.is_empty()) else {
            return Err(io::Error::other(format!(
                "an answer of more than {} MiB",
                MAX_ANSWER >> 20
            )));
        };
        let read = match &mut *self.stream {
            Stream::Plain(stream) => stream.read(into)?,
            Stream::Tls(stream) => stream.read(into)?,
        };
        let taken = into.get(..read).unwrap_or_default();
        self.left.bytes -= read;
        let mut lines = 0;
        for &byte in taken {
            lines += usize::from(self.left.last == b'\r' && byte == b'\n');
            self.left.last = byte;
        }
        match self.left.lines.checked_sub(lines) {
            Some(left) => self.left.lines = left,
            None => {
                return Err(io::Error::other(format!(
                    "an answer of more than {MAX_LINES} lines"
                )));
            }
        }
        Ok(read)
    }
}

impl Read for Timed {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let wait = self.wait()?;
        match &mut self.socket {
            Socket::Tcp(stream) => {
                stream.set_read_timeout(wait)?;
                stream.read(into)
            }
            Socket::Unix(stream) => {
                stream.set_read_timeout(wait)?;
                stream.read(into)
            }
        }
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let wait = self.wait()?;
        match &mut self.socket {
            Socket::Tcp(stream) => {
                stream.set_write_timeout(wait)?;
                stream.write(bytes)
            }
            Socket::Unix(stream) => {
                stream.set_write_timeout(wait)?;
                stream.write(bytes)
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "time-outs of sockets: no test turns their clock"
)]
fn now() -> Instant {
    Instant::now()
}

/// Connects to the first address of a name that answers.
fn reach(host: &str, port: u16, until: Instant) -> io::Result<TcpStream> {
    let mut why = io::Error::other("the name has no address");
    for address in (host, port).to_socket_addrs()? {
        let left = until.saturating_duration_since(now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match TcpStream::connect_timeout(&address, left) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => why = error,
        }
    }
    Err(why)
}

/// Connects to a Unix socket. A connect waits for a place in the listener's queue, which a hanging
/// engine does not empty: so the time-out is set before.
fn reach_file(path: &Path, wait: Duration) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC;
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    net::sockopt::set_socket_timeout(&socket, Timeout::Send, Some(wait))?;
    net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket.into())
}

/// The fault in a sentence. An engine's own words are shortened, and control characters are removed
/// from them.
pub(super) fn fault(error: RedisError) -> Fault {
    if error.is_timeout() {
        return Fault(format!("no answer within {} s", TIMEOUT.as_secs()));
    }
    if error.kind() == ErrorKind::Parse {
        return Fault("what is there does not answer as an engine does".to_owned());
    }
    let words = error.to_string();
    let visible = words.chars().take(MAX_WORDS);
    Fault(
        visible
            .map(|c| if c.is_control() { '?' } else { c })
            .collect(),
    )
}

#[cfg(test)]
mod tests;
