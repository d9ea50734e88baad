//! Applies an edit of a state file in the control loop (STATE-3).

use weir_shared::clock::Now;

use crate::bans::document::BansFile;
use crate::bans::too_wide;
use crate::clients::ClientsFile;
use crate::control_loop::Control;
use crate::files::AnyEdit;
use crate::state::Change;

/// The most too-wide entries of an edit that warnings name.
const MAX_WIDE_TOLD: usize = 10;

impl Control {
    /// Applies an edit.
    pub(crate) fn take_edit(&mut self, edit: &AnyEdit, now: Now) {
        match edit {
            AnyEdit::Bans(edit) => self.edit_bans(&edit.changes, now),
            AnyEdit::Clients(edit) => self.edit_clients(&edit.changes),
            AnyEdit::Lookups(edit) => self.lookups.edit(&edit.changes),
            AnyEdit::Alerts(edit) => self.detection.edit(&edit.changes),
        }
    }

    fn edit_bans(&mut self, changes: &[Change<BansFile>], now: Now) {
        self.bans.edit(changes, now);
        let mut wide = 0_usize;
        for (ban, why) in too_wide::of_edit(changes, &self.spared, now.wall_ms) {
            wide += 1;
            if wide <= MAX_WIDE_TOLD {
                tracing::warn!(
                    "the edited bans.json is taken, but {why}: if that is meant, give the entry \"force\": true"
                );
            }
            self.detection.alerts.edit(ban, &why, now.wall_ms);
        }
        if wide > MAX_WIDE_TOLD {
            tracing::warn!("{} further entries of it are as wide", wide - MAX_WIDE_TOLD);
        }
    }

    fn edit_clients(&self, changes: &[Change<ClientsFile>]) {
        for change in changes {
            match change {
                Change::Remove(client) => self.table.forget(*client),
                Change::Put { after, .. } => self.table.put(after.row.clone()),
            }
        }
    }
}
