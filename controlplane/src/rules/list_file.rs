//! Where the files of rules.json lie, and how large they may be.

use std::io;
use std::path::{Path, PathBuf};

use crate::guarded;

/// The name of the file where `WAF_RULES_FILE` is not set, and of the file in metrics.
pub(crate) const FILE: &str = "rules.json";
/// 100,000 netblocks with a comment each are a tenth of this.
pub(super) const MAX_BYTES: u64 = 64 << 20;

/// The bytes of rules.json, or of a list.
pub(super) fn bytes(path: &Path) -> io::Result<Vec<u8>> {
    guarded::read(path, MAX_BYTES)
}

/// A file beside rules.json where its name is relative.
pub(super) fn beside(rules_file: &Path, name: &Path) -> PathBuf {
    rules_file.parent().unwrap_or(Path::new("")).join(name)
}

/// A list's file: beside rules.json where its name is relative.
pub(super) fn list_path(rules_file: &Path, name: &str) -> PathBuf {
    beside(rules_file, Path::new(name))
}
