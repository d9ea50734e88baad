//! The entries of rules.json, in their JSON form.

use std::time::Duration;

use http::HeaderName;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use weir_shared::ban::Scope;
use weir_shared::netblock::Netblock;
use weir_shared::rules::Purpose;
use weir_shared::units::{DURATION_FORM, Time, parse_duration};

use super::super::choosing::{Literal, Match};
use crate::feeds::wanted::Wanted;

/// The whole file.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(in crate::rules) struct RulesFile {
    pub(in crate::rules) allow: Vec<Member>,
    pub(in crate::rules) deny: Vec<Member>,
    pub(in crate::rules) limits: Vec<Limit>,
    pub(in crate::rules) traps: Vec<Trap>,
    pub(in crate::rules) jails: Vec<Jail>,
    pub(in crate::rules) denials: Vec<Denial>,
    pub(in crate::rules) exempt: Vec<Exempt>,
    pub(in crate::rules) feeds: Vec<Wanted>,
    pub(in crate::rules) crawlers: Vec<Crawler>,
}

/// A netblock, or a file of netblocks. The schema ensures that it is one of the two.
#[derive(Debug, Deserialize)]
pub(in crate::rules) struct Member {
    pub(in crate::rules) netblock: Option<Netblock>,
    pub(in crate::rules) file: Option<String>,
    pub(in crate::rules) until: Option<Time>,
    /// Confirms a list or netblock of all clients (ALIVE-5).
    #[serde(default)]
    pub(in crate::rules) force: bool,
}

/// Windows, each with its limit.
#[derive(Debug, Default, Deserialize)]
pub(in crate::rules) struct Quotas {
    pub(in crate::rules) per_second: Option<u64>,
    pub(in crate::rules) per_minute: Option<u64>,
    pub(in crate::rules) per_hour: Option<u64>,
    pub(in crate::rules) per_day: Option<u64>,
}

/// The requests that an entry applies to.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(in crate::rules) struct Which {
    pub(in crate::rules) path: Option<String>,
    pub(in crate::rules) exact: Option<bool>,
    pub(in crate::rules) exact_case: Option<bool>,
    pub(in crate::rules) methods: Vec<String>,
    pub(in crate::rules) host: Option<String>,
}

impl Which {
    /// Whether `path` must equal the whole path.
    pub(in crate::rules) fn is_exact(&self) -> bool {
        self.exact == Some(true)
    }

    /// Whether the path is compared with case.
    pub(in crate::rules) fn minds_case(&self) -> bool {
        self.exact_case == Some(true)
    }

    /// The first of these members that is present: beside `match`, it belongs inside.
    pub(super) fn named(&self) -> Option<&'static str> {
        [
            ("path", self.path.is_some()),
            ("exact", self.exact.is_some()),
            ("exact_case", self.exact_case.is_some()),
            ("methods", !self.methods.is_empty()),
            ("host", self.host.is_some()),
        ]
        .into_iter()
        .find_map(|(member, is_there)| is_there.then_some(member))
    }
}

/// `on_limit`
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(in crate::rules) enum OnLimit {
    Ban,
    Refuse,
}

#[derive(Debug, Deserialize)]
pub(in crate::rules) struct Limit {
    pub(in crate::rules) name: String,
    #[serde(rename = "match")]
    pub(in crate::rules) matching: Option<Match>,
    #[serde(flatten)]
    pub(in crate::rules) which: Which,
    #[serde(flatten)]
    pub(in crate::rules) quotas: Quotas,
    pub(in crate::rules) on_limit: Option<OnLimit>,
    #[serde(default)]
    pub(in crate::rules) per: Per,
    pub(in crate::rules) spare_known: Option<SpareKnown>,
    pub(in crate::rules) until: Option<Time>,
}

/// After which time clients are known (SHARE-4): a duration, or `off`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(try_from = "String")]
pub(in crate::rules) struct SpareKnown(pub(in crate::rules) Option<Duration>);

impl TryFrom<String> for SpareKnown {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        const YEAR: Duration = Duration::from_secs(365 * 86_400);
        if text == "off" {
            return Ok(Self(None));
        }
        let duration = parse_duration(&text).map_err(|what| format!("{what}: {DURATION_FORM}"))?;
        if (Duration::from_millis(1)..=YEAR).contains(&duration) {
            return Ok(Self(Some(duration)));
        }
        Err(format!(
            "{text:?} is out of range: expected 1ms to 365d, or off"
        ))
    }
}

/// The clients that are counted together (SHARE-1): a word, or an object with the name of a field.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(in crate::rules) enum Per {
    #[default]
    Client,
    Netblock,
    Asn,
    Country,
    All,
    Field(FieldName),
}

/// The name of a field.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(try_from = "String")]
pub(in crate::rules) struct FieldName(pub(in crate::rules) HeaderName);

impl TryFrom<String> for FieldName {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        let read = HeaderName::try_from(&name).map(Self);
        read.map_err(|_| {
            format!("{name:?} is not the name of a field: expected one such as x-api-key")
        })
    }
}

impl Limit {
    /// The consequence of exceeding it. For a limit that clients share, a ban only if `on_limit`
    /// asks for it.
    pub(in crate::rules) fn follows(&self) -> OnLimit {
        let otherwise = match self.per {
            Per::Client => OnLimit::Ban,
            _ => OnLimit::Refuse,
        };
        self.on_limit.unwrap_or(otherwise)
    }
}

#[derive(Debug, Deserialize)]
pub(in crate::rules) struct Trap {
    pub(in crate::rules) name: String,
    pub(in crate::rules) paths: Vec<String>,
    #[serde(default)]
    pub(in crate::rules) exact_case: bool,
    #[serde(default)]
    pub(in crate::rules) ban: Scope,
    pub(in crate::rules) until: Option<Time>,
}

#[derive(Debug, Deserialize)]
pub(in crate::rules) struct Jail {
    pub(in crate::rules) name: String,
    #[serde(rename = "match")]
    pub(in crate::rules) matching: Option<Match>,
    #[serde(flatten)]
    pub(in crate::rules) which: Which,
    /// Absent in a jail that counts the application's reports (APP-2).
    #[serde(default)]
    pub(in crate::rules) statuses: Vec<u16>,
    #[serde(flatten)]
    pub(in crate::rules) quotas: Quotas,
    #[serde(default)]
    pub(in crate::rules) ban: Scope,
    pub(in crate::rules) until: Option<Time>,
}

/// An entry of `denials`.
#[derive(Debug, Deserialize)]
pub(in crate::rules) struct Denial {
    pub(in crate::rules) name: String,
    #[serde(rename = "match")]
    pub(in crate::rules) matching: Match,
    pub(in crate::rules) answer: Option<Answer>,
    pub(in crate::rules) until: Option<Time>,
}

/// The response of a denial. The schema ensures that a word is `drop`.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(untagged, expecting = "expected a status from 400 to 599, or \"drop\"")]
pub(in crate::rules) enum Answer {
    Status(u16),
    Word(Word),
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(in crate::rules) enum Word {
    Drop,
}

/// An entry of `exempt`.
#[derive(Debug, Deserialize)]
pub(in crate::rules) struct Exempt {
    pub(in crate::rules) name: String,
    #[serde(rename = "match")]
    pub(in crate::rules) matching: Match,
    pub(in crate::rules) until: Option<Time>,
}

/// An entry of `crawlers` (CRAWL-1).
#[derive(Debug, Deserialize)]
pub(in crate::rules) struct Crawler {
    pub(in crate::rules) name: String,
    pub(in crate::rules) purpose: Purpose,
    pub(in crate::rules) user_agent: Vec<Literal>,
    pub(in crate::rules) verify: Verify,
    #[serde(default)]
    pub(in crate::rules) limits: Quotas,
    pub(in crate::rules) until: Option<Time>,
}

/// How a crawler is verified: by the name of a feed, or by suffixes of DNS names.
#[derive(Debug)]
pub(in crate::rules) enum Verify {
    Feed(String),
    Dns(Vec<Suffix>),
}

#[derive(Deserialize)]
struct ByNames {
    dns: Vec<Suffix>,
}

impl<'de> Deserialize<'de> for Verify {
    /// Written by hand: serde's untagged enums do not tell why a form does not fit.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::String(feed) => Ok(Self::Feed(feed)),
            other => {
                let names = ByNames::deserialize(other).map_err(D::Error::custom)?;
                Ok(Self::Dns(names.dns))
            }
        }
    }
}

/// The suffix of a DNS name, with a dot before it.
#[derive(Debug, Deserialize)]
#[serde(try_from = "String")]
pub(in crate::rules) struct Suffix(pub(in crate::rules) String);

/// The longest DNS name as text.
const MAX_NAME: usize = 253;
/// The longest label of a DNS name.
const MAX_LABEL: usize = 63;

impl TryFrom<String> for Suffix {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let name = text.strip_prefix('.').unwrap_or(&text).to_ascii_lowercase();
        let is_label = |label: &str| {
            let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
            (1..=MAX_LABEL).contains(&label.len()) && label.bytes().all(is_letter)
        };
        let is_name = name.len() <= MAX_NAME && name.split('.').all(is_label);
        // A top-level domain alone would contain everybody's names.
        if is_name && name.contains('.') {
            return Ok(Self(format!(".{name}")));
        }
        Err(format!(
            "{text:?} is not the end of a crawler's names: expected one such as .crawl.example"
        ))
    }
}
