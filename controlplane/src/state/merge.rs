//! The three-way merge of a state file: base, ours, theirs (STATE-4). Pure: no files, no clock.
//!
//! *Base* is what was last read or written, *ours* is what memory holds, *theirs* is an edit found on disk. The rule,
//! entry by entry (bans are named by netblock and `ban_started`, clients and lookups by their address):
//!
//! - What the edit did not touch stays as memory has it: an entry made, changed or dropped since the base is no
//!   business of the edit.
//! - An entry that the edit added is there. An entry that the edit took out is gone, whatever memory did to it meanwhile.
//! - An entry that the edit changed and memory did not is as the edit has it; if memory dropped it, it comes back.
//! - An entry that both changed: for bans each member that the edit changed is as the edit has it, every other as memory
//!   has it, so an edited reason does not undo a lift and a lift in the edit always stands; for clients and lookups the
//!   edited entry stands whole, because its members only make sense together.
//!
//! An edit becomes the base at once and travels to memory as a numbered difference. A document from memory says up to
//! which number it contains the edits; the others are applied to it before it is written.

use std::collections::{HashMap, HashSet};

use super::document::Document;

/// What an edit did to a file.
pub(super) struct Diff<D: Document> {
    pub(super) added: Vec<D::Entry>,
    /// Before and after.
    pub(super) changed: Vec<(D::Entry, D::Entry)>,
    pub(super) removed: Vec<D::Key>,
}

/// One file's base, and the edits that memory may not have taken in yet.
pub(super) struct Base<D: Document> {
    entries: Vec<D::Entry>,
    pending: Vec<(u64, Diff<D>)>,
}

impl<D: Document> Base<D> {
    pub(super) fn new(entries: Vec<D::Entry>) -> Self {
        Self {
            entries,
            pending: Vec::new(),
        }
    }

    /// What was last read or written.
    pub(super) fn entries(&self) -> &[D::Entry] {
        &self.entries
    }

    /// Makes `theirs` the base and returns what it changed, as edit `number`; none if no entry changed.
    pub(super) fn take(&mut self, number: u64, theirs: Vec<D::Entry>) -> Option<&Diff<D>> {
        let diff = Diff::between(&self.entries, &theirs);
        self.entries = theirs;
        if diff.is_empty() {
            return None;
        }
        self.pending.push((number, diff));
        self.pending.last().map(|(_, diff)| diff)
    }

    /// Queues a difference from an older base than the present one, which an editor saved into a file that was replaced
    /// in the meantime. The base stays: it is what the file holds.
    pub(super) fn take_late(&mut self, number: u64, diff: Diff<D>) {
        self.pending.push((number, diff));
    }

    /// A document of memory that contains the edits up to `applied`, with the others applied to it, in file order; none
    /// if there are no others.
    pub(super) fn merged(&self, ours: &[D::Entry], applied: u64) -> Option<Vec<D::Entry>> {
        let mut missing = self
            .pending
            .iter()
            .filter(|(number, _)| *number > applied)
            .peekable();
        missing.peek()?;
        let mut merged = ours.to_vec();
        for (_, diff) in missing {
            diff.apply(&mut merged);
        }
        D::sort(&mut merged);
        Some(merged)
    }

    /// `merged` is on disk, made of a document that contained the edits up to `applied`. Returns the base before.
    pub(super) fn written(&mut self, merged: Vec<D::Entry>, applied: u64) -> Vec<D::Entry> {
        self.pending.retain(|(number, _)| *number > applied);
        std::mem::replace(&mut self.entries, merged)
    }

    /// The file is gone together with its directory: nothing was taken out by anyone.
    pub(super) fn forget(&mut self) -> Vec<D::Entry> {
        std::mem::take(&mut self.entries)
    }
}

impl<D: Document> Diff<D> {
    pub(super) fn between(base: &[D::Entry], theirs: &[D::Entry]) -> Self {
        let mut before: HashMap<D::Key, &D::Entry> =
            base.iter().map(|entry| (D::key(entry), entry)).collect();
        let mut diff = Self {
            added: Vec::new(),
            changed: Vec::new(),
            removed: Vec::new(),
        };
        for entry in theirs {
            match before.remove(&D::key(entry)) {
                None => diff.added.push(entry.clone()),
                Some(old) if old != entry => diff.changed.push((old.clone(), entry.clone())),
                Some(_) => {}
            }
        }
        // In the order of the base, so that two runs report the same.
        diff.removed = base
            .iter()
            .map(D::key)
            .filter(|key| before.contains_key(key))
            .collect();
        diff
    }

    pub(super) fn is_empty(&self) -> bool {
        self.added.is_empty() && self.changed.is_empty() && self.removed.is_empty()
    }

    /// "3 added, 1 lifted, 2 removed" (STATE-3).
    pub(super) fn summary(&self) -> String {
        let lifted = self
            .changed
            .iter()
            .filter(|(before, after)| D::lifts(before, after))
            .count();
        let parts: Vec<String> = [
            (self.added.len(), "added"),
            (self.changed.len() - lifted, "changed"),
            (lifted, "lifted"),
            (self.removed.len(), "removed"),
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

    /// Every entry the edit leaves behind, changed or new.
    pub(super) fn put(&self) -> impl Iterator<Item = &D::Entry> {
        self.changed
            .iter()
            .map(|(_, after)| after)
            .chain(&self.added)
    }

    fn apply(&self, ours: &mut Vec<D::Entry>) {
        let removed: HashSet<D::Key> = self.removed.iter().copied().collect();
        ours.retain(|entry| !removed.contains(&D::key(entry)));
        let mut places: HashMap<D::Key, usize> = ours
            .iter()
            .enumerate()
            .map(|(place, entry)| (D::key(entry), place))
            .collect();
        let changes = self
            .changed
            .iter()
            .map(|(before, after)| (Some(before), after))
            .chain(self.added.iter().map(|after| (None, after)));
        for (before, after) in changes {
            let held = places
                .get(&D::key(after))
                .and_then(|place| ours.get_mut(*place));
            match (held, before) {
                (Some(held), Some(before)) if held != before => {
                    *held = D::merge(before, held, after);
                }
                (Some(held), _) => *held = after.clone(),
                (None, _) => {
                    places.insert(D::key(after), ours.len());
                    ours.push(after.clone());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, VecDeque};
    use std::net::Ipv4Addr;
    use std::sync::Arc;

    use proptest::prelude::*;
    use weir_shared::ban::{Ban, Cause, Expiry};
    use weir_shared::netblock::Netblock;
    use weir_shared::units::Time;

    use super::super::bans::Bans;
    use super::super::{BanKey, Edit, EditChange};
    use super::*;

    fn ban(number: u64) -> Arc<Ban> {
        let third = u32::try_from(number % 7).unwrap();
        Arc::new(Ban {
            netblock: Netblock::masked(Ipv4Addr::from(0xcb00_0000 | third << 8).into(), 24),
            client: None,
            ban_started: Some(Time(number)),
            ban_expires: Expiry::Permanent,
            cause: Cause::Edit,
            reason: String::new(),
            lifted: None,
            observed: false,
            notes: None,
            unknown: weir_shared::ban::Unknown::default(),
        })
    }

    #[derive(Clone, Debug)]
    enum Op {
        /// Memory makes a ban.
        Ban,
        /// Memory lifts one of its bans.
        Lift(usize),
        /// An administrator saves the file with one entry more, less, lifted, or with another reason.
        EditAdd,
        EditRemove(usize),
        EditLift(usize),
        EditReason(usize),
        /// The keeper looks at the file.
        Look,
        /// Memory takes one edit.
        Take,
        /// Memory queues its document.
        Save,
        /// The keeper writes the queued document.
        Write,
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            3 => Just(Op::Ban),
            2 => any::<usize>().prop_map(Op::Lift),
            2 => Just(Op::EditAdd),
            2 => any::<usize>().prop_map(Op::EditRemove),
            2 => any::<usize>().prop_map(Op::EditLift),
            2 => any::<usize>().prop_map(Op::EditReason),
            2 => Just(Op::Look),
            3 => Just(Op::Take),
            3 => Just(Op::Save),
            3 => Just(Op::Write),
        ]
    }

    /// Both sides of the protocol, without disk and threads.
    struct World {
        memory: Vec<Arc<Ban>>,
        applied: u64,
        channel: VecDeque<Edit>,
        queued: Option<(Vec<Arc<Ban>>, u64)>,
        base: Base<Bans>,
        file: Vec<Arc<Ban>>,
        number: u64,
    }

    impl World {
        fn look(&mut self) {
            if let Some(diff) = self.base.take(self.number + 1, self.file.clone()) {
                self.number += 1;
                self.channel.push_back(Bans::edit(self.number, diff));
            }
        }

        fn write(&mut self) {
            self.look();
            if let Some((ours, applied)) = self.queued.take() {
                let merged = self
                    .base
                    .merged(&ours, applied)
                    .unwrap_or_else(|| ours.clone());
                for ban in &merged {
                    let lift_lost = ban.lifted.is_none()
                        && ours.iter().any(|ours| {
                            BanKey::of(ours) == BanKey::of(ban) && ours.lifted.is_some()
                        });
                    assert!(!lift_lost, "the write undid a lift");
                }
                self.file = merged.clone();
                self.base.written(merged, applied);
            }
        }

        /// What the control loop does with an edit.
        fn take(&mut self) {
            let Some(edit) = self.channel.pop_front() else {
                return;
            };
            let EditChange::Bans { put, removed } = &edit.change else {
                unreachable!()
            };
            self.memory
                .retain(|ban| !removed.contains(&BanKey::of(ban)));
            for theirs in put {
                match self
                    .memory
                    .iter_mut()
                    .find(|ours| BanKey::of(ours) == BanKey::of(theirs))
                {
                    Some(ours) => *ours = Arc::new(edit.merged(ours, theirs)),
                    None => self.memory.push(Arc::new(theirs.clone())),
                }
            }
            self.applied = edit.number;
        }

        fn save(&mut self) {
            self.queued = Some((self.memory.clone(), self.applied));
        }
    }

    /// The naive model: what must be true of each ban in the end, whatever the order of looks and writes.
    #[derive(Clone, PartialEq, Eq, Debug, Default)]
    struct Fate {
        lifted: bool,
        reason: String,
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1500))]

        /// STATE-4: after any interleaving of bans, lifts, edits, looks and writes no entry is lost, none is doubled, and
        /// file and memory agree with a model that knows nothing of bases and merges.
        #[test]
        fn no_interleaving_loses_or_doubles_an_entry(ops in prop::collection::vec(op(), 1..60)) {
            let mut world = World { memory: vec![], applied: 0, channel: VecDeque::new(), queued: None, base: Base::new(vec![]), file: vec![], number: 0 };
            let mut model: BTreeMap<BanKey, Fate> = BTreeMap::new();
            let mut made = 0;
            for (step, op) in ops.into_iter().enumerate() {
                let at = Time(1_000_000 + step as u64);
                let pick = |list: &[Arc<Ban>], index: usize| (!list.is_empty()).then(|| index % list.len().max(1));
                match op {
                    Op::Ban => {
                        made += 1;
                        world.memory.push(ban(made));
                        model.insert(BanKey::of(&ban(made)), Fate::default());
                    }
                    Op::Lift(index) => if let Some(index) = pick(&world.memory, index) {
                        let ban = Arc::make_mut(&mut world.memory[index]);
                        ban.lifted.get_or_insert(at);
                        if let Some(fate) = model.get_mut(&BanKey::of(ban)) { fate.lifted = true; }
                    },
                    Op::EditAdd => {
                        made += 1;
                        world.file.push(ban(made));
                        model.insert(BanKey::of(&ban(made)), Fate::default());
                    }
                    Op::EditRemove(index) => if let Some(index) = pick(&world.file, index) {
                        let ban = world.file.remove(index);
                        model.remove(&BanKey::of(&ban));
                    },
                    Op::EditLift(index) => if let Some(index) = pick(&world.file, index) {
                        let ban = Arc::make_mut(&mut world.file[index]);
                        ban.lifted.get_or_insert(at);
                        if let Some(fate) = model.get_mut(&BanKey::of(ban)) { fate.lifted = true; }
                    },
                    Op::EditReason(index) => if let Some(index) = pick(&world.file, index) {
                        let ban = Arc::make_mut(&mut world.file[index]);
                        ban.reason = format!("edit {step}");
                        if let Some(fate) = model.get_mut(&BanKey::of(ban)) { fate.reason = ban.reason.clone(); }
                    },
                    Op::Look => world.look(),
                    Op::Take => world.take(),
                    Op::Save => world.save(),
                    Op::Write => world.write(),
                }
            }
            world.look();
            while !world.channel.is_empty() { world.take(); }
            world.save();
            world.write();
            prop_assert!(world.channel.is_empty());
            for (side, held) in [("memory", &world.memory), ("file", &world.file)] {
                let fates: BTreeMap<BanKey, Fate> = held.iter()
                    .map(|ban| (BanKey::of(ban), Fate { lifted: ban.lifted.is_some(), reason: ban.reason.clone() }))
                    .collect();
                prop_assert_eq!(fates.len(), held.len(), "doubled in {}", side);
                prop_assert_eq!(&fates, &model, "{} differs", side);
            }
        }
    }

    /// STATE-3: the log says what an edit did.
    #[test]
    fn an_edit_is_summed_up() {
        let base: Vec<_> = (1..=4).map(ban).collect();
        let mut theirs: Vec<_> = (2..=7).map(ban).collect();
        Arc::make_mut(&mut theirs[0]).lifted = Some(Time(5));
        Arc::make_mut(&mut theirs[1]).reason = "why".to_owned();
        let diff = Diff::<Bans>::between(&base, &theirs);
        assert_eq!(diff.summary(), "3 added, 1 changed, 1 lifted, 1 removed");
        assert_eq!(
            Diff::<Bans>::between(&base, &base).summary(),
            "no entry changed"
        );
    }
}
