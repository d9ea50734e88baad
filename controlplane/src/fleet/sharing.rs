//! The control loop's side of the thread `weir-counts`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_channel::Sender;
use weir_shared::api::fleet::Counts;
use weir_shared::fleet::FleetCounts;
use weir_shared::settings::Listed;

use super::counting::{CountFacts, CountOrder};
use super::facts::Told;

/// The loop's state of the counts.
pub(super) struct Sharing {
    pub(super) orders: Sender<CountOrder>,
    pub(super) facts: Arc<CountFacts>,
    pub(super) counts: Arc<dyn FleetCounts>,
    /// Whether the counts of others are used.
    pub(super) heeds: bool,
}

/// Ends the thread.
impl Drop for Sharing {
    fn drop(&mut self) {
        self.facts.is_over.store(true, Ordering::Relaxed);
    }
}

impl Sharing {
    /// Applies these settings: instances in observe mode are counted apart.
    pub(super) fn take_settings(&self, listing: &[Listed]) {
        let mode = listing.iter().find(|listed| listed.name == "WAF_MODE");
        let observes = mode.is_some_and(|mode| mode.value.as_deref() == Some("observe"));
        self.facts.observes.store(observes, Ordering::Relaxed);
    }

    /// Sets the number of live instances, this one included.
    pub(super) fn note_instances(&self, instances: u64) {
        self.facts.instances.store(instances, Ordering::Relaxed);
    }

    /// Sets how far this clock is ahead of the engine's.
    pub(super) fn note_clock(&self, clock_ms: i64) {
        self.facts.clock_ms.store(clock_ms, Ordering::Relaxed);
    }

    /// Sets whether the counts of others are used (FLEET-27). Returns an alert about a change.
    pub(super) fn heed(&mut self, heeds: bool) -> Option<Told> {
        if std::mem::replace(&mut self.heeds, heeds) == heeds {
            return None;
        }
        self.counts.heed(heeds);
        if heeds {
            tracing::info!("what other instances count holds again");
            return None;
        }
        let detail = "the counts of other instances have led to more bans in a minute than a tenth of its clients, and than 60: they are ignored for 5 minutes";
        tracing::error!("{detail}");
        Some(Told {
            what: "breaker",
            detail: detail.to_owned(),
        })
    }

    /// The counts in the form of the API.
    pub(super) fn told(&self) -> Counts {
        let number = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let facts = &*self.facts;
        Counts {
            sent: number(&facts.sent),
            stale: number(&facts.stale),
            held: number(&facts.held),
            heeded: self.heeds,
        }
    }

    /// Has all counts sent, and none after that.
    pub(super) fn rest(&self) {
        // If the queue is full, rest was ordered already.
        let _ = self.orders.try_send(CountOrder::Rest);
    }

    /// Whether all counts are sent.
    pub(super) fn rests(&self) -> bool {
        self.facts.rests.load(Ordering::Acquire)
    }

    /// Resumes sending counts.
    pub(super) fn work(&self) {
        let _ = self.orders.try_send(CountOrder::Work);
    }
}
