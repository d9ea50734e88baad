//! What is kept of one client, and what charging it means. Pure; the table holds the lock.

use std::sync::Arc;

use weir_shared::clock::Now;
use weir_shared::lookup::{AsNumber, Country, Lookup, Origin};
use weir_shared::rules::{Jail, Quota, Rule, RuleKind};
use weir_shared::table::{OtherSites, RuleCount};
use weir_shared::verdict::{Counts, LimitHit, Limits};
use weir_shared::window::{PerSpan, RuleSpan, Window};

use crate::clients::terms::{Further, LookupRules, Meaning, Terms};
use crate::clients::{Bucket, BucketSize, estimates};

pub mod fleet;
pub mod further;
pub mod judging;

/// A lookup that was asked for and has not ended after this long is lost, nanoseconds: it is asked
/// for again. Far beyond what a lookup takes, queue included.
const LOST_NS: u64 = 120_000_000_000;

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
    pub requests: PerSpan<Window>,
    /// Byte windows.
    pub bytes: PerSpan<Window>,
    /// The lookup's answer.
    pub lookup: Option<Arc<Lookup>>,
    /// The country in the answer: its requests are counted by it.
    country: Option<Country>,
    /// The AS number in the answer: the same.
    asn: Option<AsNumber>,
    /// What the answer means for this client; none before a request asks.
    meaning: Option<Arc<Meaning>>,
    /// What most clients have not.
    further: Option<Box<Further>>,
    /// From when on the client is to be asked about, on the monotonic clock, nanoseconds;
    /// `u64::MAX` for never.
    ask_at_ns: u64,
    /// Requests that passed the ladder and have not ended (RULE-5).
    under_way: u32,
    /// It is being asked about, and who needs the answer may wait for it.
    pub in_flight: bool,
    /// The generation of the snapshot whose ban reset the windows. A request that decides under an
    /// older one has not seen that ban and starts over (LIMIT-6).
    reset_generation: u64,
    /// [`REPORTED`], [`BYTES_OVER`], [`CHANGED`]: as `bool`s they would make each entry eight bytes
    /// longer.
    notes: u8,
}

/// An exceeded limit was reported and the control plane has not answered yet; it is not reported
/// twice.
const REPORTED: u8 = 1;
/// A byte limit was exceeded, and may be still. Where no ban followed, requests are refused until
/// they fit.
const BYTES_OVER: u8 = 2;
/// Something was counted since the fleet's thread looked last.
const CHANGED: u8 = 4;

impl Entry {
    /// A client that is seen for the first time.
    pub fn new(seen_ns: u64, wall_ms: u64) -> Self {
        Self {
            seen_ns,
            first_seen_ms: wall_ms,
            last_seen_ms: wall_ms,
            passed: 0,
            refused: 0,
            requests: PerSpan::default(),
            bytes: PerSpan::default(),
            lookup: None,
            country: None,
            asn: None,
            meaning: None,
            further: None,
            ask_at_ns: 0,
            under_way: 0,
            in_flight: false,
            reset_generation: 0,
            notes: 0,
        }
    }

    /// Whether the client was reset after the snapshot of this generation was published: whoever
    /// decides under it has not seen the ban (LIMIT-6).
    pub const fn is_reset_after(&self, generation: u64) -> bool {
        generation < self.reset_generation
    }

    /// The part of the windows that other sites asked for, if any.
    pub fn other_sites(&self) -> Option<&OtherSites> {
        self.further.as_ref()?.other_sites.as_deref()
    }

    pub(super) fn other_sites_mut(&mut self) -> &mut OtherSites {
        self.further().other_sites.get_or_insert_default()
    }

    /// Puts in what other sites asked for, in place of what is held.
    pub fn set_other_sites(&mut self, part: Option<Box<OtherSites>>) {
        if part.is_some() || self.further.is_some() {
            self.further().other_sites = part;
        }
    }

    /// Whether a byte limit may be exceeded without a ban.
    pub const fn may_be_over_bytes(&self) -> bool {
        self.notes & BYTES_OVER != 0
    }

    /// A byte limit may be exceeded, or is known not to be.
    pub const fn set_over_bytes(&mut self, over: bool) {
        self.notes = if over {
            self.notes | BYTES_OVER
        } else {
            self.notes & !BYTES_OVER
        };
    }

    /// The country and the AS number in the lookup's answer.
    pub const fn origin(&self) -> Origin {
        Origin {
            country: self.country,
            asn: self.asn,
        }
    }

    /// The client's bucket; none while it is full.
    pub fn bucket(&self) -> Option<Bucket> {
        self.further.as_ref()?.bucket
    }

    /// Requests that passed the ladder and have not ended.
    pub const fn under_way(&self) -> u32 {
        self.under_way
    }

    /// What most clients have not, to be changed.
    pub fn further(&mut self) -> &mut Further {
        self.further.get_or_insert_default()
    }

    /// Whether it has any of it.
    #[cfg(test)]
    pub fn has_further(&self) -> bool {
        self.further.is_some()
    }

    /// A request passed the ladder; [`Entry::end_request`] is its end.
    pub const fn begin_request(&mut self) {
        self.under_way = self.under_way.saturating_add(1);
    }

    /// A request that passed the ladder has ended. A client that was dropped and came back
    /// meanwhile knows nothing of it.
    pub const fn end_request(&mut self) {
        self.under_way = self.under_way.saturating_sub(1);
    }

    /// Charges a rule that bans one more; gives the shortest of its windows that is over, one that
    /// bans first: as for requests.
    pub fn charge_rule(
        &mut self,
        rule: &Arc<Rule>,
        quotas: &[Quota],
        wall_ms: u64,
        other_site: bool,
    ) -> Option<Exceeded> {
        let (mut over, mut bans) = (None, false);
        for Quota { span, limit } in quotas.iter().copied() {
            let RuleCount {
                window,
                other_sites,
                ..
            } = self.further().count(rule, span);
            window.add(span, wall_ms, 1);
            if other_site {
                other_sites.add(span, wall_ms, 1);
            }
            if bans || !window.is_over(span, wall_ms, limit) {
                continue;
            }
            let own = window.without(*other_sites, span, wall_ms);
            bans = !other_site && own.is_over(span, wall_ms, limit);
            if bans || over.is_none() {
                over = Some((span, limit, window.fits_in(span, wall_ms, limit, 1)));
            }
        }
        let (span, limit, fits_in_ms) = over?;
        Some(self.exceeded(LimitHit::Rule(span), limit, fits_in_ms, bans))
    }

    /// Whether jails have counted answers to the client.
    pub fn is_known_to_jails(&self) -> bool {
        let mut counts = self.rule_counts().iter();
        counts.any(|count| count.rule.kind == RuleKind::Jail)
    }

    /// The window of a jail for whose sake a request is refused that the jail may count (RULE-8): a
    /// further answer would be too many, and no ban would follow from it. The answer to the
    /// client's own request that would be the first too many bans.
    pub fn full_jail(&self, jail: &Jail, wall_ms: u64, other_site: bool) -> Option<Exceeded> {
        jail.quotas.iter().find_map(|Quota { span, limit }| {
            let (span, limit) = (*span, *limit);
            let further = self.further.as_ref()?;
            let count = further.find(&jail.rule, span)?;
            let is_over = |mut window: Window, more| {
                window.add(span, wall_ms, more);
                window.is_over(span, wall_ms, limit)
            };
            if !is_over(count.window, 1) {
                return None;
            }
            let own = count.window.without(count.other_sites, span, wall_ms);
            let would_ban = !other_site && is_over(own, 1) && !is_over(own, 0);
            let fits_in_ms = count.window.fits_in(span, wall_ms, limit, 1);
            let full = Exceeded::refusing(LimitHit::Rule(span), limit, fits_in_ms);
            (!would_ban).then_some(full)
        })
    }

    /// Counts one more for a rule that only refuses.
    pub fn add_to_rule(&mut self, rule: &Arc<Rule>, quotas: &[Quota], wall_ms: u64) {
        for quota in quotas {
            let count = self.further().count(rule, quota.span);
            count.window.add(quota.span, wall_ms, 1);
        }
    }

    /// What a window of a rule has counted.
    pub fn rule_window(&self, rule: &Rule, span: RuleSpan) -> Window {
        let further = self.further.as_ref();
        let count = further.and_then(|further| further.find(rule, span));
        count.map_or_else(Window::default, |count| count.window)
    }

    /// What rules have counted.
    pub fn rule_counts(&self) -> &[RuleCount] {
        self.further.as_ref().map_or(&[], |further| &further.counts)
    }

    /// Puts in what rules have counted, in place of what is held.
    pub fn set_rule_counts(&mut self, counts: Vec<RuleCount>) {
        if !counts.is_empty() || self.further.is_some() {
            self.further().counts = counts;
        }
    }

    /// Notes that a ban is to follow; true if nobody was told of it yet.
    pub const fn is_first_offence(&mut self) -> bool {
        let is_first = self.notes & REPORTED == 0;
        self.notes |= REPORTED;
        is_first
    }

    /// Gives back what says nothing any more: a bucket that is full again, windows that are past.
    pub fn forget_idle(&mut self, size: Option<BucketSize>, now: Now) {
        if let Some(further) = &mut self.further {
            let missing = |bucket: &Bucket| {
                size.is_some_and(|size| !bucket.at(size, now.mono_ns).is_full(size))
            };
            further.bucket = further.bucket.filter(missing);
            further.forget_past(now);
            if further.is_empty() {
                self.further = None;
            }
        }
    }

    /// What was used of each window.
    pub fn counts(&self, wall_ms: u64) -> Counts {
        Counts {
            requests: estimates(&self.requests, wall_ms),
            bytes: self.byte_counts(wall_ms),
        }
    }

    /// What was used of the byte windows alone.
    pub fn byte_counts(&self, wall_ms: u64) -> PerSpan<u64> {
        estimates(&self.bytes, wall_ms)
    }

    /// What holds for the client now; none where nothing but the plain limits does.
    pub fn terms<'a>(&'a mut self, rules: &'a LookupRules) -> Option<&'a Terms> {
        let Some(lookup) = &self.lookup else {
            return rules.unanswered();
        };
        let is_of = |held: &&Arc<Meaning>| held.under(rules).is_some();
        if self.meaning.as_ref().filter(is_of).is_none() {
            self.meaning = Some(rules.meaning(lookup));
        }
        self.meaning.as_ref()?.under(rules)?
    }

    /// The limits of the client now.
    pub fn limits(&mut self, rules: &LookupRules) -> Limits {
        let terms = self.terms(rules);
        terms.map_or(rules.plain_limits, |terms| terms.limits)
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

    /// Attaches an answer that holds until `until_ns`. The next request works out what it means.
    pub fn attach(&mut self, lookup: Arc<Lookup>, until_ns: u64) {
        self.meaning = None;
        self.set_origin(Origin::of(&lookup));
        self.lookup = Some(lookup);
        self.in_flight = false;
        self.ask_at_ns = until_ns;
    }

    /// The lookup is late: it may still answer, but no further request waits for it (LOOKUP-3).
    pub const fn stop_waiting(&mut self) {
        self.in_flight = false;
    }

    /// Forgets the answer and what it means.
    pub fn forget_lookup(&mut self) {
        self.lookup = None;
        self.set_origin(Origin::default());
        self.meaning = None;
    }

    const fn set_origin(&mut self, Origin { country, asn }: Origin) {
        self.country = country;
        self.asn = asn;
    }

    /// Forgets what was counted, once the ban of `generation` can be seen by every worker
    /// (LIMIT-6). In a fleet what was counted before the ban is void everywhere: `epoch_ms` is when
    /// it began.
    pub fn reset(&mut self, generation: u64, epoch_ms: Option<u64>) {
        self.requests = PerSpan::default();
        self.bytes = PerSpan::default();
        self.reset_generation = self.reset_generation.max(generation);
        self.notes = 0;
        if let Some(further) = &mut self.further {
            further.bucket = None;
            match epoch_ms {
                Some(_) => further.counts.retain_mut(RuleCount::begin_again),
                None => further.counts = Vec::new(),
            }
            further.other_sites = None;
            if further.is_empty() {
                self.further = None;
            }
        }
        if let Some(epoch_ms) = epoch_ms {
            self.begin_epoch(epoch_ms);
        }
    }

    /// No ban follows the exceeded limit that was reported: the next one is reported again
    /// (LIMIT-6).
    pub const fn release(&mut self) {
        self.notes &= !REPORTED;
    }

    /// Notes an exceeded limit; the first that bans since the last reset or release is to be
    /// reported.
    pub(super) const fn exceeded(
        &mut self,
        limit: LimitHit,
        value: u64,
        fits_in_ms: Option<u64>,
        bans: bool,
    ) -> Exceeded {
        Exceeded {
            limit,
            value,
            bans,
            first: bans && self.is_first_offence(),
            fits_in_ms,
        }
    }
}

/// An exceeded limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Exceeded {
    /// Which.
    pub limit: LimitHit,
    /// Its value, requests or bytes.
    pub value: u64,
    /// Whether a ban is to follow.
    pub bans: bool,
    /// Whether nobody was told of it yet: the first since the last reset, which is reported.
    pub first: bool,
    /// Milliseconds until one more request fits; none where it never will.
    pub fits_in_ms: Option<u64>,
}

impl Exceeded {
    /// One that refuses, and bans nobody.
    pub const fn refusing(limit: LimitHit, value: u64, fits_in_ms: Option<u64>) -> Self {
        Self {
            limit,
            value,
            bans: false,
            first: false,
            fits_in_ms,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clients::known::Standing;
    use weir_shared::verdict::LimitKind;

    const NOW: u64 = 1_795_276_800_000;

    fn limits(minute: u64, hour: u64) -> Limits {
        Limits {
            requests: [Some(minute), Some(hour), None].into(),
            bytes: [Some(1000), None, None].into(),
        }
    }

    /// LIMIT-7, RULE-2: what a client takes in the table: 20,000 of them are 4.8 MB, whether limits
    /// of other sorts than the six exist or not.
    #[test]
    fn a_client_takes_240_bytes() {
        assert_eq!(size_of::<Entry>(), 240);
    }

    /// SHARE-4: since when requests of a client passed: its first of all, or a later one; in
    /// observe mode what enforce mode would have let pass.
    #[test]
    fn a_client_is_known_since_its_first_request_that_passed() {
        let mut entry = Entry::new(0, NOW);
        assert_eq!(entry.standing(), Standing::default());
        entry.note_passed(NOW, false);
        entry.note_passed(NOW + 5, false);
        let standing = |since_ms, passed, refused| Standing {
            since_ms,
            passed,
            refused,
        };
        assert_eq!(entry.standing(), standing(Some(NOW), 2, 0));
        assert!(!entry.has_further());
        let mut entry = Entry::new(0, NOW);
        entry.refused += 1;
        entry.note_passed(NOW + 1, true);
        assert_eq!(entry.standing(), standing(None, 0, 2));
        entry.note_passed(NOW + 2, false);
        entry.note_passed(NOW + 3, false);
        entry.note_passed(NOW + 4, false);
        assert_eq!(entry.standing(), standing(Some(NOW + 2), 3, 2));
        assert_eq!(entry.passed, 4);
    }

    /// LIMIT-1: the shortest exceeded window is named.
    #[test]
    fn the_shortest_broken_window_is_named() {
        let mut entry = Entry::new(0, NOW);
        assert_eq!(entry.charge_request(&limits(1, 1), NOW, false), None);
        let exceeded = entry.charge_request(&limits(1, 1), NOW, false).unwrap();
        let minute = LimitHit::Window(LimitKind::Minute);
        assert_eq!((exceeded.limit, exceeded.value), (minute, 1));
        let mut entry = Entry::new(0, NOW);
        entry.charge_request(&limits(5, 1), NOW, false);
        let exceeded = entry.charge_request(&limits(5, 1), NOW, false).unwrap();
        assert_eq!(exceeded.limit, LimitHit::Window(LimitKind::Hour));
    }

    /// LIMIT-2: refused requests are counted.
    #[test]
    fn a_refused_request_counts() {
        let mut entry = Entry::new(0, NOW);
        for _ in 0..5 {
            entry.charge_request(&limits(1, 100), NOW, false);
        }
        assert_eq!(entry.counts(NOW).requests, [5, 5, 5].into());
    }

    /// LIMIT-6: a break is reported once, until the ban resets the client.
    #[test]
    fn a_break_is_reported_once() {
        let mut entry = Entry::new(0, NOW);
        let first = |exceeded: Option<Exceeded>| exceeded.unwrap().first;
        entry.charge_request(&limits(1, 100), NOW, false);
        assert!(first(entry.charge_request(&limits(1, 100), NOW, false)));
        assert!(!first(entry.charge_request(&limits(1, 100), NOW, false)));
        entry.reset(4, None);
        assert_eq!(entry.charge_request(&limits(1, 100), NOW, false), None);
        assert!(first(entry.charge_request(&limits(1, 100), NOW, false)));
    }

    /// LIMIT-6: a request that has not seen the ban decides anew.
    #[test]
    fn an_old_snapshot_is_stale_after_the_reset() {
        let mut entry = Entry::new(0, NOW);
        entry.reset(7, None);
        assert!(entry.is_reset_after(6) && !entry.is_reset_after(7));
        entry.reset(3, None);
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
        assert_eq!(entry.charge_bytes(&limits(9, 9), NOW, 1000, false), None);
        let exceeded = entry.charge_bytes(&limits(9, 9), NOW, 1, false).unwrap();
        assert_eq!(
            (exceeded.limit, exceeded.value, exceeded.first),
            (LimitHit::Window(LimitKind::MinuteBytes), 1000, true)
        );
    }

    /// RELOAD-2: an answer means what it means under the rules of the request that asks.
    #[test]
    fn an_answer_means_what_the_rules_of_the_request_say() {
        let rules = |percent| {
            let mut lookup = weir_shared::settings::LookupSettings::default();
            lookup.percents.unknown = percent;
            LookupRules::new(limits(10, 100), &lookup)
        };
        let mut entry = Entry::new(0, NOW);
        entry.attach(Arc::new(Lookup::default()), 0);
        for (percent, minute) in [(100, 10), (50, 5), (20, 2), (100, 10)] {
            let rules = rules(percent);
            for _ in 0..2 {
                assert_eq!(entry.limits(&rules).requests.minute, Some(minute));
            }
        }
    }
}
