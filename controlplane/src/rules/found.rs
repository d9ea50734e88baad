//! Messages of the thread that watches the files to the control loop.

use std::sync::Arc;

use weir_shared::rules::RuleSet;

use super::listed::SharedLists;

/// Newly loaded rules.
pub(crate) struct Found {
    /// The rules.
    pub(crate) rules: Arc<RuleSet>,
    /// lists.json.
    pub(crate) lists: Arc<SharedLists>,
    /// The digest of rules.json.
    pub(crate) digest: u64,
    /// True for an edit, false if an entry has ended.
    pub(crate) is_edit: bool,
    /// Called once the rules are in force, if somebody waits for that.
    pub(crate) told: Option<Box<dyn FnOnce() + Send>>,
}
