//! The answer of `GET /v1/alerts` (CONTROL-2).

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::units::Time;

/// The newest alerts.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct AlertList<A = Alert> {
    /// Oldest first, in the form of alerts.json.
    pub alerts: Vec<A>,
}

/// One alert in the form of alerts.json. Its time is its key there: no two alerts have the same.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Alert {
    /// When it was raised.
    pub time: Time,
    /// The name of its kind; another version may have further names.
    pub kind: Cow<'static, str>,
    /// The members of this kind.
    #[serde(flatten)]
    pub members: Map<String, Value>,
}
