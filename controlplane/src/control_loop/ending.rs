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

/// How long a stop or a hand-over waits for the last writes.
const LAST_WRITES: Duration = Duration::from_secs(10);
/// How often a stop looks whether the fleet is at rest, and a hand-over looks for edits.
const LOOK: Duration = Duration::from_millis(10);

impl Control {
    /// Handles everything that still waits and writes all files a last time. A panic loses only the
    /// step that it interrupted: every file is still written.
    // long: a flat list of the steps
    pub(super) fn finish(mut self) {
        let now = self.clock.now();
        let copies_kept = self.rules.feeds().stand_still();
        if catch_unwind(AssertUnwindSafe(|| self.take_rest(now))).is_err() {
            // After a second panic the files are written as the bans stand.
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
            // No event of the fleet wakes the loop any more, so each round looks whether it is at
            // rest.
            let ready = select.ready_timeout(LOOK);
            drop(select);
            self.files.take_outcomes(now);
            // An edit that was saved in the last moment must be in the last write too.
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
        // If the journal hangs, nothing is lost: bans.json has all of it.
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

    /// Handles everything that was reported before the stop.
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

    /// Gives the state files away if that was asked for, then waits until another process has taken
    /// them or they are to be taken back.
    pub(super) fn give_away(&mut self, pulse: &Pulse) -> Flow {
        let Some(Give { given, left }) = self.giving.take() else {
            return Flow::Go;
        };
        // From now on the new process fetches feeds.
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

    /// Resumes everything that was paused for a hand-over.
    pub(super) fn take_back(&mut self) {
        self.rules.feeds().go_on();
        self.rejoin_fleet();
    }

    /// Sends every document to its file. The result of each write is sent to `told`.
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

    /// Handles everything that still waits, writes all files, and has the thread of the files touch
    /// none from then on.
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
        // The new process starts from the copies of the feeds on disk.
        while copies_kept.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
            self.look_after(pulse);
            is_late()?;
        }
        // The journal's thread stops first: the new process writes to the journal.
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
        // Takes the last edits. An edit after the last write is in its file already.
        self.look_after(pulse);
        // An edit of bans.json must be in fleet.json as well.
        while !self.is_fleet_at_rest(now) {
            is_late()?;
            std::thread::sleep(LOOK);
            self.look_after(pulse);
        }
        lock.map_err(|error| format!("the lock cannot be shared: {error}"))
    }

    /// Keeps the loop going while it waits for the last writes: applies edits, passes them to the
    /// fleet, and answers requests that wait for bans.json.
    fn look_after(&mut self, pulse: &Pulse) {
        pulse.beat();
        let now = self.clock.now();
        self.requests.refuse();
        self.files.take_outcomes(now);
        self.files.give_up(now);
        self.take_edits(now);
        self.offer_changes(now);
    }

    /// Waits until another process has taken the files (true), or they are to be taken back
    /// (false). Limits that are exceeded meanwhile wait in their queue.
    fn stand_still(&mut self, left: &Receiver<()>, pulse: &Pulse) -> bool {
        tracing::info!("the state files are written and given away, bans wait");
        loop {
            pulse.beat();
            self.requests.refuse();
            // Rules are still loaded: they are no state, the new process reads the same files, and
            // an operator's change of a list waits for it.
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
