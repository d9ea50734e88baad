//! HTTP of no version and of no socket: the head of a request, its fields, its length.
//!
//! A head stands in the bytes that it was read into while it is judged, and is a text of its own
//! once it goes on.

pub mod fields;

use std::borrow::Cow;

use bytes::Bytes;
use http::header::HOST;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Version};
use httparse::Header;
use weir_shared::rules::{Sent, Told, is_read_as};

/// The fields of a head.
pub trait Fields {
    /// The values of one field, in their order.
    fn values_of(&self, name: &HeaderName) -> impl DoubleEndedIterator<Item = &[u8]>;
    /// Every field, its name in small letters or not.
    fn fields(&self) -> impl Iterator<Item = (&str, &[u8])>;
}

impl Fields for HeaderMap {
    fn values_of(&self, name: &HeaderName) -> impl DoubleEndedIterator<Item = &[u8]> {
        let values = self.get_all(name).into_iter();
        values.map(HeaderValue::as_bytes)
    }

    fn fields(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let fields = self.iter();
        fields.map(|(name, value)| (name.as_str(), value.as_bytes()))
    }
}

/// How long the body of a request is. No request's body lasts until its connection closes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RequestLength {
    /// Nothing is said: there is no body.
    #[default]
    Empty,
    /// `Content-Length`
    Exact(u64),
    /// Known at its end alone: `Transfer-Encoding: chunked`, or a stream of HTTP/2 without a
    /// length.
    Chunked,
}

impl RequestLength {
    /// Whether no byte of a body follows.
    pub const fn is_empty(self) -> bool {
        matches!(self, Self::Empty | Self::Exact(0))
    }

    /// The length that was announced.
    pub const fn announced(self) -> Option<u64> {
        match self {
            Self::Exact(length) => Some(length),
            Self::Empty | Self::Chunked => None,
        }
    }
}

/// A piece of a body, out of its framing.
#[derive(Debug)]
pub enum Piece {
    /// Content.
    Data(Bytes),
    /// The fields behind the content; the last piece.
    Trailers(HeaderMap),
}

/// Whether the name of a field is this one, in any spelling of its letters; no other mark of a name
/// becomes a letter or a dash by the bit. A known length is compared in a few words, where the
/// comparison of the library goes byte by byte.
#[inline(always)]
pub fn is<const LENGTH: usize>(name: &str, small: &[u8; LENGTH]) -> bool {
    <&[u8; LENGTH]>::try_from(name.as_bytes()).is_ok_and(|name| {
        let bytes = name.iter().zip(small);
        bytes.fold(0, |differs, (byte, small)| {
            differs | ((byte | 0x20) ^ small)
        }) == 0
    })
}

/// The rare fields of a head that many ask for, noted in one pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Known {
    /// `X-Forwarded-For`
    pub forwarded_for: bool,
    /// `X-Forwarded-Proto`
    pub forwarded_proto: bool,
    /// `X-Request-ID`
    pub request_id: bool,
    /// `Sec-Fetch-Site` with the value of a request that the page of another site had a browser
    /// make, be it a site of the same owner (Fetch Metadata, section 2.4).
    pub other_site: bool,
    /// `Upgrade`
    pub upgrade: bool,
    /// `TE`
    pub te: bool,
    /// `Expect: 100-continue`
    pub expects_continue: bool,
    /// A `Connection` that names fields (RFC 9110 §7.6.1).
    pub names_fields: bool,
}

impl Known {
    /// Notes a field, if it is one of those; `Connection` is read by who knows what it means.
    pub fn note(&mut self, name: &str, value: &[u8]) {
        // The length tells most names apart at once.
        match name.len() {
            2 => self.te |= is(name, b"te"),
            6 if is(name, b"expect") => {
                self.expects_continue = value.eq_ignore_ascii_case(b"100-continue");
            }
            7 => self.upgrade |= is(name, b"upgrade"),
            12 => self.request_id |= is(name, b"x-request-id"),
            14 if is(name, b"sec-fetch-site") => {
                self.other_site |= matches!(value, b"cross-site" | b"same-site");
            }
            15 => self.forwarded_for |= is(name, b"x-forwarded-for"),
            17 => self.forwarded_proto |= is(name, b"x-forwarded-proto"),
            _ => {}
        }
    }

    /// Those among these fields.
    pub fn of(fields: &impl Fields) -> Self {
        let mut known = Self::default();
        for (name, value) in fields.fields() {
            known.note(name, value);
        }
        known
    }
}

/// The head of a request, in one of two forms.
#[derive(Debug)]
pub struct Head<F> {
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
    pub(crate) form: F,
}

/// Where the target, the host and the fields of a head stand.
pub trait Form: Fields {
    /// The target that the application is asked for: path and query, or `*`.
    fn target(&self) -> &str;
    /// `Host`, or the host of an absolute target, which replaces it.
    fn host(&self) -> Option<&[u8]>;
    /// The head as a text of its own. None where it is too large.
    fn into_own(self) -> Option<Own>;
}

/// A head in the bytes that it was read into.
#[derive(Debug)]
pub struct Read<'a> {
    pub(crate) bytes: &'a [u8],
    /// Origin-form, or `*`; empty for CONNECT.
    pub(crate) target: Cow<'a, str>,
    /// The first `Host`.
    pub(crate) host: Option<&'a [u8]>,
    /// The host of an absolute target, which replaces `Host` (RFC 9112 §3.2.2).
    pub(crate) authority: Option<Box<str>>,
    pub(crate) fields: &'a [Header<'a>],
}

/// A head as a text of its own.
#[derive(Debug)]
pub struct Own {
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

impl Form for Read<'_> {
    fn target(&self) -> &str {
        &self.target
    }

    fn host(&self) -> Option<&[u8]> {
        let authority = self.authority.as_deref().map(str::as_bytes);
        authority.or(self.host)
    }

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

impl Form for Own {
    fn target(&self) -> &str {
        self.target.text(&self.text)
    }

    fn host(&self) -> Option<&[u8]> {
        self.host.map(|host| self.value(host))
    }

    fn into_own(self) -> Option<Own> {
        Some(self)
    }
}

impl Fields for Own {
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

impl Fields for Read<'_> {
    fn values_of(&self, name: &HeaderName) -> impl DoubleEndedIterator<Item = &[u8]> {
        let name = name.as_str();
        let fields = self.fields.iter();
        let named = fields.filter(move |field| field.name.eq_ignore_ascii_case(name));
        named.map(|field| field.value)
    }

    fn fields(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.fields.iter().map(|field| (field.name, field.value))
    }
}

impl Head<Own> {
    /// The head of a stream of HTTP/2, made one of HTTP/1.1 (`http2/service.rs`), with a body of
    /// this length. None where it is too large.
    pub fn of_parts(parts: &Parts, length: RequestLength) -> Option<Self> {
        let target = parts.uri.path_and_query();
        let target = target.map_or("", |target| target.as_str());
        Some(Self {
            method: parts.method.clone(),
            version: parts.version,
            length,
            known: Known::of(&parts.headers),
            keeps: true,
            path: parts.uri.path().len(),
            form: Own::assembled(target, None, || parts.headers.fields())?,
        })
    }
}

impl<F: Form> Head<F> {
    /// The head as a text of its own. None where it is too large.
    pub fn into_own(self) -> Option<Head<Own>> {
        Some(Head {
            method: self.method,
            version: self.version,
            length: self.length,
            known: self.known,
            keeps: self.keeps,
            path: self.path,
            form: self.form.into_own()?,
        })
    }

    /// The target that the application is asked for: path and query, or `*`.
    pub fn target(&self) -> &str {
        self.form.target()
    }

    /// The path of its target.
    pub fn path(&self) -> &str {
        self.target().get(..self.path).unwrap_or_default()
    }

    /// The query, without its `?`.
    pub fn query(&self) -> Option<&str> {
        self.target().get(self.path + 1..)
    }

    /// `Host`, or the host of an absolute target, which replaces it.
    pub fn host(&self) -> Option<&[u8]> {
        self.form.host()
    }
}

impl<F: Form> Fields for Head<F> {
    fn values_of(&self, name: &HeaderName) -> impl DoubleEndedIterator<Item = &[u8]> {
        self.form.values_of(name)
    }

    fn fields(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.form.fields()
    }
}

/// What the rules ask of a head is what it says.
impl<F: Form> Sent for Head<F> {
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

    fn each_spelling(&self, name: &HeaderName, see: &mut dyn FnMut(&[u8])) -> Told<()> {
        if *name == HOST {
            return self.each_line(name, see);
        }
        self.fields()
            .filter(|(field, _)| is_read_as(field, name.as_str()))
            .for_each(|(_, value)| see(value));
        Told::Known(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each of the rare fields is noted by its name alone, in any spelling, and nothing else is.
    #[test]
    fn rare_fields_are_noted() {
        let of = |name: &'static str, value: &'static str| {
            let mut headers = HeaderMap::new();
            for (name, value) in [
                ("user-agent", "x"),
                ("x-forwarded-host2", "x"),
                (name, value),
            ] {
                let name = HeaderName::try_from(name).unwrap();
                headers.insert(name, HeaderValue::from_static(value));
            }
            Known::of(&headers)
        };
        assert_eq!(of("x-request-i2", "x"), Known::default());
        assert_eq!(of("sec-fetch-site", "same-origin"), Known::default());
        let noted = |note: fn(&mut Known)| {
            let mut known = Known::default();
            note(&mut known);
            known
        };
        for (name, value, expected) in [
            ("TE", "x", noted(|known| known.te = true)),
            ("Upgrade", "x", noted(|known| known.upgrade = true)),
            ("X-Request-ID", "x", noted(|known| known.request_id = true)),
            (
                "X-Forwarded-For",
                "x",
                noted(|known| known.forwarded_for = true),
            ),
            (
                "X-Forwarded-Proto",
                "x",
                noted(|known| known.forwarded_proto = true),
            ),
            (
                "Sec-Fetch-Site",
                "cross-site",
                noted(|known| known.other_site = true),
            ),
            (
                "sec-fetch-site",
                "same-site",
                noted(|known| known.other_site = true),
            ),
        ] {
            assert_eq!(of(name, value), expected, "{name}");
        }
        assert!(of("expect", "100-Continue").expects_continue);
    }
}
