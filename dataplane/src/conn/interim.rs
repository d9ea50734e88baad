//! Interim responses (1xx) on their way to the client: written while the response is waited for.
//! Those to a stream of HTTP/2 are held for the task of the stream, which sends them.

use http::{HeaderName, HeaderValue, Response};

/// Interim responses that wait, bytes at most, and all of those to one stream; more are dropped:
/// they are hints.
const MAX_WAITING: usize = 16 * 1024;

/// The interim response that asks for a body (RFC 9110 §10.1.1).
const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// Interim responses that wait to be written.
#[derive(Debug, Default)]
pub struct Interim {
    bytes: Vec<u8>,
    /// So much of them was written.
    at: usize,
    /// It was tried to write them: over TLS they are encrypted by then.
    begun: bool,
    /// The client of a stream is to be asked for its body.
    asks: bool,
    /// Those to a stream.
    heads: Vec<Response<()>>,
    /// Bytes of all that there were to it.
    heads_size: usize,
}

impl Interim {
    /// Puts one behind those that wait, if it fits.
    pub fn put(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let bytes = &mut self.bytes;
        let before = bytes.len();
        write(bytes);
        if bytes.len() > MAX_WAITING {
            bytes.truncate(before);
        }
    }

    /// Puts one behind those to a stream, if it fits.
    pub fn put_head(&mut self, head: Response<()>) {
        let size = self.heads_size + size(&head);
        if size <= MAX_WAITING {
            self.heads_size = size;
            self.heads.push(head);
        }
    }

    /// Takes those to a stream.
    pub fn take_heads(&mut self) -> Vec<Response<()>> {
        std::mem::take(&mut self.heads)
    }

    /// Has the client asked for the body that it announced, if nothing waits before that.
    pub fn put_continue(&mut self) {
        if self.bytes.is_empty() {
            self.bytes.extend_from_slice(CONTINUE);
        }
    }

    /// Has the client of a stream asked for its body.
    pub fn ask_for_body(&mut self) {
        self.asks = true;
    }

    /// Whether the client of a stream is to be asked for its body; said once.
    pub fn take_asking(&mut self) -> bool {
        std::mem::take(&mut self.asks)
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Whether one was begun and not ended: nothing else can be written before that.
    pub fn is_begun(&self) -> bool {
        self.begun
    }

    /// The bytes that wait go to `write`, which says how many it wrote.
    pub fn write<E>(&mut self, write: impl FnOnce(&[u8]) -> Result<usize, E>) -> Result<(), E> {
        self.begun = true;
        let written = write(self.bytes.get(self.at..).unwrap_or_default())?;
        self.at += written;
        if self.at >= self.bytes.len() {
            (self.bytes, self.at) = (Vec::new(), 0);
            self.begun = false;
        }
        Ok(())
    }

    /// What must be written before a response: the rest of one that was begun. Those that were not
    /// begun are too late.
    pub fn take_rest(&mut self) -> Vec<u8> {
        let at = std::mem::take(&mut self.at);
        let mut bytes = std::mem::take(&mut self.bytes);
        if !std::mem::take(&mut self.begun) {
            return Vec::new();
        }
        bytes.drain(..at.min(bytes.len()));
        bytes
    }
}

/// What one takes, about.
fn size(head: &Response<()>) -> usize {
    let of = |(name, value): (&HeaderName, &HeaderValue)| name.as_str().len() + value.len();
    // A status is a frame of its own, and a field has some bytes besides.
    head.headers()
        .iter()
        .map(|field| of(field) + 4)
        .sum::<usize>()
        + 16
}
