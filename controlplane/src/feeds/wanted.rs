//! An entry of `feeds` of rules.json: where a list comes from, how often it is fetched, and what it
//! is for (FEED-1).

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use http::Uri;
use http::uri::Scheme;
use serde::Deserialize;
use weir_shared::units::{DURATION_FORM, Time, parse_duration};

/// How often a feed may be fetched.
const EVERY: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(600)..=Duration::from_secs(30 * 86_400);

/// One feed, as rules.json names it.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(try_from = "Written")]
pub(crate) struct Wanted {
    /// Its name.
    pub(crate) name: String,
    /// The URL it is fetched from; for a decision stream that of the LAPI.
    pub(crate) url: FeedUrl,
    /// How often a list is fetched.
    pub(crate) every: Every,
    /// The effect of being on the list; none if only other rules refer to it.
    pub(crate) used: Option<Use>,
    /// The further members of a decision stream of CrowdSec (FEED-7); none for a list.
    pub(crate) crowdsec: Option<CrowdSec>,
    /// After this time it is not fetched, and none of its entries is in force.
    pub(crate) until: Option<Time>,
}

impl Wanted {
    /// Whether `until` has passed at `now_ms`, in milliseconds since 1970.
    pub(crate) fn has_ended(&self, now_ms: u64) -> bool {
        self.until.is_some_and(|Time(until)| until <= now_ms)
    }
}

/// The members of a decision stream (FEED-7).
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct CrowdSec {
    /// The file with the API key; a relative path starts at the directory of rules.json.
    pub(crate) key_file: PathBuf,
    /// What decisions of other types than `ban` do.
    pub(crate) other: Other,
}

/// What decisions of other types than `ban` do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Other {
    /// As a ban.
    Deny,
    /// Nothing.
    #[default]
    Ignore,
}

/// The members of the JSON.
#[derive(Deserialize)]
struct Written {
    name: String,
    url: Option<FeedUrl>,
    every: Option<Every>,
    #[serde(rename = "use")]
    used: Option<Use>,
    crowdsec: Option<FeedUrl>,
    key_file: Option<PathBuf>,
    other: Option<Other>,
    until: Option<Time>,
}

impl TryFrom<Written> for Wanted {
    type Error = &'static str;

    fn try_from(written: Written) -> Result<Self, Self::Error> {
        let Written {
            name,
            url,
            every,
            used,
            crowdsec,
            key_file,
            other,
            until,
        } = written;
        match (url, crowdsec, key_file) {
            (Some(url), None, None) if other.is_none() => Ok(Self {
                name,
                url,
                every: every.unwrap_or_default(),
                used,
                crowdsec: None,
                until,
            }),
            (None, Some(url), Some(key_file)) if every.is_none() && used.is_none() => {
                if url.uri().query().is_some() || url.uri().path() != "/" {
                    return Err(
                        "\"crowdsec\" has a path or a query: expected scheme, host and port",
                    );
                }
                Ok(Self {
                    name,
                    url,
                    every: Every::default(),
                    used: Some(Use::Deny),
                    crowdsec: Some(CrowdSec {
                        key_file,
                        other: other.unwrap_or_default(),
                    }),
                    until,
                })
            }
            _ => Err(
                "expected \"url\", with \"every\" and \"use\", or \"crowdsec\" and \"key_file\", with \"other\"",
            ),
        }
    }
}

/// The effect of being on a feed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Use {
    /// The same as an entry of `deny`.
    Deny,
    /// The same as an entry of `allow`.
    Allow,
}

impl Use {
    /// The name in rules.json.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Deny => "deny",
            Self::Allow => "allow",
        }
    }
}

/// `every`: the time from one fetch to the next.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct Every(pub(crate) Duration);

impl Default for Every {
    fn default() -> Self {
        Self(Duration::from_secs(86_400))
    }
}

impl TryFrom<String> for Every {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let every = parse_duration(&text).map_err(|why| format!("{why}: {DURATION_FORM}"))?;
        if !EVERY.contains(&every) {
            return Err(format!("{text:?} is not from 10m to 30d"));
        }
        Ok(Self(every))
    }
}

/// The URL of a feed: HTTPS, or plain HTTP on loopback.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct FeedUrl(Uri);

impl TryFrom<String> for FeedUrl {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let wrong = |why: &str| format!("{why}: expected an https:// URL, or http:// of loopback");
        let uri: Uri = (text.parse()).map_err(|_| wrong(&format!("{text:?} is not a URL")))?;
        Self::of(uri).map_err(wrong)
    }
}

impl FeedUrl {
    /// Checks whether feeds may be fetched from this URL. The error is the beginning of a sentence.
    pub(crate) fn of(uri: Uri) -> Result<Self, &'static str> {
        let is_https = match uri.scheme() {
            Some(scheme) if *scheme == Scheme::HTTPS => true,
            Some(scheme) if *scheme == Scheme::HTTP => false,
            _ => return Err("its scheme is neither https nor http"),
        };
        let Some(authority) = uri.authority().filter(|place| !place.host().is_empty()) else {
            return Err("it has no host");
        };
        if authority.as_str().contains('@') {
            return Err("it has a name or a password, which are not sent");
        }
        let url = Self(uri);
        if !is_https && !url.is_loopback() {
            return Err("it is plain http to another machine");
        }
        Ok(url)
    }

    /// The URL itself.
    pub(crate) const fn uri(&self) -> &Uri {
        &self.0
    }

    /// Its host, an IPv6 address without brackets.
    pub(crate) fn host(&self) -> &str {
        let host = self.0.host().unwrap_or_default();
        let inside = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'));
        inside.unwrap_or(host)
    }

    /// Whether its host is `localhost` or a loopback address.
    pub(crate) fn is_loopback(&self) -> bool {
        let host = self.host();
        let is_it = |address: IpAddr| address.is_loopback();
        host.eq_ignore_ascii_case("localhost") || host.parse().is_ok_and(is_it)
    }
}

/// Shown without its query, in which publishers put keys.
impl fmt::Display for FeedUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = self.0.scheme_str().unwrap_or_default();
        let place = self.0.authority().map_or("", |place| place.as_str());
        write!(f, "{scheme}://{place}{}", self.0.path())
    }
}

impl fmt::Debug for FeedUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// FEED-1: a feed comes over HTTPS, and in plain from loopback alone; `every` has its bounds.
    #[test]
    fn what_a_feed_may_be() {
        let url = |text: &str| FeedUrl::try_from(text.to_owned());
        for (text, is_loopback) in [
            ("https://lists.example/drop_v4.json?key=secret", false),
            ("https://127.0.0.1:8443/drop", true),
            ("http://127.7.7.7/drop", true),
            ("http://[::1]:80/drop", true),
            ("http://LocalHost/drop", true),
        ] {
            assert_eq!(
                url(text).map(|url| url.is_loopback()),
                Ok(is_loopback),
                "{text}"
            );
        }
        let named = url("https://lists.example:444/drop?key=secret").unwrap();
        assert_eq!(named.to_string(), "https://lists.example:444/drop");
        for (text, why) in [
            ("http://lists.example/drop", "plain http"),
            ("http://192.168.0.1/drop", "plain http"),
            ("http://127.0.0.1.example/drop", "plain http"),
            ("ftp://lists.example/drop", "scheme"),
            ("/etc/passwd", "scheme"),
            (
                "https://me:secret@lists.example/drop",
                "a name or a password",
            ),
            ("https://", "is not a URL"),
            ("two words", "is not a URL"),
        ] {
            let told = url(text).unwrap_err();
            assert!(
                told.contains(why) && told.contains("expected an https://"),
                "{told}"
            );
        }
        let every = |text: &str| Every::try_from(text.to_owned());
        assert_eq!(every("12h"), Ok(Every(Duration::from_secs(43_200))));
        assert!(every("10m").is_ok() && every("30d").is_ok());
        for text in ["9m59s", "30d1s", "0s", "", "often"] {
            assert!(every(text).is_err(), "{text}");
        }
    }
}
