//! DNS names of addresses, confirmed in both directions: how the data plane asks for them, and the
//! answer it keeps (CRAWL-3).

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::sync::Arc;

/// The most names of one address that are looked at (CRAWL-3).
pub const MAX_ADDRESS_NAMES: usize = 4;

/// The names of an address that resolve to it and are below one of the suffixes: in small letters,
/// without the trailing dot.
pub type Names = Arc<[Box<str>]>;

/// The suffixes of the names of all crawlers together: `.crawl.example`.
#[derive(Debug, Default)]
pub struct Suffixes {
    id: u64,
    all: Vec<String>,
}

impl Suffixes {
    /// Makes a set of these suffixes, each in small letters and with a dot before it.
    pub fn new(suffixes: impl IntoIterator<Item = String>) -> Self {
        let mut all: Vec<String> = suffixes.into_iter().collect();
        all.sort_unstable();
        all.dedup();
        let mut hasher = DefaultHasher::new();
        all.hash(&mut hasher);
        Self {
            id: hasher.finish(),
            all,
        }
    }

    /// The identity of the set: an answer says nothing about suffixes that were not asked for.
    pub const fn id(&self) -> u64 {
        self.id
    }

    /// Whether there are none: no crawler is verified by DNS.
    pub const fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Whether a name is below one of them.
    pub fn cover(&self, name: &str) -> bool {
        self.all.iter().any(|suffix| is_below(name, suffix))
    }
}

/// Whether a name ends with a suffix at the border of a label.
pub fn is_below(name: &str, suffix: &str) -> bool {
    let rest = name.strip_suffix(suffix);
    suffix.starts_with('.') && rest.is_some_and(|rest| !rest.is_empty())
}

/// The answer about an address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamesAnswer {
    /// [`Suffixes::id`] of what was asked for.
    pub suffixes: u64,
    /// The names; none if the resolver failed, or must not be asked now.
    pub names: Option<Names>,
    /// Until when the answer is valid, in nanoseconds of the monotonic clock.
    pub until_ns: u64,
}

/// Asks for the names of an address. Never blocks; none if the answer comes later, to the client
/// table.
pub type AskNames = Arc<dyn Fn(IpAddr, &Arc<Suffixes>) -> Option<NamesAnswer> + Send + Sync>;

#[cfg(test)]
mod tests {
    use super::*;

    /// CRAWL-3: a suffix matches the end of a name at the border of a label, and not the whole
    /// name.
    #[test]
    fn a_suffix_begins_at_a_label() {
        for (name, expected) in [
            ("crawl-1.googlebot.com", true),
            ("a.b.googlebot.com", true),
            ("googlebot.com", false),
            (".googlebot.com", false),
            ("evilgooglebot.com", false),
            ("googlebot.com.evil.example", false),
            ("crawl.googlebot.com.", false),
        ] {
            assert_eq!(is_below(name, ".googlebot.com"), expected, "{name}");
        }
        assert!(!is_below("evilgooglebot.com", "googlebot.com"));
    }

    /// CRAWL-3: the same suffixes in another order are the same question.
    #[test]
    fn suffixes_are_told_apart() {
        let of = |all: &[&str]| Suffixes::new(all.iter().map(|one| (*one).to_owned())).id();
        assert_eq!(
            of(&[".a.example", ".b.example"]),
            of(&[".b.example", ".a.example"])
        );
        assert_ne!(of(&[".a.example"]), of(&[".b.example"]));
        assert_ne!(of(&[".a.example"]), of(&[]));
    }
}
