//! Which requests a limit or a jail counts (RULE-2, RULE-4).

use http::header::HOST;
use http::{HeaderMap, HeaderValue, Method};

use super::paths::Reach;
use super::spelling::Case;

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
    path: Option<RulePath>,
    methods: Vec<Method>,
    host: Option<String>,
}

/// The path of a rule, as written.
#[derive(Clone, Debug)]
pub(super) struct RulePath {
    pub(super) path: String,
    pub(super) case: Case,
    pub(super) reach: Reach,
}

impl Matcher {
    /// A matcher; `path` with whether it is the whole path. Any method where there is none.
    pub fn new(path: Option<(&str, bool)>, methods: Vec<Method>, host: Option<&str>) -> Self {
        Self {
            path: path.map(|(path, exact)| RulePath {
                path: path.to_owned(),
                case: Case::default(),
                reach: if exact { Reach::Itself } else { Reach::Below },
            }),
            methods,
            host: host.map(|host| host_name(host).to_ascii_lowercase()),
        }
    }

    /// The same, where the case of letters in the path counts or not.
    #[must_use]
    pub fn with_case(mut self, case: Case) -> Self {
        if let Some(path) = &mut self.path {
            path.case = case;
        }
        self
    }

    /// Its path; the tree of all paths is asked about it (`paths.rs`).
    pub(super) const fn path(&self) -> Option<&RulePath> {
        self.path.as_ref()
    }

    /// Whether it matches a request whose path it matches. Applications read methods in any case.
    pub(super) fn matches(&self, asking: &Asking<'_>) -> bool {
        let is_asked = |method: &Method| {
            let asked = asking.method;
            method == asked || method.as_str().eq_ignore_ascii_case(asked.as_str())
        };
        (self.methods.is_empty() || self.methods.iter().any(is_asked))
            && self.host.as_ref().is_none_or(|host| {
                let sent = asking.host.sent();
                sent.is_some_and(|sent| host_name(sent).eq_ignore_ascii_case(host))
            })
    }
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
