//! The last good content of each list file, in the state directory (RULE-10).
//!
//! Other programs write list files, and a failed download at night must not prevent a restart. The
//! content of a list is kept as `lists/<hash>.txt`, with the hash of the list's path. These files
//! are copies: removing them loses nothing while the lists themselves can be read.

use std::collections::HashSet;
use std::fmt::{Display, Write as _};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};
use weir_shared::netblock::Netblock;

use super::agent_file::{self, Agents};
use super::list_file;
use crate::beside;
use crate::netblock_list::{self, MAX_LISTED};

/// The folder in the state directory.
const FOLDER: &str = "lists";
const SUFFIX: &str = ".txt";

/// The folder of the copies.
#[derive(Clone, Debug)]
pub(super) struct KeptLists(PathBuf);

impl KeptLists {
    pub(super) fn new(state_dir: &Path) -> Self {
        Self(state_dir.join(FOLDER))
    }

    /// The kept content of the list at this path, if there is any.
    pub(super) fn read(&self, list: &Path) -> Option<Vec<Netblock>> {
        let netblocks = netblock_list::parse(&self.bytes(list)?, MAX_LISTED)
            .ok()?
            .netblocks;
        (!netblocks.is_empty()).then_some(netblocks)
    }

    /// The kept content of a file of literals.
    pub(super) fn read_agents(&self, file: &Path) -> Option<Agents> {
        let agents = agent_file::parse(&self.bytes(file)?).ok()?;
        (!agents.literals.is_empty()).then_some(agents)
    }

    fn bytes(&self, list: &Path) -> Option<Vec<u8>> {
        list_file::bytes(&self.0.join(name(list))).ok()
    }

    /// Keeps these lists. Unchanged ones are not written again.
    pub(super) fn keep<L: Display>(
        &self,
        fresh: impl Iterator<Item = (PathBuf, impl Iterator<Item = L>)>,
    ) -> io::Result<()> {
        for (list, lines) in fresh {
            match DirBuilder::new().mode(0o700).create(&self.0) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                Ok(()) | Err(_) => {}
            }
            self.write(&list, lines)?;
        }
        Ok(())
    }

    fn write(&self, list: &Path, lines: impl Iterator<Item = impl Display>) -> io::Result<()> {
        let mut text = format!("# what weir last read of {}\n", list.display());
        for line in lines {
            let _ = writeln!(text, "{line}");
        }
        let name = name(list);
        let path = self.0.join(&name);
        if list_file::bytes(&path).is_ok_and(|held| held == text.as_bytes()) {
            return Ok(());
        }
        beside::replace(&path, |out| out.write_all(text.as_bytes()))
    }

    /// Removes the copies of lists that rules.json no longer names. A copy that cannot be removed
    /// does no harm.
    pub(super) fn forget_others(&self, named: &HashSet<PathBuf>) {
        let names: HashSet<String> = named.iter().map(|list| name(list)).collect();
        for entry in fs::read_dir(&self.0).into_iter().flatten().flatten() {
            let held = entry.file_name();
            let is_other = |held: &str| is_ours(held) && !names.contains(held);
            if held.to_str().is_some_and(is_other) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

/// The name under which a list is kept.
fn name(list: &Path) -> String {
    let hash = Sha256::digest(list.as_os_str().as_encoded_bytes());
    HEXLOWER.encode(&hash) + SUFFIX
}

fn is_ours(name: &str) -> bool {
    let hash = name.strip_suffix(SUFFIX);
    hash.is_some_and(|hash| hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()))
}
