//! What one key of a shared limit has counted, and about how many clients it was.

use std::sync::Arc;

use weir_shared::clock::Now;
use weir_shared::rules::{Quota, Rule};
use weir_shared::table::SharedWindow;
use weir_shared::window::{Length as _, RuleSpan, Window};

use crate::clients::in_fleet::{CountInFleet, RuleWindow};
use sketch::Sketch;

mod fleet;
mod sketch;

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
