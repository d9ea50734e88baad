//! The head of a request that is answered, as a text of its own: it outlives the bytes that it was
//! read into, and is the same for HTTP/1 and HTTP/2.

use http::header::HOST;
use http::request::Parts;
use http::{HeaderName, HeaderValue, Method, Version};

use crate::http1::request_head::ReadHead;
use crate::message::{Fields, Head, Known, RequestLength, sent_by_head};

/// The head of a request.
#[derive(Debug)]
pub struct RequestHead {
    /// Target and names, and the values too, unless `values` has them.
    text: Box<str>,
    /// The values, where a byte of them is no UTF-8, or the head was no text.
    values: Option<Box<[u8]>>,
    method: Method,
    version: Version,
    /// Where the target stands: path and query.
    target: Place,
    /// Bytes of the target that are its path.
    path: usize,
    /// Where each name and value stands.
    fields: Vec<(Place, Place)>,
    host: Option<Place>,
    length: RequestLength,
    known: Known,
}

/// A part of a head's text.
#[derive(Clone, Copy, Debug)]
struct Place {
    begin: u16,
    end: u16,
}

impl Place {
    /// Where a part of `text` stands in it.
    fn of(part: &[u8], text: &[u8]) -> Option<Self> {
        let begin = part.as_ptr().addr().checked_sub(text.as_ptr().addr())?;
        Self::at(begin, part.len())
    }

    fn at(begin: usize, length: usize) -> Option<Self> {
        Some(Self {
            begin: u16::try_from(begin).ok()?,
            end: u16::try_from(begin + length).ok()?,
        })
    }

    fn text(self, text: &str) -> &str {
        text.get(usize::from(self.begin)..usize::from(self.end))
            .unwrap_or_default()
    }

    fn bytes(self, bytes: &[u8]) -> &[u8] {
        bytes
            .get(usize::from(self.begin)..usize::from(self.end))
            .unwrap_or_default()
    }
}

impl RequestHead {
    /// A text of this head, which is the one that `bytes` begin with. None where it is too large.
    pub fn of(head: &ReadHead<'_>, bytes: &[u8]) -> Option<Self> {
        match std::str::from_utf8(bytes) {
            Ok(text) if head.is_as_written() => Self::as_written(head, text),
            _ => Self::assembled(head, (head.target(), head.path_length()), head.authority()),
        }
    }

    /// One copy of the bytes, in which everything stands where it stood.
    fn as_written(head: &ReadHead<'_>, text: &str) -> Option<Self> {
        let place = |part: &[u8]| Place::of(part, text.as_bytes());
        let mut fields = Vec::with_capacity(head.fields().size_hint().0);
        for (name, value) in head.fields() {
            fields.push((place(name.as_bytes())?, place(value)?));
        }
        Some(Self {
            values: None,
            method: head.method().clone(),
            version: head.version(),
            target: place(head.target().as_bytes())?,
            path: head.path_length(),
            host: match head.host() {
                Some(host) => Some(place(host)?),
                None => None,
            },
            length: head.length(),
            known: head.known(),
            fields,
            text: text.into(),
        })
    }

    /// The head of a stream of HTTP/2, made one of HTTP/1.1 (`http2/head.rs`), with a body of this
    /// length. None where it is too large.
    pub fn of_parts(parts: &Parts, length: RequestLength) -> Option<Self> {
        let target = match parts.uri.path_and_query() {
            Some(target) => target.as_str(),
            None => "",
        };
        let stream = Stream { parts, length };
        Self::assembled(&stream, (target, parts.uri.path().len()), None)
    }

    /// A text that is put together, with `host` in the place of each `Host`, if there is one.
    fn assembled(
        head: &impl Head,
        (target, path): (&str, usize),
        host: Option<&str>,
    ) -> Option<Self> {
        let mut size = host.map_or((0, 0, 0), |host| (1, HOST.as_str().len(), host.len()));
        for (name, value) in head.fields() {
            size = (size.0 + 1, size.1 + name.len(), size.2 + value.len());
        }
        let mut fields = Vec::with_capacity(size.0);
        let mut text = String::with_capacity(target.len() + size.1);
        let mut values = Vec::with_capacity(size.2);
        text.push_str(target);
        let mut put = |name: &str, value: &[u8]| {
            fields.push((
                Place::at(text.len(), name.len())?,
                Place::at(values.len(), value.len())?,
            ));
            text.push_str(name);
            values.extend_from_slice(value);
            Some(())
        };
        if let Some(host) = host {
            put(HOST.as_str(), host.as_bytes())?;
        }
        for (name, value) in head.fields() {
            if host.is_none() || !name.eq_ignore_ascii_case(HOST.as_str()) {
                put(name, value)?;
            }
        }
        let is_host = |(name, _): &&(Place, Place)| name.text(&text).eq_ignore_ascii_case("host");
        Some(Self {
            host: fields.iter().find(is_host).map(|(_, value)| *value),
            method: head.method().clone(),
            version: head.version(),
            target: Place::at(0, target.len())?,
            path,
            fields,
            length: head.length(),
            known: head.known(),
            text: text.into(),
            values: Some(values.into()),
        })
    }

    /// The target that the application is asked for: path and query, or `*`.
    pub fn target(&self) -> &str {
        self.target.text(&self.text)
    }

    fn value(&self, place: Place) -> &[u8] {
        match &self.values {
            None => place.bytes(self.text.as_bytes()),
            Some(values) => place.bytes(values),
        }
    }
}

sent_by_head!(RequestHead);

impl Head for RequestHead {
    fn method(&self) -> &Method {
        &self.method
    }

    fn path(&self) -> &str {
        self.target().get(..self.path).unwrap_or_default()
    }

    fn query(&self) -> Option<&str> {
        self.target().get(self.path + 1..)
    }

    fn version(&self) -> Version {
        self.version
    }

    fn host(&self) -> Option<&[u8]> {
        self.host.map(|host| self.value(host))
    }

    fn length(&self) -> RequestLength {
        self.length
    }

    fn known(&self) -> Known {
        self.known
    }
}

impl Fields for RequestHead {
    fn values_of(&self, name: &HeaderName) -> impl DoubleEndedIterator<Item = &[u8]> {
        let name = name.as_str();
        let named = self.fields.iter().filter(move |(place, _)| {
            let length = usize::from(place.end.wrapping_sub(place.begin));
            length == name.len() && place.text(&self.text).eq_ignore_ascii_case(name)
        });
        named.map(|(_, value)| self.value(*value))
    }

    fn fields(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let fields = self.fields.iter();
        fields.map(|(name, value)| (name.text(&self.text), self.value(*value)))
    }
}

/// The head of a stream while its text is made.
struct Stream<'a> {
    parts: &'a Parts,
    length: RequestLength,
}

sent_by_head!(Stream<'_>);

impl Head for Stream<'_> {
    fn method(&self) -> &Method {
        &self.parts.method
    }

    fn path(&self) -> &str {
        self.parts.uri.path()
    }

    fn query(&self) -> Option<&str> {
        self.parts.uri.query()
    }

    fn version(&self) -> Version {
        self.parts.version
    }

    fn host(&self) -> Option<&[u8]> {
        self.parts.headers.get(HOST).map(HeaderValue::as_bytes)
    }

    fn length(&self) -> RequestLength {
        self.length
    }

    fn known(&self) -> Known {
        Known::of(&self.parts.headers)
    }
}

impl Fields for Stream<'_> {
    fn values_of(&self, name: &HeaderName) -> impl DoubleEndedIterator<Item = &[u8]> {
        self.parts.headers.values_of(name)
    }

    fn fields(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.parts.headers.fields()
    }
}
