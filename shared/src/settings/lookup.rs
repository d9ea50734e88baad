//! The settings of lookups, country lists and percentages.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use http::Uri;

use super::address;
use super::kind::{Fault, Kind, boolean, each_entry, parse_whole, timeout, whole, word};
use super::places::{Asns, Countries, asns, countries};
use super::row::{Row, row};
use crate::lookup::{AsNumber, Country};

/// Where `geojs` is asked.
const GEOJS_URL: &str = "https://get.geojs.io/v1/ip/geo/{ip}.json";

/// Everything about lookups.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LookupSettings {
    /// `WAF_LOOKUP_SOURCE`
    pub source: LookupSource,
    /// `WAF_LOOKUP_URL`, for `geojs` too
    pub url: LookupUrl,
    /// `WAF_LOOKUP_JSON_COUNTRY`, a JSON Pointer (RFC 6901)
    pub json_country: String,
    /// `WAF_LOOKUP_JSON_ASN`
    pub json_asn: String,
    /// `WAF_LOOKUP_JSON_AS_NAME`
    pub json_as_name: String,
    /// `WAF_LOOKUP_CA_FILE`
    pub ca_file: Option<PathBuf>,
    /// `WAF_LOOKUP_DB_PATH`
    pub db_paths: Vec<PathBuf>,
    /// `WAF_LOOKUP_TIMEOUT`
    pub timeout: Duration,
    /// `WAF_LOOKUP_TTL`
    pub ttl: Duration,
    /// `WAF_ADD_LOOKUP_HEADERS`
    pub add_headers: bool,
    /// `WAF_ALLOW_COUNTRIES` or `WAF_DENY_COUNTRIES`
    pub countries: CountryList,
    /// `WAF_DENY_ASNS` (MATCH-5)
    pub deny_asns: Asns,
    /// The five percentages.
    pub percents: Percents,
    /// `WAF_NAME_SERVERS`; none are those of the system (CRAWL-3)
    pub name_servers: Vec<SocketAddr>,
}

/// `WAF_LOOKUP_SOURCE`
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LookupSource {
    /// The public service at get.geojs.io.
    Geojs,
    /// A service of the operator's choice.
    Url,
    /// Database files.
    File,
    /// No lookups.
    Off,
}

impl LookupSource {
    /// Whether addresses leave the machine.
    pub const fn asks_a_service(self) -> bool {
        match self {
            Self::Geojs | Self::Url => true,
            Self::File | Self::Off => false,
        }
    }
}

/// A URL with a place for the address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LookupUrl {
    before: String,
    after: String,
    /// Scheme, host and port, without the path.
    pub origin: String,
}

impl LookupUrl {
    /// The URL that asks about an address.
    pub fn of(&self, address: IpAddr) -> String {
        format!("{}{address}{}", self.before, self.after)
    }

    /// Reads a URL: `https://`, or `http://` to a loopback address, with `{ip}` once in its path or
    /// query.
    fn parse(text: &str) -> Result<Self, &'static str> {
        let (before, after) = text.split_once("{ip}").ok_or("has no {ip} in it")?;
        let wrong = "is not a URL";
        if after.contains("{ip}") {
            return Err("has {ip} in it twice");
        }
        let uri: Uri = format!("{before}192.0.2.1{after}")
            .parse()
            .map_err(|_| wrong)?;
        let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
            return Err(wrong);
        };
        if authority.as_str().contains('@') {
            return Err("has a user in it");
        }
        // The library takes any text for a port.
        let has_port = authority.as_str().len() > authority.host().len();
        if has_port && authority.port_u16().is_none() {
            return Err(wrong);
        }
        let origin = format!("{scheme}://{authority}");
        // Before the host, every visitor would be a host of its own.
        let is_behind = ["/", "?"].map(|next| before.starts_with(&format!("{origin}{next}")));
        if is_behind == [false; 2] {
            return Err("has {ip} in its host");
        }
        match scheme {
            "https" => {}
            "http" if is_loopback(authority.host()) => {}
            "http" => return Err("would send visitors' addresses unencrypted"),
            _ => return Err("is of a scheme that is not asked"),
        }
        Ok(Self {
            before: before.to_owned(),
            after: after.to_owned(),
            origin,
        })
    }
}

fn is_loopback(host: &str) -> bool {
    let bare = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
        .unwrap_or(host);
    bare.eq_ignore_ascii_case("localhost")
        || bare.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// `WAF_ALLOW_COUNTRIES` or `WAF_DENY_COUNTRIES` (CHECK-2).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum CountryList {
    /// Neither is set.
    #[default]
    None,
    /// Only these pass.
    Allow(Countries),
    /// These are refused.
    Deny(Countries),
}

/// The percentages of limits (LIMIT-4).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Percents {
    /// `WAF_ASN_LIMIT_PERCENT`
    pub asn: BTreeMap<AsNumber, u8>,
    /// `WAF_COUNTRY_LIMIT_PERCENT`
    pub country: BTreeMap<Country, u8>,
    /// `WAF_ASN_BYTES_PERCENT`
    pub asn_bytes: BTreeMap<AsNumber, u8>,
    /// `WAF_COUNTRY_BYTES_PERCENT`
    pub country_bytes: BTreeMap<Country, u8>,
    /// `WAF_UNKNOWN_LIMIT_PERCENT`
    pub unknown: u8,
}

impl Percents {
    /// Whether one of them lowers a limit.
    pub fn lower(&self) -> bool {
        self.unknown < 100 || !self.lowering().is_empty()
    }

    /// The AS and country settings that lower a limit.
    pub(super) fn lowering(&self) -> Vec<&'static str> {
        let mut names = Vec::new();
        if lowers(&self.asn) {
            names.push("WAF_ASN_LIMIT_PERCENT");
        }
        if lowers(&self.country) {
            names.push("WAF_COUNTRY_LIMIT_PERCENT");
        }
        if lowers(&self.asn_bytes) {
            names.push("WAF_ASN_BYTES_PERCENT");
        }
        if lowers(&self.country_bytes) {
            names.push("WAF_COUNTRY_BYTES_PERCENT");
        }
        names
    }
}

fn lowers<K>(percents: &BTreeMap<K, u8>) -> bool {
    percents.values().any(|percent| *percent < 100)
}

impl Default for LookupSettings {
    /// Lookups off, nothing lowered.
    fn default() -> Self {
        Self {
            source: LookupSource::Off,
            url: LookupUrl {
                before: String::new(),
                after: String::new(),
                origin: String::new(),
            },
            json_country: String::new(),
            json_asn: String::new(),
            json_as_name: String::new(),
            ca_file: None,
            db_paths: Vec::new(),
            timeout: Duration::from_secs(1),
            ttl: Duration::from_secs(7 * 86_400),
            add_headers: false,
            countries: CountryList::None,
            deny_asns: Asns::default(),
            percents: Percents {
                asn: BTreeMap::new(),
                country: BTreeMap::new(),
                asn_bytes: BTreeMap::new(),
                country_bytes: BTreeMap::new(),
                unknown: 100,
            },
            name_servers: Vec::new(),
        }
    }
}

pub(super) fn rows() -> Vec<Row<LookupSettings>> {
    let mut rows = source_rows();
    rows.extend(country_rows());
    rows.push(name_servers_row());
    rows
}

/// Where country and AS of a client come from.
// long: a flat list of settings
fn source_rows() -> Vec<Row<LookupSettings>> {
    vec![
        row(
            "WAF_LOOKUP_SOURCE",
            "geojs",
            word([
                ("geojs", LookupSource::Geojs),
                ("url", LookupSource::Url),
                ("file", LookupSource::File),
                ("off", LookupSource::Off),
            ]),
            |lookup: &mut LookupSettings| &mut lookup.source,
            "Where country and AS of each new client come from: get.geojs.io, WAF_LOOKUP_URL, the files of WAF_LOOKUP_DB_PATH, or nowhere.",
        ).restart()
        .essential(),
        row(
            "WAF_LOOKUP_URL",
            GEOJS_URL,
            url(),
            |lookup: &mut LookupSettings| &mut lookup.url,
            "The service to ask; with geojs, another host that speaks as it does.",
        ).masked(without_secrets).live(),
        row(
            "WAF_LOOKUP_JSON_COUNTRY",
            "/country_code",
            pointer(),
            |lookup: &mut LookupSettings| &mut lookup.json_country,
            "Where the country code stands in the service's answer.",
        ).live(),
        row(
            "WAF_LOOKUP_JSON_ASN",
            "/asn",
            pointer(),
            |lookup: &mut LookupSettings| &mut lookup.json_asn,
            "Where the AS number stands: 15169, AS15169 or AS15169 Name.",
        ).live(),
        row(
            "WAF_LOOKUP_JSON_AS_NAME",
            "/organization_name",
            pointer(),
            |lookup: &mut LookupSettings| &mut lookup.json_as_name,
            "Where the name of the AS stands.",
        ).live(),
        row(
            "WAF_LOOKUP_CA_FILE",
            "",
            Kind::new("a file", |text| Ok::<_, &str>(Some(PathBuf::from(text)))),
            |lookup: &mut LookupSettings| &mut lookup.ca_file,
            "PEM certificates that are trusted besides Mozilla's roots, for the service that is asked.",
        ).live()
        .unset("Mozilla's roots"),
        row(
            "WAF_LOOKUP_DB_PATH",
            "",
            db_paths(),
            |lookup: &mut LookupSettings| &mut lookup.db_paths,
            "The database files, required with file; read again 2 seconds after their last change.",
        ).restart(),
        row(
            "WAF_LOOKUP_TIMEOUT",
            "1s",
            timeout(),
            |lookup: &mut LookupSettings| &mut lookup.timeout,
            "For one lookup, and the longest that a request waits for it.",
        ).live(),
        row(
            "WAF_LOOKUP_TTL",
            "7d",
            timeout(),
            |lookup: &mut LookupSettings| &mut lookup.ttl,
            "How long an answer of the service is kept.",
        ).live(),
        row(
            "WAF_ADD_LOOKUP_HEADERS",
            "off",
            boolean(),
            |lookup: &mut LookupSettings| &mut lookup.add_headers,
            "Adds X-Client-ASN and X-Client-Country, where known, to the request that the application gets.",
        ).live(),
    ]
}

/// What country and AS decide.
fn country_rows() -> Vec<Row<LookupSettings>> {
    vec![
        row(
            "WAF_ALLOW_COUNTRIES",
            "",
            countries().map(CountryList::Allow),
            |lookup: &mut LookupSettings| &mut lookup.countries,
            "Only clients of these countries are served; unknown stands for those without a country.",
        ).live(),
        row(
            "WAF_DENY_COUNTRIES",
            "",
            countries().map(CountryList::Deny),
            |lookup: &mut LookupSettings| &mut lookup.countries,
            "Clients of these countries are refused with WAF_DENY_RESPONSE.",
        ).live(),
        row(
            "WAF_DENY_ASNS",
            "",
            asns(),
            |lookup: &mut LookupSettings| &mut lookup.deny_asns,
            "Clients of these AS numbers are refused as WAF_DENY_COUNTRIES refuses; unknown stands for those without one.",
        ).live(),
        row(
            "WAF_ASN_LIMIT_PERCENT",
            "",
            asn_percents(),
            |lookup: &mut LookupSettings| &mut lookup.percents.asn,
            "Percentage of every rate and byte limit for clients of these AS numbers, rounded down; the lowest that applies counts.",
        ).live(),
        row(
            "WAF_COUNTRY_LIMIT_PERCENT",
            "",
            country_percents(),
            |lookup: &mut LookupSettings| &mut lookup.percents.country,
            "The same for clients of these countries.",
        ).live(),
        row(
            "WAF_ASN_BYTES_PERCENT",
            "",
            asn_percents(),
            |lookup: &mut LookupSettings| &mut lookup.percents.asn_bytes,
            "Replaces WAF_ASN_LIMIT_PERCENT for the byte limits of the AS numbers it lists.",
        ).live(),
        row(
            "WAF_COUNTRY_BYTES_PERCENT",
            "",
            country_percents(),
            |lookup: &mut LookupSettings| &mut lookup.percents.country_bytes,
            "Replaces WAF_COUNTRY_LIMIT_PERCENT for the byte limits of the countries it lists.",
        ).live(),
        row(
            "WAF_UNKNOWN_LIMIT_PERCENT",
            "100",
            whole(0..=100),
            |lookup: &mut LookupSettings| &mut lookup.percents.unknown,
            "The same for clients without a country, whatever their AS number.",
        ).live(),
    ]
}

/// A URL without what may be a key: what stands before an `@`, and the query. It need not be a URL:
/// a wrong one is told, too.
fn without_secrets(text: &str) -> String {
    let (place, query) = match text.find(['?', '#']) {
        Some(at) => (text.get(..at), "?***"),
        None => (Some(text), ""),
    };
    let place = place.unwrap_or_default();
    match place.rsplit_once('@') {
        Some((before, host)) => {
            let scheme = before.find("://").and_then(|at| before.get(..at + 3));
            format!("{}***@{host}{query}", scheme.unwrap_or_default())
        }
        None => format!("{place}{query}"),
    }
}

fn url() -> Kind<LookupUrl> {
    Kind::new(
        "an https:// URL, or http:// to a loopback address, with {ip} once in its path or query",
        LookupUrl::parse,
    )
}

/// A list of percentages by AS number: `AS64496=50`.
fn asn_percents() -> Kind<BTreeMap<AsNumber, u8>> {
    percents(
        "AS numbers",
        "AS64496=50,AS64497=20",
        "an AS number",
        |key| {
            let (number, name) = AsNumber::parse_named(key).ok()?;
            // 64512 stands for unknown: WAF_UNKNOWN_LIMIT_PERCENT is for that.
            name.is_none().then_some(number?)
        },
    )
}

/// A list of percentages by country: `DE=50`.
fn country_percents() -> Kind<BTreeMap<Country, u8>> {
    percents("country codes", "DE=50,XK=0", "a country code", |key| {
        key.parse().ok()
    })
}

fn percents<K: Ord + 'static>(
    keys: &str,
    example: &str,
    key_is: &'static str,
    read: fn(&str) -> Option<K>,
) -> Kind<BTreeMap<K, u8>> {
    let expected = format!("a list of {keys} with percentages from 0 to 100, such as {example}");
    Kind::new(expected, move |text| {
        let mut percents = BTreeMap::new();
        each_entry(text, |entry| {
            let (key, percent) = entry
                .split_once('=')
                .ok_or_else(|| format!("has {entry:?}, which has no percentage"))?;
            let key = key.trim();
            let of = read(key).ok_or_else(|| format!("has {key:?}, which is not {key_is}"))?;
            let percent = parse_whole(percent.trim(), &(0..=100))
                .map_err(|wrong| format!("has {entry:?}, whose percentage {wrong}"))?;
            if percents.insert(of, percent).is_some() {
                return Err(format!("has {key:?} twice"));
            }
            Ok(())
        })?;
        Ok::<_, Fault>(percents)
    })
}

/// A JSON Pointer (RFC 6901) to a member.
fn pointer() -> Kind<String> {
    Kind::new(
        "a JSON Pointer such as /country_code or /data/0/asn",
        |text| {
            let escapes_are_sound = text
                .split('~')
                .skip(1)
                .all(|rest| rest.starts_with(['0', '1']));
            if text.starts_with('/') && escapes_are_sound {
                Ok(text.to_owned())
            } else {
                Err("is not a JSON Pointer")
            }
        },
    )
}

fn db_paths() -> Kind<Vec<PathBuf>> {
    Kind::new(
        "a list of .mmdb files such as country.mmdb,asn.mmdb",
        |text| {
            let mut paths = Vec::new();
            each_entry(text, |entry| {
                if entry.ends_with('/') {
                    return Err(format!("has {entry:?}, which is a directory"));
                }
                paths.push(PathBuf::from(entry));
                Ok(())
            })?;
            Ok::<_, Fault>(paths)
        },
    )
}

fn name_servers_row() -> Row<LookupSettings> {
    row(
        "WAF_NAME_SERVERS",
        "",
        address::name_servers(),
        |lookup: &mut LookupSettings| &mut lookup.name_servers,
        "DNS servers that are asked for the names of crawlers, a list of addresses, each with its port where that is not 53.",
    )
    .restart()
    .unset("those of `/etc/resolv.conf`")
}
