//! The state files without a service: what commands show while none runs (CONTROL-3). Nothing is
//! locked and nothing is written.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use weir_shared::ban::Ban;
use weir_shared::clock::Now;
use weir_shared::units::Time;

use crate::alert::document::{AlertsEntry, AlertsFile};
use crate::bans::document::BansFile;
use crate::bans::ledger::oldest_first;
use crate::clients::{ClientsFile, client_json};
use crate::state::document::Document;
use crate::state::{StateError, text};

/// The files of a state directory. A file that is not there is an empty one.
#[derive(Clone, Copy)]
pub struct Offline<'a> {
    /// The directory.
    pub dir: &'a Path,
    /// The moment of which the answers are.
    pub now: Now,
}

impl Offline<'_> {
    /// As `GET /v1/bans` answers.
    ///
    /// # Errors
    /// [`StateError`], with the place in the file.
    pub fn bans(self) -> Result<Value, StateError> {
        let bans: Vec<Arc<Ban>> = self.read::<BansFile>()?;
        Ok(json!({"bans": oldest_first(bans)}))
    }

    /// As `GET /v1/alerts` answers.
    ///
    /// # Errors
    /// As [`Offline::bans`].
    pub fn alerts(self) -> Result<Value, StateError> {
        let entries = self.read::<AlertsFile>()?.into_iter();
        let alerts = entries.filter_map(|entry| match entry.row {
            AlertsEntry::Alert(alert) => Some(alert),
            AlertsEntry::Counter(..) | AlertsEntry::Cooldown(..) => None,
        });
        Ok(json!({"alerts": alerts.collect::<Vec<_>>()}))
    }

    /// Every client as `GET /v1/clients` answers, least recently seen first and without the ends of
    /// bans.
    ///
    /// # Errors
    /// As [`Offline::bans`].
    pub fn clients(self) -> Result<Value, StateError> {
        let rows = self.read::<ClientsFile>()?;
        let clients: Vec<Value> = rows.iter().map(|entry| client_json(&entry.row)).collect();
        Ok(json!({"held": clients.len(), "clients": clients}))
    }

    fn read<D: Document>(self) -> Result<Vec<D::Entry>, StateError> {
        read_file::<D>(&self.dir.join(D::FILE), self.now)
    }
}

/// Reads a file in the form of bans.json, wherever it lies.
///
/// # Errors
/// [`StateError`], with the place in the file.
pub fn read_bans(path: &Path, now: Now) -> Result<Vec<Arc<Ban>>, StateError> {
    read_file::<BansFile>(path, now)
}

fn read_file<D: Document>(path: &Path, now: Now) -> Result<Vec<D::Entry>, StateError> {
    let bytes = match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => {
            let path = path.to_owned();
            return Err(StateError::Read { path, error });
        }
        Ok(bytes) => bytes,
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
    use super::*;
    use crate::files::KnownFiles;
    use crate::testing::NOW;

    const THEN: Now = Now {
        wall_ms: NOW,
        mono_ns: 0,
    };

    /// CONTROL-3: the files are read as the service reads them; what is missing is empty, and what
    /// is wrong is told with its place.
    #[test]
    fn files_are_read_without_a_service() {
        let dir = tempfile::tempdir().unwrap();
        let offline = Offline {
            dir: dir.path(),
            now: THEN,
        };
        assert_eq!(offline.bans().unwrap(), json!({"bans": []}));
        assert_eq!(offline.clients().unwrap()["held"], 0);
        assert_eq!(offline.alerts().unwrap(), json!({"alerts": []}));
        assert!(KnownFiles::read(dir.path()).1.is_empty());
        let path = dir.path().join("bans.json");
        let ban = r#"{"netblock":"203.0.113.7/24","ban_expires":"permanent"}"#;
        fs::write(&path, format!(r#"{{"version":1,"bans":[{ban}]}}"#)).unwrap();
        let bans = offline.bans().unwrap();
        assert_eq!(bans["bans"][0]["netblock"], "203.0.113.0/24");
        assert_eq!(read_bans(&path, THEN).unwrap().len(), 1);
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
