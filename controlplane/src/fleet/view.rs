//! The reports on a fleet: `GET /v1/fleet`, and the facts for the metrics (FLEET-29).

use std::sync::atomic::{AtomicU64, Ordering};

use weir_shared::api;
use weir_shared::clock::Now;

use super::counting::CountFacts;
use super::facts::FleetFacts;
use super::part::Fleet;
use super::sharing::Sharing;

impl Fleet {
    /// The state of the fleet in the form of the API.
    pub(crate) fn told(&self, now: Now) -> api::fleet::Fleet {
        let beat = self.beat(now);
        let alone = self.alone(now);
        let state = match (alone, self.is_linked(now)) {
            (Some(_), _) => "alone",
            (None, true) if beat.in_step => "live",
            (None, _) => "joining",
        };
        let mut instances = vec![api::fleet::Instance {
            name: self.me.name().to_owned(),
            is_self: true,
            state: state.to_owned(),
            in_step: beat.in_step,
            ..beat.told()
        }];
        instances.extend(self.others.told(&beat, now.mono_ns));
        api::fleet::Fleet {
            fleet: self.fleet.clone(),
            instance: self.me.name().to_owned(),
            engine: self.engine.clone(),
            state: state.to_owned(),
            in_step: state == "live" && self.others.are_in_step(now.mono_ns),
            waiting: beat.waiting,
            round_trip_ms: self.round_trip_ns / 1_000_000,
            digest: beat.digest,
            instances,
            counts: self.sharing.as_ref().map(Sharing::told),
            eviction: self.eviction.sentence(),
            alone_seconds: alone.map(|(alone_ns, _)| alone_ns / 1_000_000_000),
            why: alone.map(|(_, why)| why.to_owned()),
        }
    }

    /// The facts for the metrics.
    pub(crate) fn facts(&self, now: Now) -> FleetFacts {
        let (beat, counts) = (self.beat(now), self.core.counts());
        let connected = self.is_linked(now);
        FleetFacts {
            connected,
            instances: self.instances(),
            in_step: connected && beat.in_step && self.others.are_in_step(now.mono_ns),
            waiting: beat.waiting,
            events: [counts.sent, counts.received],
            rejected: counts.rejected,
            resyncs: counts.resyncs,
            clock_seconds: seconds(self.clock_ms.unsigned_abs()).copysign(sign(self.clock_ms)),
            round_trip_seconds: std::time::Duration::from_nanos(self.round_trip_ns).as_secs_f64(),
            deltas: self.number(|facts| [&facts.sent, &facts.stale]),
            held: {
                let [held] = self.number(|facts| [&facts.held]);
                held
            },
            batches: self.number(|facts| facts.batches.each_ref()),
            decisive: 0,
            settings_differ: self.others.settings_differ(&beat) as u64,
        }
    }
}

impl Fleet {
    /// Numbers about the counts; zeros if they are not shared.
    fn number<const N: usize>(&self, of: impl Fn(&CountFacts) -> [&AtomicU64; N]) -> [u64; N] {
        let numbers = |sharing: &Sharing| of(&sharing.facts).map(|of| of.load(Ordering::Relaxed));
        self.sharing.as_ref().map_or([0; N], numbers)
    }
}

fn sign(number: i64) -> f64 {
    if number < 0 { -1.0 } else { 1.0 }
}

/// Milliseconds as seconds.
fn seconds(ms: u64) -> f64 {
    std::time::Duration::from_millis(ms).as_secs_f64()
}
