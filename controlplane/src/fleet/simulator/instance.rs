//! One instance in a simulated fleet: the real ledger, the real core, and a disk.

use std::sync::Arc;
use std::time::Duration;

use weir_shared::ban::{Ban, Expiry, RequestNote};
use weir_shared::client::Client;
use weir_shared::escalation::Policy;
use weir_shared::event::{LimitExceeded, Offence};
use weir_shared::netblock::{Netblock, PrefixLengths};
use weir_shared::verdict::LimitKind;

use crate::bans::Subject;
use crate::bans::document::{BanKey, BansFile};
use crate::bans::ledger::{AdminBan, BanOutcome, Ledger, LedgerSettings};
use crate::fleet::core::Core;
use crate::fleet::engine::{Answer, Cursor, Engine, Fault};
use crate::fleet::event::{self, Event};
use crate::fleet::filing::{Filing, KeptFiling};
use crate::fleet::place::Point;
use crate::fleet::replica::{Effect, Replica};
use crate::fleet::stamp::Origin;
use crate::rules::{Entry, Expected, FileChange, ListKey, SharedLists};
use crate::state::Change;

/// Batches that are read at once.
pub(super) const READ: usize = 7;

type Disk = (Vec<Arc<Ban>>, Replica, KeptFiling, Option<Point>);

pub(super) struct Instance {
    pub(super) name: String,
    pub(super) ledger: Ledger,
    pub(super) core: Core,
    /// How far its clock is ahead.
    pub(super) skew_ms: i64,
    /// Whether it has met the engine since it lost it.
    is_linked: bool,
    /// What it says hello with next, which no other connection has.
    hello: u128,
    /// bans.json and what it knew of the fleet, written in one step, with the point to go on from.
    disk: Option<Disk>,
    /// How often something had been read that was made long before, when that was written.
    late: u64,
    /// lists.json as it lies there.
    pub(super) file: SharedLists,
    filing: Filing,
    /// What is to be written into it, once the disk holds this change.
    noted: (u64, Vec<FileChange>),
    /// The change that the disk holds, and the one that it is to hold soon.
    saved: u64,
    hurried: u64,
}

pub(super) fn settings(observe: bool) -> LedgerSettings {
    LedgerSettings {
        policy: Policy::default(),
        prefixes: PrefixLengths::default(),
        max_bans: 10_000,
        observe,
    }
}

/// A batch without its salt.
fn opened(sealed: &[u8]) -> &[u8] {
    &sealed[size_of::<u128>()..]
}

/// Of the boot with this number.
fn first_hello(nonce: u64) -> u128 {
    (u128::from(nonce) << 64) + 1
}

impl Instance {
    pub(super) fn new(name: &str, nonce: u64, skew_ms: i64, held: Vec<Arc<Ban>>, now: u64) -> Self {
        let origin = Origin::new(name, u128::from(nonce)).unwrap();
        let (core, effects) = Core::new(origin, &held);
        let ledger = Ledger::new(settings(false), held, now).unwrap();
        let mut instance = Self {
            name: name.to_owned(),
            ledger,
            core,
            skew_ms,
            is_linked: false,
            hello: first_hello(nonce),
            disk: None,
            late: 0,
            file: SharedLists::default(),
            filing: Filing::default(),
            noted: (0, Vec::new()),
            saved: 0,
            hurried: 0,
        };
        instance.obey(effects, now);
        instance
    }

    pub(super) fn now(&self, at: u64) -> u64 {
        at.saturating_add_signed(self.skew_ms)
    }

    /// What the control loop does with the changes of a turn.
    fn settle(&mut self, now: u64) {
        let changes = self.ledger.take_changes();
        let effects = self.core.follow(&changes, now);
        self.obey(effects, now);
    }

    /// What the fleet has the ledger do is not told to the fleet again.
    fn obey(&mut self, effects: Vec<Effect>, now: u64) {
        for Effect { key, ban } in effects {
            if !self.ledger.take_in(key, ban, now) {
                self.core.dropped(key);
            }
        }
        let before = self.core.waiting();
        let changes = self.ledger.take_changes();
        let more = self.core.follow(&changes, now);
        assert!(more.is_empty(), "an echo: {more:?}");
        assert_eq!(self.core.waiting(), before, "an echo is sent: {changes:?}");
    }

    pub(super) fn save(&mut self) {
        self.saved = self.core.replica().kept_changes();
        // A point that is older than what is known is as good, but for what was made long before.
        let late = std::mem::replace(&mut self.late, self.core.late());
        let before = self.disk.take().and_then(|(.., point)| point);
        let before = before.filter(|_| self.late == late);
        self.disk = Some((
            self.ledger.all(),
            self.core.replica().clone(),
            self.filing.kept(),
            self.core.point().or(before),
        ));
    }

    /// Somebody edits lists.json. It is heard later.
    pub(super) fn edits_list(&mut self, key: ListKey, entry: Option<Entry>) {
        self.file.is_there = true;
        match entry {
            Some(entry) => drop(self.file.entries.insert(key, entry)),
            None => drop(self.file.entries.remove(&key)),
        }
    }

    /// What the loop and the threads of the files do in a turn: the disk gets what was changed in
    /// the turn before, what was noted is written, what the file holds is heard, and what is to be
    /// written is noted.
    pub(super) fn file_turn(&mut self, at: u64) {
        if self.hurried > self.saved {
            self.save();
        }
        self.write_file();
        self.hear_file(at);
        if self.noted.1.is_empty() {
            let now = self.now(at);
            let due = self.filing.due(&self.core, now);
            if !due.is_empty() {
                self.noted = (self.hurry(), due);
            }
        }
    }

    /// The disk is to hold what has changed just now.
    fn hurry(&mut self) -> u64 {
        self.core.note_change();
        self.hurried = self.core.replica().kept_changes();
        self.hurried
    }

    /// What was noted is written. A kill may follow at once.
    pub(super) fn write_file(&mut self) {
        if self.noted.0 > self.saved {
            return;
        }
        for change in &self.noted.1 {
            let stands = self.file.entries.get(&change.key).cloned();
            if change.expected == Expected::Is(stands) {
                match &change.entry {
                    Some(entry) => drop(self.file.entries.insert(change.key, entry.clone())),
                    None => drop(self.file.entries.remove(&change.key)),
                }
            }
            self.file.is_there = true;
        }
    }

    fn hear_file(&mut self, at: u64) {
        let now = self.now(at);
        if self.filing.read(&self.file, &mut self.core, now) {
            self.hurry();
        }
        if self.noted.0 <= self.saved && !std::mem::take(&mut self.noted.1).is_empty() {
            self.filing.has_written();
        }
    }

    /// Whether the file was heard, and holds all that the fleet says.
    pub(super) fn is_file_quiet(&self, at: u64) -> bool {
        let due = self.filing.clone().due(&self.core, self.now(at));
        self.noted.1.is_empty() && due.is_empty()
    }

    /// It is killed, and starts again from what is on its disk, or from nothing.
    pub(super) fn restart(&mut self, nonce: u64, at: u64, disk_is_lost: bool) {
        let now = self.now(at);
        if disk_is_lost {
            self.disk = None;
            self.file = SharedLists::default();
        }
        let (held, replica, filed, point) = match &self.disk {
            Some((held, replica, filed, point)) => (
                held.clone(),
                Some(replica),
                Some(filed.clone()),
                point.clone(),
            ),
            None => (Vec::new(), None, None, None),
        };
        let origin = Origin::new(&self.name, u128::from(nonce)).unwrap();
        let mut core = match replica {
            Some(replica) => Core::of(replica.restarted(origin)),
            None => Core::new(origin, &held).0,
        };
        if let Some(point) = point {
            core = core.from_point(point);
        }
        let saved = core.replica().kept_changes();
        let filing = Filing::begin(filed, &self.file, &mut core, now);
        core.note_change();
        let disk = self.disk.take();
        *self = Self {
            saved,
            hurried: core.replica().kept_changes(),
            ledger: Ledger::new(settings(false), held, now).unwrap(),
            core,
            is_linked: false,
            hello: first_hello(nonce),
            disk,
            late: 0,
            file: std::mem::take(&mut self.file),
            filing,
            noted: (0, Vec::new()),
            name: std::mem::take(&mut self.name),
            skew_ms: self.skew_ms,
        };
    }

    pub(super) fn breaks(&mut self, client: Client, at: u64) -> Option<BanKey> {
        let now = self.now(at);
        let exceeded = LimitExceeded {
            client,
            offence: Offence::Limit {
                kind: LimitKind::Minute,
                value: 1000,
                percent: 100,
            },
            at_ms: now,
            request: Some(RequestNote::default()),
            fleet: None,
        };
        let netblock = Netblock::of(client, PrefixLengths::default());
        let outcome = self.ledger.ban_for(&exceeded, netblock, now);
        self.settle(now);
        match outcome {
            BanOutcome::Banned(key) => Some(key),
            _ => None,
        }
    }

    pub(super) fn bans(&mut self, netblock: Netblock, seconds: u64, at: u64) -> Arc<Ban> {
        let now = self.now(at);
        let order = AdminBan {
            netblock,
            client: None,
            duration: Some(Duration::from_secs(seconds)),
            reason: "said so".to_owned(),
            force: false,
        };
        let ban = self.ledger.add(order, now).unwrap();
        self.settle(now);
        self.save();
        ban
    }

    pub(super) fn lifts(&mut self, subject: Subject, at: u64) -> usize {
        let now = self.now(at);
        let lifted = match subject {
            Subject::Client(client) => self.ledger.lift(client, now),
            Subject::Netblock(netblock) => self.ledger.lift_netblock(netblock, now),
        };
        let effects = self.core.lift(subject, now);
        self.settle(now);
        self.obey(effects, now);
        self.save();
        lifted.len()
    }

    /// Somebody edits bans.json.
    pub(super) fn edits(&mut self, key: BanKey, edit: &Edit, at: u64) {
        let now = self.now(at);
        let Some(before) = self.ledger.ban(key).cloned() else {
            return;
        };
        let mut after = Ban::clone(&before);
        match edit {
            Edit::Reason(reason) => after.reason.clone_from(reason),
            Edit::Permanent => after.ban_expires = Expiry::Permanent,
            Edit::Unlift => after.lifted = None,
            Edit::TakeOut => {
                self.ledger.edit(&[Change::<BansFile>::Remove(key)], now);
                self.settle(now);
                return self.save();
            }
        }
        let change: Change<BansFile> = Change::Put {
            before: Some(before),
            after: Arc::new(after),
        };
        self.ledger.edit(&[change], now);
        self.settle(now);
        self.save();
    }

    /// One turn of the link, in which answers to batches come or are late. False where the engine
    /// gave no answer.
    pub(super) fn turn(&mut self, engine: &mut impl Engine, at: u64, is_late: bool) -> bool {
        self.file_turn(at);
        let turned = self.speak(engine, at, is_late);
        self.is_linked = turned.is_ok();
        self.is_linked
    }

    /// The link has ended.
    pub(super) fn cut(&mut self) {
        self.is_linked = false;
    }

    /// What is put aside goes into a file, and out of the ledger. Returns it.
    pub(super) fn put_aside(&mut self, at: u64) -> Vec<Event> {
        let aside = self.core.aside();
        let effects = self.core.put_aside();
        self.obey(effects, self.now(at));
        aside
    }

    /// Two batches of the same events differ once they are sealed: each has a salt of its own. Here
    /// that is what the connection has said hello with, for it has one batch of each number.
    fn sealed(&self, text: &[u8]) -> Vec<u8> {
        let salt = self.hello.to_be_bytes();
        salt.iter().chain(text).copied().collect()
    }

    fn speak(&mut self, engine: &mut impl Engine, at: u64, is_late: bool) -> Result<(), Fault> {
        let now = self.now(at);
        let me = self.core.origin().clone();
        if !self.is_linked {
            let found = self.hello;
            self.hello += 1;
            let welcome = engine.hello(&me, self.core.cursor(), found)?;
            self.core.welcome(welcome);
        }
        if self.core.wants_snapshot()
            && let Some(at) = engine.snapshot()?
        {
            let mut place = 0;
            while place < at.count
                && let Some(chunks) = engine.snapshot_chunks(at, place)?
            {
                place += chunks.len();
                for chunk in chunks {
                    let effects = self.core.take(event::read(&chunk), now);
                    self.obey(effects, now);
                }
            }
            if place == at.count {
                self.core.has_read_snapshot(at.upto);
            }
        }
        let read = engine.read_after(self.core.cursor(), READ, Duration::ZERO)?;
        let count = read.len();
        for logged in read {
            let effects = self.core.take(event::read(opened(&logged.sealed)), now);
            self.obey(effects, now);
            self.core.has_read(logged);
        }
        if count < READ {
            self.core.at_the_end();
        }
        let saved = self.saved;
        if let Some(batch) = self.core.next_batch(|change| saved >= change) {
            engine.append(&me, batch.seq, &self.sealed(&batch.bytes))?;
        }
        while !is_late
            && engine.is_asked()
            && let Some(Answer::Appended { seq, last }) = engine.answer(Duration::ZERO)?
        {
            self.core.appended(seq, last);
            if seq != last {
                return Err(Fault("it does not have what it has taken".to_owned()));
            }
        }
        Ok(())
    }

    /// The snapshot of this instance goes into the engine.
    pub(super) fn put_snapshot(&mut self, engine: &mut impl Engine) {
        if self.is_linked
            && let Some(chunks) = self.core.snapshot()
        {
            let upto: Cursor = self.core.cursor();
            let _ = engine.snapshot_put(upto, chunks);
        }
    }
}

#[derive(Clone, Debug)]
pub(super) enum Edit {
    Reason(String),
    Permanent,
    Unlift,
    TakeOut,
}
