//! Which requests a limit or a jail counts (RULE-2, RULE-4).

use http::header::HOST;
use http::{HeaderMap, HeaderValue, Method};

use crate::path::covers;

/// What a rule is asked about.
#[derive(Clone, Copy, Debug)]
pub struct Asking<'a> {
    /// The path as the client wrote it.
    pub path: &'a str,
    /// The method.
    pub method: &'a Method,
    /// Where the `Host` field is.
    pub host: Host<'a>,
}

/// The `Host` of a request.
#[derive(Clone, Copy, Debug)]
pub enum Host<'a> {
    /// Among these fields; looked for only where a rule asks.
    Among(&'a HeaderMap),
    /// This, if it is there.
    Is(Option<&'a [u8]>),
}

impl<'a> Host<'a> {
    fn sent(self) -> Option<&'a str> {
        let sent = match self {
            Self::Among(fields) => fields.get(HOST).map(HeaderValue::as_bytes),
            Self::Is(sent) => sent,
        };
        sent.and_then(|sent| std::str::from_utf8(sent).ok())
    }
}

/// What a request must be like. What is absent matches every request.
#[derive(Clone, Debug, Default)]
pub struct Matcher {
    path: Option<PathMatch>,
    methods: Vec<Method>,
    host: Option<String>,
}

#[derive(Clone, Debug)]
enum PathMatch {
    /// By whole segments; without a slash at its end.
    Prefix(String),
    /// The whole path.
    Exact(String),
}

impl Matcher {
    /// A matcher; `path` with whether it is the whole path. Any method where there is none.
    pub fn new(path: Option<(&str, bool)>, methods: Vec<Method>, host: Option<&str>) -> Self {
        Self {
            path: path.map(|(path, exact)| {
                let path = crate::path::rule_form(path).into_owned();
                if exact {
                    PathMatch::Exact(path)
                } else {
                    PathMatch::Prefix(path.trim_end_matches('/').to_owned())
                }
            }),
            methods,
            host: host.map(|host| host_name(host).to_ascii_lowercase()),
        }
    }

    /// Whether it matches a request with this path in [`crate::path::rule_form`].
    pub fn matches(&self, path: &str, asking: &Asking<'_>) -> bool {
        let by_path = match &self.path {
            None => true,
            Some(PathMatch::Exact(whole)) => whole == path,
            Some(PathMatch::Prefix(prefix)) => covers(prefix, path),
        };
        by_path
            && (self.methods.is_empty() || self.methods.contains(asking.method))
            && self.host.as_ref().is_none_or(|host| {
                let sent = asking.host.sent();
                sent.is_some_and(|sent| host_name(sent).eq_ignore_ascii_case(host))
            })
    }

    /// The [`letter`] of every path that it can match; none where that is any.
    pub fn letter(&self) -> Option<u8> {
        match self.path.as_ref()? {
            PathMatch::Exact(path) => Some(letter(path)),
            PathMatch::Prefix(prefix) if prefix.is_empty() => None,
            PathMatch::Prefix(prefix) => Some(letter(prefix)),
        }
    }
}

/// The first letter behind the slash of a path; of the path `/` the slash.
pub fn letter(path: &str) -> u8 {
    path.as_bytes().get(1).copied().unwrap_or(b'/')
}

/// A host without its port and without the dot of the root.
fn host_name(host: &str) -> &str {
    let name = match host.rsplit_once(':') {
        // A colon inside of brackets is of an IPv6 address.
        Some((name, port)) if !port.contains(']') => name,
        _ => host,
    };
    name.strip_suffix('.').unwrap_or(name)
}
