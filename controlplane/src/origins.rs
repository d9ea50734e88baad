//! Requests by country and by AS number for the metrics: the largest with a series of their own,
//! the others as one number.

use std::collections::BTreeMap;
use std::sync::Arc;

use weir_shared::lookup::{AsNumber, Country};
use weir_shared::totals::{MAX_ASNS, OriginCounts};

use crate::top::Top;

/// The most countries: all pairs of letters, and the unknown one.
const MAX_COUNTRIES: usize = 26 * 26 + 1;

/// Counts by country and AS number since the start.
pub(crate) struct Origins {
    /// Takes the data plane's counts since the last time.
    take: Arc<dyn Fn() -> OriginCounts + Send + Sync>,
    /// At most [`MAX_COUNTRIES`]; none stands for clients without a known country.
    countries: Top<Option<Country>>,
    /// At most [`MAX_ASNS`].
    asns: Top<Option<AsNumber>>,
}

impl Origins {
    /// At most `shown` countries and `shown` AS numbers have a series of their own.
    pub(crate) fn new(take: Arc<dyn Fn() -> OriginCounts + Send + Sync>, shown: usize) -> Self {
        Self {
            take,
            countries: Top::new(shown),
            asns: Top::new(shown),
        }
    }

    /// Changes how many of each kind have a series of their own.
    pub(crate) fn set_shown(&mut self, shown: usize) {
        self.countries.set_most(shown);
        self.asns.set_most(shown);
    }

    /// Adds the counts since the last call.
    pub(crate) fn update(&mut self) {
        let counted = (self.take)();
        self.countries.take_in(counted.countries, MAX_COUNTRIES);
        self.asns.take_in(counted.asns, MAX_ASNS);
        self.asns.add_other(counted.asns_beyond);
    }

    /// The series by country.
    pub(crate) fn countries(&self) -> BTreeMap<String, u64> {
        self.countries
            .series(|code| code.map_or_else(unknown, |code| code.to_string()))
    }

    /// The series by AS number.
    pub(crate) fn asns(&self) -> BTreeMap<String, u64> {
        self.asns
            .series(|asn| asn.map_or_else(unknown, |asn| asn.to_string()))
    }
}

fn unknown() -> String {
    "unknown".to_owned()
}
