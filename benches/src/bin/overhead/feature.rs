//! What is measured: weir without and with each of its features.

use weir_benches::load::CLIENTS;

/// One row of the table: two ways to run weir that differ in one feature.
#[derive(Debug)]
pub(crate) struct Feature {
    /// As `--only` names it.
    pub(crate) name: &'static str,
    /// As the table names it.
    pub(crate) title: &'static str,
    /// What wrk sends.
    script: &'static str,
    /// Whether all four state files are full at the start.
    pub(crate) full: bool,
    /// Whether weir's files lie in memory: the figure is to be that of weir, not of the disk.
    pub(crate) in_memory: bool,
    /// Whether the worker has its core for itself, and every other thread of weir is on the core of
    /// the load. It tells whether a worker waits for another thread, or only shares its core with
    /// it.
    pub(crate) apart: bool,
    /// Whether the metrics are asked for once a second, with the feature.
    pub(crate) scrape: bool,
    /// How long a round lasts and how many there are at most, where the feature needs another time
    /// than asked for.
    pub(crate) long: Option<(u64, usize)>,
    /// Settings that are the same without and with it.
    both: &'static [(&'static str, &'static str)],
    without: &'static [(&'static str, &'static str)],
    with: &'static [(&'static str, &'static str)],
    /// A series of the metrics that is 0 without the feature and more with it: proof that it ran.
    pub(crate) proof: Option<&'static str>,
}

/// What stands in settings for what only a run knows.
#[derive(Debug)]
pub(crate) struct Places {
    /// For `{databases}`.
    pub(crate) databases: String,
    /// For `{service}`: address and port.
    pub(crate) service: String,
}

const PLAIN: Feature = Feature {
    name: "",
    title: "",
    script: CLIENTS,
    full: false,
    in_memory: false,
    apart: false,
    scrape: false,
    long: None,
    both: &[],
    without: &[],
    with: &[],
    proof: None,
};

/// Lookups in database files.
const FILE: &[(&str, &str)] = &[
    ("WAF_LOOKUP_SOURCE", "file"),
    (
        "WAF_LOOKUP_DB_PATH",
        "{databases}/country.mmdb,{databases}/asn.mmdb",
    ),
];

const NEVER: &[(&str, &str)] = &[("WAF_STATE_COUNTER_INTERVAL", "1h")];
const COUNTERS_ON: &[(&str, &str)] = &[("WAF_ANOMALY_CLIENT_REQUESTS_PER_HOUR", "1000000000000")];

const WRITES: Feature = Feature {
    name: "state-writes",
    full: true,
    both: COUNTERS_ON,
    without: NEVER,
    with: &[("WAF_STATE_COUNTER_INTERVAL", "1s")],
    proof: Some("waf_state_writes_total{file=\"clients.json\",outcome=\"ok\"}"),
    ..PLAIN
};

const LOOKUPS: Feature = Feature {
    name: "file-lookups",
    script: FRESH,
    with: FILE,
    proof: Some("waf_lookups_total{outcome=\"known\"}"),
    ..PLAIN
};

/// Every feature, in the order of the table.
pub(crate) static FEATURES: [Feature; 9] = [
    Feature {
        name: "scrape",
        title: "metrics asked for once a second, full state",
        full: true,
        scrape: true,
        ..PLAIN
    },
    Feature {
        title: "full state written once a minute",
        with: &[("WAF_STATE_COUNTER_INTERVAL", "60s")],
        // A round holds one write.
        long: Some((60, 2)),
        ..WRITES
    },
    Feature {
        title: "full state written each second",
        ..WRITES
    },
    Feature {
        title: "full state written each second, worker alone on its core",
        apart: true,
        ..WRITES
    },
    Feature {
        title: "database files, 20,000 clients: looked up once each, known afterwards",
        ..LOOKUPS
    },
    Feature {
        title: "database files, each request a fresh client: a lookup each",
        script: ENDLESS,
        ..LOOKUPS
    },
    Feature {
        name: "silent-lookups",
        // By the defaults five questions fail in the warm-up, so what is measured is nearly all
        // with the breaker open: nobody is asked.
        title: "lookup service that never answers, breaker open, 20,000 fresh clients",
        script: FRESH,
        with: &[
            ("WAF_LOOKUP_SOURCE", "url"),
            ("WAF_LOOKUP_URL", "http://{service}/{ip}"),
        ],
        proof: Some("waf_lookups_total{outcome=\"timeout\"}"),
        ..PLAIN
    },
    Feature {
        name: "anomalies",
        // More scopes than counters are kept: nearly each request puts one out.
        title: "every anomaly threshold set, 20,000 clients in as many netblocks",
        script: FRESH,
        // Thresholds of AS numbers need lookups.
        both: FILE,
        with: &[
            ("WAF_ANOMALY_CLIENT_REQUESTS_PER_MINUTE", "1000000000000"),
            ("WAF_ANOMALY_CLIENT_REQUESTS_PER_HOUR", "1000000000000"),
            ("WAF_ANOMALY_CLIENT_BYTES_PER_MINUTE", "1000T"),
            ("WAF_ANOMALY_CLIENT_BYTES_PER_HOUR", "1000T"),
            ("WAF_ANOMALY_NET_REQUESTS_PER_MINUTE", "1000000000000"),
            ("WAF_ANOMALY_NET_REQUESTS_PER_HOUR", "1000000000000"),
            ("WAF_ANOMALY_NET_BYTES_PER_MINUTE", "1000T"),
            ("WAF_ANOMALY_NET_BYTES_PER_HOUR", "1000T"),
            ("WAF_ANOMALY_ASN_REQUESTS_PER_MINUTE", "1000000000000"),
            ("WAF_ANOMALY_ASN_REQUESTS_PER_HOUR", "1000000000000"),
            ("WAF_ANOMALY_ASN_BYTES_PER_MINUTE", "1000T"),
            ("WAF_ANOMALY_ASN_BYTES_PER_HOUR", "1000T"),
            ("WAF_ANOMALY_TOTAL_REQUESTS_PER_MINUTE", "1000000000000"),
            ("WAF_ANOMALY_TOTAL_REQUESTS_PER_HOUR", "1000000000000"),
            ("WAF_ANOMALY_TOTAL_BYTES_PER_MINUTE", "1000T"),
            ("WAF_ANOMALY_TOTAL_BYTES_PER_HOUR", "1000T"),
        ],
        ..PLAIN
    },
    Feature {
        name: "log",
        title: "request log of every request, in memory",
        in_memory: true,
        with: &[("WAF_LOG_REQUESTS", "all")],
        ..PLAIN
    },
];

impl Feature {
    /// What wrk sends.
    pub(crate) fn script(&self) -> String {
        self.script.replace("{address}", ADDRESS)
    }

    /// Its settings, besides those of every run.
    pub(crate) fn settings(&self, with: bool, places: &Places) -> Vec<(&'static str, String)> {
        let own = if with { self.with } else { self.without };
        let settings = self.both.iter().chain(own).map(|(name, value)| {
            let value = value.replace("{databases}", &places.databases);
            (*name, value.replace("{service}", &places.service))
        });
        settings.collect()
    }
}

/// The addresses of 64.0.0.0/6 by number, in an order that leaps from network to network, as
/// visitors come; the step is odd, so that it meets them all. The lookup databases know them, and
/// they are public: private ones are never looked up.
const ADDRESS: &str = r#"
math.randomseed(os.time())
local first = math.random(0, 2^26 - 1)
local function address(number)
  local n = (first + number * 2654435) % 2^26
  return string.format('%d.%d.%d.%d', 64 + math.floor(n / 2^24), math.floor(n / 2^16) % 256, math.floor(n / 2^8) % 256, n % 256)
end
"#;

/// 20,000 clients in turn that were not there in an earlier run of the same process. The requests
/// are made beforehand, so that the generator's own work stays small.
const FRESH: &str = r#"{address}
local requests, at = {}, 0
function init(arguments)
  for number = 0, 19999 do
    wrk.headers['X-Forwarded-For'] = address(number)
    requests[number] = wrk.format()
  end
end
function request()
  at = (at + 1) % 20000
  return requests[at]
end
"#;

/// Each request is of a client of its own, for 67 million of them.
const ENDLESS: &str = r#"{address}
local head, tail, at = '', '', 0
function init(arguments)
  wrk.headers['X-Forwarded-For'] = 'CLIENT'
  head, tail = string.match(wrk.format(), '^(.*)CLIENT(.*)$')
end
function request()
  at = at + 1
  return head .. address(at) .. tail
end
"#;

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_feature_has_its_own_title_and_differs_from_going_without() {
        let titles: HashSet<_> = FEATURES.iter().map(|feature| feature.title).collect();
        assert_eq!(titles.len(), FEATURES.len());
        let places = Places {
            databases: "/there".to_owned(),
            service: "127.0.0.1:9".to_owned(),
        };
        for feature in &FEATURES {
            let [without, with] = [false, true].map(|with| feature.settings(with, &places));
            assert!(feature.scrape || without != with, "{}", feature.title);
            for (_, value) in with {
                assert!(!value.replace("{ip}", "").contains('{'), "{value}");
            }
            assert!(!feature.script().contains("{address}"));
        }
    }
}
