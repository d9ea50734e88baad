//! Answers of `/v1/bans`.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::ban::Ban;

/// The answer of `GET /v1/bans`.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct BanList {
    /// Oldest first.
    pub bans: Vec<Arc<Ban>>,
}

/// The answer of `POST /v1/bans`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Banned {
    /// The ban that was made.
    #[serde(flatten)]
    pub ban: Ban,
    /// `false` if it is in force and not on disk yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persisted: Option<bool>,
}

/// The answer of `DELETE /v1/bans/…`.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Lifted {
    /// The bans that were lifted.
    pub lifted: Vec<Ban>,
    /// `false` if that is not on disk yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persisted: Option<bool>,
}
