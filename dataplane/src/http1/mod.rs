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
pub mod request_head;
pub mod response;
pub mod server;

use bytes::Bytes;
use http::{HeaderName, HeaderValue};

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
