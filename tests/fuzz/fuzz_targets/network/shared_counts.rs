//! Counts that clients share: whether a request passes is what a plain list of all that were
//! counted says (SHARE-1, SHARE-2, SHARE-4, SHARE-6).
//!
//! The first four bytes are the limits. Then each request is three bytes: who asks; which key it
//! sends, whether the page of another site had it ask, and whether the client is known; and how
//! much later it comes.
#![no_main]

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use libfuzzer_sys::fuzz_target;
use weir_dataplane::fuzzing::clients::{KnownClients, SharedCounts, Sharing, Standing};
use weir_fuzz::text;
use weir_shared::client::Client;
use weir_shared::clock::Now;
use weir_shared::lookup::Origin;
use weir_shared::netblock::PrefixLengths;
use weir_shared::rules::{Limit, Matcher, Per, Quota, Rule, RuleKind};
use weir_shared::settings::OnLimit;
use weir_shared::window::{Length, RuleSpan};

const BEGIN: u64 = 1_795_276_800_000;
const KEY: HeaderName = HeaderName::from_static("x-key");

/// One that was counted: by which count of which limit, when, and whether another site asked.
struct Counted {
    limit: usize,
    key: u32,
    second: bool,
    at: u64,
    other_site: bool,
}

/// All that were counted.
#[derive(Default)]
struct Plain(Vec<Counted>);

impl Plain {
    /// Whether so many more are too many for one of the windows: those of the bucket that the
    /// moment lies in, and of the one before by the share that is still covered.
    fn is_over(
        &self,
        limit: &Limit,
        (number, key, second): (usize, u32, bool),
        (now, more, own): (u64, u64, bool),
    ) -> bool {
        let of = |one: &&Counted| {
            (one.limit, one.key, one.second) == (number, key, second) && !(own && one.other_site)
        };
        limit.quotas.iter().any(|quota| {
            let length = quota.span.ms();
            let start = now - now % length;
            let within = |from: u64, to: u64| {
                let times = self.0.iter().filter(of).map(|one| one.at);
                times.filter(|at| (from..to).contains(at)).count() as u64
            };
            let current = within(start, start + length) + more;
            let previous = within(start - length, start);
            current * length + previous * (length - (now - start)) > quota.limit * length
        })
    }
}

fn limit(name: &str, per: Per, quotas: &[(RuleSpan, u8)]) -> Limit {
    let quota = |(span, limit): &(RuleSpan, u8)| Quota {
        span: *span,
        limit: u64::from(limit % 8) + 1,
    };
    Limit {
        rule: Arc::new(Rule::new(RuleKind::Limit, name.to_owned())),
        matcher: Matcher::default(),
        quotas: quotas.iter().map(quota).collect(),
        on_limit: OnLimit::Refuse,
        per,
        spare_known: None,
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Some(([block, all, key, bans], requests)) = bytes.split_first_chunk::<4>() else {
        return;
    };
    let minute = RuleSpan::Minute;
    let limits = [
        limit("block", Per::Netblock, &[(minute, *block)]),
        Limit {
            spare_known: Some(Duration::from_secs(600)),
            ..limit(
                "all",
                Per::All,
                &[(minute, *all), (RuleSpan::Hour, all >> 3)],
            )
        },
        limit("key", Per::Field(KEY), &[(RuleSpan::Second, *key)]),
        Limit {
            on_limit: OnLimit::Ban,
            ..limit("bans", Per::Netblock, &[(minute, *bans)])
        },
    ];
    let (counts, known) = (SharedCounts::default(), KnownClients::default());
    let mut plain = Plain::default();
    let mut now = BEGIN;
    for request in requests.as_chunks::<3>().0.iter().take(300) {
        let [who, how, later] = *request;
        // Up to four minutes, mostly less.
        now += u64::from(later) * u64::from(later) * 4;
        let (block, other_site, is_known) = (u32::from(who & 3), how & 4 != 0, how & 8 != 0);
        let mut sent = HeaderMap::new();
        if how & 3 != 0 {
            sent.insert(KEY, HeaderValue::from(u16::from(how & 3)));
        }
        let sharing = Sharing {
            counts: &counts,
            known: &known,
            client: Client::V4(block << 8 | u32::from(who >> 2)),
            prefixes: PrefixLengths { v4: 24, v6: 56 },
            sent: &sent,
            only_asks: false,
        };
        let moment = Now {
            wall_ms: now,
            mono_ns: now * 1_000_000,
        };
        let standing = Standing {
            since_ms: Some(now - 3_600_000),
            passed: u64::from(is_known),
            refused: 0,
        };
        let of = [block, 0, u32::from(how & 3), block];
        let at = |limit: usize, second| Counted {
            limit,
            key: of[limit],
            second,
            at: now,
            other_site,
        };

        let over = plain.is_over(&limits[3], (3, block, false), (now, 1, false));
        plain.0.push(at(3, false));
        let own = plain.is_over(&limits[3], (3, block, false), (now, 0, true));
        let full = sharing.charge_bans(limits.iter(), Origin::default(), other_site, moment);
        assert_eq!(full.is_some(), over, "{}", text(bytes));
        if let Some(full) = full {
            assert_eq!(full.bans, own && !other_site, "{}", text(bytes));
            continue;
        }

        let room = [0, 1, 2].map(|number| {
            let is_full = |second| {
                let count = (number, of[number], second);
                plain.is_over(&limits[number], count, (now, 1, false))
            };
            let spares = number == 1 && is_known;
            match (is_full(false), spares) {
                (false, _) => Some(false),
                (true, true) if !is_full(true) => Some(true),
                (true, _) => None,
            }
        });
        let refused = sharing.take(limits.iter(), (Origin::default(), standing), moment);
        let first = room.iter().position(Option::is_none);
        let found = refused.map(|full| full.rule.name.clone());
        let expected = first.map(|number| limits[number].rule.name.clone());
        assert_eq!(found, expected, "{}", text(bytes));
        if first.is_none() {
            for (number, second) in room.into_iter().enumerate() {
                plain.0.push(at(number, second == Some(true)));
            }
        }
    }
});
