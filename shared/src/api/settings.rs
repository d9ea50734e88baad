//! The answer of `GET /v1/settings`.

use serde::{Deserialize, Serialize};

use crate::settings::Listed;

/// Every setting, in the order of the table.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SettingList {
    /// Settings of one heading are next to each other.
    pub settings: Vec<Setting>,
}

/// One setting.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Setting {
    /// `WAF_…`
    pub name: String,
    /// Its heading.
    pub group: String,
    /// Its value as written, or its default; none if it is a token, or if there is neither.
    pub value: Option<String>,
    /// Where the value comes from.
    pub origin: String,
    /// Whether it is a token, whose value is not shown.
    pub secret: bool,
    /// The effect of no value, in words.
    pub unset: Option<String>,
}

impl From<&[Listed]> for SettingList {
    fn from(listing: &[Listed]) -> Self {
        let settings = listing.iter().map(|listed| Setting {
            name: listed.name.clone(),
            group: listed.theme.to_owned(),
            value: listed.value.clone(),
            origin: listed.origin.name().to_owned(),
            secret: listed.secret,
            unset: (listed.value.is_none()).then(|| listed.unset.to_owned()),
        });
        Self {
            settings: settings.collect(),
        }
    }
}
