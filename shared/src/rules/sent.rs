//! What a request says of itself beside path and method, as far as a rule asks for it (MATCH-1).

use std::fmt;
use std::net::IpAddr;

use http::header::HOST;
use http::{HeaderMap, HeaderName, HeaderValue, Method};

/// What a rule is asked about.
#[derive(Clone, Copy, Debug)]
pub struct Asking<'a> {
    /// The path as the client wrote it.
    pub path: &'a str,
    /// The method.
    pub method: &'a Method,
    /// Who asks.
    pub address: IpAddr,
    /// The rest, looked for only where a rule asks.
    pub sent: &'a dyn Sent,
}

/// The rest of a head. What is not known of a request of the past matches nothing.
pub trait Sent {
    /// `Host`, or the host of an absolute target.
    fn host_sent(&self) -> Option<&[u8]>;

    /// What follows the `?` of the target.
    fn query_sent(&self) -> Told<Option<&str>>;

    /// Tells `see` each line of a field, in order.
    fn each_line(&self, name: &HeaderName, see: &mut dyn FnMut(&[u8])) -> Told<()>;

    /// The same, with the lines of fields that some application takes for this one
    /// ([`is_read_as`]).
    fn each_spelling(&self, name: &HeaderName, see: &mut dyn FnMut(&[u8])) -> Told<()>;
}

/// Whether a name is this one, which is in small letters, to an application that reads every other
/// mark as a dash (FORWARD-8): CGI makes underscores of all of them.
#[inline]
pub fn is_read_as(name: &str, dashed: &str) -> bool {
    let is_same = |(byte, dashed): (u8, u8)| {
        byte.to_ascii_lowercase() == dashed || (dashed == b'-' && !byte.is_ascii_alphanumeric())
    };
    name.len() == dashed.len() && name.bytes().zip(dashed.bytes()).all(is_same)
}

/// What is known of the head of a request that is not there: of a log, or of a question.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Remembered {
    /// Its fields, `Host` among them.
    pub fields: HeaderMap,
    /// What follows the `?` of its target.
    pub query: Told<Option<String>>,
    /// Fields of which it is known whether they were sent; none where that is known of all.
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

/// Something of a request, if it is known.
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
