//! The control loop's part of a fleet: the core, the work of each turn, and the reports. Only the
//! loop changes it, as only the loop changes the ledger: so events of others and local changes have
//! one order. Nothing here blocks.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crossbeam_channel::{Receiver, Select, Sender, TryRecvError, never};
use weir_shared::ban_origin::Instance;
use weir_shared::clock::Now;
use weir_shared::settings::Listed;

use super::aside::Aside;
use super::beat::{Beat, Seen};
use super::claims::Claims;
use super::clocks::Clocks;
use super::core::Core;
use super::engine::{Cursor, Logged};
use super::eviction::Eviction;
use super::facts::Told;
use super::kept::{self, Called, Keeper};
use super::lists_file::ListsFile;
use super::names::{change_in_fleet, here, key_in_fleet};
use super::namesakes::Namesakes;
use super::others::{Mine, Others};
use super::points::Points;
use super::ready::Ready;
use super::refused::Refused;
use super::replica::Effect;
use super::same::same_everywhere;
use super::sharing::Sharing;
use super::standing::Standing;
use super::waits::{Reach, Waits};
use super::words::{Opened, Order, Said};
use crate::admin::bans::Pending;
use crate::bans::Subject;
use crate::bans::document::BanKey;
use crate::bans::ledger::changes::LedgerChange;

/// The most messages of the threads in one turn; a batch has at most 256 events.
const MOST_HEARD: usize = 4;
/// The pause between two batches while one is under way: an instance reads at most 800 batches a
/// second, of all instances together.
const BATCH_NS: u64 = 5_000_000;
/// The pause between two beats, and the shorter one while an answer waits.
const BEAT_NS: u64 = 1_000_000_000;
const SOON_NS: u64 = 50_000_000;
/// How long two instances may hold different bans (FLEET-16).
const MEND_NS: u64 = 60_000_000_000;
/// How often expired records are removed.
const FORGET_NS: u64 = 60_000_000_000;

/// One instance of a fleet.
pub(crate) struct Fleet {
    pub(super) fleet: String,
    pub(super) engine: String,
    pub(super) me: Instance,
    pub(super) called: Called,
    /// The settings and files it was started with.
    pub(super) ready: Ready,
    pub(super) version: &'static str,
    pub(super) core: Core,
    pub(super) inbox: Receiver<Said>,
    pub(super) orders: Sender<Order>,
    pub(super) standing: Standing,
    /// The number of the current reading of the log.
    pub(super) reading: u64,
    /// The number of resyncs that were ordered.
    pub(super) resyncs: u64,
    /// The newest own batch that was read back, and where it is.
    pub(super) own: Option<(u64, Cursor)>,
    /// How far this clock is ahead of the engine's.
    pub(super) clock_ms: i64,
    pub(super) round_trip_ns: u64,
    pub(super) clocks: Clocks,
    pub(super) others: Others,
    pub(super) namesakes: Namesakes,
    /// True if bans were dropped for lack of room here.
    pub(super) has_dropped: bool,
    pub(super) settings: BTreeMap<String, String>,
    /// The settings that differ elsewhere, as they were logged.
    pub(super) differing: BTreeSet<String>,
    pub(super) last_batch_ns: u64,
    pub(super) last_beat_ns: u64,
    pub(super) is_beating: bool,
    pub(super) hurries: bool,
    pub(super) kept: Keeper,
    /// The number of the last change that fleet.json must hold.
    pub(super) changes: u64,
    /// The points from which a restart would read the log.
    pub(super) points: Points,
    pub(super) waits: Waits,
    pub(super) forgot_ns: u64,
    pub(super) mended_ns: u64,
    pub(super) refused: Refused,
    pub(super) rests: bool,
    /// Bans that are put aside.
    pub(super) aside: Aside,
    /// The last contact according to fleet.json.
    pub(super) kept_contact_ms: u64,
    /// lists.json.
    pub(super) lists: ListsFile,
    /// The counts of clients; none if they are not shared.
    pub(super) sharing: Option<Sharing>,
    pub(super) eviction: Eviction,
    /// Alerts of which one instance must be chosen to raise them.
    pub(super) claims: Claims,
}

impl Fleet {
    /// Applies these settings.
    pub(crate) fn take_settings(&mut self, listing: &[Listed]) {
        self.settings = same_everywhere(listing);
        self.note_rules();
        if let Some(sharing) = &self.sharing {
            sharing.take_settings(listing);
        }
    }

    /// Adds the fleet's channels to the loop's select.
    pub(crate) fn select<'a>(&'a self, select: &mut Select<'a>) {
        select.recv(&self.inbox);
        self.kept.select(select);
        self.lists.select(select);
        self.waits.select(select);
    }

    /// How long the loop may sleep.
    pub(crate) fn wait(&self, wait: Duration) -> Duration {
        let most_ns = match () {
            () if self.sends() && self.core.holds_back() => BATCH_NS,
            () if self.hurries || self.waits.is_waiting() => SOON_NS / 2,
            () => return wait,
        };
        wait.min(Duration::from_nanos(most_ns))
    }

    /// Takes the messages of the threads. Returns the effects for the ledger.
    pub(crate) fn hear(&mut self, now: Now) -> Vec<Effect> {
        let mut effects = Vec::new();
        for _ in 0..MOST_HEARD {
            match self.inbox.try_recv() {
                Ok(said) => {
                    self.note_work(&said, now);
                    effects.extend(self.take(said, now));
                }
                Err(TryRecvError::Empty) => break,
                // A disconnected channel is always ready.
                Err(TryRecvError::Disconnected) => {
                    self.inbox = never();
                    break;
                }
            }
        }
        for conflict in self.core.take_conflicts() {
            tracing::warn!("{conflict}");
        }
        effects.extend(self.put_aside(now));
        effects
            .into_iter()
            .map(|effect| here(self.me, effect))
            .collect()
    }

    fn take(&mut self, said: Said, now: Now) -> Vec<Effect> {
        let now_ms = self.fleet_ms(now);
        match said {
            Said::Open => {
                let cursor = self.core.cursor();
                self.order(Order::Hello { cursor });
            }
            Said::Welcome {
                welcome,
                round_trip_ns,
            } => {
                self.note_clock(welcome.time_ms, round_trip_ns, now);
                self.standing.open();
                self.is_beating = false;
                self.last_beat_ns = 0;
                self.core.welcome(welcome);
                self.read_on();
            }
            Said::Chunk { reading, events } if reading == self.reading => {
                return self.core.take(events, now_ms);
            }
            Said::SnapshotRead { reading, upto } if reading == self.reading => {
                self.core.has_read_snapshot(upto);
            }
            Said::Read {
                reading,
                batch,
                events,
            } if reading == self.reading => return self.take_batch(batch, events, now_ms),
            Said::AtEnd { reading } if reading == self.reading => self.core.at_the_end(),
            // Read before the reading of the log was started again: ignored.
            Said::Chunk { .. }
            | Said::SnapshotRead { .. }
            | Said::Read { .. }
            | Said::AtEnd { .. } => {}
            Said::Appended { seq, last } => self.core.appended(seq, last),
            Said::Beaten {
                time_ms,
                round_trip_ns,
                others,
            } => {
                self.note_clock(time_ms, round_trip_ns, now);
                self.note_contact(time_ms);
                let me = self.core.origin();
                self.namesakes.take(me, &others, (time_ms, now.mono_ns));
                self.take_beats(others, now);
            }
            Said::Claimed { until_ms } => self.claimed(until_ms, now),
            Said::Policy(policy) => self.eviction.note(policy),
            Said::Away(why) => self.closed(why, now),
        }
        Vec::new()
    }

    fn take_batch(&mut self, batch: Logged, events: Opened, now_ms: u64) -> Vec<Effect> {
        if batch.origin == *self.core.origin() {
            self.own = Some((batch.seq, batch.at));
        } else {
            // An answer may wait until this is in force here.
            self.hurries = true;
        }
        let effects = self.core.take(events, now_ms);
        self.core.has_read(batch);
        effects
    }

    fn take_beats(&mut self, others: Vec<Seen>, now: Now) {
        self.is_beating = false;
        for seen in &others {
            if let Err(rejected) = seen.beat {
                self.core.reject(rejected);
            }
        }
        let beat = self.beat(now);
        let mine = Mine {
            me: self.core.origin(),
            beat: &beat,
            now_ns: now.mono_ns,
        };
        self.others.take(others, &mine);
        self.claims.has_heard = true;
        if let Some(sharing) = &self.sharing {
            sharing.note_instances(self.instances());
        }
        let differing = self.others.differing_settings(&beat);
        for told in differing.difference(&self.differing) {
            tracing::warn!("{told}: each instance of the fleet judges by its own");
        }
        self.differing = differing;
    }

    pub(super) fn closed(&mut self, why: String, now: Now) {
        self.is_beating = false;
        self.claims.alone();
        self.standing.close(why, now);
    }

    /// How long no engine has answered, if that is a while, and why.
    pub(super) fn alone(&self, now: Now) -> Option<(u64, &str)> {
        self.standing.alone(now)
    }

    /// Whether the engine answers.
    pub(super) fn is_linked(&self, now: Now) -> bool {
        self.standing.is_open() && self.alone(now).is_none() && !self.rests
    }

    /// Has the log read from the core's place, if the reading must start again.
    fn read_on(&mut self) {
        self.reading += 1;
        self.resyncs = self.core.counts().resyncs;
        self.own = None;
        self.order(Order::ReadFrom {
            reading: self.reading,
            cursor: self.core.cursor(),
            snapshot: self.core.wants_snapshot(),
        });
    }

    pub(super) fn order(&mut self, order: Order) {
        // The queue has room: at most one order of each kind, or a few, is under way.
        if self.orders.try_send(order).is_err() {
            tracing::error!("the thread weir-fleet takes no orders; please report this");
        }
    }

    /// Follows changes of the ledger. Returns further effects for it.
    pub(crate) fn follow(&mut self, changes: &[LedgerChange], now: Now) -> Vec<Effect> {
        let in_fleet: Vec<LedgerChange> = (changes.iter())
            .map(|change| change_in_fleet(self.me, change))
            .collect();
        let now_ms = self.fleet_ms(now);
        let before = self.core.replica().kept_changes();
        let effects = self.core.follow(&in_fleet, now_ms);
        if self.core.replica().kept_changes() != before {
            self.kept.hurry(self.change());
        }
        effects
            .into_iter()
            .map(|effect| here(self.me, effect))
            .collect()
    }

    /// Takes a lift at this instance, which the ledger has done already.
    pub(crate) fn lift(&mut self, subject: Subject, now: Now) -> Vec<Effect> {
        let now_ms = self.fleet_ms(now);
        let effects = self.core.lift(subject, now_ms);
        self.kept.hurry(self.change());
        effects
            .into_iter()
            .map(|effect| here(self.me, effect))
            .collect()
    }

    /// Notes that the ledger has no room for a ban of another instance.
    pub(crate) fn dropped(&mut self, key: BanKey) {
        self.has_dropped = true;
        self.core.dropped(key_in_fleet(self.me, key));
    }

    /// Takes the number of the document that will hold the current bans, and of the last one on
    /// disk.
    pub(crate) fn note_documents(&mut self, of_now: u64, on_disk: u64, now: Now) {
        if self.points.note_late(self.core.late()) {
            self.changes += 1;
            self.kept.hurry(self.change());
        }
        let point = || self.core.point();
        if !self.rests && self.points.turn(point, (of_now, on_disk), now.mono_ns) {
            self.changes += 1;
        }
    }

    /// Makes this answer wait for the others, to tell where its change is in force.
    pub(crate) fn await_others(&self, pending: &mut Pending) {
        self.waits.follow(pending, self.change());
    }

    /// The number of the last change for fleet.json.
    pub(super) fn change(&self) -> u64 {
        self.changes + self.core.replica().kept_changes()
    }

    /// Sends what is queued, and sends waiting answers. Returns the alerts to raise.
    pub(crate) fn turn(&mut self, now: Now) -> Vec<Told> {
        let mut told = Vec::new();
        if let Some(detail) = self.standing.tell(&self.engine, now) {
            let what = "alone";
            told.push(Told { what, detail });
        }
        if self.alone(now).is_some() {
            self.others.forget();
        }
        if self.sends() {
            if self.core.counts().resyncs != self.resyncs {
                self.read_on();
            }
            self.append_next(now);
            if let Some(chunks) = self.core.snapshot() {
                let upto = self.core.cursor();
                self.order(Order::Snapshot { upto, chunks });
            }
            self.claim_next(now);
            self.beat_due(now);
        }
        if now.mono_ns.saturating_sub(self.forgot_ns) >= FORGET_NS {
            self.forgot_ns = now.mono_ns;
            let now_ms = self.fleet_ms(now);
            self.core.forget_old(now_ms);
        }
        if let Some(fault) = self.kept.turn(now.mono_ns) {
            tracing::error!("{} cannot be written: {fault}", kept::FILE);
            told.push(Told {
                what: "file",
                detail: format!("{} cannot be written: {fault}", kept::FILE),
            });
        }
        told.extend(self.eviction.tell());
        told.extend(self.clocks.tell());
        told.extend(self.mend(now));
        told.extend(self.told_aside());
        let change = self.change();
        if self.kept.is_due(change, now.mono_ns) && !self.rests {
            self.keep(now);
        }
        told.extend(self.refused.tell(self.core.counts().rejected, now.mono_ns));
        self.answer(now);
        told
    }

    fn append_next(&mut self, now: Now) {
        let since_ns = now.mono_ns.saturating_sub(self.last_batch_ns);
        if self.core.is_under_way() && since_ns < BATCH_NS {
            return;
        }
        let (kept, before) = (&self.kept, self.changes);
        let holds = |change| kept.holds(before + change);
        if let Some(batch) = self.core.next_batch(holds) {
            self.last_batch_ns = now.mono_ns;
            self.order(Order::Append(batch));
        }
    }

    /// If another instance has held something else for long, has the whole log read and everything
    /// sent again.
    fn mend(&mut self, now: Now) -> Option<Told> {
        let is_due = now.mono_ns.saturating_sub(self.mended_ns) >= MEND_NS;
        let name = self
            .others
            .differing(MEND_NS, now.mono_ns)
            .filter(|_| is_due)?;
        let detail = format!("{name} has held other bans than this instance for a minute");
        self.mended_ns = now.mono_ns;
        self.core.resync();
        let what = "out_of_step";
        Some(Told { what, detail })
    }

    pub(super) fn keep(&mut self, now: Now) {
        let bytes = kept::write(
            &self.fleet,
            &self.called,
            self.core.replica().kept(),
            self.points.held(),
            (self.lists.kept(), self.core.contact_ms()),
        );
        self.kept.write(self.change(), bytes, now.mono_ns);
    }

    fn beat_due(&mut self, now: Now) {
        let pause_ns = match self.hurries || self.waits.is_waiting() {
            true => SOON_NS,
            false => BEAT_NS,
        };
        let is_due = now.mono_ns.saturating_sub(self.last_beat_ns) >= pause_ns;
        if self.is_beating || !is_due {
            return;
        }
        let beat = self.beat(now);
        if let Ok(text) = serde_json::to_vec(&beat) {
            self.is_beating = true;
            self.hurries = false;
            self.last_beat_ns = now.mono_ns;
            self.order(Order::Beat(text));
        }
    }

    /// The beat of this instance.
    pub(super) fn beat(&self, now: Now) -> Beat {
        let replica = self.core.replica();
        Beat {
            version: self.version.to_owned(),
            cursor: self.core.cursor().to_string(),
            in_step: self.core.is_in_step(),
            waiting: self.core.waiting() as u64,
            digest: format!("{:016x}", replica.digest(self.fleet_ms(now))),
            bans: replica.bans().count() as u64,
            dropped: self.has_dropped,
            clock_ms: self.clock_ms,
            named_ms: self.namesakes.named_ms(),
            settings: self.settings.clone(),
            totals: self.said_totals(),
        }
    }

    /// Sends the answers that need not wait any longer.
    pub(super) fn answer(&mut self, now: Now) {
        let taken = self.core.is_in_step().then(|| self.core.acked());
        let reach = Reach {
            now_ns: now.mono_ns,
            is_linked: self.is_linked(now),
            is_alone: self.rests || self.alone(now).is_some(),
            taken,
            own: self.own,
            me: self.me.name(),
        };
        let (others, kept) = (&self.others, &self.kept);
        self.waits.turn(
            &reach,
            |place| others.reached(place),
            |change| kept.holds(change),
        );
    }
}
