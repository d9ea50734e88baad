//! The settings of lookups, country lists and percentages: what they hold, how their values are read, and what they
//! mean together.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use http::Uri;

use super::read::{Fault, entries, whole};
use crate::lookup::{AsNumber, Country};

/// Where `geojs` is asked.
pub(super) const GEOJS_URL: &str = "https://get.geojs.io/v1/ip/geo/{ip}.json";

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
    /// The five percentages.
    pub percents: Percents,
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

    /// Reads a URL: `https://`, or `http://` to a loopback address, with `{ip}` once in its path or query.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let (before, after) = text
            .split_once("{ip}")
            .ok_or_else(|| "has no {ip} in it".to_owned())?;
        let wrong = || "is not a URL".to_owned();
        if after.contains("{ip}") {
            return Err("has {ip} in it twice".to_owned());
        }
        let uri: Uri = format!("{before}192.0.2.1{after}")
            .parse()
            .map_err(|_| wrong())?;
        let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
            return Err(wrong());
        };
        let origin = format!("{scheme}://{authority}");
        // The address belongs behind the host: before it, every visitor would be a host of its own.
        if authority.as_str().contains('@')
            || !before.starts_with(&format!("{origin}/"))
                && !before.starts_with(&format!("{origin}?"))
        {
            return Err(wrong());
        }
        match scheme {
            "https" => {}
            "http" if is_loopback(authority.host()) => {}
            "http" => return Err("would send visitors' addresses unencrypted".to_owned()),
            _ => return Err(wrong()),
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
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CountryList {
    /// Neither is set.
    None,
    /// Only these pass.
    Allow(Countries),
    /// These are refused.
    Deny(Countries),
}

/// Countries, and whether clients without one are among them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Countries {
    /// The codes.
    pub codes: BTreeSet<Country>,
    /// The word `unknown`.
    pub unknown: bool,
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
            percents: Percents {
                asn: BTreeMap::new(),
                country: BTreeMap::new(),
                asn_bytes: BTreeMap::new(),
                country_bytes: BTreeMap::new(),
                unknown: 100,
            },
        }
    }
}

/// A list of country codes and the word `unknown`.
pub(super) fn countries(text: &str) -> Result<Countries, Fault> {
    let (mut countries, mut faults) = (Countries::default(), Vec::new());
    for entry in entries(text) {
        if entry == "unknown" {
            countries.unknown = true;
        } else if let Ok(code) = entry.parse() {
            countries.codes.insert(code);
        } else {
            faults.push(format!("has {entry:?}, which is not a country code"));
        }
    }
    Fault::unless_empty(faults)?;
    Ok(countries)
}

/// A list of percentages by AS number: `AS64496=50`.
pub(super) fn asn_percents(text: &str) -> Result<BTreeMap<AsNumber, u8>, Fault> {
    percents(text, "an AS number", |key| {
        let (number, name) = AsNumber::parse_named(key).ok()?;
        // 64512 stands for unknown: WAF_UNKNOWN_LIMIT_PERCENT is for that.
        name.is_none().then_some(number?)
    })
}

/// A list of percentages by country: `DE=50`.
pub(super) fn country_percents(text: &str) -> Result<BTreeMap<Country, u8>, Fault> {
    percents(text, "a country code", |key| key.parse().ok())
}

fn percents<K: Ord>(
    text: &str,
    what: &str,
    read: impl Fn(&str) -> Option<K>,
) -> Result<BTreeMap<K, u8>, Fault> {
    let (mut percents, mut faults) = (BTreeMap::new(), Vec::new());
    for entry in entries(text) {
        let Some((key, percent)) = entry.split_once('=') else {
            faults.push(format!("has {entry:?}, which has no percentage"));
            continue;
        };
        let (key, percent) = (key.trim(), percent.trim());
        let Some(of) = read(key) else {
            faults.push(format!("has {key:?}, which is not {what}"));
            continue;
        };
        match whole(percent, 0..=100) {
            Ok(percent) if percents.insert(of, percent).is_some() => {
                faults.push(format!("has {key:?} twice"));
            }
            Ok(_) => {}
            Err(wrong) => faults.push(format!("has {entry:?}, whose percentage {wrong}")),
        }
    }
    Fault::unless_empty(faults)?;
    Ok(percents)
}

/// A JSON Pointer (RFC 6901) to a member.
pub(super) fn pointer(text: &str) -> Result<String, String> {
    let escapes_are_sound = text
        .split('~')
        .skip(1)
        .all(|rest| rest.starts_with(['0', '1']));
    if text.starts_with('/') && escapes_are_sound {
        Ok(text.to_owned())
    } else {
        Err("is not a JSON Pointer".to_owned())
    }
}

/// A comma list of paths.
pub(super) fn paths(text: &str) -> Result<Vec<PathBuf>, Fault> {
    let mut faults = Vec::new();
    let mut paths = Vec::new();
    for entry in entries(text) {
        if entry.ends_with('/') {
            faults.push(format!("has {entry:?}, which is a directory"));
        } else {
            paths.push(PathBuf::from(entry));
        }
    }
    Fault::unless_empty(faults)?;
    Ok(paths)
}
