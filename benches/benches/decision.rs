//! One decision of the ladder, the table under new clients, and the publication of bans, apart from
//! all I/O.
//!
//! `cargo bench -p weir-benches --bench decision`. The figures to reach are in the group names'
//! comments; ratios within one run count, not a lone time on a noisy machine.

use std::net::IpAddr;
use std::sync::{Arc, LazyLock};

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use http::header::USER_AGENT;
use http::{HeaderMap, Method, StatusCode};
use weir_dataplane::clients::table::Table;
use weir_dataplane::identity::Who;
use weir_dataplane::ladder::{Asked, Rules, decide};
use weir_shared::ban::{Cause, Scope};
use weir_shared::clock::Now;
use weir_shared::netblock::Netblock;
use weir_shared::rules::{
    Asking, Denial, Further, Jail, Limit, Matcher, NetList, Parts, Per, Quota, Rule, RuleKind,
    RuleSet, Trap, Traps,
};
use weir_shared::settings::{LogRequests, OnLimit, Settings};
use weir_shared::snapshot::{BanIndex, BanSpan, Snapshot};
use weir_shared::window::RuleSpan;

const START: u64 = 1_795_276_800_000;

/// Clients are under limits that none of them exceeds.
fn rules() -> Rules {
    let mut settings = Settings::default();
    settings.limits.requests = [Some(u64::MAX >> 40); 3].into();
    settings.limits.bytes = [Some(u64::MAX >> 10); 3].into();
    settings.lists.exempt_paths = vec!["/static".to_owned()];
    settings.log.requests = LogRequests::Off;
    let denied = (0..100u8).map(|block| Netblock::masked(IpAddr::from([172, block, 0, 0]), 16));
    Rules {
        deny_nets: NetList::of(RuleKind::Deny, "WAF_DENY_NETS", denied),
        ..Rules::of(&settings, Arc::default())
    }
}

fn ban_until(end_ms: u64) -> BanSpan {
    BanSpan {
        end_ms,
        length_ms: end_ms,
        cause: Cause::Admin,
        is_automatic: false,
    }
}

fn bans(count: u32) -> BanIndex {
    let mut index = BanIndex::default();
    for block in 0..count {
        let netblock = Netblock::masked(IpAddr::V4((0x0a00_0000 | (block << 8)).into()), 24);
        index.set(netblock, Some(ban_until(u64::MAX)));
    }
    index
}

/// 10,000 bans, and what a rules.json says.
fn snapshot(rules: RuleSet) -> Snapshot {
    Snapshot {
        generation: 1,
        bans: Arc::new(bans(10_000)),
        can_ban: true,
        rules: Arc::new(rules),
    }
}

/// The `n`-th of a sequence of clients that no ban covers, spread so that neighbours do not follow
/// each other.
fn client(n: u32) -> IpAddr {
    IpAddr::V4((0xc000_0000 | (n.wrapping_mul(2_654_435_761) >> 4)).into())
}

fn at(n: u64) -> Now {
    Now {
        wall_ms: START + n / 100,
        mono_ns: n * 10_000 + 1,
    }
}

static NO_FIELDS: LazyLock<HeaderMap> = LazyLock::new(HeaderMap::new);

fn ask(address: IpAddr, sent: &HeaderMap) -> Asked<'_> {
    Asked {
        asking: Asking {
            path: "/a/page",
            method: &Method::GET,
            address,
            sent,
        },
        who: Who::client(address),
        other_site: false,
        content_length: None,
        may_wait: true,
    }
}

/// Decisions with 10,000 bans. A row has its rules file, and tells who asks by the number of the
/// request; 20,000 clients have been there before. Every request has these fields.
fn decisions(
    criterion: &mut Criterion,
    group: &str,
    rows: impl IntoIterator<Item = (impl Into<String>, RuleSet, impl Fn(u32) -> IpAddr)>,
    sent: &HeaderMap,
) {
    let (rules, table) = (rules(), Table::default());
    let mut group = criterion.benchmark_group(group);
    let mut n = 0;
    for (name, rules_file, clients) in rows {
        let snapshot = snapshot(rules_file);
        let mut decided = |address: IpAddr| {
            n += 1;
            decide(&rules, &snapshot, &table, &ask(address, sent), at(n))
        };
        for number in 0..20_000 {
            let _ = decided(client(number));
        }
        let mut number = 0;
        let mut next = || {
            number += 1;
            decided(clients(number))
        };
        group.bench_function(name, |bencher| bencher.iter(&mut next));
    }
    group.finish();
}

/// One of these clients, in turn.
fn known(number: u32) -> IpAddr {
    client(number % 20_000)
}

/// At most 250 ns with 20,000 clients and 10,000 bans.
fn decision(criterion: &mut Criterion) {
    type Clients = fn(u32) -> IpAddr;
    let rows: [(&str, Clients); 3] = [
        ("pass, 20,000 clients in turn, 10,000 bans", known),
        ("refuse, banned", |_| IpAddr::from([10, 0, 7, 7])),
        ("pass, every client new, one dropped each", |number| {
            client(20_000 + number)
        }),
    ];
    let rows = rows.map(|(name, clients)| (name, RuleSet::default(), clients));
    decisions(criterion, "decision", rows, &NO_FIELDS);
}

fn rule(kind: RuleKind, name: String) -> Arc<Rule> {
    Arc::new(Rule::new(kind, name))
}

fn a_minute(limit: u64) -> Quota {
    let span = RuleSpan::Minute;
    Quota { span, limit }
}

/// A limit that is never reached.
fn limit(number: u32, matcher: Matcher, on_limit: OnLimit, per: Per) -> Limit {
    Limit {
        rule: rule(RuleKind::Limit, format!("limit-{number}")),
        matcher,
        quotas: vec![a_minute(u64::MAX >> 40)],
        on_limit,
        per,
        spare_known: None,
    }
}

/// 16 limits of which one counts the request, 10,000 trap paths, 16 jails and 500,000 netblocks on
/// two lists (RULE-1 to RULE-4).
fn rule_set(matching: bool) -> RuleSet {
    let path = |number: u32| match number {
        0 if matching => "/a".to_owned(),
        _ => format!("/area-{number}"),
    };
    let limits = (0..16).map(|number| {
        let matcher = Matcher::new(Some((&path(number), false)), vec![Method::GET], None);
        limit(number, matcher, OnLimit::Ban, Per::Client)
    });
    let jails = (16..32).map(|number| Jail {
        rule: rule(RuleKind::Jail, format!("jail-{number}")),
        matcher: Matcher::new(Some((&path(number), false)), vec![], None),
        statuses: vec![StatusCode::NOT_FOUND],
        quotas: vec![a_minute(60)],
        scope: Scope::Client,
    });
    let mut traps = Traps::default();
    let paths = (0..10_000).map(|number| format!("/trap-{number}/x.php"));
    let rule = rule(RuleKind::Trap, "scanner".to_owned());
    let scope = Scope::Client;
    traps.add(Trap { rule, scope }, paths);
    // Neither of them covers a client of the bench.
    let netblocks = |first: u32| {
        (0..250_000u32).map(move |n| {
            let address = first | n.wrapping_mul(2_654_435_761) >> 6;
            Netblock::masked(IpAddr::V4(address.into()), 24 + (n % 9) as u8)
        })
    };
    RuleSet::new(
        NetList::of(RuleKind::Allow, "monitors.txt", netblocks(0x1000_0000)),
        NetList::of(RuleKind::Deny, "drop.txt", netblocks(0x2000_0000)),
        traps,
        limits.collect(),
        jails.collect(),
    )
}

/// At most 150 ns above the same decision without rules.
fn rules_file(criterion: &mut Criterion) {
    let files = [
        ("none", RuleSet::default(), known),
        (
            "16 limits, 10,000 traps, 16 jails, 500,000 netblocks",
            rule_set(false),
            known,
        ),
        ("the same, one limit counts", rule_set(true), known),
    ];
    decisions(criterion, "decision with rules.json", files, &NO_FIELDS);
}

/// A word of small letters, another one for each number: what an automaton has the most states for.
fn word(number: u64) -> String {
    let mut letters = fastrand::Rng::with_seed(number);
    let length = letters.u8(4..18);
    (0..length).map(|_| letters.lowercase()).collect()
}

/// At most 1 µs above the same decision without rules: 9,984 literals in 64 denials, and a
/// User-Agent of 200 bytes that has none of them (MATCH-2). Once words that begin alike, as names
/// of crawlers do, and once words that have nothing in common.
fn literals(criterion: &mut Criterion) {
    let agent = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) ".repeat(3);
    let agent = agent.get(..200).and_then(|agent| agent.parse().ok());
    let fields: HeaderMap = agent.map(|agent| (USER_AGENT, agent)).into_iter().collect();
    let denial = |number: u64, literal: fn(u64, u64) -> String| Denial {
        rule: rule(RuleKind::Denial, format!("denial-{number}")),
        matcher: Matcher::default().with(Further {
            user_agent: vec![(0..156).map(|n| literal(number, n)).collect()],
            ..Further::default()
        }),
        answer: None,
    };
    let denials = |literal| {
        RuleSet::of(Parts {
            denials: (0..64).map(|number| denial(number, literal)).collect(),
            ..Parts::default()
        })
    };
    let files = [
        ("none", RuleSet::default(), known),
        (
            "9,984 that begin alike",
            denials(|number, n| format!("crawler-{}/{number}", n * 7919)),
            known,
        ),
        (
            "9,984 words",
            denials(|number, n| word(number * 156 + n)),
            known,
        ),
    ];
    decisions(criterion, "decision with literals", files, &fields);
}

/// Limits that clients share, all of which count the request (SHARE-6): `count` of them, by
/// netblock, AS number, country, a field and all in turn.
fn shared_limits(count: u32) -> RuleSet {
    let per = |number| match number % 5 {
        0 => Per::All,
        1 => Per::Netblock,
        2 => Per::Asn,
        3 => Per::Country,
        _ => Per::Field(USER_AGENT),
    };
    let limit = |number| limit(number, Matcher::default(), OnLimit::Refuse, per(number));
    RuleSet::of(Parts {
        limits: (0..count).map(limit).collect(),
        ..Parts::default()
    })
}

/// At most 0.3 µs a limit above the same decision without rules (SHARE-6).
fn shared(criterion: &mut Criterion) {
    let files = [0, 1, 16].map(|count| (format!("{count} count it"), shared_limits(count), known));
    decisions(criterion, "decision with shared limits", files, &NO_FIELDS);
}

/// Decisions on several threads at once. Each row: a rules file, how many clients of its own each
/// thread has, and so many threads that decide so often.
fn threads(criterion: &mut Criterion) {
    let rows = [
        // Two threads on different clients do at least 1.9 times what one does: the time for both
        // to do 100,000 decisions each, beside that of one alone.
        (
            "100,000 decisions a thread",
            RuleSet::default(),
            5_000,
            [("one thread", 1, 100_000), ("two threads", 2, 100_000)],
        ),
        // Eight threads on one shared count: at most 1 µs a decision, of the processor time of all
        // of them (SHARE-6). The figure is the time of 80,000 decisions, beside those of one
        // thread.
        (
            "80,000 decisions on one shared count",
            shared_limits(1),
            1_000,
            [("one thread", 1, 80_000), ("eight threads", 8, 10_000)],
        ),
    ];
    for (group, rules_file, clients, cases) in rows {
        let (rules, snapshot, table) = (rules(), snapshot(rules_file), Table::default());
        let work = |first: u32, decisions: u32| {
            for n in 0..decisions {
                let asked = ask(client(first + n % clients), &NO_FIELDS);
                let decided = decide(&rules, &snapshot, &table, &asked, at(u64::from(n)));
                let _ = std::hint::black_box(decided);
            }
        };
        let mut group = criterion.benchmark_group(group);
        group.sample_size(20);
        for (name, threads, decisions) in cases {
            let on_all = || {
                std::thread::scope(|scope| {
                    for thread in 1..threads {
                        scope.spawn(move || work(thread * 10_000, decisions));
                    }
                    work(0, decisions);
                });
            };
            group.bench_function(name, |bencher| bencher.iter(on_all));
        }
        group.finish();
    }
}

/// At most 2 ms with 10,000 bans, 20 ms with 100,000: what the control plane does for a new ban.
fn publish(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("publish one more ban");
    for count in [10_000, 100_000] {
        let index = bans(count);
        let netblock = Netblock::masked(IpAddr::from([203, 0, 113, 0]), 24);
        group.bench_function(format!("{count} held"), |bencher| {
            let next = || {
                let mut next = index.clone();
                next.set(netblock, Some(ban_until(START)));
                Arc::new(next)
            };
            bencher.iter_batched(|| (), |()| next(), BatchSize::PerIteration);
        });
    }
    group.finish();
}

criterion_group!(
    benches, decision, rules_file, literals, shared, threads, publish
);
criterion_main!(benches);
