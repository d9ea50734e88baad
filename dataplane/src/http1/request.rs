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
        make_small(name);
    }
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Makes letters small, eight bytes at a time; the last eight once more where the length is no
/// multiple of eight. The library's loop goes byte by byte in what is as short as a name.
fn make_small(name: &mut [u8]) {
    if name.len() < WORD {
        return name.make_ascii_lowercase();
    }
    let (words, _) = name.as_chunks_mut::<WORD>();
    for word in words {
        *word = small(*word);
    }
    if let Some(last) = name.last_chunk_mut::<WORD>() {
        *last = small(*last);
    }
}

const WORD: usize = 8;

/// The same of eight bytes: the high bit of each byte tells whether it is a large letter.
const fn small(word: [u8; WORD]) -> [u8; WORD] {
    const EACH: u64 = u64::from_ne_bytes([1; WORD]);
    let word = u64::from_ne_bytes(word);
    // No sum of seven bits and at most 63 leaves its byte.
    let low = word & (EACH * 0x7f);
    let from_a = low + EACH * (0x80 - b'A' as u64);
    let behind_z = low + EACH * (0x7f - b'Z' as u64);
    let is_large = (from_a ^ behind_z) & !word & (EACH * 0x80);
    (word | is_large >> 2).to_ne_bytes()
}

/// Ends a head, or trailers.
pub fn end_of_fields(out: &mut Vec<u8>) {
    out.extend_from_slice(b"\r\n");
}

/// More or less of a body than its head announced.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the body is not as long as its head says")]
pub struct WrongLength;

/// How a body is framed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Encoder {
    /// There is none, and nothing is said of it.
    Empty,
    /// This many bytes are still to come.
    Exact(u64),
    /// In chunks.
    Chunked,
    /// The end of the connection is its own, in a response of HTTP/1.0.
    UntilClose,
    /// All of it was written.
    End,
}

impl Encoder {
    /// The field that announces the body, where there is one.
    pub fn announce(self, out: &mut Vec<u8>) {
        match self {
            Self::Empty | Self::UntilClose | Self::End => {}
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
            Self::UntilClose => Ok(b""),
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
            Self::Empty | Self::Exact(0) | Self::UntilClose | Self::End => Ok(()),
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Names are written in small letters, whatever byte stands at whatever place in them.
    #[test]
    fn letters_are_made_small() {
        for (length, at) in (0..20).flat_map(|length| (0..length).map(move |at| (length, at))) {
            for byte in 0..=u8::MAX {
                let mut name = vec![b'X'; length];
                name[at] = byte;
                let expected = name.to_ascii_lowercase();
                make_small(&mut name);
                assert_eq!(name, expected, "{length} {at}");
            }
        }
    }
}
