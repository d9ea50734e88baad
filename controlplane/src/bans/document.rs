//! bans.json: `{"version":1,"bans":[…]}`, oldest first. [`Ban`] defines the form of an entry. This
//! file makes entries complete and distinct, and merges a ban that both an edit and memory have
//! changed.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer};
use weir_shared::ban::Ban;
use weir_shared::ban_origin::BanOrigin;
use weir_shared::lookup::Interner;
use weir_shared::netblock::Netblock;
use weir_shared::units::Time;

use super::starts::Starts;
use crate::state::document::{self, Document, Entry};
use crate::state::schema::LazySchema;

/// bans.json
pub(crate) struct BansFile;

/// The key of a ban, in the file and in memory. The ledger and the reader of the file keep it
/// unique.
#[derive(
    Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, serde::Serialize, Deserialize,
)]
pub struct BanKey {
    /// Its netblock.
    pub(crate) netblock: Netblock,
    /// When it was made. The reader fills in a missing one.
    pub(crate) ban_started: Time,
    /// The instance that made it: bans that two instances make in one millisecond are two bans.
    pub(crate) origin: BanOrigin,
}

/// The name of a ban in the log.
impl fmt::Display for BanKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.netblock.fmt(f)
    }
}

impl BanKey {
    pub(crate) const fn new(netblock: Netblock, started_ms: u64, origin: BanOrigin) -> Self {
        Self {
            netblock,
            ban_started: Time(started_ms),
            origin,
        }
    }

    /// The key of a ban. A ban without a start counts as made in 1970, but every ban has a start
    /// once it was read or made.
    pub(crate) fn of(ban: &Ban) -> Self {
        Self {
            netblock: ban.netblock,
            ban_started: ban.ban_started.unwrap_or_default(),
            origin: ban.origin(),
        }
    }
}

/// The sentence that bans.json has more undroppable bans than fit (BAN-5), with what helps.
pub(crate) fn too_many(held: usize, max_bans: usize) -> String {
    format!(
        "bans.json holds {held} active bans made by an administrator or permanent, WAF_MAX_BANS is {max_bans}: raise the setting or mark some of them lifted"
    )
}

/// Nothing to do: a ban keeps its unknown members itself, because answers show them.
impl Entry for Arc<Ban> {}

impl Document for BansFile {
    const FILE: &'static str = "bans.json";
    const SCHEMA: &'static str = include_str!("../../../schema/proxy/bans.schema.json");
    const LIST: &'static str = "bans";
    type Entry = Arc<Ban>;
    type Key = BanKey;

    const KEEPS_BASE: bool = true;
    const REMOVED_IS_NO_EDIT: bool = true;

    fn schema() -> &'static LazySchema {
        static SCHEMA: LazySchema = document::schema::<BansFile>();
        &SCHEMA
    }

    fn read<'de, T: Deserializer<'de>>(_: &str, entry: T) -> Result<Arc<Ban>, T::Error> {
        Arc::deserialize(entry)
    }

    fn key(ban: &Arc<Ban>) -> BanKey {
        BanKey::of(ban)
    }

    fn check(_: &Arc<Ban>, _: &mut HashSet<BanKey>) -> Result<(), String> {
        // Two bans of one netblock and one moment are made distinct, not refused: both may have
        // been written by hand.
        Ok(())
    }

    fn check_all(bans: &[Arc<Ban>], most: usize, now: Time) -> Result<(), String> {
        // So few entries always fit.
        if bans.len() <= most {
            return Ok(());
        }
        let stays = |ban: &&Arc<Ban>| ban.is_active(now.0) && !ban.origin().is_automatic();
        let held = bans.iter().filter(stays).count();
        match held <= most {
            true => Ok(()),
            false => Err(too_many(held, most)),
        }
    }

    fn complete(mut bans: Vec<Arc<Ban>>, base: &[Arc<Ban>], now: Time) -> Vec<Arc<Ban>> {
        let mut starts = Starts::with_capacity(bans.len());
        let mut lookups = Interner::default();
        let mut open = Vec::new();
        for (place, entry) in bans.iter_mut().enumerate() {
            let widened = entry.netblock.widened_to_clients();
            if widened != entry.netblock {
                Arc::make_mut(entry).netblock = widened;
            }
            // The entry was just read, so nobody else holds a reference.
            let notes = Arc::get_mut(entry).and_then(|ban| ban.notes.as_mut());
            if let Some(lookup) = notes.and_then(|notes| notes.lookup.as_mut()) {
                lookups.intern(&mut lookup.known);
            }
            // The first entry of a key keeps it. Entries without a start, and repeated ones, get
            // theirs afterwards.
            let is_first = |start: Time| starts.take((entry.netblock, entry.origin()), start.0);
            if !entry.ban_started.is_some_and(is_first) {
                open.push(place);
            }
        }
        if open.is_empty() {
            return bans;
        }
        // An entry without a start that was read before, and not written since, keeps the start
        // that it got then.
        let mut given: HashMap<(Netblock, u64), Vec<Time>> = HashMap::new();
        for ban in base.iter().rev() {
            if let Some(start) = ban.ban_started
                && !starts.is_taken((ban.netblock, ban.origin()), start.0)
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
            let from = entry.ban_started.unwrap_or_else(|| {
                let given = given.get_mut(&(entry.netblock, entry.ban_expires.end_ms()));
                given.and_then(Vec::pop).unwrap_or(now)
            });
            let whose = (entry.netblock, entry.origin());
            let start = starts.take_free(whose, from.0, |_| false);
            Arc::make_mut(entry).ban_started = Some(Time(start));
        }
        bans
    }

    /// The edit decides every member but the two that memory adds to a ban later, so that an older
    /// copy does not undo a lift.
    fn refresh(held: &Arc<Ban>, stale: &Arc<Ban>) -> Arc<Ban> {
        let mut fresh = Arc::clone(stale);
        if fresh.lifted.is_none() && held.lifted.is_some() {
            Arc::make_mut(&mut fresh).lifted = held.lifted;
        }
        if fresh.notes.is_none() && held.notes.is_some() {
            Arc::make_mut(&mut fresh).notes.clone_from(&held.notes);
        }
        fresh
    }

    fn lifts(before: &Arc<Ban>, after: &Arc<Ban>) -> bool {
        before.lifted.is_none() && after.lifted.is_some()
    }

    fn sort(bans: &mut [Arc<Ban>]) {
        bans.sort_by_key(|ban| (ban.ban_started, BanKey::of(ban)));
    }
}

/// Merges a ban that an edit changed from `before` to `theirs` while memory holds `ours` (STATE-4).
/// After a ban was made, memory changes only `lifted` and `notes`. Unless the edit changed these
/// too, they stay as in memory, so that an edited reason does not undo a lift.
pub(super) fn merge(before: &Ban, ours: &Ban, theirs: &Arc<Ban>) -> Arc<Ban> {
    let mut merged = Arc::clone(theirs);
    if theirs.lifted == before.lifted && ours.lifted != theirs.lifted {
        Arc::make_mut(&mut merged).lifted = ours.lifted;
    }
    if theirs.notes == before.notes && ours.notes != theirs.notes {
        Arc::make_mut(&mut merged).notes.clone_from(&ours.notes);
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ban(text: &str) -> Arc<Ban> {
        Arc::new(serde_json::from_str(text).unwrap())
    }

    fn starts(bans: &[Arc<Ban>]) -> Vec<u64> {
        bans.iter().map(|ban| ban.ban_started.unwrap().0).collect()
    }

    /// BAN-4: an entry without a start gets the moment at which it was read, and the same start
    /// when it is read again; two equal entries stay two.
    #[test]
    fn a_missing_start_is_filled_in_once() {
        let bare = ban(r#"{"netblock":"203.0.113.0/24","ban_expires":"permanent"}"#);
        let first = BansFile::complete(vec![bare.clone(), bare.clone()], &[], Time(1000));
        assert_eq!(starts(&first), [1000, 1001]);
        let other = ban(r#"{"netblock":"198.51.100.0/24","ban_expires":"permanent"}"#);
        let again = BansFile::complete(vec![bare.clone(), bare, other], &first, Time(5000));
        assert_eq!(starts(&again), [1000, 1001, 5000]);
    }

    /// STATE-4: no two bans share a name, whatever an operator wrote; unique names stay.
    #[test]
    fn names_are_unique() {
        let dated = |at: u64| {
            let mut ban = Ban::clone(&ban(
                r#"{"netblock":"203.0.113.0/24","ban_expires":"permanent"}"#,
            ));
            ban.ban_started = Some(Time(at));
            Arc::new(ban)
        };
        let bans = BansFile::complete(vec![dated(7), dated(7), dated(8), dated(7)], &[], Time(1));
        assert_eq!(starts(&bans), [7, 9, 8, 10]);
    }

    /// ALIVE-7, STATE-4: many entries of one netblock and one start, or without a start, are made
    /// distinct so fast that neither a service's start nor an edit waits.
    #[test]
    fn many_entries_of_one_start_are_made_distinct() {
        const MANY: u64 = 60_000;
        let bare = ban(r#"{"netblock":"203.0.113.0/24","ban_expires":"permanent"}"#);
        let mut dated = Ban::clone(&bare);
        dated.ban_started = Some(Time(7));
        let entries = |ban: &Arc<Ban>| vec![Arc::clone(ban); 60_000];
        let from = |first: u64| (first..first + MANY).collect::<Vec<_>>();
        let bans = BansFile::complete(entries(&Arc::new(dated)), &[], Time(1));
        assert_eq!(starts(&bans), from(7));
        let first = BansFile::complete(entries(&bare), &[], Time(9));
        assert_eq!(starts(&first), from(9));
        let again = BansFile::complete(entries(&bare), &first, Time(50));
        assert_eq!(starts(&again), from(9));
    }

    /// STATE-4: entries that are made distinct get the starts that a search millisecond by
    /// millisecond finds.
    #[test]
    fn distinct_starts_are_those_of_a_naive_search() {
        let run = |starts: Vec<Option<u64>>| {
            let bare = ban(r#"{"netblock":"203.0.113.0/24","ban_expires":"permanent"}"#);
            let entry = |start: &Option<u64>| {
                let mut ban = Ban::clone(&bare);
                ban.ban_started = start.map(Time);
                Arc::new(ban)
            };
            let completed = BansFile::complete(starts.iter().map(entry).collect(), &[], Time(3));
            let mut naive = starts.clone();
            let mut taken = HashSet::new();
            let first: Vec<bool> = (starts.iter())
                .map(|start| start.is_some_and(|start| taken.insert(start)))
                .collect();
            for (start, is_first) in naive.iter_mut().zip(first) {
                let mut free = start.unwrap_or(3);
                while !is_first && !taken.insert(free) {
                    free += 1;
                }
                *start = Some(free);
            }
            let naive: Vec<u64> = naive.into_iter().flatten().collect();
            assert_eq!(self::starts(&completed), naive, "{starts:?}");
        };
        proptest::proptest!(|(starts in proptest::collection::vec(proptest::option::of(0..9_u64), 0..20))| {
            run(starts);
        });
    }

    /// BAN-4: a netblock read back is masked, and never narrower than a client.
    #[test]
    fn netblocks_are_masked_and_widened() {
        let read = |netblock: &str| {
            let ban = ban(&format!(
                r#"{{"netblock":"{netblock}","ban_expires":"permanent"}}"#
            ));
            BansFile::complete(vec![ban], &[], Time(1))[0]
                .netblock
                .to_string()
        };
        assert_eq!(read("203.0.113.7/24"), "203.0.113.0/24");
        assert_eq!(read("203.0.113.7"), "203.0.113.7/32");
        assert_eq!(read("2001:db8::1"), "2001:db8::/64");
        assert_eq!(read("2001:db8::1/96"), "2001:db8::/64");
    }

    /// STATE-4: a ban that both sides changed has the members that the edit changed as in the edit,
    /// and keeps members that the service added.
    #[test]
    fn two_changes_of_one_ban_meet() {
        let before = ban(
            r#"{"netblock":"203.0.113.0/24","ban_expires":"permanent","reason":"a","ticket":1,"old":1}"#,
        );
        let mut ours = Ban::clone(&before);
        ours.lifted = Some(Time(5000));
        let theirs = ban(
            r#"{"netblock":"203.0.113.0/24","ban_expires":"permanent","reason":"b","ticket":2,"new":3}"#,
        );
        let merged = merge(&before, &ours, &theirs);
        assert_eq!(merged.lifted, Some(Time(5000)));
        assert_eq!(merged.reason, "b");
        assert_eq!(
            serde_json::to_string(&merged.unknown).unwrap(),
            r#"{"ticket":2,"new":3}"#
        );
    }
}
