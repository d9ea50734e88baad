//! Entries of the lists allow and deny, what is to be changed of them, and what became of it
//! (CONTROL-8): of rules.json (`change.rs`) and of lists.json (`listed.rs`).

use std::path::{Path, PathBuf};
use std::time::Duration;

use ipnet::IpNet;
use serde_json::{Map, Value, json};
use weir_shared::api::lists::ListChanged;
use weir_shared::netblock::Netblock;
use weir_shared::units::Time;

use crate::state::fault::Fault;

/// How often it is tried, and how long in between: as long as an editor may take to save a file
/// (an edit that does not fit is told after half a second, too).
pub(super) const TRIES: usize = 20;
pub(super) const PAUSE: Duration = Duration::from_millis(25);

/// Which list.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum List {
    /// Clients that skip every check.
    Allow,
    /// Clients that are refused.
    Deny,
}

impl List {
    /// As rules.json names it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
        }
    }
}

/// What names an entry of lists.json.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, serde::Serialize, serde::Deserialize,
)]
pub struct ListKey {
    /// Of which list.
    pub list: List,
    /// Whom it means.
    pub netblock: Netblock,
}

/// What is to be changed. Every entry of exactly this netblock goes, and the new one comes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// Of which list.
    pub list: List,
    /// What is put in or taken out.
    pub netblock: Netblock,
    /// What is put in; none takes out.
    pub entry: Option<Entry>,
}

/// A member of a list.
#[derive(Clone, PartialEq, Eq, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Entry {
    /// When it ends; none is never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Time>,
    /// Why, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
    /// It is meant, whomever it covers (ALIVE-5).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
}

impl Entry {
    /// Whether it has no effect any more.
    pub fn has_ended(&self, now_ms: u64) -> bool {
        self.until.is_some_and(|Time(until)| until <= now_ms)
    }
}

/// What became of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Changed {
    /// The file.
    pub file: PathBuf,
    /// Whether there was anything to do: what is not in the list cannot be taken out.
    pub changed: bool,
    /// Entries of both lists that had ended and were taken out.
    pub ended: usize,
}

impl Changed {
    /// As an answer has it, before the service has taken it in.
    pub fn told(&self, change: &Change) -> ListChanged {
        ListChanged {
            list: change.list.name().to_owned(),
            netblock: change.netblock.to_string(),
            until: change.entry.as_ref().and_then(|entry| entry.until),
            removed: change.entry.is_none(),
            changed: self.changed,
            ended: self.ended as u64,
            file: self.file.to_string_lossy().into_owned(),
            in_force: None,
        }
    }
}

/// Why the lists are as they were.
#[derive(Debug, thiserror::Error)]
pub enum NotChanged {
    /// The file does not fit.
    #[error("rules file {} does not fit: {fault}; mend it first", path.display())]
    DoesNotFit {
        /// The file.
        path: PathBuf,
        /// Where and why.
        fault: Fault,
    },
    /// What would become of it does not fit, which no further try mends.
    #[error("rules file {} stays as it is: with this change it would not fit: {reason}", path.display())]
    WouldNotFit {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The system refused it.
    #[error("rules file {} cannot be changed: {error}", path.display())]
    System {
        /// The file.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// Somebody else saved the file each time.
    #[error("rules file {} is being changed by others all the time: try again", path.display())]
    Contested {
        /// The file.
        path: PathBuf,
    },
}

impl NotChanged {
    /// The fault without its place: nobody has seen the text.
    pub(super) fn would_not_fit(path: &Path, fault: Fault) -> Self {
        Self::WouldNotFit {
            path: path.to_owned(),
            reason: fault.message,
        }
    }
}

impl Change {
    /// The entry of lists.json that it means.
    pub(crate) fn key(&self) -> ListKey {
        ListKey {
            list: self.list,
            netblock: self.netblock,
        }
    }

    /// Why this entry needs force (ALIVE-5): it would refuse, or let through, nearly everybody.
    pub fn too_wide(&self) -> Option<String> {
        let wide = |netblock: Netblock| crate::bans::too_wide::width(netblock);
        self.entry.as_ref().and_then(|_| wide(self.netblock))
    }

    /// Its first address, of which can be asked what the checks make of it.
    pub fn first_address(&self) -> std::net::IpAddr {
        match self.netblock.net() {
            IpNet::V4(net) => net.network().into(),
            IpNet::V6(net) => net.network().into(),
        }
    }
}

/// Takes the entries of both lists out that have no effect any more.
pub(super) fn take_out_ended(rules: &mut Map<String, Value>, now_ms: u64) -> usize {
    let has_ended = |member: &Value| {
        let until = member.get("until").and_then(Value::as_str);
        until
            .and_then(|until| until.parse().ok())
            .is_some_and(|Time(until)| until <= now_ms)
    };
    let lists = [List::Allow, List::Deny].into_iter();
    lists
        .map(|list| retain(rules, list, |member| !has_ended(member)))
        .sum()
}

pub(super) fn retain(
    rules: &mut Map<String, Value>,
    list: List,
    keep: impl Fn(&Value) -> bool,
) -> usize {
    let Some(Value::Array(members)) = rules.get_mut(list.name()) else {
        return 0;
    };
    let before = members.len();
    members.retain(keep);
    before - members.len()
}

pub(super) fn member(netblock: Netblock, entry: &Entry) -> Value {
    let mut member = Map::new();
    member.insert("netblock".to_owned(), json!(netblock));
    // Whoever asked was asked whether that is meant.
    if entry.force || netblock.net().prefix_len() == 0 {
        member.insert("force".to_owned(), json!(true));
    }
    let (until, comment) = (entry.until, entry.comment.as_ref());
    member.extend(until.map(|until| ("until".to_owned(), json!(until))));
    member.extend(comment.map(|comment| ("comment".to_owned(), json!(comment))));
    Value::Object(member)
}
