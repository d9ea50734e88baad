//! From what was written to what is trusted.

use super::Settings;

/// One fault, in one sentence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem(pub String);

/// Settings that can be trusted, and what to warn about.
#[derive(Debug)]
pub struct Loaded {
    /// The settings.
    pub settings: Settings,
    /// One sentence each.
    pub warnings: Vec<String>,
}

/// Reads the settings from `(name, value)` pairs, as the environment gives them.
///
/// # Errors
/// Every problem at once (SETTING-1).
pub fn load(
    _variables: impl IntoIterator<Item = (String, String)>,
) -> Result<Loaded, Vec<Problem>> {
    Err(vec![])
}
