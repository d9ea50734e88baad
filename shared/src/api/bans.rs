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
    /// What was made.
    #[serde(flatten)]
    pub ban: Ban,
    /// `false` where it is in force and not on disk yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persisted: Option<bool>,
}

/// The answer of `DELETE /v1/bans/…`.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Lifted {
    /// What refused until now.
    pub lifted: Vec<Ban>,
    /// `false` where that is not on disk yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persisted: Option<bool>,
}
