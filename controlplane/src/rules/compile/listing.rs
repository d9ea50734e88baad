//! lists.json beside rules.json: which file a change goes to, and which of its entries are in force
//! (FLEET-18).

use std::sync::Arc;

use weir_shared::netblock::Netblock;

use super::{BadList, Compiled, Compiler, Read};
use crate::rules::entry::{Change, Changed, Entry, List, NotChanged};
use crate::rules::list_file::LISTS;
use crate::rules::listed::{self, FileChange, Held, SharedLists};
use crate::state::fault::Fault;

impl Compiler {
    /// Whether this change goes to lists.json rather than rules.json. Additions do if lists are
    /// shared; removals do if the entry is in lists.json.
    pub(in crate::rules) fn is_of_lists(&self, change: &Change) -> bool {
        match change.entry {
            Some(_) => self.shares_lists,
            None => self.listed.entries.contains_key(&change.key()),
        }
    }

    /// Changes lists.json.
    pub(in crate::rules) fn change_lists(
        &self,
        changes: &[FileChange],
        now_ms: u64,
    ) -> Result<Changed, NotChanged> {
        let held = Held {
            entries: &self.listed.entries,
            sets_aside: true,
        };
        listed::change(&self.lists_path, held, changes, now_ms)
    }

    /// Reads lists.json. If it is invalid or gone, the last good content stays.
    pub(super) fn read_listed(&self, read: &mut Read) {
        let before = self.listed.entries.len();
        let (is_there, error) = match listed::read_at(&self.lists_path) {
            Ok(Some(entries)) => {
                let is_there = true;
                read.listed = Arc::new(SharedLists { entries, is_there });
                return;
            }
            Ok(None) if before == 0 => return,
            Ok(None) => (false, "is gone (an empty list takes all out)".to_owned()),
            Err(Fault {
                line: 0, message, ..
            }) => (true, format!("cannot be read: {message}")),
            Err(fault) => (true, format!("has a fault in {fault}")),
        };
        read.listed = Arc::new(SharedLists {
            is_there,
            ..SharedLists::clone(&self.listed)
        });
        let path = self.lists_path.clone();
        let stays = match before {
            0 => String::new(),
            _ => format!(": its last good {before} entries stay"),
        };
        read.bad.push(BadList {
            name: LISTS.to_owned(),
            error: format!("the list {} {error}{stays}", path.display()),
            path,
        });
    }

    /// The entries of one list of lists.json that are in force here. An unforced entry that denies
    /// a trusted proxy is not (FLEET-24).
    pub(super) fn in_force<'a>(
        &self,
        listed: &'a SharedLists,
        list: List,
    ) -> Vec<(Netblock, &'a Entry)> {
        let of_list = listed.entries.iter().filter(|(key, _)| key.list == list);
        let holds = of_list.filter(|(key, entry)| {
            let (own, spared) = (key.netblock, list == List::Deny && !entry.force);
            let covers = |proxy: &&Netblock| own.covers(**proxy) || proxy.covers(own);
            let proxy = spared.then(|| self.trusted.blocks().iter().find(covers));
            if let Some(proxy) = proxy.flatten() {
                tracing::warn!(
                    file = %self.lists_path.display(),
                    "{} covers {proxy} of WAF_TRUSTED_PROXIES: it is held and denies nobody here; \"force\": true if that is meant",
                    key.netblock
                );
                return false;
            }
            true
        });
        holds.map(|(key, entry)| (key.netblock, entry)).collect()
    }
}

impl Compiled {
    /// lists.json, and the digest of rules.json.
    pub(in crate::rules) fn listed(&self) -> (Arc<SharedLists>, u64) {
        (Arc::clone(&self.read.listed), self.read.digest)
    }

    /// The fault of lists.json, which stops a start (STATE-6).
    pub(in crate::rules) fn bad_listed(&self) -> Option<&str> {
        let mut bad = self.read.bad.iter();
        let bad = bad.find(|bad| bad.name == LISTS)?;
        Some(&bad.error)
    }
}
