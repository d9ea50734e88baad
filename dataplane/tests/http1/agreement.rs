//! The requests of one connection, read by our parser and by hyper's server, and what of it must
//! agree. The tests and the fuzz target share this file.
//!
//! Ours is the stricter one: what it accepts, hyper accepts too, as the same request that ends at
//! the same byte. What hyper accepts and ours does not is one of these ([`is_named`],
//! [`is_stricter`]):
//!
//! - `Framing`: hyper drops a length beside a coding, and closes behind the answer. A reader in
//!   front that believed the length has sent the next request inside this one: 400.
//! - `Framing`: hyper takes `gzip, chunked` for chunks, and any number of lines whose last one ends
//!   in `chunked`. The application would have to undo what nobody tells it: 400.
//! - `Framing`: hyper takes lengths up to 2^64 - 3. A sum with them could overflow in a reader
//!   behind: 400 from 2^63.
//! - `Target`: hyper takes `*` for every method, and an authority alone (RFC 9112 §3.2.3, §3.2.4).
//! - `Host`: hyper does not look at `Host`, nor at the authority of an absolute target (RFC 9112
//!   §3.2).
//! - `ChunkSize`: hyper takes sizes up to 2^64 - 1, and any number of zeros in front of them.
//! - `ChunkExtension`, `TrailersTooLarge`: hyper allows control characters in an extension, twice
//!   as many bytes of extensions, and four times as many of trailers.
//! - `LineEnd` of a trailer: hyper ends the lines of trailers at LF alone.
//!
//! Further:
//!
//! - `Connection: close` beside bytes that are not ASCII: hyper does not read the line.
//! - A head that is malformed beyond hyper's first read, of 8 KiB: hyper looks at it again only at
//!   its end, and calls it too large where that is beyond its bound. Ours says so at once.
//! - A head that is malformed beyond its bound: hyper may have read so far, and answers 400.
//! - A length of 2^64 - 2 or 2^64 - 1 is 431 of hyper's.
//! - The preface of HTTP/2, be it behind a head that is refused: hyper closes without an answer.
//! - Equal lengths, twice: hyper leaves one of them out. Nobody is sent them (FORWARD-4).

use http::header::{CONNECTION, CONTENT_LENGTH, HOST, HeaderMap, TE, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderValue, Method, Uri};
use weir_dataplane::http1::MAX_HEAD;
use weir_dataplane::http1::Malformed;
use weir_dataplane::http1::request::BadRequest;
use weir_dataplane::message::{Known, RequestLength};

use super::requests_read::{self as ours, End, Field, lines, status};
use super::server as hyper;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Both read the same, or differ in a way that is meant; and each request ends where hyper's does.
/// Gives what ours read.
pub fn compare(bytes: &[u8]) -> ours::Connection {
    let found = ours::read(bytes, &[]);
    let theirs = hyper::read(bytes, &[]);
    let context = || format!("{}\nours {found:?}\nhyper {theirs:?}", bytes.escape_ascii());
    for (at, message) in found.messages.iter().enumerate() {
        let same = theirs.messages.get(at);
        let same = same.unwrap_or_else(|| panic!("hyper has no request {at}: {}", context()));
        assert_same(message, same, bytes, &context);
    }
    let is_same_end = match found.end {
        End::Open | End::InBody => theirs.is_open && is_as_far(&found, &theirs),
        End::Closed => match found.messages.last() {
            Some(last) if is_close_of_other_bytes(last) => true,
            _ => !theirs.is_open && is_as_far(&found, &theirs),
        },
        End::Refused(fault) => is_refused_too(fault, bytes, &found, &theirs),
        End::Broken(fault) => {
            let broken = &theirs.messages[found.messages.len() - 1];
            broken.is_broken || is_stricter(fault)
        }
    };
    assert!(is_same_end, "{}", context());
    assert_ends_there(bytes, &found.messages);
    found
}

/// However the bytes are cut into reads, they say the same as the whole. Of a body that turns out
/// to be malformed, more or less may have been given before.
pub fn compare_cut(bytes: &[u8], cuts: &[usize], whole: &ours::Connection) {
    let mut found = ours::read(bytes, cuts);
    if let (End::Broken(_), Some(last), Some(same)) =
        (found.end, found.messages.last_mut(), whole.messages.last())
    {
        last.content.clone_from(&same.content);
    }
    assert_eq!(found, *whole, "{} cut at {cuts:?}", bytes.escape_ascii());
}

/// Whether hyper has read no more requests, and the last one to the same byte.
fn is_as_far(found: &ours::Connection, theirs: &hyper::Connection) -> bool {
    let last = theirs.messages.last();
    let is_in_body = last.is_some_and(|message| !message.is_whole);
    theirs.refusal.is_none()
        && found.messages.len() == theirs.messages.len()
        && (found.end == End::InBody) == is_in_body
        && !last.is_some_and(|message| message.is_broken)
}

/// What ours refuses, hyper refuses with the same status, or accepts for a named reason.
fn is_refused_too(
    fault: BadRequest,
    bytes: &[u8],
    found: &ours::Connection,
    theirs: &hyper::Connection,
) -> bool {
    let at = found.messages.len();
    if let Some(accepted) = theirs.messages.get(at) {
        let begin = begin_of_next(found);
        return is_named(fault, accepted, &bytes[begin..]);
    }
    if theirs.is_open {
        // It is not looked at before an empty line.
        let ended = hyper::read(&[bytes, b"\r\n\r\n"].concat(), &[]);
        return ended.messages.len() == at && !ended.is_open;
    }
    let rest = &bytes[begin_of_next(found)..];
    match theirs.refusal {
        None => rest.windows(PREFACE.len()).any(|part| part == PREFACE),
        Some(refusal) if refusal == status(fault) => true,
        Some(refusal) => {
            let is_late = fault == BadRequest::Syntax && rest.len() > FIRST_READ;
            let is_huge = fault == BadRequest::Framing && has_length(rest);
            let is_beyond = fault == BadRequest::TooLarge && rest.len() > MAX_HEAD;
            // hyper has one word for both.
            let is_target = fault == BadRequest::TargetTooLong && rest.len() >= MAX_HEAD;
            let is_target = is_target && refusal == status(BadRequest::TooLarge);
            is_beyond
                || is_target
                || (refusal == status(BadRequest::TooLarge) && (is_late || is_huge))
        }
    }
}

/// What hyper reads at first.
const FIRST_READ: usize = 8 * 1024;

fn begin_of_next(found: &ours::Connection) -> usize {
    let last = found.messages.last();
    last.map_or(0, |last| last.end.expect("it is whole"))
}

/// Whether it is known that hyper accepts what ours refuses for this. `rest` begins with it.
fn is_named(fault: BadRequest, accepted: &hyper::Message, rest: &[u8]) -> bool {
    let (method, uri) = (&accepted.head.method, &accepted.head.uri);
    let headers = &accepted.head.headers;
    match fault {
        BadRequest::Framing => {
            let codings: Vec<_> = headers.get_all(TRANSFER_ENCODING).iter().collect();
            let is_one_plain =
                matches!(&codings[..], [one] if one.as_bytes().eq_ignore_ascii_case(b"chunked"));
            let is_coded = !codings.is_empty();
            let length = headers.get(CONTENT_LENGTH).map(HeaderValue::as_bytes);
            let is_huge = length.is_some_and(|digits| {
                let text = std::str::from_utf8(digits).expect("digits");
                text.parse::<u64>().is_ok_and(|length| length >= 1 << 63)
            });
            is_huge || (is_coded && (!is_one_plain || has_length(rest)))
        }
        BadRequest::Target => {
            let is_authority_alone = uri.authority().is_some() && uri.scheme().is_none();
            (is_authority_alone && *method != Method::CONNECT)
                || (uri.authority().is_none() && uri.path() == "*" && *method != Method::OPTIONS)
        }
        BadRequest::Host => !has_one_host(uri, headers, accepted.head.version),
        BadRequest::Syntax | BadRequest::TooLarge | BadRequest::TargetTooLong => false,
    }
}

/// Whether the first head of these bytes has a length, which hyper does not tell beside a coding.
fn has_length(rest: &[u8]) -> bool {
    let lines = rest.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    let mut head = lines.skip_while(|line| line.is_empty());
    head.by_ref()
        .take_while(|line| !line.is_empty())
        .any(|line| {
            let name = line.split(|byte| *byte == b':').next().unwrap_or_default();
            name.eq_ignore_ascii_case(b"content-length")
        })
}

/// RFC 9112 §3.2, word by word.
fn has_one_host(uri: &Uri, headers: &HeaderMap, version: http::Version) -> bool {
    let hosts: Vec<_> = headers.get_all(HOST).iter().collect();
    let is_host = |host: &[u8]| {
        let marks = b"-._~%!$&'()*+,;=:[]";
        host.iter()
            .all(|byte| byte.is_ascii_alphanumeric() || marks.contains(byte))
    };
    if let Some(authority) = uri.authority() {
        let host = host_of(authority.as_str()).as_bytes();
        if !is_host(host) || host.is_empty() || host[0] == b':' {
            return false;
        }
    }
    match hosts[..] {
        [] => version < http::Version::HTTP_11,
        [host] => is_host(host.as_bytes()),
        _ => false,
    }
}

fn host_of(authority: &str) -> &str {
    authority.rsplit('@').next().unwrap_or_default()
}

fn is_stricter(fault: Malformed) -> bool {
    match fault {
        Malformed::ChunkSize
        | Malformed::ChunkExtension
        | Malformed::TrailersTooLarge
        | Malformed::LineEnd => true,
        // Of an answer, or as hyper has it.
        _ => false,
    }
}

/// Whether it closes by a line of `Connection` that hyper does not read.
fn is_close_of_other_bytes(message: &ours::Message) -> bool {
    let is_ascii = |value: &[u8]| value.iter().all(|byte| matches!(byte, b'\t' | b' '..=b'~'));
    let mut lines = message.fields.iter();
    lines.any(|(name, value)| name == "connection" && !is_ascii(value))
}

/// hyper finds each request whole at its last byte, and not before; and keeps the connection where
/// ours does.
fn assert_ends_there(bytes: &[u8], messages: &[ours::Message]) {
    let ended = || {
        messages
            .iter()
            .filter_map(|message| Some((message, message.end?)))
    };
    let places: Vec<usize> = ended().flat_map(|(_, end)| [end - 1, end]).collect();
    let theirs = hyper::read_until(bytes, &places);
    for ((at, (message, end)), found) in ended().enumerate().zip(theirs.chunks(2)) {
        let [(before, _), (whole, is_open)] = *found else {
            unreachable!("two places each");
        };
        let context = || format!("{} ends at {end}: {found:?}", bytes.escape_ascii());
        assert_eq!((before, whole), (at, at + 1), "{}", context());
        let is_named = !message.keeps && is_close_of_other_bytes(message);
        assert!(
            is_open == message.keeps || is_named,
            "kept: {}, by hyper: {is_open}; {}",
            message.keeps,
            context()
        );
    }
}

fn assert_same(
    message: &ours::Message,
    theirs: &hyper::Message,
    bytes: &[u8],
    context: &impl Fn() -> String,
) {
    let head = &theirs.head;
    let rest = &bytes[message.begin..];
    let ours = (&*message.method, &*message.target, message.version);
    let target = target(&head.method, &head.uri, rest);
    let same = (head.method.as_str(), &*target, head.version);
    assert_eq!(ours, same, "{}", context());
    assert_eq!(
        sorted(message.fields.clone()),
        sorted(lines(&head.headers)),
        "{}",
        context()
    );
    let host = match head.uri.authority() {
        Some(authority) => Some(host_of(authority.as_str()).as_bytes()),
        None => head.headers.get(HOST).map(HeaderValue::as_bytes),
    };
    assert_eq!(message.host.as_deref(), host, "{}", context());
    assert_eq!(message.known, known(&head.headers), "{}", context());
    let length = match message.length {
        RequestLength::Empty => Some(0),
        RequestLength::Exact(length) => Some(length),
        RequestLength::Chunked => None,
    };
    assert_eq!(length, theirs.length, "{}", context());
    if message.end.is_some() {
        assert!(theirs.is_whole, "{}", context());
        assert_eq!(message.content, theirs.content, "{}", context());
        let trailers = theirs.trailers.as_ref().map(lines).unwrap_or_default();
        assert_eq!(message.trailers, trailers, "{}", context());
    } else {
        // Where it breaks, one of them may have read some more.
        let shorter = message.content.len().min(theirs.content.len());
        assert_eq!(
            message.content[..shorter],
            theirs.content[..shorter],
            "{}",
            context()
        );
    }
}

/// The fields by name, each length once.
fn sorted(mut fields: Vec<Field>) -> Vec<Field> {
    fields.sort_by(|(one, _), (other, _)| one.cmp(other));
    fields.dedup_by(|(one, _), (other, _)| one == other && one == "content-length");
    fields
}

/// The target that goes on: origin-form, or `*`.
fn target(method: &Method, uri: &Uri, rest: &[u8]) -> String {
    let path = uri.path_and_query().map_or("", |path| path.as_str());
    if uri.authority().is_none() {
        return path.to_owned();
    }
    if uri.scheme().is_none() {
        return String::new();
    }
    // As it was sent: hyper gives a path to a target without one.
    let mut words = rest.trim_ascii_start().split(|byte| *byte == b' ');
    let sent = std::str::from_utf8(words.nth(1).unwrap_or_default()).expect("a target");
    let (_, behind) = sent.split_once("://").expect("a scheme");
    let has_path = behind.find(['/', '?', '#']).map(|at| &behind[at..at + 1]);
    match has_path {
        None | Some("#") if *method == Method::OPTIONS => "*".to_owned(),
        Some("?") => format!("/{}", path.trim_start_matches('/')),
        _ => path.to_owned(),
    }
}

/// The rare fields, asked for one by one.
fn known(headers: &HeaderMap) -> Known {
    let other_site = |value: &HeaderValue| value == "cross-site" || value == "same-site";
    let expectations = headers.get_all("expect");
    let last = expectations.iter().next_back();
    let usual = ["", "close", "keep-alive", "upgrade", "te"];
    let mut options = headers
        .get_all(CONNECTION)
        .iter()
        .flat_map(|line| line.as_bytes().split(|byte| *byte == b','))
        .filter_map(|option| std::str::from_utf8(option).ok());
    Known {
        forwarded_for: headers.contains_key("x-forwarded-for"),
        forwarded_proto: headers.contains_key("x-forwarded-proto"),
        request_id: headers.contains_key("x-request-id"),
        other_site: headers.get_all("sec-fetch-site").iter().any(other_site),
        upgrade: headers.contains_key(UPGRADE),
        te: headers.contains_key(TE),
        expects_continue: last
            .is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue")),
        names_fields: options.any(|option| {
            let option = option.trim_matches([' ', '\t']).to_ascii_lowercase();
            !usual.contains(&&*option)
        }),
    }
}
