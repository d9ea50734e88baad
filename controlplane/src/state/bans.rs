//! bans.json: `{"version":1,"bans":[…]}`, oldest first. The form of an entry is [`Ban`]'s; here is what makes entries
//! complete and distinct, and how two changes of one entry are merged.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde_json::{Map, Value};
use weir_shared::ban::Ban;
use weir_shared::netblock::Netblock;
use weir_shared::units::Time;

use super::document::Document;
use super::keeper::{Counters, Shared};
use super::merge::Diff;
use super::{BanKey, Edit, EditChange};

/// bans.json
pub(super) struct Bans;

impl BanKey {
    /// The name of a ban. A ban of which nobody knows when it was made counts as made in 1970; none is left like that
    /// once it was read or made.
    pub fn of(ban: &Ban) -> Self {
        Self {
            netblock: ban.netblock,
            ban_started: ban.ban_started.unwrap_or_default(),
        }
    }
}

impl Document for Bans {
    const FILE: &'static str = "bans.json";
    const LIST: &'static str = "bans";
    type Entry = Arc<Ban>;
    type Key = BanKey;

    fn key(ban: &Arc<Ban>) -> BanKey {
        BanKey::of(ban)
    }

    fn check(_: &Arc<Ban>, _: &mut HashSet<BanKey>) -> Result<(), String> {
        // Two bans of one netblock and one moment are made distinct, not refused: both may have been written by hand.
        Ok(())
    }

    fn complete(mut bans: Vec<Arc<Ban>>, base: &[Arc<Ban>], now: Time) -> Vec<Arc<Ban>> {
        let mut taken: HashSet<BanKey> = HashSet::with_capacity(bans.len());
        let mut open = Vec::new();
        for (place, entry) in bans.iter_mut().enumerate() {
            let widened = entry.netblock.widened_to_clients();
            if widened != entry.netblock {
                Arc::make_mut(entry).netblock = widened;
            }
            // The first entry of a key keeps it; those without one, and repeated ones, look for theirs afterwards.
            if entry.ban_started.is_none() || !taken.insert(BanKey::of(entry)) {
                open.push(place);
            }
        }
        if open.is_empty() {
            return bans;
        }
        // An entry without a start that was read before, and not written since, keeps the start it was given then.
        let mut given: HashMap<(Netblock, u64), Vec<Time>> = HashMap::new();
        for ban in base.iter().rev() {
            if let Some(start) = ban.ban_started
                && !taken.contains(&BanKey::of(ban))
            {
                given
                    .entry((ban.netblock, ban.ban_expires.end_ms()))
                    .or_default()
                    .push(start);
            }
        }
        for place in open {
            let Some(entry) = bans.get_mut(place) else {
                continue;
            };
            let mut key = BanKey {
                netblock: entry.netblock,
                ban_started: match entry.ban_started {
                    Some(start) => start,
                    None => given
                        .get_mut(&(entry.netblock, entry.ban_expires.end_ms()))
                        .and_then(Vec::pop)
                        .unwrap_or(now),
                },
            };
            while !taken.insert(key) {
                key.ban_started.0 += 1;
            }
            Arc::make_mut(entry).ban_started = Some(key.ban_started);
        }
        bans
    }

    fn merge(before: &Arc<Ban>, ours: &Arc<Ban>, theirs: &Arc<Ban>) -> Arc<Ban> {
        Arc::new(merge(before, ours, theirs))
    }

    fn lifts(before: &Arc<Ban>, after: &Arc<Ban>) -> bool {
        before.lifted.is_none() && after.lifted.is_some()
    }

    fn sort(bans: &mut [Arc<Ban>]) {
        bans.sort_by_key(|ban| (ban.ban_started, ban.netblock));
    }

    fn counters(shared: &Shared) -> &Counters {
        &shared.bans
    }

    fn edit(number: u64, diff: &Diff<Self>) -> Edit {
        Edit {
            number,
            change: EditChange::Bans {
                put: diff.put().map(|ban| Ban::clone(ban)).collect(),
                removed: diff.removed.clone(),
            },
            before: diff
                .changed
                .iter()
                .map(|(before, _)| Arc::clone(before))
                .collect(),
        }
    }
}

/// The members that the edit changed from `before` are as in `theirs`, the others as in `ours`.
pub(super) fn merge(before: &Ban, ours: &Ban, theirs: &Ban) -> Ban {
    let members = |ban: &Ban| match serde_json::to_value(ban) {
        Ok(Value::Object(members)) => members,
        Ok(_) | Err(_) => Map::new(),
    };
    let (before, mut merged, theirs_members) = (members(before), members(ours), members(theirs));
    for name in before.keys() {
        if !theirs_members.contains_key(name) {
            merged.shift_remove(name);
        }
    }
    for (name, value) in &theirs_members {
        if before.get(name) != Some(value) {
            merged.insert(name.clone(), value.clone());
        }
    }
    // Every member was a member of a ban a moment ago; should that ever not hold, the edit stands whole.
    serde_json::from_value(Value::Object(merged)).unwrap_or_else(|_| theirs.clone())
}
