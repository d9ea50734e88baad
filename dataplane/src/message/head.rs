//! The head of a request, whichever HTTP it came in: in the bytes that it was read into while it is
//! judged, and as a text of its own once it goes on.

use std::borrow::Cow;

use http::header::HOST;
use http::request::Parts;
use http::{HeaderName, Method, Version};
use httparse::Header;
use weir_shared::rules::{Sent, Told};

use crate::message::{Fields, Known, RequestLength};

/// The head of a request.
#[derive(Debug)]
pub struct Head<'a> {
    /// Its method.
    pub method: Method,
    /// HTTP/1.0, HTTP/1.1 or HTTP/2.
    pub version: Version,
    /// How long the body is.
    pub length: RequestLength,
    /// Which of the rare fields are there.
    pub known: Known,
    /// Whether the client lets another request follow on the connection (RFC 9112 §9.3).
    pub keeps: bool,
    /// Bytes of the target that are its path.
    pub(crate) path: usize,
    pub(crate) form: Form<'a>,
}

/// Where the target, the host and the fields of a head stand.
#[derive(Debug)]
pub(crate) enum Form<'a> {
    Read(Read<'a>),
    Own(Own),
}

/// A head in the bytes that it was read into.
#[derive(Debug)]
pub(crate) struct Read<'a> {
    pub bytes: &'a [u8],
    /// Origin-form, or `*`; empty for CONNECT.
    pub target: Cow<'a, str>,
    /// The first `Host`.
    pub host: Option<&'a [u8]>,
    /// The host of an absolute target, which replaces `Host` (RFC 9112 §3.2.2).
    pub authority: Option<Box<str>>,
    pub fields: &'a [Header<'a>],
}

/// A head as a text of its own.
#[derive(Debug)]
pub(crate) struct Own {
    /// Target and names, and the values too, unless `values` has them.
    text: Box<str>,
    /// The values, where a byte of them is no UTF-8, or the head was no text.
    values: Option<Box<[u8]>>,
    target: Place,
    /// Where each name and value stands.
    fields: Vec<(Place, Place)>,
    host: Option<Place>,
}

/// A part of a head's text.
#[derive(Clone, Copy, Debug)]
struct Place {
    begin: u16,
    end: u16,
}

impl Place {
    /// Where a part of `text` stands in it.
    fn of(part: &[u8], text: &str) -> Option<Self> {
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

impl Read<'_> {
    /// One copy of the bytes, in which everything stands where it stood, if they can be that.
    fn into_own(self) -> Option<Own> {
        let (Cow::Borrowed(target), None, Ok(text)) =
            (&self.target, &self.authority, str::from_utf8(self.bytes))
        else {
            let fields = || self.fields.iter().map(|field| (field.name, field.value));
            return Own::assembled(&self.target, self.authority.as_deref(), fields);
        };
        let mut fields = Vec::with_capacity(self.fields.len());
        for field in self.fields {
            let name = Place::of(field.name.as_bytes(), text)?;
            fields.push((name, Place::of(field.value, text)?));
        }
        Some(Own {
            values: None,
            target: Place::of(target.as_bytes(), text)?,
            host: match self.host {
                Some(host) => Some(Place::of(host, text)?),
                None => None,
            },
            fields,
            text: text.into(),
        })
    }
}

impl Own {
    /// A text that is put together, with `host` in the place of each `Host`, if there is one.
    fn assembled<'a, I: Iterator<Item = (&'a str, &'a [u8])>>(
        target: &str,
        host: Option<&'a str>,
        fields: impl Fn() -> I,
    ) -> Option<Self> {
        let is_host = |name: &str| name.eq_ignore_ascii_case("host");
        let all = || {
            let given = host.map(|host| ("host", host.as_bytes()));
            let kept = fields().filter(|(name, _)| host.is_none() || !is_host(name));
            given.into_iter().chain(kept)
        };
        let mut size = (0, target.len(), 0);
        for (name, value) in all() {
            size = (size.0 + 1, size.1 + name.len(), size.2 + value.len());
        }
        let mut fields = Vec::with_capacity(size.0);
        let mut text = String::with_capacity(size.1);
        let mut values = Vec::with_capacity(size.2);
        text.push_str(target);
        for (name, value) in all() {
            let name_at = Place::at(text.len(), name.len())?;
            fields.push((name_at, Place::at(values.len(), value.len())?));
            text.push_str(name);
            values.extend_from_slice(value);
        }
        let host = fields.iter().find(|(name, _)| is_host(name.text(&text)));
        Some(Self {
            host: host.map(|(_, value)| *value),
            target: Place::at(0, target.len())?,
            fields,
            text: text.into(),
            values: Some(values.into()),
        })
    }

    fn value(&self, place: Place) -> &[u8] {
        let values = self.values.as_deref();
        place.bytes(values.unwrap_or(self.text.as_bytes()))
    }
}

impl Head<'_> {
    /// The head of a stream of HTTP/2, made one of HTTP/1.1 (`http2/service.rs`), with a body of
    /// this length. None where it is too large.
    pub fn of_parts(parts: &Parts, length: RequestLength) -> Option<Head<'static>> {
        let target = parts.uri.path_and_query();
        let target = target.map_or("", |target| target.as_str());
        Some(Head {
            method: parts.method.clone(),
            version: parts.version,
            length,
            known: Known::of(&parts.headers),
            keeps: true,
            path: parts.uri.path().len(),
            form: Form::Own(Own::assembled(target, None, || parts.headers.fields())?),
        })
    }

    /// The same as a text of its own. None where it is too large.
    pub fn into_own(self) -> Option<Head<'static>> {
        let own = match self.form {
            Form::Read(read) => read.into_own()?,
            Form::Own(own) => own,
        };
        Some(Head {
            method: self.method,
            version: self.version,
            length: self.length,
            known: self.known,
            keeps: self.keeps,
            path: self.path,
            form: Form::Own(own),
        })
    }

    /// The target that the application is asked for: path and query, or `*`.
    pub fn target(&self) -> &str {
        match &self.form {
            Form::Read(read) => &read.target,
            Form::Own(own) => own.target.text(&own.text),
        }
    }

    /// The path of its target.
    pub fn path(&self) -> &str {
        self.target().get(..self.path).unwrap_or_default()
    }

    /// What follows the `?`.
    pub fn query(&self) -> Option<&str> {
        self.target().get(self.path + 1..)
    }

    /// `Host`, or the host of an absolute target, which replaces it.
    pub fn host(&self) -> Option<&[u8]> {
        match &self.form {
            Form::Read(read) => match &read.authority {
                Some(authority) => Some(authority.as_bytes()),
                None => read.host,
            },
            Form::Own(own) => own.host.map(|host| own.value(host)),
        }
    }

    const fn count(&self) -> usize {
        match &self.form {
            Form::Read(read) => read.fields.len(),
            Form::Own(own) => own.fields.len(),
        }
    }

    fn field(&self, at: usize) -> (&str, &[u8]) {
        match &self.form {
            Form::Read(read) => {
                let field = read.fields.get(at);
                field.map(|field| (field.name, field.value))
            }
            Form::Own(own) => {
                let field = own.fields.get(at);
                field.map(|(name, value)| (name.text(&own.text), own.value(*value)))
            }
        }
        .unwrap_or_default()
    }
}

impl Fields for Head<'_> {
    fn values_of(&self, name: &HeaderName) -> impl DoubleEndedIterator<Item = &[u8]> {
        let name = name.as_str();
        let named = (0..self.count()).map(|at| self.field(at));
        let named = named.filter(move |(each, _)| each.eq_ignore_ascii_case(name));
        named.map(|(_, value)| value)
    }

    fn fields(&self) -> impl Iterator<Item = (&str, &[u8])> {
        (0..self.count()).map(|at| self.field(at))
    }
}

/// What the rules ask of a head is what it says.
impl Sent for Head<'_> {
    fn host_sent(&self) -> Option<&[u8]> {
        self.host()
    }

    fn query_sent(&self) -> Told<Option<&str>> {
        Told::Known(self.query())
    }

    fn each_line(&self, name: &HeaderName, see: &mut dyn FnMut(&[u8])) -> Told<()> {
        // The application gets the host of an absolute target, whatever the field says.
        if *name == HOST {
            self.host().into_iter().for_each(see);
        } else {
            self.values_of(name).for_each(see);
        }
        Told::Known(())
    }
}
