//! The last writes: at a stop, and where the state files are given to another process (RESTART-4).

use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Select, Sender, TryRecvError, after};
use weir_shared::clock::Now;
use weir_shared::pulse::Pulse;

use super::{Control, Flow, TICK};
use crate::files::Which;
use crate::giving::{Give, Saving, Written};
use crate::state::Saved;

/// How long a stop waits for the last writes, and a hand-over too.
const LAST_WRITES: Duration = Duration::from_secs(10);
/// How often a stop looks whether the fleet is at rest, and a hand-over for edits.
const LOOK: Duration = Duration::from_millis(10);

impl Control {
    /// Takes in what still waits and writes everything a last time. A panic costs what it
    /// interrupted, and no more: every file is still written.
    // long: a flat list of the steps
    pub(super) fn finish(mut self) {
        let now = self.clock.now();
        let copies_kept = self.rules.feeds().stand_still();
        if catch_unwind(AssertUnwindSafe(|| self.take_rest(now))).is_err() {
            // What a second panic leaves undone is written as it stands.
            let _ = catch_unwind(AssertUnwindSafe(|| self.recover()));
        }
        if catch_unwind(AssertUnwindSafe(|| self.leave_fleet(|| {}))).is_err() {
            tracing::error!("the fleet was not told of everything at the stop, by a bug");
        }
        let keep = || {
            // The lock goes with the process: nothing is given to another one here.
            let _ = self.history.keep(now, &self.counted(now));
            let _ = self.shared.keep(&self.table);
        };
        if catch_unwind(AssertUnwindSafe(keep)).is_err() {
            tracing::error!("what was counted a minute is not kept, by a bug");
        }
        for which in Which::ALL {
            let save = || {
                let content = self.content(which, now);
                self.files.save_last(content, now);
            };
            if catch_unwind(AssertUnwindSafe(save)).is_err() {
                tracing::error!("{} was not written at the stop, by a bug", which.name());
            }
        }
        let deadline = after(LAST_WRITES);
        while !self.files.all_saved() || !self.is_fleet_at_rest(now) {
            if self.files.has_ended() {
                tracing::error!("the thread of the state files has ended: they were not written");
                self.files.abandon();
                return;
            }
            let mut select = Select::new();
            let late = select.recv(&deadline);
            self.files.select(&mut select);
            // Nobody hears the fleet any more: whether it is at rest is looked at each time.
            let ready = select.ready_timeout(LOOK);
            drop(select);
            self.files.take_outcomes(now);
            // What an editor saved in the last moment is in the last write too.
            let edits = catch_unwind(AssertUnwindSafe(|| {
                self.take_edits(now);
                self.offer_changes(now);
            }));
            if ready == Ok(late) || edits.is_err() {
                tracing::error!(
                    "the state files were not written within {} s: the stop waits no longer",
                    LAST_WRITES.as_secs()
                );
                self.files.abandon();
                return;
            }
        }
        // A journal that hangs is held by bans.json: nothing in it is missed.
        let settled = self.files.settle();
        let mut select = Select::new();
        let late = select.recv(&deadline);
        select.recv(&settled);
        if select.ready() == late {
            self.files.abandon();
        }
        let mut select = Select::new();
        let late = select.recv(&deadline);
        select.recv(&copies_kept);
        if select.ready() == late {
            tracing::error!("the copies of the feeds were not written: the stop waits no longer");
        }
    }

    /// Everything that was reported before the stop.
    fn take_rest(&mut self, now: Now) {
        while self.bans.has_more() {
            self.bans.take(now);
        }
        self.note_bans(usize::MAX, now);
        loop {
            self.detection.count(now);
            if !self.detection.has_more() {
                break;
            }
        }
        self.take_edits(now);
        self.detection.alerts.finish(now.wall_ms);
    }

    /// Gives the state files away, where that was asked for, and stands still until they are
    /// another process's or are to be taken back.
    pub(super) fn give_away(&mut self, pulse: &Pulse) -> Flow {
        let Some(Give { given, left }) = self.giving.take() else {
            return Flow::Go;
        };
        // The next process fetches.
        let copies_kept = self.rules.feeds().stand_still();
        let lock = self.write_and_hold(&left, &copies_kept, pulse);
        let is_given = lock.is_ok();
        if given.send(lock).is_ok() && is_given && self.stand_still(&left, pulse) {
            return Flow::Leave;
        }
        self.files.resume();
        self.take_back();
        Flow::Go
    }

    /// What stood still for a hand-over goes on.
    pub(super) fn take_back(&mut self) {
        self.rules.feeds().go_on();
        self.rejoin_fleet();
    }

    /// Sends every document to its file; of each it is told what became of it.
    pub(crate) fn save_all(&mut self, told: &Sender<Written>, now: Now) {
        for which in Which::ALL {
            let told = told.clone();
            let failure = self.files.failure(which);
            let saved = Saved::new(move |persisted| {
                let why = || {
                    let error = failure.get().unwrap_or_else(|| "it is late".to_owned());
                    format!("{}: {error}", which.name())
                };
                let _ = told.try_send(persisted.then_some(()).ok_or_else(why));
            });
            let content = self.content(which, now);
            self.files.save(content, vec![saved], now);
        }
    }

    /// Takes in what still waits and writes everything; then the thread of the files touches none.
    // long: a flat list of the steps
    fn write_and_hold(
        &mut self,
        left: &Receiver<()>,
        copies_kept: &Receiver<()>,
        pulse: &Pulse,
    ) -> Result<OwnedFd, String> {
        let late = after(LAST_WRITES);
        let is_late = || match late.try_recv() {
            Ok(_) => Err(format!("it took longer than {} s", LAST_WRITES.as_secs())),
            Err(_) if matches!(left.try_recv(), Err(TryRecvError::Disconnected)) => {
                Err("it is not asked for any more".to_owned())
            }
            Err(_) => Ok(()),
        };
        let now = self.clock.now();
        self.requests.refuse();
        while self.requests.is_listing() {
            (self.requests).go_on_listing(self.bans.ledger(), now.wall_ms);
        }
        self.take_rest(now);
        self.bans.publish(now);
        self.leave_fleet(|| pulse.beat());
        // A write that hangs could replace the next process's file later.
        let kept = self.history.keep(now, &self.counted(now));
        kept.map_err(|error| error.to_string())?;
        let kept = self.shared.keep(&self.table);
        kept.map_err(|error| error.to_string())?;
        let (told, mut saving) = Saving::new();
        self.save_all(&told, now);
        drop(told);
        loop {
            self.look_after(pulse);
            match saving.outcome_within(LOOK) {
                Some(outcome) => break outcome?,
                None => is_late()?,
            }
        }
        // The next process goes on from the copies of the feeds.
        while copies_kept.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
            self.look_after(pulse);
            is_late()?;
        }
        // Its thread touches the journal no more: the next process writes to it.
        let settled = self.files.settle();
        while settled.recv_timeout(LOOK).is_err() {
            self.look_after(pulse);
            is_late()?;
        }
        let held = self.files.hold();
        let lock = loop {
            match held.recv_timeout(LOOK) {
                Ok(lock) => break lock,
                Err(RecvTimeoutError::Timeout) => is_late()?,
                Err(RecvTimeoutError::Disconnected) => {
                    return Err("the thread of the state files has ended".to_owned());
                }
            }
            self.look_after(pulse);
        };
        // What was told last. The file of an edit that came behind the last write holds it.
        self.look_after(pulse);
        // What bans.json holds of an edit fleet.json holds, too.
        while !self.is_fleet_at_rest(now) {
            is_late()?;
            std::thread::sleep(LOOK);
            self.look_after(pulse);
        }
        lock.map_err(|error| format!("the lock cannot be shared: {error}"))
    }

    /// What goes on while the last writes are waited for: edits are in them, the fleet follows
    /// those, and who waits for bans.json is answered.
    fn look_after(&mut self, pulse: &Pulse) {
        pulse.beat();
        let now = self.clock.now();
        self.requests.refuse();
        self.files.take_outcomes(now);
        self.files.give_up(now);
        self.take_edits(now);
        self.offer_changes(now);
    }

    /// Whether the files are another process's in the end. Limits that are broken meanwhile wait in
    /// their queue.
    fn stand_still(&mut self, left: &Receiver<()>, pulse: &Pulse) -> bool {
        tracing::info!("the state files are written and given away, bans wait");
        loop {
            pulse.beat();
            self.requests.refuse();
            // They are no state: the next process reads the same files. Who changes a list waits.
            self.take_rules(self.clock.now());
            match left.try_recv() {
                Ok(()) => return true,
                Err(TryRecvError::Disconnected) => return false,
                Err(TryRecvError::Empty) => {}
            }
            let mut select = Select::new();
            self.requests.select(&mut select);
            self.rules.select(&mut select);
            select.recv(left);
            let _ = select.ready_timeout(TICK);
        }
    }
}
