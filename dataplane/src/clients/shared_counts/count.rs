//! What one key of a shared limit has counted, and about how many clients it was.

use std::sync::Arc;
use std::time::Duration;

use weir_shared::clock::Now;
use weir_shared::fleet::{CountOf, InFleet, Report, Reporting, SharedCount, Sum, span_at};
use weir_shared::rules::{Quota, Rule, SharedKey};
use weir_shared::table::SharedWindow;
use weir_shared::window::{Length as _, RuleSpan, Span, Window};

use crate::clients::{CountInFleet, Due, RuleWindow, aligned, has_lapsed};

/// What one key has counted.
#[derive(Clone)]
pub(super) struct Count {
    pub(super) rule: Arc<Rule>,
    second: Counted,
    minute: Counted,
    hour: Counted,
    day: Counted,
    /// The clients that it counted and refused lately.
    clients: Sketch,
    /// When its refusals were told last, wall clock, milliseconds; 0 for never.
    told_ms: u64,
    /// What the fleet knows of it; none where nothing was shared.
    fleet: Option<Box<CountInFleet>>,
}

#[derive(Clone, Copy, Default)]
struct Counted {
    /// That of the latest request; none where the limit has no such window.
    limit: Option<u64>,
    window: Window,
    /// What of it other sites asked for (RULE-8).
    other_sites: Window,
}

impl Count {
    pub(super) fn new(rule: &Arc<Rule>) -> Self {
        Self {
            rule: Arc::clone(rule),
            second: Counted::default(),
            minute: Counted::default(),
            hour: Counted::default(),
            day: Counted::default(),
            clients: Sketch::default(),
            told_ms: 0,
            fleet: None,
        }
    }

    /// A client asks for a place in it. The clients of the last one or two of its shortest windows
    /// are kept apart.
    pub(super) fn seen(&mut self, hash: u64, quotas: &[Quota], wall_ms: u64) {
        let span_ms = quotas.first().map_or(0, |quota| quota.span.ms());
        self.clients.add(hash, wall_ms / span_ms.max(1));
    }

    /// Whether its refusals were not told for a minute; they are now. With the estimate of the
    /// window that is full, and how many clients there were.
    pub(super) fn tells(&mut self, quota: Quota, wall_ms: u64) -> Option<(u64, u64)> {
        const MINUTE_MS: u64 = 60_000;
        let is_due = self.told_ms == 0 || wall_ms.abs_diff(self.told_ms) >= MINUTE_MS;
        is_due.then(|| {
            self.told_ms = wall_ms.max(1);
            let window = self.get(quota.span).window;
            (
                window.estimate(quota.span, wall_ms),
                self.clients.estimate(),
            )
        })
    }

    /// What a window has counted, here and elsewhere.
    pub(super) fn window(&self, span: RuleSpan, now: Now) -> RuleWindow {
        let of = self.fleet.as_ref().zip(span.of_clients());
        let asked_ns = of.map_or(0, |(fleet, _)| fleet.asked_ns);
        let of = of.map(|(fleet, span)| fleet.windows.get(span));
        RuleWindow::of(self.get(span).window, of, span, asked_ns, now)
    }

    /// What its windows have counted, those of none left out.
    pub(super) fn windows(&self) -> Vec<SharedWindow> {
        let window = |span| {
            let counted = self.get(span);
            Some(SharedWindow {
                span,
                limit: counted.limit?,
                window: self.own_window(span),
                other_sites: counted.other_sites,
            })
        };
        RuleSpan::ALL.into_iter().filter_map(window).collect()
    }

    /// Puts in what was counted before.
    pub(super) fn put(&mut self, windows: &[SharedWindow]) {
        for of in windows {
            *self.get_mut(of.span) = Counted {
                limit: Some(of.limit),
                window: of.window,
                other_sites: of.other_sites,
            };
        }
    }

    const fn get(&self, span: RuleSpan) -> &Counted {
        match span {
            RuleSpan::Second => &self.second,
            RuleSpan::Minute => &self.minute,
            RuleSpan::Hour => &self.hour,
            RuleSpan::Day => &self.day,
        }
    }

    const fn get_mut(&mut self, span: RuleSpan) -> &mut Counted {
        match span {
            RuleSpan::Second => &mut self.second,
            RuleSpan::Minute => &mut self.minute,
            RuleSpan::Hour => &mut self.hour,
            RuleSpan::Day => &mut self.day,
        }
    }

    pub(super) fn add(&mut self, quotas: &[Quota], wall_ms: u64, other_site: bool) {
        for Quota { span, limit } in quotas.iter().copied() {
            let counted = self.get_mut(span);
            counted.limit = Some(limit);
            counted.window.add(span, wall_ms, 1);
            if other_site {
                counted.other_sites.add(span, wall_ms, 1);
            }
        }
    }

    /// The first window that one more would make too full, and the time until all have room.
    pub(super) fn full(&self, quotas: &[Quota], wall_ms: u64) -> Option<(Quota, Option<u64>)> {
        let over = quotas.iter().copied().filter_map(|quota| {
            let window = self.get(quota.span).window;
            let fits = || window.fits_in(quota.span, wall_ms, quota.limit, 1);
            is_over(window, quota, wall_ms, 1).then(|| (quota, fits()))
        });
        over.reduce(|(first, one), (_, other)| (first, latest(one, other)))
    }

    /// The first window in which the clients' own requests, the last one included, are too many.
    pub(super) fn own_over(&self, quotas: &[Quota], wall_ms: u64) -> Option<Quota> {
        let is_over = |quota: &Quota| {
            let counted = self.get(quota.span);
            let own = (counted.window).without(counted.other_sites, quota.span, wall_ms);
            is_over(own, *quota, wall_ms, 0)
        };
        quotas.iter().copied().find(is_over)
    }

    /// The fullest of its windows.
    pub(super) fn ratio(&self, wall_ms: u64) -> f64 {
        let ratios = RuleSpan::ALL.map(|span| {
            let Counted { limit, window, .. } = *self.get(span);
            limit.map_or(0.0, |limit| ratio(window.estimate(span, wall_ms), limit))
        });
        ratios.into_iter().fold(0.0, f64::max)
    }
}

/// The later of two times; none where one of them never comes.
pub(super) fn latest(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    one.zip(other).map(|(one, other)| one.max(other))
}

/// The earlier of two times, where none is never.
pub(super) fn earliest(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

fn is_over(mut window: Window, quota: Quota, wall_ms: u64, more: u64) -> bool {
    window.add(quota.span, wall_ms, more);
    window.is_over(quota.span, wall_ms, quota.limit)
}

#[expect(clippy::cast_precision_loss, reason = "a share, for people")]
fn ratio(used: u64, limit: u64) -> f64 {
    used as f64 / limit.max(1) as f64
}

const fn of_rules(span: Span) -> RuleSpan {
    match span {
        Span::Minute => RuleSpan::Minute,
        Span::Hour => RuleSpan::Hour,
        Span::Day => RuleSpan::Day,
    }
}

impl Count {
    /// The same, which a ban of that moment has begun anew.
    pub(super) fn begun(self, epoch_ms: u64) -> Self {
        let held = self.fleet.filter(|fleet| fleet.epoch_ms >= epoch_ms);
        let fleet = match held {
            // The engine's sums go on: what they have of this instance is none of the others'.
            Some(mut fleet) => {
                for span in Span::ALL {
                    fleet.windows.get_mut(span).begin_again();
                }
                fleet.is_changed = false;
                fleet
            }
            None => Box::new(CountInFleet {
                epoch_ms,
                ..CountInFleet::default()
            }),
        };
        Self {
            fleet: Some(fleet),
            ..Self::new(&self.rule)
        }
    }

    /// Notes that something was counted; true if that is news.
    pub(super) fn changes(&mut self) -> bool {
        let fleet = self.fleet.get_or_insert_default();
        !std::mem::replace(&mut fleet.is_changed, true)
    }

    /// What of a window this instance has counted.
    pub(super) fn own_window(&self, span: RuleSpan) -> Window {
        let window = self.get(span).window;
        let of = self.fleet.as_ref().zip(span.of_clients());
        of.map_or(window, |(fleet, span)| {
            fleet.windows.get(span).own(&window, span)
        })
    }

    /// What it holds was restored: the engine has it already.
    pub(super) fn is_sent(&mut self) {
        let sent = |span| InFleet::sent(self.get(of_rules(span)).window);
        let windows = Span::ALL.map(sent).into();
        self.fleet.get_or_insert_default().windows = windows;
    }

    /// What is due of it. Whose it is says whoever asks.
    pub(super) fn report(&mut self, reporting: &Reporting, now: Now) -> Option<Report> {
        let mut fleet = self.fleet.take().unwrap_or_default();
        fleet.is_changed = false;
        let mut due = Due::of(reporting);
        let (mut windows, mut keep) = (Vec::with_capacity(3), Duration::from_mins(2));
        let mut is_restored = false;
        for span in Span::ALL {
            let Counted {
                limit,
                window,
                other_sites,
            } = self.get_mut(of_rules(span));
            window.roll(span, now.wall_ms);
            let in_fleet = fleet.windows.get(span);
            is_restored |= in_fleet.is_sent();
            let unsent = in_fleet.unsent(window, *other_sites, span);
            due.note(unsent, window.estimate(span, now.wall_ms), *limit, true);
            if limit.is_some() {
                keep = Duration::from_millis(2 * span.ms());
            }
            windows.push(unsent);
        }
        let urgency = due.urgency(fleet.asked_ns, is_restored, now);
        let epoch_ms = fleet.epoch_ms;
        self.fleet = Some(fleet);
        let of = CountOf::Shared(SharedCount {
            rule: Arc::clone(&self.rule),
            key: SharedKey::All,
            is_second: false,
        });
        (urgency > 0).then(|| Report {
            of,
            epoch_ms,
            known: false,
            windows: aligned(windows),
            keep,
            urgency,
        })
    }

    /// The engine has answered to a report.
    pub(super) fn learn(
        &mut self,
        (report, is_taken): (&Report, bool),
        (sum, heeds): (&Sum, bool),
        now: Now,
    ) {
        let mut fleet = self.fleet.take().unwrap_or_default();
        if sum.epoch_ms > fleet.epoch_ms {
            // A ban of all that it counts was heard of by others before it was here.
            *self = Self::new(&self.rule).begun(sum.epoch_ms);
            return;
        }
        if fleet.epoch_ms == report.epoch_ms {
            let is_over = has_lapsed(fleet.asked_ns, report, now);
            fleet.asked_ns = now.mono_ns.max(1);
            for (place, (taken, sum)) in report.windows.iter().zip(&sum.windows).enumerate() {
                let span = span_at(place);
                let taken = if is_taken { *taken } else { Window::default() };
                let learned = (taken, heeds.then_some(*sum), is_over);
                let window = &mut self.get_mut(of_rules(span)).window;
                let of = fleet.windows.get_mut(span);
                of.learn(window, learned, span, now.wall_ms);
            }
        }
        self.fleet = Some(fleet);
    }

    /// The engine has nothing of what was sent.
    pub(super) fn is_lost(&mut self) {
        if let Some(fleet) = &mut self.fleet {
            for span in Span::ALL {
                fleet.windows.get_mut(span).lost();
            }
        }
    }

    /// The engine may have any part of what was counted.
    pub(super) fn may_be_sent(&mut self) {
        if let Some(mut fleet) = self.fleet.take() {
            for span in Span::ALL {
                let window = &self.get(of_rules(span)).window;
                fleet.windows.get_mut(span).may_be_sent(window, span);
            }
            self.fleet = Some(fleet);
        }
    }

    /// What others count does not hold.
    pub(super) fn forgets_others(&mut self) {
        if let Some(mut fleet) = self.fleet.take() {
            for span in Span::ALL {
                let of = fleet.windows.get_mut(span);
                of.without_others(&mut self.get_mut(of_rules(span)).window, span);
            }
            self.fleet = Some(fleet);
        }
    }
}

/// Registers; their number is chosen by the lowest six bits of a hash.
const REGISTERS: usize = 64;

/// About how many different clients there were in the last one or two windows: a HyperLogLog of 64
/// registers (Flajolet and others, 2007), 64 bytes, within some 15 %. For people: no decision
/// depends on it.
#[derive(Clone, Copy)]
struct Sketch {
    registers: [u8; REGISTERS],
    /// The window in which the first of them came.
    since: u64,
}

impl Default for Sketch {
    fn default() -> Self {
        Self {
            registers: [0; REGISTERS],
            since: 0,
        }
    }
}

impl Sketch {
    /// One came, in the window of this number.
    fn add(&mut self, hash: u64, window: u64) {
        if window.abs_diff(self.since) > 1 {
            *self = Self {
                since: window,
                ..Self::default()
            };
        }
        let (register, rest) = (hash % REGISTERS as u64, hash / REGISTERS as u64);
        // The rest has 58 bits.
        let rank = u8::try_from(rest.trailing_zeros().min(58) + 1).unwrap_or(u8::MAX);
        let register = usize::try_from(register).unwrap_or_default();
        if let Some(held) = self.registers.get_mut(register) {
            *held = rank.max(*held);
        }
    }

    /// How many.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an estimate of something from 0 to about 2^64"
    )]
    fn estimate(&self) -> u64 {
        let registers = REGISTERS as f64;
        let sum: f64 = (self.registers.iter())
            .map(|rank| 0.5_f64.powi(i32::from(*rank)))
            .sum();
        let estimate = 0.709 * registers * registers / sum;
        let empty = self.registers.iter().filter(|rank| **rank == 0).count() as f64;
        let estimate = if estimate <= 2.5 * registers && empty > 0.0 {
            registers * (registers / empty).ln()
        } else {
            estimate
        };
        estimate.round() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SHARE-8: about as many as there were, each once, from none to a hundred thousand; those of
    /// long ago are forgotten.
    #[test]
    fn about_as_many_as_there_were() {
        let hasher = ahash::RandomState::with_seeds(1, 2, 3, 4);
        let mut sketch = Sketch::default();
        assert_eq!(sketch.estimate(), 0);
        let mut added = 0u64;
        for count in [1u64, 10, 100, 1_000, 10_000, 100_000] {
            for client in added..count {
                sketch.add(hasher.hash_one(client), 7);
                sketch.add(hasher.hash_one(client), 8);
            }
            added = count;
            let found = sketch.estimate();
            assert!(found.abs_diff(count) * 3 <= count, "{found} of {count}");
        }
        sketch.add(hasher.hash_one(1u64), 9);
        assert_eq!(sketch.estimate(), 1);
    }
}
