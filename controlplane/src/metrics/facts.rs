//! The facts for the metrics and the status.

use std::collections::BTreeMap;

use weir_shared::ban::Cause;
use weir_shared::table::SharedCountsUse;
use weir_shared::totals::Totals;

use crate::alert::AlertKind;
use crate::certificates::Validity;
use crate::feeds::facts::FeedFacts;
use crate::fleet::facts::FleetFacts;
use crate::lookup::LookupFacts;
use crate::rules::RulesFacts;
use crate::state::FileCounts;

/// The facts at the time of a request.
pub(crate) struct Facts {
    /// The data plane's totals.
    pub(crate) totals: Totals,
    /// `WAF_MODE=observe`
    pub(crate) observe: bool,
    /// Bans that are active now.
    pub(crate) bans_active: usize,
    /// Bans made, by position in [`Cause::ALL`].
    pub(crate) bans_made: [u64; Cause::ALL.len()],
    /// Bans dropped for `WAF_MAX_BANS`.
    pub(crate) bans_dropped: u64,
    /// Untrusted peers that forward for many clients (CLIENT-7), within the last hour.
    pub(crate) untrusted_forwarders: usize,
    /// Alerts raised, by position in [`AlertKind::ALL`].
    pub(crate) alerts: [u64; AlertKind::ALL.len()],
    /// Alert lines that found the log's channel full.
    pub(crate) alert_lines_dropped: u64,
    /// Requests by country, by label.
    pub(crate) countries: BTreeMap<String, u64>,
    /// Requests by AS number, by label.
    pub(crate) asns: BTreeMap<String, u64>,
    /// The counts of the state files.
    pub(crate) state: [FileCounts; 5],
    /// The facts about lookups.
    pub(crate) lookups: LookupFacts,
    /// The validity of each certificate.
    pub(crate) certificates: Vec<Validity>,
    /// The counts of shared limits.
    pub(crate) shared: SharedCountsUse,
    /// Clients that are remembered as known.
    pub(crate) known: u64,
    /// The facts about the rules.
    pub(crate) rules: RulesFacts,
    /// The facts about the fleet, if there is one.
    pub(crate) fleet: Option<FleetFacts>,
    /// The facts about each feed, by name.
    pub(crate) feeds: Vec<FeedFacts>,
}
