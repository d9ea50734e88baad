//! What goes up: breaks, each at once on a channel of its own; log records and finished requests,
//! in batches; counts by country and AS number, folded on the tick. Nothing here blocks; what does
//! not fit is counted.
//!
//! Finished requests are reported only while an anomaly threshold is set, and origins are counted
//! only while lookups are on: with both off, neither costs a request anything (ALERT-1).
//!
//! Log lines for clients that are refused without end are bounded: so many a second of one
//! netblock, all workers together. The others are counted, and named once a second (LOG-6).
//! Without it a denied client writes eleven bytes of log for each byte that it sends, and the
//! lines of everybody else find the queue full.

use std::cell::RefCell;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use ahash::RandomState;
use crossbeam_channel::{Receiver, Sender};
use http::HeaderName;
use weir_shared::clock::Now;
use weir_shared::event::{Finished, LimitExceeded};
use weir_shared::lookup::Origin;
use weir_shared::netblock::Netblock;
use weir_shared::record::{Batch, LeftOut, Record};
use weir_shared::totals::OriginCounts;
use weir_shared::verdict::Action;

use crate::worker::counters::{Counters, WorkerCounters};

/// Finished requests that travel together; they are small.
const FINISHED_BATCH: usize = 256;

/// The way of log records to their writer, and of emptied batches back.
#[derive(Clone)]
pub struct Records {
    /// Where batches go. A send wakes nobody: the writer looks on a tick of its own.
    pub batches: Sender<Batch>,
    /// Batches that the writer has emptied; a new one is made where there is none.
    pub emptied: Receiver<Batch>,
    /// The lines of the refused, all workers together.
    pub refused: Arc<RefusedLines>,
}

impl Records {
    /// Whether the queue is so full that its rest is left to the lines of clients who are not
    /// refused: half of it (LOG-6).
    fn is_half_full(&self) -> bool {
        let most = self.batches.capacity().unwrap_or(usize::MAX);
        self.batches.len() >= most.div_ceil(2)
    }
}

/// One worker's way up.
pub struct Events {
    breaks: Sender<LimitExceeded>,
    records: Option<Records>,
    gathered_records: RefCell<Batch>,
    finished: Option<Sender<Vec<Finished>>>,
    gathered_finished: RefCell<Vec<Finished>>,
    counters: Arc<Counters>,
    /// Where counts by origin go; the scrape takes them from there.
    origins: Arc<Mutex<OriginCounts>>,
    gathered_origins: RefCell<OriginCounts>,
}

impl Events {
    /// `records` and `finished` are none where nobody takes them.
    pub fn new(
        breaks: Sender<LimitExceeded>,
        records: Option<Records>,
        finished: Option<Sender<Vec<Finished>>>,
        own: WorkerCounters,
    ) -> Self {
        Self {
            breaks,
            records,
            gathered_records: RefCell::default(),
            finished,
            gathered_finished: RefCell::default(),
            counters: own.counters,
            origins: own.origins,
            gathered_origins: RefCell::default(),
        }
    }

    /// Reports an exceeded limit; false if the control plane is behind (LIMIT-6).
    pub fn report(&self, exceeded: LimitExceeded) -> bool {
        let sent = self.breaks.try_send(exceeded).is_ok();
        if !sent {
            self.counters.break_dropped();
        }
        sent
    }

    /// Gathers the record that `fill` makes; sends the batch once it is full. `names` are the
    /// header fields that are logged, the same for a whole batch: a reload may change them.
    pub fn record(&self, names: &Arc<[HeaderName]>, fill: impl FnOnce(&mut Batch) -> Record) {
        if let Some(records) = &self.records {
            self.gather(records, names, |batch| batch.add(fill));
        }
    }

    /// The same of a refused client (LOG-6): beyond `rate` lines a second of its netblock it is
    /// counted in place of that; and where others need the queue, lost.
    pub fn record_refused(
        &self,
        names: &Arc<[HeaderName]>,
        (netblock, action): (Netblock, Action),
        (rate, now): (Option<u32>, Now),
        fill: impl FnOnce(&mut Batch) -> Record,
    ) {
        let Some(records) = &self.records else { return };
        if let Some(rate) = rate
            && !records.refused.is_logged(netblock, action, rate, now)
        {
            return self.counters.record_left_out();
        }
        if records.is_half_full() {
            return self.counters.records_dropped(1);
        }
        self.gather(records, names, |batch| batch.add_refused(fill));
    }

    fn gather(&self, records: &Records, names: &Arc<[HeaderName]>, add: impl FnOnce(&mut Batch)) {
        let mut gathered = self.gathered_records.borrow_mut();
        if !gathered.is_of(names) {
            if !gathered.is_empty() {
                self.send(records, &mut gathered);
            }
            gathered.set_names(names);
        }
        add(&mut gathered);
        if gathered.is_full() {
            self.send(records, &mut gathered);
        }
    }

    /// Gathers a finished request; sends the batch once it is full.
    pub fn finished(&self, finished: Finished) {
        let full = {
            let mut gathered = self.gathered_finished.borrow_mut();
            gathered.push(finished);
            gathered.len() >= FINISHED_BATCH
        };
        if full {
            self.flush_finished();
        }
    }

    /// Counts a request by the country and the AS number of its client.
    pub fn origin(&self, origin: Origin) {
        self.gathered_origins.borrow_mut().count(origin);
    }

    /// Sends what was gathered. Called on every tick of the worker, so that a line is never long in
    /// coming.
    pub fn flush(&self, now: Now) {
        if let Some(records) = &self.records {
            let mut gathered = self.gathered_records.borrow_mut();
            records
                .refused
                .tell(now, |left| gathered.add_left_out(left));
        }
        self.flush_gathered();
    }

    /// The same at the end of the worker.
    pub fn flush_last(&self, now: Now) {
        if let Some(records) = &self.records {
            let mut gathered = self.gathered_records.borrow_mut();
            let tell = |left| gathered.add_left_out(left);
            records.refused.tell_all(now, tell);
        }
        self.flush_gathered();
    }

    fn flush_gathered(&self) {
        self.flush_records();
        self.flush_finished();
        self.flush_origins();
    }

    fn flush_records(&self) {
        let mut gathered = self.gathered_records.borrow_mut();
        if let Some(records) = self.records.as_ref().filter(|_| !gathered.is_empty()) {
            self.send(records, &mut gathered);
        }
    }

    fn send(&self, records: &Records, gathered: &mut Batch) {
        *gathered = match records.batches.try_send(std::mem::take(gathered)) {
            Ok(()) => records.emptied.try_recv().unwrap_or_default(),
            Err(refused) => {
                let mut batch = refused.into_inner();
                self.counters.records_dropped(batch.requests());
                batch.clear();
                batch
            }
        };
    }

    fn flush_finished(&self) {
        let Some(finished) = &self.finished else {
            return;
        };
        let mut gathered = self.gathered_finished.borrow_mut();
        if gathered.is_empty() {
            return;
        }
        let batch = std::mem::take(&mut *gathered);
        if let Err(refused) = finished.try_send(batch) {
            self.counters.finished_dropped(refused.into_inner().len());
        }
    }

    /// A scrape that holds the lock is not waited for: the next tick folds what this one could not.
    fn flush_origins(&self) {
        let mut gathered = self.gathered_origins.borrow_mut();
        if gathered.is_empty() {
            return;
        }
        match self.origins.try_lock() {
            Ok(mut origins) => origins.take_in(&mut gathered),
            // Counts stay counts, whoever panicked while holding them.
            Err(TryLockError::Poisoned(origins)) => origins.into_inner().take_in(&mut gathered),
            Err(TryLockError::WouldBlock) => {}
        }
    }
}

/// Parts of the table, each with a lock of its own: two netblocks seldom share one.
const SHARDS: usize = 16;
/// Netblocks that a part tells apart in one second. Those beyond share one rate, and their lines
/// are counted together: the table is bounded, and so are the lines of many netblocks.
const NETBLOCKS: usize = 64;
const SECOND_NS: u64 = 1_000_000_000;

/// The lines of all netblocks whose clients are refused.
#[derive(Default)]
pub struct RefusedLines {
    shards: [Mutex<Shard>; SHARDS],
    hasher: RandomState,
    /// The second up to which the left out were told. Relaxed: it decides for itself alone.
    told: AtomicU64,
}

/// A part of the table.
#[derive(Default)]
struct Shard {
    /// The second that `logged` is of.
    second: u64,
    /// At most [`NETBLOCKS`].
    netblocks: Vec<(Netblock, Lines)>,
    /// Those of all other netblocks.
    others: Lines,
}

/// The lines of one netblock.
#[derive(Clone, Copy, Default)]
struct Lines {
    /// Those of this second that are in the log.
    logged: u32,
    /// Those that are not and were not told of, by [`Action::index`].
    left_out: [u64; Action::ALL.len()],
}

impl Lines {
    /// Whether one more is logged; it is counted either way.
    fn take(&mut self, action: Action, rate: u32) -> bool {
        let is_logged = self.logged < rate;
        if is_logged {
            self.logged += 1;
        } else if let Some(count) = self.left_out.get_mut(action.index()) {
            *count += 1;
        }
        is_logged
    }

    fn has_left_out(&self) -> bool {
        self.left_out.iter().any(|count| *count > 0)
    }

    /// Tells of those that were left out, for each action.
    fn tell(&mut self, at_ms: u64, netblock: Option<Netblock>, tell: &mut impl FnMut(LeftOut)) {
        let left_out = std::mem::take(&mut self.left_out);
        for (action, count) in Action::ALL.into_iter().zip(left_out) {
            if count > 0 {
                tell(LeftOut {
                    at_ms,
                    netblock,
                    action,
                    count,
                });
            }
        }
    }
}

impl Shard {
    /// Begins a new second. Who was left out stays until it is told.
    fn turn(&mut self, second: u64) {
        // The clock of another worker may be a tick behind.
        if second <= self.second {
            return;
        }
        self.second = second;
        self.others.logged = 0;
        self.netblocks.retain_mut(|(_, lines)| {
            lines.logged = 0;
            lines.has_left_out()
        });
    }

    fn lines_of(&mut self, netblock: Netblock) -> &mut Lines {
        let found = self
            .netblocks
            .iter()
            .position(|(held, _)| *held == netblock);
        let at = found.unwrap_or(self.netblocks.len());
        if found.is_none() && at < NETBLOCKS {
            self.netblocks.push((netblock, Lines::default()));
        }
        let held = self.netblocks.get_mut(at);
        held.map_or(&mut self.others, |(_, lines)| lines)
    }
}

impl RefusedLines {
    /// Whether a request of this netblock has a line of its own; without one it is counted. `rate`
    /// is lines a second.
    pub fn is_logged(&self, netblock: Netblock, action: Action, rate: u32, now: Now) -> bool {
        let hash = self.hasher.hash_one(netblock);
        let at = (hash % SHARDS as u64) as usize;
        let Some(shard) = self.shards.get(at) else {
            return true;
        };
        let mut shard = lock(shard);
        shard.turn(now.mono_ns / SECOND_NS);
        shard.lines_of(netblock).take(action, rate)
    }

    /// Tells of those that were left out, once a second, whichever worker asks first.
    pub fn tell(&self, now: Now, tell: impl FnMut(LeftOut)) {
        let second = now.mono_ns / SECOND_NS;
        if self.told.fetch_max(second, Relaxed) < second {
            self.tell_all(now, tell);
        }
    }

    /// The same at once: nothing follows.
    pub fn tell_all(&self, now: Now, mut tell: impl FnMut(LeftOut)) {
        for shard in &self.shards {
            let mut shard = lock(shard);
            for (netblock, lines) in &mut shard.netblocks {
                lines.tell(now.wall_ms, Some(*netblock), &mut tell);
            }
            shard.others.tell(now.wall_ms, None, &mut tell);
        }
    }
}

fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    // Nothing panics while it is held.
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Version;
    use weir_shared::event::Offence;
    use weir_shared::lookup::Lookup;
    use weir_shared::record::Text;
    use weir_shared::totals::Totals;
    use weir_shared::verdict::{Group, LimitKind};

    const NOW: Now = Now {
        wall_ms: 0,
        mono_ns: 7_000_000_000,
    };

    fn events(
        breaks: Sender<LimitExceeded>,
        finished: Option<Sender<Vec<Finished>>>,
        counters: &Arc<Counters>,
    ) -> (Events, Arc<Mutex<OriginCounts>>) {
        let own = WorkerCounters {
            counters: Arc::clone(counters),
            origins: Arc::default(),
        };
        let origins = Arc::clone(&own.origins);
        (Events::new(breaks, None, finished, own), origins)
    }

    /// LIMIT-6: a full channel is told at once and counted, nothing waits.
    #[test]
    fn a_full_channel_is_counted() {
        let (breaks, _kept) = crossbeam_channel::bounded(1);
        let counters = Arc::new(Counters::default());
        let events = events(breaks, None, &counters).0;
        let exceeded = LimitExceeded {
            client: weir_shared::client::Client::V4(1),
            offence: Offence::Limit {
                kind: LimitKind::Minute,
                value: 1,
                percent: 100,
            },
            at_ms: 0,
            request: None,
            fleet: None,
        };
        assert!(events.report(exceeded.clone()));
        assert!(!events.report(exceeded));
        let mut totals = Totals::default();
        counters.fold_into(&mut totals);
        assert_eq!(totals.breaks_dropped, 1);
    }

    fn record(batch: &mut Batch) -> Record {
        let path = batch.keep(Some("/"));
        Record {
            at_ms: 0,
            request_id: Text::NONE,
            client: weir_shared::client::Client::V4(1),
            address: [203, 0, 113, 7].into(),
            group: Group::Default,
            other_site: false,
            forwarded_for: Text::NONE,
            scheme: "http",
            method: Text::NONE,
            host: Text::NONE,
            path,
            query: Text::NONE,
            version: Version::HTTP_11,
            user_agent: Text::NONE,
            referer: Text::NONE,
            content_type: Text::NONE,
            content_length: None,
            headers: batch.keep_headers(std::iter::empty::<(usize, &[u8])>()),
            has_authorization: false,
            has_cookie: false,
            websocket: false,
            status: None,
            response_content_type: Text::NONE,
            cache_control: Text::NONE,
            location: Text::NONE,
            action: Action::Passed,
            enforced: true,
            ban: None,
            limit_hit: None,
            shared: None,
            application: Text::NONE,
            crawler: None,
            rule: None,
            list: None,
            limit_percent: None,
            bytes_percent: None,
            country: Text::NONE,
            asn: Text::NONE,
            as_name: Text::NONE,
            counts: None,
            request_bytes: 0,
            response_bytes: 0,
            total_us: 0,
            lookup_wait_us: None,
            connect_us: None,
            first_byte_us: None,
        }
    }

    /// LOG: records go up in batches; what finds the channel full is counted, and nothing waits.
    #[test]
    fn records_go_up_in_batches() {
        let (full, up) = crossbeam_channel::bounded(1);
        let (back, spare) = crossbeam_channel::bounded(1);
        let counters = Arc::new(Counters::default());
        let mut events = events(crossbeam_channel::bounded(1).0, None, &counters).0;
        let names = Arc::from([]);
        events.records = Some(Records {
            batches: full,
            emptied: spare,
            refused: Arc::default(),
        });
        events.record(&names, record);
        assert!(up.is_empty(), "not before the tick");
        events.flush(NOW);
        events.flush(NOW);
        events.record(&names, record);
        events.flush(NOW);
        let mut first = up.try_recv().unwrap();
        assert_eq!(first.requests(), 1);
        assert!(up.is_empty(), "the second found the channel full");
        first.clear();
        back.send(first).unwrap();
        while up.is_empty() {
            events.record(&names, record);
        }
        assert!(
            back.is_empty(),
            "the emptied batch is taken for the next records"
        );
        let second = up.try_recv().unwrap();
        assert!(second.is_full());
        assert!(
            second
                .records()
                .all(|(record, ..)| second.text(record.path) == Some(b"/"))
        );
        let mut totals = Totals::default();
        counters.fold_into(&mut totals);
        assert_eq!(totals.records_dropped, 1);
    }

    /// LOG-6: refused clients have so many lines a second, the rest is counted, and half of the
    /// queue; nothing is in neither.
    #[test]
    fn refused_clients_leave_room_for_others() {
        let (full, up) = crossbeam_channel::bounded(4);
        let counters = Arc::new(Counters::default());
        let mut events = events(crossbeam_channel::bounded(1).0, None, &counters).0;
        let (_, spare) = crossbeam_channel::bounded(1);
        events.records = Some(Records {
            batches: full,
            emptied: spare,
            refused: Arc::default(),
        });
        let names = Arc::from([]);
        let of = ("192.0.2.0/24".parse().unwrap(), Action::Banned);
        events.flush(NOW);
        for _ in 0..7 {
            events.record_refused(&names, of, (Some(5), NOW), record);
        }
        events.flush(NOW);
        let next = Now {
            mono_ns: NOW.mono_ns + 1_000_000_000,
            ..NOW
        };
        events.flush(next);
        let (first, second) = (up.try_recv().unwrap(), up.try_recv().unwrap());
        assert_eq!(first.requests(), 5);
        assert_eq!((second.left_out()[0].count, second.requests()), (2, 2));
        // Two of four batches wait: the rest is for others.
        for _ in 0..2 {
            events.record(&names, record);
            events.flush(next);
        }
        events.record_refused(&names, of, (None, next), record);
        events.flush(next);
        assert_eq!(up.len(), 2);
        for _ in 0..2 {
            events.record(&names, record);
            events.flush(next);
        }
        assert_eq!(up.len(), 4);
        // A number that finds no room is as many lost lines.
        for _ in 0..8 {
            events.record_refused(&names, of, (Some(5), next), record);
        }
        events.flush_last(next);
        let mut totals = Totals::default();
        counters.fold_into(&mut totals);
        assert_eq!(
            (totals.records_left_out, totals.records_dropped),
            (5, 1 + 5 + 3)
        );
    }

    fn finished(last: u8) -> Finished {
        Finished {
            address: [203, 0, 113, last].into(),
            lookup: None,
            bytes: 7,
        }
    }

    /// ALERT-1: finished requests go up in batches, in order; what finds the channel full is
    /// counted and nothing waits.
    #[test]
    fn finished_requests_go_up_in_batches() {
        let (up, down) = crossbeam_channel::bounded(1);
        let counters = Arc::new(Counters::default());
        let (events, _) = events(crossbeam_channel::bounded(1).0, Some(up), &counters);
        for last in 0..3 {
            events.finished(finished(last));
        }
        assert!(down.is_empty(), "not before the tick");
        events.flush(NOW);
        events.flush(NOW);
        for last in 0..=255 {
            events.finished(finished(last));
        }
        events.finished(finished(1));
        events.flush(NOW);
        assert_eq!(down.try_recv().unwrap(), [0, 1, 2].map(finished));
        assert!(down.is_empty());
        let mut totals = Totals::default();
        counters.fold_into(&mut totals);
        assert_eq!(totals.finished_dropped, 257);
    }

    /// METRIC: a scrape that holds the counts costs no request a wait, and nothing is lost over it.
    #[test]
    fn counts_by_place_wait_for_nobody() {
        let (events, origins) = events(
            crossbeam_channel::bounded(1).0,
            None,
            &Arc::new(Counters::default()),
        );
        let lookup = Lookup {
            country: Some("DE".to_owned()),
            ..Lookup::default()
        };
        events.origin(Origin::of(&lookup));
        {
            let held = origins.lock().unwrap();
            events.flush(NOW);
            assert!(held.is_empty());
        }
        events.origin(Origin::of(&lookup));
        events.flush(NOW);
        assert_eq!(origins.lock().unwrap().countries[&lookup.country()], 2);
    }
}

#[cfg(test)]
mod refused_lines_tests {
    use super::*;

    fn at(ms: u64) -> Now {
        Now {
            wall_ms: ms,
            mono_ns: ms * 1_000_000,
        }
    }

    fn netblock(number: usize) -> Netblock {
        let [.., high, low] = u32::try_from(number).unwrap().to_be_bytes();
        format!("198.{high}.{low}.0/24").parse().unwrap()
    }

    fn told(lines: &RefusedLines, now: Now) -> Vec<(Option<Netblock>, Action, u64)> {
        let mut told = Vec::new();
        lines.tell(now, |left_out| {
            assert_eq!(left_out.at_ms, now.wall_ms);
            told.push((left_out.netblock, left_out.action, left_out.count));
        });
        told
    }

    /// LOG-6: of a netblock so many lines a second are logged, the others are counted by action and
    /// told once, in the next second; another netblock has its own.
    #[test]
    fn a_netblock_has_so_many_lines_a_second() {
        let lines = RefusedLines::default();
        let logged = |number, action, ms| {
            let is_logged = |_: &usize| lines.is_logged(netblock(number), action, 10, at(ms));
            (0..15).filter(is_logged).count()
        };
        assert_eq!(told(&lines, at(5_000)), []);
        assert_eq!(logged(1, Action::Banned, 5_000), 10);
        assert_eq!(logged(1, Action::DeniedNet, 5_100), 0);
        assert_eq!(logged(2, Action::Banned, 5_200), 10);
        assert_eq!(told(&lines, at(5_999)), [], "the second is not over");
        // The next second has its own lines, told or not; a clock that is a tick behind has none.
        assert_eq!(logged(1, Action::Banned, 6_000), 10);
        assert_eq!(logged(1, Action::Banned, 5_950), 0);
        let mut all = told(&lines, at(6_050));
        all.sort_by_key(|(netblock, action, _)| (*netblock, action.index()));
        let one = Some(netblock(1));
        let two = (Some(netblock(2)), Action::Banned, 5);
        assert_eq!(
            all,
            [(one, Action::DeniedNet, 15), (one, Action::Banned, 25), two]
        );
        assert_eq!(told(&lines, at(6_100)), [], "told once");
        assert_eq!(told(&lines, at(7_000)), []);
        assert!(lines.shards.iter().all(|shard| lock(shard).second <= 6));
    }

    /// LOG-6: every request is logged or counted, whatever comes when; a clock that is a tick
    /// behind gives nobody a second share.
    #[test]
    fn nothing_is_lost() {
        let lines = RefusedLines::default();
        let (mut logged, mut counted) = (0, 0);
        for step in 0..40_000_u64 {
            let ms = 1_000 + step / 8 - (step % 3) * 17;
            let number = (step * step % 7) as usize;
            let action = Action::ALL[(step % 13) as usize];
            logged += u64::from(lines.is_logged(netblock(number), action, 100, at(ms)));
            if step % 50 == 0 {
                lines.tell(at(ms), |left_out| counted += left_out.count);
            }
        }
        lines.tell_all(at(99_000), |left_out| counted += left_out.count);
        assert_eq!(logged + counted, 40_000);
        // Six seconds of seven netblocks at most.
        assert!(logged <= 6 * 7 * 100, "{logged}");
    }

    /// LOG-6: more netblocks than the table tells apart share one rate in each part, and the table
    /// does not grow.
    #[test]
    fn the_table_is_bounded() {
        let lines = RefusedLines::default();
        let mut logged = 0;
        for number in 0..20_000 {
            logged += usize::from(lines.is_logged(netblock(number), Action::Banned, 1, at(0)));
        }
        assert_eq!(logged, SHARDS * (NETBLOCKS + 1));
        let all = told(&lines, at(1_000));
        assert!(all.iter().all(|(netblock, ..)| netblock.is_none()));
        assert_eq!(
            all.iter().map(|(.., count)| count).sum::<u64>(),
            20_000 - logged as u64
        );
        // Nobody of them is kept in the next second.
        let again = (0..20_000)
            .filter(|number| lines.is_logged(netblock(*number), Action::Banned, 1, at(2_000)));
        assert_eq!(again.count(), logged);
        told(&lines, at(3_000));
        for _ in 0..2 {
            for number in 0..SHARDS * 8 {
                assert!(lines.is_logged(netblock(number), Action::Banned, 2, at(4_000)));
            }
        }
    }
}
