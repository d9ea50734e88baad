//! A list of netblocks as a text, the way FireHOL, Spamhaus DROP and crawler operators publish
//! theirs: one a line, comments behind `#` or `;` (RULE-1).

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use weir_shared::netblock::Netblock;

/// The name of the file where `WAF_RULES_FILE` is not set, and of the file in metrics.
pub(crate) const FILE: &str = "rules.json";
/// 100,000 netblocks with a comment each are a tenth of this.
pub(super) const MAX_BYTES: u64 = 64 << 20;
/// Lines that are no netblock, told by their numbers.
const MAX_TOLD: usize = 5;

/// A list as it was read.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ListText {
    pub(super) netblocks: Vec<Netblock>,
    /// Lines that are no netblock.
    pub(super) skipped: usize,
    /// The numbers of the first of them, from 1.
    pub(super) first_skipped: Vec<usize>,
}

impl ListText {
    /// Whether it has at most so many netblocks.
    pub(super) fn fits(&self, room: usize) -> bool {
        self.netblocks.len() <= room
    }
}

/// The bytes of a file of ours, if it is one: a pipe would be waited for.
pub(super) fn bytes(path: &Path) -> io::Result<Vec<u8>> {
    let flags = rustix::fs::OFlags::NONBLOCK.bits();
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(i32::try_from(flags).unwrap_or(0))
        .open(path)?;
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(io::Error::other(format!(
            "it is larger than {} MiB",
            MAX_BYTES >> 20
        )));
    }
    Ok(bytes)
}

/// A list's file: beside rules.json where its name is relative.
pub(super) fn list_path(rules_file: &Path, name: &str) -> PathBuf {
    rules_file.parent().unwrap_or(Path::new("")).join(name)
}

/// Reads a list.
pub(super) fn parse(bytes: &[u8]) -> ListText {
    let mut list = ListText::default();
    for (number, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
        let end = line.iter().position(|byte| matches!(byte, b'#' | b';'));
        let line = line
            .get(..end.unwrap_or(line.len()))
            .unwrap_or(line)
            .trim_ascii();
        if line.is_empty() || (number == 0 && line == b"\xef\xbb\xbf") {
            continue;
        }
        let text = std::str::from_utf8(line).ok();
        match text.and_then(|text| text.trim_start_matches('\u{feff}').parse().ok()) {
            Some(netblock) => list.netblocks.push(netblock),
            None => {
                list.skipped += 1;
                if list.first_skipped.len() < MAX_TOLD {
                    list.first_skipped.push(number + 1);
                }
            }
        }
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RULE-1: comments of both sorts, blanks, Windows line ends and a byte order mark are read; a
    /// line that is no netblock is skipped and told with its number, the first five.
    #[test]
    fn a_list_is_read_as_it_is_published() {
        let text = "\u{feff}192.0.2.0/24\r\n; Spamhaus DROP\n198.51.100.7 ; SBL1\n\n# c\n  2001:db8::/32 # x\nno\n203.0.113.1-9\n1.2.3.4/33\n{\n}\n[\n";
        let list = parse(text.as_bytes());
        let netblocks: Vec<_> = list.netblocks.iter().map(ToString::to_string).collect();
        assert_eq!(
            netblocks,
            ["192.0.2.0/24", "198.51.100.7/32", "2001:db8::/32"]
        );
        assert_eq!(
            (list.skipped, list.first_skipped),
            (6, vec![7, 8, 9, 10, 11])
        );
        assert_eq!(parse(b"\xff\xfe\n").skipped, 1);
    }
}
