//! What the fleet knows of a count that clients share.

use std::time::Duration;

use weir_shared::clock::Now;
use weir_shared::fleet::{CountOf, InFleet, Report, Reporting, SharedCount, Sum, span_at};
use weir_shared::rules::SharedKey;
use weir_shared::window::{RuleSpan, Span, Window};

use super::{Arc, Count, Counted};
use crate::clients::in_fleet::{CountInFleet, Due, aligned, is_over};

const fn of_rules(span: Span) -> RuleSpan {
    match span {
        Span::Minute => RuleSpan::Minute,
        Span::Hour => RuleSpan::Hour,
        Span::Day => RuleSpan::Day,
    }
}

impl Count {
    /// The same, which a ban of that moment has begun anew.
    pub(in crate::clients::shared_counts) fn begun(self, epoch_ms: u64) -> Self {
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
    pub(in crate::clients::shared_counts) fn changes(&mut self) -> bool {
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
    pub(in crate::clients::shared_counts) fn is_sent(&mut self) {
        let sent = |span| InFleet::sent(self.get(of_rules(span)).window);
        let windows = Span::ALL.map(sent).into();
        self.fleet.get_or_insert_default().windows = windows;
    }

    /// What is due of it. Whose it is says whoever asks.
    pub(in crate::clients::shared_counts) fn report(
        &mut self,
        reporting: &Reporting,
        now: Now,
    ) -> Option<Report> {
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
    pub(in crate::clients::shared_counts) fn learn(
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
            let is_over = is_over(fleet.asked_ns, report, now);
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
    pub(in crate::clients::shared_counts) fn is_lost(&mut self) {
        if let Some(fleet) = &mut self.fleet {
            for span in Span::ALL {
                fleet.windows.get_mut(span).lost();
            }
        }
    }

    /// The engine may have any part of what was counted.
    pub(in crate::clients::shared_counts) fn may_be_sent(&mut self) {
        if let Some(mut fleet) = self.fleet.take() {
            for span in Span::ALL {
                let window = &self.get(of_rules(span)).window;
                fleet.windows.get_mut(span).may_be_sent(window, span);
            }
            self.fleet = Some(fleet);
        }
    }

    /// What others count does not hold.
    pub(in crate::clients::shared_counts) fn forgets_others(&mut self) {
        if let Some(mut fleet) = self.fleet.take() {
            for span in Span::ALL {
                let of = fleet.windows.get_mut(span);
                of.without_others(&mut self.get_mut(of_rules(span)).window, span);
            }
            self.fleet = Some(fleet);
        }
    }
}
