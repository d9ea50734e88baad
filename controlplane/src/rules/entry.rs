//! Entries of the lists allow and deny, changes of them, and their results (CONTROL-8): of
//! rules.json (`change.rs`) and of lists.json (`listed.rs`).

use std::path::{Path, PathBuf};
use std::time::Duration;

use ipnet::IpNet;
use serde_json::{Map, Value, json};
use weir_shared::api::lists::ListChanged;
use weir_shared::netblock::Netblock;
use weir_shared::units::Time;

use crate::state::fault::Fault;

/// How often a change is tried: with the pauses, for as long as an editor may take to save a file
/// (a faulty edit is also reported after half a second).
const TRIES: usize = 20;
const PAUSE: Duration = Duration::from_millis(25);

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
    /// Its name in rules.json.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
        }
    }
}

/// The key of an entry of lists.json.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, serde::Serialize, serde::Deserialize,
)]
pub struct ListKey {
    /// Of which list.
    pub list: List,
    /// The netblock.
    pub netblock: Netblock,
}

/// A change: every entry of exactly this netblock is removed, and the new one is added.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// Of which list.
    pub list: List,
    /// The netblock to add or remove.
    pub netblock: Netblock,
    /// The entry to add; none removes.
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
    /// Confirms the entry, whomever it covers (ALIVE-5).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
}

impl Entry {
    /// Whether it has ended.
    pub fn has_ended(&self, now_ms: u64) -> bool {
        self.until.is_some_and(|Time(until)| until <= now_ms)
    }
}

/// The result of a change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Changed {
    /// The file.
    pub file: PathBuf,
    /// Whether the file has changed: a netblock that is not in the list cannot be removed.
    pub changed: bool,
    /// Ended entries of both lists that were removed.
    pub ended: usize,
}

impl Changed {
    /// The answer about it, before the service has loaded the change.
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

/// Why a change was not made.
#[derive(Debug, thiserror::Error)]
pub enum NotChanged {
    /// The file has a fault.
    #[error("rules file {} does not fit: {fault}; mend it first", path.display())]
    DoesNotFit {
        /// The file.
        path: PathBuf,
        /// Where and why.
        fault: Fault,
    },
    /// The changed file would have a fault, which another try would not mend.
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
    /// Another program saved the file at each try.
    #[error("rules file {} is being changed by others all the time: try again", path.display())]
    Contested {
        /// The file.
        path: PathBuf,
    },
}

impl NotChanged {
    /// The fault without its place, because nobody has seen the changed text.
    pub(super) fn would_not_fit(path: &Path, fault: Fault) -> Self {
        Self::WouldNotFit {
            path: path.to_owned(),
            reason: fault.message,
        }
    }
}

/// Tries a change of a file again where another program saved it meanwhile, or is saving it still.
/// Each try is told whether it is the last.
pub(super) fn tried(
    path: &Path,
    mut attempt: impl FnMut(bool) -> Result<Option<Changed>, NotChanged>,
) -> Result<Changed, NotChanged> {
    let mut last = None;
    for turn in 1..=TRIES {
        match attempt(turn == TRIES) {
            // Another save came in between.
            Ok(None) => last = None,
            Ok(Some(changed)) => return Ok(changed),
            // The file may be partly saved.
            Err(wrong @ NotChanged::DoesNotFit { .. }) => last = Some(wrong),
            Err(other) => return Err(other),
        }
        if turn < TRIES {
            std::thread::sleep(PAUSE);
        }
    }
    let path = path.to_owned();
    Err(last.unwrap_or(NotChanged::Contested { path }))
}

impl Change {
    /// The key of its entry in lists.json.
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

    /// Its first address, for which the checks can be asked.
    pub fn first_address(&self) -> std::net::IpAddr {
        match self.netblock.net() {
            IpNet::V4(net) => net.network().into(),
            IpNet::V6(net) => net.network().into(),
        }
    }
}

/// Removes the ended entries of both lists.
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
    // The operator has confirmed it.
    if entry.force || netblock.net().prefix_len() == 0 {
        member.insert("force".to_owned(), json!(true));
    }
    let (until, comment) = (entry.until, entry.comment.as_ref());
    member.extend(until.map(|until| ("until".to_owned(), json!(until))));
    member.extend(comment.map(|comment| ("comment".to_owned(), json!(comment))));
    Value::Object(member)
}
