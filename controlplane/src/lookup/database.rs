//! One database file (LOOKUP-5): read whole into memory and checked; records of either layout are
//! understood. Never memory-mapped: truncating a mapped file would end the process.

use std::collections::HashSet;
use std::net::IpAddr;
use std::panic::catch_unwind;
use std::path::Path;

use maxminddb::{LookupResult, MaxMindDbError, Reader, WithinOptions};
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
#[cfg(fuzzing)]
use weir_shared::lookup::Lookup;
use weir_shared::lookup::{AsNumber, Country};

#[cfg(fuzzing)]
use super::answer;
use crate::guarded;

/// Larger files are refused, because files are held in memory. Complete country and AS databases
/// have a few dozen MiB.
const MAX_BYTES: u64 = 1 << 30;
/// One file, in memory.
pub(super) struct Database {
    reader: Reader<Vec<u8>>,
}

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The system refused it.
    #[error("the lookup database {path} cannot be read: {source}")]
    Unreadable {
        /// Which.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is no database, or a damaged one.
    #[error("the lookup database {path} is damaged or no MaxMind DB file: {fault}")]
    Damaged {
        /// Which.
        path: String,
        /// What is wrong.
        fault: String,
    },
    /// The database holds neither countries nor AS numbers.
    #[error(
        "the lookup database {path} holds neither countries nor AS numbers: a country or ASN database is needed"
    )]
    OfOtherThings {
        /// Which.
        path: String,
    },
}

impl FileError {
    pub(super) fn path(&self) -> &str {
        match self {
            Self::Unreadable { path, .. }
            | Self::Damaged { path, .. }
            | Self::OfOtherThings { path } => path,
        }
    }
}

impl Database {
    pub(super) fn read(path: &Path) -> Result<Self, FileError> {
        let shown = || path.display().to_string();
        let unreadable = |source| FileError::Unreadable {
            path: shown(),
            source,
        };
        let content = guarded::read(path, MAX_BYTES).map_err(unreadable)?;
        // A library parses the file: a panic in it counts as a fault of the file.
        let checked = catch_unwind(|| Self::check(content));
        let checked = checked.unwrap_or_else(|_| Err(Some("reading it panicked".to_owned())));
        checked.map_err(|fault| match fault {
            Some(fault) => FileError::Damaged {
                path: shown(),
                fault,
            },
            None => FileError::OfOtherThings { path: shown() },
        })
    }

    /// Opens a database and reads every record that its tree reaches, as lookups will, so that
    /// damage shows now. The library's own check is stricter than lookups need: it would refuse
    /// sound databases for their metadata.
    ///
    /// The fault is none if the database is sound and has neither countries nor AS numbers.
    pub(super) fn check(content: Vec<u8>) -> Result<Self, Option<String>> {
        let told = |error: MaxMindDbError| Some(error.to_string());
        let reader = Reader::from_source(content).map_err(told)?;
        let database = Self { reader };
        // A sound tree has at most two leaves a node; a damaged one may lead in circles.
        let most = u64::from(database.reader.metadata().node_count).saturating_mul(3);
        let (mut visited, mut seen, mut useful) = (0u64, HashSet::new(), false);
        let every = WithinOptions::default().include_networks_without_data();
        for network in database.reader.networks(every).map_err(told)? {
            let network = network.map_err(told)?;
            visited += 1;
            if visited > most {
                return Err(Some("its search tree leads in circles".to_owned()));
            }
            if let Some(offset) = network.offset()
                && seen.insert(offset)
            {
                let record = network.decode::<Record>().map_err(told)?;
                useful |= record
                    .is_some_and(|record| record.country.is_some() || record.number.is_some());
            }
        }
        if useful { Ok(database) } else { Err(None) }
    }

    /// The number of nodes of its search tree, which has more nodes than netblocks.
    pub(super) fn nodes(&self) -> usize {
        usize::try_from(self.reader.metadata().node_count).unwrap_or(usize::MAX)
    }

    pub(super) fn find(
        &self,
        address: IpAddr,
    ) -> Result<Option<LookupResult<'_, Vec<u8>>>, MaxMindDbError> {
        // An IPv4-only database has no record of IPv6 addresses: that is no fault.
        if address.is_ipv6() && self.reader.metadata().ip_version == 4 {
            return Ok(None);
        }
        self.reader.lookup(address).map(Some)
    }

    pub(super) fn record(&self, address: IpAddr) -> Result<Option<Record<'_>>, MaxMindDbError> {
        match self.find(address)? {
            Some(found) => found.decode(),
            None => Ok(None),
        }
    }

    pub(super) fn build_epoch(&self) -> u64 {
        self.reader.metadata().build_epoch
    }
}

/// Entry point for the fuzz targets: checks a database and looks addresses up in it.
#[cfg(fuzzing)]
pub fn read_database(content: Vec<u8>, addresses: &[IpAddr]) -> Result<Vec<Lookup>, String> {
    let database =
        Database::check(content).map_err(|fault| fault.unwrap_or("of other things".to_owned()))?;
    let answer = |address: &IpAddr| {
        let record = database.record(*address).map_err(|e| e.to_string())?;
        let Record {
            country,
            number,
            as_name,
        } = record.unwrap_or_default();
        Ok(answer::lookup(country, number, as_name.as_deref()))
    };
    addresses.iter().map(answer).collect()
}

/// The members of a record that are read, in either layout.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Record<'a> {
    pub(super) country: Option<Country>,
    pub(super) number: Option<AsNumber>,
    pub(super) as_name: Option<&'a str>,
}

impl<'de: 'a, 'a> Deserialize<'de> for Record<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        /// The members of both layouts: `country` is a map in one and a name in the other.
        #[derive(Deserialize)]
        struct Members<'a> {
            #[serde(default, borrow)]
            country: Value<'a>,
            #[serde(default, borrow)]
            country_code: Value<'a>,
            #[serde(default, borrow)]
            autonomous_system_number: Value<'a>,
            #[serde(default, borrow)]
            autonomous_system_organization: Value<'a>,
            #[serde(default, borrow)]
            asn: Value<'a>,
            #[serde(default, borrow)]
            as_name: Value<'a>,
        }

        let members = Members::deserialize(deserializer)?;
        let code = |value: &Value<'_>| value.text()?.parse().ok();
        let number = members
            .autonomous_system_number
            .number()
            .or_else(|| members.asn.number());
        let name = members
            .autonomous_system_organization
            .text()
            .or(members.as_name.text());
        Ok(Self {
            country: code(&members.country_code).or_else(|| code(&members.country)),
            number,
            as_name: name,
        })
    }
}

/// A member of a record: a text, a number, the `iso_code` of a map, or nothing of use.
#[derive(Default)]
enum Value<'a> {
    #[default]
    Nothing,
    Text(&'a str),
    Number(u64),
}

impl<'a> Value<'a> {
    fn text(&self) -> Option<&'a str> {
        match self {
            Self::Text(text) => Some(*text),
            Self::Number(_) | Self::Nothing => None,
        }
    }

    fn number(&self) -> Option<AsNumber> {
        match self {
            Self::Text(text) => AsNumber::parse_named(text).ok()?.0,
            Self::Number(number) => AsNumber::new(u32::try_from(*number).ok()?),
            Self::Nothing => None,
        }
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Value<'a> {
    // long: a flat list of kinds of value
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;

        impl<'de> Visitor<'de> for Any {
            type Value = Value<'de>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a value")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Value<'de>, E> {
                Ok(Value::Text(text))
            }

            fn visit_str<E>(self, _: &str) -> Result<Value<'de>, E> {
                Ok(Value::Nothing)
            }

            fn visit_u64<E>(self, number: u64) -> Result<Value<'de>, E> {
                Ok(Value::Number(number))
            }

            fn visit_i64<E>(self, number: i64) -> Result<Value<'de>, E> {
                Ok(u64::try_from(number).map_or(Value::Nothing, Value::Number))
            }

            fn visit_u128<E>(self, _: u128) -> Result<Value<'de>, E> {
                Ok(Value::Nothing)
            }

            fn visit_f64<E>(self, _: f64) -> Result<Value<'de>, E> {
                Ok(Value::Nothing)
            }

            fn visit_bool<E>(self, _: bool) -> Result<Value<'de>, E> {
                Ok(Value::Nothing)
            }

            fn visit_bytes<E>(self, _: &[u8]) -> Result<Value<'de>, E> {
                Ok(Value::Nothing)
            }

            fn visit_seq<A: serde::de::SeqAccess<'de>>(
                self,
                mut list: A,
            ) -> Result<Value<'de>, A::Error> {
                while list.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Value::Nothing)
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value<'de>, A::Error> {
                let mut code = Value::Nothing;
                while let Some(key) = map.next_key::<&str>()? {
                    if key == "iso_code" {
                        code = map.next_value()?;
                    } else {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                Ok(code)
            }
        }

        deserializer.deserialize_any(Any)
    }
}
