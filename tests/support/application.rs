//! An application that records exactly what reaches it and misbehaves on demand. A thread a
//! connection.
//!
//! Its parser is stricter than any real application's: whatever could be read in two ways is a
//! fault. A test whose application met a fault fails when the application is dropped, hostile or
//! not.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::raw_client::field;
use super::wait_for;

/// A listening application; it stops listening when dropped.
pub(crate) struct Application {
    address: SocketAddr,
    shared: Arc<Shared>,
    faults_are_meant: bool,
}

#[derive(Default)]
struct Shared {
    seen: Mutex<Seen>,
    stopping: AtomicBool,
}

#[derive(Default)]
struct Seen {
    requests: Vec<Received>,
    faults: Vec<String>,
    opened: usize,
    closed: Vec<usize>,
}

/// One request as it arrived.
#[derive(Clone, Debug, Default)]
pub(crate) struct Received {
    /// Which connection it came on, counted from 0.
    pub(crate) connection: usize,
    pub(crate) method: String,
    pub(crate) target: String,
    /// Names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Vec<(String, String)>,
    pub(crate) chunked: bool,
    /// Whether the body arrived whole.
    pub(crate) whole: bool,
}

/// What becomes of the connection after an exchange.
pub(crate) enum After {
    KeepAlive,
    Close,
    Reset,
}

/// A request whose head is there, and the connection to answer on.
pub(crate) struct Exchange {
    pub(crate) request: Received,
    stream: TcpStream,
    held: Vec<u8>,
    framing: Framing,
    index: usize,
    place: usize,
    shared: Arc<Shared>,
}

#[derive(Clone, Copy, PartialEq)]
enum Framing {
    Done,
    Length(usize),
    Chunked,
}

impl Application {
    /// An application that treats every request as `handler` says.
    #[track_caller]
    pub(crate) fn start(handler: impl Fn(&mut Exchange) -> After + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let shared = Arc::new(Shared::default());
        let handler = Arc::new(handler);
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if accepting.stopping.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(stream) = stream else { continue };
                let connection = accepting.with(|seen| {
                    seen.opened += 1;
                    seen.opened - 1
                });
                let (shared, handler) = (Arc::clone(&accepting), Arc::clone(&handler));
                std::thread::spawn(move || {
                    let served = AssertUnwindSafe(|| serve(stream, connection, &shared, &*handler));
                    if std::panic::catch_unwind(served).is_err() {
                        shared.fault("the handler of the test panicked".to_owned());
                    }
                    shared.with(|seen| seen.closed.push(connection));
                });
            }
        });
        Self {
            address,
            shared,
            faults_are_meant: false,
        }
    }

    /// For a test that sends faults on purpose, past the service.
    pub(crate) fn with_faults(mut self) -> Self {
        self.faults_are_meant = true;
        self
    }

    /// Reads the body and answers 200 with `hello` and the target's path.
    #[track_caller]
    pub(crate) fn ok() -> Self {
        Self::start(|exchange| {
            exchange.read_body();
            let body = format!("hello {}", exchange.request.target);
            exchange.answer(200, &[("Content-Type", "text/plain")], body.as_bytes());
            After::KeepAlive
        })
    }

    /// Answers with the request's own body.
    #[track_caller]
    pub(crate) fn echo() -> Self {
        Self::start(|exchange| {
            exchange.read_body();
            let body = exchange.request.body.clone();
            exchange.answer(200, &[], &body);
            After::KeepAlive
        })
    }

    /// Answers every request with these exact bytes, then does as told.
    #[track_caller]
    pub(crate) fn raw(answer: &'static [u8], close: bool) -> Self {
        Self::start(move |exchange| {
            exchange.read_body();
            exchange.send(answer);
            if close {
                After::Close
            } else {
                After::KeepAlive
            }
        })
    }

    /// An address where nobody listens, as long as what is given with it lives.
    #[track_caller]
    pub(crate) fn nobody() -> (SocketAddr, socket2::Socket) {
        // Bound and never listening: a connection is refused, and the port goes to nobody else.
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)
            .expect("a socket");
        let any: SocketAddr = ([127, 0, 0, 1], 0).into();
        socket.bind(&any.into()).expect("a port");
        let address = socket.local_addr().expect("an address");
        (address.as_socket().expect("an IP address"), socket)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Every request whose head arrived, in order of its end.
    pub(crate) fn requests(&self) -> Vec<Received> {
        self.shared.with(|seen| seen.requests.clone())
    }

    /// The one request of a target.
    #[track_caller]
    pub(crate) fn request(&self, target: &str) -> Received {
        wait_for(&format!("{target} at the application"), || {
            let found: Vec<_> = self
                .requests()
                .into_iter()
                .filter(|request| request.target == target)
                .collect();
            assert!(
                found.len() <= 1,
                "{target} arrived more than once: {found:?}"
            );
            found.into_iter().next()
        })
    }

    /// What could be read in two ways.
    pub(crate) fn faults(&self) -> Vec<String> {
        self.shared.with(|seen| seen.faults.clone())
    }

    pub(crate) fn connections(&self) -> usize {
        self.shared.with(|seen| seen.opened)
    }

    pub(crate) fn closed_connections(&self) -> usize {
        self.shared.with(|seen| seen.closed.len())
    }
}

impl Drop for Application {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
        let faults = self.faults();
        if std::thread::panicking() {
            eprintln!("faults at the application: {faults:#?}");
        } else if !self.faults_are_meant {
            assert!(faults.is_empty(), "faults at the application: {faults:#?}");
        }
    }
}

impl Shared {
    fn with<T>(&self, act: impl FnOnce(&mut Seen) -> T) -> T {
        act(&mut self
            .seen
            .lock()
            .unwrap_or_else(|poison| poison.into_inner()))
    }

    fn fault(&self, what: String) {
        self.with(|seen| seen.faults.push(what));
    }
}

impl Received {
    #[track_caller]
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut values = self.headers.iter().filter(|(key, _)| key == name);
        let first = values.next().map(|(_, value)| value.as_str());
        assert!(values.next().is_none(), "{name} twice: {self:?}");
        first
    }
}

impl Exchange {
    /// Reads the rest of the body into the request. False if the connection ended first.
    pub(crate) fn read_body(&mut self) -> bool {
        let mut whole = true;
        while whole && self.framing != Framing::Done {
            whole = self.read_some();
        }
        self.record();
        whole
    }

    /// Shows the tests what arrived so far; called before an answer, so that who has the answer
    /// finds the body too.
    pub(crate) fn record(&self) {
        self.shared.with(|seen| {
            if let Some(held) = seen.requests.get_mut(self.place) {
                held.clone_from(&self.request);
            }
        });
    }

    /// Reads at least one more byte of the body, or its end. False if the connection ended first.
    pub(crate) fn read_some(&mut self) -> bool {
        match self.framing {
            Framing::Done => true,
            Framing::Length(left) => {
                if self.held.is_empty() && !self.fill() {
                    return false;
                }
                let take = left.min(self.held.len());
                self.request.body.extend(self.held.drain(..take));
                self.framing = if take == left {
                    Framing::Done
                } else {
                    Framing::Length(left - take)
                };
                self.request.whole = self.framing == Framing::Done;
                true
            }
            Framing::Chunked => self.read_chunk(),
        }
    }

    fn read_chunk(&mut self) -> bool {
        let Some(line) = self.line() else {
            return false;
        };
        // Extensions, signs and blanks are all faults: the service has no reason to pass them on.
        if line.is_empty() || line.len() > 16 || !line.bytes().all(|b| b.is_ascii_hexdigit()) {
            self.shared.fault(format!("chunk size {line:?}"));
            return false;
        }
        let size = usize::from_str_radix(&line, 16).expect("hex digits");
        if size == 0 {
            loop {
                let Some(line) = self.line() else {
                    return false;
                };
                if line.is_empty() {
                    break;
                }
                match field(&line) {
                    Ok(field) => self.request.trailers.push(field),
                    Err(what) => {
                        self.shared.fault(format!("trailer: {what}"));
                        return false;
                    }
                }
            }
            self.framing = Framing::Done;
            self.request.whole = true;
            return true;
        }
        let Some(end) = size.checked_add(2) else {
            self.shared.fault(format!("chunk size {line:?}"));
            return false;
        };
        while self.held.len() < end {
            if !self.fill() {
                return false;
            }
        }
        let chunk: Vec<u8> = self.held.drain(..end).collect();
        if !chunk.ends_with(b"\r\n") {
            self.shared.fault("chunk without its end".to_owned());
            return false;
        }
        self.request.body.extend_from_slice(&chunk[..size]);
        true
    }

    /// Sends an answer with a Content-Length.
    pub(crate) fn answer(&mut self, status: u16, headers: &[(&str, &str)], body: &[u8]) {
        let mut bytes = format!("HTTP/1.1 {status} X\r\n").into_bytes();
        for (name, value) in headers {
            bytes.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
        }
        bytes.extend_from_slice(format!("Content-Length: {}\r\n\r\n", body.len()).as_bytes());
        if self.request.method != "HEAD" {
            bytes.extend_from_slice(body);
        }
        self.send(&bytes);
    }

    /// Sends raw bytes. False if the other side is gone.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).is_ok()
    }

    /// Ends our sending side.
    pub(crate) fn finish_sending(&mut self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Write);
    }

    /// Reads raw bytes, as a tunnel's end does; `None` at the end.
    pub(crate) fn read_raw(&mut self) -> Option<Vec<u8>> {
        if self.held.is_empty() && !self.fill() {
            return None;
        }
        Some(std::mem::take(&mut self.held))
    }

    /// Waits until the other side ends the connection.
    #[track_caller]
    pub(crate) fn wait_for_close(&mut self) {
        while self.read_raw().is_some() {}
    }

    fn fill(&mut self) -> bool {
        let mut buffer = [0; 65536];
        match self.stream.read(&mut buffer) {
            Ok(0) | Err(_) => false,
            Ok(count) => {
                self.held.extend_from_slice(&buffer[..count]);
                true
            }
        }
    }

    fn line(&mut self) -> Option<String> {
        loop {
            if let Some(at) = super::raw_client::find(&self.held, b"\n") {
                let mut line: Vec<u8> = self.held.drain(..=at).collect();
                line.pop();
                if line.pop() != Some(b'\r') {
                    self.shared.fault("bare LF".to_owned());
                    return None;
                }
                // RFC 9110 §5.5: bytes above ASCII are allowed in values; each is one character
                // here.
                return Some(line.into_iter().map(char::from).collect());
            }
            if !self.fill() {
                return None;
            }
        }
    }

    /// The next head. `None` where the connection ended between two requests, or broke.
    fn next_head(&mut self) -> Option<Received> {
        while super::raw_client::find(&self.held, b"\r\n\r\n").is_none() {
            if !self.fill() {
                if !self.held.is_empty() {
                    let text = String::from_utf8_lossy(&self.held).into_owned();
                    self.shared.fault(format!("cut in the head: {text:?}"));
                }
                return None;
            }
        }
        let mut request = Received {
            connection: self.index,
            ..Received::default()
        };
        let line = self.line()?;
        let parts: Vec<&str> = line.split(' ').collect();
        let [method, target, "HTTP/1.1"] = parts[..] else {
            self.shared.fault(format!("request line {line:?}"));
            return None;
        };
        if method.is_empty() || target.bytes().any(|b| b <= 0x20 || b == 0x7f) {
            self.shared.fault(format!("request line {line:?}"));
            return None;
        }
        request.method = method.to_owned();
        request.target = target.to_owned();
        loop {
            let line = self.line()?;
            if line.is_empty() {
                break;
            }
            match field(&line) {
                Ok(field) => request.headers.push(field),
                Err(what) => {
                    self.shared.fault(what);
                    return None;
                }
            }
        }
        match framing(&request) {
            Ok(framing) => self.framing = framing,
            Err(what) => {
                self.shared.fault(what);
                return None;
            }
        }
        request.chunked = self.framing == Framing::Chunked;
        request.whole = self.framing == Framing::Done;
        Some(request)
    }
}

fn serve(
    stream: TcpStream,
    index: usize,
    shared: &Arc<Shared>,
    handler: &(dyn Fn(&mut Exchange) -> After + Send + Sync),
) {
    let _ = stream.set_nodelay(true);
    let _ = stream.set_read_timeout(Some(Duration::from_secs(60)));
    let mut exchange = Exchange {
        request: Received::default(),
        stream,
        held: Vec::new(),
        framing: Framing::Done,
        index,
        place: 0,
        shared: Arc::clone(shared),
    };
    loop {
        let Some(request) = exchange.next_head() else {
            return;
        };
        exchange.request = request.clone();
        // Recorded before it is answered, so that a client that has its answer finds the request
        // here.
        let place = shared.with(|seen| {
            seen.requests.push(request);
            seen.requests.len() - 1
        });
        exchange.place = place;
        let after = handler(&mut exchange);
        exchange.record();
        match after {
            After::KeepAlive if exchange.framing == Framing::Done => {}
            After::KeepAlive | After::Close => return,
            After::Reset => {
                let socket = socket2::Socket::from(exchange.stream);
                let _ = socket.set_linger(Some(Duration::ZERO));
                return;
            }
        }
    }
}

/// An application whose answer's status is the last segment of the path, if it is a number.
#[track_caller]
pub(crate) fn statuses() -> Application {
    Application::start(|exchange| {
        exchange.read_body();
        let last = exchange.request.target.rsplit('/').next().map(str::parse);
        exchange.answer(last.and_then(Result::ok).unwrap_or(200), &[], b"");
        After::KeepAlive
    })
}

fn framing(request: &Received) -> Result<Framing, String> {
    let all = |wanted: &str| -> Vec<&str> {
        request
            .headers
            .iter()
            .filter(|(name, _)| name.replace('_', "-") == wanted)
            .map(|(_, value)| value.as_str())
            .collect()
    };
    if request
        .headers
        .iter()
        .any(|(name, _)| matches!(name.as_str(), "content_length" | "transfer_encoding"))
    {
        return Err(format!(
            "an underscored twin of a framing field: {request:?}"
        ));
    }
    if all("host").len() != 1 {
        return Err(format!("not one Host: {request:?}"));
    }
    match (&all("content-length")[..], &all("transfer-encoding")[..]) {
        ([], []) => Ok(Framing::Done),
        ([], ["chunked"]) => Ok(Framing::Chunked),
        ([length], [])
            if !length.is_empty()
                && length.len() < 18
                && length.bytes().all(|b| b.is_ascii_digit()) =>
        {
            match length.parse().expect("digits") {
                0 => Ok(Framing::Done),
                length => Ok(Framing::Length(length)),
            }
        }
        (lengths, codings) => Err(format!("framing {lengths:?} {codings:?}")),
    }
}
