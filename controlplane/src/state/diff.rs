//! Base, edit, difference (STATE-4). Pure: no files, no clock.
//!
//! The *base* is what a file held when it was last read or written. An edit is the copy that an editor read at some
//! moment, changed, and saved. The file's `written` member says of which moment the copy is, so three things can be told
//! apart entry by entry:
//!
//! - What the editor saw and changed or took out is the edit.
//! - What first stood in the file after that moment the editor never saw: it is kept though the copy lacks it.
//! - What was changed after that moment the editor saw as it was before: [`Document::refresh`] says what of the copy
//!   still counts. What was dropped after that moment does not come back.
//!
//! A copy without `written` is taken to be of the file as it was last read or written. Of two edits between two writes,
//! which nothing tells apart, the last one counts.
//!
//! Differences go to the owner, which puts them into memory; the next document of memory holds them, and becomes the base
//! when it is written.

use std::collections::{HashMap, VecDeque};

use weir_shared::units::Time;

use super::document::Document;

/// Entries that memory dropped and that are remembered, so that a copy from before does not bring them back. What was
/// dropped before the last 65,536 comes back with a copy that old.
const MAX_DROPPED: usize = 65_536;

/// What an edit did to one entry.
#[derive(Clone)]
pub(crate) enum Change<D: Document> {
    /// Added, or changed from `before`.
    Put {
        before: Option<D::Entry>,
        after: D::Entry,
    },
    /// Taken out.
    Remove(D::Key),
}

/// What an edit did to a file.
pub(super) struct Diff<D: Document> {
    pub(super) changes: Vec<Change<D>>,
    /// Entries that the editor did not see, or not as they are: what was saved lacks them, and memory still has them.
    pub(super) kept: usize,
}

/// What one file holds, and since when.
pub(super) struct Base<D: Document> {
    entries: Vec<D::Entry>,
    /// The moment of the last write. Each is later than the one before, whatever the clock does.
    written: Time,
    /// Of entries that are younger than the start; the others are of `read_at_start`.
    ages: HashMap<D::Key, Age>,
    read_at_start: Time,
    dropped: Dropped<D>,
    /// The file was lost with its directory: of what is put in its place nothing was taken out.
    lost: bool,
}

/// Moments of writes, by their `written`.
#[derive(Clone, Copy)]
struct Age {
    /// The first that had the entry.
    stood: Time,
    /// The last in which it had changed.
    changed: Time,
}

/// Entries that were dropped, with the moment of the first write without them. At most [`MAX_DROPPED`].
struct Dropped<D: Document> {
    at: HashMap<D::Key, Time>,
    order: VecDeque<(D::Key, Time)>,
}

impl<D: Document> Base<D> {
    /// A file as it was read at the start; `written` is what it says of itself, if anything.
    pub(super) fn new(entries: Vec<D::Entry>, written: Option<Time>) -> Self {
        let written = written.unwrap_or_default();
        Self {
            entries,
            written,
            ages: HashMap::new(),
            read_at_start: written,
            dropped: Dropped {
                at: HashMap::new(),
                order: VecDeque::new(),
            },
            lost: false,
        }
    }

    /// What was last read or written.
    pub(super) fn entries(&self) -> &[D::Entry] {
        &self.entries
    }

    /// The moment of the last write.
    pub(super) fn written(&self) -> Time {
        self.written
    }

    /// The moment of a write that is made now.
    pub(super) fn next_write(&self, now: Time) -> Time {
        now.max(Time(self.written.0.saturating_add(1)))
    }

    /// The file was lost together with its directory.
    pub(super) fn lose(&mut self) {
        self.lost = true;
    }

    /// Takes in an edit whose copy is of the moment `read`, of the last one if it does not say. What it changed is now in
    /// the base.
    pub(super) fn take(&mut self, theirs: Vec<D::Entry>, read: Option<Time>) -> Diff<D> {
        let read = match (self.lost, read) {
            (true, _) => None,
            (false, read) => Some(read.unwrap_or(Time(u64::MAX))),
        };
        self.lost = false;
        // An edit of an older copy is younger than the file that it replaced.
        let moment = match read {
            Some(read) if read >= self.written => self.written,
            _ => Time(self.written.0.saturating_add(1)),
        };
        let mut diff = Diff {
            changes: Vec::new(),
            kept: 0,
        };
        let order: Vec<D::Key> = self.entries.iter().map(D::key).collect();
        let mut held: HashMap<D::Key, D::Entry> =
            order.iter().copied().zip(self.entries.drain(..)).collect();
        for theirs in theirs {
            let key = D::key(&theirs);
            let Some(before) = held.remove(&key) else {
                if self.dropped.at.get(&key).is_some_and(|at| Some(*at) > read) {
                    diff.kept += 1;
                    continue;
                }
                let age = Age {
                    stood: moment,
                    changed: moment,
                };
                self.ages.insert(key, age);
                self.dropped.at.remove(&key);
                diff.put(None, &theirs);
                self.entries.push(theirs);
                continue;
            };
            let after = if Some(self.age(key).changed) > read {
                let fresh = D::refresh(&before, &theirs);
                diff.kept += usize::from(fresh != theirs);
                fresh
            } else {
                theirs
            };
            if after != before {
                let stood = self.age(key).stood;
                let changed = moment;
                self.ages.insert(key, Age { stood, changed });
                diff.put(Some(before), &after);
            }
            self.entries.push(after);
        }
        // In the order of the base, so that two runs report the same.
        for key in order {
            let Some(before) = held.remove(&key) else {
                continue;
            };
            if Some(self.age(key).stood) > read {
                diff.kept += 1;
                self.entries.push(before);
            } else {
                diff.changes.push(Change::Remove(key));
                self.drop_entry(key, moment);
            }
        }
        diff
    }

    /// This document of memory was written at this moment.
    pub(super) fn wrote(&mut self, entries: Vec<D::Entry>, at: Time) {
        let before = std::mem::take(&mut self.entries);
        let mut held: HashMap<D::Key, &D::Entry> =
            before.iter().map(|entry| (D::key(entry), entry)).collect();
        for entry in &entries {
            let key = D::key(entry);
            match held.remove(&key) {
                Some(before) if before == entry => {}
                Some(_) => {
                    let stood = self.age(key).stood;
                    self.ages.insert(key, Age { stood, changed: at });
                }
                None => {
                    let (stood, changed) = (at, at);
                    self.ages.insert(key, Age { stood, changed });
                    self.dropped.at.remove(&key);
                }
            }
        }
        let gone: Vec<D::Key> = held.into_keys().collect();
        for key in gone {
            self.drop_entry(key, at);
        }
        self.entries = entries;
        self.written = at;
        self.lost = false;
    }

    fn age(&self, key: D::Key) -> Age {
        self.ages.get(&key).copied().unwrap_or(Age {
            stood: self.read_at_start,
            changed: self.read_at_start,
        })
    }

    fn drop_entry(&mut self, key: D::Key, at: Time) {
        self.ages.remove(&key);
        self.dropped.at.insert(key, at);
        self.dropped.order.push_back((key, at));
        while self.dropped.order.len() > MAX_DROPPED {
            if let Some((key, at)) = self.dropped.order.pop_front()
                && self.dropped.at.get(&key) == Some(&at)
            {
                self.dropped.at.remove(&key);
            }
        }
    }
}

impl<D: Document> Diff<D> {
    fn put(&mut self, before: Option<D::Entry>, after: &D::Entry) {
        let after = after.clone();
        self.changes.push(Change::Put { before, after });
    }

    /// "3 added, 1 lifted, 2 removed" (STATE-3).
    pub(super) fn summary(&self) -> String {
        let (mut added, mut changed, mut lifted, mut removed) = (0, 0, 0, 0);
        for change in &self.changes {
            *match change {
                Change::Put { before: None, .. } => &mut added,
                Change::Put {
                    before: Some(before),
                    after,
                } if D::lifts(before, after) => &mut lifted,
                Change::Put { .. } => &mut changed,
                Change::Remove(_) => &mut removed,
            } += 1;
        }
        let parts: Vec<String> = [
            (added, "added"),
            (changed, "changed"),
            (lifted, "lifted"),
            (removed, "removed"),
            (self.kept, "kept as they are newer than the edited copy"),
        ]
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} {what}"))
        .collect();
        if parts.is_empty() {
            "no entry changed".to_owned()
        } else {
            parts.join(", ")
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.kept == 0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use proptest::prelude::*;
    use weir_shared::ban::Ban;
    use weir_shared::escalation::Policy;
    use weir_shared::netblock::PrefixLengths;

    use super::*;
    use crate::bans::document::{BanKey, BansFile};
    use crate::bans::ledger::{Ledger, Order, Rules};

    const NOW: u64 = 1_795_276_800_000;

    #[derive(Clone, Debug)]
    enum Op {
        /// Memory makes a ban.
        Ban(u8),
        /// Memory lifts what is active there.
        Lift(u8),
        /// An editor reads the file.
        OpenEditor,
        /// The editor changes its copy: an entry more, less, lifted, or with another reason.
        Add,
        Remove(usize),
        LiftByHand(usize),
        Reason(usize),
        /// The editor saves its copy.
        CloseEditor,
        /// The thread looks at the file.
        Look,
        /// Memory takes one edit, and sends the document that holds it.
        Take,
        /// Memory sends its document.
        Save,
        /// The thread writes the queued document.
        Write,
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            4 => (0..6u8).prop_map(Op::Ban),
            2 => (0..6u8).prop_map(Op::Lift),
            3 => Just(Op::OpenEditor),
            2 => Just(Op::Add),
            2 => any::<usize>().prop_map(Op::Remove),
            2 => any::<usize>().prop_map(Op::LiftByHand),
            2 => any::<usize>().prop_map(Op::Reason),
            3 => Just(Op::CloseEditor),
            2 => Just(Op::Look),
            3 => Just(Op::Take),
            3 => Just(Op::Save),
            3 => Just(Op::Write),
        ]
    }

    type File = (Vec<Arc<Ban>>, Option<Time>);

    /// Both sides, without disk and threads. Memory is the ledger itself.
    struct World {
        ledger: Ledger,
        taken: u64,
        edits: VecDeque<(u64, Vec<Change<BansFile>>)>,
        queued: Option<(Vec<Arc<Ban>>, u64)>,
        base: Base<BansFile>,
        revision: u64,
        file: File,
        /// An editor saved it, and nobody looked yet.
        edited: bool,
        /// The file has never been written, so that it does not say of which moment it is.
        stamped: bool,
    }

    impl World {
        fn new(stamped: bool) -> Self {
            let rules = Rules {
                policy: Policy::default(),
                prefixes: PrefixLengths::default(),
                max_bans: 10_000,
                observe: false,
            };
            Self {
                ledger: Ledger::new(rules, Vec::new(), NOW).unwrap(),
                taken: 0,
                edits: VecDeque::new(),
                queued: None,
                base: Base::new(Vec::new(), None),
                revision: 0,
                file: (Vec::new(), None),
                edited: false,
                stamped,
            }
        }

        fn look(&mut self) {
            if !std::mem::take(&mut self.edited) {
                return;
            }
            let (entries, read) = self.file.clone();
            let entries = BansFile::complete(entries, self.base.entries(), Time(NOW));
            let diff = self.base.take(entries, read);
            if !diff.is_empty() {
                self.revision += 1;
                self.edits.push_back((self.revision, diff.changes));
            }
        }

        fn take(&mut self) {
            if let Some((revision, changes)) = self.edits.pop_front() {
                assert_eq!(self.ledger.edit(&changes, NOW), 0);
                self.taken = revision;
                self.save();
            }
        }

        fn save(&mut self) {
            self.queued = Some((self.ledger.all(), self.taken));
        }

        /// Compare and swap.
        fn write(&mut self) {
            self.look();
            if let Some((mut entries, revision)) = self.queued.take()
                && revision == self.revision
            {
                BansFile::sort(&mut entries);
                let at = self.base.next_write(Time(NOW));
                self.file = (entries.clone(), self.stamped.then_some(at));
                self.base.wrote(entries, at);
            }
        }

        fn settle(&mut self) {
            self.look();
            while !self.edits.is_empty() {
                self.take();
            }
            self.save();
            self.write();
        }
    }

    /// The naive model: what must be true of each ban in the end, whatever the order of looks and writes.
    #[derive(Clone, PartialEq, Eq, Debug, Default)]
    struct Fate {
        lifted: bool,
        reason: String,
    }

    /// An open editor: what it read, and what it made of it.
    struct Editor {
        read: Vec<Arc<Ban>>,
        copy: Vec<Arc<Ban>>,
        moment: Option<Time>,
    }

    fn run(ops: Vec<Op>, stamped: bool) -> Result<(), TestCaseError> {
        let mut world = World::new(stamped);
        world.settle();
        let mut model: BTreeMap<BanKey, Fate> = BTreeMap::new();
        let mut editor: Option<Editor> = None;
        for (step, op) in ops.into_iter().enumerate() {
            let netblock = |net: u8| format!("203.0.{net}.0/24").parse().unwrap();
            let pick = |copy: &[Arc<Ban>], index: usize| index.checked_rem(copy.len());
            match (op, &mut editor) {
                (Op::Ban(net), _) => {
                    let order = Order {
                        netblock: netblock(net),
                        client: None,
                        duration: None,
                        reason: String::new(),
                    };
                    let ban = world.ledger.add(order, NOW).unwrap();
                    model.insert(BanKey::of(&ban), Fate::default());
                }
                (Op::Lift(net), _) => {
                    let client = format!("203.0.{net}.1").parse().unwrap();
                    for ban in world.ledger.lift(client, NOW) {
                        // One that an edit took out and memory still holds is no entry any more.
                        if let Some(fate) = model.get_mut(&BanKey::of(&ban)) {
                            fate.lifted = true;
                        }
                    }
                }
                // One at a time; two edits between two writes are a matter of who was last.
                (Op::OpenEditor, None) => {
                    if world.edited || !world.edits.is_empty() || world.taken < world.revision {
                        world.settle();
                    }
                    world.write();
                    let (read, moment) = world.file.clone();
                    let copy = read.clone();
                    editor = Some(Editor { read, copy, moment });
                    // Without a moment in the file a copy must not be older than the file.
                    if !stamped {
                        world.queued = None;
                    }
                }
                (Op::Add, Some(editor)) => {
                    let mut added = serde_json::json!({"netblock": "198.51.100.0/24", "ban_expires": "permanent"});
                    added["ban_started"] = serde_json::json!(Time(step as u64));
                    editor.copy.push(serde_json::from_value(added).unwrap());
                }
                (Op::Remove(index), Some(editor)) => {
                    if let Some(index) = pick(&editor.copy, index) {
                        editor.copy.remove(index);
                    }
                }
                (Op::LiftByHand(index), Some(editor)) => {
                    if let Some(index) = pick(&editor.copy, index) {
                        let ban = Arc::make_mut(&mut editor.copy[index]);
                        ban.lifted.get_or_insert(Time(NOW + step as u64));
                    }
                }
                (Op::Reason(index), Some(editor)) => {
                    if let Some(index) = pick(&editor.copy, index) {
                        Arc::make_mut(&mut editor.copy[index]).reason = format!("edit {step}");
                    }
                }
                (Op::CloseEditor, open) => {
                    let Some(Editor { read, copy, moment }) = open.take() else {
                        continue;
                    };
                    for ban in &read {
                        if !copy.iter().any(|kept| BanKey::of(kept) == BanKey::of(ban)) {
                            model.remove(&BanKey::of(ban));
                        }
                    }
                    for ban in &copy {
                        let seen = read.iter().any(|seen| BanKey::of(seen) == BanKey::of(ban));
                        let fate = match model.entry(BanKey::of(ban)) {
                            std::collections::btree_map::Entry::Occupied(held) => held.into_mut(),
                            std::collections::btree_map::Entry::Vacant(_) if seen => continue,
                            std::collections::btree_map::Entry::Vacant(place) => {
                                place.insert(Fate::default())
                            }
                        };
                        fate.lifted |= ban.lifted.is_some();
                        fate.reason.clone_from(&ban.reason);
                    }
                    world.file = (copy, moment);
                    world.edited = true;
                }
                (Op::Look, _) => world.look(),
                (Op::Take, _) => world.take(),
                (Op::Save, _) => world.save(),
                // A copy without a moment is of the file as it stands: only then it is right.
                (Op::Write, open) if stamped || open.is_none() => world.write(),
                _ => {}
            }
        }
        world.settle();
        for (side, held) in [("memory", world.ledger.all()), ("file", world.file.0)] {
            let fate = |ban: &Arc<Ban>| Fate {
                lifted: ban.lifted.is_some(),
                reason: ban.reason.clone(),
            };
            let fates: BTreeMap<BanKey, Fate> = held
                .iter()
                .map(|ban| (BanKey::of(ban), fate(ban)))
                .collect();
            prop_assert_eq!(fates.len(), held.len(), "doubled in {}", side);
            prop_assert_eq!(&fates, &model, "{} differs", side);
        }
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// STATE-4: bans are made and lifted, an editor reads, waits and saves, the file is looked at and written, in any
        /// order: no entry is lost, none comes back, none is doubled, no lift is undone.
        #[test]
        fn no_interleaving_loses_an_entry(ops in prop::collection::vec(op(), 1..60)) {
            run(ops, true)?;
        }

        /// STATE-4: the same for a file from before, which does not say of which moment it is, as long as it is not written
        /// while an editor has it open.
        #[test]
        fn a_file_without_a_moment_is_edited_as_it_stands(ops in prop::collection::vec(op(), 1..60)) {
            run(ops, false)?;
        }
    }

    /// STATE-3: the log says what an edit did.
    #[test]
    fn an_edit_is_summed_up() {
        let ban = |number: u64| {
            let ban = serde_json::json!({
                "netblock": format!("203.0.{number}.0/24"), "ban_expires": "permanent", "ban_started": Time(number)
            });
            Arc::new(serde_json::from_value::<Ban>(ban).unwrap())
        };
        let mut base = Base::<BansFile>::new((1..=4).map(ban).collect(), Some(Time(NOW)));
        let mut theirs: Vec<_> = (2..=7).map(ban).collect();
        Arc::make_mut(&mut theirs[0]).lifted = Some(Time(5));
        Arc::make_mut(&mut theirs[1]).reason = "why".to_owned();
        let diff = base.take(theirs.clone(), Some(Time(NOW)));
        assert_eq!(diff.summary(), "3 added, 1 changed, 1 lifted, 1 removed");
        assert_eq!(
            base.take(theirs, Some(Time(NOW))).summary(),
            "no entry changed"
        );
        let diff = base.take(Vec::new(), Some(Time(NOW - 1)));
        assert_eq!(
            diff.summary(),
            "6 kept as they are newer than the edited copy"
        );
    }
}
