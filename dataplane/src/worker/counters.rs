//! What is counted on the request path: one set of atomics a worker, on cache lines of its own,
//! folded when asked.
//!
//! Every ordering here is relaxed: each number stands alone, and a scrape that is one request
//! behind is as good.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

use http::StatusCode;
use weir_shared::totals::{
    ApplicationWord, ConnectionError, DURATION_BOUNDS_US, Handshake, Histogram, OriginCounts,
    RESPONSE_CLASSES, Totals,
};
use weir_shared::verdict::{Action, LimitHit};

/// What one worker counts, shared with whoever scrapes it.
#[derive(Clone, Default)]
pub struct WorkerCounters {
    /// The counters.
    pub counters: Arc<Counters>,
    /// Requests by country and AS number, since they were last scraped.
    pub origins: Arc<Mutex<OriginCounts>>,
}

/// The counters of one worker. Two cache lines of distance: the prefetcher of some processors pulls
/// lines in pairs.
#[repr(align(128))]
#[derive(Default)]
pub struct Counters {
    requests: [AtomicU64; Action::ALL.len()],
    request_duration: Durations,
    upstream_duration: Durations,
    responses: [AtomicU64; RESPONSE_CLASSES.len()],
    request_bytes: AtomicU64,
    response_bytes: AtomicU64,
    limit_hits: [AtomicU64; LimitHit::ALL.len()],
    connections: AtomicU64,
    connection_errors: [AtomicU64; ConnectionError::ALL.len()],
    handshakes: [AtomicU64; Handshake::ALL.len()],
    application: [AtomicU64; ApplicationWord::ALL.len()],
    breaks_dropped: AtomicU64,
    records_dropped: AtomicU64,
    records_left_out: AtomicU64,
    finished_dropped: AtomicU64,
}

#[derive(Default)]
struct Durations {
    buckets: [AtomicU64; DURATION_BOUNDS_US.len() + 1],
    sum_us: AtomicU64,
}

impl Durations {
    fn observe(&self, microseconds: u64) {
        let bucket = DURATION_BOUNDS_US
            .iter()
            .take_while(|bound| **bound < microseconds)
            .count();
        bump(self.buckets.get(bucket), 1);
        bump(Some(&self.sum_us), microseconds);
    }

    fn fold_into(&self, total: &mut Histogram) {
        for (sum, bucket) in total.buckets.iter_mut().zip(&self.buckets) {
            *sum += bucket.load(Relaxed);
        }
        total.sum_us += self.sum_us.load(Relaxed);
    }
}

/// One worker alone writes its counters: a load and a store suffice, without a locked instruction.
fn bump(counter: Option<&AtomicU64>, by: u64) {
    if let Some(counter) = counter {
        counter.store(counter.load(Relaxed).wrapping_add(by), Relaxed);
    }
}

impl Counters {
    /// A request ended.
    pub fn request(&self, action: Action, total_us: u64, request_bytes: u64, response_bytes: u64) {
        bump(self.requests.get(action.index()), 1);
        self.request_duration.observe(total_us);
        bump(Some(&self.request_bytes), request_bytes);
        bump(Some(&self.response_bytes), response_bytes);
    }

    /// The application's head arrived after this time.
    pub fn upstream(&self, microseconds: u64) {
        self.upstream_duration.observe(microseconds);
    }

    /// The application answered with this status.
    pub fn response(&self, status: StatusCode) {
        let class = usize::from(status.as_u16() / 100).saturating_sub(1);
        bump(self.responses.get(class), 1);
    }

    /// A limit was broken.
    pub fn limit_hit(&self, hit: LimitHit) {
        let counter = hit.index().and_then(|index| self.limit_hits.get(index));
        bump(counter, 1);
    }

    /// A connection was opened.
    pub fn connection_opened(&self) {
        bump(Some(&self.connections), 1);
    }

    /// A connection was closed.
    pub fn connection_closed(&self) {
        bump(Some(&self.connections), u64::MAX);
    }

    /// A connection ended without a request, or was refused.
    pub fn connection_error(&self, kind: ConnectionError) {
        bump(self.connection_errors.get(kind.index()), 1);
    }

    /// A TLS handshake ended.
    pub fn handshake(&self, outcome: Handshake) {
        bump(self.handshakes.get(outcome.index()), 1);
    }

    /// The application said a word so often (APP-5).
    pub fn application(&self, word: ApplicationWord, count: u64) {
        bump(self.application.get(word.index()), count);
    }

    /// A break found its channel full.
    pub fn break_dropped(&self) {
        bump(Some(&self.breaks_dropped), 1);
    }

    /// Log records found their channel full.
    pub fn records_dropped(&self, count: u64) {
        bump(Some(&self.records_dropped), count);
    }

    /// A refused request has no log record (LOG-6).
    pub fn record_left_out(&self) {
        bump(Some(&self.records_left_out), 1);
    }

    /// Finished requests found their channel full.
    pub fn finished_dropped(&self, count: usize) {
        bump(
            Some(&self.finished_dropped),
            u64::try_from(count).unwrap_or(u64::MAX),
        );
    }

    /// Adds this worker's numbers to the totals.
    pub fn fold_into(&self, totals: &mut Totals) {
        fold(&mut totals.requests, &self.requests);
        fold(&mut totals.responses, &self.responses);
        fold(&mut totals.limit_hits, &self.limit_hits);
        fold(&mut totals.connection_errors, &self.connection_errors);
        fold(&mut totals.handshakes, &self.handshakes);
        fold(&mut totals.application, &self.application);
        self.request_duration
            .fold_into(&mut totals.request_duration);
        self.upstream_duration
            .fold_into(&mut totals.upstream_duration);
        totals.request_bytes += self.request_bytes.load(Relaxed);
        totals.response_bytes += self.response_bytes.load(Relaxed);
        totals.connections += self.connections.load(Relaxed);
        totals.breaks_dropped += self.breaks_dropped.load(Relaxed);
        totals.records_dropped += self.records_dropped.load(Relaxed);
        totals.records_left_out += self.records_left_out.load(Relaxed);
        totals.finished_dropped += self.finished_dropped.load(Relaxed);
    }
}

fn fold(totals: &mut [u64], counters: &[AtomicU64]) {
    for (total, counter) in totals.iter_mut().zip(counters) {
        *total += counter.load(Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// METRIC: exact counts, an observation on a bound belongs to that bound's bucket.
    #[test]
    fn observations_fall_into_their_buckets() {
        let counters = Counters::default();
        for microseconds in [0, 500, 501, 60_000_000, 60_000_001] {
            counters.request(Action::Passed, microseconds, 2, 3);
        }
        let mut totals = Totals::default();
        counters.fold_into(&mut totals);
        let last = DURATION_BOUNDS_US.len();
        let found = [0, 1, last - 1, last].map(|bucket| totals.request_duration.buckets[bucket]);
        assert_eq!(found, [2, 1, 1, 1]);
        assert_eq!(totals.request_duration.sum_us, 120_001_002);
        assert_eq!(
            (
                totals.requests[0],
                totals.request_bytes,
                totals.response_bytes
            ),
            (5, 10, 15)
        );
    }

    #[test]
    fn a_closed_connection_is_no_longer_counted() {
        let counters = Counters::default();
        counters.connection_opened();
        counters.connection_opened();
        counters.connection_closed();
        let mut totals = Totals::default();
        counters.fold_into(&mut totals);
        assert_eq!(totals.connections, 1);
    }
}
