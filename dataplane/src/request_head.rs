//! The head of a request that is answered: as hyper read it, or as it was read before hyper.

use std::borrow::Cow;

use http::request::Parts;
use http::{HeaderMap, HeaderName, Method, Version};
use weir_shared::rules::Host;

use crate::head::{Fields, Head};
use crate::headers::origin_form;
use crate::plain::PlainHead;

/// The head of a request.
pub enum RequestHead {
    /// As hyper read it.
    Parts(Parts),
    /// A plain request's.
    Plain(PlainHead),
}

impl RequestHead {
    /// Its method.
    pub const fn verb(&self) -> &Method {
        match self {
            Self::Parts(parts) => &parts.method,
            Self::Plain(plain) => plain.verb(),
        }
    }

    /// The target the application is asked for: origin-form, or `*`.
    pub fn target(&self) -> Cow<'_, str> {
        match self {
            Self::Parts(parts) => origin_form(&parts.method, &parts.uri),
            Self::Plain(plain) => Cow::Borrowed(plain.target()),
        }
    }

    /// Where the rules find its `Host`.
    pub fn host(&self) -> Host<'_> {
        match self {
            Self::Parts(parts) => Host::Among(&parts.headers),
            Self::Plain(plain) => Host::Is(Some(plain.host())),
        }
    }

    /// Its fields as a map; none of a plain request, which asks nothing of its connection and has
    /// no body.
    pub const fn map(&self) -> Option<&HeaderMap> {
        match self {
            Self::Parts(parts) => Some(&parts.headers),
            Self::Plain(_) => None,
        }
    }

    const fn both(&self) -> (Option<&Parts>, Option<&PlainHead>) {
        match self {
            Self::Parts(parts) => (Some(parts), None),
            Self::Plain(plain) => (None, Some(plain)),
        }
    }
}

impl Fields for RequestHead {
    fn values_of(&self, name: &HeaderName) -> impl DoubleEndedIterator<Item = &[u8]> {
        let (parts, plain) = self.both();
        let of_parts = parts
            .into_iter()
            .flat_map(move |parts| parts.values_of(name));
        let of_plain = plain
            .into_iter()
            .flat_map(move |plain| plain.values_of(name));
        of_parts.chain(of_plain)
    }

    fn fields(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let (parts, plain) = self.both();
        let of_parts = parts.into_iter().flat_map(Fields::fields);
        let of_plain = plain.into_iter().flat_map(Fields::fields);
        of_parts.chain(of_plain)
    }
}

impl Head for RequestHead {
    fn method(&self) -> &str {
        self.verb().as_str()
    }

    fn path(&self) -> &str {
        match self {
            Self::Parts(parts) => parts.path(),
            Self::Plain(plain) => plain.path(),
        }
    }

    fn query(&self) -> Option<&str> {
        match self {
            Self::Parts(parts) => parts.query(),
            Self::Plain(plain) => plain.query(),
        }
    }

    fn version(&self) -> Version {
        match self {
            Self::Parts(parts) => parts.version,
            Self::Plain(plain) => plain.version(),
        }
    }
}
