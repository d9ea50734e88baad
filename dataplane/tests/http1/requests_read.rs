//! The requests of one connection, as the parser of heads and the decoder of bodies read them. The
//! tests and the fuzz target share this file.

use std::fmt::{self, Display, Formatter};
use std::mem::MaybeUninit;

use http::{HeaderMap, HeaderName, StatusCode, Version};
use weir_dataplane::http1::MAX_FIELDS;
use weir_dataplane::http1::Malformed;
use weir_dataplane::http1::body::Decoder;
use weir_dataplane::http1::request::{BadRequest, parse};
use weir_dataplane::message::{Fields as _, Head, Known, Read, RequestLength};

/// A name and a value.
pub type Field = (String, Vec<u8>);

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub method: String,
    /// Origin-form, or `*`; empty for an authority alone.
    pub target: String,
    pub version: Version,
    /// The name in small letters, in the order they came.
    pub fields: Vec<Field>,
    pub host: Option<Vec<u8>>,
    pub known: Known,
    pub length: RequestLength,
    /// Whether another request may follow.
    pub keeps: bool,
    pub content: Vec<u8>,
    pub trailers: Vec<Field>,
    /// Where it begins in the bytes of the connection, with the empty lines before it.
    pub begin: usize,
    /// Where it ends, once it has.
    pub end: Option<usize>,
}

/// What stands behind the last request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Nothing, or the beginning of another head.
    Open,
    /// The last request is not whole yet.
    InBody,
    /// The last request asked to close: what follows is not read.
    Closed,
    /// No head of a request.
    Refused(BadRequest),
    /// The body of the last request is malformed.
    Broken(Malformed),
}

/// All that a connection's bytes say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    pub messages: Vec<Message>,
    pub end: End,
}

/// Reads a connection. `cuts` are the places where one read ends and the next begins, in order.
pub fn read(bytes: &[u8], cuts: &[usize]) -> Connection {
    let mut reader = Reader::default();
    let mut from = 0;
    for end in cuts.iter().copied().chain([bytes.len()]) {
        reader.take(&bytes[from..end]);
        from = end;
    }
    reader.connection()
}

/// The status of a refusal.
pub const fn status(fault: BadRequest) -> StatusCode {
    match fault {
        BadRequest::TooLarge => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
        BadRequest::TargetTooLong => StatusCode::URI_TOO_LONG,
        _ => StatusCode::BAD_REQUEST,
    }
}

#[derive(Default)]
struct Reader {
    /// Bytes that were read and belong to nothing yet.
    buffer: Vec<u8>,
    /// Where they begin in the connection.
    at: usize,
    messages: Vec<Message>,
    /// Of the last message.
    body: Option<Decoder>,
    /// Why nothing more is read.
    end: Option<End>,
}

impl Reader {
    fn take(&mut self, read: &[u8]) {
        self.buffer.extend_from_slice(read);
        // Each step consumes something or waits.
        while self.end.is_none() && (!self.buffer.is_empty() || self.is_at_end_of_body()) {
            let before = (self.at, self.body.is_some());
            match self.body.take() {
                Some(decoder) => self.read_body(decoder),
                None => self.read_head(),
            }
            if (self.at, self.body.is_some()) == before {
                return;
            }
        }
    }

    fn is_at_end_of_body(&self) -> bool {
        self.body.as_ref().is_some_and(Decoder::is_end)
    }

    fn read_head(&mut self) {
        let mut space = [const { MaybeUninit::uninit() }; MAX_FIELDS];
        let (head, length) = match parse(&self.buffer, &mut space) {
            Ok(Some(whole)) => whole,
            Ok(None) => return,
            Err(fault) => {
                self.end = Some(End::Refused(fault));
                return;
            }
        };
        assert!(0 < length && length <= self.buffer.len());
        let message = message(&head, self.at);
        assert_eq!(message.length.is_empty(), {
            let decoder = Decoder::of_request(message.length);
            decoder.is_end()
        });
        self.body = Some(Decoder::of_request(message.length));
        self.messages.push(message);
        self.consume(length);
    }

    fn read_body(&mut self, mut decoder: Decoder) {
        let behind = self.buffer.clone();
        let decoded = match decoder.decode(&mut self.buffer) {
            Ok(decoded) => decoded,
            Err(fault) => {
                self.end = Some(End::Broken(fault));
                return;
            }
        };
        assert!(decoded.content.end <= decoded.consumed);
        assert!(decoded.consumed == self.buffer.len() || decoder.is_end());
        // What belongs to the next request is left as it came.
        assert_eq!(self.buffer[decoded.consumed..], behind[decoded.consumed..]);
        let last = self.messages.last_mut().expect("a body has a head");
        last.content
            .extend_from_slice(&self.buffer[decoded.content]);
        self.consume(decoded.consumed);
        if !decoder.is_end() {
            self.body = Some(decoder);
            return;
        }
        let last = self.messages.last_mut().expect("a body has a head");
        last.end = Some(self.at);
        last.trailers = decoder
            .take_trailers()
            .map(|map| lines(&map))
            .unwrap_or_default();
        self.end = (!last.keeps).then_some(End::Closed);
    }

    fn consume(&mut self, bytes: usize) {
        self.buffer.drain(..bytes);
        self.at += bytes;
    }

    fn connection(self) -> Connection {
        let under_way = match self.body {
            Some(_) => End::InBody,
            None => End::Open,
        };
        Connection {
            messages: self.messages,
            end: self.end.unwrap_or(under_way),
        }
    }
}

fn message(head: &Head<Read<'_>>, begin: usize) -> Message {
    let query = head.query().map(|query| format!("?{query}"));
    let parts = format!("{}{}", head.path(), query.unwrap_or_default());
    assert_eq!(parts, head.target(), "the target is its path and its query");
    let fields: Vec<Field> = head
        .fields()
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_vec()))
        .collect();
    for (name, _) in head.fields() {
        let named = head
            .fields()
            .filter(|(other, _)| other.eq_ignore_ascii_case(name));
        let name = HeaderName::from_bytes(name.as_bytes()).expect("a name");
        assert!(head.values_of(&name).eq(named.map(|(_, value)| value)));
    }
    // What `Connection` says is noted apart.
    let known = Known {
        names_fields: false,
        ..head.known
    };
    assert_eq!(known, Known::of(head));
    Message {
        method: head.method.to_string(),
        target: parts,
        version: head.version,
        fields,
        host: head.host().map(<[u8]>::to_vec),
        known: head.known,
        length: head.length,
        keeps: head.keeps,
        content: Vec::new(),
        trailers: Vec::new(),
        begin,
        end: None,
    }
}

/// The fields of a map, grouped by name.
pub fn lines(map: &HeaderMap) -> Vec<Field> {
    map.iter()
        .map(|(name, value)| (name.to_string(), value.as_bytes().to_vec()))
        .collect()
}

/// `POST /a hello close; 400 Framing`: the requests, each with its content, where it has one, and
/// whether it closes; and why nothing more is read, if nothing is.
impl Display for Connection {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut parts: Vec<String> = self.messages.iter().map(one).collect();
        match self.end {
            End::Open | End::Closed => {}
            End::InBody => parts.push("...".to_owned()),
            End::Refused(fault) => parts.push(format!("{} {fault:?}", status(fault).as_str())),
            End::Broken(fault) => parts.push(format!("{fault:?}")),
        }
        f.write_str(&parts.join("; "))
    }
}

fn one(message: &Message) -> String {
    let mut text = format!("{} {}", message.method, message.target);
    if !message.content.is_empty() {
        text += &format!(" {}", message.content.escape_ascii());
    }
    if !message.keeps {
        text += " close";
    }
    text
}
