//! Anomalies: unusual traffic, which raises an alert and is not refused (ALERT-1..3).
//!
//! The control loop passes finished requests and the time, and gets back the counts that went over
//! a threshold. `alert/mod.rs` writes and bounds alerts; `alert/document.rs` keeps counters and
//! cooldowns over a restart.

use weir_shared::client::Client;
use weir_shared::event::Finished;
use weir_shared::netblock::{Netblock, PrefixLengths};
use weir_shared::settings::{self, Settings, Thresholds};
use weir_shared::units::Time;

use cooldown::{Cooldowns, Summary};
use counters::Counters;
use watch::Watches;

pub(crate) mod cooldown;
pub(crate) mod counters;
mod scope;
pub(crate) mod shared;
pub(crate) mod watch;

pub use cooldown::Cooldown;
pub use counters::Counter;
pub use scope::{Measure, Scope};

/// A count over its threshold, for an alert.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Over {
    pub(crate) scope: Scope,
    /// The name of a watched netblock.
    pub(crate) watch: Option<String>,
    pub(crate) measure: Measure,
    /// The estimate, rounded down.
    pub(crate) count: u64,
    pub(crate) threshold: u64,
    /// The time until which further alerts of this scope are held back.
    pub(crate) cooldown_ends: Time,
}

/// Counters, cooldowns, and the operator's settings.
pub(crate) struct Anomalies {
    settings: settings::Anomalies,
    prefixes: PrefixLengths,
    watches: Watches,
    counters: Counters,
    cooldowns: Cooldowns,
}

impl Anomalies {
    pub(crate) fn new(settings: &Settings, now_ms: u64) -> Self {
        let anomalies = settings.anomalies.clone();
        Self {
            prefixes: settings.bans.prefixes,
            watches: Watches::new(&anomalies.watch_nets),
            counters: Counters::default(),
            cooldowns: Cooldowns::new(anomalies.cooldown, now_ms),
            settings: anomalies,
        }
    }

    /// Applies these settings. Counts and running cooldowns continue; new cooldowns have the new
    /// length.
    pub(crate) fn take_settings(&mut self, settings: &Settings) {
        self.settings = settings.anomalies.clone();
        self.prefixes = settings.bans.prefixes;
        self.watches = Watches::new(&self.settings.watch_nets);
        self.cooldowns.set_length(self.settings.cooldown);
    }

    /// Counts one finished request in each of its scopes. Calls `tell` for each count that went
    /// over its threshold outside of a cooldown.
    pub(crate) fn count(&mut self, finished: &Finished, now_ms: u64, mut tell: impl FnMut(Over)) {
        let client = Client::of(finished.address);
        let asn = finished
            .lookup
            .as_ref()
            .filter(|lookup| lookup.country.is_some())
            .and_then(|lookup| lookup.as_number());
        let (bytes, settings) = (finished.bytes, &self.settings);
        let netblock = || Netblock::of(client, self.prefixes);
        let scopes = [
            Some((Scope::Client(client), &settings.client)),
            settings
                .net
                .is_on()
                .then(|| (Scope::Net(netblock()), &settings.net)),
            asn.map(|asn| (Scope::Asn(asn.number()), &settings.asn)),
            Some((Scope::Total, &settings.total)),
        ];
        let on = |(_, thresholds): &(Scope, &Thresholds)| thresholds.is_on();
        for (scope, thresholds) in scopes.into_iter().flatten().filter(on) {
            count_one(
                &mut self.counters,
                &mut self.cooldowns,
                (scope, None),
                thresholds,
                bytes,
                now_ms,
                &mut tell,
            );
        }
        if settings.watch.is_on() {
            for watch in self.watches.covering(finished.address) {
                count_one(
                    &mut self.counters,
                    &mut self.cooldowns,
                    (Scope::Watch(watch.netblock), Some(&watch.name)),
                    &settings.watch,
                    bytes,
                    now_ms,
                    &mut tell,
                );
            }
        }
    }

    /// At the end of a clock hour: returns the alerts that its cooldowns held back, and drops those
    /// that have ended.
    pub(crate) fn turn(&mut self, now_ms: u64) -> Option<Summary> {
        self.cooldowns.turn(now_ms)
    }

    pub(crate) fn counters(&mut self) -> &mut Counters {
        &mut self.counters
    }

    pub(crate) fn cooldowns(&mut self) -> &mut Cooldowns {
        &mut self.cooldowns
    }
}

fn count_one(
    counters: &mut Counters,
    cooldowns: &mut Cooldowns,
    (scope, watch): (Scope, Option<&str>),
    thresholds: &Thresholds,
    bytes: u64,
    now_ms: u64,
    tell: &mut impl FnMut(Over),
) {
    let counter = counters.seen(scope);
    for (measure, window) in Measure::ALL.into_iter().zip(&mut counter.windows) {
        // A window without a threshold counts as well: a threshold set later finds the hour as it
        // was.
        window.add(measure.span(), now_ms, measure.amount(bytes));
        let Some(threshold) = measure.threshold(thresholds) else {
            continue;
        };
        if window.is_over(measure.span(), now_ms, threshold)
            && let Some(cooldown_ends) = cooldowns.over(scope, measure, now_ms)
        {
            tell(Over {
                scope,
                watch: watch.map(str::to_owned),
                measure,
                count: window.estimate(measure.span(), now_ms),
                threshold,
                cooldown_ends,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use proptest::prelude::*;
    use weir_shared::lookup::Lookup;
    use weir_shared::settings::WatchNet;

    use super::*;
    use crate::testing::{NOW, settings};

    const MINUTE: u64 = 60_000;
    const HOUR: u64 = 3_600_000;

    fn thresholds(requests: [Option<u64>; 2], bytes: [Option<u64>; 2]) -> Thresholds {
        Thresholds { requests, bytes }
    }

    fn per_minute(requests: u64) -> Thresholds {
        thresholds([Some(requests), None], [None; 2])
    }

    fn anomalies(set: impl FnOnce(&mut settings::Anomalies)) -> Anomalies {
        let mut settings = settings();
        settings.anomalies.cooldown = Duration::from_secs(3600);
        set(&mut settings.anomalies);
        Anomalies::new(&settings, NOW)
    }

    fn finished(address: &str, bytes: u64) -> Finished {
        Finished {
            address: address.parse().unwrap(),
            lookup: None,
            bytes,
        }
    }

    fn of_asn(address: &str, country: Option<&str>, asn: &str) -> Finished {
        Finished {
            lookup: Some(Arc::new(Lookup {
                country: country.map(str::to_owned),
                asn: Some(asn.to_owned()),
                as_name: None,
            })),
            ..finished(address, 0)
        }
    }

    fn count(anomalies: &mut Anomalies, finished: &Finished, now_ms: u64) -> Vec<Over> {
        let mut told = Vec::new();
        anomalies.count(finished, now_ms, |over| told.push(over));
        told
    }

    fn told(over: &[Over]) -> Vec<String> {
        over.iter()
            .map(|over| {
                let of = over.scope.of().unwrap_or_default();
                format!("{} {of} {}", over.scope.kind(), over.measure.name())
            })
            .collect()
    }

    /// ALERT-1: every scope is counted by itself, an IPv6 client as its /64. A count above the
    /// threshold raises an alert, which has both numbers.
    #[test]
    fn each_scope_counts_apart() {
        let mut anomalies = anomalies(|set| {
            set.client = per_minute(2);
            set.net = per_minute(3);
            set.total = per_minute(5);
        });
        let mut all = Vec::new();
        for address in [
            "2001:db8:1:2::1",
            "2001:db8:1:2::2",
            "2001:db8:1:2::3",
            "2001:db8:1:3::1",
            "203.0.113.7",
            "203.0.113.8",
        ] {
            all.extend(count(&mut anomalies, &finished(address, 0), NOW));
        }
        assert_eq!(
            told(&all),
            [
                "client 2001:db8:1:2::/64 requests_per_minute",
                "net 2001:db8:1::/56 requests_per_minute",
                "total  requests_per_minute",
            ]
        );
        assert_eq!((all[0].count, all[0].threshold), (3, 2));
        assert_eq!(all[0].cooldown_ends, Time(NOW + HOUR));
    }

    /// ALERT-1: the windows are those of the limits: two buckets, the earlier one weighted; bytes
    /// as well as requests, minutes as well as hours.
    #[test]
    fn each_measure_has_its_window() {
        for (set, expected) in [
            (
                thresholds([Some(2), None], [None; 2]),
                "requests_per_minute",
            ),
            (thresholds([None, Some(2)], [None; 2]), "requests_per_hour"),
            (thresholds([None; 2], [Some(20), None]), "bytes_per_minute"),
            (thresholds([None; 2], [None, Some(20)]), "bytes_per_hour"),
        ] {
            let mut anomalies = anomalies(|anomalies| anomalies.total = set);
            let length = if expected.ends_with("minute") {
                MINUTE
            } else {
                HOUR
            };
            let request = finished("203.0.113.7", 10);
            assert!(count(&mut anomalies, &request, NOW).is_empty());
            assert!(count(&mut anomalies, &request, NOW).is_empty());
            // Half of the two, and one: exactly two. Two milliseconds earlier it is more.
            let half = NOW + length + length / 2;
            assert!(
                count(&mut anomalies, &request, half).is_empty(),
                "{expected}"
            );
            let told_now = told(&count(&mut anomalies, &request, half));
            assert_eq!(told_now, [format!("total  {expected}")]);
        }
    }

    /// ALERT-1: an AS number counts only if the lookup answered before the request ended; a number
    /// that means no AS never counts.
    #[test]
    fn an_as_number_counts_where_it_is_known() {
        let mut anomalies = anomalies(|set| set.asn = per_minute(1));
        for request in [
            finished("203.0.113.7", 0),
            of_asn("203.0.113.7", Some("DE"), "AS64512"),
            of_asn("203.0.113.7", None, "AS64496"),
            of_asn("203.0.113.7", Some("DE"), "AS64496"),
        ] {
            for _ in 0..2 {
                let over = count(&mut anomalies, &request, NOW);
                let known = request.lookup.as_ref().is_some_and(|lookup| {
                    **lookup == *of_asn("::", Some("DE"), "AS64496").lookup.unwrap()
                });
                assert!(over.is_empty() || known);
            }
        }
        assert_eq!(anomalies.counters.rows().len(), 1);
        let request = of_asn("198.51.100.7", Some("FR"), "AS64496");
        // Held back: the second request of the loop above was the alert.
        assert!(count(&mut anomalies, &request, NOW).is_empty());
        assert_eq!(anomalies.counters.rows()[0].1.windows[0].current, 3);
    }

    /// ALERT-1: with every threshold off nothing is counted.
    #[test]
    fn off_counts_nothing() {
        let mut anomalies = anomalies(|set| {
            set.watch_nets = vec![WatchNet {
                name: "all".to_owned(),
                netblock: "203.0.113.0/24".parse().unwrap(),
            }];
        });
        assert!(!anomalies.settings.is_on());
        count(&mut anomalies, &finished("203.0.113.7", 9), NOW);
        assert!(anomalies.counters.rows().is_empty());
    }

    /// ALERT-3: each watched netblock is a scope of its own, also inside another, and only what
    /// lies inside counts.
    #[test]
    fn watched_netblocks_are_scopes() {
        let mut anomalies = anomalies(|set| {
            set.watch = per_minute(1);
            set.watch_nets = [
                ("wide", "203.0.0.0/16"),
                ("narrow", "203.0.113.0/24"),
                ("host", "2001:db8::7/128"),
            ]
            .map(|(name, netblock)| WatchNet {
                name: name.to_owned(),
                netblock: netblock.parse().unwrap(),
            })
            .to_vec();
        });
        let mut names = |address: &str| -> Vec<String> {
            let over = count(&mut anomalies, &finished(address, 0), NOW);
            over.into_iter().map(|over| over.watch.unwrap()).collect()
        };
        assert!(names("203.0.1.1").is_empty());
        assert_eq!(names("203.0.113.1"), ["wide"]);
        assert_eq!(names("203.0.113.2"), ["narrow"]);
        // Narrower than a client: the full address tells.
        assert!(names("2001:db8::7").is_empty());
        assert!(names("2001:db8::8").is_empty());
        assert_eq!(names("2001:db8::7"), ["host"]);
        assert!(names("198.51.100.1").is_empty());
    }

    /// A scope that is written and read again is the same.
    #[test]
    fn a_scope_survives_its_text() {
        for scope in [
            Scope::Client("2001:db8:1:2::/64".parse().unwrap()),
            Scope::Net("203.0.113.0/24".parse().unwrap()),
            Scope::Asn(64_496),
            Scope::Total,
            Scope::Watch("203.0.113.7/32".parse().unwrap()),
        ] {
            assert_eq!(Scope::read(scope.kind(), scope.of().as_deref()), Ok(scope));
        }
        for (kind, of) in [
            ("client", None),
            ("net", Some("x")),
            ("asn", Some("AS64512")),
            ("country", Some("DE")),
        ] {
            assert!(Scope::read(kind, of).is_err(), "{kind}");
        }
    }

    /// The naive twin: every request is remembered with its time, and each question sums them anew.
    #[derive(Default)]
    struct Twin {
        requests: Vec<(u8, u64, u64)>,
        until: [Option<u64>; 4],
    }

    proptest! {
        /// ALERT-1, ALERT-2: over any sequence of clients, bytes and times, the alerts are those of
        /// a twin that remembers every request.
        #[test]
        fn alerts_agree_with_a_naive_twin(steps in prop::collection::vec((0u8..4, 0u64..100_000, 0u64..40), 1..150)) {
            let (requests, bytes) = (4u64, 300u64);
            let mut anomalies = anomalies(|set| {
                set.client = thresholds([Some(requests), None], [None, Some(bytes)]);
                set.cooldown = Duration::from_secs(300);
            });
            let mut twin = Twin::default();
            let mut now = NOW;
            for (client, step, size) in steps {
                now += step;
                twin.requests.push((client, now, size));
                let sum = |length: u64, amount: &dyn Fn(u64) -> u64| {
                    let bucket = now / length;
                    let of = |wanted| twin.requests.iter()
                        .filter(|(who, at, _)| *who == client && at / length == wanted)
                        .map(|(_, _, size)| amount(*size)).sum::<u64>();
                    of(bucket) * length + of(bucket - 1) * (length - now % length)
                };
                let over = [
                    (sum(MINUTE, &|_| 1) > requests * MINUTE, "requests_per_minute"),
                    (sum(HOUR, &|size| size) > bytes * HOUR, "bytes_per_hour"),
                ];
                let mut expected = Vec::new();
                let until = &mut twin.until[usize::from(client)];
                for (over, name) in over {
                    if over && until.is_none_or(|until| until <= now) {
                        *until = Some(now + 300_000);
                        expected.push(format!("client 203.0.113.{client} {name}"));
                    }
                }
                let request = finished(&format!("203.0.113.{client}"), size);
                prop_assert_eq!(told(&count(&mut anomalies, &request, now)), expected);
            }
        }
    }
}
