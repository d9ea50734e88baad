//! The one table of settings: a row is a name, its default, what is allowed, what it does, and how it is read.
//!
//! A new setting is one row here and one field in [`Settings`](super::Settings). The README's table is rendered from
//! these rows (SETTING-3); what settings mean together is checked in `load.rs`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use http::{StatusCode, header};

use super::load::Draft;
use super::lookup::{
    GEOJS_URL, LookupUrl, asn_percents, countries, country_percents, paths, pointer,
};
use super::read::{
    Fault, boolean, duration, entries, header_name, nets, or_off, path_prefix, size, token,
    upstream, watch_nets, whole, word,
};
use super::{
    AdminToken, BanResponse, BytesCount, CountryList, LogRequests, LookupSource, RateLimitHeaders,
};

/// One row of the table.
#[derive(Debug)]
pub struct Setting {
    /// `WAF_…`
    pub name: &'static str,
    /// As it would be written; empty where there is none.
    pub default: &'static str,
    /// What holds where neither a value nor a default is written.
    pub unset: &'static str,
    /// What is allowed.
    pub allowed: &'static str,
    /// What it does, one sentence for the README.
    pub help: &'static str,
    /// Whether the value is a token, which no message may show (LOG-1).
    pub secret: bool,
    /// Reads a value into the draft.
    pub(super) read: fn(&mut Draft, &str) -> Result<(), Fault>,
}

/// What a row is where it does not say otherwise.
const ROW: Setting = Setting {
    name: "",
    default: "",
    unset: "–",
    allowed: "",
    help: "",
    secret: false,
    read: |_, _| Ok(()),
};

/// Headers that hold secrets (LOG-1).
const NEVER_LOGGED: [&str; 3] = ["Authorization", "Cookie", "Set-Cookie"];
const NETS: &str =
    "a list of addresses and prefixes without zones, such as 192.0.2.0/24,2001:db8::/32,";
const COUNTRIES: &str =
    "a list of two-letter country codes and the word unknown, such as DE,AT,unknown,";
const POINTER: &str = "a JSON Pointer such as /country_code or /data/0/asn";
const COUNT: &str = "a whole number from 1, or off,";
const SIZE: &str = "a size such as 64K, 100M or 10G (powers of 1024) or 100MB (powers of 1000) from 1 byte, or off,";
/// A time-out beyond this is a slip of the unit, and further on timers overflow.
const YEAR: Duration = Duration::from_secs(365 * 86_400);
const CENTURY: Duration = Duration::from_secs(36_500 * 86_400);
const MS: Duration = Duration::from_millis(1);
const TIMEOUT: &str = "a duration such as 500ms, 90s or 1h30m from 1ms to 365d";
const TIMEOUT_OR_ZERO: &str = "a duration such as 500ms, 90s or 1h30m from 0s to 365d";
const BAN_TIME: &str = "a duration such as 90s, 1h30m or 7d from 1ms to 36500d";

/// Every setting, in the order of the README.
pub const TABLE: &[Setting] = &[
    Setting {
        name: "WAF_LISTEN",
        default: "127.0.0.1:8080",
        allowed: "an address and a port such as 127.0.0.1:8080 or [::]:8080",
        help: "Where the service listens.",
        read: |draft, text| {
            draft.settings.listen = text
                .parse::<SocketAddr>()
                .map_err(|_| "is not an address and a port".to_owned())?;
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_UPSTREAM",
        unset: "(required)",
        allowed: "http://host:port",
        help: "The application; without a port, 80.",
        read: |draft, text| {
            draft.settings.upstream = upstream(text)?;
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_MODE",
        default: "enforce",
        allowed: "enforce or observe",
        help: "In observe mode everything is decided, counted and logged, and nothing is refused.",
        read: |draft, text| {
            draft.settings.observe = word(text, &[("enforce", false), ("observe", true)])?;
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_WORKERS",
        unset: "number of cores",
        allowed: "1 to 1024",
        help: "Data-plane threads.",
        read: |draft, text| {
            draft.settings.workers = whole(text, 1..=1024)?;
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_TRUSTED_PROXIES",
        allowed: NETS,
        help: "Peers whose forwarding headers are believed; empty: nobody's.",
        read: |draft, text| {
            draft.settings.identity.trusted_proxies = nets(text)?;
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_CLIENT_IP_HEADER",
        default: "X-Forwarded-For",
        allowed: "a header name such as X-Forwarded-For, Forwarded or X-Real-IP",
        help: "The header in which trusted proxies name the client.",
        read: |draft, text| {
            draft.settings.identity.header =
                header_name(text).ok_or_else(|| "is not a header name".to_owned())?;
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_ALLOW_NETS",
        allowed: NETS,
        help: "Clients that skip every check.",
        read: |draft, text| {
            draft.settings.lists.allow_nets = nets(text)?;
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_DENY_NETS",
        allowed: NETS,
        help: "Clients that are refused with WAF_BAN_RESPONSE.",
        read: |draft, text| {
            draft.settings.lists.deny_nets = nets(text)?;
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_ALLOW_COUNTRIES",
        allowed: COUNTRIES,
        help: "Only clients of these countries are served; unknown stands for those without a country.",
        read: |draft, text| {
            draft.settings.lookup.countries = CountryList::Allow(countries(text)?);
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_DENY_COUNTRIES",
        allowed: COUNTRIES,
        help: "Clients of these countries are refused with WAF_BAN_RESPONSE.",
        read: |draft, text| {
            draft.settings.lookup.countries = CountryList::Deny(countries(text)?);
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_EXEMPT_PATHS",
        allowed: "a list of path prefixes such as /static,/favicon.ico",
        help: "Paths that no limit counts, matched by whole segments.",
        read: |draft, text| {
            let mut faults = Vec::new();
            for entry in entries(text) {
                match path_prefix(entry) {
                    Some(prefix) => draft.settings.lists.exempt_paths.push(prefix),
                    None => faults.push(format!("has {entry:?}, which is not a path prefix")),
                }
            }
            Fault::unless_empty(faults)
        },
        ..ROW
    },
    Setting {
        name: "WAF_RATE_LIMIT_PER_MINUTE",
        default: "1000",
        allowed: COUNT,
        help: "Requests of a client in a minute.",
        read: |draft, text| {
            draft.settings.limits.requests[0] = or_off(text, |text| whole(text, 1..=u64::MAX))?;
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_RATE_LIMIT_PER_HOUR",
        default: "10000",
        allowed: COUNT,
        help: "Requests of a client in an hour.",
        read: |draft, text| {
            draft.settings.limits.requests[1] = or_off(text, |text| whole(text, 1..=u64::MAX))?;
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_RATE_LIMIT_PER_DAY",
        default: "50000",
        allowed: COUNT,
        help: "Requests of a client in a day.",
        read: |draft, text| {
            draft.settings.limits.requests[2] = or_off(text, |text| whole(text, 1..=u64::MAX))?;
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_BYTES_LIMIT_PER_MINUTE",
        default: "10G",
        allowed: SIZE,
        help: "Bytes of a client in a minute.",
        read: |draft, text| {
            draft.settings.limits.bytes[0] = or_off(text, size)?;
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_BYTES_LIMIT_PER_HOUR",
        default: "20G",
        allowed: SIZE,
        help: "Bytes of a client in an hour.",
        read: |draft, text| {
            draft.settings.limits.bytes[1] = or_off(text, size)?;
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_BYTES_LIMIT_PER_DAY",
        default: "50G",
        allowed: SIZE,
        help: "Bytes of a client in a day.",
        read: |draft, text| {
            draft.settings.limits.bytes[2] = or_off(text, size)?;
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_ASN_LIMIT_PERCENT",
        allowed: "a list of AS numbers with percentages from 0 to 100, such as AS64496=50,AS64497=20,",
        help: "Percentage of every rate and byte limit for clients of these AS numbers, rounded down; the lowest that applies counts.",
        read: |draft, text| {
            draft.settings.lookup.percents.asn = asn_percents(text)?;
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_COUNTRY_LIMIT_PERCENT",
        allowed: "a list of country codes with percentages from 0 to 100, such as DE=50,XK=0,",
        help: "The same for clients of these countries.",
        read: |draft, text| {
            draft.settings.lookup.percents.country = country_percents(text)?;
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_ASN_BYTES_PERCENT",
        allowed: "a list of AS numbers with percentages from 0 to 100, such as AS64496=50,AS64497=20,",
        help: "Replaces WAF_ASN_LIMIT_PERCENT for the byte limits of the AS numbers it lists.",
        read: |draft, text| {
            draft.settings.lookup.percents.asn_bytes = asn_percents(text)?;
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_COUNTRY_BYTES_PERCENT",
        allowed: "a list of country codes with percentages from 0 to 100, such as DE=50,XK=0,",
        help: "Replaces WAF_COUNTRY_LIMIT_PERCENT for the byte limits of the countries it lists.",
        read: |draft, text| {
            draft.settings.lookup.percents.country_bytes = country_percents(text)?;
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_UNKNOWN_LIMIT_PERCENT",
        default: "100",
        allowed: "0 to 100",
        help: "The same for clients without a country, whatever their AS number.",
        read: |draft, text| {
            draft.settings.lookup.percents.unknown = whole(text, 0..=100)?;
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_BYTES_COUNT",
        default: "both",
        allowed: "both, request or response",
        help: "Which bodies the byte limits count.",
        read: |draft, text| {
            draft.settings.limits.bytes_count = word(
                text,
                &[
                    ("both", BytesCount::Both),
                    ("request", BytesCount::Request),
                    ("response", BytesCount::Response),
                ],
            )?;
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_MAX_BODY_SIZE",
        default: "100M",
        allowed: SIZE,
        help: "A larger request body is answered 413.",
        read: |draft, text| {
            draft.settings.limits.max_body_size = or_off(text, size)?;
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_RATE_LIMIT_HEADERS",
        default: "refused",
        allowed: "off, refused or always",
        help: "Which answers carry RateLimit and RateLimit-Policy.",
        read: |draft, text| {
            draft.settings.limits.headers = word(
                text,
                &[
                    ("off", RateLimitHeaders::Off),
                    ("refused", RateLimitHeaders::Refused),
                    ("always", RateLimitHeaders::Always),
                ],
            )?;
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_HEADER_TIMEOUT",
        default: "10s",
        allowed: TIMEOUT,
        help: "For the whole head of a request.",
        read: |draft, text| {
            draft.settings.timeouts.header = duration(text, MS..=YEAR)?;
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_BODY_TIMEOUT",
        default: "60s",
        allowed: TIMEOUT,
        help: "Without a byte of the request's body.",
        read: |draft, text| {
            draft.settings.timeouts.body = duration(text, MS..=YEAR)?;
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_KEEPALIVE_TIMEOUT",
        default: "75s",
        allowed: TIMEOUT,
        help: "Between two requests of a connection.",
        read: |draft, text| {
            draft.settings.timeouts.keepalive = duration(text, MS..=YEAR)?;
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_UPSTREAM_CONNECT_TIMEOUT",
        default: "5s",
        allowed: TIMEOUT,
        help: "For a connection to the application; then 502.",
        read: |draft, text| {
            draft.settings.timeouts.upstream_connect = duration(text, MS..=YEAR)?;
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_UPSTREAM_TIMEOUT",
        default: "60s",
        allowed: TIMEOUT,
        help: "Without a byte from the application; then 504.",
        read: |draft, text| {
            draft.settings.timeouts.upstream = duration(text, MS..=YEAR)?;
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_UPSTREAM_KEEPALIVE",
        default: "4s",
        allowed: TIMEOUT_OR_ZERO,
        help: "How long an idle connection to the application is kept; keep it below the application's own time-out.",
        read: |draft, text| {
            draft.settings.timeouts.upstream_keepalive = duration(text, Duration::ZERO..=YEAR)?;
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_WEBSOCKET_IDLE_TIMEOUT",
        default: "off",
        allowed: "a duration such as 500ms, 90s or 1h30m from 1ms to 365d, or off,",
        help: "Without a byte either way on a WebSocket.",
        read: |draft, text| {
            draft.settings.timeouts.websocket_idle =
                or_off(text, |text| duration(text, MS..=YEAR))?;
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_MAX_CONNECTIONS",
        default: "10000",
        allowed: "1 to 1000000",
        help: "Connections in all; further ones are closed at once and counted.",
        read: |draft, text| {
            draft.settings.connections.max = whole(text, 1..=1_000_000)?;
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_MAX_CONNECTIONS_PER_CLIENT",
        default: "256",
        allowed: "1 to 1000000",
        help: "The same for one client; trusted proxies are not bound by it.",
        read: |draft, text| {
            draft.settings.connections.max_per_client = whole(text, 1..=1_000_000)?;
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_SHUTDOWN_TIMEOUT",
        default: "30s",
        allowed: TIMEOUT_OR_ZERO,
        help: "How long running answers may take to end at a stop.",
        read: |draft, text| {
            draft.settings.timeouts.shutdown = duration(text, Duration::ZERO..=YEAR)?;
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_BAN_FIRST",
        default: "1h",
        allowed: BAN_TIME,
        help: "Length of the first ban of a netblock.",
        read: |draft, text| {
            draft.settings.bans.policy.first = duration(text, MS..=CENTURY)?;
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_BAN_FACTOR",
        default: "3",
        allowed: "1 to 1000",
        help: "A repeated ban lasts this many times the one before.",
        read: |draft, text| {
            draft.settings.bans.policy.factor = whole(text, 1..=1000)?;
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_BAN_REPEAT_WINDOW",
        default: "1d",
        allowed: BAN_TIME,
        help: "How long after its end a ban counts for the next one's length.",
        read: |draft, text| {
            draft.settings.bans.policy.repeat_window = duration(text, MS..=CENTURY)?;
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_BAN_PERMANENT_AFTER",
        default: "7d",
        allowed: BAN_TIME,
        help: "A ban that would last longer is permanent.",
        read: |draft, text| {
            draft.settings.bans.policy.permanent_after = duration(text, MS..=CENTURY)?;
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_BAN_IPV4_PREFIX",
        default: "24",
        allowed: "8 to 32",
        help: "Prefix length of the netblock that is banned with an IPv4 client.",
        read: |draft, text| {
            draft.settings.bans.prefixes.v4 = whole(text, 8..=32)?;
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_BAN_IPV6_PREFIX",
        default: "56",
        allowed: "16 to 64",
        help: "The same for an IPv6 client.",
        read: |draft, text| {
            draft.settings.bans.prefixes.v6 = whole(text, 16..=64)?;
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_BAN_RESPONSE",
        default: "429",
        allowed: "a status from 400 to 599, or drop,",
        help: "The answer to a banned or denied client; drop closes the connection unanswered.",
        read: |draft, text| {
            draft.settings.bans.response = if text == "drop" {
                BanResponse::Drop
            } else {
                let status = whole(text, 400..=599)?;
                BanResponse::Status(
                    StatusCode::from_u16(status).map_err(|_| "is not a status".to_owned())?,
                )
            };
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_MAX_BANS",
        default: "10000",
        allowed: "1 to 1000000",
        help: "Bans held, ended and lifted ones included.",
        read: |draft, text| {
            draft.settings.bans.max = whole(text, 1..=1_000_000)?;
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_LOOKUP_SOURCE",
        default: "geojs",
        allowed: "geojs, url, file or off",
        help: "Who tells country and AS of each new client: get.geojs.io, WAF_LOOKUP_URL, the files of WAF_LOOKUP_DB_PATH, or nobody.",
        read: |draft, text| {
            draft.settings.lookup.source = word(
                text,
                &[
                    ("geojs", LookupSource::Geojs),
                    ("url", LookupSource::Url),
                    ("file", LookupSource::File),
                    ("off", LookupSource::Off),
                ],
            )?;
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_LOOKUP_URL",
        default: GEOJS_URL,
        allowed: "an https:// URL, or http:// to a loopback address, with {ip} once in its path or query,",
        help: "The service to ask; with geojs, another host that speaks as it does.",
        read: |draft, text| {
            draft.settings.lookup.url = LookupUrl::parse(text)?;
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_LOOKUP_JSON_COUNTRY",
        default: "/country_code",
        allowed: POINTER,
        help: "Where the country code stands in the service's answer.",
        read: |draft, text| {
            draft.settings.lookup.json_country = pointer(text)?;
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_LOOKUP_JSON_ASN",
        default: "/asn",
        allowed: POINTER,
        help: "Where the AS number stands: 15169, AS15169 or AS15169 Name.",
        read: |draft, text| {
            draft.settings.lookup.json_asn = pointer(text)?;
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_LOOKUP_JSON_AS_NAME",
        default: "/organization_name",
        allowed: POINTER,
        help: "Where the name of the AS stands.",
        read: |draft, text| {
            draft.settings.lookup.json_as_name = pointer(text)?;
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_LOOKUP_CA_FILE",
        unset: "Mozilla's roots",
        allowed: "a file",
        help: "PEM certificates that are trusted besides Mozilla's roots, for the service that is asked.",
        read: |draft, text| {
            draft.settings.lookup.ca_file = Some(PathBuf::from(text));
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_LOOKUP_DB_PATH",
        allowed: "a list of .mmdb files such as country.mmdb,asn.mmdb",
        help: "The database files, required with file; read again 2 seconds after their last change.",
        read: |draft, text| {
            draft.settings.lookup.db_paths = paths(text)?;
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_LOOKUP_TIMEOUT",
        default: "1s",
        allowed: TIMEOUT,
        help: "For one lookup, and the longest that a request waits for it.",
        read: |draft, text| {
            draft.settings.lookup.timeout = duration(text, MS..=YEAR)?;
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_LOOKUP_TTL",
        default: "7d",
        allowed: TIMEOUT,
        help: "How long an answer of the service is kept.",
        read: |draft, text| {
            draft.settings.lookup.ttl = duration(text, MS..=YEAR)?;
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_ADD_LOOKUP_HEADERS",
        default: "off",
        allowed: "on or off",
        help: "Adds X-Client-ASN and X-Client-Country, where known, to the request that the application gets.",
        read: |draft, text| {
            draft.settings.lookup.add_headers = boolean(text)?;
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_STATE_DIR",
        unset: "`$STATE_DIRECTORY`, else `./state`",
        allowed: "a directory",
        help: "Where the state files are.",
        read: |draft, text| {
            draft.settings.state.dir = PathBuf::from(text);
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_STATE_WRITE_DELAY",
        default: "1s",
        allowed: TIMEOUT_OR_ZERO,
        help: "From a ban to the write of bans.json.",
        read: |draft, text| {
            draft.settings.state.write_delay = duration(text, Duration::ZERO..=YEAR)?;
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_STATE_COUNTER_INTERVAL",
        default: "60s",
        allowed: TIMEOUT,
        help: "Between two writes of every state file.",
        read: |draft, text| {
            draft.settings.state.counter_interval = duration(text, MS..=YEAR)?;
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_METRICS_TOKEN",
        allowed: "a text of visible ASCII characters without blanks",
        help: "Token of `/_waf/metrics`; unset: 404.",
        secret: true,
        read: |draft, text| {
            draft.settings.endpoints.metrics_token = Some(token(text)?);
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_METRICS_TOP_N",
        default: "20",
        allowed: "1 to 1000",
        help: "Countries, and AS numbers, that have a metric of their own; the rest is `other`.",
        read: |draft, text| {
            draft.settings.endpoints.metrics_top_n = whole(text, 1..=1000)?;
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_ADMIN_TOKEN",
        allowed: "a text of visible ASCII characters without blanks",
        help: "Token of the admin endpoints; unset: 404.",
        secret: true,
        read: |draft, text| {
            draft.settings.endpoints.admin_token = AdminToken::Value(token(text)?);
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_ADMIN_TOKEN_FILE",
        allowed: "a file",
        help: "A file that holds that token instead; read again on SIGHUP.",
        read: |draft, text| {
            draft.settings.endpoints.admin_token = AdminToken::File(PathBuf::from(text));
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_ANOMALY_CLIENT_REQUESTS_PER_MINUTE",
        default: "off",
        allowed: COUNT,
        help: "An alert when one client has more requests in a minute; refuses nothing.",
        read: |draft, text| {
            draft.settings.anomalies.client.requests[0] =
                or_off(text, |text| whole(text, 1..=u64::MAX))?;
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_ANOMALY_CLIENT_REQUESTS_PER_HOUR",
        default: "off",
        allowed: COUNT,
        help: "An alert when one client has more requests in an hour; refuses nothing.",
        read: |draft, text| {
            draft.settings.anomalies.client.requests[1] =
                or_off(text, |text| whole(text, 1..=u64::MAX))?;
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_ANOMALY_CLIENT_BYTES_PER_MINUTE",
        default: "off",
        allowed: SIZE,
        help: "An alert when one client has more bytes in a minute; refuses nothing.",
        read: |draft, text| {
            draft.settings.anomalies.client.bytes[0] = or_off(text, size)?;
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_ANOMALY_CLIENT_BYTES_PER_HOUR",
        default: "off",
        allowed: SIZE,
        help: "An alert when one client has more bytes in an hour; refuses nothing.",
        read: |draft, text| {
            draft.settings.anomalies.client.bytes[1] = or_off(text, size)?;
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_ANOMALY_NET_REQUESTS_PER_MINUTE",
        default: "off",
        allowed: COUNT,
        help: "An alert when one netblock of clients has more requests in a minute; refuses nothing.",
        read: |draft, text| {
            draft.settings.anomalies.net.requests[0] =
                or_off(text, |text| whole(text, 1..=u64::MAX))?;
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_ANOMALY_NET_REQUESTS_PER_HOUR",
        default: "off",
        allowed: COUNT,
        help: "An alert when one netblock of clients has more requests in an hour; refuses nothing.",
        read: |draft, text| {
            draft.settings.anomalies.net.requests[1] =
                or_off(text, |text| whole(text, 1..=u64::MAX))?;
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_ANOMALY_NET_BYTES_PER_MINUTE",
        default: "off",
        allowed: SIZE,
        help: "An alert when one netblock of clients has more bytes in a minute; refuses nothing.",
        read: |draft, text| {
            draft.settings.anomalies.net.bytes[0] = or_off(text, size)?;
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_ANOMALY_NET_BYTES_PER_HOUR",
        default: "off",
        allowed: SIZE,
        help: "An alert when one netblock of clients has more bytes in an hour; refuses nothing.",
        read: |draft, text| {
            draft.settings.anomalies.net.bytes[1] = or_off(text, size)?;
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_ANOMALY_ASN_REQUESTS_PER_MINUTE",
        default: "off",
        allowed: COUNT,
        help: "An alert when one AS number has more requests in a minute; refuses nothing.",
        read: |draft, text| {
            draft.settings.anomalies.asn.requests[0] =
                or_off(text, |text| whole(text, 1..=u64::MAX))?;
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_ANOMALY_ASN_REQUESTS_PER_HOUR",
        default: "off",
        allowed: COUNT,
        help: "An alert when one AS number has more requests in an hour; refuses nothing.",
        read: |draft, text| {
            draft.settings.anomalies.asn.requests[1] =
                or_off(text, |text| whole(text, 1..=u64::MAX))?;
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_ANOMALY_ASN_BYTES_PER_MINUTE",
        default: "off",
        allowed: SIZE,
        help: "An alert when one AS number has more bytes in a minute; refuses nothing.",
        read: |draft, text| {
            draft.settings.anomalies.asn.bytes[0] = or_off(text, size)?;
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_ANOMALY_ASN_BYTES_PER_HOUR",
        default: "off",
        allowed: SIZE,
        help: "An alert when one AS number has more bytes in an hour; refuses nothing.",
        read: |draft, text| {
            draft.settings.anomalies.asn.bytes[1] = or_off(text, size)?;
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_ANOMALY_TOTAL_REQUESTS_PER_MINUTE",
        default: "off",
        allowed: COUNT,
        help: "An alert when all clients together have more requests in a minute; refuses nothing.",
        read: |draft, text| {
            draft.settings.anomalies.total.requests[0] =
                or_off(text, |text| whole(text, 1..=u64::MAX))?;
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_ANOMALY_TOTAL_REQUESTS_PER_HOUR",
        default: "off",
        allowed: COUNT,
        help: "An alert when all clients together have more requests in an hour; refuses nothing.",
        read: |draft, text| {
            draft.settings.anomalies.total.requests[1] =
                or_off(text, |text| whole(text, 1..=u64::MAX))?;
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_ANOMALY_TOTAL_BYTES_PER_MINUTE",
        default: "off",
        allowed: SIZE,
        help: "An alert when all clients together have more bytes in a minute; refuses nothing.",
        read: |draft, text| {
            draft.settings.anomalies.total.bytes[0] = or_off(text, size)?;
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_ANOMALY_TOTAL_BYTES_PER_HOUR",
        default: "off",
        allowed: SIZE,
        help: "An alert when all clients together have more bytes in an hour; refuses nothing.",
        read: |draft, text| {
            draft.settings.anomalies.total.bytes[1] = or_off(text, size)?;
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_ANOMALY_COOLDOWN",
        default: "1h",
        allowed: TIMEOUT,
        help: "After an alert of a scope, further ones are held back this long and told in the summary of the hour.",
        read: |draft, text| {
            draft.settings.anomalies.cooldown = duration(text, MS..=YEAR)?;
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_WATCH_NETS",
        allowed: "a list of netblocks without zones, with or without a name of letters, digits, dots, dashes and underscores, such as office=192.0.2.0/24,2001:db8::/32,",
        help: "Netblocks that are watched: each has thresholds of its own and is named in `client_group` of the request log.",
        read: |draft, text| {
            draft.settings.anomalies.watch_nets = watch_nets(text)?;
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_WATCH_REQUESTS_PER_MINUTE",
        default: "off",
        allowed: COUNT,
        help: "An alert when a watched netblock has more requests in a minute.",
        read: |draft, text| {
            draft.settings.anomalies.watch.requests[0] =
                or_off(text, |text| whole(text, 1..=u64::MAX))?;
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_WATCH_REQUESTS_PER_HOUR",
        default: "off",
        allowed: COUNT,
        help: "An alert when a watched netblock has more requests in an hour.",
        read: |draft, text| {
            draft.settings.anomalies.watch.requests[1] =
                or_off(text, |text| whole(text, 1..=u64::MAX))?;
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_WATCH_BYTES_PER_MINUTE",
        default: "off",
        allowed: SIZE,
        help: "An alert when a watched netblock has more bytes in a minute.",
        read: |draft, text| {
            draft.settings.anomalies.watch.bytes[0] = or_off(text, size)?;
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_WATCH_BYTES_PER_HOUR",
        default: "off",
        allowed: SIZE,
        help: "An alert when a watched netblock has more bytes in an hour.",
        read: |draft, text| {
            draft.settings.anomalies.watch.bytes[1] = or_off(text, size)?;
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_INSTANCE_NAME",
        allowed: "a text of at most 128 bytes without control characters",
        help: "`instance` of the request log.",
        read: |draft, text| {
            if text.len() > 128 {
                return Err("is too long".to_owned().into());
            }
            if text.chars().any(char::is_control) {
                return Err("holds a control character".to_owned().into());
            }
            draft.settings.log.instance_name = Some(text.to_owned());
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_LOG_REQUESTS",
        default: "all",
        allowed: "all, refused or off",
        help: "Which requests are logged.",
        read: |draft, text| {
            draft.settings.log.requests = word(
                text,
                &[
                    ("all", LogRequests::All),
                    ("refused", LogRequests::Refused),
                    ("off", LogRequests::Off),
                ],
            )?;
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_LOG_FILE",
        unset: "standard output",
        allowed: "a file",
        help: "Where the request log goes; opened again on SIGUSR1.",
        read: |draft, text| {
            if text.ends_with('/') {
                return Err("is a directory".to_owned().into());
            }
            draft.settings.log.file = Some(PathBuf::from(text));
            Ok(())
        },
        ..ROW
    },
    Setting {
        name: "WAF_LOG_REQUEST_HEADERS",
        allowed: "a list of header names other than Host and Transfer-Encoding",
        help: "Request headers that are logged; never Authorization, Cookie or Set-Cookie.",
        read: |draft, text| {
            let mut faults = Vec::new();
            for entry in entries(text) {
                let Some(name) = header_name(entry) else {
                    faults.push(format!("has {entry:?}, which is not a header name"));
                    continue;
                };
                if [header::HOST, header::TRANSFER_ENCODING].contains(&name) {
                    faults.push(format!("has {entry:?}, which cannot be logged"));
                } else if let Some(never) = NEVER_LOGGED
                    .iter()
                    .find(|never| name.as_str().eq_ignore_ascii_case(never))
                {
                    draft.warnings.push(format!(
                        "WAF_LOG_REQUEST_HEADERS has {never}, whose value is never logged: it is left out"
                    ));
                } else if !draft.settings.log.request_headers.contains(&name) {
                    draft.settings.log.request_headers.push(name);
                }
            }
            Fault::unless_empty(faults)
        },
        ..ROW
    },
    Setting {
        name: "WAF_LOG_LEVEL",
        default: "info",
        allowed: "error, warn, info, debug or trace",
        help: "Of the process log on standard error.",
        read: |draft, text| {
            draft.settings.log.level = word(
                text,
                &["error", "warn", "info", "debug", "trace"].map(|level| (level, level)),
            )?;
            Ok(())
        },
        ..ROW
    },
];

/// The README's table, in Markdown (SETTING-3).
pub fn readme_table() -> String {
    let mut text = String::from("| Name | Default | Allowed | Meaning |\n|---|---|---|---|\n");
    for row in TABLE {
        let default = if row.default.is_empty() {
            row.unset.to_owned()
        } else {
            format!("`{}`", row.default)
        };
        let allowed = row.allowed.trim_end_matches(',');
        text.push_str(&format!(
            "| `{}` | {default} | {allowed} | {} |\n",
            row.name, row.help
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SETTING-3: the README's table is this one. `WEIR_BLESS=1` writes it.
    #[test]
    fn the_readme_has_this_table() {
        const START: &str = "<!-- settings -->\n";
        const END: &str = "<!-- /settings -->";
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../README.md");
        let readme = std::fs::read_to_string(path).expect("README.md");
        let (before, rest) = readme.split_once(START).expect("the start marker");
        let (table, after) = rest.split_once(END).expect("the end marker");
        if std::env::var_os("WEIR_BLESS").is_some() {
            let text = format!("{before}{START}{}{END}{after}", readme_table());
            std::fs::write(path, text).expect("README.md can be written");
        } else {
            assert_eq!(
                table,
                readme_table(),
                "run the test with WEIR_BLESS=1 to renew README.md"
            );
        }
    }

    /// SETTING-3: every row can be read by an operator and breaks no table.
    #[test]
    fn every_row_is_whole() {
        let mut names = std::collections::HashSet::new();
        for row in TABLE {
            assert!(names.insert(row.name), "{} stands twice", row.name);
            assert!(row.name.starts_with("WAF_"), "{}", row.name);
            assert!(!row.allowed.is_empty(), "{}", row.name);
            assert!(row.help.ends_with('.'), "{}", row.name);
            for text in [row.default, row.unset, row.allowed, row.help] {
                assert!(!text.contains(['|', '\n']), "{}", row.name);
            }
        }
    }
}
