//! Bans that only one instance holds, after it was away for longer than the fleet remembers
//! removals: they are moved to a file, with an alert (FLEET-17).

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use crossbeam_channel::{Receiver, never};
use serde_json::json;
use weir_shared::units::Time;

use super::event::Event;
use super::facts::Told;

/// The name of the file in the state directory; further files have a number after it.
pub(super) const FILE: &str = "bans.json.before-fleet";
/// The most such files.
const MOST: usize = 100;

/// The file, while it is written.
pub(super) struct Aside {
    pub(super) dir: PathBuf,
    pub(super) written: Receiver<Result<PathBuf, String>>,
    pub(super) is_writing: bool,
    pub(super) next_ns: u64,
    pub(super) told: Option<Told>,
}

impl Aside {
    pub(super) fn new(dir: PathBuf) -> Self {
        Self {
            dir,
            written: never(),
            is_writing: false,
            next_ns: 0,
            told: None,
        }
    }
}

pub(super) fn document(events: &[Event], now_ms: u64) -> Vec<u8> {
    let bans = events.iter().filter_map(|event| match event {
        Event::Entry(entry) => entry.ban(),
        _ => None,
    });
    let listed = |list: &str| -> Vec<_> {
        let of_list = events.iter().filter_map(|event| match event {
            Event::List(record) if record.key.list.name() == list => {
                let entry = record.entry.as_ref()?;
                let (until, comment) = (entry.until, &entry.comment);
                let netblock = record.key.netblock;
                Some(json!({"netblock": netblock, "until": until, "comment": comment}))
            }
            _ => None,
        });
        of_list.collect()
    };
    let file = json!({
        "version": 1,
        "written": Time(now_ms),
        "bans": bans.collect::<Vec<_>>(),
        "allow": listed("allow"),
        "deny": listed("deny"),
    });
    serde_json::to_vec_pretty(&file).unwrap_or_default()
}

pub(super) fn put(dir: &Path, bytes: &[u8]) -> io::Result<PathBuf> {
    for number in 0..MOST {
        let name = match number {
            0 => FILE.to_owned(),
            _ => format!("{FILE}.{number}"),
        };
        let path = dir.join(name);
        let mut options = OpenOptions::new();
        let options = options.write(true).create_new(true).mode(0o600);
        let mut file = match options.open(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
            opened => opened?,
        };
        file.write_all(bytes)?;
        file.sync_all()?;
        File::open(dir)?.sync_all()?;
        return Ok(path);
    }
    Err(io::Error::other("there are a hundred of them"))
}
