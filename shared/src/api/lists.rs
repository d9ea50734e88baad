//! The answer of `POST /v1/lists` and `DELETE /v1/lists/<list>/<netblock>` (CONTROL-8).

use serde::{Deserialize, Serialize};

use crate::units::Time;

/// A list that was changed.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ListChanged {
    /// `allow` or `deny`.
    pub list: String,
    /// What was put in or taken out.
    pub netblock: String,
    /// When it ends; none for never.
    pub until: Option<Time>,
    /// Whether it was to be taken out.
    pub removed: bool,
    /// Whether there was anything to do: what is not in the list cannot be taken out.
    pub changed: bool,
    /// Entries of both lists that had ended and were taken out.
    pub ended: u64,
    /// The file.
    pub file: String,
    /// Whether the service has taken it in; none where none runs.
    pub in_force: Option<bool>,
}
