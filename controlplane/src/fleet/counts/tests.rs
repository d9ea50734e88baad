use std::collections::{BTreeMap, HashMap};

use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use weir_shared::client::Client;
use weir_shared::fleet::{CountOf, InFleet};

use super::*;
use crate::fleet::engine::{CountEngine, CountKind, Fault};
use crate::fleet::stamp::Origin;

/// 2026-11-26 00:00, in minutes.
const MINUTE: u64 = 29_926_080;

/// An engine as it ought to be: the naive twin of `merge.lua`.
#[derive(Clone, Default)]
pub(in crate::fleet) struct Twin {
    generation: String,
    numbers: BTreeMap<String, u64>,
    sums: HashMap<[u8; 12], (u64, bool, Vec<Window>)>,
}

impl Twin {
    fn sum(&self, name: &[u8; 12]) -> Vec<u8> {
        let Some((epoch_ms, known, windows)) = self.sums.get(name) else {
            return Vec::new();
        };
        bytes(&Report {
            epoch_ms: *epoch_ms,
            known: *known,
            windows: windows.clone(),
            ..report(0, Vec::new())
        })
    }

    fn add(&mut self, delta: &Delta, report: &Report) {
        let more = (report.epoch_ms, report.known, report.windows.clone());
        let Some((epoch_ms, known, windows)) = self.sums.get_mut(&delta.name) else {
            if !report.is_empty() || report.known || report.epoch_ms > 0 {
                self.sums.insert(delta.name, more);
            }
            return;
        };
        if *epoch_ms > report.epoch_ms {
            return;
        }
        *known |= report.known;
        if *epoch_ms < report.epoch_ms {
            *epoch_ms = report.epoch_ms;
            windows.clone_from(&report.windows);
            return;
        }
        let latest = |windows: &[Window]| windows.iter().map(|of| of.start_ms).max();
        let later = latest(windows)
            .max(latest(&report.windows))
            .unwrap_or_default();
        let sums = windows.iter_mut().zip(&report.windows);
        for (place, (sum, more)) in sums.enumerate() {
            let (span, mut more) = (span_at(place), *more);
            sum.roll(span, later);
            more.roll(span, later);
            sum.current += more.current;
            sum.previous += more.previous;
        }
    }
}

impl CountEngine for Twin {
    fn merge(
        &mut self,
        me: &Origin,
        _: CountKind,
        generation: &str,
        found: &str,
        batch: Option<&Batch>,
    ) -> Result<Merged, Fault> {
        if self.generation.is_empty() {
            self.generation = found.to_owned();
            self.numbers.clear();
            // Sums of another generation count as none.
            self.sums.clear();
        }
        let last = self.numbers.get(me.as_str()).copied().unwrap_or_default();
        let told = Merged {
            generation: self.generation.clone(),
            last,
            sums: Vec::new(),
        };
        let seq = batch.map_or(0, |batch| batch.seq);
        let Some(batch) =
            batch.filter(|_| self.generation == generation && (seq == last || seq == last + 1))
        else {
            return Ok(told);
        };
        if seq == last + 1 {
            for (delta, report) in batch.deltas.iter().zip(&batch.reports) {
                self.add(delta, report);
            }
            self.numbers.insert(me.as_str().to_owned(), seq);
        }
        let sum = |(delta, report): (&Delta, &Report)| match self.sum(&delta.name) {
            // Nothing was counted: nothing is kept.
            none if none.is_empty() && seq == last + 1 => bytes(report),
            sum => sum,
        };
        Ok(Merged {
            last: seq,
            sums: batch.deltas.iter().zip(&batch.reports).map(sum).collect(),
            ..told
        })
    }
}

/// A sum of generation 0.
fn bytes(report: &Report) -> Vec<u8> {
    [vec![1, 0, 0, 0, 0], packed(report)].concat()
}

fn report(client: u32, windows: Vec<Window>) -> Report {
    Report {
        of: CountOf::Client(Client::V4(client)),
        epoch_ms: 0,
        known: false,
        windows,
        keep: Duration::from_mins(10),
        urgency: 1,
    }
}

fn name(report: &Report) -> [u8; 12] {
    let mut name = [0; 12];
    if let CountOf::Client(Client::V4(client)) = report.of {
        name[..4].copy_from_slice(&client.to_be_bytes());
    }
    name
}

const CLIENTS: usize = 3;

/// An instance with three windows of each of some clients.
#[derive(Clone)]
struct Instance {
    me: Origin,
    batches: Batches,
    held: [[(Window, InFleet); 3]; CLIENTS],
}

impl Instance {
    fn new(number: u128) -> Self {
        Self {
            me: Origin::new("edge", number).unwrap(),
            batches: Batches::default(),
            held: Default::default(),
        }
    }

    fn count(&mut self, client: usize, amount: u64, now_ms: u64) {
        for (place, (window, _)) in self.held[client].iter_mut().enumerate() {
            window.add(span_at(place), now_ms, amount);
        }
    }

    /// Everything that was not sent, as a batch; none where one is under way.
    fn send(&mut self, now_ms: u64) {
        if self.batches.is_behind() {
            return;
        }
        let mut reports = Vec::new();
        for (client, held) in (0..).zip(&mut self.held) {
            let windows = held
                .iter_mut()
                .enumerate()
                .map(|(place, (window, in_fleet))| {
                    let span = span_at(place);
                    window.roll(span, now_ms);
                    in_fleet.unsent(window, Window::default(), span)
                });
            reports.push(report(client, windows.collect()));
        }
        self.batches.send(reports, name, now_ms * 1_000_000);
    }

    fn ask(&self, engine: &mut impl CountEngine, found: u32) -> Merged {
        let (generation, next) = (self.batches.generation(), self.batches.next());
        let found = format!("{found:08x}");
        engine
            .merge(&self.me, CountKind::Enforced, generation, &found, next)
            .unwrap()
    }

    fn hear(&mut self, merged: Merged, now_ms: u64) {
        match self.batches.answered(merged, now_ms * 1_000_000) {
            Outcome::Taken(told) => {
                for (report, sum) in told {
                    let CountOf::Client(Client::V4(client)) = report.of else {
                        unreachable!()
                    };
                    let held = self.held[client as usize].iter_mut();
                    for (place, (window, in_fleet)) in held.enumerate() {
                        let sum = sum.as_ref().map(|sum| sum.windows[place]);
                        let learned = (report.windows[place], sum, false);
                        in_fleet.learn(window, learned, span_at(place), now_ms);
                    }
                }
            }
            Outcome::Lost => {
                for (_, in_fleet) in self.held.iter_mut().flatten() {
                    in_fleet.lost();
                }
            }
            Outcome::Returned => {
                for (place, (window, in_fleet)) in self
                    .held
                    .iter_mut()
                    .flat_map(|held| held.iter_mut().enumerate())
                {
                    in_fleet.may_be_sent(window, span_at(place));
                }
            }
            Outcome::Again | Outcome::Behind => {}
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Count(usize, usize, u64),
    /// What becomes of the question and of its answer.
    Send(usize, Fate),
    Wait(u64),
    /// The engine is what it was at the last [`Step::Remember`].
    RollBack,
    Remember,
    /// It has nothing; or lacks a part.
    Empties,
    LosesNumbers,
    LosesSum(u32),
}

#[derive(Clone, Copy, Debug)]
enum Fate {
    Arrives,
    AnswerLost,
    Lost,
}

fn step() -> impl Strategy<Value = Step> {
    let fate = prop_oneof![
        5 => Just(Fate::Arrives),
        1 => Just(Fate::AnswerLost),
        1 => Just(Fate::Lost),
    ];
    prop_oneof![
        8 => (0..3_usize, 0..CLIENTS, 1..9_u64).prop_map(|(who, client, amount)| Step::Count(who, client, amount)),
        8 => (0..3_usize, fate).prop_map(|(who, fate)| Step::Send(who, fate)),
        2 => (0..50_000_u64).prop_map(Step::Wait),
        1 => Just(Step::RollBack),
        1 => Just(Step::Remember),
        1 => Just(Step::Empties),
        1 => Just(Step::LosesNumbers),
        1 => (0..3_u32).prop_map(Step::LosesSum),
    ]
}

/// What was counted of each client in each bucket of a minute.
type Truth = HashMap<(usize, u64), u64>;

fn check(instance: &Instance, truth: &Truth) -> Result<(), TestCaseError> {
    for (client, held) in instance.held.iter().enumerate() {
        let (window, _) = held[0];
        let counted = |start_ms| truth.get(&(client, start_ms)).copied().unwrap_or_default();
        prop_assert!(window.current <= counted(window.start_ms));
        prop_assert!(window.previous <= counted(window.start_ms.saturating_sub(60_000)));
    }
    Ok(())
}

/// The same batches to an engine and to its twin, which answer the same. `spoil` may change a sum
/// in the engine to something else.
pub(in crate::fleet) fn against<E: CountEngine>(
    engine: &mut E,
    mut spoil: impl FnMut(&mut E, CountKind, &[u8; 12]),
) {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let batch = (
        0..2_usize,
        prop::collection::vec((0..6_u32, 0..50_u64, any::<bool>(), 0..4_u64), 1..8),
        0..120_u64,
        0..20_u32,
    );
    let steps = prop::collection::vec(batch, 400);
    let steps = steps.new_tree(&mut runner).unwrap().current();
    let mut twin = Twin::default();
    let origins = [1, 2].map(|number| Origin::new("edge", number).unwrap());
    let mut numbers = [0, 0];
    let kind = CountKind::Enforced;
    let found = "00c0ffee";
    let empty = engine.merge(&origins[0], kind, "", found, None).unwrap();
    assert_eq!(
        empty,
        twin.merge(&origins[0], kind, "", found, None).unwrap()
    );
    let now = std::time::SystemTime::now();
    let now = now.duration_since(std::time::UNIX_EPOCH).unwrap();
    // Three days before now, and then up to it.
    let mut minute = now.as_secs() / 60 - 3 * 1440;
    for (who, counted, later, luck) in steps {
        minute = (minute + later).min(now.as_secs() / 60);
        let windows = |amount: u64| -> Vec<Window> {
            let window = |place| {
                let (length, at_ms) = (span_at(place).ms(), minute * 60_000);
                Window {
                    start_ms: at_ms - at_ms % length,
                    current: amount,
                    previous: amount / 3,
                }
            };
            (0..6).map(window).collect()
        };
        let mut reports: Vec<Report> = Vec::new();
        for (client, amount, known, epoch) in counted {
            if !reports
                .iter()
                .any(|of| name(of) == name(&report(client, Vec::new())))
            {
                // Later bans in later reports, now and then.
                let epoch_ms = epoch * u64::from(luck == 1);
                reports.push(Report {
                    epoch_ms,
                    known,
                    ..report(client, windows(amount))
                });
            }
        }
        let mut batches = Batches {
            generation: found.to_owned(),
            taken: numbers[who],
            ..Batches::default()
        };
        batches.send(reports, name, 0);
        // A gap, or the same once more.
        let repeats = match luck {
            2 => 2,
            _ => 1,
        };
        if luck == 3 {
            batches.under_way.as_mut().unwrap().seq += 1;
        }
        if luck == 4 {
            let of = name(&batches.under_way.as_ref().unwrap().reports[0]);
            spoil(engine, kind, &of);
            twin.sums.remove(&of);
        }
        for _ in 0..repeats {
            let asked = batches.under_way.as_ref();
            let told = engine
                .merge(&origins[who], kind, found, found, asked)
                .unwrap();
            let mut of_twin = twin
                .merge(&origins[who], kind, found, found, asked)
                .unwrap();
            for sum in of_twin.sums.iter_mut().filter(|sum| !sum.is_empty()) {
                sum[1..5].copy_from_slice(&0x00c0_ffee_u32.to_be_bytes());
            }
            assert_eq!(told, of_twin);
            numbers[who] = told.last;
        }
    }
    assert!(numbers[0] > 100 && numbers[1] > 100, "{numbers:?}");
}

proptest! {
    /// FLEET-6: after any losses, repeats and roll-backs, no instance's count of all exceeds the
    /// true sum. If the engine lost nothing, everything, or only the last half minute, all
    /// instances know the whole sum in the end.
    #[test]
    fn no_batch_counts_twice(steps in prop::collection::vec(step(), 1..150)) {
        let mut engine = Twin::default();
        let mut before = engine.clone();
        let mut all = [1, 2, 3].map(Instance::new);
        let (mut truth, mut now_ms, mut found) = (Truth::new(), MINUTE * 60_000, 1);
        let mut is_whole = true;
        for step in steps {
            found += 1;
            match step {
                Step::Count(who, client, amount) => {
                    all[who].count(client, amount, now_ms);
                    *truth.entry((client, now_ms - now_ms % 60_000)).or_default() += amount;
                }
                Step::Send(who, fate) => {
                    all[who].send(now_ms);
                    let merged = match fate {
                        Fate::Lost => None,
                        Fate::Arrives | Fate::AnswerLost => Some(all[who].ask(&mut engine, found)),
                    };
                    if let (Fate::Arrives, Some(merged)) = (fate, merged) {
                        all[who].hear(merged, now_ms);
                    }
                }
                Step::Wait(ms) => now_ms += ms,
                Step::Remember => before = engine.clone(),
                Step::RollBack => {
                    is_whole = false;
                    engine = before.clone();
                }
                Step::Empties => engine = Twin::default(),
                Step::LosesNumbers => engine.generation.clear(),
                Step::LosesSum(client) => {
                    is_whole = false;
                    engine.sums.remove(&name(&report(client, Vec::new())));
                }
            }
            for instance in &all {
                check(instance, &truth)?;
            }
        }
        for _ in 0..4 {
            for instance in &mut all {
                for _ in 0..8 {
                    instance.send(now_ms);
                    found += 1;
                    let merged = instance.ask(&mut engine, found);
                    instance.hear(merged, now_ms);
                }
                check(instance, &truth)?;
            }
        }
        let bucket = now_ms - now_ms % 60_000;
        for instance in &all {
            for (client, held) in instance.held.iter().enumerate() {
                let counted = truth.get(&(client, bucket)).copied().unwrap_or_default();
                if is_whole && held[0].0.start_ms == bucket {
                    prop_assert_eq!(held[0].0.current, counted);
                }
            }
        }
    }

    /// A packed value is read back as it was.
    #[test]
    fn a_report_is_packed_and_read(
        counts in prop::collection::vec((0..1_u64 << 48, 0..1_u64 << 48), 6),
        epoch_ms in 0..1_u64 << 48,
        known in any::<bool>(),
        minute in MINUTE..MINUTE + 100_000,
    ) {
        let window = |(place, (current, previous)): (usize, (u64, u64))| {
            let (length, at_ms) = (span_at(place).ms(), minute * 60_000);
            Window { start_ms: at_ms - at_ms % length, current, previous }
        };
        let windows: Vec<Window> = counts.into_iter().enumerate().map(window).collect();
        let report = Report { epoch_ms, known, ..report(1, windows.clone()) };
        let mut bytes = vec![1, 0, 0, 0, 0];
        bytes.extend(packed(&report));
        // FLEET-28: with its name and what an engine needs for a key, below 256 bytes.
        prop_assert_eq!(bytes.len(), 88);
        prop_assert_eq!(unpacked(&bytes, &report), Some(Sum { epoch_ms, known, windows }));
        bytes.pop();
        prop_assert_eq!(unpacked(&bytes, &report), None);
    }
}

/// FLEET-6: counts of the last half minute that a failover has lost are sent again, once.
#[test]
fn what_a_failover_lost_is_sent_again() {
    let now_ms = MINUTE * 60_000;
    let (mut engine, mut one, mut other) = (Twin::default(), Instance::new(1), Instance::new(2));
    let round = |instance: &mut Instance, engine: &mut Twin| {
        instance.send(now_ms);
        let merged = instance.ask(engine, 1);
        instance.hear(merged, now_ms);
    };
    round(&mut one, &mut engine);
    one.count(0, 5, now_ms);
    round(&mut one, &mut engine);
    let replica = engine.clone();
    for _ in 0..3 {
        one.count(0, 7, now_ms);
        round(&mut one, &mut engine);
    }
    engine = replica;
    // It hears that its last three are gone, and sends them.
    for _ in 0..5 {
        round(&mut one, &mut engine);
    }
    for _ in 0..2 {
        round(&mut other, &mut engine);
    }
    assert_eq!(other.held[0][0].0.current, 26);
}
