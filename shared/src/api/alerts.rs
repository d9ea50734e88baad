//! The answer of `GET /v1/alerts` (CONTROL-2).

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::units::Time;

/// The newest alerts.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct AlertList<A = Alert> {
    /// Oldest first, as alerts.json has them.
    pub alerts: Vec<A>,
}

/// One alert as it stands in alerts.json. Its time is its name there: no two share one.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Alert {
    /// When it was raised.
    pub time: Time,
    /// The name of its kind; of another version any word.
    pub kind: Cow<'static, str>,
    /// What the kind has to say.
    #[serde(flatten)]
    pub members: Map<String, Value>,
}
