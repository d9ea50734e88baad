//! The thread `weir-counts`: it sends the counts of this instance to the engine, and gets those of
//! the others (FLEET-5 to FLEET-10). It has a connection of its own, so that counts and the log of
//! events do not delay each other. Nobody waits for this thread.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, TryRecvError};
use weir_shared::clock::Clock;
use weir_shared::fleet::{
    Changed, CountOf, FleetCounts, Report, Reporting, SharedCount, Sum, URGENT,
};
use weir_shared::threads;

use super::again::{self, Ended, Speaker, Word};
use super::counts::{Batches, MAX_DELTAS, Outcome};
use super::engine::{CountEngine, CountKind, Fault};
use super::link::{Access, Link};
use super::seal::{FleetKey, random};
use super::stamp::Origin;

/// The least time between two batches.
const BREATH: Duration = Duration::from_millis(10);
/// How long it waits for counts before it looks for orders.
const IDLE: Duration = Duration::from_millis(100);
/// A clock that is further off shares no counts (FLEET-22).
pub(super) const MOST_OFF_MS: u64 = 30_000;
const SECOND_NS: u128 = 1_000_000_000;
/// The most answers in a row that may say that the engine is at another batch than expected.
const SPARE_ROUNDS: usize = 16;
/// The most counts that wait: as many as there are clients.
const MOST_WAITING: usize = weir_shared::table::MAX_CLIENTS;

/// What the control loop wants.
pub(super) enum CountOrder {
    /// Send all counts, and then nothing until [`CountOrder::Work`].
    Rest,
    /// Go on.
    Work,
}

/// Values shared by the loop and the thread. All accesses are relaxed: numbers that are read now
/// and then.
#[derive(Default)]
pub(super) struct CountFacts {
    /// Live instances, this one included; 0 until they are known.
    pub(super) instances: AtomicU64,
    /// How far the clock is ahead of the engine's.
    pub(super) clock_ms: AtomicI64,
    /// The mode is observe.
    pub(super) observes: AtomicBool,
    /// Deltas that the engine has taken.
    pub(super) sent: AtomicU64,
    /// Deltas that wait for the next second (FLEET-10).
    pub(super) held: AtomicU64,
    /// Deltas that the engine did not take: of a clock that is ahead, or of the time before a ban.
    pub(super) stale: AtomicU64,
    /// Batches that were taken, that were sent again, and that got no answer.
    pub(super) batches: [AtomicU64; 3],
    /// True once the thread must end.
    pub(super) is_over: AtomicBool,
    /// True once everything is sent after rest was ordered.
    pub(super) rests: AtomicBool,
}

impl CountFacts {
    fn add(number: &AtomicU64, more: u64) {
        number.fetch_add(more, Ordering::Relaxed);
    }
}

/// What the thread needs.
pub(super) struct Counting {
    pub(super) access: Access,
    pub(super) key: FleetKey,
    pub(super) me: Origin,
    pub(super) clock: Clock,
    pub(super) counts: Arc<dyn FleetCounts>,
    pub(super) orders: Receiver<CountOrder>,
    pub(super) facts: Arc<CountFacts>,
    /// `WAF_FLEET_INTERVAL`
    pub(super) interval: Duration,
    /// `WAF_FLEET_RATE`
    pub(super) rate: u64,
}

/// The counts that wait, and how many may be sent.
struct Waiting {
    batches: Batches,
    /// The mode of the batches, once one was sent.
    kind: Option<CountKind>,
    /// The counts that are due, with their latest urgency.
    clients: HashMap<Changed, u64>,
    /// Deltas that may be sent now.
    tokens: u64,
    filled_ns: u64,
    /// When all due counts were last sent.
    ticked_ns: u64,
}

/// The thread.
struct Thread {
    counting: Counting,
    waiting: Waiting,
}

impl Speaker for Thread {
    type Order = CountOrder;

    fn orders(&self) -> &Receiver<CountOrder> {
        &self.counting.orders
    }

    fn word(order: &CountOrder) -> Word {
        match order {
            CountOrder::Rest => Word::Rest,
            CountOrder::Work => Word::Work,
        }
    }

    fn speak(&mut self, answers: &mut dyn FnMut()) -> Result<Infallible, Ended> {
        self.counting.share_on(&mut self.waiting, answers)
    }

    fn failed(&mut self, fault: Fault, is_first: bool) -> Result<(), Ended> {
        if is_first {
            tracing::warn!("counts are not shared with the fleet: {fault}");
        }
        let [.., unanswered] = &self.counting.facts.batches;
        CountFacts::add(unanswered, 1);
        Ok(())
    }

    /// Notes that everything was sent, or that nothing can be because the engine does not answer.
    fn rests(&mut self, rests: bool) {
        self.counting.facts.rests.store(rests, Ordering::Release);
    }
}

impl Counting {
    /// Starts it.
    ///
    /// # Errors
    /// The system refused it.
    pub(super) fn start(self) -> io::Result<()> {
        self.counts.tell_values_by(self.key.values());
        let now_ns = self.now_ns();
        let waiting = Waiting {
            batches: Batches::default(),
            kind: None,
            clients: HashMap::new(),
            tokens: self.rate,
            filled_ns: now_ns,
            ticked_ns: now_ns,
        };
        let thread = Thread {
            counting: self,
            waiting,
        };
        threads::spawn_while_needed("weir-counts", move || again::run(thread)).map(drop)
    }

    fn share_on(
        &self,
        waiting: &mut Waiting,
        answers: &mut dyn FnMut(),
    ) -> Result<Infallible, Ended> {
        let mut link = Link::open(&self.access, Duration::ZERO)?;
        // Asks for the generation, and sends again what was under way.
        self.send(&mut link, waiting)?;
        answers();
        loop {
            match self.orders.try_recv() {
                Ok(CountOrder::Rest) => {
                    // A connection that idled may have been closed meanwhile.
                    let sent = self.send_all(&mut link, waiting).or_else(|_| {
                        let mut link = Link::open(&self.access, Duration::ZERO)?;
                        self.send(&mut link, waiting)?;
                        self.send_all(&mut link, waiting)
                    });
                    // Faults are not reported while the thread rests.
                    drop(sent);
                    return Err(Ended::Rest);
                }
                Ok(CountOrder::Work) | Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => return Err(Ended::Stop),
            }
            if self.changes_mode(waiting) {
                self.send(&mut link, waiting)?;
            }
            if waiting.clients.is_empty() {
                if let Some(changed) = self.counts.changed(IDLE) {
                    self.look_at(changed, waiting);
                    // Waits a moment, so that counts that come soon after go into the same batch.
                    self.breathe();
                }
            } else {
                self.breathe();
            }
            while waiting.clients.len() < MOST_WAITING
                && let Some(changed) = self.counts.changed(Duration::ZERO)
            {
                self.look_at(changed, waiting);
            }
            self.turn(&mut link, waiting, answers)?;
        }
    }

    /// Whether the mode has changed. The sums of the new mode may contain counts of an earlier time
    /// in that mode, and get no counts of the other mode (FLEET-6, FLEET-20).
    fn changes_mode(&self, waiting: &mut Waiting) -> bool {
        let kind = self.kind();
        let is_changed = waiting.kind.replace(kind).is_some_and(|held| held != kind);
        if is_changed {
            waiting.batches = Batches::default();
            self.counts.may_be_sent();
        }
        is_changed
    }

    fn breathe(&self) {
        std::thread::sleep(BREATH);
    }

    /// Queues a client if counts of it are due.
    fn look_at(&self, changed: Changed, waiting: &mut Waiting) {
        let reports = (self.counts).reports(&changed, self.reporting(false), self.clock.now());
        if let Some(urgency) = reports.iter().map(|report| report.urgency).max() {
            waiting.clients.insert(changed, urgency);
        }
    }

    fn reporting(&self, is_last: bool) -> Reporting {
        Reporting {
            instances: self.facts.instances.load(Ordering::Relaxed).max(1),
            is_last,
            ask_after_ns: nanos(self.interval),
        }
    }

    /// Sends due counts: urgent ones at once, others once in an interval.
    fn turn(
        &self,
        link: &mut Link,
        waiting: &mut Waiting,
        answers: &mut dyn FnMut(),
    ) -> Result<(), Ended> {
        let now_ns = self.now_ns();
        waiting.fill(self.rate, now_ns);
        let ticks = now_ns.saturating_sub(waiting.ticked_ns) >= nanos(self.interval);
        if self.is_off() || waiting.clients.is_empty() {
            self.facts.held.store(0, Ordering::Relaxed);
            return Ok(());
        }
        let mut due: Vec<(u64, Changed)> = (waiting.clients.iter())
            .filter(|(_, urgency)| ticks || **urgency >= URGENT)
            .map(|(changed, urgency)| (*urgency, changed.clone()))
            .collect();
        if ticks {
            waiting.ticked_ns = now_ns;
        }
        due.sort_unstable_by_key(|(urgency, _)| Reverse(*urgency));
        let mut due = due.into_iter();
        while waiting.tokens > 0 {
            let reports = self.gather(&mut due, waiting, false);
            if reports.is_empty() {
                break;
            }
            self.send_reports(link, waiting, reports)?;
            answers();
        }
        if ticks {
            let held = waiting.clients.len() as u64;
            self.facts.held.store(held, Ordering::Relaxed);
        }
        Ok(())
    }

    /// The reports of the next counts, as many as fit into a batch.
    fn gather(
        &self,
        next: &mut impl Iterator<Item = (u64, Changed)>,
        waiting: &mut Waiting,
        is_last: bool,
    ) -> Vec<Report> {
        let mut reports: Vec<Report> = Vec::new();
        let now = self.clock.now();
        while reports.len() < MAX_DELTAS && (is_last || waiting.tokens > 0) {
            let Some((_, changed)) = next.next() else {
                break;
            };
            waiting.clients.remove(&changed);
            let more = (self.counts).reports(&changed, self.reporting(is_last), now);
            waiting.tokens = waiting.tokens.saturating_sub(more.len() as u64);
            reports.extend(more);
        }
        reports
    }

    /// Sends all counts (FLEET-30).
    fn send_all(&self, link: &mut Link, waiting: &mut Waiting) -> Result<(), Ended> {
        if self.is_off() {
            return Ok(());
        }
        let all = self.counts.all().into_iter();
        let mut all = all.map(|changed| (0, changed)).peekable();
        while all.peek().is_some() {
            let reports = self.gather(&mut all, waiting, true);
            if !reports.is_empty() {
                self.send_reports(link, waiting, reports)?;
            }
        }
        Ok(())
    }

    fn send_reports(
        &self,
        link: &mut Link,
        waiting: &mut Waiting,
        reports: Vec<Report>,
    ) -> Result<(), Ended> {
        let key = |report: &Report| self.name(&report.of);
        waiting.batches.send(reports, key, self.now_ns());
        self.send(link, waiting)
    }

    /// Sends the batch under way until the engine has taken it, or it is void.
    fn send(&self, link: &mut Link, waiting: &mut Waiting) -> Result<(), Ended> {
        let kind = *waiting.kind.get_or_insert_with(|| self.kind());
        let [taken, again, _] = &self.facts.batches;
        // Each round completes one batch, unless an engine contradicts itself.
        for _ in 0..waiting.batches.kept() + SPARE_ROUNDS {
            let found = random().ok_or_else(|| Fault("the system has no random numbers".into()))?;
            let found = format!("{:08x}", found & 0xffff_ffff);
            let batches = &mut waiting.batches;
            let merged =
                link.merge(&self.me, kind, batches.generation(), &found, batches.next())?;
            match batches.answered(merged, self.now_ns()) {
                Outcome::Taken(told) => {
                    CountFacts::add(taken, 1);
                    self.learn(told);
                }
                Outcome::Again | Outcome::Behind => CountFacts::add(again, 1),
                Outcome::Returned => {
                    CountFacts::add(again, 1);
                    self.counts.may_be_sent();
                    tracing::warn!("the engine of the fleet has counts of an earlier time again");
                }
                Outcome::Lost => {
                    CountFacts::add(again, 1);
                    self.counts.lost();
                    tracing::warn!(
                        "the engine of the fleet has lost its counts: those of this instance are sent again"
                    );
                }
            }
            if !batches.is_behind() {
                return Ok(());
            }
        }
        Err(Fault("the engine says another number of the last batch each time".to_owned()).into())
    }

    fn learn(&self, told: Vec<(Report, Option<Sum>)>) {
        if self.facts.is_over.load(Ordering::Relaxed) {
            return;
        }
        let now = self.clock.now();
        let instances = self.facts.instances.load(Ordering::Relaxed).max(1);
        for (report, sum) in told {
            let Some(sum) = sum else {
                CountFacts::add(&self.facts.stale, 1);
                continue;
            };
            // A sum of a later epoch says that the report was void.
            let is_taken = sum.epoch_ms <= report.epoch_ms;
            let number = if is_taken {
                &self.facts.sent
            } else {
                &self.facts.stale
            };
            CountFacts::add(number, 1);
            (self.counts).learn(&report, is_taken, &sum, instances, now);
        }
    }

    fn name(&self, of: &CountOf) -> [u8; 12] {
        let name = match of {
            CountOf::Client(client) => format!("client\n{client}"),
            CountOf::Rule(client, rule) => {
                format!("{}\n{}\n{client}", rule.kind.name(), rule.name)
            }
            CountOf::Shared(SharedCount {
                rule,
                key,
                is_second,
            }) => {
                let (name, per) = (&rule.name, key.per());
                format!("shared\n{name}\n{per}\n{key}\n{is_second}")
            }
        };
        self.key.name(&name)
    }

    fn kind(&self) -> CountKind {
        match self.facts.observes.load(Ordering::Relaxed) {
            true => CountKind::Observed,
            false => CountKind::Enforced,
        }
    }

    fn is_off(&self) -> bool {
        let clock_ms = self.facts.clock_ms.load(Ordering::Relaxed);
        clock_ms.unsigned_abs() > MOST_OFF_MS
    }

    fn now_ns(&self) -> u64 {
        self.clock.now().mono_ns
    }
}

impl Waiting {
    fn fill(&mut self, rate: u64, now_ns: u64) {
        let passed_ns = now_ns.saturating_sub(self.filled_ns);
        let earned = u128::from(passed_ns) * u128::from(rate);
        let more = u64::try_from(earned / SECOND_NS).unwrap_or(u64::MAX);
        if more > 0 {
            // A fraction of a delta is carried over.
            let part_ns = earned % SECOND_NS / u128::from(rate);
            self.filled_ns = now_ns.saturating_sub(u64::try_from(part_ns).unwrap_or(0));
            self.tokens = self.tokens.saturating_add(more).min(rate);
        }
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The channel of orders.
pub(super) fn orders() -> (Sender<CountOrder>, Receiver<CountOrder>) {
    crossbeam_channel::bounded(4)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// FLEET-10: all that the setting allows may be sent, however often the budget is read.
    #[test]
    fn part_of_a_delta_counts_on() {
        let mut waiting = Waiting {
            batches: Batches::default(),
            kind: None,
            clients: HashMap::new(),
            tokens: 0,
            filled_ns: 0,
            ticked_ns: 0,
        };
        for look in 1..=99 {
            waiting.fill(99, look * 10_100_000);
        }
        assert_eq!(waiting.tokens, 98, "of 98.99 in 999.9 ms");
    }
}
