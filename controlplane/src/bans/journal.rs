//! The journal of bans.json (STATE-10): its lines, and how a start replays them.

use std::collections::BTreeMap;
use std::sync::Arc;

use weir_shared::ban::Ban;

use super::document::{BanKey, BansFile, merge};
use crate::state::Change;
use crate::state::journal::{Journal, Line};

/// bans.journal
pub(crate) type BanJournal = Journal<Arc<Ban>, BanKey>;
/// A line of bans.journal.
pub(crate) type BanLine = Line<Arc<Ban>, BanKey>;

/// The bans that memory held at the end of the previous process: its last document, changed by the
/// journal lines after it. An edit of the file is then applied as in a running service (STATE-4).
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
