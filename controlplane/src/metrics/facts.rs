//! What the metrics and the status are made from.

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

/// What is true at the moment of asking.
pub(crate) struct Facts {
    /// From the data plane.
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
    /// Of the state files.
    pub(crate) state: [FileCounts; 5],
    /// From the lookups.
    pub(crate) lookups: LookupFacts,
    /// How long each certificate is valid.
    pub(crate) certificates: Vec<Validity>,
    /// Of the counts that clients share.
    pub(crate) shared: SharedCountsUse,
    /// Clients that are remembered as known.
    pub(crate) known: u64,
    /// From rules.json.
    pub(crate) rules: RulesFacts,
    /// Of the fleet, where there is one.
    pub(crate) fleet: Option<FleetFacts>,
    /// Of each feed, by name.
    pub(crate) feeds: Vec<FeedFacts>,
}
