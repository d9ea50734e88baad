use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use weir_shared::ban::Ban;
use weir_shared::escalation::Policy;
use weir_shared::netblock::PrefixLengths;

use super::*;
use crate::bans::document::{BanKey, BansFile};
use crate::bans::ledger::{AdminBan, Ledger, LedgerSettings};

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
    /// The service is killed and started anew, with all that memory holds on disk; a copy may have
    /// been saved over the file that it never looked at.
    Kill,
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
        2 => Just(Op::Kill),
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
    /// What was last written, under its second name.
    kept: Option<(File, String)>,
    /// An editor saved it, and nobody looked yet.
    edited: bool,
    /// An edit was taken in, and the document that follows at once is not written yet.
    is_behind: bool,
    /// The file has never been written, so that it does not say of which moment it is.
    stamped: bool,
}

fn rules() -> LedgerSettings {
    LedgerSettings {
        policy: Policy::default(),
        prefixes: PrefixLengths::default(),
        max_bans: 10_000,
        observe: false,
    }
}

impl World {
    fn new(stamped: bool) -> Self {
        Self {
            ledger: Ledger::new(rules(), Vec::new(), NOW).unwrap(),
            taken: 0,
            edits: VecDeque::new(),
            queued: None,
            base: Base::new(Vec::new(), None),
            revision: 0,
            file: (Vec::new(), None),
            kept: None,
            edited: false,
            is_behind: false,
            stamped,
        }
    }

    /// Memory is gone. What is on disk becomes memory, as at a start.
    fn kill(&mut self) {
        self.edits.clear();
        self.queued = None;
        (self.taken, self.revision) = (0, 0);
        let (entries, read) = self.file.clone();
        let remembered = |(entries, written): &File, history: &str| {
            let history = serde_json::from_str(history).unwrap();
            Base::<BansFile>::remembered(entries.clone(), *written, history)
        };
        self.base = match &self.kept {
            None => Base::new(entries, read),
            Some((kept, history)) if kept.0 == entries && (kept.1 == read || !self.stamped) => {
                remembered(&self.file, history)
            }
            Some((kept, history)) => {
                let mut base = remembered(kept, history);
                self.is_behind = !base.take_found(entries, read, Time(NOW)).is_empty();
                let mut entries = base.entries().to_vec();
                BansFile::sort(&mut entries);
                self.queued = Some((entries, 0));
                base
            }
        };
        self.edited = false;
        let bans = self.base.entries().to_vec();
        self.ledger = Ledger::new(rules(), bans, NOW).unwrap();
    }

    /// Whether the disk has all that memory holds.
    fn is_saved(&self) -> bool {
        let mut held = self.ledger.all();
        BansFile::sort(&mut held);
        let mut base = self.base.entries().to_vec();
        BansFile::sort(&mut base);
        self.edits.is_empty() && self.taken == self.revision && held == base
    }

    fn look(&mut self) {
        if !std::mem::take(&mut self.edited) {
            return;
        }
        let (entries, read) = self.file.clone();
        let diff = self.base.take_found(entries, read, Time(NOW));
        if !diff.is_empty() {
            self.revision += 1;
            self.is_behind = true;
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
            let history = serde_json::to_string(&self.base.history(&entries, at)).unwrap();
            self.file = (entries.clone(), self.stamped.then_some(at));
            self.is_behind = false;
            self.kept = Some(((entries.clone(), Some(at)), history));
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

/// The naive model: what must be true of each ban in the end, whatever the order of looks and
/// writes.
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
                let order = AdminBan {
                    netblock: netblock(net),
                    client: None,
                    duration: None,
                    reason: String::new(),
                    force: false,
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
                if world.edited || !world.edits.is_empty() || world.is_behind {
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
                let mut added =
                    serde_json::json!({"netblock": "198.51.100.0/24", "ban_expires": "permanent"});
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
            (Op::Kill, _) if world.is_saved() => world.kill(),
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

    /// STATE-4, STATE-2: bans are made and lifted, an editor reads, waits and saves, the file is
    /// looked at and written, the service is killed, in any order: no entry is lost, none comes
    /// back, none is doubled, no lift is undone.
    #[test]
    fn no_interleaving_loses_an_entry(ops in prop::collection::vec(op(), 1..60)) {
        run(ops, true)?;
    }

    /// STATE-4: the same for a file from before, which does not say of which moment it is, as long
    /// as it is not written while an editor has it open.
    #[test]
    fn a_file_without_a_moment_is_edited_as_it_stands(ops in prop::collection::vec(op(), 1..60)) {
        run(ops, false)?;
    }
}

/// STATE-3, TELL-4: the log says what an edit did.
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
    let named: Vec<_> = [
        "2.0/24 lifted",
        "3.0/24 changed",
        "5.0/24 added",
        "6.0/24 added",
    ]
    .into_iter()
    .chain(["7.0/24 added", "1.0/24 removed"])
    .map(|rest| format!("203.0.{rest}"))
    .collect();
    assert_eq!(diff.named(), named.join(", "));
    assert_eq!(
        base.take(theirs, Some(Time(NOW))).summary(),
        "no entry changed"
    );
    let many = base.take((10..30).map(ban).collect(), Some(Time(NOW - 1)));
    assert!(many.named().ends_with(", 203.0.19.0/24 added, 10 more"));
    let diff = base.take((10..30).map(ban).collect(), Some(Time(NOW - 1)));
    assert_eq!(
        diff.summary(),
        "6 kept as they are newer than the edited copy"
    );
}

fn netblock_ban(text: &str) -> Arc<Ban> {
    let ban = serde_json::json!({
        "netblock": text, "ban_started": Time(1), "ban_expires": "permanent",
    });
    Arc::new(serde_json::from_value(ban).unwrap())
}

/// STATE-4: an entry that is put back into a copy without it is added again; one that the copy had
/// before it was dropped stays away. The moment of the copy is all that tells them apart.
#[test]
fn what_was_dropped_is_added_by_a_copy_without_it_alone() {
    let ban = netblock_ban("203.0.113.0/24");
    let mut base: Base<BansFile> = Base::new(vec![Arc::clone(&ban)], Some(Time(NOW)));
    base.wrote(Vec::new(), Time(NOW + 1));
    let older = base.take(vec![Arc::clone(&ban)], Some(Time(NOW)));
    assert_eq!((older.changes.len(), older.kept), (0, 1));
    let newest = base.take(vec![ban], Some(Time(NOW + 1)));
    assert_eq!(newest.summary(), "1 added");
}

/// STATE-4: between two writes the newest copy may be edited twice, and the second edit sees the
/// first. What the edit of an older copy added, an editor of the newest has not seen.
#[test]
fn two_edits_of_the_newest_copy_follow_each_other() {
    let ban = netblock_ban("203.0.113.0/24");
    for (moment, told) in [(NOW, "1 removed"), (NOW - 1, "1 kept as")] {
        let mut base: Base<BansFile> = Base::new(Vec::new(), Some(Time(NOW)));
        base.take(vec![Arc::clone(&ban)], Some(Time(moment)));
        let second = base.take(Vec::new(), Some(Time(NOW))).summary();
        assert!(second.starts_with(told), "{second}");
    }
}

/// STATE-4: a lift by an edit is not undone by an edit of an older copy, whose editor has not seen
/// it; what that one wrote otherwise holds.
#[test]
fn a_lift_by_an_edit_stands_before_an_older_copy() {
    let ban = netblock_ban("203.0.113.0/24");
    let mut base: Base<BansFile> = Base::new(vec![Arc::clone(&ban)], Some(Time(NOW)));
    base.wrote(vec![Arc::clone(&ban)], Time(NOW + 1));
    let (mut lifted, mut older) = (Ban::clone(&ban), Ban::clone(&ban));
    lifted.lifted = Some(Time(NOW + 2));
    older.reason = "older".to_owned();
    let newest = base.take(vec![Arc::new(lifted)], Some(Time(NOW + 1)));
    assert_eq!(newest.summary(), "1 lifted");
    let edit = base.take(vec![Arc::new(older)], Some(Time(NOW)));
    assert_eq!((edit.changes.len(), edit.kept), (1, 1));
    let held = &base.entries()[0];
    assert_eq!(
        (held.lifted, held.reason.as_str()),
        (Some(Time(NOW + 2)), "older")
    );
}

/// STATE-4: an entry that was dropped, added and dropped again is remembered by its second drop;
/// the first goes with the oldest.
#[test]
fn what_was_dropped_twice_is_remembered_by_the_later_drop() {
    let twice = netblock_ban("203.0.113.0/24");
    let mut base: Base<BansFile> = Base::new(vec![Arc::clone(&twice)], Some(Time(NOW)));
    base.wrote(Vec::new(), Time(NOW + 1));
    base.wrote(vec![Arc::clone(&twice)], Time(NOW + 2));
    base.wrote(Vec::new(), Time(NOW + 3));
    let others = (0..u32::try_from(MAX_DROPPED).unwrap() - 1).map(|number| {
        let address = std::net::Ipv4Addr::from((10 << 24) + number);
        netblock_ban(&format!("{address}/32"))
    });
    base.wrote(others.collect(), Time(NOW + 4));
    base.wrote(Vec::new(), Time(NOW + 5));
    assert_eq!(base.dropped.order.len(), MAX_DROPPED);
    let edit = base.take(vec![twice], Some(Time(NOW + 2)));
    assert_eq!((edit.changes.len(), edit.kept), (0, 1));
}
