//! Interim responses (1xx) on their way to the client: written while the response is waited for.
//! Those to a stream of HTTP/2 are held for the task of the stream, which sends them.

use std::cell::RefCell;

use http::{HeaderName, HeaderValue, Response};

/// Interim responses that wait, bytes at most, and all of those to one stream; more are dropped:
/// they are hints.
const MAX_WAITING: usize = 16 * 1024;

/// The interim response that asks for a body (RFC 9110 §10.1.1).
const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// Interim responses that wait to be written.
#[derive(Debug, Default)]
pub struct Interim(RefCell<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
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
    pub fn put(&self, write: impl FnOnce(&mut Vec<u8>)) {
        let bytes = &mut self.0.borrow_mut().bytes;
        let before = bytes.len();
        write(bytes);
        if bytes.len() > MAX_WAITING {
            bytes.truncate(before);
        }
    }

    /// Puts one behind those to a stream, if it fits.
    pub fn put_head(&self, head: Response<()>) {
        let mut waiting = self.0.borrow_mut();
        let size = waiting.heads_size + size(&head);
        if size <= MAX_WAITING {
            waiting.heads_size = size;
            waiting.heads.push(head);
        }
    }

    /// Takes those to a stream.
    pub fn take_heads(&self) -> Vec<Response<()>> {
        std::mem::take(&mut self.0.borrow_mut().heads)
    }

    /// Has the client asked for the body that it announced, if nothing waits before that.
    pub fn put_continue(&self) {
        let mut waiting = self.0.borrow_mut();
        if waiting.bytes.is_empty() {
            waiting.bytes.extend_from_slice(CONTINUE);
        }
    }

    /// Has the client of a stream asked for its body.
    pub fn ask_for_body(&self) {
        self.0.borrow_mut().asks = true;
    }

    /// Whether the client of a stream is to be asked for its body; said once.
    pub fn take_asking(&self) -> bool {
        std::mem::take(&mut self.0.borrow_mut().asks)
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.0.borrow().bytes.is_empty()
    }

    /// Whether one was begun and not ended: nothing else can be written before that.
    pub fn is_begun(&self) -> bool {
        self.0.borrow().begun
    }

    /// The bytes that wait go to `write`, which says how many it wrote.
    pub fn write<E>(&self, write: impl FnOnce(&[u8]) -> Result<usize, E>) -> Result<(), E> {
        let mut waiting = self.0.borrow_mut();
        waiting.begun = true;
        let written = write(waiting.bytes.get(waiting.at..).unwrap_or_default())?;
        waiting.at += written;
        if waiting.at >= waiting.bytes.len() {
            (waiting.bytes, waiting.at) = (Vec::new(), 0);
            waiting.begun = false;
        }
        Ok(())
    }

    /// What must be written before a response: the rest of one that was begun. Those that were not
    /// begun are too late.
    pub fn take_rest(&self) -> Vec<u8> {
        let mut waiting = self.0.borrow_mut();
        let at = std::mem::take(&mut waiting.at);
        let mut bytes = std::mem::take(&mut waiting.bytes);
        if !std::mem::take(&mut waiting.begun) {
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
