//! The answer of `POST /v1/lists` and `DELETE /v1/lists/<list>/<netblock>` (CONTROL-8).

use serde::{Deserialize, Serialize};

use crate::units::Time;

/// A list that was changed.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ListChanged {
    /// `allow` or `deny`.
    pub list: String,
    /// The netblock that was added or removed.
    pub netblock: String,
    /// When it ends; none for never.
    pub until: Option<Time>,
    /// Whether the request was to remove it.
    pub removed: bool,
    /// Whether the file has changed: a netblock that is not in the list cannot be removed.
    pub changed: bool,
    /// Ended entries of both lists that were removed.
    pub ended: u64,
    /// The file.
    pub file: String,
    /// Whether the service has loaded the change; none if no service runs.
    pub in_force: Option<bool>,
}
