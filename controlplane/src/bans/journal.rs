//! Bans in the journal of bans.json (STATE-10): what a line says, and the bans that a start finds.

use std::collections::BTreeMap;
use std::sync::Arc;

use weir_shared::ban::Ban;

use super::document::{BanKey, BansFile, merge};
use crate::state::Change;
use crate::state::journal::{Journal, Line};

/// bans.journal
pub(crate) type BanJournal = Journal<Arc<Ban>, BanKey>;
/// A line of it.
pub(crate) type BanLine = Line<Arc<Ban>, BanKey>;

/// What memory held at the end of the process before: what it wrote last, changed by the lines
/// behind that, and then by an edit of the file, as a running service takes it in (STATE-4).
pub(crate) fn replay(
    written: Vec<Arc<Ban>>,
    lines: Vec<BanLine>,
    edit: Option<&[Change<BansFile>]>,
) -> Vec<Arc<Ban>> {
    if lines.is_empty() && edit.is_none() {
        return written;
    }
    let keyed = |ban: Arc<Ban>| (BanKey::of(&ban), ban);
    let mut bans: BTreeMap<BanKey, Arc<Ban>> = written.into_iter().map(keyed).collect();
    for line in lines {
        for key in line.remove {
            bans.remove(&key);
        }
        bans.extend(line.put.into_iter().map(keyed));
    }
    for change in edit.unwrap_or_default() {
        match change {
            Change::Remove(key) => drop(bans.remove(key)),
            Change::Put { before, after } => {
                let key = BanKey::of(after);
                let ban = match (before, bans.get(&key)) {
                    (Some(before), Some(held)) => merge(before, held, after),
                    (Some(_) | None, _) => Arc::clone(after),
                };
                bans.insert(key, ban);
            }
        }
    }
    bans.into_values().collect()
}
