//! The bytes that were read of a client and are not taken, and how far the body of the current
//! request has come.

use bytes::Bytes;
use http::HeaderMap;

use crate::http1::Malformed;
use crate::http1::body::Decoder;
use crate::message::Piece;

/// The bytes that were read of a client and are not taken, and the rest of the current body.
#[derive(Debug, Default)]
pub struct Inbound {
    pub(super) bytes: Vec<u8>,
    /// How many of them were taken.
    pub(super) at: usize,
    /// Where they are the beginning of a head that is not whole, how far it has come.
    pub(super) begun: Option<HeadEnd>,
    pub(super) body: Body,
    /// The client waits until it is asked for the body.
    pub(super) waits: bool,
}

/// How far a head has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum HeadEnd {
    /// Only empty lines came, which a server leaves out (RFC 9112 §2.2).
    #[default]
    Before,
    /// In the middle of a line.
    InLine,
    /// At the beginning of a line.
    AfterLf,
    /// Behind the CR at the beginning of a line.
    AfterCr,
}

impl HeadEnd {
    /// Where the head ends in what comes next of it: behind the first empty line, whatever its
    /// lines end with. No reader sees an end before that.
    pub(super) fn find(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut at = 0;
        loop {
            let rest = bytes.get(at..)?;
            match (*self, *rest.first()?) {
                (Self::Before, b'\r' | b'\n') => at += 1,
                (Self::AfterLf | Self::AfterCr, b'\n') => {
                    *self = Self::Before;
                    return Some(at + 1);
                }
                (Self::AfterLf, b'\r') => {
                    *self = Self::AfterCr;
                    at += 1;
                }
                _ => {
                    *self = Self::InLine;
                    at += memchr::memchr(b'\n', rest)? + 1;
                    *self = Self::AfterLf;
                }
            }
        }
    }
}

/// The rest of the body of the current request.
#[derive(Debug, Default)]
pub(super) enum Body {
    #[default]
    Ended,
    Exact(u64),
    Chunked(Box<Decoder>),
    /// Its chunks are none: where it ends is not known, and nothing follows it.
    Broken(Malformed),
}

/// A body that does not come to its end; [`Upload::fault`] says why.
#[derive(Debug)]
pub struct CutOff;

impl Inbound {
    pub(super) fn rest(&self) -> &[u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }

    /// The next piece of the body in what is held; none where more has to be read.
    pub(super) fn next_piece(&mut self, framing: &mut usize) -> Result<Option<Piece>, Malformed> {
        // Bytes behind the body are the next head's.
        let is_over = match &self.body {
            Body::Ended => true,
            Body::Exact(_) => false,
            Body::Chunked(decoder) => decoder.is_end(),
            Body::Broken(fault) => return Err(*fault),
        };
        if is_over || self.rest().is_empty() {
            return Ok(None);
        }
        let at = std::mem::take(&mut self.at);
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.drain(..at);
        let content = match &mut self.body {
            Body::Ended | Body::Broken(_) => return Ok(None),
            Body::Exact(left) => {
                let taken =
                    usize::try_from(*left).map_or(bytes.len(), |left| left.min(bytes.len()));
                *left -= taken as u64;
                self.bytes = bytes.split_off(taken);
                if *left == 0 {
                    self.body = Body::Ended;
                }
                Bytes::from(bytes)
            }
            Body::Chunked(decoder) => {
                let decoded = match decoder.decode(&mut bytes) {
                    Ok(decoded) => decoded,
                    Err(fault) => {
                        self.body = Body::Broken(fault);
                        return Err(fault);
                    }
                };
                *framing += decoded.consumed - decoded.content.len();
                self.bytes = bytes.split_off(decoded.consumed);
                let content = Bytes::from(bytes).slice(decoded.content);
                if decoder.is_end() && content.is_empty() {
                    let trailers = decoder.take_trailers();
                    self.body = Body::Ended;
                    return Ok(trailers.map(Piece::Trailers));
                }
                if decoder.is_end() && !decoder.has_trailers() {
                    self.body = Body::Ended;
                }
                content
            }
        };
        Ok((!content.is_empty()).then_some(Piece::Data(content)))
    }

    /// The trailers of a body whose content was given out.
    pub(super) fn take_trailers(&mut self) -> Option<HeaderMap> {
        let Body::Chunked(decoder) = &mut self.body else {
            return None;
        };
        if !decoder.is_end() {
            return None;
        }
        let trailers = decoder.take_trailers();
        self.body = Body::Ended;
        trailers
    }
}

/// The reason why a client's body ended too early.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum BodyFault {
    /// Nothing.
    #[default]
    None,
    /// It passed `WAF_MAX_BODY_SIZE`.
    TooLarge,
    /// The client broke it off, or its framing is wrong.
    Client,
    /// Its chunks are so small that they are mostly framing.
    Framing,
}

/// Framing that a chunked body may have whatever its content is, and how many times its content
/// beyond that (CONN-9).
const FREE_FRAMING: u64 = 64 * 1024;
const MAX_FRAMING: u64 = 4;

/// Bytes of a body that a connection holds at most (CONN-1).
const MAX_HELD: u64 = 64 * 1024;

/// The body of the current request, or what the client sent through a tunnel.
#[derive(Debug, Default)]
pub struct Upload {
    bytes: u64,
    /// Bytes that were announced; none where that is not known.
    announced: u64,
    /// Bytes that its chunks were framed by.
    framing: u64,
    fault: BodyFault,
    unread: bool,
}

impl Upload {
    /// Bytes that came so far.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// So many bytes are to come.
    pub const fn announce(&mut self, bytes: u64) {
        self.announced = bytes;
    }

    /// Whether these bytes, the last of the client, are not the rest of what was announced. As much
    /// as a connection may hold was read, maybe, and is not counted yet.
    pub const fn lacks(&self, last: u64) -> bool {
        let come = self.bytes.saturating_add(last);
        self.announced > come.saturating_add(MAX_HELD)
    }

    /// Counts bytes, if they do not pass the limit; false, and nothing counted, if they do.
    pub fn take(&mut self, bytes: usize, limit: Option<u64>) -> bool {
        let carried = self.bytes.saturating_add(bytes as u64);
        let fits = limit.is_none_or(|limit| carried <= limit);
        if fits {
            self.bytes = carried;
        } else {
            self.fault = BodyFault::TooLarge;
        }
        fits
    }

    /// So many bytes more were framing.
    pub fn add_framing(&mut self, bytes: usize) {
        let framing = self.framing.saturating_add(bytes as u64);
        self.framing = framing;
    }

    /// Whether the framing so far is not too much for what it holds: a small chunk costs what a
    /// large one does (CONN-9).
    pub fn framing_fits(&mut self) -> bool {
        let allowed = self.bytes.saturating_mul(MAX_FRAMING);
        let fits = self.framing.saturating_sub(FREE_FRAMING) <= allowed;
        if !fits {
            self.fault = BodyFault::Framing;
        }
        fits
    }

    /// The client broke its body off.
    pub const fn broke_off(&mut self) {
        self.fault = BodyFault::Client;
    }

    /// The reason why the body ended too early.
    pub const fn fault(&self) -> BodyFault {
        self.fault
    }

    /// Notes whether a part of the body is still to come. A close then lingers, so that the
    /// response is seen and not a reset.
    pub const fn set_unread(&mut self, unread: bool) {
        self.unread = unread;
    }

    /// Whether a part of the body is still to come.
    pub const fn is_unread(&self) -> bool {
        self.unread
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// LIMIT-5: bytes up to the limit are counted, those that pass it are not.
    #[test]
    fn bytes_are_counted_up_to_the_limit() {
        let mut upload = Upload::default();
        assert!(upload.take(60, Some(100)) && upload.take(40, Some(100)));
        assert_eq!((upload.bytes(), upload.fault()), (100, BodyFault::None));
        assert!(!upload.take(1, Some(100)));
        assert_eq!((upload.bytes(), upload.fault()), (100, BodyFault::TooLarge));
        assert!(upload.take(1, None));
        assert_eq!(upload.bytes(), 101);
    }

    /// CONN-1: a body of which less came than was announced is known to be broken off, unless the
    /// rest may be held, or nothing was announced.
    #[test]
    fn a_body_that_ended_early_is_known() {
        let mut upload = Upload::default();
        assert!(!upload.lacks(0));
        upload.announce(200_000);
        assert!(upload.take(100_000, None));
        assert!(upload.lacks(100_000 - MAX_HELD - 1));
        assert!(!upload.lacks(100_000 - MAX_HELD));
    }

    /// CONN-9: chunks of one byte are ended, those of two are not; nor are few.
    #[test]
    fn chunks_that_are_mostly_framing_are_too_many() {
        let chunks = |size: usize, count: usize| {
            let mut upload = Upload::default();
            (0..count).all(|_| {
                upload.add_framing(format!("{size:x}").len() + 4);
                upload.take(size, None) && upload.framing_fits()
            })
        };
        assert!(chunks(1, 60_000));
        assert!(!chunks(1, 70_000));
        assert!(chunks(2, 1_000_000));
        assert!(chunks(65_536, 100));
    }
}
