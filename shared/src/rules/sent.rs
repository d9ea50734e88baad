//! The parts of a request beside path and method that rules may ask for (MATCH-1).

use std::fmt;
use std::net::IpAddr;

use http::header::HOST;
use http::{HeaderMap, HeaderName, HeaderValue, Method};

/// The request that rules are asked about.
#[derive(Clone, Copy, Debug)]
pub struct Asking<'a> {
    /// The path as the client wrote it.
    pub path: &'a str,
    /// The method.
    pub method: &'a Method,
    /// The client's address.
    pub address: IpAddr,
    /// The other parts, read only if a rule asks for them.
    pub sent: &'a dyn Sent,
}

/// The other parts of a head. Unknown parts of a past request match nothing.
pub trait Sent {
    /// `Host`, or the host of an absolute target.
    fn host_sent(&self) -> Option<&[u8]>;

    /// What follows the `?` of the target.
    fn query_sent(&self) -> Told<Option<&str>>;

    /// Tells `see` each line of a field, in order.
    fn each_line(&self, name: &HeaderName, see: &mut dyn FnMut(&[u8])) -> Told<()>;

    /// Passes also the lines of fields that some application reads as this one ([`is_read_as`]).
    fn each_spelling(&self, name: &HeaderName, see: &mut dyn FnMut(&[u8])) -> Told<()>;
}

/// Whether an application may read this name as `dashed`, which is in small letters (FORWARD-8):
/// CGI turns every other mark into an underscore.
#[inline]
pub fn is_read_as(name: &str, dashed: &str) -> bool {
    let is_same = |(byte, dashed): (u8, u8)| {
        byte.to_ascii_lowercase() == dashed || (dashed == b'-' && !byte.is_ascii_alphanumeric())
    };
    name.len() == dashed.len() && name.bytes().zip(dashed.bytes()).all(is_same)
}

/// The known parts of the head of a request from a log or a question.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Remembered {
    /// Its fields, `Host` among them.
    pub fields: HeaderMap,
    /// What follows the `?` of its target.
    pub query: Told<Option<String>>,
    /// The fields of which it is known whether they were sent; none if that is known of all.
    pub known: Option<&'static [&'static str]>,
}

impl Sent for Remembered {
    fn host_sent(&self) -> Option<&[u8]> {
        self.fields.host_sent()
    }

    fn query_sent(&self) -> Told<Option<&str>> {
        match &self.query {
            Told::Known(query) => Told::Known(query.as_deref()),
            Told::Unknown => Told::Unknown,
        }
    }

    fn each_line(&self, name: &HeaderName, see: &mut dyn FnMut(&[u8])) -> Told<()> {
        let is_known = self
            .known
            .is_none_or(|known| known.contains(&name.as_str()));
        if !is_known && !self.fields.contains_key(name) {
            return Told::Unknown;
        }
        self.fields.each_line(name, see)
    }

    fn each_spelling(&self, name: &HeaderName, see: &mut dyn FnMut(&[u8])) -> Told<()> {
        self.fields.each_spelling(name, see);
        self.each_line(name, &mut |_| {})
    }
}

/// A part of a request, if it is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Told<T> {
    /// It is.
    Known(T),
    /// A log does not hold it.
    Unknown,
}

impl<T: Default> Default for Told<T> {
    fn default() -> Self {
        Self::Known(T::default())
    }
}

impl fmt::Debug for dyn Sent + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a head")
    }
}

/// Fields alone: without a query.
impl Sent for HeaderMap {
    fn host_sent(&self) -> Option<&[u8]> {
        self.get(HOST).map(HeaderValue::as_bytes)
    }

    fn query_sent(&self) -> Told<Option<&str>> {
        Told::Known(None)
    }

    fn each_line(&self, name: &HeaderName, see: &mut dyn FnMut(&[u8])) -> Told<()> {
        for value in self.get_all(name) {
            see(value.as_bytes());
        }
        Told::Known(())
    }

    fn each_spelling(&self, name: &HeaderName, see: &mut dyn FnMut(&[u8])) -> Told<()> {
        for (held, value) in self {
            if is_read_as(held.as_str(), name.as_str()) {
                see(value.as_bytes());
            }
        }
        Told::Known(())
    }
}

/// Nothing but path and method.
impl Sent for () {
    fn host_sent(&self) -> Option<&[u8]> {
        None
    }

    fn query_sent(&self) -> Told<Option<&str>> {
        Told::Known(None)
    }

    fn each_line(&self, _name: &HeaderName, _see: &mut dyn FnMut(&[u8])) -> Told<()> {
        Told::Known(())
    }

    fn each_spelling(&self, _name: &HeaderName, _see: &mut dyn FnMut(&[u8])) -> Told<()> {
        Told::Known(())
    }
}
