use proptest::prelude::*;
use weir_shared::rules::{Matcher, NetList, Quota, RuleKind, Traps};
use weir_shared::window::{PerSpan, RuleSpan};

use crate::clients::charging::*;

impl Charging {
    /// Without rules.
    fn plain(&self, entry: &mut Entry, limits: &Limits, now: Now) -> Option<Exceeded> {
        let refused = self.charge(entry, limits, Counted::default(), now);
        refused.map(|refused| refused.exceeded)
    }
}

/// The start of a day.
const START: u64 = 1_795_219_200_000;

fn at(ms: u64) -> Now {
    Now {
        wall_ms: START + ms,
        mono_ns: 1 + ms * 1_000_000,
    }
}

fn limits(minute: Option<u64>, hour: Option<u64>, bytes: Option<u64>) -> Limits {
    Limits {
        requests: [minute, hour, None].into(),
        bytes: [bytes, None, None].into(),
    }
}

const REFUSE: Charging = Charging {
    on_limit: OnLimit::Refuse,
    bucket: None,
    max_under_way: None,
};

/// The naive twin: every request that passed, with its bytes, each question summed anew.
#[derive(Default)]
struct Twin {
    passed: Vec<(u64, u64)>,
}

impl Twin {
    /// Whether the estimate would be over with so many more.
    fn is_over(
        &self,
        length: u64,
        limit: u64,
        now: u64,
        more: u64,
        of: fn(&(u64, u64)) -> u64,
    ) -> bool {
        let sum = |bucket: u64| -> u64 {
            let inside = self.passed.iter().filter(|(at, _)| at / length == bucket);
            inside.map(of).sum()
        };
        let bucket = now / length;
        (sum(bucket) + more) * length + sum(bucket - 1) * (length - now % length) > limit * length
    }

    /// The name of the limit that refuses.
    fn refused(&self, limits: &Limits, now: u64) -> Option<&'static str> {
        for span in Span::ALL {
            let limit = *limits.requests.get(span);
            if limit.is_some_and(|limit| self.is_over(span.ms(), limit, now, 1, |_| 1)) {
                return Some(LimitKind::requests(span).name());
            }
        }
        for span in Span::ALL {
            let limit = *limits.bytes.get(span);
            if limit
                .is_some_and(|limit| self.is_over(span.ms(), limit, now, 0, |(_, bytes)| *bytes))
            {
                return Some(LimitKind::bytes(span).name());
            }
        }
        None
    }
}

proptest! {
    /// RULE-5: where the six limits only refuse, who is refused and by which limit agrees with a
    /// twin that remembers what passed; nothing else is counted; and a client that waits as long
    /// as it was told passes, one millisecond sooner it does not.
    #[test]
    fn refusing_limits_agree_with_their_naive_twin(
        minute in prop::option::of(1u64..6), hour in prop::option::of(1u64..20), byte_limit in prop::option::of(1u64..400),
        steps in prop::collection::vec((prop_oneof![0u64..200, 0u64..40_000, 0u64..2_000_000], 0u64..200), 1..60),
    ) {
        let limits = limits(minute, hour, byte_limit);
        let (mut entry, mut twin) = (Entry::new(0, START), Twin::default());
        let mut now = 0;
        for (step, bytes) in steps {
            now += step;
            let time = at(now);
            let found = REFUSE.plain(&mut entry, &limits, time);
            let told = twin.refused(&limits, time.wall_ms);
            prop_assert_eq!(found.map(|exceeded| exceeded.limit.name()), told);
            let Some(exceeded) = found else {
                twin.passed.push((time.wall_ms, bytes));
                REFUSE.charge_bytes(&mut entry, &limits, time.wall_ms, bytes, false);
                continue;
            };
            prop_assert!(!exceeded.bans && !exceeded.first);
            let wait = exceeded.fits_in_ms.unwrap();
            prop_assert!(wait > 0);
            let sooner = REFUSE.plain(&mut entry.clone(), &limits, at(now + wait - 1));
            prop_assert!(sooner.is_some());
            prop_assert_eq!(REFUSE.plain(&mut entry.clone(), &limits, at(now + wait)), None);
        }
    }
}

/// RULE-5, LIMIT-2: a limit that bans counts what the bucket refuses, and its ban comes first: a
/// bound a second makes nobody's ban late.
#[test]
fn a_ban_comes_before_a_refusal() {
    let charging = Charging {
        bucket: Some(BucketSize {
            per_second: 1,
            burst: 2,
        }),
        ..Charging::default()
    };
    let limits = limits(Some(4), None, None);
    let mut entry = Entry::new(0, START);
    let mut hits = Vec::new();
    for _ in 0..6 {
        let exceeded = charging.plain(&mut entry, &limits, at(0));
        hits.push(exceeded.map(|exceeded| (exceeded.limit.name(), exceeded.first)));
    }
    let [second, minute] = [("second", false), ("minute", true)].map(Some);
    assert_eq!(
        hits,
        [None, None, second, second, minute, Some(("minute", false))]
    );
    assert_eq!(entry.counts(START).requests, [6, 6, 6].into());
}

/// RULE-5: requests under way are bounded, and a bucket that is full again takes no memory.
#[test]
fn what_is_under_way_is_bounded_and_given_back() {
    let size = BucketSize {
        per_second: 1,
        burst: 1,
    };
    let charging = Charging {
        on_limit: OnLimit::Ban,
        bucket: Some(size),
        max_under_way: Some(1),
    };
    let none = Limits {
        requests: PerSpan::default(),
        bytes: PerSpan::default(),
    };
    let mut entry = Entry::new(0, START);
    assert_eq!(charging.plain(&mut entry, &none, at(0)), None);
    entry.begin_request();
    let refused = charging.plain(&mut entry, &none, at(0)).unwrap();
    assert_eq!((refused.limit, refused.value), (LimitHit::Concurrent, 1));
    assert_eq!(refused.fits_in_ms, Some(1000), "of both, the later");
    entry.end_request();
    assert_eq!(entry.under_way(), 0);
    let refused = charging.plain(&mut entry, &none, at(400)).unwrap();
    assert_eq!(
        (refused.limit, refused.fits_in_ms),
        (LimitHit::Second, Some(600))
    );
    entry.forget_idle(Some(size), at(900));
    assert!(entry.bucket().is_some());
    entry.forget_idle(Some(size), at(1000));
    assert!(entry.bucket().is_none());
    assert_eq!(charging.plain(&mut entry, &none, at(1000)), None);
    // A second end of a client that was dropped meanwhile does no harm.
    entry.end_request();
    assert_eq!(entry.under_way(), 0);
}

fn quotas(second: u64, minute: u64) -> Vec<Quota> {
    [(RuleSpan::Second, second), (RuleSpan::Minute, minute)]
        .map(|(span, limit)| Quota { span, limit })
        .into()
}

fn rule_set(limits: &[(&str, OnLimit, Vec<Quota>)]) -> RuleSet {
    let limits = limits.iter().map(|(name, on_limit, quotas)| Limit {
        rule: Arc::new(Rule::new(RuleKind::Limit, (*name).to_owned())),
        matcher: Matcher::default(),
        quotas: quotas.clone(),
        on_limit: *on_limit,
        per: Per::Client,
        spare_known: None,
    });
    let (allow, deny) = (NetList::default(), NetList::default());
    RuleSet::new(allow, deny, Traps::default(), limits.collect(), Vec::new())
}

/// All limits of a set: none of them has a matcher.
fn all(set: &RuleSet) -> Counted<'_> {
    Counted {
        limits: set.matched(&ANY).limits,
        jails: Some((set, &ANY)),
        other_site: false,
        crawler: None,
        sharing: None,
    }
}

const ANY: Asking<'static> = Asking {
    path: "/",
    method: &http::Method::GET,
    address: std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST),
    sent: &(),
};

/// Whether the estimate of those times at `now` is over a limit, with `more` at that moment.
fn is_over(times: &[u64], length: u64, limit: u64, now: u64, more: u64) -> bool {
    let twin = Twin {
        passed: times.iter().map(|at| (*at, 0)).collect(),
    };
    twin.is_over(length, limit, now, more, |_| 1)
}

proptest! {
    /// RULE-8: whatever comes from pages of other sites and from the client itself, in any order: a
    /// limit refuses by what both asked for, and bans only for a request of the client's own that
    /// is too many among those alone. A jail lets as many answers through as it allows, and one
    /// more only to ban for it. With a twin that remembers every request.
    #[test]
    fn other_sites_ban_nobody(
        minute in 1u64..6, hour in 1u64..12, per_minute in 1u64..6, jail in 1u64..6,
        steps in prop::collection::vec((prop_oneof![0u64..300, 0u64..5_000, 0u64..100_000], any::<bool>(), any::<bool>()), 1..80),
    ) {
        let of_minute = |limit| vec![Quota { span: RuleSpan::Minute, limit }];
        let jails = vec![Jail {
            rule: Arc::new(Rule::new(RuleKind::Jail, "jail".to_owned())),
            matcher: Matcher::default(),
            statuses: vec![http::StatusCode::UNAUTHORIZED],
            quotas: of_minute(jail),
            scope: weir_shared::ban::Scope::Client,
        }];
        let limit = Limit {
            rule: Arc::new(Rule::new(RuleKind::Limit, "limit".to_owned())),
            matcher: Matcher::default(),
            quotas: of_minute(per_minute),
            on_limit: OnLimit::Ban,
            per: Per::Client,
            spare_known: None,
        };
        let (allow, deny) = (NetList::default(), NetList::default());
        let set = RuleSet::new(allow, deny, Traps::default(), vec![limit], jails);
        let charging = Charging::default();
        let limits = limits(Some(minute), Some(hour), None);
        let mut entry = Entry::new(0, START);
        // Requests of all, and the client's own; answers that the jail counts likewise.
        let (mut all_asked, mut own_asked) = (Vec::new(), Vec::new());
        let (mut all_wrong, mut own_wrong) = (Vec::<u64>::new(), Vec::<u64>::new());
        let mut now = 0;
        for (step, other_site, wrong) in steps {
            now += step;
            let time = at(now);
            let at_ms = time.wall_ms;
            let counted = Counted { other_site, ..all(&set) };
            let refused = charging.charge(&mut entry, &limits, counted, time);
            all_asked.push(at_ms);
            if !other_site {
                own_asked.push(at_ms);
            }
            let over = |times: &[u64]| {
                is_over(times, 60_000, minute.min(per_minute), at_ms, 0) || is_over(times, 3_600_000, hour, at_ms, 0)
            };
            let full = is_over(&all_wrong, 60_000, jail, at_ms, 1);
            let would_ban = !other_site && is_over(&own_wrong, 60_000, jail, at_ms, 1)
                && !is_over(&own_wrong, 60_000, jail, at_ms, 0);
            let told = if over(&all_asked) {
                Some(if !other_site && over(&own_asked) { "ban" } else { "refuse" })
            } else if full && !would_ban {
                Some("jail")
            } else {
                None
            };
            let found = refused.map(|refused| {
                let of_jail = refused.rule.is_some_and(|rule| rule.kind == RuleKind::Jail);
                match refused.exceeded {
                    Exceeded { bans: true, .. } => "ban",
                    _ if of_jail => "jail",
                    _ => "refuse",
                }
            });
            prop_assert_eq!(found, told);
            if let Some(refused) = refused {
                prop_assert!(refused.exceeded.bans || !refused.exceeded.first);
                continue;
            }
            if wrong {
                all_wrong.push(at_ms);
                if !other_site {
                    own_wrong.push(at_ms);
                }
                let jail = set.jails(http::StatusCode::UNAUTHORIZED, &ANY, || None, None).next().unwrap();
                let exceeded = entry.charge_rule(&jail.rule, &jail.quotas, at_ms, other_site);
                prop_assert_eq!(exceeded.is_some_and(|exceeded| exceeded.bans), would_ban);
            }
        }
    }

    /// RULE-8, LIMIT-5: the same for bytes, which are known when an answer has ended: over a limit
    /// nothing passes until they fit, whoever asked for them.
    #[test]
    fn bytes_of_other_sites_ban_nobody(
        limit in 1u64..400,
        steps in prop::collection::vec((prop_oneof![0u64..300, 0u64..100_000], any::<bool>(), 0u64..200), 1..60),
    ) {
        let (charging, limits) = (Charging::default(), limits(None, None, Some(limit)));
        let mut entry = Entry::new(0, START);
        let (mut all, mut own) = (Twin::default(), Twin::default());
        let mut now = 0;
        for (step, other_site, bytes) in steps {
            now += step;
            let time = at(now);
            let is_over = |twin: &Twin| twin.is_over(60_000, limit, time.wall_ms, 0, |(_, bytes)| *bytes);
            let counted = Counted { other_site, ..Counted::default() };
            let refused = charging.charge(&mut entry, &limits, counted, time);
            prop_assert_eq!(refused.is_some(), is_over(&all));
            if let Some(refused) = refused {
                prop_assert!(!refused.exceeded.bans);
                prop_assert_eq!(refused.exceeded.limit.name(), "minute_bytes");
                continue;
            }
            all.passed.push((time.wall_ms, bytes));
            if !other_site {
                own.passed.push((time.wall_ms, bytes));
            }
            let exceeded = charging.charge_bytes(&mut entry, &limits, time.wall_ms, bytes, other_site);
            let is_over = |twin: &Twin| twin.is_over(60_000, limit, time.wall_ms, 0, |(_, bytes)| *bytes);
            prop_assert_eq!(exceeded.is_some(), is_over(&all));
            prop_assert_eq!(exceeded.is_some_and(|exceeded| exceeded.bans), !other_site && is_over(&own));
        }
    }
}

proptest! {
    /// RULE-2, LIMIT-2: a limit that refuses counts what passes, one that bans counts everything,
    /// and its ban comes first; with a twin that remembers every request.
    #[test]
    fn rule_limits_agree_with_their_naive_twin(
        refusing in (1u64..4, 1u64..8), banning in (1u64..6, 1u64..12),
        steps in prop::collection::vec(prop_oneof![0u64..300, 0u64..5_000, 0u64..100_000], 1..60),
    ) {
        let set = rule_set(&[
            ("refuse", OnLimit::Refuse, quotas(refusing.0, refusing.1)),
            ("ban", OnLimit::Ban, quotas(banning.0, banning.1)),
        ]);
        let charging = Charging::default();
        let none = limits(None, None, None);
        let mut entry = Entry::new(0, START);
        let (mut passed, mut counted) = (Twin::default(), Twin::default());
        let mut now = 0;
        for step in steps {
            now += step;
            let time = at(now);
            let refused = charging.charge(&mut entry, &none, all(&set), time);
            counted.passed.push((time.wall_ms, 0));
            let over = |twin: &Twin, (second, minute): (u64, u64), more: u64| {
                twin.is_over(1000, second, time.wall_ms, more, |_| 1) || twin.is_over(60_000, minute, time.wall_ms, more, |_| 1)
            };
            let told = if over(&counted, banning, 0) {
                Some("ban")
            } else if over(&passed, refusing, 1) {
                Some("refuse")
            } else {
                passed.passed.push((time.wall_ms, 0));
                None
            };
            prop_assert_eq!(refused.and_then(|refused| Some(refused.rule?.name.as_str())), told);
            if let Some(refused) = refused.filter(|refused| !refused.exceeded.bans) {
                let wait = refused.exceeded.fits_in_ms.unwrap();
                let alone = rule_set(&[("refuse", OnLimit::Refuse, quotas(refusing.0, refusing.1))]);
                let at_end = charging.charge(&mut entry.clone(), &none, all(&alone), at(now + wait));
                prop_assert_eq!(at_end, None);
                let sooner = charging.charge(&mut entry.clone(), &none, all(&alone), at(now + wait - 1));
                prop_assert!(sooner.is_some());
            }
        }
    }
}

proptest! {
    /// LIMIT-2, RULE-2: each limit that bans counts every request, also one that another limit has
    /// refused: the first of them that is over bans, those of the settings before those of the
    /// rules. A twin sums every request for each of them.
    #[test]
    fn banning_limits_count_beside_each_other(
        minute in 1u64..6, first in (1u64..4, 1u64..12), second in (1u64..4, 1u64..12),
        steps in prop::collection::vec(prop_oneof![0u64..300, 0u64..40_000, 0u64..2_000_000], 1..60),
    ) {
        let windows = |(second, hour)| [(RuleSpan::Second, second), (RuleSpan::Hour, hour)];
        let banning = |quotas| windows(quotas).map(|(span, limit)| Quota { span, limit }).into();
        let set = rule_set(&[
            ("first", OnLimit::Ban, banning(first)),
            ("second", OnLimit::Ban, banning(second)),
        ]);
        let limits = limits(Some(minute), None, None);
        let (mut entry, mut twin) = (Entry::new(0, START), Twin::default());
        let mut now = 0;
        for step in steps {
            now += step;
            let time = at(now);
            let charging = Charging::default();
            let refused = charging.charge(&mut entry, &limits, all(&set), time);
            twin.passed.push((time.wall_ms, 0));
            let over = |length, limit| twin.is_over(length, limit, time.wall_ms, 0, |_| 1);
            let is_over = |(second, hour)| over(1000, second) || over(3_600_000, hour);
            let told = if over(60_000, minute) {
                Some("settings")
            } else if is_over(first) {
                Some("first")
            } else {
                is_over(second).then_some("second")
            };
            let name = |refused: Refused<'_>| refused.rule.map_or("settings".to_owned(), |rule| rule.name.clone());
            prop_assert_eq!(refused.map(name), told.map(str::to_owned));
        }
    }
}

/// RULE-2: a client has memory for a rule only while the rule has counted something of it.
#[test]
fn counts_are_given_back_when_they_are_past() {
    let set = rule_set(&[("login", OnLimit::Ban, quotas(9, 9))]);
    let mut entry = Entry::new(0, START);
    let none = limits(None, None, None);
    assert!(!entry.has_further());
    Charging::default().charge(&mut entry, &none, all(&set), at(0));
    assert!(entry.has_further());
    entry.forget_idle(None, at(119_999));
    assert!(
        entry.has_further(),
        "the earlier bucket of the minute still counts"
    );
    entry.forget_idle(None, at(120_000));
    assert!(!entry.has_further());
    Charging::default().charge(&mut entry, &none, all(&set), at(0));
    entry.reset(1, None);
    assert!(!entry.has_further(), "a ban forgets what was counted");
}
