//! A request's head as those read it who only look: two kinds of it, that of hyper, and that of a
//! request which is answered before hyper (`refused_peer.rs`).

use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Version};

/// The fields of a head.
pub trait Fields {
    /// The values of one field, in their order.
    fn values_of(&self, name: &HeaderName) -> impl DoubleEndedIterator<Item = &[u8]>;
    /// Every field, its name in small letters or not.
    fn fields(&self) -> impl Iterator<Item = (&str, &[u8])>;
}

/// The head of a request.
pub trait Head: Fields {
    /// Its method.
    fn method(&self) -> &str;
    /// The path of its target.
    fn path(&self) -> &str;
    /// What follows the `?`.
    fn query(&self) -> Option<&str>;
    /// Of HTTP.
    fn version(&self) -> Version;
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

impl Fields for Parts {
    fn values_of(&self, name: &HeaderName) -> impl DoubleEndedIterator<Item = &[u8]> {
        self.headers.values_of(name)
    }

    fn fields(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.headers.fields()
    }
}

impl Head for Parts {
    fn method(&self) -> &str {
        self.method.as_str()
    }

    fn path(&self) -> &str {
        self.uri.path()
    }

    fn query(&self) -> Option<&str> {
        self.uri.query()
    }

    fn version(&self) -> Version {
        self.version
    }
}
