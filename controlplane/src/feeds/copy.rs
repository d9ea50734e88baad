//! The last good copy of each feed, as `feeds/NAME` in the state directory (FEED-4).
//!
//! A copy is an ordinary list of netblocks, so that other programs can read it. Its first line, a
//! comment, has its source and time in JSON. A copy of another URL than the feed's, or one that is
//! not whole, is not used.

use std::fmt::Write as _;
use std::fs::{self, DirBuilder};
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use data_encoding::HEXLOWER;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use weir_shared::netblock::Netblock;
use weir_shared::units::Time;

use super::decisions::Decisions;
use super::wanted::Wanted;
use crate::beside;
use crate::guarded;
use crate::netblock_list::{self, MAX_LISTED};

/// The folder in the state directory.
const FOLDER: &str = "feeds";
/// The suffix of the file with a refused version (FEED-5). Names of feeds have no dot.
const REFUSED: &str = ".refused";
/// The most bytes of the first line.
const MAX_HEAD: u64 = 16 << 10;
/// The beginning of the first line.
const MARK: &str = "# weir feed ";
/// The most bytes of a copy: it has at most as many entries as a list, each of at most 44 bytes.
const MAX_BYTES: u64 = 64 << 20;

/// The content of the first line.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Head {
    /// The URL it was fetched from.
    pub(crate) url: String,
    /// When this version was taken.
    pub(crate) taken: Time,
    /// When its publisher last confirmed that this version is current.
    pub(crate) confirmed: Time,
    /// `ETag` of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) etag: Option<String>,
    /// `Last-Modified` of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) last_modified: Option<String>,
    /// SHA-256 of the netblocks, to recognize a version that is published again.
    #[serde(default)]
    pub(crate) digest: String,
    /// The number of netblocks that follow.
    pub(crate) entries: usize,
}

/// A copy of one feed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Copy {
    /// Its first line.
    pub(crate) head: Head,
    /// All netblocks of the publisher, none left out.
    pub(crate) netblocks: Vec<Netblock>,
}

/// The folder of the copies.
#[derive(Clone, Debug)]
pub(crate) struct Copies(PathBuf);

impl Copies {
    pub(crate) fn new(state_dir: &Path) -> Self {
        Self(state_dir.join(FOLDER))
    }

    /// The copy of this feed; none if there is no whole copy of its URL.
    pub(crate) fn read(&self, wanted: &Wanted) -> Option<Copy> {
        let bytes = guarded::read(&self.path(&wanted.name), MAX_BYTES).ok()?;
        let copy = parse(&bytes)?;
        (copy.head.url == wanted.url.uri().to_string()).then_some(copy)
    }

    /// The first line of the copy only.
    pub(crate) fn head(&self, wanted: &Wanted) -> Option<Head> {
        let file = guarded::open(&self.path(&wanted.name)).ok()?;
        let mut line = String::new();
        BufReader::new(file.take(MAX_HEAD))
            .read_line(&mut line)
            .ok()?;
        let head = head_of(line.trim_end().as_bytes())?;
        (head.url == wanted.url.uri().to_string()).then_some(head)
    }

    /// The refused version, if it is of this feed's URL.
    pub(crate) fn refused(&self, wanted: &Wanted) -> Option<Copy> {
        let bytes = guarded::read(&self.path(&refused(&wanted.name)), MAX_BYTES).ok()?;
        let copy = parse(&bytes)?;
        (copy.head.url == wanted.url.uri().to_string()).then_some(copy)
    }

    /// Keeps a refused version for an operator to accept, with the time of the last alert about it
    /// (FEED-5).
    pub(crate) fn refuse(&self, name: &str, mut copy: Copy, alerted: Time) {
        copy.head.confirmed = alerted;
        if let Err(error) = self.write(&refused(name), &copy) {
            tracing::warn!(
                feed = name,
                "the version that is not taken cannot be kept: {error}"
            );
        }
    }

    /// Removes the refused version.
    pub(crate) fn forget_refused(&self, name: &str) {
        let _ = fs::remove_file(self.path(&refused(name)));
    }

    /// Writes a new first line, because the publisher confirmed the version.
    pub(crate) fn confirm(&self, name: &str, head: &Head) -> io::Result<()> {
        let bytes = guarded::read(&self.path(name), MAX_BYTES)?;
        let rest = bytes.iter().position(|byte| *byte == b'\n');
        let rest = rest.and_then(|end| bytes.get(end..)).unwrap_or_default();
        self.write_bytes(name, &[first_line(head)?.as_bytes(), rest].concat())
    }

    /// Removes the files of feeds that rules.json no longer names. A file that cannot be removed
    /// does no harm.
    pub(crate) fn forget_others(&self, is_named: impl Fn(&str) -> bool) {
        for entry in fs::read_dir(&self.0).into_iter().flatten().flatten() {
            let held = entry.file_name();
            let is_other = |held: &str| {
                let name = held.strip_suffix(REFUSED).unwrap_or(held);
                let is_ours = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
                name.bytes().all(is_ours) && !is_named(name)
            };
            if held.to_str().is_some_and(is_other) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    /// Writes a copy, replacing the previous one.
    pub(crate) fn write(&self, name: &str, copy: &Copy) -> io::Result<()> {
        self.write_bytes(name, text(copy)?.as_bytes())
    }

    /// The kept decisions of this stream (FEED-7); none if there is no whole copy of its URL.
    pub(crate) fn read_decisions(&self, wanted: &Wanted) -> Option<(Head, Decisions)> {
        let bytes = guarded::read(&self.path(&wanted.name), MAX_BYTES).ok()?;
        let text = std::str::from_utf8(&bytes).ok()?;
        let (line, rest) = text
            .strip_suffix('\n')?
            .split_once('\n')
            .unwrap_or((text.trim_end(), ""));
        let head = head_of(line.as_bytes())?;
        let decisions = Decisions::of_lines(rest)?;
        let is_whole = decisions.len() == head.entries;
        (is_whole && head.url == wanted.url.uri().to_string()).then_some((head, decisions))
    }

    /// Writes the decisions of a stream, replacing the previous ones.
    pub(crate) fn write_decisions(
        &self,
        name: &str,
        head: &Head,
        decisions: &Decisions,
    ) -> io::Result<()> {
        let text = format!("{}\n{}", first_line(head)?, decisions.lines());
        self.write_bytes(name, text.as_bytes())
    }

    fn write_bytes(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        match DirBuilder::new().mode(0o700).create(&self.0) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            Ok(()) | Err(_) => {}
        }
        beside::replace(&self.path(name), |out| out.write_all(bytes))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

fn refused(name: &str) -> String {
    format!("{name}{REFUSED}")
}

/// SHA-256 of netblocks in their order.
pub(crate) fn digest(netblocks: &[Netblock]) -> String {
    let mut digest = Sha256::new();
    for netblock in netblocks {
        match netblock.net() {
            IpNet::V4(net) => digest.update(net.addr().octets()),
            IpNet::V6(net) => digest.update(net.addr().octets()),
        }
        digest.update([netblock.net().prefix_len()]);
    }
    HEXLOWER.encode(&digest.finalize())
}

fn first_line(head: &Head) -> io::Result<String> {
    Ok(format!("{MARK}{}", serde_json::to_string(head)?))
}

fn head_of(line: &[u8]) -> Option<Head> {
    serde_json::from_slice(line.strip_prefix(MARK.as_bytes())?).ok()
}

/// The text of a copy.
fn text(copy: &Copy) -> io::Result<String> {
    let mut text = first_line(&copy.head)?;
    text.push('\n');
    for netblock in &copy.netblocks {
        let _ = writeln!(text, "{netblock}");
    }
    Ok(text)
}

fn parse(bytes: &[u8]) -> Option<Copy> {
    // The text must end with a line end: a cut line could be another netblock.
    let bytes = bytes.strip_suffix(b"\n")?;
    let first = bytes.split(|byte| *byte == b'\n').next()?;
    let head = head_of(first)?;
    let list = netblock_list::parse(bytes, MAX_LISTED).ok()?;
    let is_whole = list.skipped == 0 && list.netblocks.len() == head.entries;
    is_whole.then_some(Copy {
        head,
        netblocks: list.netblocks,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(url: &str) -> Wanted {
        Wanted {
            name: "drop".to_owned(),
            url: url.to_owned().try_into().unwrap(),
            every: Default::default(),
            used: None,
            crowdsec: None,
            until: None,
        }
    }

    /// FEED-4: a copy is read as it was written, by its own feed only; a copy that was cut at any
    /// byte, or changed, is not used.
    #[test]
    fn a_copy_is_whole_or_none() {
        let directory = tempfile::tempdir().unwrap();
        let copies = Copies::new(directory.path());
        let url = "https://lists.example/drop?key=%22a%22";
        let copy = Copy {
            head: Head {
                url: url.to_owned(),
                taken: Time(1_795_276_800_000),
                confirmed: Time(1_795_276_900_000),
                etag: Some("W/\"a # b\"".to_owned()),
                last_modified: None,
                digest: String::new(),
                entries: 3,
            },
            netblocks: ["192.0.2.0/24", "2001:db8::/32", "198.51.100.7"]
                .map(|text| text.parse().unwrap())
                .into(),
        };
        assert_eq!(copies.read(&wanted(url)), None);
        copies.write("drop", &copy).unwrap();
        assert_eq!(copies.read(&wanted(url)).as_ref(), Some(&copy));
        let other = wanted("https://lists.example/drop");
        assert_eq!((copies.read(&other), copies.head(&other)), (None, None));
        assert_eq!(copies.head(&wanted(url)).as_ref(), Some(&copy.head));
        let confirmed = Head {
            confirmed: Time(1_795_277_000_000),
            ..copy.head.clone()
        };
        copies.confirm("drop", &confirmed).unwrap();
        let read = copies.read(&wanted(url)).unwrap();
        assert_eq!(
            (read.head, read.netblocks),
            (confirmed, copy.netblocks.clone())
        );
        assert_eq!(copies.refused(&wanted(url)), None);
        copies.refuse("drop", copy.clone(), copy.head.confirmed);
        assert_eq!(copies.refused(&wanted(url)).as_ref(), Some(&copy));
        copies.forget_others(|name| name == "drop");
        copies.forget_refused("drop");
        assert_eq!(copies.refused(&wanted(url)), None);
        let text = text(&copy).unwrap();
        for end in 0..text.len() {
            assert_eq!(parse(&text.as_bytes()[..end]), None, "cut at {end}");
        }
        assert_eq!(
            parse(text.replace("198.51.100.7/32\n", "").as_bytes()),
            None
        );
        let mode = |path: &Path| {
            use std::os::unix::fs::PermissionsExt as _;
            fs::metadata(path).unwrap().permissions().mode() & 0o777
        };
        assert_eq!(mode(&copies.0), 0o700);
        assert_eq!(mode(&copies.path("drop")), 0o600);
        assert_eq!(fs::read_dir(&copies.0).unwrap().count(), 1);
        copies.refuse("drop", copy.clone(), copy.head.confirmed);
        copies.forget_others(|_| false);
        assert_eq!(fs::read_dir(&copies.0).unwrap().count(), 0);
    }
}
