//! The head of an answer, and what it says of the body and of the connection (RFC 9112 §4, §6.3,
//! §9.3).

use std::mem::MaybeUninit;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderValue, Method, StatusCode, Version};

use super::fields;
use super::malformed::{MAX_FIELDS, MAX_HEAD, MAX_INTERIM, Malformed};
use super::request::{end_of_fields, field};

/// The head of an answer.
#[derive(Debug)]
pub struct ResponseHead {
    /// The status.
    pub status: StatusCode,
    /// HTTP/1.1 or HTTP/1.0.
    pub version: Version,
    /// Its fields, but for a `Connection` that says no more than [`Self::keep_alive`].
    /// `Content-Length` is there in plain digits without leading zeros.
    pub headers: HeaderMap,
    /// The reason phrase, where it is not the usual one of the status. Empty if it had other bytes
    /// than ASCII.
    pub reason: Option<Bytes>,
    /// How long the body is.
    pub length: BodyLength,
    /// Whether another request may follow on the connection, once the body has ended as it should.
    pub keep_alive: bool,
}

impl ResponseHead {
    /// Writes it, as HTTP/1.1.
    pub fn write(&self, out: &mut Vec<u8>) {
        let usual = || self.status.canonical_reason().unwrap_or_default();
        let reason = self.reason.as_deref();
        out.extend_from_slice(b"HTTP/1.1 ");
        out.extend_from_slice(self.status.as_str().as_bytes());
        out.push(b' ');
        out.extend_from_slice(reason.unwrap_or_else(|| usual().as_bytes()));
        out.extend_from_slice(b"\r\n");
        for (name, value) in &self.headers {
            field(out, name, value);
        }
        end_of_fields(out);
    }
}

/// How the end of an answer's body is found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BodyLength {
    /// There is no body, whatever the fields say.
    Empty,
    /// This many bytes.
    Exact(u64),
    /// In chunks, up to the one without content.
    Chunked,
    /// The connection's end is the body's.
    UntilClose,
}

/// Reads heads of answers to one request from the bytes at hand.
#[derive(Clone, Debug, Default)]
pub struct HeadReader {
    /// Bytes that were at hand when they were parsed last and were no whole head.
    parsed: usize,
    /// Bytes that were looked through for the end of a head.
    looked_through: usize,
    interim: u8,
}

impl HeadReader {
    /// The head at the front of `bytes` and its length in bytes, or none while it is not there as a
    /// whole. `bytes` grows from call to call until there is one; after an interim answer they are
    /// what follows it.
    ///
    /// # Errors
    /// [`Malformed`] as soon as it is known that no head will come of these bytes.
    pub fn read(
        &mut self,
        bytes: &[u8],
        method: &Method,
    ) -> Result<Option<(ResponseHead, usize)>, Malformed> {
        if !self.is_worth_a_try(bytes) {
            return Ok(None);
        }
        let parsed = parse(bytes, method)?;
        let Some((head, length)) = parsed else {
            self.parsed = bytes.len();
            return Ok(None);
        };
        (self.parsed, self.looked_through) = (0, 0);
        if head.status.is_informational() {
            self.interim += 1;
            if self.interim > MAX_INTERIM {
                return Err(Malformed::TooManyInterim);
            }
        }
        Ok(Some((head, length)))
    }

    /// A head that comes byte by byte is not parsed with each of them: only when its end may be
    /// there, and when it has grown to twice its size, so that what is no HTTP at all is noticed
    /// before the time-out.
    fn is_worth_a_try(&mut self, bytes: &[u8]) -> bool {
        // An empty line may have begun in what was there before.
        let from = self.looked_through.saturating_sub(2);
        self.looked_through = bytes.len();
        if bytes.len() >= MAX_HEAD || bytes.len() >= self.parsed.saturating_mul(2) {
            return true;
        }
        let new = bytes.get(from..).unwrap_or(bytes);
        new.windows(2).any(|pair| pair == b"\n\n") || new.windows(3).any(|three| three == b"\n\r\n")
    }
}

fn parse(bytes: &[u8], method: &Method) -> Result<Option<(ResponseHead, usize)>, Malformed> {
    // `httparse` skips empty lines here, which a peer could take for the end of something.
    if !matches!(bytes.first(), None | Some(b'H')) {
        return Err(Malformed::StatusLine);
    }
    let mut lines = [const { MaybeUninit::uninit() }; MAX_FIELDS];
    let mut parsed = httparse::Response::new(&mut []);
    let outcome = httparse::ParserConfig::default().parse_response_with_uninit_headers(
        &mut parsed,
        bytes,
        &mut lines,
    );
    let length = match outcome {
        Ok(httparse::Status::Complete(length)) if length <= MAX_HEAD => length,
        Ok(httparse::Status::Partial) if bytes.len() < MAX_HEAD => return Ok(None),
        Ok(_) => return Err(Malformed::HeadTooLarge),
        Err(error) => return Err(fields::fault(error)),
    };
    let text = bytes.get(..length).unwrap_or(bytes);
    if !text.ends_with(b"\r\n\r\n") {
        return Err(Malformed::LineEnd);
    }
    let code = parsed.code.unwrap_or_default();
    let status = StatusCode::from_u16(code).map_err(|_| Malformed::StatusLine)?;
    let version = match parsed.version {
        Some(1) => Version::HTTP_11,
        _ => Version::HTTP_10,
    };
    let reason = parsed
        .reason
        .filter(|reason| Some(*reason) != status.canonical_reason())
        .map(|reason| Bytes::copy_from_slice(reason.as_bytes()));

    let mut headers = HeaderMap::with_capacity(parsed.headers.len());
    let mut said = Said::default();
    fields::each(text, parsed.headers, |name, value| {
        if let Some(value) = said.note(&name, value)? {
            headers.append(name, value);
        }
        Ok(())
    })?;
    let (length_of_body, keep_alive) = said.framing(status, version, method)?;
    let head = ResponseHead {
        status,
        version,
        headers,
        reason,
        length: length_of_body,
        keep_alive,
    };
    Ok(Some((head, length)))
}

/// What the fields say of the body's length and of the connection, noted while they are read.
#[derive(Default)]
struct Said {
    content_length: Option<u64>,
    chunked: bool,
    close: bool,
    keep_alive: bool,
}

impl Said {
    /// Notes what a field says; gives its value back as it is to stand in the head, if it is to.
    fn note(
        &mut self,
        name: &http::HeaderName,
        value: HeaderValue,
    ) -> Result<Option<HeaderValue>, Malformed> {
        if *name == CONTENT_LENGTH {
            let length = decimal(value.as_bytes()).ok_or(Malformed::ContentLength)?;
            // Equal ones are no better: a reader that joins them has a list.
            if self.content_length.replace(length).is_some() {
                return Err(Malformed::ContentLength);
            }
            if value.len() > 1 && value.as_bytes().starts_with(b"0") {
                return Ok(Some(HeaderValue::from(length)));
            }
        } else if *name == TRANSFER_ENCODING {
            let is_chunked = value.as_bytes().eq_ignore_ascii_case(b"chunked");
            if !is_chunked || std::mem::replace(&mut self.chunked, true) {
                return Err(Malformed::TransferEncoding);
            }
        } else if *name == CONNECTION {
            let mut says_more = false;
            for token in value.as_bytes().split(|byte| *byte == b',') {
                let token = token.trim_ascii();
                if token.eq_ignore_ascii_case(b"keep-alive") {
                    self.keep_alive = true;
                } else if token.eq_ignore_ascii_case(b"close") {
                    self.close = true;
                } else {
                    says_more = true;
                }
            }
            return Ok(says_more.then_some(value));
        }
        Ok(Some(value))
    }

    /// RFC 9112 §6.3, and §9.3 for the connection.
    fn framing(
        &self,
        status: StatusCode,
        version: Version,
        method: &Method,
    ) -> Result<(BodyLength, bool), Malformed> {
        if self.chunked && version == Version::HTTP_10 {
            return Err(Malformed::TransferEncoding);
        }
        if self.chunked && self.content_length.is_some() {
            return Err(Malformed::TwoLengths);
        }
        let announces = self.chunked || self.content_length.is_some_and(|length| length > 0);
        let persists = !self.close && (version == Version::HTTP_11 || self.keep_alive);
        Ok(match status.as_u16() {
            101 => (BodyLength::Empty, false),
            100..=199 if announces => return Err(Malformed::InterimBody),
            100..=199 => (BodyLength::Empty, persists),
            // Some frameworks announce a body all the same, and some send it: what follows is not
            // looked at.
            204 => (BodyLength::Empty, persists && !announces),
            304 => (BodyLength::Empty, persists),
            _ if *method == Method::HEAD => (BodyLength::Empty, persists),
            200..=299 if *method == Method::CONNECT => (BodyLength::Empty, false),
            _ if self.chunked => (BodyLength::Chunked, persists),
            _ => match self.content_length {
                Some(length) => (BodyLength::Exact(length), persists),
                None => (BodyLength::UntilClose, false),
            },
        })
    }
}

/// Plain digits below 2^63: beyond it, readers with signed numbers see another length.
fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |value, digit| {
        let digit = digit.is_ascii_digit().then(|| u64::from(digit - b'0'))?;
        let value = value.checked_mul(10)?.checked_add(digit)?;
        i64::try_from(value).is_ok().then_some(value)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A head that comes byte by byte is parsed a few times, not with each byte.
    #[test]
    fn a_head_byte_by_byte_is_not_parsed_each_time() {
        let head = format!("HTTP/1.1 200 OK\r\na: {}\r\n\r\n", "x".repeat(30_000));
        let mut reader = HeadReader::default();
        let mut tries = 0;
        for length in 1..=head.len() {
            let bytes = &head.as_bytes()[..length];
            tries += usize::from(reader.clone().is_worth_a_try(bytes));
            let read = reader.read(bytes, &Method::GET).unwrap();
            assert_eq!(read.is_some(), length == head.len());
        }
        assert!(tries < 20, "{tries}");
    }
}
