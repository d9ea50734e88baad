//! The application behind a connection in a test: it answers each request as its target says, over
//! a Unix socket, in the same thread, and keeps all that it was sent.

use std::io::{self, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use crate::world::history::{Script, pattern};
use crate::world::strict::{Message, Reader, Side, Tail};

/// The application.
pub struct Application {
    listener: UnixListener,
    path: PathBuf,
    /// Every connection of a history, those that are closed among them.
    pub calls: Vec<Call>,
}

/// One connection to it.
pub struct Call {
    stream: Option<UnixStream>,
    /// All that came over it.
    pub heard: Vec<u8>,
    /// What that is.
    pub reader: Reader,
    /// Requests that were begun to be answered.
    answered: usize,
    out: Vec<u8>,
    /// What is written once it is told to go on.
    later: Vec<u8>,
    then: Then,
    /// It reads nothing.
    deaf: bool,
    /// It reads nothing until it is told to go on.
    waits: bool,
    echoes: bool,
    /// The other side has ended.
    ended: bool,
}

/// What follows an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Then {
    Keep,
    Close,
}

impl Application {
    /// One that listens at this path.
    ///
    /// # Errors
    /// That of the system.
    pub fn new(path: &Path) -> io::Result<Self> {
        let listener = UnixListener::bind(path)?;
        listener.set_nonblocking(true)?;
        Ok(Self {
            listener,
            path: path.to_owned(),
            calls: Vec::new(),
        })
    }

    /// Nothing was ever sent to it.
    pub fn forget(&mut self) {
        self.calls.clear();
        while self.listener.accept().is_ok() {}
    }

    /// Answers that are held back go on.
    pub fn go(&mut self) {
        for call in &mut self.calls {
            let later = std::mem::take(&mut call.later);
            call.out.extend(later);
            call.deaf &= !std::mem::take(&mut call.waits);
        }
    }

    /// Reads and writes what it can; true if something moved. To ask for connections costs more
    /// than all else: it is left out where nobody can have `connected`.
    pub fn turn(&mut self, connected: bool) -> bool {
        let mut moved = false;
        while connected && let Ok((stream, _)) = self.listener.accept() {
            let is_set = stream.set_nonblocking(true);
            self.calls.push(Call::new(is_set.is_ok().then_some(stream)));
            moved = true;
        }
        for call in &mut self.calls {
            moved |= call.turn();
        }
        moved
    }

    /// Whether it holds something back, which nobody has to wait for.
    pub fn holds(&self) -> bool {
        self.calls.iter().any(|call| {
            let is_asked = call.reader.part.is_some() || call.answered < call.reader.finals();
            call.stream.is_some() && (!call.later.is_empty() || call.deaf || is_asked)
        })
    }

    /// How many bytes wait to be read by it.
    pub fn waiting(&self) -> u64 {
        let streams = self.calls.iter().filter_map(|call| call.stream.as_ref());
        streams
            .map(|stream| rustix::io::ioctl_fionread(stream).unwrap_or(0))
            .sum()
    }
}

impl Drop for Application {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Call {
    const fn new(stream: Option<UnixStream>) -> Self {
        Self {
            stream,
            heard: Vec::new(),
            reader: Reader::new(Side::Requests),
            answered: 0,
            out: Vec::new(),
            later: Vec::new(),
            then: Then::Keep,
            deaf: false,
            waits: false,
            echoes: false,
            ended: false,
        }
    }

    fn turn(&mut self) -> bool {
        let mut moved = self.read();
        self.answer();
        moved |= self.write();
        let is_over = self.ended && !self.echoes && self.later.is_empty();
        let closes = self.out.is_empty()
            && self.later.is_empty()
            && (self.then == Then::Close || is_over || self.ended);
        if closes && self.stream.take().is_some() {
            moved = true;
        }
        moved
    }

    fn read(&mut self) -> bool {
        let mut moved = false;
        let mut space = [0; 16 * 1024];
        while !self.deaf && !self.ended {
            let Some(stream) = &mut self.stream else {
                return moved;
            };
            match stream.read(&mut space) {
                Ok(0) => self.ended = true,
                Ok(read) => {
                    let read = space.get(..read).unwrap_or_default();
                    if self.echoes {
                        self.out.extend(read);
                    }
                    self.heard.extend_from_slice(read);
                    self.reader.read(&self.heard, false, |_| Some(false));
                    self.note_deaf();
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return moved,
                Err(_) => self.ended = true,
            }
            moved = true;
        }
        moved
    }

    /// Whether nothing is read of the body that has begun.
    fn note_deaf(&mut self) {
        let Some((_, script, _)) = self.reader.part.as_ref().map(asked) else {
            return;
        };
        self.deaf = matches!(script, Script::Deaf | Script::DeafStall);
        self.waits = script == Script::DeafStall;
    }

    fn answer(&mut self) {
        if self.reader.tail == Tail::Unknown || self.then == Then::Close || self.echoes {
            return;
        }
        if !self.later.is_empty() {
            return;
        }
        if let Some(message) = self.reader.messages.get(self.answered) {
            let message = message.clone();
            self.answered += 1;
            self.say(&message);
        } else if self.reader.messages.len() == self.answered
            && let Some(part) = self.reader.part.clone()
        {
            let (_, script, _) = asked(&part);
            let at_once = [Script::Soon, Script::Deaf, Script::Reset, Script::Nonsense];
            let halves = [Script::Half, Script::HalfChunked].contains(&script);
            if at_once.contains(&script) || (halves && part.body.len() > 1) {
                self.answered += 1;
                self.say(&part);
            }
        }
    }

    // long: a flat list of what an application may do
    fn say(&mut self, request: &Message) {
        let (number, script, size) = asked(request);
        let content = pattern(number, size);
        let is_head = request.first[0] == "HEAD";
        let of_body = |length: usize| content.get(..length).unwrap_or(&content);
        let body = if is_head { &[] } else { of_body(size) };
        let head = |status: &str, fields: &str| {
            format!("HTTP/1.1 {status}\r\nX-Id: {number}\r\n{fields}\r\n").into_bytes()
        };
        let length = format!("Content-Length: {size}\r\n");
        let coded = "Transfer-Encoding: chunked\r\n";
        let half = if is_head { 0 } else { size / 2 };
        let chunked = |from: usize, to: usize| {
            let mut out = Vec::new();
            for piece in content.get(from..to).unwrap_or_default().chunks(9_000) {
                out.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
                out.extend_from_slice(piece);
                out.extend_from_slice(b"\r\n");
            }
            out
        };
        let end: &[u8] = b"0\r\n\r\n";
        let (now, later) = match script {
            Script::Chunked | Script::HalfChunked if is_head => (head("200 OK", coded), vec![]),
            Script::Chunked => {
                let whole = [head("200 OK", coded), chunked(0, size), end.to_vec()];
                (whole.concat(), vec![])
            }
            Script::HalfChunked => (
                [head("200 OK", coded), chunked(0, half)].concat(),
                [chunked(half, size), end.to_vec()].concat(),
            ),
            Script::Early => {
                let early: &[u8] = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n";
                let answer = [early, &head("200 OK", &length), body].concat();
                (answer, vec![])
            }
            Script::UntilClose => {
                self.then = Then::Close;
                ([&head("200 OK", ""), body].concat(), vec![])
            }
            Script::Short => {
                self.then = Then::Close;
                let more = format!("Content-Length: {}\r\n", size + 10);
                ([&head("200 OK", &more), body].concat(), vec![])
            }
            Script::Reset => {
                self.then = Then::Close;
                (vec![], vec![])
            }
            Script::Nonsense => {
                self.then = Then::Close;
                (b"HTP/1.1 what\r\n\r\n".to_vec(), vec![])
            }
            Script::Stall => (vec![], [&head("200 OK", &length), body].concat()),
            Script::Half if !is_head => {
                let (now, later) = body.split_at(half);
                ([&head("200 OK", &length), now].concat(), later.to_vec())
            }
            Script::Switch if request.asks_for_websocket() => {
                self.echoes = true;
                self.reader.become_tunnel(self.answered);
                let fields = "Upgrade: websocket\r\nConnection: Upgrade\r\n";
                (head("101 Switching Protocols", fields), vec![])
            }
            Script::Empty => (head("204 No Content", ""), vec![]),
            Script::NotModified => (head("304 Not Modified", ""), vec![]),
            Script::Close => {
                self.then = Then::Close;
                let fields = length + "Connection: close\r\n";
                ([&head("200 OK", &fields), body].concat(), vec![])
            }
            _ => ([&head("200 OK", &length), body].concat(), vec![]),
        };
        self.out.extend(now);
        self.later = later;
    }

    fn write(&mut self) -> bool {
        let mut moved = false;
        while !self.out.is_empty() {
            let Some(stream) = &mut self.stream else {
                self.out.clear();
                return true;
            };
            match stream.write(&self.out) {
                Ok(written) => drop(self.out.drain(..written)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return moved,
                Err(_) => self.stream = None,
            }
            moved = true;
        }
        moved
    }
}

/// The number of a request, what is to be done with it, and the size of its answer, as its target
/// says.
pub fn asked(request: &Message) -> (usize, Script, usize) {
    let mut words = request.path().split('/').skip(1).map(str::parse);
    let mut next = || words.next().and_then(Result::ok);
    let (number, script, size) = (next(), next(), next());
    let script = script.and_then(|at| Script::ALL.get(at).copied());
    let size = size.unwrap_or(2_usize).min(300_000);
    (number.unwrap_or(0), script.unwrap_or(Script::Length), size)
}
