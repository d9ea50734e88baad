//! What a client has counted as the fleet sees it (FLEET-5 to FLEET-9).

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Sender;
use weir_shared::client::Client;
use weir_shared::clock::Now;
use weir_shared::explain::Elsewhere;
use weir_shared::fleet::{CountOf, InFleet, Report, Reporting, Sum, span_at};
use weir_shared::rules::Rule;
use weir_shared::settings::OnLimit;
use weir_shared::table::RuleCount;
use weir_shared::window::{PerSpan, RuleSpan, Span, Window};

use super::{CHANGED, Entry};
use crate::clients::entry::judging::{Judging, Learned};
use crate::clients::{ClientInFleet, Due, RuleWindow, aligned, has_lapsed};

/// How long the engine keeps the sums of a client, by the longest of its limits of which a tenth is
/// used (FLEET-28).
const KEEP: PerSpan<Duration> = PerSpan {
    minute: Duration::from_mins(10),
    hour: Duration::from_hours(2),
    day: Duration::from_hours(49),
};
impl Entry {
    /// Names this client to the fleet's thread, if it does not wait there already. Where there is
    /// no room, its next request says so again.
    #[cold]
    pub fn name_to(&mut self, fleet: &Sender<Client>, client: Client) {
        if self.notes & CHANGED == 0 && fleet.try_send(client).is_ok() {
            self.notes |= CHANGED;
        }
    }

    pub(super) fn in_fleet(&self) -> Option<&ClientInFleet> {
        self.further.as_ref()?.in_fleet.as_deref()
    }

    /// When the engine was asked for it last, on the monotonic clock; 0 for never.
    fn asked_ns(&self) -> u64 {
        self.in_fleet().map_or(0, |in_fleet| in_fleet.asked_ns)
    }

    /// What a window of a rule has counted, here and elsewhere.
    pub fn rule_window_of_all(&self, rule: &Rule, span: RuleSpan, now: Now) -> RuleWindow {
        let asked_ns = self.asked_ns();
        let further = self.further.as_ref();
        let count = further.and_then(|further| further.find(rule, span));
        count.map_or_else(RuleWindow::default, |count| {
            RuleWindow::of(count.window, count.in_fleet.as_deref(), span, asked_ns, now)
        })
    }

    /// What others have counted of its windows; none where the engine was not asked yet.
    pub fn counted_elsewhere(&self, now: Now) -> Option<Elsewhere> {
        let wall_ms = now.wall_ms;
        let in_fleet = self.in_fleet().filter(|in_fleet| in_fleet.asked_ns > 0)?;
        let others = |held: &PerSpan<Window>, in_fleet: &PerSpan<InFleet>| {
            held.map(|span, window| {
                let (mut window, mut of) = (*window, *in_fleet.get(span));
                window.roll(span, wall_ms);
                of.roll(&window, span);
                of.others().estimate(span, wall_ms)
            })
        };
        Some(Elsewhere {
            age_ms: now.mono_ns.saturating_sub(in_fleet.asked_ns) / 1_000_000,
            requests: others(&self.requests, &in_fleet.requests),
            bytes: others(&self.bytes, &in_fleet.bytes),
        })
    }

    /// The windows of requests and of bytes that it has counted here.
    pub fn own_windows(&self) -> [PerSpan<Window>; 2] {
        let Some(in_fleet) = self.in_fleet() else {
            return [self.requests, self.bytes];
        };
        let own = |held: &PerSpan<Window>, in_fleet: &PerSpan<InFleet>| {
            held.map(|span, window| in_fleet.get(span).own(window, span))
        };
        [
            own(&self.requests, &in_fleet.requests),
            own(&self.bytes, &in_fleet.bytes),
        ]
    }

    /// What rules have counted here.
    pub fn own_rule_counts(&self) -> Vec<RuleCount> {
        let own = |count: &RuleCount| {
            let in_fleet = count.in_fleet.as_ref();
            let window = in_fleet.map(|in_fleet| in_fleet.own(&count.window, count.span));
            RuleCount {
                window: window.unwrap_or(count.window),
                in_fleet: None,
                ..count.clone()
            }
        };
        self.rule_counts().iter().map(own).collect()
    }

    /// What it holds was restored: the engine has it already (FLEET-30).
    pub fn is_sent(&mut self) {
        let sent = |held: &PerSpan<Window>| held.map(|_, window| InFleet::sent(*window));
        let (requests, bytes) = (sent(&self.requests), sent(&self.bytes));
        let is_sent = |of: &PerSpan<InFleet>| {
            let of = of.map(|_, in_fleet| in_fleet.is_sent());
            of.minute || of.hour || of.day
        };
        if is_sent(&requests) || is_sent(&bytes) {
            self.further().in_fleet = Some(Box::new(ClientInFleet {
                requests,
                bytes,
                ..ClientInFleet::default()
            }));
        }
        for count in self.further.iter_mut().flat_map(|of| &mut of.counts) {
            count.in_fleet = Some(Box::new(InFleet::sent(count.window)));
        }
    }

    /// What was counted before a ban that began then is void (FLEET-9).
    pub fn begin_epoch(&mut self, epoch_ms: u64) {
        let further = self.further();
        match &mut further.in_fleet {
            // The engine's sums go on: what they have of this instance is none of the others'.
            Some(in_fleet) if in_fleet.epoch_ms >= epoch_ms => {
                in_fleet.each().for_each(InFleet::begin_again);
            }
            _ => {
                further.counts = Vec::new();
                further.in_fleet = Some(Box::new(ClientInFleet {
                    epoch_ms,
                    ..ClientInFleet::default()
                }));
            }
        }
    }

    /// The engine has nothing of what was sent.
    pub fn is_lost(&mut self) {
        let Some(further) = &mut self.further else {
            return;
        };
        if let Some(in_fleet) = &mut further.in_fleet {
            in_fleet.each().for_each(InFleet::lost);
        }
        for count in &mut further.counts {
            if let Some(in_fleet) = &mut count.in_fleet {
                in_fleet.lost();
            }
        }
    }

    /// The engine may have any part of what was counted.
    pub fn may_be_sent(&mut self) {
        let Some(further) = &mut self.further else {
            return;
        };
        if let Some(in_fleet) = &mut further.in_fleet {
            for span in Span::ALL {
                let of_requests = in_fleet.requests.get_mut(span);
                of_requests.may_be_sent(self.requests.get(span), span);
                let of_bytes = in_fleet.bytes.get_mut(span);
                of_bytes.may_be_sent(self.bytes.get(span), span);
            }
        }
        for count in &mut further.counts {
            if let Some(in_fleet) = &mut count.in_fleet {
                in_fleet.may_be_sent(&count.window, count.span);
            }
        }
    }

    /// What others count does not hold (FLEET-27).
    pub fn forgets_others(&mut self) {
        let Some(further) = &mut self.further else {
            return;
        };
        if let Some(in_fleet) = &mut further.in_fleet {
            for span in Span::ALL {
                let of_requests = in_fleet.requests.get_mut(span);
                of_requests.without_others(self.requests.get_mut(span), span);
                let of_bytes = in_fleet.bytes.get_mut(span);
                of_bytes.without_others(self.bytes.get_mut(span), span);
            }
        }
        for count in &mut further.counts {
            if let Some(in_fleet) = &mut count.in_fleet {
                in_fleet.without_others(&mut count.window, count.span);
            }
        }
    }

    /// The counts that are due to be sent of it (FLEET-7).
    pub fn reports(
        &mut self,
        client: Client,
        judging: Judging<'_>,
        reporting: &Reporting,
        now: Now,
    ) -> Vec<Report> {
        self.notes &= !CHANGED;
        let mut reports = Vec::new();
        reports.extend(self.report(client, judging, reporting, now));
        let rules = self.rules_counted();
        for rule in rules {
            reports.extend(self.report_rule(client, &rule, judging, reporting, now));
        }
        reports
    }

    /// The rules that have counted it.
    fn rules_counted(&self) -> Vec<Arc<Rule>> {
        let mut rules: Vec<Arc<Rule>> = Vec::new();
        for count in self.rule_counts() {
            if !rules.iter().any(|rule| Arc::ptr_eq(rule, &count.rule)) {
                rules.push(Arc::clone(&count.rule));
            }
        }
        rules
    }

    fn report(
        &mut self,
        client: Client,
        judging: Judging<'_>,
        reporting: &Reporting,
        now: Now,
    ) -> Option<Report> {
        let limits = self.limits(judging.terms);
        let refuses = judging.on_limit == OnLimit::Refuse;
        let in_fleet = self.in_fleet().cloned().unwrap_or_default();
        let other_sites = self.other_sites().copied().unwrap_or_default();
        let mut due = Due::of(reporting);
        let mut keep = KEEP.minute;
        let mut windows = Vec::with_capacity(6);
        let kinds = [
            (
                &mut self.requests,
                in_fleet.requests,
                other_sites.requests,
                limits.requests,
            ),
            (
                &mut self.bytes,
                in_fleet.bytes,
                other_sites.bytes,
                limits.bytes,
            ),
        ];
        for (held, in_fleet, other_sites, limits) in kinds {
            for span in Span::ALL {
                let window = held.get_mut(span);
                window.roll(span, now.wall_ms);
                let unsent = in_fleet
                    .get(span)
                    .unsent(window, *other_sites.get(span), span);
                let (known, limit) = (window.estimate(span, now.wall_ms), *limits.get(span));
                due.note(unsent, known, limit, refuses);
                if limit.is_some_and(|limit| known >= limit / 10) {
                    keep = keep.max(*KEEP.get(span));
                }
                windows.push(unsent);
            }
        }
        let is_restored = in_fleet.clone().each().any(|of| of.is_sent());
        // Whether it is known elsewhere is to be found out at once.
        let is_new = judging.rules.remembers_after().is_some();
        let urgency = due.urgency(in_fleet.asked_ns, is_restored || is_new, now);
        (urgency > 0).then(|| Report {
            of: CountOf::Client(client),
            epoch_ms: in_fleet.epoch_ms,
            known: false,
            windows: aligned(windows),
            keep,
            urgency,
        })
    }

    fn report_rule(
        &mut self,
        client: Client,
        rule: &Arc<Rule>,
        judging: Judging<'_>,
        reporting: &Reporting,
        now: Now,
    ) -> Option<Report> {
        let counting = judging.counting(rule)?;
        let known = self.in_fleet();
        let epoch_ms = known.map_or(0, |in_fleet| in_fleet.epoch_ms);
        let asked_ns = known.map_or(0, |in_fleet| in_fleet.asked_ns);
        let refuses = counting.bans.is_none();
        let mut due = Due::of(reporting);
        let (mut windows, mut is_restored) = (Vec::with_capacity(3), false);
        let mut keep = Duration::ZERO;
        for span in Span::ALL {
            let mut unsent = Window::default();
            let quota = counting
                .quotas
                .iter()
                .find(|of| of.span.of_clients() == Some(span));
            if let Some(count) = self.rule_count_mut(rule, span) {
                count.window.roll(span, now.wall_ms);
                let in_fleet = count.in_fleet.as_deref().copied().unwrap_or_default();
                is_restored |= in_fleet.is_sent();
                unsent = in_fleet.unsent(&count.window, count.other_sites, span);
                let known = count.window.estimate(span, now.wall_ms);
                due.note(unsent, known, quota.map(|quota| quota.limit), refuses);
                keep = Duration::from_millis(2 * span.ms());
            }
            unsent.roll(span, now.wall_ms);
            windows.push(unsent);
        }
        let urgency = due.urgency(asked_ns, is_restored, now);
        (urgency > 0).then(|| Report {
            of: CountOf::Rule(client, Arc::clone(rule)),
            epoch_ms,
            known: false,
            windows: aligned(windows),
            keep,
            urgency,
        })
    }

    pub(super) fn rule_count_mut(&mut self, rule: &Rule, span: Span) -> Option<&mut RuleCount> {
        let counts = &mut self.further.as_mut()?.counts;
        counts
            .iter_mut()
            .find(|count| count.span.of_clients() == Some(span) && *count.rule == *rule)
    }

    /// The engine has answered to a report (FLEET-6). Gives the limit that is broken now, if a ban
    /// is to follow and nobody was told yet (FLEET-8).
    pub fn learn(
        &mut self,
        (report, is_taken): (&Report, bool),
        (sum, heeds): (&Sum, bool),
        judging: Judging<'_>,
        now: Now,
    ) -> Option<Learned> {
        let in_fleet = self.further().in_fleet.get_or_insert_default();
        if in_fleet.epoch_ms != report.epoch_ms {
            // A ban has reset it meanwhile: what was under way is void.
            return None;
        }
        if sum.epoch_ms > in_fleet.epoch_ms {
            self.begins_with(sum.epoch_ms);
            return None;
        }
        let is_over = has_lapsed(in_fleet.asked_ns, report, now);
        in_fleet.asked_ns = now.mono_ns.max(1);
        let nothing = Window::default();
        let told = (report.windows.iter().zip(&sum.windows)).enumerate();
        let told = told.map(|(place, (taken, sum))| {
            let taken = if is_taken { *taken } else { nothing };
            (place, (taken, heeds.then_some(*sum), is_over))
        });
        match &report.of {
            CountOf::Client(_) => {
                let mut in_fleet = in_fleet.clone();
                for (place, learned) in told {
                    let span = span_at(place);
                    let (of, window) = if place < 3 {
                        (in_fleet.requests.get_mut(span), self.requests.get_mut(span))
                    } else {
                        (in_fleet.bytes.get_mut(span), self.bytes.get_mut(span))
                    };
                    of.learn(window, learned, span, now.wall_ms);
                }
                self.further().in_fleet = Some(in_fleet);
                self.broken(judging, now)
            }
            CountOf::Shared(_) => None,
            CountOf::Rule(_, rule) => {
                for (place, learned) in told {
                    let span = span_at(place);
                    if let Some(count) = self.rule_count_mut(rule, span) {
                        let of = count.in_fleet.get_or_insert_default();
                        of.learn(&mut count.window, learned, span, now.wall_ms);
                    }
                }
                self.broken_rule(rule, judging, now)
            }
        }
    }

    /// A ban that began then was heard of by others before it was here: what was counted before it
    /// is void, and all else is to be sent.
    fn begins_with(&mut self, epoch_ms: u64) {
        if self.first_seen_ms < epoch_ms {
            self.requests = PerSpan::default();
            self.bytes = PerSpan::default();
            let further = self.further();
            further.counts = Vec::new();
            further.other_sites = None;
        } else {
            self.forgets_others();
            for count in &mut self.further().counts {
                count.in_fleet = None;
            }
        }
        self.begin_epoch(epoch_ms);
    }
}

#[cfg(test)]
mod tests;
