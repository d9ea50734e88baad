//! A client that sends exactly the bytes it is given and reads answers with a strict parser of its
//! own.
//!
//! It knows nothing of requests beyond a convenience that writes well-formed ones.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use super::PATIENCE;
use super::tls::Stream;
use super::unread::OtherEnd;

/// One connection to the service.
pub(crate) struct Connection {
    stream: Stream,
    held: Vec<u8>,
    /// Answers of HTTP/1.0 are taken too.
    takes_http_1_0: bool,
}

/// One answer, whole.
#[derive(Debug, Clone, Default)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Vec<(String, String)>,
    /// The 1xx answers that came before it.
    pub(crate) informational: Vec<Response>,
    /// What was asked, where the harness knows it: for messages.
    pub(crate) asked: String,
}

/// Why there is no whole answer.
#[derive(Debug)]
pub(crate) enum Ended {
    /// The connection closed in good order before the first byte of an answer.
    Closed,
    /// The connection was reset before the first byte of an answer.
    Reset,
    /// Nothing more came in time.
    TimedOut,
    /// The connection ended inside the answer; what was there of it.
    Cut(Box<Response>),
    /// The bytes are no HTTP/1.1 answer.
    Malformed(String),
}

impl Connection {
    #[track_caller]
    pub(crate) fn open(address: SocketAddr) -> Self {
        Self::try_open(address).expect("connects")
    }

    /// `None` where nobody listens.
    #[track_caller]
    pub(crate) fn try_open(address: SocketAddr) -> Option<Self> {
        let stream = TcpStream::connect_timeout(&address, PATIENCE).ok()?;
        Some(Self::over(stream))
    }

    /// Connects to a Unix socket.
    #[track_caller]
    pub(crate) fn open_unix(path: &Path) -> Self {
        let stream = UnixStream::connect(path).expect("connects");
        // A stream socket is a stream socket: only TCP's own options are not to be asked of it.
        let stream = TcpStream::from(OwnedFd::from(stream));
        stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
        Self {
            stream: Stream::Plain(stream),
            held: Vec::new(),
            takes_http_1_0: false,
        }
    }

    /// Connects from a loopback address of choice, so that one machine is many untrusted peers.
    #[track_caller]
    pub(crate) fn open_from(address: SocketAddr, source: &str) -> Self {
        let source: IpAddr = source.parse().expect("an address");
        let socket = socket2::Socket::new(
            socket2::Domain::for_address(address),
            socket2::Type::STREAM,
            None,
        )
        .expect("a socket");
        socket
            .bind(&SocketAddr::new(source, 0).into())
            .expect("binds the source address");
        socket
            .connect_timeout(&address.into(), PATIENCE)
            .expect("connects");
        Self::over(socket.into())
    }

    /// Connects with so small a buffer that what is not read soon waits on the other side.
    pub(crate) fn open_with_small_buffer(address: SocketAddr) -> Self {
        let domain = socket2::Domain::for_address(address);
        let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None).expect("a socket");
        socket.set_recv_buffer_size(4096).expect("a small buffer");
        socket
            .connect_timeout(&address.into(), PATIENCE)
            .expect("connects");
        Self::over(socket.into())
    }

    #[track_caller]
    fn over(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
        stream
            .set_write_timeout(Some(PATIENCE))
            .expect("a time-out");
        stream.set_nodelay(true).expect("nodelay");
        Self {
            stream: Stream::over(stream),
            held: Vec::new(),
            takes_http_1_0: false,
        }
    }

    /// Takes answers of HTTP/1.0 too, for who has asked so.
    pub(crate) fn take_http_1_0(&mut self) {
        self.takes_http_1_0 = true;
    }

    /// Sends the bytes, all of them.
    #[track_caller]
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("sends");
    }

    /// Sends the bytes; false if the other side took nothing of them for this long.
    pub(crate) fn send_within(&mut self, bytes: &[u8], patience: Duration) -> bool {
        self.stream
            .tcp()
            .set_write_timeout(Some(patience))
            .expect("a time-out");
        self.stream.write_all(bytes).is_ok()
    }

    /// Sends as much as the other side takes: it may answer and close before the last byte.
    pub(crate) fn send_what_is_taken(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    /// Reads what has come, and waits for nothing: whoever sends much must not wait for a side that
    /// waits for it to read.
    pub(crate) fn read_what_came(&mut self) {
        let _ = self.stream.tcp().set_nonblocking(true);
        while self.fill().is_ok() {}
        let _ = self.stream.tcp().set_nonblocking(false);
    }

    /// Sends until nothing has been taken for this long.
    pub(crate) fn send_until_full(&mut self, patience: Duration) {
        self.stream
            .tcp()
            .set_write_timeout(Some(patience))
            .expect("a time-out");
        while self.stream.write(&[b'x'; 65536]).is_ok() {}
    }

    /// Waits until the other end has read all that was sent.
    #[track_caller]
    pub(crate) fn wait_until_read(&self) {
        self.stream.wait_until_read();
    }

    /// Whether bytes that were sent wait at the other end.
    pub(crate) fn has_unread(&self) -> bool {
        let unread = OtherEnd::of(self.stream.tcp()).unread();
        unread.is_some_and(|unread| unread > 0)
    }

    /// Ends our sending side.
    pub(crate) fn finish_sending(&mut self) {
        self.stream.finish_sending();
    }

    /// Closes with a reset, as a process that is killed with unread data does.
    #[track_caller]
    pub(crate) fn reset(self) {
        socket2::SockRef::from(self.stream.tcp())
            .set_linger(Some(Duration::ZERO))
            .expect("sets linger");
    }

    #[track_caller]
    pub(crate) fn set_patience(&mut self, patience: Duration) {
        self.stream
            .tcp()
            .set_read_timeout(Some(patience))
            .expect("a time-out");
    }

    /// The final answer to a request that was sent, with the 1xx answers before it.
    #[track_caller]
    pub(crate) fn response(&mut self) -> Response {
        self.try_response(false).expect("an answer")
    }

    /// The final answer to a HEAD request.
    #[track_caller]
    pub(crate) fn response_to_head(&mut self) -> Response {
        self.try_response(true).expect("an answer")
    }

    pub(crate) fn try_response(&mut self, to_head: bool) -> Result<Response, Ended> {
        let mut informational = Vec::new();
        loop {
            let response = self.one_response(to_head)?;
            if (100..200).contains(&response.status) && response.status != 101 {
                informational.push(response);
                continue;
            }
            return Ok(Response {
                informational,
                ..response
            });
        }
    }

    /// One answer head with its body; a 1xx counts as one.
    #[track_caller]
    pub(crate) fn one_response(&mut self, to_head: bool) -> Result<Response, Ended> {
        let mut response = self.head()?;
        let lengths = response.all("content-length");
        let codings = response.all("transfer-encoding");
        if !codings.is_empty() && !lengths.is_empty() || lengths.len() > 1 || codings.len() > 1 {
            return Err(Ended::Malformed(format!("two framings: {response:?}")));
        }
        let bodiless = to_head
            || (100..200).contains(&response.status)
            || matches!(response.status, 204 | 304);
        if bodiless {
            return Ok(response);
        }
        if let Some(coding) = codings.first() {
            if coding != "chunked" {
                return Err(Ended::Malformed(format!("coding {coding:?}")));
            }
            self.chunked_body(&mut response)?;
        } else if let Some(length) = lengths.first() {
            if length.is_empty() || !length.bytes().all(|b| b.is_ascii_digit()) {
                return Err(Ended::Malformed(format!("length {length:?}")));
            }
            let length: usize = length.parse().expect("a length");
            while self.held.len() < length {
                if self.fill().is_err() {
                    response.body = std::mem::take(&mut self.held);
                    return Err(Ended::Cut(Box::new(response)));
                }
            }
            response.body = self.held.drain(..length).collect();
        } else {
            loop {
                match self.fill() {
                    Ok(()) => {}
                    Err(Ended::Closed) => break,
                    Err(_) => {
                        response.body = std::mem::take(&mut self.held);
                        return Err(Ended::Cut(Box::new(response)));
                    }
                }
            }
            response.body = std::mem::take(&mut self.held);
        }
        Ok(response)
    }

    /// The head of an answer alone; the body is left to [`Connection::bytes`] and
    /// [`Connection::one_chunk`].
    pub(crate) fn head(&mut self) -> Result<Response, Ended> {
        let end = loop {
            if let Some(at) = find(&self.held, b"\r\n\r\n") {
                break at;
            }
            match self.fill() {
                Ok(()) => {}
                Err(Ended::TimedOut) => return Err(Ended::TimedOut),
                Err(ended) if self.held.is_empty() => return Err(ended),
                Err(_) => {
                    let text = String::from_utf8_lossy(&self.held).into_owned();
                    return Err(Ended::Malformed(format!("cut in the head: {text:?}")));
                }
            }
        };
        let head: Vec<u8> = self.held.drain(..end + 4).collect();
        parse_head(&head[..end], self.takes_http_1_0).map_err(Ended::Malformed)
    }

    /// The next chunk of a chunked body; empty at its end, trailers unread.
    pub(crate) fn one_chunk(&mut self) -> Result<Vec<u8>, Ended> {
        let line = self.line()?;
        let size = usize::from_str_radix(&line, 16)
            .map_err(|_| Ended::Malformed(format!("chunk size {line:?}")))?;
        if size == 0 {
            return Ok(Vec::new());
        }
        while self.held.len() < size + 2 {
            self.fill()?;
        }
        let mut chunk: Vec<u8> = self.held.drain(..size + 2).collect();
        if !chunk.ends_with(b"\r\n") {
            return Err(Ended::Malformed("chunk without its end".to_owned()));
        }
        chunk.truncate(size);
        Ok(chunk)
    }

    fn chunked_body(&mut self, response: &mut Response) -> Result<(), Ended> {
        loop {
            match self.one_chunk() {
                Ok(chunk) if chunk.is_empty() => break,
                Ok(chunk) => response.body.extend(chunk),
                Err(Ended::Malformed(what)) => return Err(Ended::Malformed(what)),
                Err(_) => return Err(Ended::Cut(Box::new(response.clone()))),
            }
        }
        loop {
            let line = match self.line() {
                Ok(line) => line,
                Err(Ended::Malformed(what)) => return Err(Ended::Malformed(what)),
                Err(_) => return Err(Ended::Cut(Box::new(response.clone()))),
            };
            if line.is_empty() {
                return Ok(());
            }
            response
                .trailers
                .push(field(&line).map_err(Ended::Malformed)?);
        }
    }

    fn line(&mut self) -> Result<String, Ended> {
        loop {
            if let Some(at) = find(&self.held, b"\r\n") {
                let mut line: Vec<u8> = self.held.drain(..at + 2).collect();
                line.truncate(at);
                return String::from_utf8(line).map_err(|e| Ended::Malformed(e.to_string()));
            }
            self.fill()?;
        }
    }

    /// Exactly `count` raw bytes: what a tunnel carried.
    pub(crate) fn bytes(&mut self, count: usize) -> Result<Vec<u8>, Ended> {
        while self.held.len() < count {
            self.fill()?;
        }
        Ok(self.held.drain(..count).collect())
    }

    /// Whether the other side ends the connection, with nothing more to read. False if it is still
    /// open in the end.
    pub(crate) fn ends(&mut self) -> bool {
        loop {
            match self.fill() {
                Ok(()) => {}
                Err(Ended::TimedOut) => return false,
                Err(_) => return true,
            }
        }
    }

    /// Everything that still comes, until the end or `patience` without a byte.
    pub(crate) fn rest(&mut self, patience: Duration) -> Vec<u8> {
        self.set_patience(patience);
        while self.fill().is_ok() {}
        std::mem::take(&mut self.held)
    }

    /// Whether bytes are held that no answer took: an answer nobody asked for.
    pub(crate) fn has_leftovers(&self) -> bool {
        !self.held.is_empty()
    }

    fn fill(&mut self) -> Result<(), Ended> {
        let mut buffer = [0; 65536];
        match self.stream.read(&mut buffer) {
            Ok(0) => Err(Ended::Closed),
            Ok(count) => {
                self.held.extend_from_slice(&buffer[..count]);
                Ok(())
            }
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut => Err(Ended::TimedOut),
                _ => Err(Ended::Reset),
            },
        }
    }
}

impl Response {
    /// Itself, with this status.
    ///
    /// # Panics
    /// On another one, with what was asked and the whole answer.
    #[track_caller]
    pub(crate) fn expect(self, status: u16) -> Self {
        assert_eq!(
            self.status,
            status,
            "{} was answered {:?} {:?}",
            self.asked,
            self.headers,
            String::from_utf8_lossy(&self.body)
        );
        self
    }

    /// The one value of a field; panics on two, which no test expects.
    #[track_caller]
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut values = self.headers.iter().filter(|(key, _)| key == name);
        let first = values.next().map(|(_, value)| value.as_str());
        assert!(values.next().is_none(), "{name} twice: {self:?}");
        first
    }

    pub(crate) fn all(&self, name: &str) -> Vec<String> {
        self.headers
            .iter()
            .filter(|(key, _)| key == name)
            .map(|(_, value)| value.clone())
            .collect()
    }

    #[track_caller]
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).expect("a text")
    }

    #[track_caller]
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("no JSON ({error}): {}", self.text()))
    }
}

/// The ends of connections whose other end has this port: the state of each (01: established), and
/// the bytes that wait there to be read.
#[track_caller]
pub(crate) fn ends_toward(port: u16) -> Vec<(String, u32)> {
    let table = std::fs::read_to_string("/proc/net/tcp").expect("the connections");
    // Of each: number, own address, the other's, state, what waits to be sent and read.
    let port_text = format!(":{port:04X} ");
    let end = |line: &str| {
        // Most lines are of others.
        line.contains(&port_text).then_some(())?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let (_, other) = words.get(2)?.rsplit_once(':')?;
        let is_toward = u16::from_str_radix(other, 16) == Ok(port);
        let (_, unread) = words.get(4)?.split_once(':')?;
        let unread = u32::from_str_radix(unread, 16).expect("a number");
        is_toward.then(|| (words[3].to_owned(), unread))
    };
    table.lines().skip(1).filter_map(end).collect()
}

/// A well-formed request; the `Host` is `example.org` unless one is given, and a body gets its
/// length.
#[track_caller]
pub(crate) fn request(
    method: &str,
    target: &str,
    headers: &[(&str, &str)],
    body: Option<&[u8]>,
) -> Vec<u8> {
    let mut bytes = format!("{method} {target} HTTP/1.1\r\n").into_bytes();
    if !headers
        .iter()
        .any(|(name, _)| name.eq_ignore_ascii_case("host"))
    {
        bytes.extend_from_slice(b"Host: example.org\r\n");
    }
    for (name, value) in headers {
        bytes.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
    }
    if let Some(body) = body {
        bytes.extend_from_slice(format!("Content-Length: {}\r\n", body.len()).as_bytes());
    }
    bytes.extend_from_slice(b"\r\n");
    bytes.extend_from_slice(body.unwrap_or_default());
    bytes
}

pub(crate) fn get(target: &str, headers: &[(&str, &str)]) -> Vec<u8> {
    request("GET", target, headers, None)
}

/// One request on a connection of its own.
#[track_caller]
pub(crate) fn exchange(address: SocketAddr, bytes: &[u8]) -> Response {
    try_exchange(address, bytes).expect("an answer")
}

#[track_caller]
pub(crate) fn try_exchange(address: SocketAddr, bytes: &[u8]) -> Result<Response, Ended> {
    let mut connection = Connection::open(address);
    connection.send(bytes);
    let response = connection.try_response(bytes.starts_with(b"HEAD "))?;
    let head = &bytes[..find(bytes, b"\r\n\r\n").unwrap_or(bytes.len())];
    Ok(Response {
        asked: format!(
            "{:?}",
            String::from_utf8_lossy(&head[..head.len().min(300)])
        ),
        ..response
    })
}

pub(crate) fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack
        .windows(needle.len())
        .position(|window| window == needle)
}

fn parse_head(head: &[u8], takes_http_1_0: bool) -> Result<Response, String> {
    let text = std::str::from_utf8(head).map_err(|error| error.to_string())?;
    let mut lines = text.split("\r\n");
    let status_line = lines.next().unwrap_or_default();
    let old = || takes_http_1_0.then(|| status_line.strip_prefix("HTTP/1.0 "));
    let status = status_line
        .strip_prefix("HTTP/1.1 ")
        .or_else(|| old().flatten())
        .and_then(|rest| rest.get(..3))
        .and_then(|code| code.parse().ok())
        .ok_or_else(|| format!("status line {status_line:?}"))?;
    let headers = lines.map(field).collect::<Result<_, _>>()?;
    Ok(Response {
        status,
        headers,
        ..Response::default()
    })
}

/// One field line: name in lower case, value without the blanks around it.
pub(crate) fn field(line: &str) -> Result<(String, String), String> {
    let (name, value) = line
        .split_once(':')
        .ok_or_else(|| format!("field line {line:?}"))?;
    let token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    if name.is_empty() || !name.bytes().all(token) {
        return Err(format!("field name {name:?}"));
    }
    if value.bytes().any(|b| b < 0x20 && b != b'\t' || b == 0x7f) {
        return Err(format!("control byte in {line:?}"));
    }
    Ok((name.to_ascii_lowercase(), value.trim().to_owned()))
}
