//! Charging one client: its six windows, and what follows when one is exceeded. Pure; the table
//! holds the lock.

use std::sync::Arc;

use weir_shared::lookup::{Lookup, Origin};
use weir_shared::verdict::LimitKind;
use weir_shared::window::{Span, Window};

use super::terms::Terms;

/// A lookup that was asked for and has not ended after this long is lost, nanoseconds: it is asked
/// for again. Far beyond what a lookup takes, queue included.
const LOST_NS: u64 = 120_000_000_000;

/// The limits that apply to one client, after percentages; none is `off`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Limits {
    /// Requests, in the order of [`Span::ALL`].
    pub requests: [Option<u64>; 3],
    /// Bytes, in the order of [`Span::ALL`].
    pub bytes: [Option<u64>; 3],
}

/// What is kept of one client.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Monotonic time of the latest request, nanoseconds: the order of eviction (LIMIT-7).
    pub seen_ns: u64,
    /// Wall clock of the first request, milliseconds.
    pub first_seen_ms: u64,
    /// Wall clock of the latest request, milliseconds.
    pub last_seen_ms: u64,
    /// Requests passed on (CHECK-4).
    pub passed: u64,
    /// Requests refused (CHECK-4).
    pub refused: u64,
    /// Request windows.
    pub requests: [Window; 3],
    /// Byte windows.
    pub bytes: [Window; 3],
    /// The lookup's answer.
    pub lookup: Option<Arc<Lookup>>,
    /// Where the answer has its requests counted.
    pub origin: Origin,
    /// What the answer changes for this client; none where it changes nothing.
    pub terms: Option<Arc<Terms>>,
    /// From when on the client is to be asked about, on the monotonic clock, nanoseconds;
    /// `u64::MAX` for never.
    pub ask_at_ns: u64,
    /// It is being asked about, and who needs the answer may wait for it.
    pub in_flight: bool,
    /// The generation of the snapshot whose ban reset the windows. A request that decides under an
    /// older one has not seen that ban and starts over (LIMIT-6).
    pub reset_generation: u64,
    /// An exceeded limit was reported and the control plane has not answered yet; it is not
    /// reported twice.
    pub reported: bool,
}

/// An exceeded limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Exceeded {
    /// Which.
    pub kind: LimitKind,
    /// Its value, requests or bytes.
    pub limit: u64,
    /// Whether this is the first break since the last reset: the one that is reported.
    pub first: bool,
}

impl Entry {
    /// A client that is seen for the first time.
    pub fn new(seen_ns: u64, wall_ms: u64) -> Self {
        Self {
            seen_ns,
            first_seen_ms: wall_ms,
            last_seen_ms: wall_ms,
            passed: 0,
            refused: 0,
            requests: [Window::default(); 3],
            bytes: [Window::default(); 3],
            lookup: None,
            origin: Origin::default(),
            terms: None,
            ask_at_ns: 0,
            in_flight: false,
            reset_generation: 0,
            reported: false,
        }
    }

    /// Whether the client was reset after the snapshot of this generation was published: whoever
    /// decides under it has not seen the ban (LIMIT-6).
    pub const fn is_reset_after(&self, generation: u64) -> bool {
        generation < self.reset_generation
    }

    /// Charges one request (LIMIT-1, LIMIT-2); names the shortest window that is over. Every window
    /// counts, also one whose limit is off: the counts outlive a change of settings.
    pub fn charge_request(&mut self, limits: &Limits, wall_ms: u64) -> Option<Exceeded> {
        let (span, limit) = charge(&mut self.requests, &limits.requests, wall_ms, 1)?;
        Some(self.exceeded(LimitKind::requests(span), limit))
    }

    /// Charges the bytes of one request whose answer has ended (LIMIT-5).
    pub fn charge_bytes(&mut self, limits: &Limits, wall_ms: u64, bytes: u64) -> Option<Exceeded> {
        let (span, limit) = charge(&mut self.bytes, &limits.bytes, wall_ms, bytes)?;
        Some(self.exceeded(LimitKind::bytes(span), limit))
    }

    /// The six estimates in the order of [`LimitKind::ALL`], rounded down.
    pub fn counts(&self, wall_ms: u64) -> [u64; 6] {
        let [minute, hour, day] = &self.requests;
        let requests = [
            minute.estimate(Span::Minute, wall_ms),
            hour.estimate(Span::Hour, wall_ms),
            day.estimate(Span::Day, wall_ms),
        ];
        self.counts_with(requests, wall_ms)
    }

    /// The estimates of bytes, behind estimates of requests that were taken earlier.
    pub fn counts_with(&self, requests: [u64; 3], wall_ms: u64) -> [u64; 6] {
        let [minute, hour, day] = requests;
        let [minute_bytes, hour_bytes, day_bytes] = &self.bytes;
        [
            minute,
            hour,
            day,
            minute_bytes.estimate(Span::Minute, wall_ms),
            hour_bytes.estimate(Span::Hour, wall_ms),
            day_bytes.estimate(Span::Day, wall_ms),
        ]
    }

    /// Whether the client is to be asked about now (LOOKUP-2). The caller that is told so asks;
    /// nobody else is.
    pub fn begins_lookup(&mut self, mono_ns: u64) -> bool {
        let due = mono_ns >= self.ask_at_ns;
        if due {
            self.ask_at_ns = mono_ns.saturating_add(LOST_NS);
            self.in_flight = true;
        }
        due
    }

    /// The lookup gave no answer: nobody waits for it, and it is asked for again from `again_ns` on
    /// (LOOKUP-3). An older answer stays.
    pub fn ask_again(&mut self, again_ns: u64) {
        self.in_flight = false;
        self.ask_at_ns = again_ns;
    }

    /// Forgets the answer and what it means.
    pub fn forget_lookup(&mut self) {
        self.lookup = None;
        self.origin = Origin::default();
        self.terms = None;
    }

    /// Forgets what was counted, once the ban of `generation` can be seen by every worker
    /// (LIMIT-6).
    pub fn reset(&mut self, generation: u64) {
        self.requests = [Window::default(); 3];
        self.bytes = [Window::default(); 3];
        self.reset_generation = self.reset_generation.max(generation);
        self.reported = false;
    }

    fn exceeded(&mut self, kind: LimitKind, limit: u64) -> Exceeded {
        let first = !self.reported;
        self.reported = true;
        Exceeded { kind, limit, first }
    }
}

/// Adds to the three windows; names the shortest that is over.
fn charge(
    windows: &mut [Window; 3],
    limits: &[Option<u64>; 3],
    wall_ms: u64,
    amount: u64,
) -> Option<(Span, u64)> {
    let mut over = None;
    for ((window, limit), span) in windows.iter_mut().zip(limits).zip(Span::ALL) {
        window.add(span, wall_ms, amount);
        if let Some(limit) = *limit
            && over.is_none()
            && window.is_over(span, wall_ms, limit)
        {
            over = Some((span, limit));
        }
    }
    over
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_795_276_800_000;

    fn limits(minute: u64, hour: u64) -> Limits {
        Limits {
            requests: [Some(minute), Some(hour), None],
            bytes: [Some(1000), None, None],
        }
    }

    /// LIMIT-1: the shortest exceeded window is named.
    #[test]
    fn the_shortest_broken_window_is_named() {
        let mut entry = Entry::new(0, NOW);
        assert_eq!(entry.charge_request(&limits(1, 1), NOW), None);
        let exceeded = entry.charge_request(&limits(1, 1), NOW).unwrap();
        assert_eq!((exceeded.kind, exceeded.limit), (LimitKind::Minute, 1));
        let mut entry = Entry::new(0, NOW);
        entry.charge_request(&limits(5, 1), NOW);
        let exceeded = entry.charge_request(&limits(5, 1), NOW).unwrap();
        assert_eq!(exceeded.kind, LimitKind::Hour);
    }

    /// LIMIT-2: refused requests are counted.
    #[test]
    fn a_refused_request_counts() {
        let mut entry = Entry::new(0, NOW);
        for _ in 0..5 {
            entry.charge_request(&limits(1, 100), NOW);
        }
        assert_eq!(entry.counts(NOW), [5, 5, 5, 0, 0, 0]);
    }

    /// LIMIT-6: a break is reported once, until the ban resets the client.
    #[test]
    fn a_break_is_reported_once() {
        let mut entry = Entry::new(0, NOW);
        let first = |exceeded: Option<Exceeded>| exceeded.unwrap().first;
        entry.charge_request(&limits(1, 100), NOW);
        assert!(first(entry.charge_request(&limits(1, 100), NOW)));
        assert!(!first(entry.charge_request(&limits(1, 100), NOW)));
        entry.reset(4);
        assert_eq!(entry.charge_request(&limits(1, 100), NOW), None);
        assert!(first(entry.charge_request(&limits(1, 100), NOW)));
    }

    /// LIMIT-6: a request that has not seen the ban decides anew.
    #[test]
    fn an_old_snapshot_is_stale_after_the_reset() {
        let mut entry = Entry::new(0, NOW);
        entry.reset(7);
        assert!(entry.is_reset_after(6) && !entry.is_reset_after(7));
        entry.reset(3);
        assert!(entry.is_reset_after(6), "the latest reset stands");
    }

    /// LOOKUP-2, LOOKUP-3: a client is asked about by one request; after a failure not before its
    /// time.
    #[test]
    fn one_request_asks() {
        let mut entry = Entry::new(0, NOW);
        assert!(entry.begins_lookup(5));
        assert!(entry.in_flight && !entry.begins_lookup(6));
        entry.ask_again(100);
        assert!(!entry.in_flight && !entry.begins_lookup(99));
        assert!(entry.begins_lookup(100));
        // A lookup that is lost is asked for again some time.
        assert!(!entry.begins_lookup(100 + LOST_NS - 1) && entry.begins_lookup(100 + LOST_NS));
        entry.ask_again(u64::MAX);
        assert!(!entry.begins_lookup(u64::MAX - 1));
    }

    /// LIMIT-5: over a byte limit is a break, once the answer has ended.
    #[test]
    fn bytes_over_the_limit_break_it() {
        let mut entry = Entry::new(0, NOW);
        assert_eq!(entry.charge_bytes(&limits(9, 9), NOW, 1000), None);
        let exceeded = entry.charge_bytes(&limits(9, 9), NOW, 1).unwrap();
        assert_eq!(
            (exceeded.kind, exceeded.limit, exceeded.first),
            (LimitKind::MinuteBytes, 1000, true)
        );
    }
}
