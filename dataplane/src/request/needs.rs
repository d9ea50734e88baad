//! Which features need the lookup of a client before they decide.

use weir_shared::settings::{CountryList, LookupSettings, LookupSource};

/// Which features use the lookup of a client, and need it before they decide.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lookups {
    /// `WAF_LOOKUP_SOURCE` is not `off`.
    pub on: bool,
    /// `WAF_ALLOW_COUNTRIES`, `WAF_DENY_COUNTRIES` or `WAF_DENY_ASNS` is set.
    pub for_lists: bool,
    /// `WAF_ADD_LOOKUP_HEADERS`
    pub for_headers: bool,
    /// A percentage lowers a limit.
    pub for_limits: bool,
}

impl Lookups {
    /// Those among the settings.
    pub fn of(lookup: &LookupSettings) -> Self {
        Self {
            on: lookup.source != LookupSource::Off,
            for_lists: lookup.countries != CountryList::None || !lookup.deny_asns.is_empty(),
            for_headers: lookup.add_headers,
            for_limits: lookup.percents.lower(),
        }
    }

    /// Whether a request has to wait for the answer: not one that the answer cannot change.
    pub const fn needed(self, own: bool, exempt: bool) -> bool {
        self.on && (self.for_lists || (self.for_headers && !own) || (self.for_limits && !exempt))
    }
}
