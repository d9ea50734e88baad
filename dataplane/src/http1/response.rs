//! The head of an answer, and what it says of the body and of the connection (RFC 9112 §4, §6.3,
//! §9.3).

use std::mem::MaybeUninit;

use http::{HeaderMap, HeaderValue, Method, StatusCode, Version};

use crate::http1::{self, MAX_FIELDS, MAX_HEAD, MAX_INTERIM, Malformed, end_of_fields, field};
use crate::message::fields::{decimal, is_of_one_hop};
use crate::message::is;

/// The head of an answer.
#[derive(Debug)]
pub struct ResponseHead {
    /// The status.
    pub status: StatusCode,
    /// HTTP/1.1 or HTTP/1.0.
    pub version: Version,
    /// Its fields, but for a `Connection` that says no more than [`Self::keep_alive`].
    /// `Content-Length` is there in plain digits without leading zeros. Empty where there is
    /// [`Self::text`].
    pub headers: HeaderMap,
    /// The head as it goes on, where that was asked for and can be.
    pub text: Option<HeadText>,
    /// The reason phrase, where it is not the usual one of the status. Empty if it had other bytes
    /// than ASCII.
    pub reason: Option<Box<[u8]>>,
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
            field(out, name.as_str(), value.as_bytes());
        }
        end_of_fields(out);
    }
}

/// The head of a final answer as it goes on, and never was a map of fields.
#[derive(Debug)]
pub struct HeadText {
    /// The status line and the fields but for those of one hop. `Content-Length` is there in the
    /// answer to HEAD alone: who frames the body writes it. There is no empty line.
    pub text: Vec<u8>,
    /// Whether `Date` is among them.
    pub has_date: bool,
    /// Where those values begin and end; nowhere at the front.
    noted: [(u16, u16); 3],
}

impl HeadText {
    /// The values of `Content-Type`, `Cache-Control` and `Location`, each the first of its name.
    pub fn noted(&self) -> [Option<&[u8]>; 3] {
        let value = |(begin, end): (u16, u16)| {
            let value = self.text.get(usize::from(begin)..usize::from(end));
            value.filter(|_| begin > 0)
        };
        self.noted.map(value)
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
    /// Final heads are wanted as text where that can be.
    as_text: bool,
    /// Bytes that were at hand when they were parsed last and were no whole head.
    parsed: usize,
    /// Bytes that were looked through for the end of a head.
    looked_through: usize,
    interim: u8,
}

impl HeadReader {
    /// One that gives final heads as maps, or `as_text` where they can be that ([`HeadText`]).
    pub fn new(as_text: bool) -> Self {
        Self {
            as_text,
            ..Self::default()
        }
    }

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
        let parsed = parse(bytes, method, self.as_text)?;
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

// long: one form of a head after the other, with all that is checked before
fn parse(
    bytes: &[u8],
    method: &Method,
    as_text: bool,
) -> Result<Option<(ResponseHead, usize)>, Malformed> {
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
        Err(error) => return Err(http1::fault(error)),
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
    let reason = parsed.reason.unwrap_or_default();
    let mut head = ResponseHead {
        status,
        version,
        headers: HeaderMap::new(),
        text: None,
        reason: (Some(reason) != status.canonical_reason()).then(|| Box::from(reason.as_bytes())),
        length: BodyLength::Empty,
        keep_alive: false,
    };
    if as_text && !status.is_informational() {
        let mut said = Said::default();
        if let Some(written) =
            write_text(text, parsed.headers, &mut said, (status, reason, method))?
        {
            head.text = Some(written);
            said.frame(&mut head, method)?;
            return Ok(Some((head, length)));
        }
    }
    let mut headers = HeaderMap::with_capacity(parsed.headers.len());
    let mut said = Said::default();
    http1::each_field(text, parsed.headers, |name, value| {
        let value = match said.note(name.as_str(), value.as_bytes())? {
            Note::Length(length) if value.as_bytes().starts_with(b"0") => HeaderValue::from(length),
            Note::Kept => return Ok(()),
            Note::Length(_) | Note::Goes | Note::Hop | Note::Names => value,
        };
        headers.append(name, value);
        Ok(())
    })?;
    head.headers = headers;
    said.frame(&mut head, method)?;
    Ok(Some((head, length)))
}

/// Writes a final head as it goes on; none where `Connection` names fields, which needs a map.
fn write_text(
    text: &[u8],
    lines: &[httparse::Header<'_>],
    said: &mut Said,
    (status, reason, method): (StatusCode, &str, &Method),
) -> Result<Option<HeadText>, Malformed> {
    // With room for the fields that are added.
    let mut out = Vec::with_capacity(text.len() + 512);
    for part in ["HTTP/1.1 ", status.as_str(), " ", reason, "\r\n"] {
        out.extend_from_slice(part.as_bytes());
    }
    let (mut has_date, mut noted) = (false, [(0, 0); 3]);
    for line in lines {
        http1::check_begin(text, line)?;
        let name = line.name;
        match said.note(name, line.value)? {
            Note::Goes => field(&mut out, name, line.value),
            Note::Length(length) if *method == Method::HEAD => {
                field(
                    &mut out,
                    name,
                    itoa::Buffer::new().format(length).as_bytes(),
                );
            }
            Note::Length(_) | Note::Hop | Note::Kept => continue,
            Note::Names => return Ok(None),
        }
        let place = match name.len() {
            4 => {
                has_date |= is(name, b"date");
                continue;
            }
            12 if is(name, b"content-type") => 0,
            13 if is(name, b"cache-control") => 1,
            8 if is(name, b"location") => 2,
            _ => continue,
        };
        let end = out.len() - 2;
        if let Some(noted) = noted.get_mut(place)
            && noted.0 == 0
            // No head within its bound is longer.
            && let (Ok(begin), Ok(end)) = ((end - line.value.len()).try_into(), end.try_into())
        {
            *noted = (begin, end);
        }
    }
    Ok(Some(HeadText {
        text: out,
        has_date,
        noted,
    }))
}

/// What a field is to who passes the head on.
enum Note {
    /// It goes on.
    Goes,
    /// `Content-Length`
    Length(u64),
    /// It is of one hop.
    Hop,
    /// A `Connection` that says no more than what was noted.
    Kept,
    /// A `Connection` that says more.
    Names,
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
    /// Notes what a field says.
    fn note(&mut self, name: &str, value: &[u8]) -> Result<Note, Malformed> {
        let first = name.as_bytes().first().copied().unwrap_or_default();
        // The length and the first letter tell most names apart at once.
        let is_hop = match (name.len(), first | 0x20) {
            (14, b'c') if is(name, b"content-length") => {
                let length = decimal(value).ok_or(Malformed::ContentLength)?;
                // Equal ones are no better: a reader that joins them has a list.
                if self.content_length.replace(length).is_some() {
                    return Err(Malformed::ContentLength);
                }
                return Ok(Note::Length(length));
            }
            (17, b't') if is(name, b"transfer-encoding") => {
                let is_chunked = value.eq_ignore_ascii_case(b"chunked");
                if !is_chunked || std::mem::replace(&mut self.chunked, true) {
                    return Err(Malformed::TransferEncoding);
                }
                true
            }
            (10, b'c') if is(name, b"connection") => return Ok(self.note_connection(value)),
            _ => is_of_one_hop(name),
        };
        Ok(if is_hop { Note::Hop } else { Note::Goes })
    }

    fn note_connection(&mut self, value: &[u8]) -> Note {
        let (mut says_more, mut keep_alive) = (false, false);
        for token in value.split(|byte| *byte == b',') {
            let token = token.trim_ascii();
            if token.eq_ignore_ascii_case(b"keep-alive") {
                keep_alive = true;
            } else if token.eq_ignore_ascii_case(b"close") {
                self.close = true;
            } else {
                says_more = true;
            }
        }
        // Beside bytes that no token has (RFC 9110 §5.6.2) it is not sure to be meant.
        self.keep_alive |= keep_alive && (!says_more || value.is_ascii());
        if says_more { Note::Names } else { Note::Kept }
    }

    /// Notes the length of the body and whether the connection is kept (RFC 9112 §6.3, §9.3).
    fn frame(&self, head: &mut ResponseHead, method: &Method) -> Result<(), Malformed> {
        let (status, version) = (head.status, head.version);
        if self.chunked && version == Version::HTTP_10 {
            return Err(Malformed::TransferEncoding);
        }
        if self.chunked && self.content_length.is_some() {
            return Err(Malformed::TwoLengths);
        }
        let announces = self.chunked || self.content_length.is_some_and(|length| length > 0);
        let persists = !self.close && (version == Version::HTTP_11 || self.keep_alive);
        (head.length, head.keep_alive) = match status.as_u16() {
            101 => (BodyLength::Empty, false),
            100..=199 if announces => return Err(Malformed::InterimBody),
            100..=199 => (BodyLength::Empty, persists),
            // Some frameworks announce a body all the same, and some send it: what follows is not
            // looked at. The length in a 304 is that of the answer that it stands for.
            204 => (BodyLength::Empty, persists && !announces),
            304 => (BodyLength::Empty, persists && !self.chunked),
            _ if *method == Method::HEAD => (BodyLength::Empty, persists),
            200..=299 if *method == Method::CONNECT => (BodyLength::Empty, false),
            _ if self.chunked => (BodyLength::Chunked, persists),
            _ => match self.content_length {
                Some(length) => (BodyLength::Exact(length), persists),
                None => (BodyLength::UntilClose, false),
            },
        };
        Ok(())
    }
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
