//! Where the files of rules.json lie, and how large they may be.

use std::io;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::guarded;

/// The name of the file where `WAF_RULES_FILE` is not set, and of the file in metrics.
pub(crate) const FILE: &str = "rules.json";
/// The name of the file of the lists that a fleet shares, in the state directory (FLEET-18).
pub(crate) const LISTS: &str = "lists.json";
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

/// A number for the members of rules.json, however they are laid out.
pub(super) fn digest(bytes: &[u8]) -> u64 {
    let value: Option<Value> = serde_json::from_slice(bytes).ok();
    let text = value.map(|value| value.to_string()).unwrap_or_default();
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
