//! Changes of the lists allow and deny by a command while no service runs (CONTROL-8, FLEET-18): in
//! rules.json, or in lists.json.

use std::path::Path;

use weir_shared::clock::Now;

use crate::fleet;
use crate::rules::{Change, Changed, NotChanged, change_file, change_lists, holds_list};

/// The files of the lists.
#[derive(Clone, Copy, Debug)]
pub struct ListFiles<'a> {
    /// rules.json.
    pub rules: &'a Path,
    /// The state directory, where lists.json lies.
    pub state_dir: &'a Path,
    /// Whether a fleet shares lists.
    pub are_shared: bool,
}

impl ListFiles<'_> {
    /// Changes one of the files: lists.json if lists are shared, or if the entry to remove is
    /// there.
    ///
    /// # Errors
    /// [`NotChanged`]; the files are as they were.
    pub fn change(self, asked: &Change, now: Now) -> Result<Changed, NotChanged> {
        let is_of_lists = match asked.entry {
            Some(_) => self.are_shared,
            None => holds_list(self.state_dir, asked)?,
        };
        if is_of_lists {
            // If the file is gone, the service still has its content. A new file with only the new
            // entry would look like an edit that removes all others, so the held entries are
            // written too.
            let held = fleet::held_lists(self.state_dir);
            return change_lists(self.state_dir, &held, asked, now);
        }
        change_file(self.rules, asked, now)
    }
}
