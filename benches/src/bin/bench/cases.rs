//! What is measured, as data: cases of every proxy, and features of weir without and with each.
//! How each proxy is brought into a case stands in `proxies.rs`.

use std::sync::LazyLock;

use weir_benches::config::Settings;
use weir_benches::tls::{ECDSA, Key, RSA};

use crate::scripts::{BROWSER, CLIENTS, FEW_CLIENTS, FRESH, MANY_CLIENTS};

/// Settings of weir as rows.
type Rows = &'static [(&'static str, &'static str)];

/// One way to use a proxy.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Case {
    /// As the command line names it, and as the table does.
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    /// What wrk asks for, and what it sends, as a Lua script; empty for its plain GET.
    pub(crate) path: &'static str,
    pub(crate) script: &'static str,
    /// Connections of the generator, at least and at most.
    pub(crate) connections: (u32, u32),
    /// Whether the proxy writes its request log, as JSON, into a file.
    pub(crate) log: bool,
    /// The netblock that is denied, if one is: the generator's clients are of it.
    pub(crate) denied: Option<&'static str>,
    /// How many /24 netblocks, the generator's not among them, are banned too.
    pub(crate) bans: usize,
    /// Whether a trusted `X-Forwarded-For` names the client.
    pub(crate) is_forwarded: bool,
    /// Whether weir has two workers, on both cores, beside the load. It is measured alone: what
    /// counts is its cost of a request beside that with one worker.
    pub(crate) two_workers: bool,
    /// Whether bodies are large: each peer has the buffers that its manual advises for them.
    pub(crate) large: bool,
    /// TLS 1.3 between client and proxy, if it is spoken.
    pub(crate) tls: Option<(Key, Handshakes)>,
}

/// How often a handshake is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Handshakes {
    /// Connections are kept.
    Once,
    /// They are kept, and HTTP/2 is spoken on them, ten streams each.
    Http2,
    /// Each request has a connection and a full handshake.
    Full,
    /// Each request has a connection, which goes on with a session.
    Resumed,
}

fn case(name: &'static str, title: &'static str) -> Case {
    Case {
        name,
        title,
        path: "/",
        connections: (0, u32::MAX),
        ..Case::default()
    }
}

impl Case {
    fn log(mut self) -> Self {
        self.log = true;
        self
    }

    fn large(mut self, path: &'static str) -> Self {
        self.large = true;
        self.path = path;
        self
    }

    fn post(mut self, script: &'static str) -> Self {
        self.path = "/upload";
        self.sends(script)
    }

    fn sends(mut self, script: &'static str) -> Self {
        self.script = script;
        self
    }

    /// Clients that a trusted proxy names.
    fn clients(mut self, script: &'static str) -> Self {
        self.is_forwarded = true;
        self.sends(script)
    }

    fn bans(mut self, bans: usize) -> Self {
        self.bans = bans;
        self
    }

    /// The generator itself is denied: its netblock may have eight connections (CONN-3).
    fn refuse(mut self) -> Self {
        self.denied = Some("127.0.0.1/32");
        self.connections = (0, 8);
        self
    }

    /// A denied client behind a trusted proxy.
    fn named(mut self) -> Self {
        self.denied = Some("203.0.113.0/24");
        self.clients("wrk.headers['X-Forwarded-For'] = '203.0.113.7'\n")
    }

    fn tls(mut self, key: Key, handshakes: Handshakes) -> Self {
        self.tls = Some((key, handshakes));
        self
    }

    fn http2(mut self, connections: u32) -> Self {
        self.connections = (0, connections);
        self.tls(ECDSA, Handshakes::Http2)
    }

    /// How many connections the generator has where so many were asked for.
    pub(crate) fn connections(&self, asked: u32) -> u32 {
        asked.clamp(self.connections.0, self.connections.1)
    }

    /// Whether clients speak HTTP/2.
    pub(crate) fn is_http2(&self) -> bool {
        matches!(self.tls, Some((_, Handshakes::Http2)))
    }
}

/// Every case, in the order of the table.
#[rustfmt::skip]
pub(crate) static CASES: LazyLock<[Case; 33]> = LazyLock::new(|| [
    case("pass", "pass"),
    case("pass+log", "pass, log on").log(),
    case("named", "refuse named by a trusted proxy").named(),
    case("named+log", "refuse named by a trusted proxy, log on").named().log(),
    case("refuse", "refuse of a banned peer itself").refuse(),
    case("refuse+log", "refuse of a banned peer itself, log on").refuse().log(),
    case("browser", "browser-size heads").sends(BROWSER),
    case("clients", "20,000 clients in turn").clients(CLIENTS),
    case("connect", "new connection each request").sends("wrk.headers['Connection'] = 'close'\n"),
    case("download", "1 MiB answer").large("/1m"),
    case("post", "POST of 100 bytes").post("post(100)"),
    case("post+chunked", "POST of 100 bytes, chunked").post("post_chunks(1, 100)"),
    case("post+8k", "POST of 8 KiB").post("post(8192)"),
    case("upload", "100 kB upload").large("/upload").sends("post(100000)"),
    // Processor time by pieces of a body (CONN-9).
    case("pieces", "2 MB in chunks of 16 KiB").large("/upload").sends("post_chunks(122, 16384)"),
    case("pieces+100", "2 MB in chunks of 100 bytes").large("/upload").sends("post_chunks(20000, 100)"),
    case("pieces+2", "150,000 chunks of two bytes").large("/upload").sends("post_chunks(150000, 2)"),
    case("bans", "pass, 10,000 bans").bans(10_000),
    case("bans+100000", "pass, 100,000 bans").bans(100_000),
    case("bans+refuse", "refuse named by a trusted proxy, 10,000 bans").named().bans(10_000),
    case("clients+100", "100 clients in turn").clients(FEW_CLIENTS),
    case("clients+1000000", "1,000,000 clients in turn").clients(MANY_CLIENTS),
    steady(),
    Case { connections: (1000, 1000), ..case("busy", "pass, 1,000 connections") },
    Case { two_workers: true, ..case("workers", "pass, two workers") },
    case("tls", "pass over TLS").tls(ECDSA, Handshakes::Once),
    case("tls+download", "1 MiB answer over TLS").large("/1m").tls(ECDSA, Handshakes::Once),
    case("tls+full", "full handshake each request, ECDSA P-256").tls(ECDSA, Handshakes::Full),
    case("tls+resumed", "resumed handshake each request").tls(ECDSA, Handshakes::Resumed),
    case("tls+full+rsa", "full handshake each request, RSA-2048").tls(RSA, Handshakes::Full),
    case("h2", "pass over HTTP/2, ten streams a connection").http2(16),
    case("h2+log", "pass over HTTP/2, log on").http2(16).log(),
    case("h2+download", "1 MiB answer over HTTP/2").large("/1m").http2(4),
]);

/// That of `peers --steady`.
pub(crate) fn steady() -> Case {
    let case = case("clients+bans", "20,000 clients in turn, 10,000 bans");
    case.clients(CLIENTS).bans(10_000)
}

/// The netblocks of [`Case::bans`].
pub(crate) fn banned_netblocks(count: usize) -> impl Iterator<Item = String> {
    (0..count).map(|number| {
        // 10.40.0.0 and above are clients.
        let (first, number) = match number.checked_sub(10_000) {
            None => (10, number),
            Some(number) => (11 + number / 65_536, number % 65_536),
        };
        format!("{first}.{}.{}.0/24", number / 256, number % 256)
    })
}

/// Two ways to run weir that differ in one feature.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Feature {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    pub(crate) script: &'static str,
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
    /// Settings that are the same without and with it, and others.
    both: Rows,
    without: Rows,
    with: Rows,
    /// A series of the metrics that is 0 without the feature and more with it: proof that it ran.
    pub(crate) proof: Option<&'static str>,
}

/// What stands in settings for what only a run knows, `{databases}` and `{service}`, and what that
/// is: a directory, and an address.
pub(crate) type Places = [(&'static str, String); 2];

fn feature(title: &'static str) -> Feature {
    Feature {
        title,
        script: CLIENTS,
        ..Feature::default()
    }
}

/// Lookups in database files.
#[rustfmt::skip]
const FILE: Rows = &[
    ("WAF_LOOKUP_SOURCE", "file"),
    ("WAF_LOOKUP_DB_PATH", "{databases}/country.mmdb,{databases}/asn.mmdb"),
];

fn writes() -> Feature {
    Feature {
        name: "state-writes",
        full: true,
        both: &[("WAF_ANOMALY_CLIENT_REQUESTS_PER_HOUR", "1000000000000")],
        without: &[("WAF_STATE_COUNTER_INTERVAL", "1h")],
        with: &[("WAF_STATE_COUNTER_INTERVAL", "1s")],
        proof: Some("waf_state_writes_total{file=\"clients.json\",outcome=\"ok\"}"),
        ..feature("full state written each second")
    }
}

fn lookups() -> Feature {
    Feature {
        name: "file-lookups",
        script: FRESH,
        with: FILE,
        proof: Some("waf_lookups_total{outcome=\"known\"}"),
        ..feature("database files, 20,000 clients: looked up once each, known afterwards")
    }
}

/// Every feature, in the order of the table.
pub(crate) static FEATURES: LazyLock<[Feature; 9]> = LazyLock::new(|| {
    [
        Feature {
            name: "scrape",
            full: true,
            scrape: true,
            ..feature("metrics asked for once a second, full state")
        },
        Feature {
            title: "full state written once a minute",
            with: &[("WAF_STATE_COUNTER_INTERVAL", "60s")],
            // A round holds one write.
            long: Some((60, 2)),
            ..writes()
        },
        writes(),
        Feature {
            title: "full state written each second, worker alone on its core",
            apart: true,
            ..writes()
        },
        lookups(),
        Feature {
            title: "database files, each request a fresh client: a lookup each",
            script: "fresh_each()",
            ..lookups()
        },
        // By the defaults five questions fail in the warm-up, so what is measured is nearly all
        // with the breaker open: nobody is asked.
        Feature {
            name: "silent-lookups",
            script: FRESH,
            with: &[
                ("WAF_LOOKUP_SOURCE", "url"),
                ("WAF_LOOKUP_URL", "http://{service}/{ip}"),
            ],
            proof: Some("waf_lookups_total{outcome=\"timeout\"}"),
            ..feature("lookup service that never answers, breaker open, 20,000 fresh clients")
        },
        // More scopes than counters are kept: nearly each request puts one out. Thresholds of AS
        // numbers need lookups.
        Feature {
            name: "anomalies",
            script: FRESH,
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
            ..feature("every anomaly threshold set, 20,000 clients in as many netblocks")
        },
        Feature {
            name: "log",
            in_memory: true,
            with: &[("WAF_LOG_REQUESTS", "all")],
            ..feature("request log of every request, in memory")
        },
    ]
});

impl Feature {
    /// Its settings, besides those of every run.
    pub(crate) fn settings(&self, with: bool, places: &Places) -> Settings {
        let own = if with { self.with } else { self.without };
        let each = self.both.iter().chain(own);
        each.fold(Settings::default(), |settings, (name, value)| {
            let known = |value: String, (place, is): &(&str, String)| value.replace(place, is);
            settings.with(name, places.iter().fold((*value).to_owned(), known))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn the_preloaded_bans_are_distinct_and_spare_the_clients() {
        let blocks: HashSet<_> = banned_netblocks(100_000).collect();
        assert_eq!(blocks.len(), 100_000);
        let is_client = |block: &String| {
            let clients = ["10.200.", "100.", "127."];
            clients.iter().any(|client| block.starts_with(client))
        };
        assert!(!blocks.iter().any(is_client));
    }

    #[test]
    fn every_row_has_its_own_title_and_each_feature_differs_from_going_without() {
        let cases: HashSet<_> = CASES.iter().map(|case| (case.name, case.title)).collect();
        let titles: HashSet<_> = FEATURES.iter().map(|feature| feature.title).collect();
        assert_eq!((cases.len(), titles.len()), (CASES.len(), FEATURES.len()));
        let places = ["{databases}", "{service}"].map(|place| (place, "there".to_owned()));
        for feature in FEATURES.iter() {
            let [without, with] = [false, true].map(|with| feature.settings(with, &places));
            assert!(feature.scrape || without != with, "{}", feature.title);
            let open = |(_, value): &(String, String)| value.replace("{ip}", "").contains('{');
            assert!(!with.0.iter().any(open), "{}", feature.title);
        }
    }
}
