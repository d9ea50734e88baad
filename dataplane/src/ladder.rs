//! Every check of section 3, in order: the whole ladder.
//!
//! Pure: no sockets, no files, no clock. It charges the client table, because a count and its check are one step; it
//! sends nothing. What to do with a decision is `request.rs`.

use std::net::IpAddr;

use http::Method;
use weir_shared::ban::Expiry;
use weir_shared::client::Client;
use weir_shared::clock::Now;
use weir_shared::escalation::{Policy, next_expiry};
use weir_shared::netblock::{NetSet, Netblock, PrefixLengths};
use weir_shared::path;
use weir_shared::settings::{CountryList, LookupSettings, LookupSource, Settings};
use weir_shared::snapshot::Snapshot;
use weir_shared::verdict::{Action, Group};

use crate::clients::limits::{Charge, Entry, Exceeded, Limits};
use crate::clients::table::Table;
use crate::clients::terms::Applied;

/// What the operator set and the process never changes.
#[derive(Clone, Debug)]
pub struct Rules {
    /// `WAF_ALLOW_NETS`
    pub allow_nets: NetSet,
    /// `WAF_DENY_NETS`
    pub deny_nets: NetSet,
    /// `WAF_EXEMPT_PATHS`, normalised
    pub exempt_paths: Vec<String>,
    /// `WAF_RATE_LIMIT_*`, `WAF_BYTES_LIMIT_*`
    pub limits: Limits,
    /// `WAF_MAX_BODY_SIZE`
    pub max_body_size: Option<u64>,
    /// `WAF_BAN_FIRST` …
    pub ban_policy: Policy,
    /// `WAF_BAN_IPV4_PREFIX`, `WAF_BAN_IPV6_PREFIX`
    pub ban_prefixes: PrefixLengths,
    /// Whether the estimates are wanted for the log or for RateLimit fields. They cost six divisions.
    pub wants_counts: bool,
    /// What needs lookups.
    pub lookups: Lookups,
}

/// What is looked up, and who needs it at once.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lookups {
    /// `WAF_LOOKUP_SOURCE` is not `off`.
    pub on: bool,
    /// `WAF_ALLOW_COUNTRIES` or `WAF_DENY_COUNTRIES` is set.
    pub for_lists: bool,
    /// `WAF_ADD_LOOKUP_HEADERS`
    pub for_headers: bool,
    /// A percentage lowers a limit.
    pub for_limits: bool,
}

impl Lookups {
    fn of(lookup: &LookupSettings) -> Self {
        Self {
            on: lookup.source != LookupSource::Off,
            for_lists: lookup.countries != CountryList::None,
            for_headers: lookup.add_headers,
            for_limits: lookup.percents.lower(),
        }
    }

    /// Whether a request has to wait for the answer: not one that the answer cannot change.
    const fn needed(self, own: bool, exempt: bool) -> bool {
        self.on && (self.for_lists || (self.for_headers && !own) || (self.for_limits && !exempt))
    }
}

impl Rules {
    /// The rules among the settings.
    pub fn of(settings: &Settings) -> Self {
        use weir_shared::settings::{LogRequests, RateLimitHeaders};
        Self {
            allow_nets: settings.lists.allow_nets.clone(),
            deny_nets: settings.lists.deny_nets.clone(),
            exempt_paths: settings.lists.exempt_paths.clone(),
            limits: Limits {
                requests: settings.limits.requests,
                bytes: settings.limits.bytes,
            },
            max_body_size: settings.limits.max_body_size,
            ban_policy: settings.bans.policy,
            ban_prefixes: settings.bans.prefixes,
            wants_counts: settings.log.requests != LogRequests::Off
                || settings.limits.headers == RateLimitHeaders::Always,
            lookups: Lookups::of(&settings.lookup),
        }
    }
}

/// What the ladder asks of a request.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// Its method.
    pub method: &'a Method,
    /// Its path, as written.
    pub path: &'a str,
    /// Who limits and bans are charged to (step 2, `identity.rs`).
    pub client: Client,
    /// The client's full address.
    pub address: IpAddr,
    /// `Content-Length`, if there is one.
    pub content_length: Option<u64>,
    /// Whether it may still wait for its lookup; once it has waited, an answer that is not there is unknown.
    pub may_wait: bool,
}

/// What the ladder decided.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Decision {
    /// Which list the client stands on.
    pub group: Group,
    /// Where the request goes.
    pub verdict: Verdict,
    /// Whether the rate limits counted it; only then are its bytes charged (LIMIT-5).
    pub counted: bool,
    /// The client's estimates, this request included, where something wants them.
    pub counts: Option<[u64; 6]>,
    /// The client is to be asked about: this request alone was told so (LOOKUP-2).
    pub ask: bool,
    /// What lowered the request limits that were applied.
    pub limit_percent: Option<Applied>,
    /// The same for the byte limits.
    pub bytes_percent: Option<Applied>,
}

/// Where a request goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The health check: no check, no count, no log line.
    Health,
    /// Refused; in observe mode it goes on all the same (CHECK-3).
    Refuse(Refusal),
    /// Under `/_waf/`: answered by the service, never forwarded (CHECK-1).
    Own,
    /// To the application.
    Forward,
    /// The snapshot was older than the client's last reset: load a new one and ask again (LIMIT-6).
    StartOver,
    /// A setting needs the client's lookup: wait for it, and ask again. Nothing was counted (LOOKUP-3).
    AwaitLookup,
}

/// Why a request is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// `WAF_DENY_NETS`
    DeniedNet,
    /// `WAF_ALLOW_COUNTRIES` or `WAF_DENY_COUNTRIES`
    DeniedCountry,
    /// An active ban; the latest end of those that cover the client, `u64::MAX` for never.
    Banned {
        /// Milliseconds since 1970.
        until_ms: u64,
    },
    /// An exceeded limit.
    RateLimited {
        /// Which.
        exceeded: Exceeded,
        /// The end of the ban that follows; none where no ban can be made.
        ban: Option<Expiry>,
    },
    /// `Content-Length` over `WAF_MAX_BODY_SIZE`.
    BodyTooLarge,
}

impl Refusal {
    /// The action that the log, the metrics and the history are told.
    pub const fn action(self) -> Action {
        match self {
            Self::DeniedNet => Action::DeniedNet,
            Self::DeniedCountry => Action::DeniedCountry,
            Self::Banned { .. } => Action::Banned,
            Self::RateLimited { .. } => Action::RateLimited,
            Self::BodyTooLarge => Action::BodyTooLarge,
        }
    }
}

/// The whole ladder. The first answer wins; the order is that of the specification's section 3.
pub fn decide(
    rules: &Rules,
    snapshot: &Snapshot,
    table: &Table,
    asked: &Asked<'_>,
    now: Now,
) -> Decision {
    let own = path::is_own(asked.path);

    // 1. The health check.
    if own && is_health_check(asked) {
        return not_counted(Group::Default, Verdict::Health);
    }
    let passed = if own { Verdict::Own } else { Verdict::Forward };

    // 2. The client is identified: `asked.client`.
    // 3. Allow nets skip steps 4 to 11.
    if rules.allow_nets.contains(asked.address) {
        return not_counted(Group::Allow, passed);
    }
    // 4. Deny nets.
    if rules.deny_nets.contains(asked.address) {
        return not_counted(Group::Deny, Verdict::Refuse(Refusal::DeniedNet));
    }
    // 5. Country lists, where the lookup is already known.
    let denied_country = not_counted(Group::Default, Verdict::Refuse(Refusal::DeniedCountry));
    if rules.lookups.for_lists && is_known_and_denied(table, asked.client) {
        return denied_country;
    }
    // 6. The ban ledger: every active ban that covers the client.
    if let Some(until_ms) = snapshot.bans.active_until(asked.client, now.wall_ms) {
        return not_counted(
            Group::Default,
            Verdict::Refuse(Refusal::Banned { until_ms }),
        );
    }
    let exempt = path::is_exempt(asked.path, &rules.exempt_paths);
    if exempt && !rules.lookups.on {
        return not_counted(Group::Default, passed);
    }
    let needed = asked.may_wait && rules.lookups.needed(own, exempt);
    // One visit to the client's entry for all that follows.
    table.seen(asked.client, now, |entry| {
        // 7. The lookup: begun for every new client, waited for only where something needs it.
        let ask = rules.lookups.on && entry.begins_lookup(now.mono_ns);
        let decided = |decision| Decision { ask, ..decision };
        if needed && entry.lookup.is_none() && entry.in_flight {
            return decided(not_counted(Group::Default, Verdict::AwaitLookup));
        }
        // 8. Country lists with the fresh answer.
        let terms = table.rules.applied(entry);
        if rules.lookups.for_lists && terms.is_some_and(|terms| terms.denied) {
            return decided(denied_country);
        }
        // 9. Exempt paths skip steps 10 and 11.
        if exempt {
            return decided(not_counted(Group::Default, passed));
        }
        let applied = Decision {
            counted: true,
            limit_percent: terms.and_then(|terms| terms.limit_percent),
            bytes_percent: terms.and_then(|terms| terms.bytes_percent),
            ..decided(not_counted(Group::Default, passed))
        };
        let limits = terms.map_or(rules.limits, |terms| terms.limits);
        Decision {
            verdict: charge(rules, snapshot, entry, &limits, asked, now, passed),
            counts: rules.wants_counts.then(|| entry.counts(now.wall_ms)),
            ..applied
        }
    })
}

/// Steps 10 to 13, for a request that the limits count.
fn charge(
    rules: &Rules,
    snapshot: &Snapshot,
    entry: &mut Entry,
    limits: &Limits,
    asked: &Asked<'_>,
    now: Now,
    passed: Verdict,
) -> Verdict {
    // 10. The request is counted against its windows.
    match entry.charge_request(limits, snapshot.generation, now.wall_ms) {
        Charge::Stale => Verdict::StartOver,
        Charge::Over(exceeded) => {
            let ban = snapshot
                .can_ban
                .then(|| expiry_of_next_ban(rules, snapshot, asked.client, now));
            Verdict::Refuse(Refusal::RateLimited { exceeded, ban })
        }
        // 11. The announced body is too large.
        Charge::Within if is_too_large(rules, asked) => Verdict::Refuse(Refusal::BodyTooLarge),
        // 12. Ours, 13. the application's.
        Charge::Within => passed,
    }
}

fn is_known_and_denied(table: &Table, client: Client) -> bool {
    table
        .kept(client, |entry| {
            entry.lookup.is_some() && entry.terms.as_ref().is_some_and(|terms| terms.denied)
        })
        .unwrap_or(false)
}

/// An outcome that the rate limits do not count. That the client was seen is noted with its history, at the end.
const fn not_counted(group: Group, verdict: Verdict) -> Decision {
    Decision {
        group,
        verdict,
        counted: false,
        counts: None,
        ask: false,
        limit_percent: None,
        bytes_percent: None,
    }
}

fn is_health_check(asked: &Asked<'_>) -> bool {
    asked.path == "/_waf/health" && (asked.method == Method::GET || asked.method == Method::HEAD)
}

fn is_too_large(rules: &Rules, asked: &Asked<'_>) -> bool {
    matches!((rules.max_body_size, asked.content_length), (Some(limit), Some(length)) if length > limit)
}

/// The control plane will come to the same end: both ask the same function the same question (BAN-1).
pub fn expiry_of_next_ban(rules: &Rules, snapshot: &Snapshot, client: Client, now: Now) -> Expiry {
    let netblock = Netblock::of(client, rules.ban_prefixes);
    next_expiry(
        &rules.ban_policy,
        snapshot.bans.last_ended(netblock, now.wall_ms),
        now.wall_ms,
    )
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::Arc;

    use proptest::prelude::*;
    use weir_shared::lookup::Lookup;
    use weir_shared::settings::{Countries, Percents};
    use weir_shared::snapshot::{BanIndex, BanSpan};
    use weir_shared::table::ClientTable;

    use super::*;
    use crate::clients::terms::LookupRules;

    const START: u64 = 1_795_276_800_000;

    fn rules() -> Rules {
        Rules {
            allow_nets: ["10.0.0.0/30".parse().unwrap()].into_iter().collect(),
            deny_nets: ["10.0.0.0/29".parse().unwrap()].into_iter().collect(),
            exempt_paths: vec!["/static".to_owned()],
            limits: Limits {
                requests: [Some(3), Some(8), None],
                bytes: [None; 3],
            },
            max_body_size: Some(100),
            ban_policy: Policy::default(),
            ban_prefixes: PrefixLengths { v4: 30, v6: 56 },
            wants_counts: true,
            lookups: Lookups::default(),
        }
    }

    fn asked<'a>(path: &'a str, method: &'a Method, last: u8, length: Option<u64>) -> Asked<'a> {
        let address = IpAddr::from([10, 0, 0, last]);
        Asked {
            method,
            path,
            client: Client::of(address),
            address,
            content_length: length,
            may_wait: true,
        }
    }

    fn snapshot(bans: &[(u8, u64)], can_ban: bool) -> Snapshot {
        let mut index = BanIndex::default();
        for (last, end_ms) in bans {
            let netblock = Netblock::masked(IpAddr::from([10, 0, 0, *last]), 30);
            index.set(
                netblock,
                Some(BanSpan {
                    end_ms: *end_ms,
                    length_ms: 1000,
                }),
            );
        }
        Snapshot {
            generation: 0,
            bans: Arc::new(index),
            can_ban,
        }
    }

    fn at(ms: u64) -> Now {
        Now {
            wall_ms: START + ms,
            mono_ns: ms * 1_000_000 + 1,
        }
    }

    /// CHECK-1: the health check comes before everything; with another method it is an own path like any other.
    #[test]
    fn the_health_check_is_first() {
        let (table, snapshot) = (Table::default(), snapshot(&[(4, u64::MAX)], true));
        let decide = |method: &Method| {
            super::decide(
                &rules(),
                &snapshot,
                &table,
                &asked("/_waf/health", method, 4, None),
                at(0),
            )
            .verdict
        };
        assert_eq!(decide(&Method::GET), Verdict::Health);
        assert_eq!(decide(&Method::HEAD), Verdict::Health);
        assert_eq!(decide(&Method::POST), Verdict::Refuse(Refusal::DeniedNet));
    }

    /// LIMIT-6: the client that broke a limit is told the end that the control plane will come to.
    #[test]
    fn the_break_knows_its_ban() {
        let table = Table::default();
        let past = START - 1000;
        let snapshot = snapshot(&[(20, past)], true);
        let mut last = None;
        for _ in 0..4 {
            last = Some(
                decide(
                    &rules(),
                    &snapshot,
                    &table,
                    &asked("/", &Method::GET, 20, None),
                    at(0),
                )
                .verdict,
            );
        }
        let Some(Verdict::Refuse(Refusal::RateLimited { ban, exceeded })) = last else {
            panic!("{last:?}")
        };
        assert!(exceeded.first);
        // The last ban of the netblock lasted 1 s and ended 1 s ago: three times that.
        assert_eq!(ban.unwrap().end_ms(), START + 3000);
    }

    /// The naive twin of the ladder: the specification's table, read line by line, over plain lists.
    struct Twin {
        bans: HashMap<u8, u64>,
        can_ban: bool,
        seen: HashMap<u8, Vec<u64>>,
    }

    impl Twin {
        fn decide(
            &mut self,
            path: &str,
            get: bool,
            last: u8,
            length: Option<u64>,
            now: u64,
        ) -> &'static str {
            let own = path.starts_with("/_waf");
            if path == "/_waf/health" && get {
                return "health";
            }
            let passed = if own { "own" } else { "forward" };
            if last < 4 {
                return passed;
            }
            if last < 8 {
                return "denied_net";
            }
            if self
                .bans
                .iter()
                .any(|(block, end)| block / 4 == last / 4 && *end > now)
            {
                return "banned";
            }
            if path == "/static" || path.starts_with("/static/") {
                return passed;
            }
            let seen = self.seen.entry(last).or_default();
            seen.push(now);
            let over = |length: u64, limit: u64| {
                let bucket = now / length;
                let current = seen.iter().filter(|at| **at / length == bucket).count() as u64;
                let previous = seen.iter().filter(|at| **at / length + 1 == bucket).count() as u64;
                current * length + previous * (length - now % length) > limit * length
            };
            if over(60_000, 3) || over(3_600_000, 8) {
                return if self.can_ban {
                    "rate_limited, ban"
                } else {
                    "rate_limited"
                };
            }
            if length.is_some_and(|length| length > 100) {
                return "body_too_large";
            }
            passed
        }
    }

    /// What happens around the ladder with lookups on.
    #[derive(Clone, Debug)]
    enum Event {
        /// A request: path, client, and whether it may still wait.
        Request(&'static str, u8, bool),
        /// The lookup of a client is answered: a country, or none.
        Answer(u8, Option<&'static str>),
        /// It fails; asked again after so many seconds.
        Fail(u8, u64),
        /// Seconds pass.
        Pass(u64),
    }

    fn event() -> impl Strategy<Value = Event> {
        let path = prop_oneof![Just("/"), Just("/static"), Just("/_waf/bans")];
        let country = prop::option::of(prop_oneof![Just("DE"), Just("FR"), Just("AT")]);
        prop_oneof![
            6 => (path, 0u8..3, any::<bool>()).prop_map(|(path, last, may_wait)| Event::Request(path, last, may_wait)),
            2 => (0u8..3, country).prop_map(|(last, country)| Event::Answer(last, country)),
            1 => (0u8..3, 0u64..100).prop_map(|(last, seconds)| Event::Fail(last, seconds)),
            1 => (0u64..80).prop_map(Event::Pass),
        ]
    }

    /// What the twin remembers of a client.
    #[derive(Clone, Default)]
    struct Known {
        answer: Option<Option<&'static str>>,
        asked_until: Option<u64>,
        waiting: bool,
        counted: u64,
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// CHECK, LOOKUP-2, LOOKUP-3, LIMIT-4: steps 5, 7, 8 and 10 with lookups on agree with a naive twin over any
        /// sequence of requests, answers and failures: who asks, who waits, who is refused, and by which limit.
        #[test]
        fn the_lookup_steps_agree_with_their_naive_twin(
            lists in any::<bool>(), headers in any::<bool>(), limits in any::<bool>(),
            banned in prop::option::of(0u8..3), events in prop::collection::vec(event(), 1..60),
        ) {
            let settings = LookupSettings {
                countries: if lists { CountryList::Deny(Countries { codes: ["DE".parse().unwrap()].into(), unknown: true }) } else { CountryList::None },
                percents: Percents {
                    country: if limits { [("FR".parse().unwrap(), 50)].into() } else { Default::default() },
                    ..LookupSettings::default().percents
                },
                ..LookupSettings::default()
            };
            let base = Limits { requests: [None, None, Some(7)], bytes: [None; 3] };
            let rules = Rules {
                allow_nets: NetSet::default(),
                deny_nets: NetSet::default(),
                ban_prefixes: PrefixLengths { v4: 32, v6: 64 },
                limits: base,
                lookups: Lookups { on: true, for_lists: lists, for_headers: headers, for_limits: limits },
                ..rules()
            };
            let table = Table::new(LookupRules::new(base, &settings));
            let mut bans = BanIndex::default();
            if let Some(last) = banned {
                let netblock = Netblock::masked(IpAddr::from([10, 0, 0, last]), 32);
                bans.set(netblock, Some(BanSpan { end_ms: u64::MAX, length_ms: 1 }));
            }
            let snapshot = Snapshot { generation: 0, bans: Arc::new(bans), can_ban: true };
            let mut twin = vec![Known::default(); 3];
            // Within one day, so that the counts of the twin are plain sums.
            let mut now = 0u64;
            for event in events {
                match event {
                    Event::Pass(seconds) => now += seconds,
                    Event::Answer(last, country) => {
                        let client = Client::of(IpAddr::from([10, 0, 0, last]));
                        let lookup = Lookup { country: country.map(str::to_owned), ..Lookup::default() };
                        if table.row(client).is_some() {
                            table.answer(client, Arc::new(lookup), u64::MAX);
                            let known = &mut twin[usize::from(last)];
                            (known.answer, known.asked_until, known.waiting) = (Some(country), Some(u64::MAX), false);
                        }
                    }
                    Event::Fail(last, seconds) => {
                        let client = Client::of(IpAddr::from([10, 0, 0, last]));
                        if table.row(client).is_some() {
                            table.ask_again(client, (now + seconds) * 1_000_000_000);
                            let known = &mut twin[usize::from(last)];
                            (known.asked_until, known.waiting) = (Some(now + seconds), false);
                        }
                    }
                    Event::Request(path, last, may_wait) => {
                        let asked = Asked { may_wait, ..asked(path, &Method::GET, last, None) };
                        let found = decide(&rules, &snapshot, &table, &asked, Now { wall_ms: START / 86_400_000 * 86_400_000 + now * 1000, mono_ns: now * 1_000_000_000 });
                        let known = &mut twin[usize::from(last)];
                        let denied = lists && matches!(known.answer, Some(None | Some("DE")));
                        let exempt = path == "/static";
                        let mut ask = false;
                        let told = if denied {
                            "denied_country"
                        } else if banned == Some(last) {
                            "banned"
                        } else {
                            ask = known.asked_until.is_none_or(|until| now >= until);
                            if ask {
                                (known.asked_until, known.waiting) = (Some(now + 120), true);
                            }
                            let needed = lists || (headers && path != "/_waf/bans") || (limits && !exempt);
                            if may_wait && needed && known.answer.is_none() && known.waiting {
                                "await lookup"
                            } else if exempt {
                                "passed"
                            } else {
                                known.counted += 1;
                                let limit = if limits && known.answer == Some(Some("FR")) { 3 } else { 7 };
                                if known.counted > limit { "rate_limited" } else { "passed" }
                            }
                        };
                        let verdict = match found.verdict {
                            Verdict::AwaitLookup => "await lookup",
                            Verdict::Refuse(refusal) => refusal.action().name(),
                            Verdict::Own | Verdict::Forward => "passed",
                            Verdict::Health | Verdict::StartOver => "something else",
                        };
                        prop_assert_eq!((verdict, found.ask), (told, ask), "{:?} at {}", known.answer, now);
                    }
                }
            }
        }
    }

    proptest! {
        /// CHECK: the ladder agrees with its naive twin over any sequence of requests, clients, bans and times.
        #[test]
        fn the_ladder_agrees_with_its_naive_twin(
            bans in prop::collection::hash_map(0u8..24, START..START + 400_000, 0..4),
            can_ban in any::<bool>(),
            requests in prop::collection::vec((
                prop_oneof![Just("/"), Just("/static"), Just("/static/a"), Just("/staticx"), Just("/_waf/bans"), Just("/_waf/health")],
                any::<bool>(), 0u8..24, prop::option::of(90u64..110), 0u64..40_000), 1..80),
        ) {
            let table = Table::default();
            // One netblock has one end: the latest, as the control plane publishes it.
            let mut blocks: HashMap<u8, u64> = HashMap::new();
            for (last, end) in bans {
                let held = blocks.entry(last / 4 * 4).or_insert(end);
                *held = end.max(*held);
            }
            let index: Vec<(u8, u64)> = blocks.iter().map(|(block, end)| (*block, *end)).collect();
            let snapshot = snapshot(&index, can_ban);
            let mut twin = Twin { bans: blocks, can_ban, seen: HashMap::new() };
            let mut now = 0;
            for (path, get, last, length, step) in requests {
                now += step;
                let method = if get { Method::GET } else { Method::POST };
                let found = decide(&rules(), &snapshot, &table, &asked(path, &method, last, length), at(now));
                let told = match found.verdict {
                    Verdict::Health => "health",
                    Verdict::Own => "own",
                    Verdict::Forward => "forward",
                    Verdict::Refuse(Refusal::RateLimited { ban: Some(_), .. }) => "rate_limited, ban",
                    Verdict::Refuse(refusal) => refusal.action().name(),
                    Verdict::StartOver => "start over",
                    Verdict::AwaitLookup => "await lookup",
                };
                prop_assert_eq!(told, twin.decide(path, get, last, length, START + now));
            }
        }
    }
}
