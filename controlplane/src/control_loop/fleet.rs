//! The fleet in the control loop (FLEET): the loop passes events in both directions, and only it
//! changes the ledger.

use std::time::Duration;

use crossbeam_channel::Select;
use http::StatusCode;
use weir_shared::clock::Now;
use weir_shared::handover::Respond;

use super::Control;
use super::left_fleet::LeftFleet;
use crate::admin::bans::Pending;
use crate::admin::problem::{Problem, json as json_answer};
use crate::bans::Subject;
use crate::bans::document::BanKey;
use crate::fleet::replica::Effect;
use crate::fleet::{AtStart, Fleet, Ready};
use crate::rules::SharedLists;

/// The most rounds of effects that cause further effects. The fleet ignores its own effects, so one
/// round is the rule.
const MOST_ROUNDS: usize = 4;
/// How long a stop waits for the engine to take the last events.
const LAST_EVENTS_NS: u64 = 2_000_000_000;
/// How often a stop looks whether the events were taken.
const LOOK: Duration = Duration::from_millis(10);

impl Control {
    /// Adds the fleet's channels to the loop's select, and returns how long the loop may sleep.
    pub(super) fn select_fleet<'a>(&'a self, select: &mut Select<'a>, wait: Duration) -> Duration {
        let Some(fleet) = &self.fleet else {
            return wait;
        };
        fleet.select(select);
        fleet.wait(wait)
    }

    /// Applies events of other instances. They are in force with the publication of this turn.
    pub(super) fn hear_fleet(&mut self, now: Now) {
        if let Some(fleet) = &mut self.fleet {
            self.bans.spare_crawlers();
            let effects = fleet.hear(now);
            self.obey_fleet(effects, now);
        }
    }

    fn obey_fleet(&mut self, effects: Vec<Effect>, now: Now) {
        let mut wide: Option<(String, usize)> = None;
        for Effect { key, ban } in effects {
            let why = self.bans.too_wide_from_elsewhere(key, ban.as_deref(), now);
            if let Some(why) = why {
                wide.get_or_insert((why, 0)).1 += 1;
            }
            if !self.bans.take_in(key, ban, now)
                && let Some(fleet) = &mut self.fleet
            {
                fleet.dropped(key);
            }
        }
        if let Some((why, count)) = wide {
            let detail = format!(
                "{count} bans of other instances are as wide as no edit may be without \"force\": true; the first: {why}"
            );
            tracing::warn!("{detail}");
            self.detection.alerts.fleet("wide", &detail, now.wall_ms);
        }
    }

    /// Passes the ledger's changes to the followers of the stream, to the fleet and to the files.
    /// None of them blocks.
    pub(super) fn offer_changes(&mut self, now: Now) {
        for _ in 0..MOST_ROUNDS {
            let changes = self.bans.take_changes();
            if changes.is_empty() {
                break;
            }
            self.events.bans().offer(&changes);
            if let Some(left) = &mut self.left {
                left.note(&changes);
            }
            let effects = (self.fleet.as_mut())
                .map(|fleet| fleet.follow(&changes, now))
                .unwrap_or_default();
            self.files.note(changes, now);
            if effects.is_empty() {
                break;
            }
            self.obey_fleet(effects, now);
            self.bans.publish(now);
        }
    }

    /// Tells the fleet of a lift, even if no ban was lifted here: it may lift a ban that arrives
    /// later. False without a fleet.
    pub(super) fn lift_in_fleet(&mut self, subject: Subject, now: Now) -> bool {
        let Some(fleet) = &mut self.fleet else {
            return false;
        };
        let effects = fleet.lift(subject, now);
        self.obey_fleet(effects, now);
        true
    }

    /// Makes these answers wait for other instances: they tell where their changes are in force
    /// (FLEET-14).
    pub(super) fn await_fleet(&self, changes: &mut [(Respond, Pending)]) {
        if let Some(fleet) = &self.fleet {
            for (_, pending) in changes {
                fleet.await_others(pending);
            }
        }
    }

    /// Sends the queued events, and answers requests that waited for other instances.
    pub(super) fn turn_fleet(&mut self, now: Now) {
        self.tell_anomalies(now);
        let Some(fleet) = &mut self.fleet else {
            return;
        };
        self.bans.set_ahead(fleet.ahead_ms());
        let (of_now, on_disk) = self.files.documents();
        fleet.note_documents(of_now, on_disk, now);
        let heeds = self.bans.heeds_others(fleet.instances(), now);
        let changed = fleet.heed(heeds);
        for told in fleet.turn(now).into_iter().chain(changed) {
            let alerts = &mut self.detection.alerts;
            alerts.fleet(told.what, &told.detail, now.wall_ms);
        }
        if let Some((changes, told)) = fleet.file_lists(now) {
            self.rules.orders().file(changes, told);
        }
    }

    /// Tells the fleet of the shared lists, after the files of the rules were read (FLEET-18).
    pub(super) fn tell_fleet_of_lists(&mut self, listed: &SharedLists, rules: u64, now: Now) {
        if let Some(fleet) = &mut self.fleet {
            fleet.lists_found(listed, rules, now);
        }
    }

    /// Sends the remaining events for at most two seconds, while the engine answers (FLEET-30), and
    /// leaves the fleet. From then on the engine is asked nothing, and fleet.json is being written.
    pub(super) fn leave_fleet(&mut self, mut beat: impl FnMut()) {
        let begun_ns = self.clock.now().mono_ns;
        if let Some(fleet) = &self.fleet {
            fleet.rest_counting();
        }
        loop {
            beat();
            let now = self.clock.now();
            self.hear_fleet(now);
            self.bans.publish(now);
            self.offer_changes(now);
            self.turn_fleet(now);
            let Some(fleet) = &mut self.fleet else {
                return;
            };
            let waited_ns = now.mono_ns.saturating_sub(begun_ns);
            if !fleet.has_more(now) || waited_ns >= LAST_EVENTS_NS {
                fleet.rest(now);
                return self.tell_anomalies(now);
            }
            let mut select = Select::new();
            fleet.select(&mut select);
            let _ = select.ready_timeout(LOOK);
        }
    }

    /// Applies changed fleet settings: this instance leaves a fleet, joins one, or both. It sends
    /// its remaining events first, as at a stop. The loop waits for that, and for fleet.json, two
    /// seconds each at most.
    pub(crate) fn take_fleet(&mut self, ready: Option<Ready>) {
        let is_as_before = match (&self.fleet, &ready) {
            (None, None) => true,
            (Some(fleet), Some(ready)) => !fleet.is_other(ready),
            _ => false,
        };
        if is_as_before {
            return;
        }
        self.leave_fleet(|| {});
        let before = self.fleet.take();
        let left = self.left.take();
        match (before, ready) {
            (None, None) => {}
            (Some(fleet), None) => self.end_fleet(fleet),
            (None, Some(ready)) => {
                let dir = self.settings.state.dir.clone();
                let left = left.filter(|left| left.is_of(ready.fleet()));
                self.begin_fleet(left, |at_start| Fleet::start(ready, at_start, &dir));
            }
            (Some(fleet), Some(ready)) => {
                self.begin_fleet(None, |at_start| fleet.begin_anew(ready, at_start));
            }
        }
    }

    /// Takes another name if another instance has the name of this one (FLEET-23).
    pub(super) fn rename_in_fleet(&mut self) {
        if !self.fleet.as_ref().is_some_and(Fleet::is_name_taken) {
            return;
        }
        self.leave_fleet(|| {});
        let Some(fleet) = self.fleet.take() else {
            return;
        };
        let mut why = None;
        self.begin_fleet(None, |at_start| {
            let (fleet, effects, told) = fleet.begin_renamed(at_start)?;
            why = Some(told);
            Ok((fleet, effects))
        });
        if let Some(told) = why {
            let now = self.clock.now();
            let alerts = &mut self.detection.alerts;
            alerts.fleet(told.what, &told.detail, now.wall_ms);
        }
    }

    fn begin_fleet(
        &mut self,
        left: Option<LeftFleet>,
        begin: impl FnOnce(&AtStart<'_>) -> std::io::Result<(Fleet, Vec<Effect>)>,
    ) {
        let bans = self.bans.ledger().all();
        let keys: Vec<BanKey> = bans.iter().map(|ban| BanKey::of(ban)).collect();
        let (before, removed) = match left {
            Some(left) => left.before(&bans),
            None => (bans.clone(), Vec::new()),
        };
        let (counts, version) = &self.made_from;
        let begun = begin(&AtStart {
            bans: &bans,
            before: &before,
            edited: &keys,
            removed: &removed,
            lists: self.rules.lists(),
            counts: counts.as_ref(),
            version,
            clock: &self.clock,
        });
        match begun {
            Ok((mut fleet, effects)) => {
                fleet.take_settings(&self.reloaded.load().listing);
                self.fleet = Some(fleet);
                let now = self.clock.now();
                self.obey_fleet(effects, now);
                self.bans.publish(now);
            }
            Err(error) => {
                tracing::error!("the fleet cannot be begun, this instance is alone: {error}");
            }
        }
    }

    /// Leaves the fleet for good. Waiting answers are sent once fleet.json has their changes.
    fn end_fleet(&mut self, fleet: Fleet) {
        self.fleet = Some(fleet);
        let begun_ns = self.clock.now().mono_ns;
        loop {
            let now = self.clock.now();
            let waited_ns = now.mono_ns.saturating_sub(begun_ns);
            if self.is_fleet_at_rest(now) || waited_ns >= LAST_EVENTS_NS {
                self.turn_fleet(now);
                break;
            }
            std::thread::sleep(LOOK);
        }
        if let Some(fleet) = self.fleet.take() {
            self.left = Some(LeftFleet::new(fleet.end(), &self.bans.ledger().all()));
            self.bans.set_ahead(0);
            tracing::info!("this instance is in no fleet any more");
        }
    }

    /// Whether fleet.json is fully written.
    pub(super) fn is_fleet_at_rest(&mut self, now: Now) -> bool {
        (self.fleet.as_mut()).is_none_or(|fleet| fleet.is_at_rest(now))
    }

    /// Asks the fleet's engine again, after a hand-over that failed.
    pub(super) fn rejoin_fleet(&mut self) {
        let now = self.clock.now();
        if let Some(fleet) = &mut self.fleet {
            fleet.work(now);
        }
    }

    /// `GET /v1/fleet`
    pub(super) fn tell_fleet(&self, request_id: &str, respond: Respond, now: Now) {
        respond(match &self.fleet {
            Some(fleet) => json_answer(StatusCode::OK, &fleet.told(now)),
            None => Problem::NoFleet.answer(request_id),
        });
    }

    /// Recovers the fleet's state after a panic.
    pub(super) fn recover_fleet(&mut self, now: Now) {
        if let Some(fleet) = &mut self.fleet {
            let effects = fleet.recover(self.bans.ledger().after(None), now);
            self.obey_fleet(effects, now);
        }
    }
}
