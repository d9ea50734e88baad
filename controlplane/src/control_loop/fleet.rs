//! What the loop does for a fleet (FLEET): it hears what others say, follows what happens here, and
//! is the only one that changes the ledger for either.

use std::time::Duration;

use crossbeam_channel::Select;
use http::StatusCode;
use weir_shared::clock::Now;
use weir_shared::handover::Respond;

use super::Control;
use crate::admin::bans::Pending;
use crate::admin::problem::{Problem, json as json_answer};
use crate::bans::Subject;
use crate::fleet::replica::Effect;
use crate::rules::SharedLists;

/// Effects of effects: an effect of the fleet is no news to it, so that one round is the rule.
const MOST_ROUNDS: usize = 4;
/// How long a stop waits for the engine to take the last events.
const LAST_EVENTS_NS: u64 = 2_000_000_000;
/// How often it looks.
const LOOK: Duration = Duration::from_millis(10);

impl Control {
    /// What the loop wakes for, and how long it may sleep.
    pub(super) fn select_fleet<'a>(&'a self, select: &mut Select<'a>, wait: Duration) -> Duration {
        let Some(fleet) = &self.fleet else {
            return wait;
        };
        fleet.select(select);
        fleet.wait(wait)
    }

    /// Takes in what other instances say. In force with the publication of this turn.
    pub(super) fn hear_fleet(&mut self, now: Now) {
        if let Some(fleet) = &mut self.fleet {
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

    /// Hands on what changed in the ledger, to those who follow it, to the fleet and to the files.
    /// None of them blocks.
    pub(super) fn offer_changes(&mut self, now: Now) {
        for _ in 0..MOST_ROUNDS {
            let changes = self.bans.take_changes();
            if changes.is_empty() {
                break;
            }
            self.events.bans().offer(&changes);
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

    /// Tells the fleet of a lift, also where nothing is lifted here: a ban that arrives later may
    /// be. False where there is no fleet.
    pub(super) fn lift_in_fleet(&mut self, subject: Subject, now: Now) -> bool {
        let Some(fleet) = &mut self.fleet else {
            return false;
        };
        let effects = fleet.lift(subject, now);
        self.obey_fleet(effects, now);
        true
    }

    /// These answers tell where their changes are in force (FLEET-14).
    pub(super) fn await_fleet(&self, changes: &mut [(Respond, Pending)]) {
        if let Some(fleet) = &self.fleet {
            for (_, pending) in changes {
                fleet.await_others(pending);
            }
        }
    }

    /// Sends what is to be sent, and answers those who have waited for others.
    pub(super) fn turn_fleet(&mut self, now: Now) {
        self.tell_anomalies(now);
        let Some(fleet) = &mut self.fleet else {
            return;
        };
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

    /// The files of the rules were read (FLEET-18).
    pub(super) fn tell_fleet_of_lists(&mut self, listed: &SharedLists, rules: u64, now: Now) {
        if let Some(fleet) = &mut self.fleet {
            fleet.lists_found(listed, rules, now);
        }
    }

    /// Sends what is still to be sent, for a while, where the engine answers (FLEET-30), and goes:
    /// fleet.json is being written then, and the fleet is asked nothing more.
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

    /// Whether fleet.json is written.
    pub(super) fn is_fleet_at_rest(&mut self, now: Now) -> bool {
        (self.fleet.as_mut()).is_none_or(|fleet| fleet.is_at_rest(now))
    }

    /// The fleet is asked again.
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

    /// After a panic.
    pub(super) fn recover_fleet(&mut self, now: Now) {
        if let Some(fleet) = &mut self.fleet {
            let effects = fleet.recover(self.bans.ledger().after(None), now);
            self.obey_fleet(effects, now);
        }
    }
}
