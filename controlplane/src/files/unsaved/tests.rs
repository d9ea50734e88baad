//! Where changes go, and that nothing acknowledged is lost wherever the process dies.

use std::time::Duration;

use proptest::prelude::*;
use weir_shared::escalation::Policy;
use weir_shared::netblock::{Netblock, PrefixLengths};

use super::*;
use crate::bans::document::BansFile;
use crate::bans::journal::replay;
use crate::bans::ledger::changes::Happened;
use crate::bans::ledger::{AdminBan, Ledger, LedgerSettings};
use crate::state::Change;
use crate::testing::NOW;

const SECOND: u64 = 1_000_000_000;
const OPEN: JournalStart = JournalStart {
    number: 5,
    is_open: true,
    is_stale: false,
};

fn ban(number: u64) -> Arc<Ban> {
    let text = format!(
        r#"{{"netblock":"10.0.{number}.0/24","ban_started":"2026-11-21T16:00:00Z","ban_expires":"permanent"}}"#
    );
    Arc::new(serde_json::from_str(&text).unwrap())
}

fn change(number: u64) -> LedgerChange {
    LedgerChange {
        key: BanKey::of(&ban(number)),
        happened: Happened::Made,
        ban: Some(ban(number)),
    }
}

/// STATE-1, STATE-10: a change is due in the journal and in the document after the delay; with more
/// than 1,000 bans the next document is due only after five delays, and later with many; lines are
/// written meanwhile.
#[test]
fn documents_keep_their_pause_and_lines_do_not() {
    let mut unsaved = Unsaved::new(OPEN, SECOND, 0);
    assert!(!unsaved.document_is_due(1, 60 * SECOND) && !unsaved.line_is_due(60 * SECOND));
    unsaved.note(vec![change(1)], 0);
    unsaved.note(vec![change(2)], SECOND / 2);
    assert!(!unsaved.line_is_due(SECOND - 1) && unsaved.line_is_due(SECOND));
    assert!(!unsaved.document_is_due(2, SECOND - 1) && unsaved.document_is_due(2, SECOND));
    assert_eq!(unsaved.send_document(SECOND).journal, 5);
    assert!(unsaved.take_line(2).is_some_and(|line| line.put.is_empty()));

    unsaved.note(vec![change(3)], 2 * SECOND);
    assert!(unsaved.line_is_due(3 * SECOND));
    let line = unsaved.take_line(3).unwrap();
    assert_eq!(
        (line.number, line.put, line.remove),
        (7, vec![ban(3)], vec![])
    );
    assert!(!unsaved.line_is_due(6 * SECOND));
    assert!(!unsaved.document_is_due(3, 3 * SECOND - 1) && unsaved.document_is_due(3, 3 * SECOND));
    assert!(unsaved.document_is_due(1_000, 3 * SECOND));
    assert!(!unsaved.document_is_due(1_001, 6 * SECOND - 1));
    assert!(unsaved.document_is_due(1_001, 6 * SECOND));
    assert!(!unsaved.document_is_due(100_000, 51 * SECOND - 1));
    assert!(unsaved.document_is_due(100_000, 51 * SECOND));
}

/// STATE-10: lost changes, and the changes of an edit, go into a document; lines are written again
/// only once that document is on disk.
#[test]
fn a_closed_journal_opens_with_its_document() {
    let mut unsaved = Unsaved::new(OPEN, SECOND, 0);
    unsaved.note(vec![change(1)], 0);
    let older = unsaved.send_document(0);
    unsaved.note(vec![change(2)], 0);
    unsaved.close(0);
    assert!(unsaved.take_line(2).is_none() && !unsaved.line_is_due(9 * SECOND));
    assert!(unsaved.document_is_due(2, 0), "at once");
    let newer = unsaved.send_document(0);
    assert_eq!(unsaved.is_durable(older), Some(5));
    assert!(unsaved.take_line(2).is_none());
    assert_eq!(unsaved.is_durable(newer), Some(5));
    assert_eq!(unsaved.is_durable(newer), None, "no news");
    unsaved.note(vec![change(3)], 0);
    assert_eq!(unsaved.take_line(3).map(|line| line.number), Some(6));

    let edited = unsaved.send_document(0);
    unsaved.close_behind();
    assert!(!unsaved.document_is_due(3, 9 * SECOND));
    unsaved.note(vec![change(4)], 0);
    assert!(unsaved.take_line(4).is_none());
    assert_eq!(unsaved.is_durable(edited), Some(6));
    assert_eq!(unsaved.take_line(4).map(|line| line.number), Some(7));
}

/// STATE-10: a start whose file does not say which lines it holds begins with a document.
#[test]
fn a_start_without_a_base_begins_with_a_document() {
    let mut unsaved = Unsaved::new(JournalStart::default(), SECOND, 0);
    assert!(
        !unsaved.document_is_due(0, 9 * SECOND),
        "there is nothing to write"
    );
    unsaved.note(vec![change(1)], 0);
    assert!(unsaved.take_line(1).is_none());
    let stand = unsaved.send_document(0);
    unsaved.is_durable(stand);
    unsaved.note(vec![change(2)], 0);
    assert_eq!(unsaved.take_line(2).map(|line| line.number), Some(1));
    let stale = JournalStart {
        is_stale: true,
        ..OPEN
    };
    assert!(Unsaved::new(stale, SECOND, 7).document_is_due(1, 7));
}

/// STATE-10: many changes at once are a document: a quarter of all bans, or more than 4,096.
#[test]
fn many_changes_are_a_document() {
    for (count, held, is_line) in [(64, 64, true), (65, 200, false), (65, 300, true)] {
        let mut unsaved = Unsaved::new(OPEN, SECOND, 0);
        unsaved.note((0..count).map(change).collect(), 0);
        assert_eq!(
            unsaved.take_line(held).is_some(),
            is_line,
            "{count} of {held}"
        );
    }
}

/// What happens to the bans and their files.
#[derive(Clone, Debug)]
enum Op {
    Ban(u8),
    Lift(u8),
    /// Somebody waits for what changed.
    Record,
    /// A document is sent.
    Send,
    /// The document that was sent reaches the disk.
    Done,
    /// Somebody saves an edit: takes one out, changes one, adds one.
    Edit(u8, u8, u8),
    /// The loop takes it in.
    Take,
    /// The process dies in the middle of an append, with so much of it written.
    Die(u8),
}

fn op() -> impl Strategy<Value = Op> {
    let number = || 0u8..12;
    prop_oneof![
        4 => number().prop_map(Op::Ban),
        3 => number().prop_map(Op::Lift),
        4 => Just(Op::Record),
        1 => Just(Op::Send),
        2 => Just(Op::Done),
        1 => (number(), number(), number()).prop_map(|(a, b, c)| Op::Edit(a, b, c)),
        2 => Just(Op::Take),
        2 => any::<u8>().prop_map(Op::Die),
    ]
}

type Held = BTreeMap<BanKey, Arc<Ban>>;

struct World {
    rules: LedgerSettings,
    now: u64,
    ledger: Ledger,
    unsaved: Unsaved,
    /// The document on disk, and what it holds.
    document: (Vec<Arc<Ban>>, u64),
    in_flight: Option<(Vec<Arc<Ban>>, Stand, bool)>,
    journal: Vec<u8>,
    /// In the file, and in no document on disk yet; whether the loop has it.
    edit: Option<(Vec<Change<BansFile>>, bool)>,
    /// What was acknowledged, before the edit.
    acknowledged: Held,
}

fn bytes(line: &BanLine) -> Vec<u8> {
    let mut bytes = serde_json::to_vec(line).unwrap();
    bytes.push(b'\n');
    bytes
}

fn keyed(bans: Vec<Arc<Ban>>) -> Held {
    bans.into_iter()
        .map(|ban| (BanKey::of(&ban), ban))
        .collect()
}

impl World {
    fn new(max_bans: usize) -> Self {
        let rules = LedgerSettings {
            policy: Policy::default(),
            prefixes: PrefixLengths::default(),
            max_bans,
            observe: false,
        };
        Self {
            rules,
            now: NOW,
            ledger: Ledger::new(rules, Vec::new(), NOW).unwrap(),
            unsaved: Unsaved::new(OPEN, SECOND, 0),
            document: (Vec::new(), 5),
            in_flight: None,
            journal: Vec::new(),
            edit: None,
            acknowledged: Held::new(),
        }
    }

    fn note(&mut self) {
        let changes = self.ledger.take_changes();
        self.unsaved.note(changes, 0);
    }

    fn line(&mut self) -> Option<BanLine> {
        self.note();
        self.unsaved.take_line(self.ledger.len())
    }

    /// A line is on disk, or else a document is sent. What is in neither is in a document that was
    /// sent before.
    fn record(&mut self) {
        let Some(line) = self.line() else {
            return self.send();
        };
        self.journal.extend(bytes(&line));
        for key in line.remove {
            self.acknowledged.remove(&key);
        }
        self.acknowledged.extend(keyed(line.put));
        let mut all = self.acknowledged.clone();
        all.extend(
            self.in_flight
                .iter()
                .flat_map(|(bans, ..)| keyed(bans.clone())),
        );
        for (key, ban) in keyed(self.ledger.all()) {
            let known = [self.acknowledged.get(&key), all.get(&key)];
            assert!(known.contains(&Some(&ban)), "{ban:?} is nowhere");
        }
    }

    fn send(&mut self) {
        self.note();
        let stand = self.unsaved.send_document(0);
        // A document that lacks an edit is not written.
        let has_edit = self.edit.as_ref().is_none_or(|(_, is_taken)| *is_taken);
        self.in_flight = Some((self.ledger.all(), stand, has_edit));
    }

    fn edit(&mut self, out: u8, changed: u8, added: u8) {
        if self.edit.is_some() {
            return;
        }
        let at = |number: u8| self.document.0.get(usize::from(number)).cloned();
        let mut changes = Vec::new();
        if let Some(ban) = at(out) {
            changes.push(Change::Remove(BanKey::of(&ban)));
        }
        if let Some(before) = at(changed).filter(|_| changed != out) {
            let mut after = Ban::clone(&before);
            after.reason.push('!');
            let (before, after) = (Some(before), Arc::new(after));
            changes.push(Change::Put { before, after });
        }
        let after = ban(100 + u64::from(added));
        if !self
            .document
            .0
            .iter()
            .any(|held| held.netblock == after.netblock)
        {
            let before = None;
            changes.push(Change::Put { before, after });
        }
        self.edit = Some((changes, false));
    }

    /// What must be there after a kill: what was acknowledged, with the edit on top.
    fn expected(&self) -> Held {
        let mut held = self.acknowledged.clone();
        let changes = self.edit.iter().flat_map(|(changes, _)| changes);
        for change in changes {
            match change {
                Change::Remove(key) => drop(held.remove(key)),
                Change::Put { before, after } => {
                    let mut ban = Ban::clone(after);
                    let key = BanKey::of(after);
                    if let (Some(before), Some(ours)) = (before, held.get(&key))
                        && after.lifted == before.lifted
                    {
                        ban.lifted = ours.lifted;
                    }
                    held.insert(key, Arc::new(ban));
                }
            }
        }
        held
    }

    /// What a start found is what was acknowledged. Where the bound has no room for all of it, only
    /// bans that have ended may be missing: the document that dropped them was still on its way.
    fn check(&self, acknowledged: &Held) -> Result<(), TestCaseError> {
        let found = keyed(self.ledger.all());
        let bound = self.rules.max_bans.min(acknowledged.len());
        prop_assert_eq!(found.len(), bound, "{:?} of {:?}", found, acknowledged);
        for (key, ban) in acknowledged {
            match found.get(key) {
                Some(held) => prop_assert_eq!(held, ban),
                None => prop_assert!(!ban.is_active(self.now), "{:?} is lost", ban),
            }
        }
        Ok(())
    }

    /// A kill, with these bytes more in the journal, and the start that follows.
    fn die(&mut self, torn: &[u8]) {
        self.journal.extend(torn);
        let found = crate::state::journal::testing::lines(&self.journal, self.document.1);
        let edit = self.edit.take().map(|(changes, _)| changes);
        let bans = replay(self.document.0.clone(), found.lines, edit.as_deref());
        self.acknowledged = keyed(bans.clone());
        self.ledger = Ledger::new(self.rules, bans, self.now).unwrap();
        let start = JournalStart {
            number: found.last,
            is_open: edit.is_none(),
            is_stale: true,
        };
        self.journal.truncate(usize::try_from(found.end).unwrap());
        self.unsaved = Unsaved::new(start, SECOND, 0);
        self.in_flight = None;
        // A start with an edit begins with a document that holds it.
        if edit.is_some() {
            self.send();
            self.done(true);
        }
    }

    fn done(&mut self, empties: bool) {
        let Some((bans, stand, has_edit)) = self.in_flight.take() else {
            return;
        };
        if !has_edit {
            self.in_flight = Some((bans, stand, has_edit));
            return;
        }
        // Lines that came behind it are in the journal.
        let found = crate::state::journal::testing::lines(&self.journal, stand.journal);
        self.acknowledged = keyed(replay(bans.clone(), found.lines, None));
        self.document = (bans, stand.journal);
        if self.edit.as_ref().is_some_and(|(_, is_taken)| *is_taken) {
            self.edit = None;
        }
        let held = self.unsaved.is_durable(stand).unwrap();
        if empties && found.last <= held {
            self.journal.clear();
        }
    }
}

/// What happens, one after the other, and a kill at the end.
fn happen(ops: Vec<Op>, few: bool, empties: bool) -> Result<(), TestCaseError> {
    let mut world = World::new(if few { 5 } else { 1000 });
    for op in ops {
        world.now += 1;
        match op {
            Op::Ban(number) => {
                let netblock: Netblock = format!("10.1.{number}.0/24").parse().unwrap();
                let order = AdminBan {
                    netblock,
                    client: None,
                    duration: Some(Duration::from_millis(40)),
                    reason: "r".to_owned(),
                    force: false,
                };
                let _ = world.ledger.add(order, world.now);
            }
            Op::Lift(number) => {
                let netblock = format!("10.1.{number}.0/24").parse().unwrap();
                world.ledger.lift_netblock(netblock, world.now);
            }
            Op::Record => world.record(),
            Op::Send => world.send(),
            Op::Done => world.done(empties),
            // The bound would drop bans for what an edit adds.
            Op::Edit(out, changed, added) if !few => world.edit(out, changed, added),
            Op::Edit(..) => {}
            Op::Take => {
                if let Some((changes, is_taken @ false)) = &mut world.edit {
                    *is_taken = true;
                    world.ledger.edit(changes, world.now);
                    world.send();
                    world.unsaved.close_behind();
                }
            }
            Op::Die(part) => {
                let torn = world.line().map(|line| bytes(&line)).unwrap_or_default();
                let part = torn.len() * usize::from(part) / 256;
                let expected = world.expected();
                world.die(&torn[..part]);
                world.check(&expected)?;
            }
        }
    }
    let expected = world.expected();
    world.die(b"");
    world.check(&expected)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// STATE-10, STATE-4: after any bans, lifts, edits, documents and kills, even in the middle of
    /// a line or before an old journal was emptied, a start finds exactly the acknowledged changes,
    /// and a saved edit on top of them.
    #[test]
    fn a_start_finds_what_was_acknowledged(ops in prop::collection::vec(op(), 1..60), few in any::<bool>(), empties in any::<bool>()) {
        happen(ops, few, empties)?;
    }
}

/// STATE-10: a ban that has ended made room for one in a document that never reached the disk.
/// After the kill both are read, and the ended one makes room again.
#[test]
fn what_the_bound_drops_has_ended() {
    let ops = [
        &[Op::Ban(10)][..],
        &[const { Op::Ban(0) }; 5],
        &[Op::Lift(10), Op::Record, Op::Ban(5), Op::Send],
        &[Op::Lift(5), Op::Record],
    ];
    happen(ops.concat(), true, false).unwrap();
}
