use std::collections::HashMap;

use http::{HeaderMap, HeaderName};
use proptest::prelude::*;
use weir_shared::lookup::{AsNumber, Country};
use weir_shared::rules::{Matcher, RuleKind};
use weir_shared::window::{RuleSpan, Window};

use super::telling::MAX_REFUSALS;
use super::*;

const NOW: u64 = 1_795_276_800_000;
const PREFIXES: PrefixLengths = PrefixLengths { v4: 24, v6: 56 };

fn at(wall_ms: u64) -> Now {
    Now {
        wall_ms,
        mono_ns: wall_ms * 1_000_000,
    }
}

fn limit(name: &str, per: Per, on_limit: OnLimit, quotas: &[(RuleSpan, u64)]) -> Limit {
    Limit {
        rule: Arc::new(Rule::new(RuleKind::Limit, name.to_owned())),
        matcher: Matcher::default(),
        quotas: (quotas.iter())
            .map(|(span, limit)| Quota {
                span: *span,
                limit: *limit,
            })
            .collect(),
        on_limit,
        per,
        spare_known: None,
    }
}

fn refuse(name: &str, per: Per, per_minute: u64) -> Limit {
    limit(
        name,
        per,
        OnLimit::Refuse,
        &[(RuleSpan::Minute, per_minute)],
    )
}

fn nobody_known() -> &'static KnownClients {
    static NOBODY: std::sync::LazyLock<KnownClients> =
        std::sync::LazyLock::new(KnownClients::default);
    &NOBODY
}

fn sharing<'a>(counts: &'a SharedCounts, client: Client, sent: &'a dyn Sent) -> Sharing<'a> {
    Sharing {
        counts,
        known: nobody_known(),
        client,
        prefixes: PREFIXES,
        sent,
        only_asks: false,
    }
}

fn client(number: u32) -> Client {
    Client::V4(number)
}

/// SHARE-6: of `limit` + 1 requests of as many clients at one moment, on eight threads, one is
/// refused.
#[test]
fn of_one_too_many_one_is_refused() {
    let counts = SharedCounts::default();
    let limits = [refuse("all", Per::All, 7_999)];
    let refused: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8u32)
            .map(|thread| {
                let (counts, limits) = (&counts, &limits);
                scope.spawn(move || {
                    let refused = (0..1_000u32).filter(|request| {
                        let sharing = sharing(counts, client(thread * 1_000 + request), &());
                        let taken = sharing.take(
                            limits.iter(),
                            (Origin::default(), Standing::default()),
                            at(NOW),
                        );
                        taken.is_some()
                    });
                    refused.count()
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .sum()
    });
    assert_eq!(refused, 1);
}

/// SHARE-1: each `per` has its own counts; clients without a country, and requests without the
/// field, are one key each; of a repeated field the first line counts.
#[test]
fn who_is_counted_together() {
    let key = HeaderName::from_static("x-api-key");
    let field = |lines: &[&str]| {
        let mut map = HeaderMap::new();
        for line in lines {
            map.append(&key, line.parse().unwrap());
        }
        map
    };
    let origin = |asn: u32, country: &str| Origin {
        asn: AsNumber::new(asn),
        country: country.parse::<Country>().ok(),
    };
    let none = field(&[]);
    let (one, two, twice) = (field(&["a"]), field(&["b"]), field(&["a", "b"]));
    // The first of each pair is counted, and the second meets the same count, or another.
    let cases = [
        (
            Per::Netblock,
            (1, origin(1, "DE"), &none),
            (255, origin(2, "FR"), &none),
            true,
        ),
        (
            Per::Netblock,
            (1, origin(1, "DE"), &none),
            (256, origin(1, "DE"), &none),
            false,
        ),
        (
            Per::Asn,
            (1, origin(1, "DE"), &none),
            (9_999, origin(1, "FR"), &none),
            true,
        ),
        (
            Per::Asn,
            (1, origin(1, "DE"), &none),
            (1, origin(2, "DE"), &none),
            false,
        ),
        (
            Per::Country,
            (1, origin(1, "DE"), &none),
            (9_999, origin(2, "DE"), &none),
            true,
        ),
        (
            Per::Country,
            (1, origin(1, "DE"), &none),
            (1, Origin::default(), &none),
            false,
        ),
        (
            Per::Country,
            (1, Origin::default(), &none),
            (9_999, Origin::default(), &none),
            true,
        ),
        (
            Per::All,
            (1, origin(1, "DE"), &one),
            (9_999, origin(2, "FR"), &two),
            true,
        ),
        (
            Per::Field(key.clone()),
            (1, origin(1, "DE"), &one),
            (9_999, origin(2, "FR"), &twice),
            true,
        ),
        (
            Per::Field(key.clone()),
            (1, origin(1, "DE"), &one),
            (1, origin(1, "DE"), &two),
            false,
        ),
        (
            Per::Field(key.clone()),
            (1, origin(1, "DE"), &none),
            (9_999, origin(2, "FR"), &none),
            true,
        ),
        (
            Per::Field(key),
            (1, origin(1, "DE"), &none),
            (1, origin(1, "DE"), &one),
            false,
        ),
    ];
    for (per, first, second, together) in cases {
        let counts = SharedCounts::default();
        let limits = [refuse("one", per.clone(), 1)];
        let ask = |(who, origin, sent): (u32, Origin, &HeaderMap)| {
            let taken = sharing(&counts, client(who), sent).take(
                limits.iter(),
                (origin, Standing::default()),
                at(NOW),
            );
            taken.map(|full| full.key.per())
        };
        assert_eq!(ask(first), None, "{per:?}");
        assert_eq!(ask(second).is_some(), together, "{per:?} {second:?}");
    }
}

/// SHARE-2: what one limit refuses counts in no other.
#[test]
fn what_is_refused_counts_nowhere() {
    let counts = SharedCounts::default();
    let limits = [
        refuse("narrow", Per::Netblock, 1),
        refuse("wide", Per::All, 3),
    ];
    let names: Vec<_> = [1, 2, 3, 300, 600, 900]
        .into_iter()
        .map(|who| {
            let taken = sharing(&counts, client(who), &()).take(
                limits.iter(),
                (Origin::default(), Standing::default()),
                at(NOW),
            );
            taken.map(|full| full.rule.name.clone())
        })
        .collect();
    let narrow = || Some("narrow".to_owned());
    let wide = Some("wide".to_owned());
    assert_eq!(names, [None, narrow(), narrow(), None, None, wide]);
}

/// SHARE-5: the key that was seen longest ago goes first; that of all clients never, though it
/// counts.
#[test]
fn the_key_seen_longest_ago_goes() {
    let counts = SharedCounts::with_capacity(4);
    let limits = [
        refuse("all", Per::All, 100),
        refuse("block", Per::Netblock, 1),
    ];
    let mut ask = |block: u32| {
        let taken = sharing(&counts, client(block << 8), &()).take(
            limits.iter(),
            (Origin::default(), Standing::default()),
            at(NOW),
        );
        taken.is_some()
    };
    assert_eq!([1, 2, 3].map(&mut ask), [false; 3]);
    // 1 is seen again, so 2 makes room for 4 and is counted anew.
    assert!(ask(1));
    assert_eq!([4, 1, 2].map(&mut ask), [false, true, false]);
    let usage = counts.usage(NOW);
    assert_eq!((usage.counts(), usage.evicted), (4, 2));
    let of_all = usage.rules.iter().find(|of| of.rule.name == "all").unwrap();
    assert!((of_all.ratio - 0.05).abs() < 1e-9, "{}", of_all.ratio);
}

/// SHARE-5: a count of all clients that comes late has its room from the others.
#[test]
fn the_bound_holds_for_a_late_count_of_all() {
    let counts = SharedCounts::with_capacity(3);
    let (block, all) = (
        [refuse("block", Per::Netblock, 9)],
        [refuse("all", Per::All, 9)],
    );
    let ask = |limits: &[Limit], block: u32| {
        let sharing = sharing(&counts, client(block << 8), &());
        let who = (Origin::default(), Standing::default());
        assert_eq!(sharing.take(limits.iter(), who, at(NOW)), None);
    };
    (1..=5).for_each(|number| ask(&block, number));
    ask(&all, 1);
    let usage = counts.usage(NOW);
    assert_eq!((usage.counts(), usage.evicted), (3, 3));
}

/// SHARE-8: of more keys than wait at once to be told, each is told: with its first refusal, or
/// with the next one once there is room.
#[test]
fn every_key_that_is_refused_is_told() {
    let counts = SharedCounts::default();
    let limits = [refuse("block", Per::Netblock, 1)];
    let keys = u32::try_from(MAX_REFUSALS).unwrap() + 500;
    let ask = |block: u32| {
        let sharing = sharing(&counts, client(block << 8), &());
        let who = (Origin::default(), Standing::default());
        sharing.take(limits.iter(), who, at(NOW)).is_some()
    };
    assert!((0..keys).all(|block| !ask(block)));
    assert!((0..keys).all(ask));
    let mut told = counts.take_refusals();
    assert_eq!(told.len(), MAX_REFUSALS);
    assert!((0..keys).all(ask));
    told.append(&mut counts.take_refusals());
    assert!((0..keys).all(ask));
    assert!(counts.take_refusals().is_empty());
    let told: std::collections::HashSet<_> = told.iter().map(|of| of.key).collect();
    assert_eq!(told.len(), keys as usize);
}

/// SHARE-2, RULE-8: a limit of a netblock bans once its clients' own requests are too many, never
/// for what pages of other sites asked for, which it refuses.
#[test]
fn a_netblock_is_banned_for_its_own_requests() {
    let counts = SharedCounts::default();
    let limits = [limit(
        "subnet",
        Per::Netblock,
        OnLimit::Ban,
        &[(RuleSpan::Minute, 2)],
    )];
    let ask = |who, other_site| {
        let sharing = sharing(&counts, client(who), &());
        let full = sharing.charge_bans(limits.iter(), Origin::default(), other_site, at(NOW));
        full.map(|full| full.bans)
    };
    assert_eq!(
        [ask(1, true), ask(2, true), ask(3, true)],
        [None, None, Some(false)]
    );
    assert_eq!([ask(4, false), ask(5, false)], [Some(false), Some(false)]);
    assert_eq!(ask(6, true), Some(false));
    assert_eq!(ask(7, false), Some(true));
    // A ban of one client says nothing of its neighbours.
    counts.forget_netblock_of(client(1), Netblock::alone(client(1)), None);
    assert_eq!(ask(8, false), Some(true));
    // All of its clients begin anew once the ban of the netblock is there (LIMIT-6).
    let netblock = Netblock::of(client(1), PREFIXES);
    counts.forget_netblock_of(client(1), netblock, None);
    assert_eq!(ask(9, false), None);
}

/// SHARE-7: the refused are told the time until it fits, and up to a quarter more, each another.
#[test]
fn the_refused_come_back_at_different_times() {
    let counts = SharedCounts::default();
    let limits = [refuse("all", Per::All, 1)];
    let waits: Vec<u64> = (0..100)
        .filter_map(|who| {
            let sharing = sharing(&counts, client(who), &());
            sharing
                .take(
                    limits.iter(),
                    (Origin::default(), Standing::default()),
                    at(NOW),
                )?
                .fits_in_ms
        })
        .collect();
    let window = Window {
        start_ms: NOW - NOW % 60_000,
        current: 1,
        previous: 0,
    };
    let fits = window.fits_in(RuleSpan::Minute, NOW, 1, 1).unwrap();
    assert_eq!(waits.len(), 99);
    assert!(
        waits
            .iter()
            .all(|wait| (fits..=fits + fits / 4).contains(wait)),
        "{waits:?}"
    );
    let different: std::collections::HashSet<_> = waits.iter().collect();
    assert!(different.len() > 50, "{}", different.len());
}

/// CONTROL-5: a question counts nothing, and is answered as a request would be.
#[test]
fn a_question_counts_nothing() {
    let counts = SharedCounts::default();
    let limits = [
        refuse("all", Per::All, 1),
        refuse("block", Per::Netblock, 9),
    ];
    let ask = |only_asks| {
        let sharing = Sharing {
            only_asks,
            ..sharing(&counts, client(1), &())
        };
        sharing
            .take(
                limits.iter(),
                (Origin::default(), Standing::default()),
                at(NOW),
            )
            .is_some()
    };
    assert_eq!(
        [ask(true), ask(true), ask(false), ask(true)],
        [false, false, false, true]
    );
    assert_eq!(counts.usage(NOW).counts(), 2);
}

/// Known since an hour ago.
fn known() -> Standing {
    Standing {
        since_ms: Some(NOW - 3_600_000),
        passed: 5,
        refused: 4,
    }
}

/// SHARE-4: known clients have a second count of the same size, for what the first has no room for;
/// then they are refused too. Strangers are refused by the first. Who is remembered is known, too.
#[test]
fn known_clients_have_a_second_count() {
    let counts = SharedCounts::default();
    let limits = [Limit {
        spare_known: Some(Duration::from_secs(600)),
        ..refuse("all", Per::All, 2)
    }];
    let ask = |who, standing, known: &KnownClients| {
        let sharing = Sharing {
            known,
            ..sharing(&counts, client(who), &())
        };
        let full = sharing.take(limits.iter(), (Origin::default(), standing), at(NOW));
        full.is_none()
    };
    let stranger = Standing {
        since_ms: Some(NOW - 600_000),
        ..known()
    };
    assert_eq!(
        [1, 2, 3].map(|who| ask(who, stranger, nobody_known())),
        [true, true, false]
    );
    assert!(ask(4, known(), nobody_known()));
    assert!(!ask(5, stranger, nobody_known()));
    let remembered = KnownClients::default();
    remembered.note(
        client(6),
        true,
        known(),
        Some(Duration::from_secs(600)),
        at(NOW),
    );
    assert!(ask(6, Standing::default(), &remembered));
    assert!(!ask(7, known(), nobody_known()), "the second is full");
    let usage = counts.usage(NOW);
    assert_eq!(usage.rules.len(), 1);
    assert!((usage.rules[0].ratio - 1.0).abs() < 1e-9);
}

/// SHARE-4: a request that another limit refuses is counted neither in a first nor in a second
/// count.
#[test]
fn a_second_count_counts_what_passes_all() {
    let counts = SharedCounts::default();
    let limits = [
        Limit {
            spare_known: Some(Duration::from_secs(600)),
            ..refuse("spares", Per::All, 1)
        },
        refuse("block", Per::Netblock, 1),
    ];
    let ask = |who| {
        let sharing = sharing(&counts, client(who), &());
        let full = sharing.take(limits.iter(), (Origin::default(), known()), at(NOW));
        full.map(|full| full.rule.name.clone())
    };
    assert_eq!(ask(1), None);
    for _ in 0..3 {
        assert_eq!(ask(1).as_deref(), Some("block"));
    }
    assert_eq!(ask(1 << 8), None);
    assert_eq!(ask(2 << 8).as_deref(), Some("spares"));
}

proptest! {
    /// SHARE-1, SHARE-6: the counts agree with a naive twin: for each key and window, two numbers.
    #[test]
    fn counts_agree_with_a_naive_twin(
        requests in prop::collection::vec((0u32..4, 0u32..3, 0u64..40_000), 1..200),
        (block, minute, hour) in (1u64..5, 1u64..8, 1u64..20),
    ) {
        let counts = SharedCounts::default();
        let limits = [
            refuse("block", Per::Netblock, block),
            limit("all", Per::All, OnLimit::Refuse, &[(RuleSpan::Minute, minute), (RuleSpan::Hour, hour)]),
        ];
        let mut twin: HashMap<(&str, u32, RuleSpan), Window> = HashMap::new();
        let mut now = NOW;
        for (net, host, later) in requests {
            now += later;
            let windows = [
                (("block", net, RuleSpan::Minute), block),
                (("all", 0, RuleSpan::Minute), minute),
                (("all", 0, RuleSpan::Hour), hour),
            ];
            let has_room = windows.iter().all(|(key, limit)| {
                let mut window = twin.get(key).copied().unwrap_or_default();
                window.add(key.2, now, 1);
                !window.is_over(key.2, now, *limit)
            });
            let sharing = sharing(&counts, client(net << 8 | host), &());
            let taken = sharing.take(limits.iter(), (Origin::default(), Standing::default()), at(now));
            prop_assert_eq!(taken.is_none(), has_room);
            if has_room {
                for (key, _) in windows {
                    twin.entry(key).or_default().add(key.2, now, 1);
                }
            }
        }
    }
}
