//! What a client sends, cut and framed for hyper (CONN-9).
//!
//! hyper takes a chunked body apart chunk by chunk, and hands each over by itself: chunks of one
//! byte cost several times what a large body does. So chunks are taken out of their framing here,
//! as many as one read brings, and go to hyper as one. For that hyper gets a head and not a byte
//! more, until it has read it and says which body follows.

use std::io;
use std::mem::MaybeUninit;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use hyper::rt::ReadBufCursor;
use tokio::io::ReadBuf;

use super::upload::Upload;
use crate::http1::body::Decoder;
use crate::http1::head_end::HeadEnd;
use crate::http1::request::Encoder;

/// So much is read at once. A read of 16 KiB would have hyper ask for 32 next, and keep room for
/// them (CONN-1).
const AT_ONCE: usize = 16 * 1024 - 64;

/// How the body of a request is framed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Framing {
    /// There is none.
    Empty,
    /// By its length, bytes.
    Sized(u64),
    /// In chunks.
    Chunked,
}

/// What a client sends over one connection.
pub struct Inbound {
    at: At,
    /// What was read, and stands behind what hyper may have.
    raw: Bytes,
    /// What hyper is to get of a chunked body.
    framed: Vec<u8>,
    /// So much of it hyper has.
    given: usize,
}

enum At {
    Head(HeadEnd),
    /// hyper has a head, and is to say what follows.
    BehindHead,
    /// In a body of which so many bytes are to come.
    Sized(u64),
    Chunked(Box<Decoder>),
    /// In a tunnel: all goes on as it comes.
    Tunnel,
}

impl Inbound {
    /// Before a head. `raw` was read already.
    pub fn new(raw: Bytes) -> Self {
        Self {
            at: At::Head(HeadEnd::default()),
            raw,
            framed: Vec::new(),
            given: 0,
        }
    }

    /// hyper has read a head, which announces this body.
    pub fn begin_body(&mut self, framing: Framing) {
        debug_assert!(matches!(self.at, At::BehindHead), "nothing came behind it");
        self.at = match framing {
            Framing::Empty => At::Head(HeadEnd::default()),
            Framing::Sized(length) => At::Sized(length),
            Framing::Chunked => At::Chunked(Box::new(Decoder::chunked())),
        };
    }

    /// There are no further requests.
    pub fn begin_tunnel(&mut self) {
        self.at = At::Tunnel;
    }

    /// What was read and hyper does not have.
    pub const fn left(&self) -> &Bytes {
        &self.raw
    }

    /// Gives hyper what it may have; `read` reads more. The framing of chunks is counted in
    /// `upload`.
    pub fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        mut out: ReadBufCursor<'_>,
        upload: &Upload,
        mut read: impl FnMut(&mut Context<'_>, &mut ReadBuf<'_>) -> Poll<io::Result<()>>,
    ) -> Poll<io::Result<()>> {
        loop {
            if self.give_framed(&mut out) {
                return Poll::Ready(Ok(()));
            }
            let mut space = [MaybeUninit::uninit(); AT_ONCE];
            let at_most = out.remaining().min(AT_ONCE);
            let mut bytes = ReadBuf::uninit(space.get_mut(..at_most).unwrap_or_default());
            let held = self.raw.len().min(at_most);
            if held > 0 {
                bytes.put_slice(self.raw.get(..held).unwrap_or_default());
            } else {
                ready!(read(cx, &mut bytes))?;
                if bytes.filled().is_empty() {
                    return Poll::Ready(Ok(()));
                }
            }
            let bytes = bytes.filled_mut();
            let goes_on = !matches!(self.at, At::Chunked(_));
            let taken = self.take(bytes, upload)?;
            if held > 0 {
                self.raw.advance(taken);
                if self.raw.is_empty() {
                    // Its memory would be kept for as long as the head that it began.
                    self.raw = Bytes::new();
                }
            } else if let Some(behind @ [_, ..]) = bytes.get(taken..) {
                self.raw = Bytes::copy_from_slice(behind);
            }
            if goes_on {
                out.put_slice(bytes.get(..taken).unwrap_or_default());
                return Poll::Ready(Ok(()));
            }
        }
    }

    /// Gives what was framed, if there is something.
    fn give_framed(&mut self, out: &mut ReadBufCursor<'_>) -> bool {
        let rest = self.framed.get(self.given..).unwrap_or_default();
        let fits = rest.len().min(out.remaining());
        out.put_slice(rest.get(..fits).unwrap_or_default());
        self.given += fits;
        if self.given == self.framed.len() {
            self.given = 0;
            // hyper has it now, and the next chunks may be long in coming (CONN-1).
            self.framed = Vec::new();
        }
        fits > 0
    }

    /// How many of these bytes belong to what is being read. A head and a body of known length go
    /// on as they are, a chunked body is framed anew.
    fn take(&mut self, bytes: &mut [u8], upload: &Upload) -> io::Result<usize> {
        match &mut self.at {
            At::Head(scan) => {
                let end = scan.find(bytes);
                if end.is_some() {
                    self.at = At::BehindHead;
                }
                Ok(end.unwrap_or(bytes.len()))
            }
            At::BehindHead => {
                debug_assert!(false, "hyper reads on behind a head that it has");
                Err(io::Error::other("what follows a head is not known"))
            }
            At::Sized(left) => {
                let taken =
                    usize::try_from(*left).map_or(bytes.len(), |left| left.min(bytes.len()));
                *left -= taken as u64;
                if *left == 0 {
                    self.at = At::Head(HeadEnd::default());
                }
                Ok(taken)
            }
            At::Chunked(decoder) => {
                let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, error);
                let decoded = decoder.decode(bytes).map_err(invalid)?;
                let content = bytes.get(decoded.content).unwrap_or_default();
                upload.add_framing(decoded.consumed - content.len());
                let mut encoder = Encoder::Chunked;
                if !content.is_empty() {
                    // In chunks there is no length that could be wrong.
                    let behind = encoder.begin_piece(&mut self.framed, content.len());
                    self.framed.extend_from_slice(content);
                    self.framed.extend_from_slice(behind.unwrap_or_default());
                }
                if decoder.is_end() {
                    let trailers = decoder.take_trailers();
                    let _ = encoder.end(&mut self.framed, trailers.as_ref(), |_| true);
                    self.at = At::Head(HeadEnd::default());
                }
                Ok(decoded.consumed)
            }
            At::Tunnel => Ok(bytes.len()),
        }
    }
}

#[cfg(test)]
mod tests;
