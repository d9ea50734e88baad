//! A client, in the form of clients.json and `/v1/clients` (ADMIN-4).

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::buckets::Buckets;
use crate::ban::{Ban, Expiry};
use crate::client;
use crate::lookup::Lookup;
use crate::rules::{Rule, RuleKind};
use crate::table::{ClientRow, OtherSites, RuleCount};
use crate::units::{Count, Time};
use crate::window::{PerSpan, RuleSpan, Span, Window};

/// The answer of `GET /v1/clients`.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct ClientList {
    /// The number of clients in the table.
    pub held: u64,
    /// The first clients in the chosen order.
    pub clients: Vec<Listed>,
}

/// A client of the list.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Listed {
    /// The client's entry.
    #[serde(flatten)]
    pub client: Client,
    /// The end of the ban that refuses it; none if no ban does.
    #[serde(default)]
    pub ban_expires: Option<Expiry>,
}

/// The answer of `GET /v1/clients/…`.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Held {
    /// None if the client is not in the table.
    pub client: Option<Client>,
    /// Every ban that covers it, whether it still refuses or not.
    pub bans: Vec<Arc<Ban>>,
}

/// The members of an entry, in their order.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Client {
    /// Its address, or its network.
    pub client: client::Client,
    /// Its first request.
    pub first_seen: Time,
    /// Its latest request.
    pub last_seen: Time,
    /// The lookup's answer.
    #[serde(default)]
    pub lookup: Option<Arc<Lookup>>,
    /// Requests that passed.
    #[serde(default)]
    pub passed: Count,
    /// Requests that were refused.
    #[serde(default)]
    pub refused: Count,
    /// The request windows.
    #[serde(default)]
    pub requests: Windows,
    /// The byte windows.
    #[serde(default)]
    pub bytes: Windows,
    /// The windows of rules.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<CountOfRule>,
    /// The part that pages of other sites caused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other_sites: Option<PartOfWindows>,
    /// When its first request passed, if that is remembered (SHARE-4).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_passed: Option<Time>,
}

/// The part of the windows that pages of other sites caused (RULE-8).
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct PartOfWindows {
    /// Requests.
    #[serde(default)]
    pub requests: Windows,
    /// Bytes.
    #[serde(default)]
    pub bytes: Windows,
}

impl PartOfWindows {
    fn of(part: &OtherSites) -> Self {
        Self {
            requests: Windows::of(&part.requests),
            bytes: Windows::of(&part.bytes),
        }
    }

    /// The part; none if all of it is 0.
    fn part(self) -> Option<Box<OtherSites>> {
        let part = OtherSites {
            requests: self.requests.windows(),
            bytes: self.bytes.windows(),
        };
        (part != OtherSites::default()).then(|| Box::new(part))
    }
}

/// The count of one window of one rule.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct CountOfRule {
    /// The rule.
    pub rule: String,
    /// A limit or a jail.
    pub kind: RuleKind,
    /// The window.
    pub window: RuleSpan,
    /// The count.
    #[serde(flatten)]
    pub buckets: Buckets,
    /// The part of it that pages of other sites caused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other_sites: Option<Buckets>,
}

impl CountOfRule {
    fn of(count: &RuleCount) -> Self {
        Self {
            rule: count.rule.name.clone(),
            kind: count.rule.kind,
            window: count.span,
            buckets: Buckets::of(&count.window),
            other_sites: (count.other_sites != Window::default())
                .then(|| Buckets::of(&count.other_sites)),
        }
    }

    fn count(self) -> RuleCount {
        RuleCount {
            rule: Arc::new(Rule::new(self.kind, self.rule)),
            span: self.window,
            window: self.buckets.window(self.window),
            other_sites: self.other_sites.unwrap_or_default().window(self.window),
            in_fleet: None,
        }
    }
}

/// The windows of a minute, an hour and a day.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Windows {
    /// Of a minute.
    #[serde(default)]
    pub minute: Buckets,
    /// Of an hour.
    #[serde(default)]
    pub hour: Buckets,
    /// Of a day.
    #[serde(default)]
    pub day: Buckets,
}

impl From<&ClientRow> for Client {
    fn from(row: &ClientRow) -> Self {
        Self {
            client: row.client,
            first_seen: row.first_seen,
            last_seen: row.last_seen,
            lookup: row.lookup.clone(),
            passed: Count(row.passed),
            refused: Count(row.refused),
            requests: Windows::of(&row.requests),
            bytes: Windows::of(&row.bytes),
            rules: row.rules.iter().map(CountOfRule::of).collect(),
            other_sites: row.other_sites.as_deref().map(PartOfWindows::of),
            first_passed: row.first_passed,
        }
    }
}

impl Windows {
    fn of(windows: &PerSpan<Window>) -> Self {
        Self {
            minute: Buckets::of(&windows.minute),
            hour: Buckets::of(&windows.hour),
            day: Buckets::of(&windows.day),
        }
    }

    fn windows(self) -> PerSpan<Window> {
        PerSpan {
            minute: self.minute.window(Span::Minute),
            hour: self.hour.window(Span::Hour),
            day: self.day.window(Span::Day),
        }
    }
}

impl From<Client> for ClientRow {
    fn from(form: Client) -> Self {
        Self {
            client: form.client,
            first_seen: form.first_seen,
            last_seen: form.last_seen,
            lookup: form.lookup,
            passed: form.passed.0,
            refused: form.refused.0,
            requests: form.requests.windows(),
            bytes: form.bytes.windows(),
            rules: form.rules.into_iter().map(CountOfRule::count).collect(),
            other_sites: form.other_sites.and_then(PartOfWindows::part),
            first_passed: form.first_passed,
        }
    }
}
