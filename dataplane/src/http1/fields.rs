//! Header lines, of a head or of trailers, as names and values.

use bytes::Bytes;
use http::{HeaderName, HeaderValue};

use super::malformed::Malformed;

/// Gives each field to `take`.
///
/// `fields` are slices of `text`, as `httparse` found them there. The values share one copy of
/// `text`: a copy of a few hundred bytes costs less than an allocation a value, and leaves the
/// buffer that was read into free for the next read.
pub(super) fn each(
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
pub(super) fn check_begin(text: &[u8], field: &httparse::Header<'_>) -> Result<(), Malformed> {
    let at = field.name.as_ptr().addr() - text.as_ptr().addr();
    let before = text.get(..at).unwrap_or_default();
    if at == 0 || before.ends_with(b"\r\n") {
        return Ok(());
    }
    Err(Malformed::LineEnd)
}

/// What `httparse` says of lines that it cannot read.
pub(super) const fn fault(error: httparse::Error) -> Malformed {
    match error {
        httparse::Error::Version | httparse::Error::Status | httparse::Error::Token => {
            Malformed::StatusLine
        }
        httparse::Error::TooManyHeaders => Malformed::TooManyFields,
        httparse::Error::NewLine => Malformed::LineEnd,
        httparse::Error::HeaderName | httparse::Error::HeaderValue => Malformed::Field,
    }
}
