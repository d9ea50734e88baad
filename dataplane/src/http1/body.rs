//! A body, taken out of its framing (RFC 9112 §6, §7.1).

use std::ops::Range;

use http::HeaderMap;

use crate::http1::response::{BodyLength, ResponseHead};
use crate::http1::{self, MAX_EXTENSIONS, MAX_FIELDS, MAX_TRAILERS, Malformed};
use crate::message::RequestLength;

/// Takes a body out of its framing, as the bytes come.
#[derive(Debug)]
pub struct Decoder {
    state: State,
    /// What the head said.
    keep_alive: bool,
    /// Bytes came after the end.
    stray: bool,
    /// Bytes of chunk extensions so far.
    extension_bytes: usize,
    /// Trailer lines as they come.
    trailer_lines: Vec<u8>,
    trailers: Option<Box<HeaderMap>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// This many bytes are to come.
    Exact(u64),
    UntilClose,
    /// A chunk's size is to come, or its next digit.
    Size {
        digits: u8,
        size: u64,
    },
    /// Blanks after the size.
    SizeBlank(u64),
    /// `;` and what follows, up to the line's end.
    Extension(u64),
    /// The LF of the size's line.
    SizeLf(u64),
    /// This many bytes of the chunk are to come.
    Chunk(u64),
    ChunkCr,
    ChunkLf,
    /// The first byte after the last chunk: of the empty line, or of a trailer.
    Last,
    LastLf,
    Trailers,
    End,
}

/// What one piece of input came to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Decoded {
    /// Bytes of the input that belong to the body: all of them, up to its end.
    pub consumed: usize,
    /// Where the content stands in the input, in one piece.
    pub content: Range<usize>,
}

impl Decoder {
    /// For the body that follows this head.
    pub const fn new(head: &ResponseHead) -> Self {
        Self::of(head.length, head.keep_alive)
    }

    /// For the body of a request, whose head said this of it.
    pub const fn of_request(length: RequestLength) -> Self {
        let length = match length {
            RequestLength::Empty => BodyLength::Empty,
            RequestLength::Exact(length) => BodyLength::Exact(length),
            RequestLength::Chunked => BodyLength::Chunked,
        };
        Self::of(length, true)
    }

    const fn of(length: BodyLength, keep_alive: bool) -> Self {
        Self {
            state: match length {
                BodyLength::Empty | BodyLength::Exact(0) => State::End,
                BodyLength::Exact(length) => State::Exact(length),
                BodyLength::Chunked => State::Size { digits: 0, size: 0 },
                BodyLength::UntilClose => State::UntilClose,
            },
            keep_alive,
            stray: false,
            extension_bytes: 0,
            trailer_lines: Vec::new(),
            trailers: None,
        }
    }

    /// Takes the content out of `input`. The content of several chunks is moved together inside it.
    ///
    /// # Errors
    /// [`Malformed`] where the framing is wrong. The body is not whole then, and never will be.
    pub fn decode(&mut self, input: &mut [u8]) -> Result<Decoded, Malformed> {
        let decoded = match self.state {
            State::Exact(left) => {
                let taken = shorter(input.len(), left);
                self.state = match left - taken as u64 {
                    0 => State::End,
                    left => State::Exact(left),
                };
                Decoded {
                    consumed: taken,
                    content: 0..taken,
                }
            }
            State::UntilClose => Decoded {
                consumed: input.len(),
                content: 0..input.len(),
            },
            _ => self.decode_chunks(input)?,
        };
        self.stray |= decoded.consumed < input.len();
        Ok(decoded)
    }

    /// The connection has ended.
    ///
    /// # Errors
    /// [`Malformed::Truncated`] if the body had not.
    pub fn end_of_input(&mut self) -> Result<(), Malformed> {
        match self.state {
            State::End => {}
            State::UntilClose => self.state = State::End,
            _ => return Err(Malformed::Truncated),
        }
        self.keep_alive = false;
        Ok(())
    }

    /// Whether the whole body came.
    pub fn is_end(&self) -> bool {
        self.state == State::End
    }

    /// Whether the connection may take another request: the whole body came, nothing came after it,
    /// and the head said so.
    pub fn is_reusable(&self) -> bool {
        self.is_end() && self.keep_alive && !self.stray
    }

    /// Content that is still to come, where that is known.
    pub const fn remaining(&self) -> Option<u64> {
        match self.state {
            State::Exact(left) => Some(left),
            State::End => Some(0),
            _ => None,
        }
    }

    /// So many bytes of a body of known length went by without being looked at.
    pub const fn pass(&mut self, bytes: u64) {
        if let State::Exact(left) = self.state {
            self.state = match left.saturating_sub(bytes) {
                0 => State::End,
                left => State::Exact(left),
            };
        }
    }

    /// Whether there are trailers to be taken.
    pub const fn has_trailers(&self) -> bool {
        self.trailers.is_some()
    }

    /// The trailers, once the body has ended.
    pub fn take_trailers(&mut self) -> Option<HeaderMap> {
        self.trailers.take().map(|trailers| *trailers)
    }

    fn decode_chunks(&mut self, input: &mut [u8]) -> Result<Decoded, Malformed> {
        let mut at = 0;
        let mut content = 0..0;
        while self.state != State::End {
            if let State::Chunk(left) = self.state {
                let taken = shorter(input.len() - at, left);
                if content.is_empty() {
                    content = at..at + taken;
                } else {
                    // In range: the content ends before `at`.
                    input.copy_within(at..at + taken, content.end);
                    content.end += taken;
                }
                at += taken;
                match left - taken as u64 {
                    0 => self.state = State::ChunkCr,
                    left => {
                        self.state = State::Chunk(left);
                        break;
                    }
                }
            }
            let Some(byte) = input.get(at) else { break };
            self.state = self.step(*byte)?;
            at += 1;
        }
        Ok(Decoded {
            consumed: at,
            content,
        })
    }

    /// Takes one byte of framing.
    fn step(&mut self, byte: u8) -> Result<State, Malformed> {
        match (self.state, byte) {
            (State::Size { digits, size }, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => {
                next_digit(digits, size, byte)
            }
            (State::Size { digits: 1.., size } | State::SizeBlank(size), b' ' | b'\t') => {
                self.count_extension()?;
                Ok(State::SizeBlank(size))
            }
            (State::Size { digits: 1.., size } | State::SizeBlank(size), b';') => {
                Ok(State::Extension(size))
            }
            (
                State::Size { digits: 1.., size } | State::SizeBlank(size) | State::Extension(size),
                b'\r',
            ) => Ok(State::SizeLf(size)),
            (State::Size { .. } | State::SizeBlank(_), _) => Err(Malformed::ChunkSize),
            (State::Extension(size), b'\t' | b' '..=b'~' | 0x80..) => {
                self.count_extension()?;
                Ok(State::Extension(size))
            }
            (State::Extension(_), b'\n') | (State::SizeLf(_), 0..=b'\t' | 0x0b..) => {
                Err(Malformed::LineEnd)
            }
            (State::Extension(_), _) => Err(Malformed::ChunkExtension),
            (State::SizeLf(0), _) => Ok(State::Last),
            (State::SizeLf(size), _) => Ok(State::Chunk(size)),
            (State::ChunkCr, b'\r') => Ok(State::ChunkLf),
            (State::ChunkLf, b'\n') => Ok(State::Size { digits: 0, size: 0 }),
            (State::ChunkCr | State::ChunkLf, _) => Err(Malformed::ChunkEnd),
            (State::Last, b'\r') => Ok(State::LastLf),
            (State::LastLf, b'\n') => Ok(State::End),
            (State::LastLf, _) => Err(Malformed::LineEnd),
            (State::Last | State::Trailers, _) => self.trailer_byte(byte),
            (State::Exact(_) | State::UntilClose | State::Chunk(_) | State::End, _) => {
                Ok(self.state)
            }
        }
    }

    fn count_extension(&mut self) -> Result<(), Malformed> {
        self.extension_bytes += 1;
        if self.extension_bytes > MAX_EXTENSIONS {
            return Err(Malformed::ChunkExtension);
        }
        Ok(())
    }

    fn trailer_byte(&mut self, byte: u8) -> Result<State, Malformed> {
        let lines = &mut self.trailer_lines;
        if lines.ends_with(b"\r") != (byte == b'\n') {
            return Err(Malformed::LineEnd);
        }
        if lines.len() >= MAX_TRAILERS {
            return Err(Malformed::TrailersTooLarge);
        }
        lines.push(byte);
        if !lines.ends_with(b"\r\n\r\n") {
            return Ok(State::Trailers);
        }
        let lines = std::mem::take(lines);
        let mut parsed = [httparse::EMPTY_HEADER; MAX_FIELDS];
        let httparse::Status::Complete((_, parsed)) =
            httparse::parse_headers(&lines, &mut parsed).map_err(http1::fault)?
        else {
            return Err(Malformed::Field);
        };
        let mut trailers = HeaderMap::with_capacity(parsed.len());
        http1::each_field(&lines, parsed, |name, value| {
            trailers.append(name, value);
            Ok(())
        })?;
        self.trailers = Some(Box::new(trailers));
        Ok(State::End)
    }
}

fn next_digit(digits: u8, size: u64, byte: u8) -> Result<State, Malformed> {
    let value = match byte {
        b'0'..=b'9' => byte - b'0',
        _ => byte.to_ascii_lowercase() - b'a' + 10,
    };
    // 16 digits are 64 bits: nothing is shifted out.
    let size = (size << 4) | u64::from(value);
    if digits == 16 || i64::try_from(size).is_err() {
        return Err(Malformed::ChunkSize);
    }
    Ok(State::Size {
        digits: digits + 1,
        size,
    })
}

/// The shorter of the two.
fn shorter(here: usize, left: u64) -> usize {
    usize::try_from(left).map_or(here, |left| left.min(here))
}
