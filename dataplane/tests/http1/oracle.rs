//! One answer, read by the codec and read by hyper's client, and what of it must agree. The tests
//! and the fuzz target share this file.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONNECTION, CONTENT_TYPE, DATE, LOCATION};
use http::{HeaderMap, HeaderValue, Method, Request};
use http_body_util::Empty;
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1;
use hyper::rt::{Read, ReadBufCursor, Write};
use weir_dataplane::http1::Malformed;
use weir_dataplane::http1::body::Decoder;
use weir_dataplane::http1::response::{HeadReader, ResponseHead};

/// What an answer was read as.
#[derive(Debug, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    pub version: String,
    /// In the order they came, grouped by name.
    pub fields: Vec<(String, Vec<u8>)>,
    /// Where it is not the usual one.
    pub reason: Option<Vec<u8>>,
    /// Statuses of interim answers.
    pub interim: Vec<u16>,
    pub body: Vec<u8>,
    pub trailers: Vec<(String, Vec<u8>)>,
    /// Whether the connection would take another request.
    pub reusable: bool,
}

/// How reading ended where there is no answer.
#[derive(Debug, PartialEq, Eq)]
pub enum NoAnswer {
    /// What is there may yet become one.
    Incomplete,
    /// It never will.
    Malformed(Option<Malformed>),
}

pub fn fields(map: &HeaderMap) -> Vec<(String, Vec<u8>)> {
    map.iter()
        .map(|(name, value)| (name.to_string(), value.as_bytes().to_vec()))
        .collect()
}

/// Reads the answer with the codec. `cuts` are the places where one read ends and the next begins;
/// `closed` says whether the connection ends behind the input.
pub fn ours(
    input: &[u8],
    cuts: &[usize],
    method: &Method,
    closed: bool,
) -> Result<Answer, NoAnswer> {
    let mut buffer = Vec::new();
    let mut reads = reads(input, cuts);
    let (head, interim) = read_head(&mut reads, &mut buffer, method, closed)?;
    let mut decoder = Decoder::new(&head);
    let mut body = Vec::new();
    loop {
        // What follows a 101 is not looked at here.
        if head.status != 101 && !buffer.is_empty() {
            let decoded = decoder.decode(&mut buffer).map_err(malformed)?;
            assert!(decoded.content.end <= decoded.consumed);
            assert!(decoded.consumed == buffer.len() || decoder.is_end());
            body.extend_from_slice(&buffer[decoded.content]);
            buffer.drain(..decoded.consumed);
        }
        buffer.clear();
        match reads.next() {
            Some(read) => buffer.extend_from_slice(read),
            None if decoder.is_end() => break,
            None if closed => {
                decoder.end_of_input().map_err(malformed)?;
                break;
            }
            None => return Err(NoAnswer::Incomplete),
        }
    }
    assert_eq!(decoder.remaining(), Some(0));
    Ok(Answer {
        status: head.status.as_u16(),
        version: format!("{:?}", head.version),
        fields: fields(&head.headers),
        reason: head.reason.map(|reason| reason.to_vec()),
        interim,
        body,
        trailers: decoder
            .take_trailers()
            .map(|map| fields(&map))
            .unwrap_or_default(),
        reusable: decoder.is_reusable() && !closed,
    })
}

/// The head of the final answer, and the statuses before it. What follows the head stays in
/// `buffer`.
fn read_head<'a>(
    reads: &mut impl Iterator<Item = &'a [u8]>,
    buffer: &mut Vec<u8>,
    method: &Method,
    closed: bool,
) -> Result<(ResponseHead, Vec<u16>), NoAnswer> {
    let mut reader = HeadReader::default();
    let mut interim = Vec::new();
    loop {
        let read = reader.read(buffer, method);
        assert_same_as_text(buffer, method, &read);
        if let Some((head, length)) = read.map_err(malformed)? {
            buffer.drain(..length);
            if !head.status.is_informational() || head.status == 101 {
                return Ok((head, interim));
            }
            interim.push(head.status.as_u16());
            continue;
        }
        match reads.next() {
            Some(read) => buffer.extend_from_slice(read),
            None if closed => return Err(malformed(Malformed::Truncated)),
            None => return Err(NoAnswer::Incomplete),
        }
    }
}

/// A head that is read as text says what it says as a map: of the body, of the connection, and to
/// who gets its fields, but for those of one hop.
// long: a flat list of what must agree
fn assert_same_as_text(
    bytes: &[u8],
    method: &Method,
    as_map: &Result<Option<(ResponseHead, usize)>, Malformed>,
) {
    let as_text = HeadReader::new(true).read(bytes, method);
    let (head, length, text, length_of_text) = match (as_map, as_text) {
        // What was counted before, or is not looked at yet, is not known here.
        (Err(Malformed::TooManyInterim) | Ok(None), _) => return,
        (Err(fault), Err(same)) => return assert_eq!(*fault, same),
        (Ok(Some((head, length))), Ok(Some((text, same)))) => (head, *length, text, same),
        (as_map, as_text) => panic!("{as_map:?}, as text {as_text:?}"),
    };
    let told = |head: &ResponseHead| (head.status, head.version, head.length, head.keep_alive);
    assert_eq!((told(head), length), (told(&text), length_of_text));
    let Some(text) = text.text else {
        let says_more = head.headers.contains_key(CONNECTION);
        return assert!(says_more || head.status.is_informational(), "{head:?}");
    };
    let hops = "connection keep-alive proxy-connection proxy-authenticate proxy-authorization te \
                transfer-encoding upgrade";
    let stays = |name: &str| {
        hops.split(' ').any(|hop| hop == name)
            || (name == "content-length" && *method != Method::HEAD)
    };
    let mut wanted: Vec<Vec<u8>> = (head.headers.iter())
        .filter(|(name, _)| !stays(name.as_str()))
        .map(|(name, value)| [name.as_str().as_bytes(), b": ", value.as_bytes()].concat())
        .collect();
    let mut lines = text.text.split(|byte| *byte == b'\n').map(|line| {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        line.to_vec()
    });
    let status = lines.next().unwrap();
    let reason = head.reason.as_deref();
    let usual = head
        .status
        .canonical_reason()
        .unwrap_or_default()
        .as_bytes();
    let status_line = [
        b"HTTP/1.1 ",
        head.status.as_str().as_bytes(),
        b" ",
        reason.unwrap_or(usual),
    ];
    assert_eq!(status, status_line.concat());
    let mut found: Vec<Vec<u8>> = lines.collect();
    assert_eq!(
        found.pop().as_deref(),
        Some(&b""[..]),
        "every line is ended"
    );
    wanted.sort();
    found.sort();
    assert_eq!(found, wanted);
    assert_eq!(text.has_date, head.headers.contains_key(DATE));
    let of_map = [CONTENT_TYPE, CACHE_CONTROL, LOCATION]
        .map(|name| head.headers.get(name).map(HeaderValue::as_bytes));
    assert_eq!(text.noted(), of_map);
}

const fn malformed(fault: Malformed) -> NoAnswer {
    NoAnswer::Malformed(Some(fault))
}

fn reads<'a>(input: &'a [u8], cuts: &[usize]) -> impl Iterator<Item = &'a [u8]> {
    let mut from = 0;
    let ends: Vec<usize> = cuts.iter().copied().chain([input.len()]).collect();
    ends.into_iter().map(move |end| {
        let read = &input[from..end];
        from = end;
        read
    })
}

/// A connection that answers whatever it is sent with the input.
struct Scripted {
    input: Vec<u8>,
    given: usize,
    closed: bool,
    /// The answer comes after the request.
    asked: bool,
}

impl Read for Scripted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        mut buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let rest = &self.input[self.given..];
        if !self.asked || (rest.is_empty() && !self.closed) {
            return Poll::Pending;
        }
        let taken = rest.len().min(buf.remaining());
        buf.put_slice(&rest[..taken]);
        self.given += taken;
        Poll::Ready(Ok(()))
    }
}

impl Write for Scripted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.asked = true;
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Polls often enough for whatever hyper's two halves have to tell each other.
const TURNS: usize = 8;

/// Reads the answer with hyper's client.
pub fn hyper(input: &[u8], method: &Method, closed: bool) -> Result<Answer, NoAnswer> {
    let mut cx = Context::from_waker(Waker::noop());
    let io = Scripted {
        input: input.to_vec(),
        given: 0,
        closed,
        asked: false,
    };
    let mut handshake = Box::pin(http1::handshake(io));
    let Poll::Ready(Ok((mut sender, mut connection))) = handshake.as_mut().poll(&mut cx) else {
        panic!("a handshake waits for nothing");
    };
    let interim = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut request = Request::builder()
        .method(method)
        .uri("/")
        .body(Empty::<Bytes>::new())
        .expect("a request");
    let seen = std::sync::Arc::clone(&interim);
    hyper::ext::on_informational(&mut request, move |answer| {
        seen.lock()
            .expect("no panic")
            .push(answer.status().as_u16());
    });
    let mut answer = Box::pin(sender.send_request(request));
    let mut over = false;
    let mut drive = |cx: &mut Context<'_>| {
        if !over {
            over = Pin::new(&mut connection).poll(cx).is_ready();
        }
    };
    let mut response = None;
    for _ in 0..TURNS {
        drive(&mut cx);
        if let Poll::Ready(outcome) = answer.as_mut().poll(&mut cx) {
            response = Some(outcome.map_err(|_| NoAnswer::Malformed(None))?);
            break;
        }
    }
    let (head, incoming) = response.ok_or(NoAnswer::Incomplete)?.into_parts();
    let (body, trailers) = read_body(incoming, &mut drive)?;
    for _ in 0..TURNS {
        drive(&mut cx);
    }
    drop(answer);
    let interim = interim.lock().expect("no panic").clone();
    Ok(Answer {
        status: head.status.as_u16(),
        version: format!("{:?}", head.version),
        fields: fields(&head.headers),
        reason: head
            .extensions
            .get::<hyper::ext::ReasonPhrase>()
            .map(|reason| reason.as_bytes().to_vec()),
        interim,
        body,
        trailers,
        reusable: sender.is_ready() && !closed,
    })
}

/// Content and trailers.
type Whole = (Vec<u8>, Vec<(String, Vec<u8>)>);

fn read_body(
    mut incoming: Incoming,
    drive: &mut impl FnMut(&mut Context<'_>),
) -> Result<Whole, NoAnswer> {
    let mut cx = Context::from_waker(Waker::noop());
    let (mut body, mut trailers) = (Vec::new(), Vec::new());
    let mut idle = 0;
    while idle < TURNS {
        match Pin::new(&mut incoming).poll_frame(&mut cx) {
            Poll::Ready(None) => return Ok((body, trailers)),
            Poll::Ready(Some(Err(_))) => return Err(NoAnswer::Malformed(None)),
            Poll::Ready(Some(Ok(frame))) => {
                idle = 0;
                match frame.into_data() {
                    Ok(data) => body.extend_from_slice(&data),
                    Err(frame) => trailers = frame.trailers_ref().map(fields).unwrap_or_default(),
                }
            }
            Poll::Pending => {
                idle += 1;
                drive(&mut cx);
            }
        }
    }
    Err(NoAnswer::Incomplete)
}

/// Both readings agree, or differ in a way that is meant.
///
/// The codec is the stricter one. What it accepts, hyper accepts too, as the same message; what
/// hyper accepts and the codec does not is one of these:
///
/// - `LineEnd`: hyper ends lines at LF alone.
/// - `StatusLine`: hyper skips empty lines before the status line.
/// - `ContentLength`: hyper takes equal lengths for one, and lengths up to 2^64 - 3.
/// - `TransferEncoding`: hyper takes what ends in `chunked` for chunks, and reads to the end of the
///   connection for others.
/// - `TwoLengths`: hyper lets `Transfer-Encoding` win.
/// - `TransferEncoding`, `TwoLengths`, `ContentLength` in answers without a body: hyper does not
///   look.
/// - `InterimBody`, `TooManyInterim`: hyper skips interim answers without looking, and without end.
/// - `ChunkSize`: hyper takes sizes up to 2^64 - 1, and any number of leading zeros.
/// - `ChunkExtension`, `TrailersTooLarge`, `HeadTooLarge`: hyper allows control characters there,
///   and more.
///
/// And a connection that the codec would not use again: after a 204 that announces a body, after a
/// 304 that announces one in chunks, and after a `Connection: close` beside bytes that are not
/// ASCII, which hyper does not read.
pub fn compare(input: &[u8], method: &Method, closed: bool) {
    let ours = ours(input, &[], method, closed);
    let theirs = hyper(input, method, closed);
    let context = || {
        format!(
            "{method} closed={closed} {:?}\nours {ours:?}\nhyper {theirs:?}",
            String::from_utf8_lossy(input)
        )
    };
    match (&ours, &theirs) {
        (Ok(ours), Ok(theirs)) => assert_same(ours, theirs, &context),
        (Err(NoAnswer::Malformed(Some(fault))), Ok(_) | Err(NoAnswer::Incomplete)) => {
            assert!(is_stricter(*fault), "{}", context());
        }
        (Err(NoAnswer::Malformed(_)), Err(_)) => {}
        (Err(NoAnswer::Incomplete), Err(NoAnswer::Incomplete)) => {}
        // Ours is never more lenient.
        (Ok(_) | Err(_), _) => panic!("{}", context()),
    }
}

/// The answer is the same when it comes in several reads. A fault that is noticed later, with more
/// of the bytes, may be another one; it is a fault all the same.
pub fn compare_split(
    answer: &[u8],
    cuts: &[usize],
    method: &Method,
    closed: bool,
    whole: &Result<Answer, NoAnswer>,
) {
    let split = ours(answer, cuts, method, closed);
    match (&split, whole) {
        (Err(NoAnswer::Malformed(_)), Err(NoAnswer::Malformed(_))) => {}
        // Not parsed again until more of it is there, which the time-out cuts short.
        (Err(NoAnswer::Incomplete), Err(NoAnswer::Malformed(_))) if !closed => {}
        _ => assert_eq!(
            split,
            *whole,
            "{method} {:?} cut at {cuts:?}",
            String::from_utf8_lossy(answer)
        ),
    }
}

fn assert_same(ours: &Answer, theirs: &Answer, context: &impl Fn() -> String) {
    let head = |answer: &Answer| {
        let mut fields: Vec<_> = answer
            .fields
            .iter()
            .filter(|(name, value)| name != "connection" || !is_usual_connection(value))
            .map(|(name, value)| match name.as_str() {
                // Ours has lost its leading zeros.
                "content-length" => (name.clone(), without_zeros(value)),
                _ => (name.clone(), value.clone()),
            })
            .collect();
        // Where the first line of it is left out, the map has it at another place.
        fields.sort_by_key(|(name, _)| name == "connection");
        let Answer {
            status,
            version,
            reason,
            ..
        } = answer;
        (*status, version.clone(), reason.clone(), fields)
    };
    assert_eq!(head(ours), head(theirs), "{}", context());
    assert_eq!(ours.interim, theirs.interim, "{}", context());
    assert_eq!(ours.body, theirs.body, "{}", context());
    assert_eq!(ours.trailers, theirs.trailers, "{}", context());
    let closes = ours.fields.iter().any(|(name, value)| {
        name == "connection" && !value.iter().all(|byte| matches!(byte, b'\t' | b' '..=b'~'))
    });
    if ours.reusable {
        assert!(theirs.reusable, "{}", context());
    } else if theirs.reusable {
        assert!(matches!(ours.status, 204 | 304) || closes, "{}", context());
    }
}

/// Whether a line of `Connection` says only whether it stays open: ours leaves it out of the head.
fn is_usual_connection(value: &[u8]) -> bool {
    let mut tokens = value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
    tokens.all(|token| {
        token.eq_ignore_ascii_case(b"close") || token.eq_ignore_ascii_case(b"keep-alive")
    })
}

fn without_zeros(digits: &[u8]) -> Vec<u8> {
    let zeros = digits.iter().take_while(|digit| **digit == b'0').count();
    digits[zeros.min(digits.len().saturating_sub(1))..].to_vec()
}

fn is_stricter(fault: Malformed) -> bool {
    match fault {
        Malformed::LineEnd
        | Malformed::StatusLine
        | Malformed::ContentLength
        | Malformed::TransferEncoding
        | Malformed::TwoLengths
        | Malformed::InterimBody
        | Malformed::TooManyInterim
        | Malformed::ChunkSize
        | Malformed::ChunkExtension
        | Malformed::HeadTooLarge
        | Malformed::TrailersTooLarge => true,
        Malformed::Field
        | Malformed::TooManyFields
        | Malformed::ChunkEnd
        | Malformed::Truncated => false,
    }
}
