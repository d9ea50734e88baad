//! What lookups and percentages make of the limits of a client, and the state that few clients
//! have.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use weir_shared::clock::Now;
use weir_shared::lookup::{Lookup, Origin};
use weir_shared::proof::{NamesAnswer, Suffixes};
use weir_shared::rules::Rule;
use weir_shared::settings::{
    Asns, Countries, CountryList, LookupSettings, LookupSource, Percents, Settings,
};
use weir_shared::table::{OtherSites, RuleCount};
use weir_shared::verdict::{AppliedPercent, Limits, PercentSetting};
use weir_shared::window::{RuleSpan, Span, Window};

use crate::clients::{Bucket, ClientInFleet, lowered};

/// What holds for a client whose lookup changes anything.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Terms {
    /// A list refuses it.
    pub denied: Option<Denied>,
    /// Its limits.
    pub limits: Limits,
    /// What lowered its request limits, if a setting names it.
    pub limit_percent: Option<AppliedPercent>,
    /// The same for its byte limits.
    pub bytes_percent: Option<AppliedPercent>,
}

/// Which list refuses a client for where it comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Denied {
    /// `WAF_ALLOW_COUNTRIES` or `WAF_DENY_COUNTRIES`
    Country,
    /// `WAF_DENY_ASNS`
    Asn,
}

/// What an answer means under some rules.
#[derive(Debug)]
pub struct Meaning {
    /// [`LookupRules::id`]
    rules: u32,
    /// None where it changes nothing.
    terms: Option<Terms>,
}

impl Meaning {
    /// What holds for the client, if these are the rules that it was worked out under: a reload may
    /// have brought others.
    pub fn under(&self, rules: &LookupRules) -> Option<Option<&Terms>> {
        (self.rules == rules.id).then_some(self.terms.as_ref())
    }
}

/// Which features use the lookup of a client, and need it before they decide.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lookups {
    /// `WAF_LOOKUP_SOURCE` is not `off`.
    pub on: bool,
    /// `WAF_ALLOW_COUNTRIES`, `WAF_DENY_COUNTRIES` or `WAF_DENY_ASNS` is set.
    pub for_lists: bool,
    /// `WAF_ADD_LOOKUP_HEADERS`
    pub for_headers: bool,
    /// A percentage lowers a limit.
    pub for_limits: bool,
}

impl Lookups {
    /// Those among the settings.
    pub fn of(lookup: &LookupSettings) -> Self {
        Self {
            on: lookup.source != LookupSource::Off,
            for_lists: lookup.countries != CountryList::None || !lookup.deny_asns.is_empty(),
            for_headers: lookup.add_headers,
            for_limits: lookup.percents.lower(),
        }
    }

    /// Whether a request has to wait for the answer: not one that the answer cannot change.
    pub const fn needed(self, own: bool, exempt: bool) -> bool {
        self.on && (self.for_lists || (self.for_headers && !own) || (self.for_limits && !exempt))
    }
}

/// The country lists and percentages among the settings.
#[derive(Clone, Debug)]
pub struct LookupRules {
    /// Tells these rules from those of before a reload.
    id: u32,
    /// Of every answer that changes nothing.
    nothing: Arc<Meaning>,
    /// `WAF_RATE_LIMIT_*`, `WAF_BYTES_LIMIT_*`: the limits of a client that no percentage lowers.
    pub plain_limits: Limits,
    countries: CountryList,
    deny_asns: Asns,
    percents: Percents,
    /// For clients that no lookup has answered for.
    unanswered: Option<Terms>,
}

impl Default for LookupRules {
    /// No list and no percentage.
    fn default() -> Self {
        Self::new(Limits::default(), &LookupSettings::default())
    }
}

impl LookupRules {
    /// The rules among the settings.
    pub fn of(settings: &Settings) -> Self {
        let limits = Limits {
            requests: settings.limits.requests,
            bytes: settings.limits.bytes,
        };
        Self::new(limits, &settings.lookup)
    }

    /// The rules on top of these limits.
    pub fn new(limits: Limits, lookup: &LookupSettings) -> Self {
        // From 1; 0 is none. Relaxed: a number that nobody else has, and nothing hangs on it.
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let nothing = Meaning {
            rules: id,
            terms: None,
        };
        let mut rules = Self {
            id,
            nothing: Arc::new(nothing),
            plain_limits: limits,
            countries: lookup.countries.clone(),
            deny_asns: lookup.deny_asns.clone(),
            percents: lookup.percents.clone(),
            unanswered: None,
        };
        // A lookup that failed never refuses (LOOKUP-3), but for the allow list, which asks for a
        // country.
        let denied = match &rules.countries {
            CountryList::Allow(countries) if !countries.unknown => Some(Denied::Country),
            CountryList::Allow(_) | CountryList::Deny(_) | CountryList::None => None,
        };
        rules.unanswered = rules.with_percents(&Lookup::default(), denied);
        rules
    }

    /// What an answer means.
    pub fn meaning(&self, lookup: &Lookup) -> Arc<Meaning> {
        match self.terms(lookup) {
            None => Arc::clone(&self.nothing),
            terms => Arc::new(Meaning {
                rules: self.id,
                terms,
            }),
        }
    }

    /// The same; none where it changes nothing.
    fn terms(&self, lookup: &Lookup) -> Option<Terms> {
        let holds = |countries: &Countries| countries.cover(lookup.country());
        let denied = match &self.countries {
            CountryList::None => false,
            CountryList::Allow(countries) => !holds(countries),
            CountryList::Deny(countries) => holds(countries),
        };
        let denied = if denied {
            Some(Denied::Country)
        } else {
            let denied = self.deny_asns.cover(Origin::of(lookup).asn);
            denied.then_some(Denied::Asn)
        };
        self.with_percents(lookup, denied)
    }

    /// What holds for clients that no lookup has answered for.
    pub const fn unanswered(&self) -> Option<&Terms> {
        self.unanswered.as_ref()
    }

    fn with_percents(&self, lookup: &Lookup, denied: Option<Denied>) -> Option<Terms> {
        let [limit_percent, bytes_percent] = percents(&self.percents, lookup);
        if denied.is_none() && limit_percent.is_none() && bytes_percent.is_none() {
            return None;
        }
        Some(Terms {
            denied,
            limits: Limits {
                requests: lowered(&self.plain_limits.requests, limit_percent),
                bytes: lowered(&self.plain_limits.bytes, bytes_percent),
            },
            limit_percent,
            bytes_percent,
        })
    }
}

/// The percentages for request and for byte limits: the lowest that applies, and of equal ones the
/// one of the AS.
fn percents(percents: &Percents, lookup: &Lookup) -> [Option<AppliedPercent>; 2] {
    let Some(country) = lookup.country() else {
        // Whatever its AS number (LIMIT-4).
        let unknown = (percents.unknown < 100).then_some(AppliedPercent {
            percent: percents.unknown,
            setting: PercentSetting::Unknown,
        });
        return [unknown, unknown];
    };
    let applied = |percent, setting| AppliedPercent { percent, setting };
    let of_asn = |by: &BTreeMap<_, u8>, setting| {
        // Mostly no percentage is set: nothing is read of the answer then.
        let number = (!by.is_empty()).then(|| lookup.as_number()).flatten();
        number
            .and_then(|number| by.get(&number))
            .map(|percent| applied(*percent, setting))
    };
    let of_country =
        |by: &BTreeMap<_, u8>, setting| by.get(&country).map(|percent| applied(*percent, setting));
    let asn = of_asn(&percents.asn, PercentSetting::Asn);
    let by_country = of_country(&percents.country, PercentSetting::Country);
    // Each replaces its own counterpart, for those that it lists.
    let asn_bytes = of_asn(&percents.asn_bytes, PercentSetting::AsnBytes).or(asn);
    let country_bytes =
        of_country(&percents.country_bytes, PercentSetting::CountryBytes).or(by_country);
    [lowest(asn, by_country), lowest(asn_bytes, country_bytes)]
}

fn lowest(first: Option<AppliedPercent>, second: Option<AppliedPercent>) -> Option<AppliedPercent> {
    [first, second]
        .into_iter()
        .flatten()
        .min_by_key(|applied| applied.percent)
}

/// A question that has no answer after this long is lost, nanoseconds: it is asked again. Far
/// beyond what it takes, queue included.
const LOST_NS: u64 = 120_000_000_000;
/// A verified crawler is noted as one so often, nanoseconds.
const NOTED_NS: u64 = 3_600_000_000_000;

/// The names of the address that claimed last: those of an IPv6 client may come from several.
#[derive(Clone, Debug)]
pub struct KnownNames {
    address: IpAddr,
    answer: NamesAnswer,
}

impl KnownNames {
    /// An answer.
    pub const fn new(address: IpAddr, answer: NamesAnswer) -> Self {
        Self { address, answer }
    }

    /// A question that was just asked.
    pub fn asked(address: IpAddr, suffixes: &Suffixes, mono_ns: u64) -> Self {
        let answer = NamesAnswer {
            suffixes: suffixes.id(),
            names: None,
            until_ns: mono_ns.saturating_add(LOST_NS),
        };
        Self { address, answer }
    }

    /// Whether it says something about this address and these suffixes.
    pub fn holds(&self, address: IpAddr, suffixes: &Suffixes, mono_ns: u64) -> bool {
        self.address == address && self.answer.suffixes == suffixes.id() && !self.is_past(mono_ns)
    }

    /// The names; none where they are not known.
    pub fn names(&self) -> Option<&[Box<str>]> {
        self.answer.names.as_deref()
    }

    /// Whether it holds no longer.
    pub const fn is_past(&self, mono_ns: u64) -> bool {
        mono_ns >= self.answer.until_ns
    }
}

/// When a verified crawler was last noted as one, on the monotonic clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct Noted(Option<u64>);

impl Noted {
    /// Notes it, if that was not done within the last hour: true then.
    pub fn anew(&mut self, mono_ns: u64) -> bool {
        let is_due = !self.is_fresh(mono_ns);
        if is_due {
            self.0 = Some(mono_ns);
        }
        is_due
    }

    /// Whether it was noted within the last hour.
    pub fn is_fresh(self, mono_ns: u64) -> bool {
        let Self(noted) = self;
        noted.is_some_and(|at| mono_ns.saturating_sub(at) < NOTED_NS)
    }
}

/// What is kept of a client that has any of it: most have not, and pay a pointer.
#[derive(Clone, Debug, Default)]
pub struct Further {
    /// What is left of its bucket (RULE-5); none while it is full.
    pub bucket: Option<Bucket>,
    /// What rules have counted: at most one for each window of each rule.
    pub counts: Vec<RuleCount>,
    /// What of the client's windows other sites asked for (RULE-8); none where it is nothing.
    pub other_sites: Option<Box<OtherSites>>,
    /// When the first of its requests passed, wall clock, where that was not the first of all.
    pub first_passed_ms: Option<u64>,
    /// In observe mode, requests that passed and would have been refused, where that matters.
    pub would_be_refused: u64,
    /// What is known of the names of its address; none where it never claimed to be a crawler.
    pub names: Option<Box<KnownNames>>,
    /// When it was noted as a verified crawler.
    pub noted: Option<Box<Noted>>,
    /// What the fleet knows of its six windows; none where nothing of them was shared.
    pub in_fleet: Option<Box<ClientInFleet>>,
}

/// Whether a count is of this window of this rule.
fn is_of(count: &RuleCount, rule: &Rule, span: RuleSpan) -> bool {
    count.span == span && (std::ptr::eq(&*count.rule, rule) || *count.rule == *rule)
}

const fn has_counted(window: &Window) -> bool {
    window.current > 0 || window.previous > 0
}

impl Further {
    /// Whether nothing is kept.
    pub const fn is_empty(&self) -> bool {
        self.bucket.is_none()
            && self.counts.is_empty()
            && self.other_sites.is_none()
            && self.first_passed_ms.is_none()
            && self.would_be_refused == 0
            && self.names.is_none()
            && self.noted.is_none()
            && self.in_fleet.is_none()
    }

    /// Gives back windows that are past, and what holds no longer.
    pub fn forget_past(&mut self, now: Now) {
        let wall_ms = now.wall_ms;
        self.names.take_if(|names| names.is_past(now.mono_ns));
        self.noted.take_if(|noted| !noted.is_fresh(now.mono_ns));
        self.counts.retain_mut(|count| {
            count.window.roll(count.span, wall_ms);
            count.other_sites.roll(count.span, wall_ms);
            has_counted(&count.window)
        });
        let is_past = |part: &mut Box<OtherSites>| {
            let mut counted = false;
            for span in Span::ALL {
                for windows in [&mut part.requests, &mut part.bytes] {
                    let window = windows.get_mut(span);
                    window.roll(span, wall_ms);
                    counted |= has_counted(window);
                }
            }
            !counted
        };
        self.other_sites.take_if(|part| is_past(part));
        self.in_fleet.take_if(|part| part.is_past(wall_ms));
    }

    /// The count of a window of a rule, if anything was counted.
    pub fn find(&self, rule: &Rule, span: RuleSpan) -> Option<&RuleCount> {
        let mut counts = self.counts.iter();
        counts.find(|count| is_of(count, rule, span))
    }

    /// The count of a window of a rule, made where nothing was counted yet.
    pub fn count(&mut self, rule: &Arc<Rule>, span: RuleSpan) -> &mut RuleCount {
        let of_rule = |count: &RuleCount| is_of(count, rule, span);
        let at = self.counts.iter().position(of_rule).unwrap_or_else(|| {
            self.counts.push(RuleCount {
                rule: Arc::clone(rule),
                span,
                window: Window::default(),
                other_sites: Window::default(),
                in_fleet: None,
            });
            self.counts.len() - 1
        });
        #[expect(clippy::indexing_slicing, reason = "found there, or just put there")]
        &mut self.counts[at]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use weir_shared::lookup::{AsNumber, Country};
    use weir_shared::window::PerSpan;

    use super::*;

    fn lookup(country: Option<&str>, asn: Option<u32>) -> Lookup {
        Lookup {
            country: country.map(str::to_owned),
            asn: asn.map(|number| format!("AS{number}")),
            as_name: None,
        }
    }

    fn countries(list: &str) -> Countries {
        Countries {
            codes: list.split(',').filter_map(|c| c.parse().ok()).collect(),
            unknown: list.contains("unknown"),
        }
    }

    fn rules(countries: CountryList, percents: Percents) -> LookupRules {
        let limits = Limits {
            requests: [Some(1000), Some(99), None].into(),
            bytes: [Some(u64::MAX), Some(1), None].into(),
        };
        let settings = LookupSettings {
            countries,
            percents,
            ..LookupSettings::default()
        };
        LookupRules::new(limits, &settings)
    }

    fn no_percents() -> Percents {
        LookupSettings::default().percents
    }

    /// CHECK-2, LOOKUP-3: both lists with and without `unknown`; a lookup that failed is refused by
    /// an allow list alone.
    #[test]
    fn country_lists_and_the_word_unknown() {
        let (de, fr, unknown) = (
            lookup(Some("DE"), None),
            lookup(Some("FR"), None),
            lookup(None, Some(1)),
        );
        // Refused: DE, FR, without a country, without an answer.
        for (list, expected) in [
            (CountryList::None, [false, false, false, false]),
            (
                CountryList::Deny(countries("DE")),
                [true, false, false, false],
            ),
            (
                CountryList::Deny(countries("DE,unknown")),
                [true, false, true, false],
            ),
            (
                CountryList::Deny(countries("unknown")),
                [false, false, true, false],
            ),
            (
                CountryList::Allow(countries("DE")),
                [false, true, true, true],
            ),
            (
                CountryList::Allow(countries("DE,unknown")),
                [false, true, false, false],
            ),
            (
                CountryList::Allow(countries("unknown")),
                [true, true, false, false],
            ),
        ] {
            let rules = rules(list.clone(), no_percents());
            let denies = |lookup| {
                rules
                    .terms(lookup)
                    .is_some_and(|terms| terms.denied.is_some())
            };
            let unanswered = rules
                .unanswered()
                .is_some_and(|terms| terms.denied.is_some());
            assert_eq!(
                [denies(&de), denies(&fr), denies(&unknown), unanswered],
                expected,
                "{list:?}"
            );
        }
    }

    /// LIMIT-4: 0 and 100, rounding down, the largest limit, and `off`, which no percentage
    /// switches on.
    #[test]
    fn limits_are_rounded_down() {
        for (percent, requests, bytes) in [
            (0, [Some(0), Some(0), None], [Some(0), Some(0), None]),
            (
                1,
                [Some(10), Some(0), None],
                [Some(u64::MAX / 100), Some(0), None],
            ),
            (
                50,
                [Some(500), Some(49), None],
                [Some(u64::MAX / 2), Some(0), None],
            ),
            (
                99,
                [Some(990), Some(98), None],
                [Some(18_262_276_632_972_456_098), Some(0), None],
            ),
            (
                100,
                [Some(1000), Some(99), None],
                [Some(u64::MAX), Some(1), None],
            ),
        ] {
            let percents = Percents {
                country: [("DE".parse().unwrap(), percent)].into(),
                ..no_percents()
            };
            let terms = rules(CountryList::None, percents)
                .terms(&lookup(Some("DE"), None))
                .unwrap();
            assert_eq!(
                (terms.limits.requests, terms.limits.bytes),
                (requests.into(), bytes.into()),
                "{percent}"
            );
        }
    }

    /// LIMIT-4: a client without a country gets the unknown percent only,
    /// whatever its AS number; nothing is made where nothing applies.
    #[test]
    fn without_a_country_only_the_unknown_percent_applies() {
        let percents = Percents {
            asn: [(AsNumber::new(7).unwrap(), 1)].into(),
            unknown: 30,
            ..no_percents()
        };
        let lists = rules(CountryList::None, percents);
        let unknown = Some(AppliedPercent {
            percent: 30,
            setting: PercentSetting::Unknown,
        });
        for lookup in [lookup(None, Some(7)), lookup(None, None)] {
            let terms = lists.terms(&lookup).unwrap();
            assert_eq!(
                (terms.limit_percent, terms.bytes_percent),
                (unknown, unknown)
            );
        }
        assert_eq!(lists.unanswered().unwrap().limit_percent, unknown);
        assert_eq!(lists.terms(&lookup(Some("DE"), None)), None);
        let plain = rules(CountryList::None, no_percents());
        assert_eq!(plain.terms(&lookup(None, None)), None);
        assert_eq!(plain.unanswered(), None);
    }

    /// The naive twin of the matrix: every percentage that applies in a list, sorted, the first
    /// taken.
    fn twin(
        percents: &Percents,
        country: Option<&str>,
        asn: Option<u32>,
        bytes: bool,
    ) -> (u8, String) {
        let mut all: Vec<(u8, u8, &str)> = Vec::new();
        match country {
            None => all.push((percents.unknown, 0, "WAF_UNKNOWN_LIMIT_PERCENT")),
            Some(country) => {
                let country: Country = country.parse().unwrap();
                let number = asn.and_then(AsNumber::new);
                let mut of_asn = number
                    .and_then(|n| percents.asn.get(&n))
                    .map(|p| (*p, 0, "WAF_ASN_LIMIT_PERCENT"));
                let mut of_country = percents
                    .country
                    .get(&country)
                    .map(|p| (*p, 1, "WAF_COUNTRY_LIMIT_PERCENT"));
                if bytes {
                    if let Some(p) = number.and_then(|n| percents.asn_bytes.get(&n)) {
                        of_asn = Some((*p, 0, "WAF_ASN_BYTES_PERCENT"));
                    }
                    if let Some(p) = percents.country_bytes.get(&country) {
                        of_country = Some((*p, 1, "WAF_COUNTRY_BYTES_PERCENT"));
                    }
                }
                all.extend(of_asn);
                all.extend(of_country);
            }
        }
        all.sort_unstable();
        all.first()
            .map_or((100, String::new()), |(percent, _, setting)| {
                (*percent, (*setting).to_owned())
            })
    }

    fn table<K: Ord + Clone + std::fmt::Debug + 'static>(
        keys: Vec<K>,
    ) -> impl Strategy<Value = BTreeMap<K, u8>> {
        let percent = prop_oneof![Just(0u8), Just(100), 0u8..=100];
        prop::collection::btree_map(prop::sample::select(keys), percent, 0..3)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// LIMIT-4: the whole matrix of AS, country, bytes and unknown: percent, setting and every
        /// limit agree with a naive twin.
        #[test]
        fn the_matrix_agrees_with_its_naive_twin(
            asn in table(vec![AsNumber::new(1).unwrap(), AsNumber::new(2).unwrap()]),
            country in table(vec!["DE".parse().unwrap(), "FR".parse().unwrap()]),
            asn_bytes in table(vec![AsNumber::new(1).unwrap(), AsNumber::new(2).unwrap()]),
            country_bytes in table(vec!["DE".parse().unwrap(), "FR".parse().unwrap()]),
            unknown in prop_oneof![Just(100u8), 0u8..=100],
            of in (prop::option::of(prop::sample::select(vec!["DE", "FR", "AT"])), prop::option::of(1u32..4)),
            limits in prop::array::uniform3(prop::option::of(prop_oneof![0u64..1000, any::<u64>()])),
        ) {
            let percents = Percents { asn, country, asn_bytes, country_bytes, unknown };
            let settings = LookupSettings { percents: percents.clone(), ..LookupSettings::default() };
            let limits = PerSpan::from(limits);
            let base = Limits { requests: limits, bytes: limits };
            let rules = LookupRules::new(base, &settings);
            let terms = rules.terms(&lookup(of.0, of.1));
            for bytes in [false, true] {
                let (percent, setting) = twin(&percents, of.0, of.1, bytes);
                let found = terms.as_ref().map_or(base, |terms| terms.limits);
                let applied = terms.as_ref().and_then(|terms| if bytes { terms.bytes_percent } else { terms.limit_percent });
                let found = if bytes { found.bytes } else { found.requests };
                let lowered = |limit| (u128::from(limit) * u128::from(percent) / 100) as u64;
                prop_assert_eq!(found, limits.map(|_, limit| limit.map(lowered)));
                match applied {
                    Some(applied) => prop_assert_eq!((applied.percent, applied.setting.name()), (percent, &*setting)),
                    None => prop_assert_eq!(percent, 100),
                }
            }
        }
    }

    /// CRAWL-3: names are those of one address, for the suffixes that were asked for, and as long
    /// as the answer says; a question that is lost is asked again.
    #[test]
    fn names_hold_for_their_address_and_their_time() {
        let of = |suffix: &str| Suffixes::new([suffix.to_owned()]);
        let (ours, others) = (of(".a.example"), of(".b.example"));
        let [address, beside] = ["2001:db8::1", "2001:db8::2"].map(|text| text.parse().unwrap());
        let asked = KnownNames::asked(address, &ours, 5);
        assert!(asked.names().is_none() && asked.holds(address, &ours, 5 + LOST_NS - 1));
        assert!(!asked.holds(address, &ours, 5 + LOST_NS));
        let answer = NamesAnswer {
            suffixes: ours.id(),
            names: Some(Arc::from(["x.a.example".into()])),
            until_ns: 100,
        };
        let known = KnownNames::new(address, answer);
        assert!(known.holds(address, &ours, 99) && known.names().is_some());
        assert!(!known.holds(address, &ours, 100));
        assert!(!known.holds(beside, &ours, 99) && !known.holds(address, &others, 99));
    }

    /// CRAWL-4: a verified crawler is noted once an hour.
    #[test]
    fn a_crawler_is_noted_once_an_hour() {
        let mut noted = Noted::default();
        assert!(noted.anew(0) && !noted.anew(NOTED_NS - 1) && noted.anew(NOTED_NS));
    }
}
