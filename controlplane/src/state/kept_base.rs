//! The base of a file under a second name (STATE-2, STATE-4): `.bans.json.base`.
//!
//! The file at its own name may at any moment be replaced by a copy that an editor read long ago.
//! While the service runs, the base in memory tells what such a copy lacks. Should the service be
//! killed before it took the copy in, this file tells the next start: it is the document that was
//! last written or taken in, and behind it one line with the history of its entries.
//!
//! It is renamed into place before the document is. A kill in between leaves a base that is ahead
//! of the file: the file is then taken as a copy of the write before, and what the last write added
//! is kept, as if it had come to its end.
//!
//! A file that is gone was taken out by somebody, and its base says nothing any more.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::diff::History;
use super::document::Document;
use super::journal::LAST_NUMBER;
use super::stat::{self, Hash, Seen};
use super::step::Step;
use super::store::{Staged, Store};
use crate::guarded::if_there;

/// A base as it was read.
pub(super) struct KeptBase<K> {
    /// The file that it was read from.
    pub(super) seen: Seen,
    /// The document.
    pub(super) document: Vec<u8>,
    /// Of the document.
    pub(super) hash: Hash,
    pub(super) history: History<K>,
}

/// The line behind the document.
#[derive(Serialize, Deserialize)]
struct Trailer<K> {
    /// Of the document: a base that is not whole is none.
    sha256: Hash,
    history: History<K>,
}

impl Store {
    /// Puts a copy of the staged document in the place of the base.
    pub(super) fn keep_base<K: Serialize>(
        &self,
        name: &str,
        staged: &Staged<'_>,
        history: History<K>,
    ) -> io::Result<()> {
        let (mut base, mut file) = self.temporary(&format!(".{name}.base.tmp"), Step::CopyBase)?;
        // A file system that can share the blocks of two files does so here.
        io::copy(&mut File::open(&staged.file.path)?, &mut file)?;
        let trailer = Trailer {
            sha256: staged.seen.hash,
            history,
        };
        let mut line = serde_json::to_vec(&trailer)?;
        line.push(b'\n');
        file.write_all(&line)?;
        file.sync_all()?;
        self.faults.step(Step::NameBase)?;
        fs::rename(&base.path, path(&self.dir, name))?;
        base.keep = true;
        Ok(())
    }
}

/// Removes the base: the file was taken out.
pub(super) fn forget(dir: &Path, name: &str) -> io::Result<()> {
    if_there(fs::remove_file(path(dir, name))).map(drop)
}

/// Where the base of a file lies.
pub(super) fn path(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!(".{name}.base"))
}

/// The base of the file in this directory, if one is kept and it is whole.
pub(super) fn read<D: Document>(dir: &Path) -> Option<KeptBase<D::Key>> {
    if !D::KEEPS_BASE {
        return None;
    }
    let name = D::FILE;
    let path = path(dir, name);
    let base = match stat::read(&path) {
        Ok(Some((bytes, seen))) => split(bytes, seen),
        Ok(None) => return None,
        Err(error) => {
            tracing::warn!(file = name, "{} cannot be read: {error}", path.display());
            return None;
        }
    };
    if base.is_none() {
        tracing::warn!(
            file = name,
            "{} is damaged and is not used: the state file counts as it stands",
            path.display()
        );
    }
    base
}

/// Takes the document and its history apart; none if they do not belong together, or if no service
/// wrote this number of a line.
fn split<K: DeserializeOwned>(mut bytes: Vec<u8>, seen: Seen) -> Option<KeptBase<K>> {
    let whole = bytes.strip_suffix(b"\n")?;
    let end = whole.iter().rposition(|byte| *byte == b'\n')? + 1;
    let trailer: Trailer<K> = serde_json::from_slice(bytes.get(end..)?).ok()?;
    bytes.truncate(end);
    let hash: Hash = Sha256::digest(&bytes).into();
    let number = trailer.history.journal;
    let is_believed = number.is_none_or(|number| number <= LAST_NUMBER);
    (hash == trailer.sha256 && is_believed).then_some(KeptBase {
        seen,
        document: bytes,
        hash,
        history: trailer.history,
    })
}
