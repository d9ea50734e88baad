//! From what was written to what is trusted: every value read by its row, then what the settings mean together.
//!
//! Reads no files and asks nobody, but for the number of cores. Whether the address can be bound, the directory
//! written and the token file read is found out by those who use them.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use http::StatusCode;
use http::header::HeaderName;

use super::table::{Setting, TABLE};
use super::{
    AdminToken, Anomalies, BanResponse, BanSettings, BytesCount, ConnectionSettings, CountryList,
    EndpointSettings, IdentitySettings, LimitSettings, ListSettings, LogRequests, LogSettings,
    LookupSettings, LookupSource, RateLimitHeaders, Settings, StateSettings, TimeoutSettings,
    Upstream,
};
use crate::client::fold;
use crate::escalation::Policy;
use crate::netblock::{NetSet, PrefixLengths};
use crate::units::format_duration;

/// One fault, in one sentence.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct Problem(pub String);

/// Settings that can be trusted, and what to warn about.
#[derive(Debug)]
pub struct Loaded {
    /// The settings.
    pub settings: Settings,
    /// One sentence each.
    pub warnings: Vec<String>,
}

/// What the rows of the table write into.
pub(super) struct Draft {
    pub(super) settings: Settings,
    pub(super) warnings: Vec<String>,
}

/// Reads the settings from `(name, value)` pairs, as the environment gives them. Names that do not begin with `WAF_`
/// are passed over, but for `STATE_DIRECTORY`, the default of `WAF_STATE_DIR`. An empty value is unset.
///
/// # Errors
/// Every problem at once (SETTING-1), those of single settings in the order of the table first.
pub fn load(variables: impl IntoIterator<Item = (String, String)>) -> Result<Loaded, Vec<Problem>> {
    let written: BTreeMap<String, String> = variables
        .into_iter()
        .map(|(name, value)| (name, value.trim().to_owned()))
        .filter(|(_, value)| !value.is_empty())
        .collect();
    let mut draft = Draft {
        settings: unset(written.get("STATE_DIRECTORY")),
        warnings: unknown_names(&written),
    };
    let mut problems = Vec::new();
    let mut malformed = Vec::new();
    for row in TABLE {
        let value = match written.get(row.name) {
            Some(value) => value,
            None if row.default.is_empty() => continue,
            None => row.default,
        };
        if let Err(fault) = (row.read)(&mut draft, value) {
            malformed.push(row.name);
            for predicate in fault.0 {
                problems.push(problem(row, value, &predicate));
            }
        }
    }
    let together = Together {
        written: &written,
        malformed: &malformed,
    };
    problems.extend(together.problems(&draft.settings));
    draft.warnings.extend(together.warnings(&draft.settings));
    if problems.is_empty() {
        Ok(Loaded {
            settings: draft.settings,
            warnings: draft.warnings,
        })
    } else {
        Err(problems)
    }
}

fn problem(row: &Setting, value: &str, predicate: &str) -> Problem {
    let Setting { name, allowed, .. } = row;
    if row.secret {
        Problem(format!(
            "{name} (its value is not shown) {predicate}: {allowed} is allowed"
        ))
    } else {
        Problem(format!(
            "{name}={value:?} {predicate}: {allowed} is allowed"
        ))
    }
}

/// One warning for each unknown `WAF_*` name. Its value is not shown: it may be a token under a misspelt name.
fn unknown_names(written: &BTreeMap<String, String>) -> Vec<String> {
    let unknown = written.keys().filter(|name| {
        name.starts_with("WAF_") && TABLE.iter().all(|row| row.name != name.as_str())
    });
    unknown
        .map(|name| {
            let nearest = TABLE
                .iter()
                .map(|row| row.name)
                .min_by_key(|known| strsim::osa_distance(known, name))
                .unwrap_or_default();
            format!(
                "{} is no setting and is ignored: the nearest known name is {nearest}",
                name.escape_debug()
            )
        })
        .collect()
}

/// What settings mean together. A setting that is malformed by itself is left out: one fault, one sentence. (A
/// malformed address needs no such care: its port stays 0, which no sound one equals.)
struct Together<'a> {
    written: &'a BTreeMap<String, String>,
    malformed: &'a [&'static str],
}

impl Together<'_> {
    fn problems(&self, settings: &Settings) -> Vec<Problem> {
        let checks = [
            self.upstream_missing(),
            self.upstream_is_the_service(settings),
            self.first_ban_permanent(settings),
            self.both_tokens(),
            self.both_country_lists(),
            self.db_path(settings),
            self.url_missing(settings),
        ];
        let mut problems: Vec<String> = checks.into_iter().flatten().collect();
        problems.extend(self.needs_lookups(settings));
        problems.into_iter().map(Problem).collect()
    }

    /// What is allowed and does nothing.
    fn warnings(&self, settings: &Settings) -> Vec<String> {
        let lookup = &settings.lookup;
        let mut warnings = Vec::new();
        if settings.anomalies.watch.is_on() && settings.anomalies.watch_nets.is_empty() {
            warnings.push(
                "WAF_WATCH_* has thresholds but WAF_WATCH_NETS is not set: nothing is watched"
                    .to_owned(),
            );
        }
        if !self.are_sound(&["WAF_LOOKUP_SOURCE"]) {
            return warnings;
        }
        if lookup.source == LookupSource::Off {
            if lookup.percents.unknown < 100 {
                warnings.push(format!(
                    "WAF_UNKNOWN_LIMIT_PERCENT=\"{}\" lowers every client's limits: with WAF_LOOKUP_SOURCE=\"off\" no client's country is known",
                    lookup.percents.unknown
                ));
            }
            if lookup.add_headers {
                warnings.push(
                    "WAF_ADD_LOOKUP_HEADERS adds nothing: with WAF_LOOKUP_SOURCE=\"off\" no client's country and AS are known"
                        .to_owned(),
                );
            }
        }
        if !lookup.source.asks_a_service() {
            let unused = ["WAF_LOOKUP_URL", "WAF_LOOKUP_CA_FILE"]
                .into_iter()
                .filter(|name| self.written.contains_key(*name));
            for name in unused {
                warnings.push(format!(
                    "{name} is not used: no service is asked with WAF_LOOKUP_SOURCE={:?}",
                    self.source()
                ));
            }
        }
        warnings
    }

    fn are_sound(&self, names: &[&str]) -> bool {
        names.iter().all(|name| !self.malformed.contains(name))
    }

    fn upstream_missing(&self) -> Option<String> {
        let missing = !self.written.contains_key("WAF_UPSTREAM");
        missing.then(|| {
            "WAF_UPSTREAM is not set: http://host:port, the address of the application, is required"
                .to_owned()
        })
    }

    fn upstream_is_the_service(&self, settings: &Settings) -> Option<String> {
        let value = self.written.get("WAF_UPSTREAM")?;
        reaches(settings.listen, &settings.upstream).then(|| {
            format!(
                "WAF_UPSTREAM={value:?} is the service itself, which listens on {}: the address of another service is allowed",
                settings.listen
            )
        })
    }

    fn first_ban_permanent(&self, settings: &Settings) -> Option<String> {
        let Policy {
            first,
            permanent_after,
            ..
        } = settings.bans.policy;
        let sound = self.are_sound(&["WAF_BAN_FIRST", "WAF_BAN_PERMANENT_AFTER"]);
        (sound && first > permanent_after).then(|| {
            let value = |name, default| self.written.get(name).cloned().unwrap_or(default);
            format!(
                "WAF_BAN_FIRST={:?} is longer than WAF_BAN_PERMANENT_AFTER={:?}: a first ban that is not permanent is allowed",
                value("WAF_BAN_FIRST", format_duration(first)),
                value("WAF_BAN_PERMANENT_AFTER", format_duration(permanent_after)),
            )
        })
    }

    fn both_tokens(&self) -> Option<String> {
        let file = self.written.get("WAF_ADMIN_TOKEN_FILE")?;
        self.written.get("WAF_ADMIN_TOKEN").map(|_| {
            format!(
                "WAF_ADMIN_TOKEN_FILE={file:?} is set and WAF_ADMIN_TOKEN too: only one of them is allowed"
            )
        })
    }
}

impl Together<'_> {
    /// `WAF_LOOKUP_SOURCE` as written, or its default.
    fn source(&self) -> &str {
        self.written
            .get("WAF_LOOKUP_SOURCE")
            .map_or("geojs", String::as_str)
    }

    fn both_country_lists(&self) -> Option<String> {
        let deny = self.written.get("WAF_DENY_COUNTRIES")?;
        self.written.get("WAF_ALLOW_COUNTRIES").map(|_| {
            format!(
                "WAF_DENY_COUNTRIES={deny:?} is set and WAF_ALLOW_COUNTRIES too: only one of them is allowed"
            )
        })
    }

    /// Section 7 of the source, case 4.
    fn db_path(&self, settings: &Settings) -> Option<String> {
        if !self.are_sound(&["WAF_LOOKUP_SOURCE", "WAF_LOOKUP_DB_PATH"]) {
            return None;
        }
        let path = self.written.get("WAF_LOOKUP_DB_PATH");
        match (settings.lookup.source, path) {
            (LookupSource::File, _) if settings.lookup.db_paths.is_empty() => Some(
                "WAF_LOOKUP_DB_PATH is not set: with WAF_LOOKUP_SOURCE=\"file\" the path of a database file is required"
                    .to_owned(),
            ),
            (LookupSource::File, _) | (_, None) => None,
            (_, Some(path)) => Some(format!(
                "WAF_LOOKUP_DB_PATH={path:?} is set and WAF_LOOKUP_SOURCE={:?}: a path is allowed with file only",
                self.source()
            )),
        }
    }

    fn url_missing(&self, settings: &Settings) -> Option<String> {
        let missing = settings.lookup.source == LookupSource::Url
            && !self.written.contains_key("WAF_LOOKUP_URL");
        missing.then(|| {
            "WAF_LOOKUP_URL is not set: with WAF_LOOKUP_SOURCE=\"url\" the URL of a service is required"
                .to_owned()
        })
    }

    /// Section 7 of the source, cases 1 and 3; country lists as well (section 13, item 11).
    fn needs_lookups(&self, settings: &Settings) -> Vec<String> {
        if settings.lookup.source != LookupSource::Off || !self.are_sound(&["WAF_LOOKUP_SOURCE"]) {
            return Vec::new();
        }
        let mut names = settings.lookup.percents.lowering();
        match settings.lookup.countries {
            CountryList::None => {}
            CountryList::Allow(_) => names.push("WAF_ALLOW_COUNTRIES"),
            CountryList::Deny(_) => names.push("WAF_DENY_COUNTRIES"),
        }
        if settings.anomalies.asn.is_on() {
            let of_asn = TABLE.iter().map(|row| row.name);
            names.extend(of_asn.filter(|name| name.starts_with("WAF_ANOMALY_ASN_")));
        }
        names
            .into_iter()
            .filter_map(|name| Some((name, self.written.get(name)?)))
            .filter(|(_, value)| *value != "off")
            .map(|(name, value)| {
                format!(
                    "{name}={value:?} needs lookups and WAF_LOOKUP_SOURCE=\"off\": geojs, url or file is allowed with it"
                )
            })
            .collect()
    }
}

/// Whether a connection to `upstream` would arrive at `listen`, as far as the addresses tell: the addresses of the
/// machine's interfaces are not asked for.
fn reaches(listen: SocketAddr, upstream: &Upstream) -> bool {
    if listen.port() != upstream.port {
        return false;
    }
    let name = upstream.host.to_ascii_lowercase();
    let upstreams: &[IpAddr] = if name == "localhost" || name.ends_with(".localhost") {
        &[
            IpAddr::V4(Ipv4Addr::LOCALHOST),
            IpAddr::V6(Ipv6Addr::LOCALHOST),
        ]
    } else {
        match name.parse() {
            // A connection to the unspecified address goes to the loopback address.
            Ok(IpAddr::V4(v4)) if v4.is_unspecified() => &[IpAddr::V4(Ipv4Addr::LOCALHOST)],
            Ok(IpAddr::V6(v6)) if v6.is_unspecified() => &[IpAddr::V6(Ipv6Addr::LOCALHOST)],
            Ok(address) => &[fold(address)],
            Err(_) => return false,
        }
    };
    let listen = fold(listen.ip());
    upstreams.iter().any(|upstream| match (listen, upstream) {
        (IpAddr::V4(any), IpAddr::V4(to)) if any.is_unspecified() => to.is_loopback(),
        // A listener on [::] takes IPv4 connections too.
        (IpAddr::V6(any), to) if any.is_unspecified() => to.is_loopback(),
        (listen, to) => listen == *to,
    })
}

/// What holds where a setting has neither a value nor a default; the rows of the table write over it.
fn unset(state_directory: Option<&String>) -> Settings {
    // systemd may give several directories, separated by colons; the first is ours.
    let state_dir = state_directory
        .and_then(|list| list.split(':').find(|path| !path.is_empty()))
        .unwrap_or("./state");
    Settings {
        listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        upstream: Upstream {
            host: String::new(),
            port: 0,
        },
        observe: false,
        workers: std::thread::available_parallelism().map_or(1, |cores| cores.get().min(1024)),
        identity: IdentitySettings {
            trusted_proxies: NetSet::default(),
            header: HeaderName::from_static("x-forwarded-for"),
        },
        lists: ListSettings::default(),
        limits: LimitSettings {
            requests: [None; 3],
            bytes: [None; 3],
            bytes_count: BytesCount::Both,
            max_body_size: None,
            headers: RateLimitHeaders::Refused,
        },
        timeouts: TimeoutSettings::default(),
        connections: ConnectionSettings::default(),
        bans: BanSettings {
            policy: Policy::default(),
            prefixes: PrefixLengths::default(),
            response: BanResponse::Status(StatusCode::TOO_MANY_REQUESTS),
            max: 0,
        },
        lookup: LookupSettings::default(),
        state: StateSettings {
            dir: PathBuf::from(state_dir),
            ..StateSettings::default()
        },
        endpoints: EndpointSettings {
            metrics_token: None,
            metrics_top_n: 0,
            admin_token: AdminToken::Unset,
        },
        anomalies: Anomalies::default(),
        log: LogSettings {
            instance_name: None,
            requests: LogRequests::All,
            file: None,
            request_headers: Vec::new(),
            level: "info",
        },
    }
}

impl Default for Settings {
    /// What holds where nothing is set; the address of the application is empty.
    fn default() -> Self {
        let mut draft = Draft {
            settings: unset(None),
            warnings: Vec::new(),
        };
        for row in TABLE.iter().filter(|row| !row.default.is_empty()) {
            let read = (row.read)(&mut draft, row.default);
            debug_assert!(read.is_ok(), "{}", row.name);
        }
        draft.settings
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use proptest::prelude::*;

    const UPSTREAM: (&str, &str) = ("WAF_UPSTREAM", "http://127.0.0.1:9000");

    fn read(pairs: &[(&str, &str)]) -> Result<Loaded, Vec<String>> {
        load(
            pairs
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned())),
        )
        .map_err(|problems| problems.into_iter().map(|problem| problem.0).collect())
    }

    fn problems(pairs: &[(&str, &str)]) -> Vec<String> {
        read(pairs).map_or_else(|problems| problems, |_| Vec::new())
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
        let Loaded { settings, warnings } = read(&[UPSTREAM]).unwrap();
        let seconds = Duration::from_secs;
        assert_eq!(warnings, Vec::<String>::new());
        assert_eq!(settings.listen, "127.0.0.1:8080".parse().unwrap());
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
            [Some(1000), Some(10_000), Some(50_000)]
        );
        assert_eq!(
            settings.limits.bytes,
            [Some(10 << 30), Some(20 << 30), Some(50 << 30)]
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
        assert_eq!(settings.timeouts.websocket_idle, None);
        assert_eq!(settings.connections.max, 10_000);
        assert_eq!(settings.connections.max_per_client, 256);
        assert_eq!(settings.timeouts.shutdown, seconds(30));
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
        assert_eq!(settings.endpoints.metrics_token, None);
        assert_eq!(settings.endpoints.admin_token, AdminToken::Unset);
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
            ("WAF_SHUTDOWN_TIMEOUT", "0s"),
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
        assert_eq!(settings.listen, "[::1]:81".parse().unwrap());
        assert_eq!(settings.upstream.host, "app.internal");
        assert_eq!(settings.upstream.port, 3000);
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
        assert_eq!(settings.limits.requests, [Some(1), Some(2), None]);
        assert_eq!(settings.limits.bytes, [Some(4), None, Some(6000)]);
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
        assert_eq!(settings.timeouts.shutdown, seconds(0));
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
        assert_eq!(settings.endpoints.metrics_token.unwrap().bytes(), b"m");
        assert!(
            matches!(settings.endpoints.admin_token, AdminToken::Value(token) if token.bytes() == b"a")
        );
        assert_eq!(settings.log.instance_name.as_deref(), Some("eins"));
        assert_eq!(settings.log.requests, LogRequests::Refused);
        assert_eq!(settings.log.file, Some(PathBuf::from("/l")));
        assert_eq!(settings.log.request_headers, ["accept", "dnt"]);
        assert_eq!(settings.log.level, "debug");
        assert_eq!(settings.anomalies.cooldown, seconds(300));
        assert_eq!(settings.endpoints.metrics_top_n, 7);
    }

    const NETS: &str = "a list of addresses and prefixes without zones, such as 192.0.2.0/24,2001:db8::/32, is allowed";
    const SIZE: &str = "a size such as 64K, 100M or 10G (powers of 1024) or 100MB (powers of 1000) from 1 byte, or off, is allowed";
    const COUNT: &str = "a whole number from 1, or off, is allowed";
    const TIMEOUT: &str = "a duration such as 500ms, 90s or 1h30m from 1ms to 365d is allowed";
    const FROM_ZERO: &str = "a duration such as 500ms, 90s or 1h30m from 0s to 365d is allowed";
    const BAN_TIME: &str = "a duration such as 90s, 1h30m or 7d from 1ms to 36500d is allowed";
    const TOKEN: &str = "a text of visible ASCII characters without blanks is allowed";
    const LISTEN: &str = "an address and a port such as 127.0.0.1:8080 or [::]:8080 is allowed";
    const HEADER: &str = "a header name such as X-Forwarded-For, Forwarded or X-Real-IP is allowed";
    const PATHS: &str = "a list of path prefixes such as /static,/favicon.ico is allowed";
    const HEADERS: &str = "a list of header names other than Host and Transfer-Encoding is allowed";
    const COUNTRIES: &str = "a list of two-letter country codes and the word unknown, such as DE,AT,unknown, is allowed";
    const AS_PERCENTS: &str = "a list of AS numbers with percentages from 0 to 100, such as AS64496=50,AS64497=20, is allowed";
    const COUNTRY_PERCENTS: &str =
        "a list of country codes with percentages from 0 to 100, such as DE=50,XK=0, is allowed";
    const POINTER: &str = "a JSON Pointer such as /country_code or /data/0/asn is allowed";
    const LOOKUP_URL: &str = "an https:// URL, or http:// to a loopback address, with {ip} once in its path or query, is allowed";
    const STATUS: &str = "a status from 400 to 599, or drop, is allowed";

    /// SETTING-1: every malformed setting and what is said of it: name, value, what is wrong, what is allowed.
    const MALFORMED: &[(&str, &str, &str, &str)] = &[
        ("WAF_LISTEN", "8080", "is not an address and a port", LISTEN),
        (
            "WAF_LISTEN",
            "localhost:8080",
            "is not an address and a port",
            LISTEN,
        ),
        (
            "WAF_LISTEN",
            "127.0.0.1:65536",
            "is not an address and a port",
            LISTEN,
        ),
        (
            "WAF_UPSTREAM",
            "app:3000",
            "is not the address of an application",
            "http://host:port is allowed",
        ),
        (
            "WAF_UPSTREAM",
            "https://app:3000",
            "asks for TLS, which is not spoken to the application",
            "http://host:port is allowed",
        ),
        (
            "WAF_UPSTREAM",
            "http://",
            "is not the address of an application",
            "http://host:port is allowed",
        ),
        (
            "WAF_UPSTREAM",
            "http://app:0",
            "is not the address of an application",
            "http://host:port is allowed",
        ),
        (
            "WAF_UPSTREAM",
            "http://app:65536",
            "is not the address of an application",
            "http://host:port is allowed",
        ),
        (
            "WAF_UPSTREAM",
            "http://app:",
            "is not the address of an application",
            "http://host:port is allowed",
        ),
        (
            "WAF_UPSTREAM",
            "http://app/path",
            "is not the address of an application",
            "http://host:port is allowed",
        ),
        (
            "WAF_UPSTREAM",
            "http://user@app",
            "is not the address of an application",
            "http://host:port is allowed",
        ),
        (
            "WAF_UPSTREAM",
            "http://1.2.3.256",
            "is not the address of an application",
            "http://host:port is allowed",
        ),
        (
            "WAF_UPSTREAM",
            "http://::1:80",
            "is not the address of an application",
            "http://host:port is allowed",
        ),
        (
            "WAF_UPSTREAM",
            "http://[::1%eth0]:80",
            "is not the address of an application",
            "http://host:port is allowed",
        ),
        (
            "WAF_UPSTREAM",
            "http://[::1]80",
            "is not the address of an application",
            "http://host:port is allowed",
        ),
        (
            "WAF_MODE",
            "Observe",
            "is not known",
            "enforce or observe is allowed",
        ),
        (
            "WAF_WORKERS",
            "0",
            "is out of range",
            "1 to 1024 is allowed",
        ),
        (
            "WAF_WORKERS",
            "1025",
            "is out of range",
            "1 to 1024 is allowed",
        ),
        (
            "WAF_WORKERS",
            "+2",
            "is not a whole number",
            "1 to 1024 is allowed",
        ),
        (
            "WAF_TRUSTED_PROXIES",
            "lb",
            "has \"lb\", which is not a netblock",
            NETS,
        ),
        (
            "WAF_CLIENT_IP_HEADER",
            "X Real",
            "is not a header name",
            HEADER,
        ),
        (
            "WAF_ALLOW_NETS",
            "fe80::1%eth0",
            "has \"fe80::1%eth0\", which carries a zone",
            NETS,
        ),
        (
            "WAF_DENY_NETS",
            "192.0.2.0/24,192.0.2.0/33",
            "has \"192.0.2.0/33\", which is not a netblock",
            NETS,
        ),
        (
            "WAF_DENY_NETS",
            "fe80::%1/64",
            "has \"fe80::%1/64\", which carries a zone",
            NETS,
        ),
        (
            "WAF_EXEMPT_PATHS",
            "static",
            "has \"static\", which is not a path prefix",
            PATHS,
        ),
        (
            "WAF_EXEMPT_PATHS",
            "/a,/b?c",
            "has \"/b?c\", which is not a path prefix",
            PATHS,
        ),
        ("WAF_RATE_LIMIT_PER_MINUTE", "0", "is out of range", COUNT),
        (
            "WAF_RATE_LIMIT_PER_HOUR",
            "-1",
            "is not a whole number",
            COUNT,
        ),
        (
            "WAF_RATE_LIMIT_PER_DAY",
            "18446744073709551616",
            "is out of range",
            COUNT,
        ),
        ("WAF_BYTES_LIMIT_PER_MINUTE", "0", "is out of range", SIZE),
        ("WAF_BYTES_LIMIT_PER_HOUR", "10g", "is not a size", SIZE),
        ("WAF_BYTES_LIMIT_PER_DAY", "1.5G", "is not a size", SIZE),
        (
            "WAF_BYTES_COUNT",
            "none",
            "is not known",
            "both, request or response is allowed",
        ),
        ("WAF_MAX_BODY_SIZE", "99999999999T", "is not a size", SIZE),
        (
            "WAF_RATE_LIMIT_HEADERS",
            "on",
            "is not known",
            "off, refused or always is allowed",
        ),
        ("WAF_HEADER_TIMEOUT", "10", "is not a duration", TIMEOUT),
        ("WAF_BODY_TIMEOUT", "0s", "is out of range", TIMEOUT),
        ("WAF_KEEPALIVE_TIMEOUT", "off", "cannot be off", TIMEOUT),
        (
            "WAF_UPSTREAM_CONNECT_TIMEOUT",
            "366d",
            "is out of range",
            TIMEOUT,
        ),
        ("WAF_UPSTREAM_TIMEOUT", "1w", "is not a duration", TIMEOUT),
        (
            "WAF_UPSTREAM_KEEPALIVE",
            "x",
            "is not a duration",
            FROM_ZERO,
        ),
        (
            "WAF_WEBSOCKET_IDLE_TIMEOUT",
            "0s",
            "is out of range",
            "a duration such as 500ms, 90s or 1h30m from 1ms to 365d, or off, is allowed",
        ),
        (
            "WAF_MAX_CONNECTIONS",
            "off",
            "cannot be off",
            "1 to 1000000 is allowed",
        ),
        (
            "WAF_MAX_CONNECTIONS_PER_CLIENT",
            "1000001",
            "is out of range",
            "1 to 1000000 is allowed",
        ),
        (
            "WAF_SHUTDOWN_TIMEOUT",
            "-1s",
            "is not a duration",
            FROM_ZERO,
        ),
        ("WAF_BAN_FIRST", "off", "cannot be off", BAN_TIME),
        (
            "WAF_BAN_FACTOR",
            "off",
            "cannot be off",
            "1 to 1000 is allowed",
        ),
        (
            "WAF_BAN_FACTOR",
            "x",
            "is not a whole number",
            "1 to 1000 is allowed",
        ),
        (
            "WAF_BAN_FACTOR",
            "1001",
            "is out of range",
            "1 to 1000 is allowed",
        ),
        ("WAF_BAN_REPEAT_WINDOW", "off", "cannot be off", BAN_TIME),
        ("WAF_BAN_PERMANENT_AFTER", "off", "cannot be off", BAN_TIME),
        (
            "WAF_BAN_IPV4_PREFIX",
            "off",
            "cannot be off",
            "8 to 32 is allowed",
        ),
        (
            "WAF_BAN_IPV4_PREFIX",
            "7",
            "is out of range",
            "8 to 32 is allowed",
        ),
        (
            "WAF_BAN_IPV4_PREFIX",
            "33",
            "is out of range",
            "8 to 32 is allowed",
        ),
        (
            "WAF_BAN_IPV6_PREFIX",
            "off",
            "cannot be off",
            "16 to 64 is allowed",
        ),
        (
            "WAF_BAN_IPV6_PREFIX",
            "15",
            "is out of range",
            "16 to 64 is allowed",
        ),
        (
            "WAF_BAN_IPV6_PREFIX",
            "65",
            "is out of range",
            "16 to 64 is allowed",
        ),
        ("WAF_BAN_RESPONSE", "200", "is out of range", STATUS),
        ("WAF_BAN_RESPONSE", "reset", "is not a whole number", STATUS),
        (
            "WAF_MAX_BANS",
            "0",
            "is out of range",
            "1 to 1000000 is allowed",
        ),
        ("WAF_STATE_WRITE_DELAY", "1", "is not a duration", FROM_ZERO),
        (
            "WAF_STATE_COUNTER_INTERVAL",
            "off",
            "cannot be off",
            TIMEOUT,
        ),
        (
            "WAF_INSTANCE_NAME",
            "a\nb",
            "holds a control character",
            "a text of at most 128 bytes without control characters is allowed",
        ),
        (
            "WAF_LOG_REQUESTS",
            "none",
            "is not known",
            "all, refused or off is allowed",
        ),
        (
            "WAF_LOG_FILE",
            "/var/log/",
            "is a directory",
            "a file is allowed",
        ),
        (
            "WAF_LOG_REQUEST_HEADERS",
            "Accept,a b",
            "has \"a b\", which is not a header name",
            HEADERS,
        ),
        (
            "WAF_LOG_REQUEST_HEADERS",
            "Host",
            "has \"Host\", which cannot be logged",
            HEADERS,
        ),
        (
            "WAF_LOG_REQUEST_HEADERS",
            "transfer-encoding",
            "has \"transfer-encoding\", which cannot be logged",
            HEADERS,
        ),
        (
            "WAF_LOG_LEVEL",
            "verbose",
            "is not known",
            "error, warn, info, debug or trace is allowed",
        ),
        (
            "WAF_ALLOW_COUNTRIES",
            "DE,Germany",
            "has \"Germany\", which is not a country code",
            COUNTRIES,
        ),
        (
            "WAF_DENY_COUNTRIES",
            "Unknown",
            "has \"Unknown\", which is not a country code",
            COUNTRIES,
        ),
        (
            "WAF_ASN_LIMIT_PERCENT",
            "AS64496",
            "has \"AS64496\", which has no percentage",
            AS_PERCENTS,
        ),
        (
            "WAF_ASN_LIMIT_PERCENT",
            "AS64496=50%",
            "has \"AS64496=50%\", whose percentage is not a whole number",
            AS_PERCENTS,
        ),
        (
            "WAF_ASN_LIMIT_PERCENT",
            "AS64496=1,64496=2",
            "has \"64496\" twice",
            AS_PERCENTS,
        ),
        (
            "WAF_ASN_BYTES_PERCENT",
            "AS64512=50",
            "has \"AS64512\", which is not an AS number",
            AS_PERCENTS,
        ),
        (
            "WAF_COUNTRY_LIMIT_PERCENT",
            "DE=101",
            "has \"DE=101\", whose percentage is out of range",
            COUNTRY_PERCENTS,
        ),
        (
            "WAF_COUNTRY_BYTES_PERCENT",
            "unknown=5",
            "has \"unknown\", which is not a country code",
            COUNTRY_PERCENTS,
        ),
        (
            "WAF_UNKNOWN_LIMIT_PERCENT",
            "101",
            "is out of range",
            "0 to 100 is allowed",
        ),
        (
            "WAF_LOOKUP_SOURCE",
            "maxmind",
            "is not known",
            "geojs, url, file or off is allowed",
        ),
        (
            "WAF_LOOKUP_URL",
            "https://geo.example/",
            "has no {ip} in it",
            LOOKUP_URL,
        ),
        (
            "WAF_LOOKUP_URL",
            "https://geo.example/{ip}/{ip}",
            "has {ip} in it twice",
            LOOKUP_URL,
        ),
        (
            "WAF_LOOKUP_URL",
            "https://{ip}.geo.example/",
            "is not a URL",
            LOOKUP_URL,
        ),
        (
            "WAF_LOOKUP_URL",
            "https://user:word@geo.example/{ip}",
            "is not a URL",
            LOOKUP_URL,
        ),
        ("WAF_LOOKUP_URL", "/{ip}", "is not a URL", LOOKUP_URL),
        (
            "WAF_LOOKUP_URL",
            "ftp://geo/{ip}",
            "is not a URL",
            LOOKUP_URL,
        ),
        (
            "WAF_LOOKUP_URL",
            "http://geo.example/{ip}",
            "would send visitors' addresses unencrypted",
            LOOKUP_URL,
        ),
        (
            "WAF_LOOKUP_JSON_COUNTRY",
            "country",
            "is not a JSON Pointer",
            POINTER,
        ),
        (
            "WAF_LOOKUP_JSON_ASN",
            "/a~2",
            "is not a JSON Pointer",
            POINTER,
        ),
        (
            "WAF_LOOKUP_JSON_AS_NAME",
            "/a~",
            "is not a JSON Pointer",
            POINTER,
        ),
        (
            "WAF_LOOKUP_DB_PATH",
            "/db/",
            "has \"/db/\", which is a directory",
            "a list of .mmdb files such as country.mmdb,asn.mmdb is allowed",
        ),
        ("WAF_LOOKUP_TIMEOUT", "off", "cannot be off", TIMEOUT),
        ("WAF_LOOKUP_TIMEOUT", "0s", "is out of range", TIMEOUT),
        ("WAF_LOOKUP_TTL", "week", "is not a duration", TIMEOUT),
        (
            "WAF_ADD_LOOKUP_HEADERS",
            "yes",
            "is not known",
            "on or off is allowed",
        ),
        (
            "WAF_METRICS_TOP_N",
            "0",
            "is out of range",
            "1 to 1000 is allowed",
        ),
        ("WAF_ANOMALY_COOLDOWN", "off", "cannot be off", TIMEOUT),
        (
            "WAF_WATCH_NETS",
            "office",
            "has \"office\", which is not a netblock",
            "a list of netblocks without zones, with or without a name of letters, digits, dots, dashes and underscores, such as office=192.0.2.0/24,2001:db8::/32, is allowed",
        ),
    ];

    /// SETTING-1: each malformed value gives its one message and no other.
    #[test]
    fn every_malformed_setting_has_its_message() {
        for (name, value, wrong, allowed) in MALFORMED {
            let mut pairs = vec![(*name, *value)];
            if *name != "WAF_UPSTREAM" {
                pairs.push(UPSTREAM);
            }
            assert_eq!(
                problems(&pairs),
                [format!("{name}={value:?} {wrong}: {allowed}")]
            );
        }
        assert_eq!(
            problems(&[UPSTREAM, ("WAF_BAN_FACTOR", "x")]),
            ["WAF_BAN_FACTOR=\"x\" is not a whole number: 1 to 1000 is allowed"]
        );
    }

    /// ALERT-1, ALERT-3: each threshold arrives in its own field, is off by default and refuses what is none.
    #[test]
    fn every_threshold_has_its_field_and_its_message() {
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
                    let (wrong, allowed) = match unit {
                        "REQUESTS" => ("is not a whole number", COUNT),
                        _ => ("is not a size", SIZE),
                    };
                    assert_eq!(
                        problems(&[UPSTREAM, (&name, "x")]),
                        [format!("{name}=\"x\" {wrong}: {allowed}")]
                    );
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
        for (value, wrong) in [
            (
                "=192.0.2.0/24",
                "has \"=192.0.2.0/24\", whose name is not allowed",
            ),
            (
                "a b=192.0.2.0/24",
                "has \"a b=192.0.2.0/24\", whose name is not allowed",
            ),
            ("a=", "has \"a=\", which is not a netblock"),
            (
                "a=b=192.0.2.0/24",
                "has \"a=b=192.0.2.0/24\", which is not a netblock",
            ),
            (
                "a=192.0.2.1/24,b=192.0.2.2/24",
                "has \"b=192.0.2.2/24\", a netblock that stands there twice",
            ),
        ] {
            let allowed = "a list of netblocks without zones, with or without a name of letters, digits, dots, dashes and underscores, such as office=192.0.2.0/24,2001:db8::/32, is allowed";
            assert_eq!(
                problems(&[UPSTREAM, ("WAF_WATCH_NETS", value)]),
                [format!("WAF_WATCH_NETS={value:?} {wrong}: {allowed}")]
            );
        }
        assert_eq!(
            problems(&[UPSTREAM, ("WAF_WATCH_NETS", "x,fe80::1%a")]).len(),
            2
        );
    }

    /// Start condition 1: a threshold for AS numbers needs somebody who looks them up.
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
                    "{name}=\"9\" needs lookups and WAF_LOOKUP_SOURCE=\"off\": geojs, url or file is allowed with it"
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

    /// SETTING-1: no setting that can be malformed is missing above.
    #[test]
    fn the_malformed_settings_are_complete() {
        for row in TABLE {
            // Any text is a path; tokens and thresholds have tests of their own.
            let free = [
                "WAF_STATE_DIR",
                "WAF_ADMIN_TOKEN_FILE",
                "WAF_LOOKUP_CA_FILE",
            ]
            .contains(&row.name)
                || row.secret
                || row.name.contains("_REQUESTS_PER_")
                || row.name.contains("_BYTES_PER_");
            assert!(
                free || MALFORMED.iter().any(|(name, ..)| *name == row.name),
                "{}",
                row.name
            );
        }
    }

    /// SETTING-1, LOG-1: a token's value is in no message and in no debug output.
    #[test]
    fn a_token_is_never_shown() {
        for name in ["WAF_METRICS_TOKEN", "WAF_ADMIN_TOKEN"] {
            assert_eq!(
                problems(&[UPSTREAM, (name, "geheim nis")]),
                [format!(
                    "{name} (its value is not shown) holds a character that a header cannot carry: {TOKEN}"
                )]
            );
            let loaded = read(&[UPSTREAM, (name, "geheimnis"), ("WAF_TOKEN", "geheimnis")]);
            assert!(!format!("{loaded:?}").contains("geheimnis"));
        }
    }

    /// SETTING-1: all problems are reported together, those of one list too.
    #[test]
    fn all_problems_are_reported_together() {
        assert_eq!(
            problems(&[
                ("WAF_DENY_NETS", "x,fe80::1%a"),
                ("WAF_BAN_FACTOR", "0"),
                ("WAF_LISTEN", "x"),
                ("WAF_ADMIN_TOKEN", "geheimnis"),
                ("WAF_ADMIN_TOKEN_FILE", "/t"),
                ("WAF_BAN_FIRST", "8d"),
            ]),
            [
                format!("WAF_LISTEN=\"x\" is not an address and a port: {LISTEN}"),
                format!("WAF_DENY_NETS=\"x,fe80::1%a\" has \"x\", which is not a netblock: {NETS}"),
                format!("WAF_DENY_NETS=\"x,fe80::1%a\" has \"fe80::1%a\", which carries a zone: {NETS}"),
                "WAF_BAN_FACTOR=\"0\" is out of range: 1 to 1000 is allowed".to_owned(),
                "WAF_UPSTREAM is not set: http://host:port, the address of the application, is required".to_owned(),
                "WAF_BAN_FIRST=\"8d\" is longer than WAF_BAN_PERMANENT_AFTER=\"7d\": a first ban that is not permanent is allowed".to_owned(),
                "WAF_ADMIN_TOKEN_FILE=\"/t\" is set and WAF_ADMIN_TOKEN too: only one of them is allowed".to_owned(),
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
                "WAF_BAN_FIRST=\"1h\" is longer than WAF_BAN_PERMANENT_AFTER=\"59m\": a first ban that is not permanent is allowed"
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
                "WAF_UPSTREAM={upstream:?} is the service itself, which listens on {listen}: the address of another service is allowed"
            );
            let expected = if itself { vec![message] } else { vec![] };
            let pairs = [("WAF_LISTEN", listen), ("WAF_UPSTREAM", upstream)];
            assert_eq!(problems(&pairs), expected, "{listen} {upstream}");
        }
    }

    /// SETTING-2, source section 7, cases 3 and 4, and section 13, item 11: settings that contradict the source of
    /// lookups stop the start, each with its sentence; what merely does nothing is a warning.
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
                    "{name}={value:?} needs lookups and WAF_LOOKUP_SOURCE=\"off\": geojs, url or file is allowed with it"
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
                "WAF_LOOKUP_DB_PATH is not set: with WAF_LOOKUP_SOURCE=\"file\" the path of a database file is required"
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
                    "WAF_LOOKUP_DB_PATH=\"/a.mmdb,/b\" is set and WAF_LOOKUP_SOURCE={source:?}: a path is allowed with file only"
                )]
            );
        }
        assert_eq!(
            problems(&[UPSTREAM, ("WAF_LOOKUP_SOURCE", "url")]),
            [
                "WAF_LOOKUP_URL is not set: with WAF_LOOKUP_SOURCE=\"url\" the URL of a service is required"
            ]
        );
        assert_eq!(
            problems(&[
                UPSTREAM,
                ("WAF_ALLOW_COUNTRIES", "DE"),
                ("WAF_DENY_COUNTRIES", "FR")
            ]),
            [
                "WAF_DENY_COUNTRIES=\"FR\" is set and WAF_ALLOW_COUNTRIES too: only one of them is allowed"
            ]
        );
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
        ] {
            let upstream = settings(&[("WAF_UPSTREAM", text)]).upstream;
            assert_eq!((upstream.host.as_str(), upstream.port), (host, port));
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
                ("waf_mode", "observe"),
                ("PATH", "/bin"),
            ]),
            [
                "WAF_\\u{1b}[2J\\n is no setting and is ignored: the nearest known name is WAF_MODE",
                "WAF_BANFIRST is no setting and is ignored: the nearest known name is WAF_BAN_FIRST",
                "WAF_RATE_LIMIT_PER_MINUT is no setting and is ignored: the nearest known name is WAF_RATE_LIMIT_PER_MINUTE",
            ]
        );
    }

    /// LOG-1: headers that hold secrets are left out of the list with a warning (section 13, item 17).
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

    /// SETTING-1: an empty value is unset (section 13, item 18).
    #[test]
    fn an_empty_value_is_unset() {
        let mut pairs: Vec<_> = TABLE.iter().map(|row| (row.name, " ")).collect();
        assert_eq!(
            problems(&pairs),
            [
                "WAF_UPSTREAM is not set: http://host:port, the address of the application, is required"
            ]
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
        /// Whatever is written, the answer is settings or sentences, one line each, and never a panic.
        #[test]
        fn any_text_is_answered(row in 0..TABLE.len(), text in "\\PC{0,20}|[0-9a-z./:,%\\[\\]-]{0,20}|(http://)?[0-9.:a\\[\\]]{0,12}|[0-9]{0,25}(ms|s|d|K|TB)?") {
            let row = &TABLE[row];
            for problem in problems(&[UPSTREAM, (row.name, &text)]) {
                prop_assert!(!problem.contains('\n'));
                prop_assert!(problem.contains(row.name) || text.is_empty());
            }
        }
    }
}
