//! The answer of a lookup about a client, and how the data plane asks for one. [`crate::origin`]
//! has the types of countries and AS numbers.
//!
//! One function type, as in `handover.rs`: the data plane calls it, and it never blocks. The answer
//! comes at once, through the client table, or through a callback.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::client::Client;
use crate::origin::digits;
pub use crate::origin::{AsNumber, Country, NotACountry, NotAnAsNumber};

/// The answer of a lookup. A client without a country is unknown, whatever its AS number
/// (LOOKUP-4).
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Lookup {
    /// ISO 3166-1 alpha-2 code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub country: Option<String>,
    /// `AS<number>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asn: Option<String>,
    /// The name of the AS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub as_name: Option<String>,
}

/// Deduplicates answers: equal ones, as for the clients of one network, are held once.
#[derive(Default)]
pub struct Interner(HashSet<Arc<Lookup>>);

impl Interner {
    /// Replaces this answer by an equal one that is held already.
    pub fn intern(&mut self, lookup: &mut Arc<Lookup>) {
        match self.0.get(lookup) {
            Some(held) => *lookup = Arc::clone(held),
            None => drop(self.0.insert(Arc::clone(lookup))),
        }
    }
}

/// Called with the answer of a lookup that a request waits for; none if the lookup failed. Called
/// once, or dropped with its lookup.
pub type OnLookup = Box<dyn FnOnce(Option<Arc<Lookup>>) + Send>;

/// The state of a lookup after it was asked for.
pub enum LookupStarted {
    /// The answer is known.
    Known {
        /// What is known.
        lookup: Arc<Lookup>,
        /// When to ask again, in nanoseconds of the monotonic clock; `u64::MAX` for never.
        until_ns: u64,
    },
    /// The lookup is under way; the answer goes to the client table, and to [`OnLookup`].
    Later,
    /// The answer is not available for now, and no request should wait: after a recent failure, or
    /// with too many questions.
    NotNow {
        /// When to ask again, on the monotonic clock, nanoseconds.
        again_ns: u64,
    },
}

/// Asks about a client. Never blocks, and never asks twice about a client at the same time.
pub type Ask = Arc<dyn Fn(Client, Option<OnLookup>) -> LookupStarted + Send + Sync>;

impl Lookup {
    /// The country, where there is one.
    pub fn country(&self) -> Option<Country> {
        self.country.as_deref()?.parse().ok()
    }

    /// The AS number, where one is known.
    pub fn as_number(&self) -> Option<AsNumber> {
        let text = self.asn.as_deref()?;
        // Parsed once for every new client: the form of a service's answer is tried first, before
        // the forms that a state file may have.
        match text.strip_prefix("AS").and_then(digits) {
            Some(number) => AsNumber::new(number),
            None => AsNumber::parse_named(text).ok()?.0,
        }
    }
}

/// The country and the AS number of a client, as far as they are known: its requests are counted by
/// them. A client without a country is unknown, whatever its AS number (LOOKUP-4). Kept with the
/// client, so that counting a request reads nothing but what the request touches anyway.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Origin {
    /// Its country.
    pub country: Option<Country>,
    /// Its AS number.
    pub asn: Option<AsNumber>,
}

impl Origin {
    /// The origin in an answer.
    pub fn of(lookup: &Lookup) -> Self {
        let country = lookup.country();
        let asn = country.and_then(|_| lookup.as_number());
        Self { country, asn }
    }
}

/// Whether an address can belong to a visitor from the Internet. Other addresses are never looked
/// up: no service knows them, and they must not leave the machine (LOOKUP-2). The excluded ranges
/// are those of the IANA special-purpose registries that are not globally reachable, including
/// multicast and reserved ones.
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => is_public_v4(v4),
        IpAddr::V6(v6) => is_public_v6(v6),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    !matches!(
        (a, b, c),
        (0 | 10 | 127, _, _)
            | (100, 64..=127, _)
            | (169, 254, _)
            | (172, 16..=31, _)
            | (192, 0, 0 | 2)
            | (192, 168, _)
            | (198, 18 | 19, _)
            | (198, 51, 100)
            | (203, 0, 113)
            | (224.., _, _)
    )
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let [a, b, ..] = address.segments();
    // Global unicast is 2000::/3 only; in it 2001::/23 is for protocols, 2001:db8::/32 and
    // 3fff::/20 for documentation.
    a >> 13 == 1 && !(a == 0x2001 && (b < 0x200 || b == 0x0db8)) && !(a == 0x3fff && b < 0x1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// LOOKUP-4: the number of an answer in every form that a file may hold.
    #[test]
    fn an_answer_has_its_as_number() {
        for (asn, number) in [
            (Some("AS64496"), Some(64_496)),
            (Some("as64496"), Some(64_496)),
            (Some("64496"), Some(64_496)),
            (Some("AS64496 Example"), Some(64_496)),
            (Some("AS64512"), None),
            (Some("AS+64496"), None),
            (Some("AS4294967296"), None),
            (Some("AS"), None),
            (None, None),
        ] {
            let lookup = Lookup {
                asn: asn.map(str::to_owned),
                ..Lookup::default()
            };
            assert_eq!(lookup.as_number().map(AsNumber::number), number, "{asn:?}");
        }
    }

    /// CHECK-2: countries are two letters, in either case.
    #[test]
    fn countries_are_two_letters() {
        assert_eq!("de".parse::<Country>().unwrap().to_string(), "DE");
        for wrong in ["", "D", "DEU", "D1", "nil", "Ä"] {
            assert_eq!(wrong.parse::<Country>(), Err(NotACountry), "{wrong}");
        }
    }

    /// LOOKUP-2: private and reserved ranges are distinguished from public ones at their very
    /// edges.
    #[test]
    fn private_and_reserved_ranges_are_not_public() {
        for text in [
            "0.0.0.0",
            "0.255.255.255",
            "10.0.0.0",
            "10.255.255.255",
            "100.64.0.0",
            "100.127.255.255",
            "127.0.0.1",
            "169.254.0.1",
            "172.16.0.0",
            "172.31.255.255",
            "192.0.0.1",
            "192.0.2.1",
            "192.168.0.0",
            "192.168.255.255",
            "198.18.0.0",
            "198.19.255.255",
            "198.51.100.7",
            "203.0.113.7",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "64:ff9b::1",
            "fc00::1",
            "fdff::1",
            "fe80::1",
            "ff02::1",
            "2001::1",
            "2001:1ff::",
            "2001:db8::1",
            "3fff::1",
            "4000::1",
            "1fff::1",
        ] {
            assert!(!is_public(text.parse().unwrap()), "{text}");
        }
        for text in [
            "1.1.1.1",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "172.15.255.255",
            "172.32.0.0",
            "192.0.1.1",
            "192.167.255.255",
            "192.169.0.0",
            "198.17.255.255",
            "198.20.0.0",
            "223.255.255.255",
            "2000::",
            "2001:200::",
            "2001:4860:4860::8888",
            "2a00:1450::",
            "3ffe::1",
        ] {
            assert!(is_public(text.parse().unwrap()), "{text}");
        }
    }
}
