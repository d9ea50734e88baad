//! What the thread that looks at the files tells the control loop.

use std::sync::Arc;

use weir_shared::rules::RuleSet;

use super::listed::SharedLists;

/// What the thread found.
pub(crate) enum Found {
    /// These rules hold.
    Taken {
        /// All of them.
        rules: Arc<RuleSet>,
        /// lists.json.
        lists: Arc<SharedLists>,
        /// A number for rules.json.
        digest: u64,
        /// For an edit, and not because an entry has ended.
        is_edit: bool,
        /// To be called once they hold, where somebody waits for that.
        told: Option<Box<dyn FnOnce() + Send>>,
    },
    /// A version of a feed is not taken (FEED-5).
    FeedError {
        /// The feed's name.
        feed: String,
        /// The whole sentence.
        error: String,
    },
    /// An edit, or a list, that does not fit: the last good one stays.
    Fault {
        /// Its path.
        file: String,
        /// The whole sentence.
        error: String,
    },
}
