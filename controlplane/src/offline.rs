//! Reads the state files for commands while no service runs (CONTROL-3), without a lock and without
//! a write.

use std::path::Path;
use std::sync::Arc;

use weir_shared::api::alerts::{Alert, AlertList};
use weir_shared::api::clients::Listed;
use weir_shared::ban::Ban;
use weir_shared::clock::Now;
use weir_shared::netblock::NetSet;
use weir_shared::spared::Spared;
use weir_shared::units::Time;

use crate::admin::import;
use crate::alert::document::{AlertsEntry, AlertsFile};
use crate::bans::document::BansFile;
use crate::bans::journal::{BanLine, replay};
use crate::bans::ledger::oldest_first;
use crate::clients::{self, ClientsFile};
use crate::guarded::{self, if_there};
use crate::state::document::Document;
use crate::state::stat::MAX_BYTES;
use crate::state::{Standing, StateError, journal, text};

/// The files of a state directory. A file that is not there is an empty one.
#[derive(Clone, Copy)]
pub struct Offline<'a> {
    /// The directory.
    pub dir: &'a Path,
    /// The time of the answers.
    pub now: Now,
}

impl Offline<'_> {
    /// Every ban, oldest first, including changes that a kill left in the journal.
    ///
    /// # Errors
    /// [`StateError`], with the place in the file.
    pub fn bans(self) -> Result<Vec<Arc<Ban>>, StateError> {
        let standing = Standing::found::<BansFile>(self.dir);
        let lines: Vec<BanLine> = journal::look(self.dir, standing)?;
        let bans = replay(self.read::<BansFile>()?, lines, None);
        Ok(oldest_first(bans))
    }

    /// The alerts in the form of `GET /v1/alerts`.
    ///
    /// # Errors
    /// As [`Offline::bans`].
    pub fn alerts(self) -> Result<AlertList<Arc<Alert>>, StateError> {
        let entries = self.read::<AlertsFile>()?.into_iter();
        let alerts = entries.filter_map(|entry| match entry.row {
            AlertsEntry::Alert(alert) => Some(alert),
            AlertsEntry::Counter(..) | AlertsEntry::Cooldown(..) => None,
        });
        let alerts = alerts.collect();
        Ok(AlertList { alerts })
    }

    /// Every client, the most recently seen first.
    ///
    /// # Errors
    /// As [`Offline::bans`].
    pub fn clients(self) -> Result<Vec<Listed>, StateError> {
        let bans = self.bans()?;
        let refusing = |client| {
            let bans = bans.iter().filter(|ban| ban.is_active(self.now.wall_ms));
            let bans = bans.filter(|ban| !ban.observed && ban.netblock.covers_client(client));
            bans.map(|ban| ban.ban_expires).max()
        };
        let rows = self.read::<ClientsFile>()?;
        let listed = |entry: &clients::Entry| Listed {
            client: (&entry.row).into(),
            ban_expires: refusing(entry.row.client),
        };
        Ok(rows.iter().rev().map(listed).collect())
    }

    fn read<D: Document>(self) -> Result<Vec<D::Entry>, StateError> {
        read_file::<D>(&self.dir.join(D::FILE), self.now)
    }
}

/// Checks a file to import, a bans.json or a list of netblocks (CONTROL-9), with these trusted
/// proxies. Returns the number of its bans.
///
/// # Errors
/// Every fault, one sentence each.
pub fn check_import(body: &[u8], trusted: NetSet) -> Result<usize, Vec<String>> {
    import::check(body, &Spared::new(trusted))
}

/// Whether a file to import is a bans.json rather than a list of netblocks.
pub fn is_bans_file(body: &[u8]) -> bool {
    import::is_bans_file(body)
}

/// Reads a file in the form of bans.json, wherever it lies.
///
/// # Errors
/// [`StateError`], with the place in the file.
pub fn read_bans(path: &Path, now: Now) -> Result<Vec<Arc<Ban>>, StateError> {
    read_file::<BansFile>(path, now)
}

fn read_file<D: Document>(path: &Path, now: Now) -> Result<Vec<D::Entry>, StateError> {
    let failed = |error| StateError::Read {
        path: path.to_owned(),
        error,
    };
    let Some(bytes) = if_there(guarded::read(path, MAX_BYTES)).map_err(failed)? else {
        return Ok(Vec::new());
    };
    let content = text::parse::<D>(&bytes).map_err(|fault| StateError::DoesNotFit {
        path: path.to_owned(),
        fault,
    })?;
    let mut entries = D::complete(content.entries, &[], Time(now.wall_ms));
    D::sort(&mut entries);
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::files::KnownFiles;
    use crate::testing::NOW;

    const THEN: Now = Now {
        wall_ms: NOW,
        mono_ns: 0,
    };

    /// CONTROL-3: the files are read as the service reads them; a missing file is empty, and a
    /// fault is reported with its place.
    #[test]
    fn files_are_read_without_a_service() {
        let dir = tempfile::tempdir().unwrap();
        let offline = Offline {
            dir: dir.path(),
            now: THEN,
        };
        assert!(offline.bans().unwrap().is_empty());
        assert!(offline.clients().unwrap().is_empty());
        assert_eq!(offline.alerts().unwrap().alerts, []);
        assert!(KnownFiles::read(dir.path()).1.is_empty());
        let path = dir.path().join("bans.json");
        let ban = r#"{"netblock":"203.0.113.7/24","ban_expires":"permanent"}"#;
        fs::write(&path, format!(r#"{{"version":1,"bans":[{ban}]}}"#)).unwrap();
        let bans = offline.bans().unwrap();
        assert_eq!(bans[0].netblock.to_string(), "203.0.113.0/24");
        assert_eq!(read_bans(&path, THEN).unwrap().len(), 1);
        let lifted = r#"{"netblock":"203.0.113.0/24","ban_started":"2026-11-21T16:00:00Z","ban_expires":"permanent"}"#;
        let line = format!("{{\"number\":1,\"put\":[{lifted}]}}\n{{\"torn");
        fs::write(dir.path().join("bans.journal"), &line).unwrap();
        let bans = offline.bans().unwrap();
        assert_eq!(bans[0].ban_started, "2026-11-21T16:00:00Z".parse().ok());
        let left = fs::read_to_string(dir.path().join("bans.journal")).unwrap();
        assert_eq!(left, line, "who only looks changes nothing");
        fs::write(&path, "{\"version\":1,\n\"bans\":[7]}").unwrap();
        let (_, faults) = KnownFiles::read(dir.path());
        assert_eq!(faults.len(), 1);
        let fault = faults[0].to_string();
        assert!(
            fault.contains("line 2") && fault.contains("/bans/0"),
            "{fault}"
        );
    }
}
