use proptest::prelude::*;

use super::*;

const START: u64 = 1_795_276_800_000;

/// An engine that knows one window.
#[derive(Default)]
struct Engine(Window);

impl Engine {
    fn merge(&mut self, mut report: Window, span: Span) -> Window {
        let later = self.0.start_ms.max(report.start_ms);
        self.0.roll(span, later);
        report.roll(span, later);
        self.0.current += report.current;
        self.0.previous += report.previous;
        self.0
    }
}

#[derive(Default, Clone)]
struct Instance {
    window: Window,
    in_fleet: InFleet,
    other_sites: Window,
    /// A report that the engine has and whose answer is still under way.
    under_way: Option<(Window, Window)>,
    clock_ms: i64,
}

impl Instance {
    fn now(&self, now_ms: u64) -> u64 {
        now_ms.saturating_add_signed(self.clock_ms)
    }

    fn report(&mut self, engine: &mut Engine, span: Span, now_ms: u64) {
        if self.under_way.is_none() {
            self.window.roll(span, self.now(now_ms));
            let unsent = self.in_fleet.unsent(&self.window, self.other_sites, span);
            self.under_way = Some((unsent, engine.merge(unsent, span)));
        }
    }

    fn hear(&mut self, span: Span, now_ms: u64) {
        if let Some((taken, sum)) = self.under_way.take() {
            let now_ms = self.now(now_ms);
            let learned = (taken, Some(sum), true);
            self.in_fleet.learn(&mut self.window, learned, span, now_ms);
        }
    }
}

/// What happens.
#[derive(Clone, Debug)]
enum Step {
    Count(usize, u64),
    OtherSite(usize, u64),
    Report(usize),
    Hear(usize),
    Wait(u64),
    /// The engine loses a part of what it has, or all of it.
    Loses(u64),
    /// The client is dropped by an instance that waits for no answer.
    Drops(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let who = 0..3_usize;
    prop_oneof![
        6 => (who.clone(), 1..20_u64).prop_map(|(who, amount)| Step::Count(who, amount)),
        1 => (who.clone(), 1..20_u64).prop_map(|(who, amount)| Step::OtherSite(who, amount)),
        6 => who.clone().prop_map(Step::Report),
        6 => who.clone().prop_map(Step::Hear),
        2 => (0..70_000_u64).prop_map(Step::Wait),
        1 => (0..50_u64).prop_map(Step::Loses),
        1 => who.prop_map(Step::Drops),
    ]
}

/// Every count with its bucket, as its instance names it.
struct Twin(Vec<(u64, u64)>);

impl Twin {
    fn bucket(&self, start_ms: u64) -> u64 {
        let of_bucket = self.0.iter().filter(|(start, _)| *start == start_ms);
        of_bucket.map(|(_, amount)| *amount).sum()
    }
}

proptest! {
    /// FLEET-6: an instance's count of all never exceeds the true sum of each bucket, after any
    /// delays, losses of the engine and drops here. If nothing was lost, a last round gives all
    /// instances the whole sum (FLEET-5).
    #[test]
    fn nobody_knows_more_than_was_counted(
        steps in prop::collection::vec(step(), 1..120),
        clocks in prop::array::uniform3(-900..900_i64),
    ) {
        let span = Span::Minute;
        let mut engine = Engine::default();
        let mut all: [Instance; 3] = Default::default();
        for (instance, clock_ms) in all.iter_mut().zip(clocks) {
            instance.clock_ms = clock_ms;
        }
        let (mut twin, mut now_ms, mut is_whole) = (Twin(Vec::new()), START, true);
        for step in steps {
            match step {
                Step::Count(who, amount) => {
                    let instance = &mut all[who];
                    instance.window.add(span, instance.now(now_ms), amount);
                    twin.0.push((instance.window.start_ms, amount));
                }
                // Not shared: a ban is to follow from the client's own alone.
                Step::OtherSite(who, amount) => {
                    let instance = &mut all[who];
                    let at_ms = instance.now(now_ms);
                    instance.window.add(span, at_ms, amount);
                    instance.other_sites.add(span, at_ms, amount);
                }
                Step::Report(who) => all[who].report(&mut engine, span, now_ms),
                Step::Hear(who) => all[who].hear(span, now_ms),
                Step::Wait(ms) => now_ms += ms,
                Step::Loses(most) => {
                    engine.0.current = engine.0.current.saturating_sub(most);
                    engine.0.previous = engine.0.previous.saturating_sub(most);
                    is_whole = false;
                }
                Step::Drops(who) => if all[who].under_way.is_none() {
                    is_whole = false;
                    all[who] = Instance { clock_ms: all[who].clock_ms, ..Instance::default() };
                }
            }
            for instance in &all {
                let known = instance.window.without(instance.other_sites, span, instance.window.start_ms);
                let bucket = known.start_ms;
                prop_assert!(known.current <= twin.bucket(bucket));
                prop_assert!(known.previous <= twin.bucket(bucket.saturating_sub(60_000)));
            }
        }
        for _ in 0..2 {
            for instance in &mut all {
                instance.hear(span, now_ms);
                instance.report(&mut engine, span, now_ms);
                instance.hear(span, now_ms);
            }
        }
        for instance in &all {
            if is_whole && instance.window.start_ms == engine.0.start_ms {
                let known = instance.window.without(instance.other_sites, span, instance.window.start_ms);
                prop_assert_eq!(known.current, twin.bucket(known.start_ms));
            }
        }
    }

    /// FLEET-27: without the counts of others the window is the instance's own.
    #[test]
    fn what_others_counted_can_be_taken_out(own in 0..1000_u64, others in 0..1000_u64) {
        let mut window = Window::default();
        window.add(Span::Minute, START, own);
        let mut in_fleet = InFleet::default();
        let taken = in_fleet.unsent(&window, Window::default(), Span::Minute);
        let sum = Window { current: own + others, ..taken };
        in_fleet.learn(&mut window, (taken, Some(sum), false), Span::Minute, START);
        prop_assert_eq!(window.current, own + others);
        in_fleet.without_others(&mut window, Span::Minute);
        prop_assert_eq!(window.current, own);
        prop_assert_eq!(in_fleet.others().current, 0);
    }
}

/// FLEET-6: after a restart nothing is sent again.
#[test]
fn what_was_restored_is_not_sent() {
    let mut window = Window::default();
    window.add(Span::Hour, START, 40);
    let in_fleet = InFleet::sent(window);
    let none = Window::default();
    assert_eq!(in_fleet.unsent(&window, none, Span::Hour).current, 0);
    window.add(Span::Hour, START + 1, 2);
    assert_eq!(in_fleet.unsent(&window, none, Span::Hour).current, 2);
}

/// LIMIT-3: a clock that was set back far starts the window again; counts that were sent are not
/// sent again when their time comes once more.
#[test]
fn a_clock_set_back_sends_nothing_twice() {
    let mut window = Window::default();
    window.add(Span::Minute, START, 40);
    let mut in_fleet = InFleet::default();
    let none = Window::default();
    let taken = in_fleet.unsent(&window, none, Span::Minute);
    in_fleet.learn(
        &mut window,
        (taken, Some(taken), false),
        Span::Minute,
        START,
    );
    window.add(Span::Minute, START - 5000, 3);
    assert_eq!(in_fleet.unsent(&window, none, Span::Minute).current, 0);
    window.add(Span::Minute, START + 1, 4);
    assert_eq!(in_fleet.unsent(&window, none, Span::Minute).current, 0);
}
