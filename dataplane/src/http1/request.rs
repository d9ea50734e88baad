//! Requests as bytes: the head, line by line, and the body in its framing (RFC 9112 §3, §7.1).
//!
//! Names, values, methods and targets were parsed: they hold no byte that could end a line.

use std::io::Write as _;

use http::{HeaderMap, HeaderName, Method};

/// Starts a head. `target` is what stands between method and version.
pub fn request_line(out: &mut Vec<u8>, method: &Method, target: &str) {
    debug_assert!(target.bytes().all(|byte| byte > b' ' && byte != 0x7f));
    out.extend_from_slice(method.as_str().as_bytes());
    out.push(b' ');
    out.extend_from_slice(target.as_bytes());
    out.extend_from_slice(b" HTTP/1.1\r\n");
}

/// Writes one field, its name in small letters.
pub fn field(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.reserve(name.len() + value.len() + 4);
    let begin = out.len();
    out.extend_from_slice(name.as_bytes());
    if let Some(name) = out.get_mut(begin..) {
        name.make_ascii_lowercase();
    }
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Ends a head, or trailers.
pub fn end_of_fields(out: &mut Vec<u8>) {
    out.extend_from_slice(b"\r\n");
}

/// More or less of a body than its head announced.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the body is not as long as its head says")]
pub struct WrongLength;

/// How the body of a request is framed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Encoder {
    /// There is none, and nothing is said of it.
    Empty,
    /// This many bytes are still to come.
    Exact(u64),
    /// In chunks.
    Chunked,
    /// All of it was written.
    End,
}

impl Encoder {
    /// The field that announces the body, where there is one.
    pub fn announce(self, out: &mut Vec<u8>) {
        match self {
            Self::Empty | Self::End => {}
            Self::Exact(length) => {
                let mut digits = itoa::Buffer::new();
                field(out, "content-length", digits.format(length).as_bytes());
            }
            Self::Chunked => out.extend_from_slice(b"transfer-encoding: chunked\r\n"),
        }
    }

    /// Writes to `out` what stands before a piece of the body; what it returns stands behind it. A
    /// piece is not empty: in chunks, that would end the body.
    ///
    /// # Errors
    /// [`WrongLength`] where more comes than was announced.
    pub fn begin_piece(
        &mut self,
        out: &mut Vec<u8>,
        length: usize,
    ) -> Result<&'static [u8], WrongLength> {
        match self {
            _ if length == 0 => Ok(b""),
            Self::Empty | Self::End => Err(WrongLength),
            Self::Exact(left) => {
                *left = left.checked_sub(length as u64).ok_or(WrongLength)?;
                Ok(b"")
            }
            Self::Chunked => {
                // A Vec takes whatever is written.
                let _ = write!(out, "{length:x}\r\n");
                Ok(b"\r\n")
            }
        }
    }

    /// Ends the body, with those trailers that `passes` lets through where the framing has room for
    /// them.
    ///
    /// # Errors
    /// [`WrongLength`] where less came than was announced.
    pub fn end(
        &mut self,
        out: &mut Vec<u8>,
        trailers: Option<&HeaderMap>,
        passes: impl Fn(&HeaderName) -> bool,
    ) -> Result<(), WrongLength> {
        match std::mem::replace(self, Self::End) {
            Self::Empty | Self::Exact(0) | Self::End => Ok(()),
            Self::Exact(_) => Err(WrongLength),
            Self::Chunked => {
                out.extend_from_slice(b"0\r\n");
                for (name, value) in trailers.into_iter().flatten() {
                    if passes(name) {
                        field(out, name.as_str(), value.as_bytes());
                    }
                }
                end_of_fields(out);
                Ok(())
            }
        }
    }

    /// Whether all of the body was written.
    pub const fn is_end(self) -> bool {
        matches!(self, Self::Empty | Self::Exact(0) | Self::End)
    }
}
