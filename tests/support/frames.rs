//! HTTP/2 as bytes: a client that writes any frame, whole or broken, and says how the other side
//! reacts. It compresses nothing, and asks the other side not to.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::PATIENCE;
use super::tls::{self, Secured};

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const PRIORITY: u8 = 2;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PUSH_PROMISE: u8 = 5;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;

pub(crate) const END_STREAM: u8 = 0x1;
pub(crate) const ACK: u8 = 0x1;
pub(crate) const END_HEADERS: u8 = 0x4;
pub(crate) const PADDED: u8 = 0x8;
pub(crate) const WHOLE: u8 = END_STREAM | END_HEADERS;

pub(crate) const NO_ERROR: u32 = 0;
pub(crate) const PROTOCOL_ERROR: u32 = 1;
pub(crate) const INTERNAL_ERROR: u32 = 2;
pub(crate) const FLOW_CONTROL_ERROR: u32 = 3;
pub(crate) const STREAM_CLOSED: u32 = 5;
pub(crate) const FRAME_SIZE_ERROR: u32 = 6;
pub(crate) const REFUSED_STREAM: u32 = 7;
pub(crate) const CANCEL: u32 = 8;
pub(crate) const COMPRESSION_ERROR: u32 = 9;
pub(crate) const ENHANCE_YOUR_CALM: u32 = 11;

pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [_, high, middle, low] = u32::try_from(payload.len()).expect("fits").to_be_bytes();
    let mut bytes = vec![high, middle, low, kind, flags];
    bytes.extend(stream.to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// Fields as they are sent, none of them compressed or remembered (RFC 7541 §6.2.2).
pub(crate) fn block(fields: &[(&str, &[u8])]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        text(name.as_bytes(), &mut block);
        text(value, &mut block);
    }
    block
}

fn text(bytes: &[u8], block: &mut Vec<u8>) {
    if bytes.len() < 127 {
        block.push(u8::try_from(bytes.len()).expect("fits"));
    } else {
        block.push(127);
        let mut left = bytes.len() - 127;
        while left >= 128 {
            block.push(u8::try_from(left % 128 + 128).expect("fits"));
            left /= 128;
        }
        block.push(u8::try_from(left).expect("fits"));
    }
    block.extend_from_slice(bytes);
}

/// The head of a GET, with further fields.
pub(crate) fn get(path: &str, more: &[(&str, &[u8])]) -> Vec<u8> {
    request("GET", path, more)
}

/// The head of a request, with further fields.
pub(crate) fn request(method: &str, path: &str, more: &[(&str, &[u8])]) -> Vec<u8> {
    let mut fields: Vec<(&str, &[u8])> = vec![
        (":method", method.as_bytes()),
        (":scheme", b"http"),
        (":authority", b"a.test"),
        (":path", path.as_bytes()),
    ];
    fields.extend_from_slice(more);
    block(&fields)
}

/// How the other side takes what was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reaction {
    /// A response with this status.
    Status(u16),
    /// The stream is reset with this code.
    Reset(u32),
    /// The connection ends with this code.
    Goaway(u32),
    /// The connection ends without a word.
    Closed,
}

enum Bytes {
    Plain(TcpStream),
    Tls(Box<Secured>),
}

/// A connection.
pub(crate) struct Frames {
    bytes: Bytes,
    held: Vec<u8>,
}

impl Frames {
    /// Plain, and nothing sent.
    #[track_caller]
    pub(crate) fn silent(address: SocketAddr) -> Self {
        let stream = TcpStream::connect_timeout(&address, PATIENCE).expect("connects");
        // Small frames would wait for one another.
        stream.set_nodelay(true).expect("an option");
        stream.set_read_timeout(Some(PATIENCE)).expect("a patience");
        stream
            .set_write_timeout(Some(PATIENCE))
            .expect("a patience");
        Self {
            bytes: Bytes::Plain(stream),
            held: Vec::new(),
        }
    }

    /// Plain, with prior knowledge.
    #[track_caller]
    pub(crate) fn open(address: SocketAddr) -> Self {
        Self::open_with(address, &[])
    }

    /// The same with further settings.
    #[track_caller]
    pub(crate) fn open_with(address: SocketAddr, settings: &[(u16, u32)]) -> Self {
        let mut this = Self::silent(address);
        this.begin(settings);
        this
    }

    /// Over TLS.
    #[track_caller]
    pub(crate) fn open_tls(address: SocketAddr) -> Self {
        let config = tls::client(rustls::ALL_VERSIONS, &["h2"]);
        let secured = tls::connect(address, "localhost", &config).expect("TLS");
        assert_eq!(secured.conn.alpn_protocol(), Some(&b"h2"[..]));
        let mut this = Self {
            bytes: Bytes::Tls(Box::new(secured)),
            held: Vec::new(),
        };
        this.begin(&[]);
        this
    }

    /// Sends the preface and the settings: nothing of what comes is to be remembered.
    #[track_caller]
    fn begin(&mut self, settings: &[(u16, u32)]) {
        let mut payload = Vec::new();
        for (name, value) in [(1, 0)].iter().chain(settings) {
            payload.extend(name.to_be_bytes());
            payload.extend(value.to_be_bytes());
        }
        self.send(PREFACE);
        self.send(&frame(SETTINGS, 0, 0, &payload));
    }

    #[track_caller]
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        assert!(self.try_send(bytes), "the other side is gone");
    }

    /// False if the other side is gone.
    pub(crate) fn try_send(&mut self, bytes: &[u8]) -> bool {
        let sent = match &mut self.bytes {
            Bytes::Plain(stream) => stream.write_all(bytes),
            Bytes::Tls(secured) => secured.write_all(bytes).and_then(|()| secured.flush()),
        };
        sent.is_ok()
    }

    /// Does not wait longer than this for what comes.
    pub(crate) fn set_patience(&mut self, patience: Duration) {
        let stream = match &self.bytes {
            Bytes::Plain(stream) => stream,
            Bytes::Tls(secured) => &secured.sock,
        };
        stream.set_read_timeout(Some(patience)).expect("a patience");
    }

    /// The next frame; none at the end of the connection.
    #[track_caller]
    pub(crate) fn next(&mut self) -> Option<Frame> {
        let header = self.take(9)?;
        let length = u32::from_be_bytes([0, header[0], header[1], header[2]]) as usize;
        let payload = self.take(length)?;
        let stream = u32::from_be_bytes([header[5], header[6], header[7], header[8]]);
        Some(Frame {
            kind: header[3],
            flags: header[4],
            stream,
            payload,
        })
    }

    #[track_caller]
    fn take(&mut self, count: usize) -> Option<Vec<u8>> {
        let mut buffer = [0; 65536];
        while self.held.len() < count {
            let read = match &mut self.bytes {
                Bytes::Plain(stream) => stream.read(&mut buffer),
                Bytes::Tls(secured) => secured.read(&mut buffer),
            };
            match read {
                Ok(0) => return None,
                Ok(read) => self.held.extend_from_slice(&buffer[..read]),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    panic!("nothing came in time")
                }
                Err(_) => return None,
            }
        }
        Some(self.held.drain(..count).collect())
    }

    /// The next frame that is not about the connection. Settings are acknowledged, pings answered.
    #[track_caller]
    pub(crate) fn next_of_streams(&mut self) -> Option<Frame> {
        loop {
            let next = self.next()?;
            match next.kind {
                SETTINGS if next.flags & ACK == 0 => {
                    self.try_send(&frame(SETTINGS, ACK, 0, b""));
                }
                PING if next.flags & ACK == 0 => {
                    self.try_send(&frame(PING, ACK, 0, &next.payload));
                }
                SETTINGS | PING | WINDOW_UPDATE => {}
                _ => return Some(next),
            }
        }
    }

    /// How the other side takes what was sent on a stream.
    #[track_caller]
    pub(crate) fn reaction(&mut self, stream: u32) -> Reaction {
        loop {
            let Some(next) = self.next_of_streams() else {
                return Reaction::Closed;
            };
            match next.kind {
                HEADERS if next.stream == stream => {
                    return Reaction::Status(status(&next.payload));
                }
                RST_STREAM if next.stream == stream => {
                    return Reaction::Reset(code(&next.payload));
                }
                GOAWAY => return Reaction::Goaway(code(&next.payload[4..])),
                _ => {}
            }
        }
    }

    /// The body of a response to its end, and whether it came to it.
    #[track_caller]
    pub(crate) fn body(&mut self, stream: u32) -> (Vec<u8>, bool) {
        let mut body = Vec::new();
        while let Some(next) = self.next_of_streams() {
            if next.stream != stream {
                continue;
            }
            match next.kind {
                DATA => {
                    body.extend_from_slice(&next.payload);
                    let room = u32::try_from(next.payload.len())
                        .expect("fits")
                        .to_be_bytes();
                    if !next.payload.is_empty() {
                        self.try_send(&frame(WINDOW_UPDATE, 0, 0, &room));
                        self.try_send(&frame(WINDOW_UPDATE, 0, stream, &room));
                    }
                }
                RST_STREAM => return (body, false),
                _ => {}
            }
            if next.flags & END_STREAM != 0 {
                return (body, true);
            }
        }
        (body, false)
    }

    /// Waits for the end of the connection, and says what it ended with.
    #[track_caller]
    pub(crate) fn end(&mut self) -> Reaction {
        loop {
            match self.next_of_streams() {
                None => return Reaction::Closed,
                Some(next) if next.kind == GOAWAY => {
                    return Reaction::Goaway(code(&next.payload[4..]));
                }
                Some(_) => {}
            }
        }
    }
}

fn code(payload: &[u8]) -> u32 {
    u32::from_be_bytes(payload[..4].try_into().expect("a code"))
}

/// The status at the beginning of a head (RFC 7541, appendices A and B).
fn status(block: &[u8]) -> u16 {
    // A change of the table's size may come first.
    let block = &block[block
        .iter()
        .take_while(|byte| **byte & 0xe0 == 0x20)
        .count()..];
    match block[0] {
        0x88 => 200,
        0x89 => 204,
        0x8a => 206,
        0x8b => 304,
        0x8c => 400,
        0x8d => 404,
        0x8e => 500,
        _ => {
            let length = usize::from(block[1] & 0x7f);
            let text = &block[2..2 + length];
            if block[1] & 0x80 == 0 {
                let text = std::str::from_utf8(text).expect("digits");
                return text.parse().expect("a status");
            }
            let bits: String = text.iter().map(|byte| format!("{byte:08b}")).collect();
            let mut rest = &*bits;
            let mut status = 0;
            for _ in 0..3 {
                // '0', '1', '2' have five bits, the others six.
                let short = u16::from_str_radix(&rest[..5], 2).expect("bits");
                let (digit, length) = if short < 3 {
                    (short, 5)
                } else {
                    (u16::from_str_radix(&rest[..6], 2).expect("bits") - 22, 6)
                };
                status = status * 10 + digit;
                rest = &rest[length..];
            }
            status
        }
    }
}
