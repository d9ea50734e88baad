//! What the thread that looks at the files tells the control loop.

use std::sync::Arc;

use weir_shared::rules::RuleSet;

use super::listed::SharedLists;

/// Rules that the thread has read: they hold.
pub(crate) struct Found {
    /// All of them.
    pub(crate) rules: Arc<RuleSet>,
    /// lists.json.
    pub(crate) lists: Arc<SharedLists>,
    /// A number for rules.json.
    pub(crate) digest: u64,
    /// For an edit, and not because an entry has ended.
    pub(crate) is_edit: bool,
    /// To be called once they hold, where somebody waits for that.
    pub(crate) told: Option<Box<dyn FnOnce() + Send>>,
}
