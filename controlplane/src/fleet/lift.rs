//! A lift in a fleet: a record that is kept, so that a covered ban which arrives later is lifted as
//! well (FLEET-13).

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use weir_shared::client::Client;
use weir_shared::netblock::Netblock;
use weir_shared::units::Time;

use super::stamp::Stamp;
use crate::bans::Subject;

/// How long lifts and removals are remembered (FLEET-17).
pub const KEPT_MS: u64 = 7 * 86_400_000;
/// The most lifts, and the most removed entries, that are remembered.
pub const MAX_KEPT: usize = 10_000;

/// Which bans were lifted, and when.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct LiftRecord {
    /// Every covered ban that was made before this stamp is lifted.
    pub stamp: Stamp,
    /// The time in `lifted` of those bans.
    pub at: Time,
    /// All bans that cover this client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    client: Option<Client>,
    /// All bans of exactly this netblock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    netblock: Option<Netblock>,
    /// Members of a newer version: kept and passed on (FLEET-31).
    #[serde(flatten)]
    unknown: Map<String, Value>,
}

impl LiftRecord {
    /// A lift that was just made.
    pub fn new(subject: Subject, stamp: Stamp, at: Time) -> Self {
        let (client, netblock) = match subject {
            Subject::Client(client) => (Some(client), None),
            Subject::Netblock(netblock) => (None, Some(netblock)),
        };
        Self {
            stamp,
            at,
            client,
            netblock,
            unknown: Map::new(),
        }
    }

    /// Its JSON.
    pub fn text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Whether it covers bans of this netblock.
    pub fn covers(&self, netblock: Netblock) -> bool {
        self.netblock == Some(netblock)
            || (self.client).is_some_and(|client| netblock.covers_client(client))
    }
}
