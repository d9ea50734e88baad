//! The paths of rules.json's files, and their largest size.

use std::io;
use std::path::{Path, PathBuf};

use crate::guarded;
use crate::state::fault::Fault;

/// The default name of the file, and its name in metrics.
pub(crate) const FILE: &str = "rules.json";
/// The name of the file of the lists that a fleet shares, in the state directory (FLEET-18).
pub(crate) const LISTS: &str = "lists.json";
/// The most bytes of a file: ten times 100,000 netblocks with a comment each.
pub(super) const MAX_BYTES: u64 = 64 << 20;

/// The bytes of rules.json, or of a list.
pub(super) fn bytes(path: &Path) -> io::Result<Vec<u8>> {
    guarded::read(path, MAX_BYTES)
}

/// Checks that a text is small enough to be read again.
pub(super) fn is_bounded(text: &[u8]) -> Result<(), Fault> {
    let fault = || {
        let most = MAX_BYTES >> 20;
        Fault::new(1, 1, "", &format!("it would be larger than {most} MiB"))
    };
    (text.len() as u64 <= MAX_BYTES)
        .then_some(())
        .ok_or_else(fault)
}

/// The path of a file; a relative name starts at the directory of rules.json.
pub(super) fn beside(rules_file: &Path, name: &Path) -> PathBuf {
    rules_file.parent().unwrap_or(Path::new("")).join(name)
}

/// The path of a list; a relative name starts at the directory of rules.json.
pub(super) fn list_path(rules_file: &Path, name: &str) -> PathBuf {
    beside(rules_file, Path::new(name))
}

/// The digest of the text of rules.json, without the space between members.
pub(super) fn digest(bytes: &[u8]) -> u64 {
    let mut is_text = false;
    let mut is_escaped = false;
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        match byte {
            b'"' if !is_escaped => is_text = !is_text,
            b' ' | b'\t' | b'\r' | b'\n' if !is_text => return hash,
            _ => {}
        }
        is_escaped = byte == b'\\' && !is_escaped;
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::digest;

    /// FLEET-18: instances do not compare the space between members; they compare space in a text.
    #[test]
    fn a_digest_is_of_the_text_without_its_layout() {
        let of = |text: &str| digest(text.as_bytes());
        let file = r#"{"version":1,"a":"b \" c\\","d":[1,2]}"#;
        let laid_out = "{ \"version\": 1,\n\t\"a\": \"b \\\" c\\\\\",\r\n  \"d\": [1, 2]\n}\n";
        assert_eq!(of(file), of(laid_out));
        assert_ne!(of(file), of(&file.replace("b \\\"", "b\\\"")));
        assert_ne!(of(file), of(&file.replace("1,2", "1,3")));
    }
}
