//! The buffers that all upstream connections of a worker share. A connection has one only while
//! bytes of it are on their way.
//!
//! What is read is handed on as parts of the buffer it was read into, not copied; the buffer is
//! free again when the last part was written to a client. A fresh buffer a read costs twice as
//! much: its pages have to be touched anew.

use std::cell::RefCell;
use std::io;
use std::pin::pin;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use weir_shared::tls_record;

use crate::pipe::Pipes;

/// A buffer, bytes: with 4 KiB that are written before it, two records of TLS. Encrypted they are
/// held besides, until the client's socket takes them: together 64 KiB (CONN-1).
pub const SIZE: usize = 2 * tls_record::CONTENT - 4 * 1024;
/// What is read where much waits for the client already.
const LITTLE: usize = 4 * 1024;
/// Room that is left for a read at least.
const LEAST: usize = 8 * 1024;
/// Buffers that wait for their parts to be written. Those beyond it are freed with their last part.
const MAX_WAITING: usize = 8;
/// Buffers for requests that are kept: one for a head and one for a body.
const MAX_TEXTS: usize = 2;
/// A buffer for a request that has grown larger is not kept.
const MAX_TEXT: usize = 32 * 1024;

/// The buffers of one worker.
pub struct Buffers {
    /// What is read goes here.
    reading: RefCell<BytesMut>,
    /// Full buffers of which parts are still on their way, the oldest first.
    waiting: RefCell<Vec<BytesMut>>,
    /// The pipes for bodies that are not looked at.
    pub pipes: Pipes,
    /// Empty buffers for the text of requests.
    texts: RefCell<Vec<Vec<u8>>>,
}

impl Buffers {
    /// One empty buffer.
    pub fn new() -> Self {
        Self {
            reading: RefCell::new(BytesMut::with_capacity(SIZE)),
            waiting: RefCell::default(),
            pipes: Pipes::default(),
            texts: RefCell::default(),
        }
    }

    /// Reads what is there; nothing is the end of the stream.
    pub fn poll_read(
        &self,
        stream: &mut TcpStream,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<BytesMut>> {
        let mut buffer = self.reading.borrow_mut();
        if buffer.capacity() - buffer.len() < LEAST {
            self.make_room(&mut buffer);
        }
        let mut reading = pin!(stream.read_buf(&mut *buffer));
        ready!(reading.as_mut().poll(cx))?;
        Poll::Ready(Ok(buffer.split()))
    }

    /// Reads little of what is there, into memory of its own: the piece may wait for long.
    pub fn poll_read_little(
        stream: &mut TcpStream,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<BytesMut>> {
        let mut buffer = BytesMut::with_capacity(LITTLE);
        let mut reading = pin!(stream.read_buf(&mut buffer));
        ready!(reading.as_mut().poll(cx))?;
        Poll::Ready(Ok(buffer))
    }

    /// Makes an empty buffer large enough for a read.
    fn make_room(&self, buffer: &mut BytesMut) {
        if buffer.try_reclaim(SIZE) {
            return;
        }
        let mut waiting = self.waiting.borrow_mut();
        let free = waiting.iter_mut().find_map(|each| {
            let is_free = each.try_reclaim(SIZE);
            is_free.then_some(each)
        });
        if let Some(free) = free {
            std::mem::swap(free, buffer);
            return;
        }
        let full = std::mem::replace(buffer, BytesMut::with_capacity(SIZE));
        if waiting.len() < MAX_WAITING {
            waiting.push(full);
        }
    }

    /// An empty buffer for the text of a request.
    pub fn take_text(&self) -> Vec<u8> {
        self.texts.borrow_mut().pop().unwrap_or_default()
    }

    /// Gives such a buffer back.
    pub fn give_text(&self, mut text: Vec<u8>) {
        let mut texts = self.texts.borrow_mut();
        if texts.len() < MAX_TEXTS && text.capacity() <= MAX_TEXT {
            text.clear();
            texts.push(text);
        }
    }
}
