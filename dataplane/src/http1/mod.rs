//! HTTP/1.1 as bytes: heads of requests and of answers read, bodies of both taken out of their
//! framing, heads and bodies written.
//!
//! `server` and `answer` talk to a client. Nothing else here knows a socket, a runtime or a
//! time-out; whoever moves the bytes calls it.
//!
//! It is strict: bytes that two readers could take for two different messages are an error, and the
//! connection that they came over is not used again. Everything is bounded, and no result depends
//! on how the bytes were split into reads.

pub mod answer;
pub mod body;
pub mod request;
pub mod response;
pub mod server;

use std::io::Write as _;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method};

/// Head of a message at most, bytes: its first line, its fields and the empty line. A request with
/// a larger one is 431, or 414 (CONN-1).
pub const MAX_HEAD: usize = 32 * 1024;
/// Fields of a head, or of trailers, at most (CONN-1).
pub const MAX_FIELDS: usize = 100;
/// Trailers of a body at most, bytes.
pub const MAX_TRAILERS: usize = 8 * 1024;
/// Chunk extensions of a body at most, bytes in all.
pub const MAX_EXTENSIONS: usize = 8 * 1024;
/// Interim answers (1xx) before the final one at most.
pub const MAX_INTERIM: u8 = 32;

/// What is wrong with the bytes of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Malformed {
    /// Not `HTTP/1.x NNN reason`.
    #[error("the status line is not one of HTTP/1.1")]
    StatusLine,
    /// A name with a byte that no name has, a space before the colon, a folded line, a control
    /// character.
    #[error("a header line is not `name: value`")]
    Field,
    /// A line that ends with LF alone: some readers end the line there, others do not.
    #[error("a line does not end with CR LF")]
    LineEnd,
    /// More than [`MAX_HEAD`].
    #[error("the head is larger than {MAX_HEAD} bytes")]
    HeadTooLarge,
    /// More than [`MAX_FIELDS`].
    #[error("there are more than {MAX_FIELDS} header lines")]
    TooManyFields,
    /// More than [`MAX_INTERIM`].
    #[error("there are more than {MAX_INTERIM} interim answers")]
    TooManyInterim,
    /// Not one plain number of bytes: a list, a sign, no digit, or 2^63 and more.
    #[error("Content-Length is not one number")]
    ContentLength,
    /// Anything but one `chunked`, or with HTTP/1.0, which does not know it.
    #[error("Transfer-Encoding is not `chunked`, in HTTP/1.1")]
    TransferEncoding,
    /// Both are given: readers differ in which one they believe.
    #[error("both Content-Length and Transfer-Encoding are given")]
    TwoLengths,
    /// An interim answer that announces a body, which it cannot have.
    #[error("an interim answer announces a body")]
    InterimBody,
    /// No hexadecimal digit, more than 16, or 2^63 and more.
    #[error("the size of a chunk is not a number")]
    ChunkSize,
    /// A chunk is not followed by CR LF.
    #[error("a chunk does not end where its size says")]
    ChunkEnd,
    /// A control character in an extension, or more than [`MAX_EXTENSIONS`].
    #[error("chunk extensions are not text of at most {MAX_EXTENSIONS} bytes")]
    ChunkExtension,
    /// More than [`MAX_TRAILERS`].
    #[error("the trailers are larger than {MAX_TRAILERS} bytes")]
    TrailersTooLarge,
    /// The connection ended before the message did.
    #[error("the connection ended in the middle of the message")]
    Truncated,
}

/// Gives each field to `take`.
///
/// `fields` are slices of `text`, as `httparse` found them there. The values share one copy of
/// `text`: a copy of a few hundred bytes costs less than an allocation a value, and leaves the
/// buffer that was read into free for the next read.
fn each_field(
    text: &[u8],
    fields: &[httparse::Header<'_>],
    mut take: impl FnMut(HeaderName, HeaderValue) -> Result<(), Malformed>,
) -> Result<(), Malformed> {
    let shared = Bytes::copy_from_slice(text);
    let start = text.as_ptr().addr();
    for field in fields {
        check_begin(text, field)?;
        let name = HeaderName::from_bytes(field.name.as_bytes()).map_err(|_| Malformed::Field)?;
        let value_at = field.value.as_ptr().addr() - start;
        // In range: the value is a slice of `text`, and `shared` is as long.
        let value = shared.slice(value_at..value_at + field.value.len());
        let value = HeaderValue::from_maybe_shared(value).map_err(|_| Malformed::Field)?;
        take(name, value)?;
    }
    Ok(())
}

/// Checks that the line before this one, or the text before the first, ends as lines do: `httparse`
/// also ends one at LF alone.
fn check_begin(text: &[u8], field: &httparse::Header<'_>) -> Result<(), Malformed> {
    let at = field.name.as_ptr().addr() - text.as_ptr().addr();
    let before = text.get(..at).unwrap_or_default();
    if at == 0 || before.ends_with(b"\r\n") {
        return Ok(());
    }
    Err(Malformed::LineEnd)
}

/// What `httparse` says of lines that it cannot read.
const fn fault(error: httparse::Error) -> Malformed {
    match error {
        httparse::Error::Version | httparse::Error::Status | httparse::Error::Token => {
            Malformed::StatusLine
        }
        httparse::Error::TooManyHeaders => Malformed::TooManyFields,
        httparse::Error::NewLine => Malformed::LineEnd,
        httparse::Error::HeaderName | httparse::Error::HeaderValue => Malformed::Field,
    }
}

// What is written: a head line by line, and a body in its framing (RFC 9112 §3, §7.1). Names,
// values, methods and targets were parsed: they hold no byte that could end a line.

/// Starts the head of a request. `target` is what stands between method and version.
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

/// Eight bytes with small letters. The high bit of each byte of `is_large` marks a large letter.
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
