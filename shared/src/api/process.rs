//! The answers of `POST /v1/reload` and `POST /v1/upgrade`.

use serde::{Deserialize, Serialize};

use crate::settings::{Change, Taken};

/// A successful reload.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Reloaded {
    /// Changed settings that are in force.
    pub taken: Vec<SettingChange>,
    /// Changed settings that need a restart.
    pub restart: Vec<SettingChange>,
    /// One sentence each.
    pub warnings: Vec<String>,
}

/// A setting whose value has changed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SettingChange {
    /// `WAF_…`
    pub name: String,
    /// The old value; none if there was none, or if it is a token.
    pub old: Option<String>,
    /// The new value.
    pub new: Option<String>,
    /// Whether it is a token, whose value is not shown.
    pub secret: bool,
    /// The change on one line.
    pub text: String,
}

/// A completed hand-over.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Upgraded {
    /// The id of the process that serves now.
    pub process: u32,
}

impl Reloaded {
    /// The answer with these changes and warnings.
    pub fn of(changes: &[Change], warnings: &[String]) -> Self {
        let of = |taken| {
            let changes = changes.iter().filter(|change| change.taken == taken);
            changes.map(SettingChange::from).collect()
        };
        Self {
            taken: of(Taken::Live),
            restart: of(Taken::Restart),
            warnings: warnings.to_vec(),
        }
    }
}

impl From<&Change> for SettingChange {
    fn from(change: &Change) -> Self {
        Self {
            name: change.name.to_owned(),
            old: change.old.clone(),
            new: change.new.clone(),
            secret: change.secret,
            text: change.to_string(),
        }
    }
}
