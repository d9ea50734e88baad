use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use proptest::prelude::*;
use weir_shared::lookup::Lookup;
use weir_shared::rules::{Limit, Matcher, Quota, RuleSet, Trap, Traps};
use weir_shared::settings::{Countries, CountryList, LookupSettings, OnLimit, Percents};
use weir_shared::snapshot::{BanIndex, BanSpan};
use weir_shared::table::ClientTable;
use weir_shared::verdict::Limits;
use weir_shared::window::{PerSpan, RuleSpan};

use crate::request::ladder::*;

const START: u64 = 1_795_276_800_000;

fn net_list(kind: RuleKind, netblock: &str) -> NetList {
    NetList::of(kind, "setting", [netblock.parse().unwrap()])
}

/// Clients may make 3 requests a minute and 8 an hour.
fn rules() -> Rules {
    let limits = Limits {
        requests: [Some(3), Some(8), None].into(),
        bytes: PerSpan::default(),
    };
    Rules {
        allow_nets: net_list(RuleKind::Allow, "10.0.0.0/30"),
        deny_nets: net_list(RuleKind::Deny, "10.0.0.0/29"),
        exempt_paths: vec!["/static".to_owned()],
        max_body_size: Some(100),
        ban_policy: Policy::default(),
        ban_prefixes: PrefixLengths { v4: 30, v6: 56 },
        spared: Arc::default(),
        wants_counts: true,
        lookups: Lookups::default(),
        terms: LookupRules::new(limits, &LookupSettings::default()),
        charging: Charging::default(),
    }
}

fn asked(path: &str, last: u8, length: Option<u64>) -> Asked<'_> {
    let address = IpAddr::from([10, 0, 0, last]);
    static NO_FIELDS: std::sync::LazyLock<http::HeaderMap> =
        std::sync::LazyLock::new(http::HeaderMap::new);
    Asked {
        asking: Asking {
            path,
            method: &Method::GET,
            address,
            sent: &*NO_FIELDS,
        },
        who: Who::client(address),
        other_site: false,
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
                cause: Cause::Admin,
                is_automatic: false,
            }),
        );
    }
    Snapshot {
        generation: 0,
        bans: Arc::new(index),
        can_ban,
        rules: Arc::default(),
    }
}

fn at(ms: u64) -> Now {
    Now {
        wall_ms: START + ms,
        mono_ns: ms * 1_000_000 + 1,
    }
}

/// CHECK-1: the health check is GET or HEAD of its one path; with another method it is an own path
/// like any other, and is checked like any other.
#[test]
fn the_health_check_is_get_or_head() {
    let path = "/_waf/health";
    assert!(is_health_check(&Method::GET, path) && is_health_check(&Method::HEAD, path));
    assert!(!is_health_check(&Method::POST, path) && !is_health_check(&Method::GET, "/_waf/"));
    let found = decide(
        &rules(),
        &snapshot(&[], true),
        &Table::default(),
        &asked(path, 4, None),
        at(0),
    );
    assert_eq!(found.unwrap().verdict, Verdict::Refuse(Refusal::DeniedNet));
}

/// LIMIT-6: under a snapshot that is older than the client's reset nothing is decided, counted or
/// asked about.
#[test]
fn an_old_snapshot_decides_nothing() {
    let (table, rules) = (Table::default(), rules());
    let ask = Rules {
        lookups: Lookups {
            on: true,
            ..Lookups::default()
        },
        ..rules
    };
    let old = snapshot(&[], true);
    let (asked, client) = (asked("/", 20, None), Client::of([10, 0, 0, 20].into()));
    table.touch(client, at(0), |entry| entry.reset(1, None));
    assert_eq!(
        decide(&ask, &old, &table, &asked, at(1)),
        Err(StaleSnapshot)
    );
    let new = Snapshot {
        generation: 1,
        ..snapshot(&[], true)
    };
    let decision = decide(&ask, &new, &table, &asked, at(2)).unwrap();
    assert!(decision.ask, "the lookup is begun by who decides");
    assert_eq!(decision.counts.unwrap().requests, [1, 1, 1].into());
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
            decide(&rules(), &snapshot, &table, &asked("/", 20, None), at(0))
                .unwrap()
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

/// What rules.json says in these tests: 12 and 13 are allowed, all of 12 to 15 denied; `/trap/` is
/// one; one GET of `/limited` a minute passes, three a minute do not ban.
fn rule_set() -> RuleSet {
    let limit = |name: &str, limit, on_limit| Limit {
        rule: Arc::new(Rule::new(RuleKind::Limit, name.to_owned())),
        matcher: Matcher::new(Some(("/limited", false)), vec![Method::GET], None),
        quotas: vec![Quota {
            span: RuleSpan::Minute,
            limit,
        }],
        on_limit,
        per: weir_shared::rules::Per::Client,
        spare_known: None,
    };
    let mut traps = Traps::default();
    let rule = Arc::new(Rule::new(RuleKind::Trap, "trap".to_owned()));
    let scope = Scope::Client;
    traps.add(Trap { rule, scope }, ["/trap/"]);
    RuleSet::new(
        net_list(RuleKind::Allow, "10.0.0.12/31"),
        net_list(RuleKind::Deny, "10.0.0.12/30"),
        traps,
        vec![
            limit("refuse", 1, OnLimit::Refuse),
            limit("ban", 3, OnLimit::Ban),
        ],
        Vec::new(),
    )
}

/// The naive twin of the ladder: the specification's table, read line by line, over plain lists.
struct Twin {
    bans: HashMap<u8, u64>,
    can_ban: bool,
    seen: HashMap<u8, Vec<u64>>,
    /// Requests that a rule has counted, by client: those that passed, and all.
    passed: HashMap<u8, Vec<u64>>,
    limited: HashMap<u8, Vec<u64>>,
    /// Who has offended already.
    offenders: HashSet<u8>,
}

/// Whether the estimate is over.
fn is_over(seen: &[u64], length: u64, limit: u64, now: u64) -> bool {
    let bucket = now / length;
    let current = seen.iter().filter(|at| **at / length == bucket).count() as u64;
    let previous = seen.iter().filter(|at| **at / length + 1 == bucket).count() as u64;
    current * length + previous * (length - now % length) > limit * length
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
        if last < 4 || matches!(last, 12 | 13) {
            return passed;
        }
        if last < 8 || matches!(last, 14 | 15) {
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
        let plain = path.replace("//", "/");
        let inside = |folder: &str| plain == folder || plain.starts_with(&format!("{folder}/"));
        if inside("/trap") {
            let first = self.offenders.insert(last);
            return if first { "trapped, first" } else { "trapped" };
        }
        let banned = if self.can_ban {
            "rate_limited, ban"
        } else {
            "rate_limited"
        };
        let seen = self.seen.entry(last).or_default();
        seen.push(now);
        let mut over = is_over(seen, 60_000, 3, now) || is_over(seen, 3_600_000, 8, now);
        if inside("/limited") && get {
            let limited = self.limited.entry(last).or_default();
            limited.push(now);
            over |= is_over(limited, 60_000, 3, now);
        }
        if over {
            self.offenders.insert(last);
            return banned;
        }
        if inside("/limited") && get {
            let passed = self.passed.entry(last).or_default();
            passed.push(now);
            if is_over(passed, 60_000, 1, now) {
                passed.pop();
                return "rate_limited";
            }
        }
        if length.is_some_and(|length| length > 100) {
            return "body_too_large";
        }
        passed
    }
}

/// A decision that is the same whatever the client asks for, if it is one.
fn of_the_client(decision: &Decision) -> Option<Decision> {
    let refused =
        matches!(decision.verdict, Verdict::Refuse(refusal) if refusal.is_of_the_client());
    refused.then(|| decision.clone())
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

    /// CHECK, LOOKUP-2, LOOKUP-3, LIMIT-4: steps 5, 7, 8 and 10 with lookups on agree with a naive
    /// twin over any sequence of requests, answers and failures: who asks, who waits, who is
    /// refused, and by which limit.
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
        let base = Limits { requests: [None, None, Some(7)].into(), bytes: PerSpan::default() };
        let rules = Rules {
            allow_nets: NetList::default(),
            deny_nets: NetList::default(),
            ban_prefixes: PrefixLengths { v4: 32, v6: 64 },
            lookups: Lookups { on: true, for_lists: lists, for_headers: headers, for_limits: limits },
            terms: LookupRules::new(base, &settings),
            ..rules()
        };
        let table = Table::default();
        let mut bans = BanIndex::default();
        if let Some(last) = banned {
            let netblock = Netblock::masked(IpAddr::from([10, 0, 0, last]), 32);
            bans.set(netblock, Some(BanSpan { end_ms: u64::MAX, length_ms: 1, cause: Cause::Admin, is_automatic: false }));
        }
        let snapshot = Snapshot { bans: Arc::new(bans), can_ban: true, ..Snapshot::default() };
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
                    let asked = Asked { may_wait, ..asked(path, last, None) };
                    let time = Now { wall_ms: START / 86_400_000 * 86_400_000 + now * 1000, mono_ns: now * 1_000_000_000 };
                    let who = asked.who;
                    let whatever = refuses(&rules, &snapshot, &table, who, time.wall_ms);
                    let found = decide(&rules, &snapshot, &table, &asked, time).unwrap();
                    prop_assert_eq!(whatever, of_the_client(&found));
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
                    };
                    prop_assert_eq!((verdict, found.ask), (told, ask), "{:?} at {}", known.answer, now);
                }
            }
        }
    }
}

proptest! {
    /// CHECK: the ladder agrees with its naive twin over any sequence of requests,
    /// clients, bans and times; and who is refused without a look at the request is who is refused
    /// with one.
    #[test]
    fn the_ladder_agrees_with_its_naive_twin(
        bans in prop::collection::hash_map(0u8..24, START..START + 400_000, 0..4),
        can_ban in any::<bool>(),
        requests in prop::collection::vec((
            prop_oneof![Just("/"), Just("/trap"), Just("//trap/x"), Just("/trapx"), Just("/limited"), Just("//limited/x"), Just("/static"), Just("/static/a"), Just("/staticx"), Just("/_waf/bans"), Just("/_waf/health")],
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
        let snapshot = Snapshot { rules: Arc::new(rule_set()), ..snapshot(&index, can_ban) };
        let mut twin = Twin { bans: blocks, can_ban, seen: HashMap::new(), passed: HashMap::new(), limited: HashMap::new(), offenders: HashSet::new() };
        let mut now = 0;
        for (path, get, last, length, step) in requests {
            now += step;
            let method = if get { Method::GET } else { Method::POST };
            let asked = asked(path, last, length);
            let asked = Asked { asking: Asking { method: &method, ..asked.asking }, ..asked };
            let told = if is_health_check(&method, path) {
                "health"
            } else {
                let who = asked.who;
                let whatever = refuses(&rules(), &snapshot, &table, who, START + now);
                let decision = decide(&rules(), &snapshot, &table, &asked, at(now)).unwrap();
                prop_assert_eq!(whatever, of_the_client(&decision));
                match decision.verdict {
                    Verdict::Refuse(Refusal::Trapped { first: true, .. }) => "trapped, first",
                    Verdict::Own => "own",
                    Verdict::Forward => "forward",
                    Verdict::Refuse(Refusal::RateLimited { ban: Some(_), .. }) => "rate_limited, ban",
                    Verdict::Refuse(refusal) => refusal.action().name(),
                    Verdict::AwaitLookup => "await lookup",
                }
            };
            prop_assert_eq!(told, twin.decide(path, get, last, length, START + now));
        }
    }
}
