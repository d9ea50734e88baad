//! A file that was read before the directory was one's own.

use std::fs;

use serde_json::{Value, json};
use weir_shared::clock::Clock;

use super::*;
use crate::bans::document::BansFile;
use crate::state::{StateDir, StateLock};

fn write(dir: &Path, bans: &Value) {
    let text = serde_json::to_vec_pretty(&json!({"version": 1, "bans": bans})).unwrap();
    fs::write(dir.join("bans.json"), text).unwrap();
}

fn ban(number: u8) -> Value {
    json!({"netblock": format!("203.0.{number}.0/24"), "ban_started": "2026-11-21T16:00:00Z", "ban_expires": "permanent"})
}

fn known(dir: &Path) -> Known<BansFile> {
    Known::read(dir).ok().flatten().unwrap()
}

/// The netblocks that a start finds, or its fault.
fn found(dir: &Path, known: Option<Known<BansFile>>) -> Result<Vec<String>, String> {
    let dir = StateDir::open(StateLock::claim(dir).unwrap(), Clock::system()).unwrap();
    let (_, read, _) = dir.read(known).map_err(|error| error.to_string())?;
    let bans = crate::bans::journal::replay(read.entries, Vec::new(), read.edit.as_deref());
    Ok(bans.iter().map(|ban| ban.netblock.to_string()).collect())
}

/// RESTART-1: a file that stands as it was read is not read again; of one that was written
/// meanwhile, an entry whose text is known is not judged again.
#[test]
fn what_is_known_is_not_judged_again() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    write(dir, &json!([ban(1), ban(2)]));
    // As if it had been understood otherwise.
    let otherwise = || {
        let mut known = known(dir);
        known.content.entries.swap(0, 1);
        known
    };
    let mut stands = otherwise();
    for racy in [true, false] {
        stands.seen.racy = racy;
        let swapped = Ok(vec!["203.0.2.0/24".to_owned(), "203.0.1.0/24".to_owned()]);
        assert_eq!(found(dir, Some(stands)), swapped, "{racy}");
        stands = otherwise();
    }
    write(dir, &json!([ban(3), ban(1)]));
    let one_known = Ok(vec!["203.0.3.0/24".to_owned(), "203.0.2.0/24".to_owned()]);
    assert_eq!(found(dir, Some(stands)), one_known);
}

/// RESTART-1, STATE-6: what a start finds is the same with what was known of a file and without,
/// however the file was edited, damaged or taken out meanwhile.
#[test]
fn a_start_finds_the_same_with_what_is_known() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let many = json!([ban(1), ban(2), ban(3)]);
    let lifted = json!([ban(1), {"netblock": "203.0.2.0/24", "ban_started": "2026-11-21T16:00:00Z",
        "ban_expires": "permanent", "lifted": "2026-11-21T17:00:00Z"}]);
    for after in [
        many.clone(),
        json!([]),
        json!([ban(3), ban(2), ban(1), ban(4)]),
        json!([ban(2), ban(2)]),
        lifted,
        json!([ban(1), {"netblock": "203.0.2.0/33", "ban_expires": "permanent"}]),
        json!([ban(1), 7]),
    ] {
        write(dir, &many);
        let before = known(dir);
        write(dir, &after);
        assert_eq!(found(dir, Some(before)), found(dir, None), "{after}");
    }
    write(dir, &many);
    let before = known(dir);
    fs::write(dir.join("bans.json"), "{\"version\":1,\n\"bans\":[{},").unwrap();
    let fault = found(dir, Some(before)).unwrap_err();
    assert!(fault.contains("line 2"), "{fault}");
    assert_eq!(found(dir, None), Err(fault));
    write(dir, &many);
    let before = known(dir);
    fs::remove_file(dir.join("bans.json")).unwrap();
    assert_eq!(found(dir, Some(before)), Ok(Vec::new()));
}
