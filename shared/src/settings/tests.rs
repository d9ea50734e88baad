//! What settings mean as they are written: every default, every field, every message.

use std::time::Duration;

use std::path::PathBuf;

use http::StatusCode;
use proptest::prelude::*;

use super::*;
use crate::escalation::Policy;
use crate::netblock::PrefixLengths;

const UPSTREAM: (&str, &str) = ("WAF_UPSTREAM", "http://127.0.0.1:9000");

fn read(pairs: &[(&str, &str)]) -> Result<Loaded, Refused> {
    load(
        pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned())),
    )
}

fn problems(pairs: &[(&str, &str)]) -> Vec<String> {
    read(pairs).map_or_else(|refused| refused.problems, |_| Vec::new())
}

fn settings(pairs: &[(&str, &str)]) -> Settings {
    let mut pairs = pairs.to_vec();
    if pairs.iter().all(|(name, _)| *name != "WAF_UPSTREAM") {
        pairs.push(UPSTREAM);
    }
    read(&pairs).expect("sound settings").settings
}

fn warnings(pairs: &[(&str, &str)]) -> Vec<String> {
    let mut pairs = pairs.to_vec();
    pairs.push(UPSTREAM);
    read(&pairs).expect("sound settings").warnings
}

/// Section 12: every default, as the specification writes it.
#[test]
fn every_default() {
    let Loaded {
        settings, warnings, ..
    } = read(&[UPSTREAM]).unwrap();
    let seconds = Duration::from_secs;
    assert_eq!(warnings, Vec::<String>::new());
    assert_eq!(settings.listen, ["127.0.0.1:8080".parse().unwrap()]);
    assert_eq!(settings.socket_mode, 0o660);
    assert!(!settings.observe);
    assert_eq!(
        settings.workers,
        std::thread::available_parallelism().unwrap().get()
    );
    assert!(settings.identity.trusted_proxies.is_empty());
    assert_eq!(settings.identity.header, "x-forwarded-for");
    assert!(settings.lists.allow_nets.is_empty());
    assert!(settings.lists.deny_nets.is_empty());
    let lookup = settings.lookup;
    assert_eq!(lookup.source, LookupSource::Geojs);
    assert_eq!(
        lookup.url.of([192, 0, 2, 1].into()),
        "https://get.geojs.io/v1/ip/geo/192.0.2.1.json"
    );
    assert_eq!(
        [lookup.json_country, lookup.json_asn, lookup.json_as_name],
        ["/country_code", "/asn", "/organization_name"]
    );
    assert_eq!((lookup.ca_file, lookup.db_paths.len()), (None, 0));
    assert_eq!((lookup.timeout, lookup.ttl), (seconds(1), seconds(604_800)));
    assert!(!lookup.add_headers);
    assert_eq!(lookup.countries, CountryList::None);
    assert_eq!(lookup.percents.unknown, 100);
    assert!(!lookup.percents.lower());
    assert!(settings.lists.exempt_paths.is_empty());
    assert_eq!(
        settings.limits.requests,
        [Some(1000), Some(10_000), Some(50_000)].into()
    );
    assert_eq!(
        settings.limits.bytes,
        [Some(10 << 30), Some(20 << 30), Some(50 << 30)].into()
    );
    assert_eq!(settings.limits.bytes_count, BytesCount::Both);
    assert_eq!(settings.limits.max_body_size, Some(100 << 20));
    assert_eq!(settings.limits.headers, RateLimitHeaders::Refused);
    assert_eq!(settings.timeouts.header, seconds(10));
    assert_eq!(settings.timeouts.body, seconds(60));
    assert_eq!(settings.timeouts.keepalive, seconds(75));
    assert_eq!(settings.timeouts.upstream_connect, seconds(5));
    assert_eq!(settings.timeouts.upstream, seconds(60));
    assert_eq!(settings.timeouts.upstream_keepalive, seconds(4));
    assert_eq!(settings.timeouts.websocket_idle, Some(seconds(3600)));
    assert_eq!(settings.timeouts.send, seconds(60));
    assert_eq!(settings.connections.max, 10_000);
    assert_eq!(settings.connections.max_per_client, 256);
    assert_eq!(settings.connections.max_per_netblock, 1024);
    assert_eq!(settings.timeouts.shutdown, seconds(30));
    assert_eq!(settings.timeouts.shutdown_delay, seconds(0));
    assert_eq!(settings.bans.policy, Policy::default());
    assert_eq!(settings.bans.prefixes, PrefixLengths { v4: 24, v6: 56 });
    assert_eq!(
        settings.bans.response,
        BanResponse::Status(StatusCode::TOO_MANY_REQUESTS)
    );
    assert_eq!(settings.bans.max, 10_000);
    assert_eq!(settings.state.dir, PathBuf::from("./state"));
    assert_eq!(settings.state.write_delay, seconds(1));
    assert_eq!(settings.state.counter_interval, seconds(60));
    assert_eq!(settings.endpoints.metrics_token, TokenSource::Unset);
    assert_eq!(settings.endpoints.admin_token, TokenSource::Unset);
    assert_eq!(settings.log.instance_name, None);
    assert_eq!(settings.log.requests, LogRequests::All);
    assert_eq!(settings.log.file, None);
    assert!(settings.log.request_headers.is_empty());
    assert_eq!(settings.log.level, "info");
    assert_eq!(
        settings.anomalies,
        Anomalies {
            cooldown: seconds(3600),
            ..Anomalies::default()
        }
    );
    assert_eq!(settings.endpoints.metrics_top_n, 20);
}

/// Section 12: every setting arrives in its own field.
#[test]
fn every_value_arrives() {
    let settings = settings(&[
        ("WAF_LISTEN", "[::1]:81"),
        ("WAF_UPSTREAM", "http://app.internal:3000/"),
        ("WAF_MODE", "observe"),
        ("WAF_WORKERS", "7"),
        ("WAF_TRUSTED_PROXIES", "10.0.0.0/8"),
        ("WAF_CLIENT_IP_HEADER", "Forwarded"),
        ("WAF_STRIP_REQUEST_HEADERS", "off"),
        ("WAF_ALLOW_NETS", "192.0.2.1, ,2001:db8::/32"),
        ("WAF_DENY_NETS", "::ffff:198.51.100.7/120"),
        ("WAF_EXEMPT_PATHS", "/static/, /%61/../b/%7e , /caf%c3%a9,/"),
        ("WAF_DENY_COUNTRIES", "de, unknown,XK"),
        ("WAF_ASN_LIMIT_PERCENT", "AS64496=50, 64497 = 0"),
        ("WAF_COUNTRY_LIMIT_PERCENT", "fr=20"),
        ("WAF_ASN_BYTES_PERCENT", "as64498=100"),
        ("WAF_COUNTRY_BYTES_PERCENT", "AT=7"),
        ("WAF_UNKNOWN_LIMIT_PERCENT", "3"),
        ("WAF_LOOKUP_SOURCE", "url"),
        ("WAF_LOOKUP_URL", "https://geo.example:8443/{ip}?f=1"),
        ("WAF_LOOKUP_JSON_COUNTRY", "/a"),
        ("WAF_LOOKUP_JSON_ASN", "/b/0"),
        ("WAF_LOOKUP_JSON_AS_NAME", "/c~1d"),
        ("WAF_LOOKUP_CA_FILE", "/ca.pem"),
        ("WAF_LOOKUP_TIMEOUT", "2s"),
        ("WAF_LOOKUP_TTL", "1d"),
        ("WAF_ADD_LOOKUP_HEADERS", "true"),
        ("WAF_RATE_LIMIT_PER_MINUTE", "1"),
        ("WAF_RATE_LIMIT_PER_HOUR", "2"),
        ("WAF_RATE_LIMIT_PER_DAY", "off"),
        ("WAF_BYTES_LIMIT_PER_MINUTE", "4"),
        ("WAF_BYTES_LIMIT_PER_HOUR", "off"),
        ("WAF_BYTES_LIMIT_PER_DAY", "6KB"),
        ("WAF_BYTES_COUNT", "response"),
        ("WAF_MAX_BODY_SIZE", "off"),
        ("WAF_RATE_LIMIT_HEADERS", "always"),
        ("WAF_HEADER_TIMEOUT", "1s"),
        ("WAF_BODY_TIMEOUT", "2s"),
        ("WAF_KEEPALIVE_TIMEOUT", "3s"),
        ("WAF_UPSTREAM_CONNECT_TIMEOUT", "4s"),
        ("WAF_UPSTREAM_TIMEOUT", "5s"),
        ("WAF_UPSTREAM_KEEPALIVE", "0s"),
        ("WAF_WEBSOCKET_IDLE_TIMEOUT", "7s"),
        ("WAF_MAX_CONNECTIONS", "8"),
        ("WAF_MAX_CONNECTIONS_PER_CLIENT", "9"),
        ("WAF_MAX_CONNECTIONS_PER_NETBLOCK", "11"),
        ("WAF_SEND_TIMEOUT", "8s"),
        ("WAF_MIN_RATE", "off"),
        ("WAF_SHUTDOWN_TIMEOUT", "0s"),
        ("WAF_SHUTDOWN_DELAY", "8s"),
        ("WAF_BAN_FIRST", "1m"),
        ("WAF_BAN_FACTOR", "2"),
        ("WAF_BAN_REPEAT_WINDOW", "3m"),
        ("WAF_BAN_PERMANENT_AFTER", "4m"),
        ("WAF_BAN_IPV4_PREFIX", "32"),
        ("WAF_BAN_IPV6_PREFIX", "16"),
        ("WAF_BAN_RESPONSE", "drop"),
        ("WAF_MAX_BANS", "5"),
        ("WAF_STATE_DIR", "/s"),
        ("WAF_STATE_WRITE_DELAY", "0s"),
        ("WAF_STATE_COUNTER_INTERVAL", "6s"),
        ("WAF_METRICS_TOKEN", "m"),
        ("WAF_ADMIN_TOKEN", "a"),
        ("WAF_INSTANCE_NAME", "eins"),
        ("WAF_LOG_REQUESTS", "refused"),
        ("WAF_LOG_FILE", "/l"),
        ("WAF_LOG_REQUEST_HEADERS", "Accept, DNT,accept"),
        ("WAF_LOG_LEVEL", "debug"),
        ("WAF_ANOMALY_COOLDOWN", "5m"),
        ("WAF_METRICS_TOP_N", "7"),
    ]);
    let seconds = Duration::from_secs;
    assert_eq!(settings.listen, ["[::1]:81".parse().unwrap()]);
    assert_eq!(settings.upstream.to_string(), "app.internal:3000");
    assert!(settings.observe);
    assert_eq!(settings.workers, 7);
    assert_eq!(
        format!("{:?}", settings.identity.trusted_proxies),
        "[\"10.0.0.0/8\"]"
    );
    assert_eq!(settings.identity.header, "forwarded");
    assert_eq!(
        format!("{:?}", settings.lists.allow_nets),
        "[\"192.0.2.1/32\", \"2001:db8::/32\"]"
    );
    assert_eq!(
        format!("{:?}", settings.lists.deny_nets),
        "[\"198.51.100.0/24\"]"
    );
    let lookup = settings.lookup;
    let CountryList::Deny(denied) = lookup.countries else {
        panic!("{:?}", lookup.countries)
    };
    assert!(denied.unknown);
    assert_eq!(format!("{:?}", denied.codes.len()), "2");
    let shown = |percents: Vec<(String, u8)>| {
        let shown: Vec<_> = percents.iter().map(|(of, n)| format!("{of}={n}")).collect();
        shown.join(",")
    };
    let percents = lookup.percents;
    let asn = percents.asn.iter().map(|(of, n)| (of.to_string(), *n));
    assert_eq!(shown(asn.collect()), "AS64496=50,AS64497=0");
    let country = percents.country.iter().map(|(of, n)| (of.to_string(), *n));
    assert_eq!(shown(country.collect()), "FR=20");
    let asn = percents
        .asn_bytes
        .iter()
        .map(|(of, n)| (of.to_string(), *n));
    assert_eq!(shown(asn.collect()), "AS64498=100");
    let country = percents.country_bytes.iter();
    let country = country.map(|(of, n)| (of.to_string(), *n));
    assert_eq!(shown(country.collect()), "AT=7");
    assert_eq!(percents.unknown, 3);
    assert_eq!(lookup.source, LookupSource::Url);
    assert_eq!(
        lookup.url.of("2a00::1".parse().unwrap()),
        "https://geo.example:8443/2a00::1?f=1"
    );
    assert_eq!(
        [lookup.json_country, lookup.json_asn, lookup.json_as_name],
        ["/a", "/b/0", "/c~1d"]
    );
    assert_eq!(lookup.ca_file, Some(PathBuf::from("/ca.pem")));
    assert_eq!((lookup.timeout, lookup.ttl), (seconds(2), seconds(86_400)));
    assert!(lookup.add_headers);
    assert_eq!(
        settings.lists.exempt_paths,
        ["/static", "/b/~", "/caf%C3%A9", ""]
    );
    assert_eq!(settings.limits.requests, [Some(1), Some(2), None].into());
    assert_eq!(settings.limits.bytes, [Some(4), None, Some(6000)].into());
    assert_eq!(settings.limits.bytes_count, BytesCount::Response);
    assert_eq!(settings.limits.max_body_size, None);
    assert_eq!(settings.limits.headers, RateLimitHeaders::Always);
    assert_eq!(settings.timeouts.header, seconds(1));
    assert_eq!(settings.timeouts.body, seconds(2));
    assert_eq!(settings.timeouts.keepalive, seconds(3));
    assert_eq!(settings.timeouts.upstream_connect, seconds(4));
    assert_eq!(settings.timeouts.upstream, seconds(5));
    assert_eq!(settings.timeouts.upstream_keepalive, seconds(0));
    assert_eq!(settings.timeouts.websocket_idle, Some(seconds(7)));
    assert_eq!(settings.connections.max, 8);
    assert_eq!(settings.connections.max_per_client, 9);
    assert_eq!(settings.connections.max_per_netblock, 11);
    assert_eq!(settings.timeouts.send, seconds(8));
    assert_eq!(settings.timeouts.shutdown, seconds(0));
    assert_eq!(settings.timeouts.shutdown_delay, seconds(8));
    assert_eq!(
        settings.bans.policy,
        Policy {
            first: seconds(60),
            factor: 2,
            repeat_window: seconds(180),
            permanent_after: seconds(240),
        }
    );
    assert_eq!(settings.bans.prefixes, PrefixLengths { v4: 32, v6: 16 });
    assert_eq!(settings.bans.response, BanResponse::Drop);
    assert_eq!(settings.bans.max, 5);
    assert_eq!(settings.state.dir, PathBuf::from("/s"));
    assert_eq!(settings.state.write_delay, seconds(0));
    assert_eq!(settings.state.counter_interval, seconds(6));
    assert!(
        matches!(settings.endpoints.metrics_token, TokenSource::Value(token) if token.bytes() == b"m")
    );
    assert!(
        matches!(settings.endpoints.admin_token, TokenSource::Value(token) if token.bytes() == b"a")
    );
    assert_eq!(settings.log.instance_name.as_deref(), Some("eins"));
    assert_eq!(settings.log.requests, LogRequests::Refused);
    assert_eq!(settings.log.file, Some(PathBuf::from("/l")));
    assert_eq!(settings.log.request_headers, ["accept", "dnt"]);
    assert_eq!(settings.log.level, "debug");
    assert_eq!(settings.anomalies.cooldown, seconds(300));
    assert_eq!(settings.endpoints.metrics_top_n, 7);
}

/// `(name, value, what is wrong)`
fn malformed() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    let lines = include_str!("malformed.txt").lines();
    lines.filter(|line| !line.starts_with('#')).map(|line| {
        let (assignment, wrong) = line.split_once(" -> ").expect("an arrow");
        let (name, value) = assignment.split_once('=').expect("an assignment");
        (name, value, wrong)
    })
}

/// SETTING-1: each malformed value gives its one message and no other.
#[test]
fn every_malformed_setting_has_its_message() {
    for (name, value, wrong) in malformed() {
        let setting = all().find(|setting| setting.name == name).expect(name);
        let mut pairs = vec![(name, value)];
        if name != "WAF_UPSTREAM" {
            pairs.push(UPSTREAM);
        }
        let shown = setting.shown(value).expect("no token");
        assert_eq!(
            problems(&pairs),
            [format!(
                "{name}={shown:?} {wrong}: expected {}",
                setting.expected
            )]
        );
    }
    assert_eq!(
        problems(&[
            UPSTREAM,
            ("WAF_INSTANCE_NAME", "a\nb"),
            ("WAF_BAN_FACTOR", "x")
        ]),
        [
            "WAF_BAN_FACTOR=\"x\" is not a whole number: expected a whole number from 1 to 1000",
            "WAF_INSTANCE_NAME=\"a\\nb\" holds a control character: expected a text of at most 128 bytes without control characters",
        ]
    );
}

/// SETTING-1: the bounds in the messages are those in force.
#[test]
fn the_expected_bounds_hold() {
    for setting in all() {
        let Some(bounds) = setting.expected.strip_prefix("a whole number from ") else {
            continue;
        };
        let bounds = bounds.trim_end_matches(", or off");
        let (least, most) = match bounds.split_once(" to ") {
            Some((least, most)) => (least, most.parse().unwrap()),
            None => (bounds, u64::MAX),
        };
        let least: u64 = least.parse().unwrap();
        let is_taken =
            |value: u128| problems(&[UPSTREAM, (&setting.name, &value.to_string())]).is_empty();
        assert!(
            is_taken(least.into()) && is_taken(most.into()),
            "{}",
            setting.name
        );
        assert!(!is_taken(u128::from(most) + 1), "{}", setting.name);
        assert!(
            least == 0 || !is_taken(u128::from(least) - 1),
            "{}",
            setting.name
        );
    }
}

/// ALERT-1, ALERT-3: each threshold arrives in its own field and is off by default.
#[test]
fn every_threshold_has_its_field() {
    let mut pairs = vec![("WAF_WATCH_NETS".to_owned(), "192.0.2.0/24".to_owned())];
    let mut next = 1000..;
    for scope in [
        "ANOMALY_CLIENT",
        "ANOMALY_NET",
        "ANOMALY_ASN",
        "ANOMALY_TOTAL",
        "WATCH",
    ] {
        for unit in ["REQUESTS", "BYTES"] {
            for span in ["MINUTE", "HOUR"] {
                let name = format!("WAF_{scope}_{unit}_PER_{span}");
                pairs.push((name, next.next().unwrap().to_string()));
            }
        }
    }
    let pairs: Vec<(&str, &str)> = pairs
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    let anomalies = settings(&pairs).anomalies;
    let all = [
        anomalies.client,
        anomalies.net,
        anomalies.asn,
        anomalies.total,
        anomalies.watch,
    ];
    for (place, thresholds) in (0..).zip(all) {
        let at = |offset: u64| Some(1000 + 4 * place + offset);
        assert_eq!(thresholds.requests, [at(0), at(1)]);
        assert_eq!(thresholds.bytes, [at(2), at(3)]);
    }
    for pair in &pairs[1..] {
        assert!(settings(&[pairs[0], *pair]).anomalies.is_on(), "{pair:?}");
    }
    assert!(!settings(&[pairs[0]]).anomalies.is_on());
    assert!(
        !settings(&[("WAF_WATCH_BYTES_PER_HOUR", "1")])
            .anomalies
            .is_on()
    );
}

/// ALERT-3: names are optional, a netblock is masked; start condition 2 names every bad entry.
#[test]
fn watched_netblocks_have_names() {
    let nets = settings(&[(
        "WAF_WATCH_NETS",
        "office=192.0.2.7/24, 198.51.100.0/24,,office = 2001:db8::/32",
    )])
    .anomalies
    .watch_nets;
    let nets: Vec<_> = nets
        .iter()
        .map(|net| (net.name.as_str(), net.netblock.to_string()))
        .collect();
    assert_eq!(
        nets,
        [
            ("office", "192.0.2.0/24".to_owned()),
            ("198.51.100.0/24", "198.51.100.0/24".to_owned()),
            ("office", "2001:db8::/32".to_owned()),
        ]
    );
    assert_eq!(
        problems(&[UPSTREAM, ("WAF_WATCH_NETS", "x,fe80::1%a")]).len(),
        2
    );
}

/// Start condition 1: a threshold for AS numbers needs a source of lookups.
#[test]
fn a_threshold_for_as_numbers_needs_lookups() {
    let off = ("WAF_LOOKUP_SOURCE", "off");
    for name in [
        "WAF_ANOMALY_ASN_REQUESTS_PER_MINUTE",
        "WAF_ANOMALY_ASN_BYTES_PER_HOUR",
    ] {
        assert_eq!(
            problems(&[UPSTREAM, off, (name, "9")]),
            [format!(
                "{name}=\"9\" needs lookups and WAF_LOOKUP_SOURCE=\"off\": expected geojs, url or file with it"
            )]
        );
        assert_eq!(problems(&[UPSTREAM, off, (name, "off")]), [""; 0]);
        assert_eq!(problems(&[UPSTREAM, (name, "9")]), [""; 0]);
    }
}

/// SETTING-1: thresholds that watch nothing are a warning.
#[test]
fn a_watch_without_netblocks_is_a_warning() {
    assert_eq!(
        warnings(&[("WAF_WATCH_BYTES_PER_HOUR", "1G")]),
        ["WAF_WATCH_* has thresholds but WAF_WATCH_NETS is not set: nothing is watched"]
    );
}

/// CONTROL-1: a path that is too long for a socket stops the start with that sentence, the default
/// one too.
#[test]
fn a_control_socket_has_a_path_that_a_socket_can_have() {
    let path = format!("/{}", "x".repeat(107));
    let expected = "is 108 bytes long: expected at most 107, the longest path of a socket, or off";
    assert_eq!(
        problems(&[UPSTREAM, ("WAF_CONTROL_SOCKET", &path)]),
        [format!("WAF_CONTROL_SOCKET={path:?} {expected}")]
    );
    assert_eq!(
        problems(&[UPSTREAM, ("WAF_CONTROL_SOCKET", &path[..107])]),
        [""; 0]
    );
    let dir = &path[..98];
    assert_eq!(
        problems(&[UPSTREAM, ("WAF_STATE_DIR", dir)]),
        [format!(
            "WAF_CONTROL_SOCKET is not set and \"{dir}/weir.sock\" {expected}"
        )]
    );
    let off = [
        UPSTREAM,
        ("WAF_STATE_DIR", dir),
        ("WAF_CONTROL_SOCKET", "off"),
    ];
    assert_eq!(problems(&off), [""; 0]);
}

/// CONTROL-1: an admin listener without an admin token answers next to nothing.
#[test]
fn an_admin_listener_without_a_token_is_a_warning() {
    assert_eq!(
        warnings(&[("WAF_ADMIN_LISTEN", "127.0.0.1:9180")]),
        [
            "WAF_ADMIN_LISTEN is set and no admin token: its requests are answered 404, but for /metrics with a metrics token"
        ]
    );
}

/// CONN-12: a warning says that one client can have every place at the application; by default a
/// client has at most half of them.
#[test]
fn a_client_that_can_have_every_place_is_a_warning() {
    let (of_client, of_all) = ("WAF_MAX_REQUESTS_PER_CLIENT", "WAF_MAX_UPSTREAM");
    assert_eq!(warnings(&[(of_all, "257")]), [""; 0]);
    assert_eq!(
        warnings(&[(of_all, "256")]),
        [
            "WAF_MAX_REQUESTS_PER_CLIENT=\"256\" lets one client have every place at the application: WAF_MAX_UPSTREAM is 256"
        ]
    );
    assert_eq!(
        warnings(&[(of_client, "off")]),
        [
            "WAF_MAX_REQUESTS_PER_CLIENT=\"off\" lets one client have every place at the application: WAF_MAX_UPSTREAM is 512"
        ]
    );
    assert_eq!(warnings(&[(of_client, "8"), (of_all, "9")]), [""; 0]);
}

/// SETTING-1: no setting that can be malformed is missing from the list.
#[test]
fn the_malformed_settings_are_complete() {
    // Any text is a path, and tokens have a test of their own.
    let free = [
        "WAF_STATE_DIR",
        "WAF_METRICS_TOKEN_FILE",
        "WAF_ADMIN_TOKEN_FILE",
        "WAF_ADMIN_READ_TOKEN_FILE",
        "WAF_LOOKUP_CA_FILE",
        "WAF_INSTANCE_NAME",
    ];
    for setting in all() {
        let name = setting.name.as_str();
        let listed = malformed().any(|(listed, ..)| listed == name);
        assert!(free.contains(&name) || setting.secret || listed, "{name}");
    }
}

/// FORWARD-8, LOG-1: a part of the lookup URL that may be a key is in no message and no list, for a
/// good URL or a bad one.
#[test]
fn keys_in_the_url_of_lookups_are_not_shown() {
    let set = |url: &'static str| {
        let all = [
            UPSTREAM,
            ("WAF_LOOKUP_SOURCE", "url"),
            ("WAF_LOOKUP_URL", url),
        ];
        load(all.map(|(name, value)| (name.to_owned(), value.to_owned())))
    };
    let good = set("https://geo.example/{ip}?key=s3cret").expect("a URL");
    let other = set("https://geo.example/{ip}?key=s3cret-2").expect("a URL");
    let listed = good.listing.iter().find(|one| one.name == "WAF_LOOKUP_URL");
    let listed = listed.and_then(|one| one.value.as_deref());
    assert_eq!(listed, Some("https://geo.example/{ip}?***"));
    let (_, changes) = good.reloaded(&other).expect("a reload");
    let told: Vec<String> = changes.iter().map(ToString::to_string).collect();
    assert_eq!(
        told,
        ["WAF_LOOKUP_URL https://geo.example/{ip}?*** -> https://geo.example/{ip}?***"]
    );
    for (bad, shown) in [
        (
            "https://geo.example/?key=s3cret",
            "https://geo.example/?***",
        ),
        (
            "https://user:s3cret@geo.example/{ip}",
            "https://***@geo.example/{ip}",
        ),
        (
            "https://user:s3/cret@geo.example/{ip}#s3cret",
            "https://***@geo.example/{ip}?***",
        ),
        ("user:s3cret@geo.example/{ip}", "***@geo.example/{ip}"),
        ("s3cret@", "***@"),
    ] {
        let refused = set(bad).expect_err(bad);
        let told = refused.problems.join("\n");
        assert!(
            told.starts_with(&format!("WAF_LOOKUP_URL={shown:?} ")),
            "{told}"
        );
        assert!(!told.contains("s3"), "{told}");
    }
}

/// SETTING-1, LOG-1: a token's value is in no message and in no debug output.
#[test]
fn a_token_is_never_shown() {
    for name in ["WAF_METRICS_TOKEN", "WAF_ADMIN_TOKEN"] {
        assert_eq!(
            problems(&[UPSTREAM, (name, "geheim nis")]),
            [format!(
                "{name} (its value is not shown) holds a character that a header cannot carry: expected a text of visible ASCII characters without blanks"
            )]
        );
        let loaded = read(&[UPSTREAM, (name, "geheimnis"), ("WAF_TOKEN", "geheimnis")]);
        assert!(!format!("{loaded:?}").contains("geheimnis"));
    }
}

/// SETTING-1: all problems are reported together, those of one list too.
#[test]
fn all_problems_are_reported_together() {
    let nets = "expected a list of addresses and prefixes without zones, such as 192.0.2.0/24,2001:db8::/32";
    assert_eq!(
        problems(&[
            ("WAF_DENY_NETS", "x,fe80::1%a"),
            ("WAF_BAN_FACTOR", "0"),
            ("WAF_LISTEN", "x"),
            ("WAF_METRICS_TOKEN", "geheimnis"),
            ("WAF_METRICS_TOKEN_FILE", "/m"),
            ("WAF_ADMIN_TOKEN", "geheimnis"),
            ("WAF_ADMIN_TOKEN_FILE", "/t"),
            ("WAF_BAN_FIRST", "8d"),
        ]),
        [
            "WAF_LISTEN=\"x\" is not an address and a port: expected addresses and ports such as 127.0.0.1:8080, [::]:8080 or :8080, separated by commas, https:// before those of TLS, or unix: and a path".to_owned(),
            format!("WAF_DENY_NETS=\"x,fe80::1%a\" has \"x\", which is not a netblock: {nets}"),
            format!("WAF_DENY_NETS=\"x,fe80::1%a\" has \"fe80::1%a\", which carries a zone: {nets}"),
            "WAF_BAN_FACTOR=\"0\" is out of range: expected a whole number from 1 to 1000".to_owned(),
            "WAF_UPSTREAM is not set: expected http://host:port, the address of the application".to_owned(),
            "WAF_BAN_FIRST=\"8d\" is longer than WAF_BAN_PERMANENT_AFTER=\"7d\": expected a first ban that is not permanent".to_owned(),
            "WAF_METRICS_TOKEN_FILE=\"/m\" is set and WAF_METRICS_TOKEN too: expected only one of them".to_owned(),
            "WAF_ADMIN_TOKEN_FILE=\"/t\" is set and WAF_ADMIN_TOKEN too: expected only one of them".to_owned(),
        ]
    );
}

/// SETTING-2: a ban that is as long as the permanent bound is still a first ban.
#[test]
fn a_first_ban_may_reach_the_permanent_bound() {
    assert_eq!(problems(&[UPSTREAM, ("WAF_BAN_FIRST", "7d")]), [""; 0]);
    assert_eq!(
        problems(&[
            UPSTREAM,
            ("WAF_BAN_FIRST", "x"),
            ("WAF_BAN_PERMANENT_AFTER", "59m")
        ])
        .len(),
        1
    );
    assert_eq!(
        problems(&[UPSTREAM, ("WAF_BAN_PERMANENT_AFTER", "59m")]),
        [
            "WAF_BAN_FIRST=\"1h\" is longer than WAF_BAN_PERMANENT_AFTER=\"59m\": expected a first ban that is not permanent"
        ]
    );
}

/// SETTING-2: an upstream that is the service itself stops the start, whatever the two are called.
#[test]
fn the_upstream_is_not_the_service() {
    for (listen, upstream, itself) in [
        ("127.0.0.1:8080", "http://127.0.0.1:8080", true),
        ("127.0.0.1:8080", "http://localhost:8080", true),
        ("127.0.0.1:8080", "http://LOCALHOST:8080/", true),
        ("127.0.0.1:8080", "http://a.localhost:8080", true),
        ("127.0.0.1:8080", "http://0.0.0.0:8080", true),
        ("127.0.0.1:80", "http://127.0.0.1", true),
        ("[::1]:8080", "http://[::1]:8080", true),
        ("[::1]:8080", "http://localhost:8080", true),
        ("[::1]:8080", "http://[::]:8080", true),
        ("0.0.0.0:8080", "http://127.0.0.1:8080", true),
        ("0.0.0.0:8080", "http://127.9.9.9:8080", true),
        ("[::]:8080", "http://127.0.0.1:8080", true),
        ("[::]:8080", "http://[::1]:8080", true),
        ("[::]:8080", "http://[::ffff:127.0.0.1]:8080", true),
        ("192.0.2.1:8080", "http://192.0.2.1:8080", true),
        ("127.0.0.1:8080", "http://127.0.0.1:8081", false),
        ("127.0.0.1:8080", "http://127.0.0.2:8080", false),
        ("127.0.0.1:8080", "http://[::1]:8080", false),
        ("0.0.0.0:8080", "http://[::1]:8080", false),
        ("0.0.0.0:8080", "http://192.0.2.1:8080", false),
        ("0.0.0.0:8080", "http://app:8080", false),
    ] {
        let message = format!(
            "WAF_UPSTREAM={upstream:?} is the service itself, which listens on {listen}: expected the address of another service"
        );
        let expected = if itself { vec![message] } else { vec![] };
        let pairs = [("WAF_LISTEN", listen), ("WAF_UPSTREAM", upstream)];
        assert_eq!(problems(&pairs), expected, "{listen} {upstream}");
    }
}

/// SETTING-2, LIMIT-4: settings that contradict the source of lookups stop the start, each with its
/// sentence; a setting without an effect is a warning.
#[test]
fn settings_that_need_lookups_stop_the_start_without_them() {
    let off = ("WAF_LOOKUP_SOURCE", "off");
    for (name, value) in [
        ("WAF_ASN_LIMIT_PERCENT", "AS64496=99"),
        ("WAF_COUNTRY_LIMIT_PERCENT", "DE=100,FR=0"),
        ("WAF_ASN_BYTES_PERCENT", "AS64496=0"),
        ("WAF_COUNTRY_BYTES_PERCENT", "DE=50"),
        ("WAF_ALLOW_COUNTRIES", "DE"),
        ("WAF_DENY_COUNTRIES", "unknown"),
    ] {
        assert_eq!(
            problems(&[UPSTREAM, off, (name, value)]),
            [format!(
                "{name}={value:?} needs lookups and WAF_LOOKUP_SOURCE=\"off\": expected geojs, url or file with it"
            )]
        );
        assert_eq!(problems(&[UPSTREAM, (name, value)]), [""; 0]);
    }
    // A percentage of 100 lowers nothing.
    let all = ("WAF_ASN_LIMIT_PERCENT", "AS64496=100");
    assert_eq!(problems(&[UPSTREAM, off, all]), [""; 0]);

    let (file, path) = (
        ("WAF_LOOKUP_SOURCE", "file"),
        ("WAF_LOOKUP_DB_PATH", "/a.mmdb,/b"),
    );
    assert_eq!(settings(&[file, path]).lookup.db_paths.len(), 2);
    assert_eq!(
        problems(&[UPSTREAM, file]),
        [
            "WAF_LOOKUP_DB_PATH is not set: with WAF_LOOKUP_SOURCE=\"file\", expected the path of a database file"
        ]
    );
    assert_eq!(
        problems(&[UPSTREAM, file, ("WAF_LOOKUP_DB_PATH", ",")]).len(),
        1
    );
    for (pairs, source) in [
        (vec![UPSTREAM, path], "geojs"),
        (vec![UPSTREAM, path, off], "off"),
    ] {
        assert_eq!(
            problems(&pairs),
            [format!(
                "WAF_LOOKUP_DB_PATH=\"/a.mmdb,/b\" is set and WAF_LOOKUP_SOURCE={source:?}: expected a path with file only"
            )]
        );
    }
    assert_eq!(
        problems(&[UPSTREAM, ("WAF_LOOKUP_SOURCE", "url")]),
        [
            "WAF_LOOKUP_URL is not set: with WAF_LOOKUP_SOURCE=\"url\", expected the URL of a service"
        ]
    );
    assert_eq!(
        problems(&[
            UPSTREAM,
            ("WAF_ALLOW_COUNTRIES", "DE"),
            ("WAF_DENY_COUNTRIES", "FR")
        ]),
        ["WAF_DENY_COUNTRIES=\"FR\" is set and WAF_ALLOW_COUNTRIES too: expected only one of them"]
    );
    // CLIENT-8
    let hops = ("WAF_TRUSTED_HOPS", "2");
    assert_eq!(
        problems(&[UPSTREAM, ("WAF_TRUSTED_PROXIES", "10.0.0.1"), hops]),
        [
            "WAF_TRUSTED_HOPS=\"2\" is set and WAF_TRUSTED_PROXIES=\"10.0.0.1\" too: expected only one of them"
        ]
    );
    let fine = [UPSTREAM, ("WAF_TRUSTED_PROXIES", ""), hops];
    assert_eq!(problems(&fine), [""; 0]);
    let fine = [
        UPSTREAM,
        ("WAF_TRUSTED_PROXIES", "10.0.0.1"),
        ("WAF_TRUSTED_HOPS", "off"),
    ];
    assert_eq!(problems(&fine), [""; 0]);
    assert_eq!(
        warnings(&[
            off,
            ("WAF_UNKNOWN_LIMIT_PERCENT", "50"),
            ("WAF_ADD_LOOKUP_HEADERS", "1"),
            ("WAF_LOOKUP_URL", "http://[::1]:1/{ip}")
        ]),
        [
            "WAF_UNKNOWN_LIMIT_PERCENT=\"50\" lowers every client's limits: with WAF_LOOKUP_SOURCE=\"off\" no client's country is known",
            "WAF_ADD_LOOKUP_HEADERS adds nothing: with WAF_LOOKUP_SOURCE=\"off\" no client's country and AS are known",
            "WAF_LOOKUP_URL is not used: no service is asked with WAF_LOOKUP_SOURCE=\"off\"",
        ]
    );
}

#[test]
fn upstreams_are_read() {
    for (text, host, port) in [
        ("http://app", "app", 80),
        ("http://my_app.internal:3000", "my_app.internal", 3000),
        ("http://[2001:db8::1]", "2001:db8::1", 80),
        ("http://192.0.2.1:65535/", "192.0.2.1", 65535),
        ("localhost:3000", "localhost", 3000),
        ("app:3000", "app", 3000),
        ("[::1]:3000", "::1", 3000),
        (":3000", "localhost", 3000),
    ] {
        let upstream = settings(&[("WAF_UPSTREAM", text)]).upstream;
        let host = host.to_owned();
        assert_eq!(upstream, Upstream::Tcp { host, port });
    }
    let unix = settings(&[("WAF_UPSTREAM", "unix:/run/app.sock")]).upstream;
    assert_eq!(unix, Upstream::Unix("/run/app.sock".into()));
}

/// Section 12: a listen address without a host is every address, and a name is the loopback's.
#[test]
fn listen_addresses_are_read() {
    for (text, address) in [
        (":8081", "[::]:8081"),
        ("localhost:8081", "127.0.0.1:8081"),
        ("[::1]:0", "[::1]:0"),
    ] {
        let listen = settings(&[("WAF_LISTEN", text)]).listen;
        assert_eq!(listen, [Listen::plain(address.parse().unwrap())], "{text}");
    }
}

/// EDGE-1: a list of plain addresses, addresses of TLS, and Unix sockets.
#[test]
fn a_list_of_places_is_read() {
    let text = "0.0.0.0:80, [::1]:443, unix:/run/weir.sock, :0,:0";
    let listen = settings(&[("WAF_LISTEN", text), ("WAF_SOCKET_MODE", "666")]).listen;
    let shown: Vec<String> = listen.iter().map(Listen::to_string).collect();
    assert_eq!(
        shown,
        [
            "0.0.0.0:80",
            "[::1]:443",
            "unix:/run/weir.sock",
            "[::]:0",
            "[::]:0"
        ]
    );
}

/// EDGE-1: each invalid listen address has its reason; no address may appear twice.
#[test]
fn faulty_places_are_named() {
    let long = format!("unix:/{}", "x".repeat(120));
    for (text, fault) in [
        (",", "names no address"),
        (
            ":80,https://[::]:80",
            "has \"https://[::]:80\", where it listens already",
        ),
        (
            "unix:/a,unix:/a",
            "has \"unix:/a\", where it listens already",
        ),
        ("unix:", "names no file"),
        (
            &long,
            "is longer than 107 bytes, the longest path of a socket",
        ),
        ("https://x", "is not an address and a port"),
        (
            ":80,https://x",
            "has \"https://x\", which is not an address and a port",
        ),
    ] {
        let problems = problems(&[UPSTREAM, ("WAF_LISTEN", text)]);
        let expected = format!("WAF_LISTEN={text:?} {fault}: expected ");
        assert!(problems[0].starts_with(&expected), "{problems:?}");
    }
    for mode in ["0o660", "8", "0668", "17777", "rw"] {
        let problems = problems(&[UPSTREAM, ("WAF_SOCKET_MODE", mode)]);
        assert_eq!(problems.len(), 1, "{problems:?}");
    }
}

/// SETTING-1: a name in small letters, or with another prefix, is no setting; a warning names it if
/// it is otherwise a setting's name. Names of other programs are ignored.
#[test]
fn names_that_were_meant_are_hinted_at() {
    assert_eq!(
        warnings(&[
            ("WEIR_UPSTREAM", "http://app"),
            ("WEIR_BLESS", "1"),
            ("waf_mode", "observe"),
            ("Waf_Listen", ":1"),
            ("weir_listen", ":1"),
            ("mode", "observe"),
        ]),
        [
            "WEIR_UPSTREAM: unknown setting, ignored; did you mean WAF_UPSTREAM?",
            "Waf_Listen: unknown setting, ignored; did you mean WAF_LISTEN?",
            "waf_mode: unknown setting, ignored; did you mean WAF_MODE?",
            "weir_listen: unknown setting, ignored; did you mean WAF_LISTEN?",
        ]
    );
    let refused = read(&[("WEIR_UPSTREAM", "http://app")]).unwrap_err();
    assert_eq!(refused.problems.len(), 1);
    assert_eq!(
        refused.warnings,
        ["WEIR_UPSTREAM: unknown setting, ignored; did you mean WAF_UPSTREAM?"]
    );
}

/// SETTING-1: a netblock that is not what it looks like, or covers everybody, raises a warning and
/// is used.
#[test]
fn netblocks_that_surprise_are_warned_of() {
    assert_eq!(
        warnings(&[
            ("WAF_TRUSTED_PROXIES", "0.0.0.0/0"),
            (
                "WAF_ALLOW_NETS",
                "10.1.2.3/8,192.0.2.1,::/0,::ffff:192.0.2.0/120"
            ),
            ("WAF_DENY_NETS", "2001:db8::1/32, ::ffff:192.0.2.9/120"),
            ("WAF_WATCH_NETS", "office=192.0.2.7/24"),
        ]),
        [
            "WAF_TRUSTED_PROXIES has \"0.0.0.0/0\": whoever connects from there chooses the client that is charged",
            "WAF_ALLOW_NETS has \"10.1.2.3/8\", whose host bits are set: it is taken as 10.0.0.0/8",
            "WAF_ALLOW_NETS has \"::/0\": no client from there is checked",
            "WAF_DENY_NETS has \"2001:db8::1/32\", whose host bits are set: it is taken as 2001:db8::/32",
            "WAF_DENY_NETS has \"::ffff:192.0.2.9/120\", whose host bits are set: it is taken as 192.0.2.0/24",
            "WAF_WATCH_NETS has \"office=192.0.2.7/24\", whose host bits are set: it is taken as 192.0.2.0/24",
        ]
    );
}

/// SETTING-1: a token that can be guessed raises a warning that does not show it.
#[test]
fn a_short_token_is_warned_of() {
    for name in ["WAF_METRICS_TOKEN", "WAF_ADMIN_TOKEN"] {
        assert_eq!(
            warnings(&[(name, "fifteen-letters")]),
            [format!(
                "{name} has fewer than 16 characters: it can be guessed"
            )]
        );
        assert_eq!(warnings(&[(name, "sixteen--letters")]), [""; 0]);
    }
}

/// SETTING-1: an unknown name is a warning with the nearest known one, without its value.
#[test]
fn unknown_names_are_warnings() {
    assert_eq!(
        warnings(&[
            ("WAF_BANFIRST", "1h"),
            ("WAF_RATE_LIMIT_PER_MINUT", "1"),
            ("WAF_\x1b[2J\n", "1"),
            ("WAF_UNKNOWN", ""),
            ("PATH", "/bin"),
        ]),
        [
            "WAF_\\u{1b}[2J\\n: unknown setting, ignored",
            "WAF_BANFIRST: unknown setting, ignored; did you mean WAF_BAN_FIRST?",
            "WAF_RATE_LIMIT_PER_MINUT: unknown setting, ignored; did you mean WAF_RATE_LIMIT_PER_MINUTE?",
        ]
    );
}

/// LOG-1: headers that hold secrets are left out of the list with a warning.
#[test]
fn secret_headers_are_left_out_of_the_log() {
    let list = (
        "WAF_LOG_REQUEST_HEADERS",
        "accept,AUTHORIZATION,cookie,Set-Cookie",
    );
    assert_eq!(
        warnings(&[list]),
        ["Authorization", "Cookie", "Set-Cookie"].map(|name| format!(
            "WAF_LOG_REQUEST_HEADERS has {name}, whose value is never logged: it is left out"
        ))
    );
    assert_eq!(settings(&[list]).log.request_headers, ["accept"]);
}

/// SETTING-1: an empty value is unset.
#[test]
fn an_empty_value_is_unset() {
    let mut pairs: Vec<_> = all().map(|setting| (setting.name.as_str(), " ")).collect();
    assert_eq!(
        problems(&pairs),
        ["WAF_UPSTREAM is not set: expected http://host:port, the address of the application"]
    );
    pairs.retain(|(name, _)| *name != UPSTREAM.0);
    let (unset, empty) = (settings(&[]), settings(&pairs));
    assert_eq!(format!("{unset:?}"), format!("{empty:?}"));
}

/// Section 8: `WAF_STATE_DIR`, else `$STATE_DIRECTORY`, else `./state`.
#[test]
fn the_state_directory_is_the_service_managers() {
    let given = ("STATE_DIRECTORY", "/var/lib/weir:/var/lib/other");
    assert_eq!(settings(&[given]).state.dir, PathBuf::from("/var/lib/weir"));
    assert_eq!(
        settings(&[given, ("WAF_STATE_DIR", "/s")]).state.dir,
        PathBuf::from("/s")
    );
    assert_eq!(
        settings(&[("STATE_DIRECTORY", "")]).state.dir,
        PathBuf::from("./state")
    );
}

proptest! {
    /// Any input leads to settings or to sentences, one line each, and never to a panic.
    #[test]
    fn any_text_is_answered(row in 0..all().count(), text in "\\PC{0,20}|[0-9a-z./:,%\\[\\]-]{0,20}|(http://)?[0-9.:a\\[\\]]{0,12}|[0-9]{0,25}(ms|s|d|K|TB)?") {
        let row = all().nth(row).unwrap();
        for problem in problems(&[UPSTREAM, (&row.name, &text)]) {
            prop_assert!(!problem.contains('\n'));
            prop_assert!(problem.contains(&row.name) || text.is_empty());
        }
    }
}

/// RELOAD-1: the file's value is used if the environment has none, a name in both is reported, and
/// a fault is reported with its line.
#[test]
fn the_environment_wins_over_the_file() {
    let file = |text: &str| {
        let path = std::path::Path::new("/etc/weir.env");
        SettingsFile::parse(path, text.as_bytes()).expect("a settings file")
    };
    let environment = [UPSTREAM, ("WAF_MODE", "observe"), ("WAF_BAN_FIRST", "")];
    let environment = environment.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let text = "WAF_MODE=enforce\nWAF_BAN_FIRST=2h\nWAF_SETTINGS_FILE=x\nWAF_MOD=x\n";
    let loaded = load_with(environment.clone(), Some(&file(text))).unwrap();
    assert!(loaded.settings.observe);
    assert_eq!(loaded.settings.bans.policy.first, Duration::from_secs(7200));
    assert_eq!(
        loaded.warnings,
        [
            "WAF_MODE is set in the environment, which counts, and in settings file /etc/weir.env, line 1",
            "WAF_SETTINGS_FILE is ignored in the file itself (settings file /etc/weir.env, line 3)",
            "WAF_MOD: unknown setting, ignored; did you mean WAF_MODE? (settings file /etc/weir.env, line 4)",
        ]
    );
    let origin = |name: &str| {
        let mut named = loaded.listing.iter().filter(|one| one.name == name);
        named.next().map(|one| one.origin)
    };
    assert_eq!(origin("WAF_MODE"), Some(Origin::Environment));
    assert_eq!(origin("WAF_BAN_FIRST"), Some(Origin::File));
    assert_eq!(origin("WAF_WORKERS"), Some(Origin::Default));
    // As systemd reads it: nothing behind a value is a comment.
    let text = "WAF_STATE_DIR=/var/lib/weir\t# state\n";
    let loaded = load_with(environment.clone(), Some(&file(text))).unwrap();
    assert_eq!(
        loaded.warnings,
        [
            "WAF_STATE_DIR is all of \"/var/lib/weir\\t# state\" (settings file /etc/weir.env, line 1): a comment needs a line of its own"
        ]
    );
    let text = "\nWAF_BAN_FACTOR=0\nWAF_BAN_FIRST=8d\n";
    let refused = load_with(environment, Some(&file(text))).unwrap_err();
    assert_eq!(
        refused.problems,
        [
            "WAF_BAN_FACTOR=\"0\" is out of range: expected a whole number from 1 to 1000 (settings file /etc/weir.env, line 2)",
            "WAF_BAN_FIRST=\"8d\" is longer than WAF_BAN_PERMANENT_AFTER=\"7d\": expected a first ban that is not permanent (settings file /etc/weir.env, line 3)",
        ]
    );
}
