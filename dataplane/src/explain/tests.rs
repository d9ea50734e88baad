use std::net::IpAddr;

use http::{HeaderMap, Method, StatusCode};
use proptest::prelude::*;
use weir_shared::client::Client;
use weir_shared::lookup::Lookup;
use weir_shared::rules::{Matcher, NetList, Remembered, RuleKind, RuleSet, Trap, Traps};
use weir_shared::settings::{BanResponse, Countries, CountryList, LookupSource, Settings};
use weir_shared::snapshot::{BanIndex, BanSpan};
use weir_shared::table::ClientTable;
use weir_shared::verdict::LimitHit;
use weir_shared::window::RuleSpan;

use crate::explain::*;

const RESPONSES: Responses = Responses {
    ban: BanResponse::Drop,
    deny: BanResponse::Status(StatusCode::FORBIDDEN),
};
const START: u64 = 1_795_276_800_000;
const COUNTRIES: [&str; 3] = ["DE", "FR", "US"];
const PATHS: [&str; 8] = [
    "/",
    "/static/a",
    "/_waf/bans",
    "/_waf/health",
    "/login",
    "/LOGIN;a=b",
    "/.env",
    "/x/..;/.env",
];

/// What rules.json may say: a trap, and limits of a path that refuse or ban.
fn rule_set() -> impl Strategy<Value = RuleSet> {
    let limit = (1u64..4, any::<bool>(), any::<bool>());
    (any::<bool>(), prop::collection::vec(limit, 0..3)).prop_map(|(traps, limits)| {
        let mut all = Traps::default();
        if traps {
            let trap = Rule::new(RuleKind::Trap, "trap".to_owned());
            let rule = Arc::new(trap);
            let scope = Scope::Client;
            all.add(Trap { rule, scope }, ["/.env"]);
        }
        let limits = limits.into_iter().enumerate();
        let limits = limits.map(|(index, (limit, bans, everywhere))| Limit {
            rule: Arc::new(Rule::new(RuleKind::Limit, format!("limit-{index}"))),
            matcher: Matcher::new((!everywhere).then_some(("/login", false)), Vec::new(), None),
            quotas: vec![Quota {
                span: RuleSpan::Minute,
                limit,
            }],
            on_limit: match bans {
                true => OnLimit::Ban,
                false => OnLimit::Refuse,
            },
            per: weir_shared::rules::Per::Client,
            spare_known: None,
        });
        RuleSet::new(
            NetList::default(),
            NetList::default(),
            all,
            limits.collect(),
            vec![Jail {
                rule: Arc::new(Rule::new(RuleKind::Jail, "jail".to_owned())),
                matcher: Matcher::new(Some(("/login", false)), Vec::new(), None),
                statuses: vec![StatusCode::UNAUTHORIZED],
                quotas: vec![Quota {
                    span: RuleSpan::Minute,
                    limit: 2,
                }],
                scope: Scope::Client,
            }],
        )
    })
}

fn net(text: &str) -> weir_shared::netblock::NetSet {
    [text.parse().unwrap()].into_iter().collect()
}

/// Settings as anybody may write them, small enough that every limit is met.
fn settings() -> impl Strategy<Value = Settings> {
    let lists = (any::<bool>(), any::<bool>(), any::<bool>());
    let limits = (
        prop::option::of(1u64..6),
        prop::option::of(1u64..12),
        prop::option::of(1u32..4),
        prop::option::of(1u32..3),
        any::<bool>(),
    );
    let lookup = (any::<bool>(), 0usize..5, 0u8..=100, any::<bool>());
    (lists, limits, lookup).prop_map(|(lists, limits, lookup)| {
        let mut settings = Settings::default();
        if lists.0 {
            settings.lists.allow_nets = net("10.0.0.0/30");
        }
        if lists.1 {
            settings.lists.deny_nets = net("10.0.0.0/29");
        }
        if lists.2 {
            settings.lists.exempt_paths = vec!["/static".to_owned()];
        }
        settings.limits.requests = [limits.0, limits.1, None].into();
        settings.limits.per_second = limits.2;
        settings.limits.max_under_way = limits.3;
        if limits.4 {
            settings.limits.on_limit = OnLimit::Refuse;
        }
        let (on, country, percent, allows) = lookup;
        settings.lookup.source = match on {
            true => LookupSource::Geojs,
            false => LookupSource::Off,
        };
        settings.lookup.percents.unknown = if on { percent } else { 100 };
        if let Some(code) = COUNTRIES.get(country).filter(|_| on) {
            let codes = [code.parse().unwrap()].into_iter().collect();
            let countries = Countries {
                codes,
                unknown: allows,
            };
            settings.lookup.countries = match allows {
                true => CountryList::Allow(countries),
                false => CountryList::Deny(countries),
            };
        }
        settings
    })
}

/// What may happen to the client of this number.
#[derive(Clone, Debug)]
enum Event {
    /// It asks for one of the paths, so many milliseconds later, by itself or for the page of
    /// another site.
    Asks(usize, u64, bool),
    /// Its netblock is banned for so long, or its bans are gone.
    Ban(Option<u64>),
    /// Its lookup answers, with a country or without.
    Answer(usize),
    /// The control plane resets it after a ban.
    Reset,
}

fn event() -> impl Strategy<Value = (u8, Event)> {
    let event = prop_oneof![
        8 => (0..PATHS.len(), prop_oneof![Just(0), 0u64..90_000], any::<bool>())
            .prop_map(|(path, ms, other_site)| Event::Asks(path, ms, other_site)),
        1 => prop::option::of(0u64..90_000).prop_map(Event::Ban),
        1 => (0usize..4).prop_map(Event::Answer),
        1 => Just(Event::Reset),
    ];
    // Four that are allowed or denied, four that are only denied, and some others.
    (0u8..12, event)
}

fn action_of(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Health => "health",
        Outcome::Forward => "forward",
        Outcome::Own => "own",
        Outcome::AwaitLookup => "await",
        Outcome::Refuse { action, .. } => action.name(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// CONTROL-5: whatever the settings, the clients and what happened to them, the explanation
    /// before a request says what the ladder then does with it, and changes nothing.
    #[test]
    fn the_explanation_is_what_the_ladder_does(
        settings in settings(),
        can_ban in any::<bool>(),
        rules_file in rule_set(),
        events in prop::collection::vec(event(), 1..60),
    ) {
        let rules = Rules::of(&settings, Arc::default());
        let table = Table::with_capacity(1);
        let mut snapshot = Snapshot { can_ban, rules: Arc::new(rules_file), ..Snapshot::default() };
        let mut bans = BanIndex::default();
        let mut now = Now { wall_ms: START, mono_ns: 1 };
        for (last, event) in events {
            let address = IpAddr::from([10, 0, 0, last]);
            let client = Client::of(address);
            match event {
                Event::Ban(end) => {
                    let span = end.map(|ms| BanSpan { end_ms: now.wall_ms + ms, length_ms: ms, cause: Cause::Admin, is_automatic: false });
                    bans.set(Netblock::of(client, rules.ban_prefixes), span);
                    snapshot.bans = Arc::new(bans.clone());
                }
                Event::Answer(country) => {
                    let country = COUNTRIES.get(country).map(|code| (*code).to_owned());
                    let lookup = Lookup { country, ..Lookup::default() };
                    table.answer(client, Arc::new(lookup), u64::MAX);
                }
                Event::Reset => {
                    snapshot.generation += 1;
                    table.reset(client, Netblock::alone(client), snapshot.generation, 0);
                }
                Event::Asks(path, later_ms, other_site) => {
                    now.wall_ms += later_ms;
                    now.mono_ns += later_ms * 1_000_000;
                    let path = PATHS[path];
                    let question = Question { address, method: Method::POST, path: path.to_owned(), sent: Remembered::default(), other_site };
                    let before = (table.row(client), table.kept());
                    let explained = explain((&rules, RESPONSES), &snapshot, &table, &question, now);
                    prop_assert_eq!((table.row(client), table.kept()), before);
                    let no_fields = HeaderMap::new();
                    let asking = Asking { path, method: &Method::POST, address, sent: &no_fields };
                    let who = Who::client(address);
                    let asked = Asked { asking, who, other_site, content_length: None, may_wait: true };
                    let decision = decide(&rules, &snapshot, &table, &asked, now);
                    let Ok(decision) = decision else {
                        prop_assert!(explained.is_none());
                        continue;
                    };
                    let explained = explained.expect("an explanation");
                    let (action, limit, ban) = match decision.verdict {
                        Verdict::Forward => ("forward", None, None),
                        Verdict::Own => ("own", None, None),
                        Verdict::AwaitLookup => ("await", None, None),
                        Verdict::Refuse(Refusal::Banned(ban)) => ("banned", None, Some(ban.expires)),
                        Verdict::Refuse(Refusal::RateLimited { exceeded, ban }) => {
                            ("rate_limited", Some(exceeded.limit), ban)
                        }
                        Verdict::Refuse(Refusal::DeniedNet) => ("denied_net", None, None),
                        Verdict::Refuse(Refusal::DeniedCountry) => ("denied_country", None, None),
                        Verdict::Refuse(Refusal::Trapped { ban, .. }) => ("trapped", None, ban),
                        Verdict::Refuse(other) => (other.action().name(), None, None),
                    };
                    prop_assert_eq!(action_of(explained.outcome), action);
                    if let Outcome::Refuse { limit: told, ban: end, answer, retry_after, .. } = explained.outcome {
                        prop_assert_eq!((told, end), (limit, ban));
                        let drops = ban.is_some() && action != "trapped";
                        prop_assert_eq!(answer == BanResponse::Drop, drops, "{}", action);
                        prop_assert!(retry_after.is_none() || limit.is_some() || ban.is_some());
                    }
                    prop_assert_eq!(explained.group, decision.group);
                    let rule = |rule: &Option<Arc<Rule>>| rule.as_ref().map(|rule| rule.name.clone());
                    prop_assert_eq!(rule(&explained.rule), rule(&decision.rule));
                    // The limit that refuses is one of those that are told, and is full.
                    if let (Outcome::Refuse { limit: Some(LimitHit::Rule(span)), .. }, Some(by)) = (explained.outcome, &decision.rule) {
                        let told = explained.rule_limits.iter().chain(&explained.jails);
                        let mut told = told.filter(|told| told.rule.name == by.name);
                        let (_, usage) = told.next().expect("it is told").windows[0];
                        prop_assert_eq!(span, RuleSpan::Minute);
                        prop_assert!(usage.fits_in_ms.is_none_or(|ms| ms > 0), "{:?}", usage);
                    }
                    prop_assert_eq!(explained.counted, decision.counted);
                    prop_assert_eq!(explained.otherwise.is_some(), matches!(action, "banned" | "await"));
                    if decision.counted {
                        prop_assert_eq!(explained.limit_percent, decision.limit_percent);
                        prop_assert_eq!(explained.bytes_percent, decision.bytes_percent);
                    }
                    if decision.verdict == Verdict::Forward {
                        for jail in snapshot.rules.jails(StatusCode::UNAUTHORIZED, &asking, || None, None) {
                            table.update(client, now, |entry| {
                                entry.charge_rule(&jail.rule, &jail.quotas, now.wall_ms, other_site)
                            });
                        }
                    }
                    if decision.under_way {
                        table.update(client, now, |entry| entry.end_request());
                    }
                }
            }
        }
    }
}

/// CONTROL-5: the health check is answered before everything; under any other method its path is
/// one of the service's own.
#[test]
fn the_health_check_is_explained() {
    let mut settings = Settings::default();
    settings.lists.deny_nets = net("10.0.0.0/29");
    let table = Table::with_capacity(1);
    let rules = Rules::of(&settings, Arc::default());
    let now = Now {
        wall_ms: START,
        mono_ns: 1,
    };
    let outcome = |method| {
        let question = Question {
            address: IpAddr::from([10, 0, 0, 1]),
            method,
            path: "/_waf/health".to_owned(),
            sent: Remembered::default(),
            other_site: false,
        };
        let explained = explain(
            (&rules, RESPONSES),
            &Snapshot::default(),
            &table,
            &question,
            now,
        );
        action_of(explained.unwrap().outcome)
    };
    assert_eq!(outcome(Method::GET), "health");
    assert_eq!(outcome(Method::POST), "denied_net");
}
