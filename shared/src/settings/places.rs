//! Where clients come from, as settings and rules list it: countries and AS numbers.

use std::collections::BTreeSet;

use super::kind::{Fault, Kind, each_entry};
use crate::lookup::{AsNumber, Country, NotAnAsNumber};

/// Countries, and whether clients without one are among them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Countries {
    /// The codes.
    pub codes: BTreeSet<Country>,
    /// The word `unknown`.
    pub unknown: bool,
}

impl Countries {
    /// Whether they cover a client of this country.
    pub fn cover(&self, country: Option<Country>) -> bool {
        country.map_or(self.unknown, |country| self.codes.contains(&country))
    }
}

/// AS numbers, and whether clients without one are among them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Asns {
    /// The numbers.
    pub numbers: BTreeSet<AsNumber>,
    /// The word `unknown`.
    pub unknown: bool,
}

impl Asns {
    /// Adds one as people write it, or the word `unknown`.
    ///
    /// # Errors
    /// [`NotAnAsNumber`], also of a number that stands for nobody's (LOOKUP-4).
    pub fn add(&mut self, text: &str) -> Result<(), NotAnAsNumber> {
        if text == "unknown" {
            self.unknown = true;
            return Ok(());
        }
        match AsNumber::parse_named(text)? {
            (Some(number), None) => {
                self.numbers.insert(number);
                Ok(())
            }
            _ => Err(NotAnAsNumber),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.numbers.is_empty() && !self.unknown
    }

    /// Whether they cover a client of this AS.
    pub fn cover(&self, asn: Option<AsNumber>) -> bool {
        asn.map_or(self.unknown, |asn| self.numbers.contains(&asn))
    }
}

/// A list of country codes and the word `unknown`.
pub(super) fn countries() -> Kind<Countries> {
    Kind::new(
        "a list of two-letter country codes and the word unknown, such as DE,AT,unknown",
        |text| {
            let mut countries = Countries::default();
            each_entry(text, |entry| {
                if entry == "unknown" {
                    countries.unknown = true;
                } else {
                    let wrong = |_| format!("has {entry:?}, which is not a country code");
                    countries.codes.insert(entry.parse().map_err(wrong)?);
                }
                Ok(())
            })?;
            Ok::<_, Fault>(countries)
        },
    )
}

/// A list of AS numbers and the word `unknown`.
pub(super) fn asns() -> Kind<Asns> {
    Kind::new(
        "a list of AS numbers and the word unknown, such as AS64496,AS64497",
        |text| {
            let mut asns = Asns::default();
            each_entry(text, |entry| {
                asns.add(entry)
                    .map_err(|_| format!("has {entry:?}, which is not an AS number"))
            })?;
            Ok::<_, Fault>(asns)
        },
    )
}
