use std::fs;

use crossbeam_channel::{Receiver, never, unbounded};
use weir_shared::rules::RuleKind;
use weir_shared::units::Time;

use super::*;

struct Place {
    dir: tempfile::TempDir,
    watching: Watching,
    found: Receiver<Found>,
    /// Where the looks are: they take the time they are given.
    now: Instant,
    now_ms: u64,
}

const START: u64 = 1_795_276_800_000;

impl Place {
    fn with(file: &str, lists: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in lists {
            let list = dir.path().join(name);
            fs::create_dir_all(list.parent().unwrap()).unwrap();
            fs::write(list, text).unwrap();
        }
        let path = dir.path().join("rules.json");
        fs::write(&path, file).unwrap();
        let mut compiler = Compiler::new(&path, dir.path());
        let (known, read) = read(&mut compiler, &path, &[], START);
        let (found_out, found) = unbounded();
        let held = read.unwrap();
        let watching = Watching::new(
            compiler,
            path,
            known,
            held,
            FeedsHandle::default(),
            Bad::default(),
            (found_out, never()),
        );
        let now = Instant::now();
        Self {
            dir,
            watching,
            found,
            now,
            now_ms: START,
        }
    }

    fn write(&self, name: &str, text: &str) {
        // As most editors do: a new file in the place of the old one.
        let new = self.dir.path().join(".new");
        fs::write(&new, text).unwrap();
        fs::rename(new, self.dir.path().join(name)).unwrap();
    }

    /// Looks as the thread does for so long; what was found, in short.
    fn pass(&mut self, ms: u64) -> Vec<String> {
        for _ in 0..=ms / 25 {
            self.watching.look(self.now, self.now_ms);
            self.now += TICK;
            self.now_ms += 25;
        }
        let in_short = |Found { rules, .. }: Found| {
            format!("{} allowed, {} denied", rules.allow.len(), rules.deny.len())
        };
        let mut told: Vec<String> = self.found.try_iter().map(in_short).collect();
        let faults = &self.watching.bad.faults;
        told.extend(std::iter::from_fn(|| faults.next()).map(|fault| fault.error));
        told
    }
}

const NOTHING: [&str; 0] = [];

/// RULE-1: an edit of the file or of a list is applied once the file is unchanged for a while; the
/// deletion of the file removes every rule.
#[test]
fn edits_are_taken_in() {
    let mut place = Place::with(
        r#"{"version":1,"deny":[{"file":"drop.txt"}]}"#,
        &[("drop.txt", "192.0.2.1\n")],
    );
    assert_eq!(place.pass(1000), NOTHING);
    place.write("drop.txt", "192.0.2.1\n192.0.2.2\n");
    assert_eq!(place.pass(100), NOTHING, "somebody may still be writing");
    assert_eq!(place.pass(100), ["0 allowed, 2 denied"]);
    place.write("rules.json", r#"{"version":1,"allow":[{"netblock":"192.0.2.7"}],"deny":[{"file":"other.txt"},{"file":"drop.txt"}]}"#);
    let told = place.pass(600);
    assert_eq!(told[0], "1 allowed, 2 denied");
    assert!(
        told[1].contains("other.txt cannot be read")
            && told[1].ends_with("nothing of it is in force"),
        "{told:?}"
    );
    // The list that was missing is looked for.
    place.write("other.txt", "198.51.100.0/24\n");
    assert_eq!(place.pass(300), ["1 allowed, 3 denied"]);
    fs::remove_file(place.dir.path().join("rules.json")).unwrap();
    assert_eq!(place.pass(400), NOTHING, "it may be about to come back");
    assert_eq!(place.pass(200), ["0 allowed, 0 denied"]);
}

/// RULE-1: of two saves of one size within a tick of the clock, of rules.json or of a list, the
/// second has the stamp of the first, which was read: it is found all the same, once.
#[test]
fn a_save_behind_the_same_stamp_is_found() {
    let rules = r#"{"version":1,"deny": [{"file":"drop.txt"}]}"#;
    let list = "192.0.2.1\n192.0.2.2\n";
    let saved_again = |name: &str, text: &str| {
        let mut place = Place::with(rules, &[("drop.txt", list)]);
        let is_in_time = !place.watching.doubts.is_empty();
        fs::write(place.dir.path().join(name), text).unwrap();
        // Not every file system has a clock with such ticks.
        let files = place.watching.files();
        place.watching.settling.take(stamps(&files));
        let mut told = Vec::new();
        while !place.watching.doubts.is_empty() {
            std::thread::sleep(TICK);
            told.extend(place.pass(1000));
        }
        assert_eq!(place.pass(1000), NOTHING);
        is_in_time.then_some(told)
    };
    for (name, text, found) in [
        (
            "rules.json",
            r#"{"version":1,"allow":[{"file":"drop.txt"}]}"#,
            "2 allowed, 0 denied",
        ),
        ("drop.txt", "192.0.2.1\n# 2.0.2.2\n", "0 allowed, 1 denied"),
    ] {
        // A busy machine may take longer than a tick.
        let told = (0..50).find_map(|_| saved_again(name, text));
        assert_eq!(told.expect("saved in time"), [found], "{name}");
    }
}

/// RULE-1: a fault is reported once and leaves the rules in force; half of a file is no fault if
/// the other half follows in time.
#[test]
fn a_fault_leaves_what_is_in_force() {
    let mut place = Place::with(r#"{"version":1,"deny":[{"netblock":"192.0.2.1"}]}"#, &[]);
    place.write("rules.json", "{\"version\":1,\n\"deny\":[{");
    assert_eq!(place.pass(400), NOTHING);
    place.write("rules.json", r#"{"version":1}"#);
    assert_eq!(place.pass(200), ["0 allowed, 0 denied"]);
    place.write("rules.json", "{\"version\":1,\n\"deny\":[{");
    let fault = place.pass(1000);
    assert!(
        fault.len() == 1 && fault[0].contains("line 2, column 9"),
        "{fault:?}"
    );
    assert_eq!(place.pass(1000), NOTHING);
}

/// RULE-10: a list that has no netblock any more, is too long, or is missing, is reported, and the
/// last good one stays in force; the rest of an edit is applied.
#[test]
fn a_bad_list_leaves_the_last_good_one() {
    let file = r#"{"version":1,"deny":[{"file":"drop.txt"}]}"#;
    let mut place = Place::with(file, &[("drop.txt", "192.0.2.1\n192.0.2.2\n")]);
    place.write("drop.txt", "<html>404</html>\n");
    assert_eq!(place.pass(400), NOTHING, "somebody may still be writing");
    let told = place.pass(200);
    assert_eq!(told[0], "0 allowed, 2 denied");
    assert!(
        told[1].ends_with(
            "drop.txt has no netblock, and a text, JSON or JSON lines with some is expected: its last good 2 netblocks stay"
        ),
        "{told:?}"
    );
    fs::remove_file(place.dir.path().join("drop.txt")).unwrap();
    let told = place.pass(600);
    assert!(told[1].contains("cannot be read"), "{told:?}");
    let lines: Vec<String> = (0..500_001u32)
        .map(|n| std::net::Ipv4Addr::from(n).to_string())
        .collect();
    place.write("drop.txt", &lines.join("\n"));
    let told = place.pass(600);
    assert!(
        told[1].contains("has more than 500000 netblocks, and 500000 are the most"),
        "{told:?}"
    );
    place.write(
        "rules.json",
        r#"{"version":1,"allow":[{"netblock":"192.0.2.7"}],"deny":[{"file":"drop.txt"}]}"#,
    );
    let told = place.pass(600);
    assert_eq!((&*told[0], told.len()), ("1 allowed, 2 denied", 2));
    assert_eq!(place.pass(1000), NOTHING, "told once");
    place.write("drop.txt", "192.0.2.1\n192.0.2.9\n192.0.2.10\n");
    assert_eq!(place.pass(200), ["1 allowed, 3 denied"]);
}

/// RULE-10: the content of a list is kept for the next process, as long as rules.json names the
/// list; a damaged copy is not used.
#[test]
fn the_last_good_list_outlives_the_process() {
    let file = r#"{"version":1,"deny":[{"file":"drop.txt"},{"netblock":"192.0.2.100"}]}"#;
    let mut place = Place::with(file, &[("drop.txt", "192.0.2.1\n2001:db8::/32\n")]);
    place.pass(0);
    fs::remove_file(place.dir.path().join("drop.txt")).unwrap();
    let path = place.dir.path().join("rules.json");
    let denied = |path: &Path| {
        let mut next = Compiler::new(path, path.parent().unwrap());
        let held = read(&mut next, path, &[], START).1.unwrap();
        (held.rules.deny.len(), held.bad_lists().len())
    };
    assert_eq!(denied(&path), (3, 1));
    let kept: Vec<_> = fs::read_dir(place.dir.path().join("lists"))
        .unwrap()
        .collect();
    assert_eq!(kept.len(), 1);
    let kept = kept[0].as_ref().unwrap().path();
    fs::write(&kept, "\0\0").unwrap();
    assert_eq!(denied(&path), (1, 1));
    place.write("rules.json", r#"{"version":1}"#);
    place.pass(300);
    assert!(!kept.exists());
}

/// RULE-10: an error in rules.json itself is still a fault.
#[test]
fn too_many_netblocks_in_the_file_are_a_fault() {
    let members: Vec<String> = (0..500_001u32)
        .map(|n| format!(r#"{{"netblock":"{}"}}"#, std::net::Ipv4Addr::from(n)))
        .collect();
    let mut place = Place::with(r#"{"version":1}"#, &[]);
    place.write(
        "rules.json",
        &format!(r#"{{"version":1,"deny":[{}]}}"#, members.join(",")),
    );
    let told = place.pass(600);
    assert!(
        told.len() == 1 && told[0].contains("/deny/500000"),
        "{told:?}"
    );
}

/// RULE-1: an entry has no effect after its end, and the thread waits for the next end.
#[test]
fn an_entry_ends_at_its_time() {
    let until = |ms: u64| Time(START + ms).to_string();
    let file = format!(
        r#"{{"version":1,"allow":[{{"netblock":"192.0.2.1","until":"{}"}},{{"netblock":"192.0.2.2","until":"{}"}},{{"netblock":"192.0.2.3","until":"2020-01-01T00:00:00Z"}}]}}"#,
        until(1000),
        until(2000)
    );
    let mut place = Place::with(&file, &[]);
    assert_eq!(place.watching.held.rules.allow.len(), 2);
    assert_eq!(place.watching.pause(START + 990), Duration::from_millis(10));
    assert_eq!(place.pass(950), NOTHING);
    assert_eq!(place.pass(100), ["1 allowed, 0 denied"]);
    assert_eq!(place.pass(1500), ["0 allowed, 0 denied"]);
    assert_eq!(place.watching.held.ends_ms, None);
}

/// RULE, FEED-1: after its `until` a feed is not fetched any more, and nothing of it is in force,
/// whether it denies or is a name for other rules; a clock that is set back puts it in force again.
#[test]
fn a_feed_ends_at_its_time() {
    let until = Time(START + 1000);
    let file = format!(
        r#"{{"version":1,"feeds":[{{"name":"drop","url":"https://lists.example/drop","use":"deny","until":"{until}","comment":"for a while"}}]}}"#
    );
    let copy = format!(
        "# weir feed {{\"url\":\"https://lists.example/drop\",\"taken\":\"{0}\",\"confirmed\":\"{0}\",\"entries\":1}}\n198.51.100.0/24\n",
        Time(START - 1000)
    );
    let mut place = Place::with(&file, &[("feeds/drop", &copy)]);
    let holds = |place: &Place| {
        let Watching { held, path, .. } = &place.watching;
        let feed = held.rules.feeds.get("drop").unwrap();
        (held.feeds(path).len(), feed.entries())
    };
    assert_eq!(place.watching.held.rules.deny.len(), 1);
    assert_eq!(holds(&place), (1, 1));
    assert_eq!(place.pass(950), NOTHING);
    assert_eq!(place.pass(100), ["0 allowed, 0 denied"]);
    assert_eq!(holds(&place), (0, 0));
    place.now_ms = START;
    assert_eq!(place.pass(100), ["0 allowed, 1 denied"]);
    assert_eq!(holds(&place), (1, 1));
}

/// RULE-6: a rule that an edit leaves keeps its hits; a new one has none.
#[test]
fn a_rule_outlives_an_edit() {
    let limit = |name: &str, minute: u32| format!(r#"{{"name":"{name}","per_minute":{minute}}}"#);
    let file = |limits: &[String]| format!(r#"{{"version":1,"limits":[{}]}}"#, limits.join(","));
    let mut place = Place::with(&file(&[limit("a", 1), limit("b", 2)]), &[]);
    let rules = |place: &Place| -> Vec<(String, u64)> {
        let rules = place.watching.held.rules.rules();
        rules.map(|rule| (rule.name.clone(), rule.hits())).collect()
    };
    for rule in place.watching.held.rules.rules() {
        assert_eq!(rule.kind, RuleKind::Limit);
        rule.hit();
    }
    let [_, b] = <[_; 2]>::try_from(rules(&place)).unwrap();
    place.write("rules.json", &file(&[limit("c", 1), limit("b", 7)]));
    assert_eq!(place.pass(300).len(), 1);
    let [c, same] = <[_; 2]>::try_from(rules(&place)).unwrap();
    assert_eq!(same, b);
    assert_eq!((&*c.0, c.1), ("c", 0));
}

/// STATE-11: a clock that jumped forward and back ends no entry early: an address that was allowed
/// for an hour is allowed again.
#[test]
fn a_clock_that_is_set_back_brings_an_entry_back() {
    let until = Time(START + 3_600_000);
    let text = format!(r#"{{"version":1,"allow":[{{"netblock":"192.0.2.1","until":"{until}"}}]}}"#);
    let mut place = Place::with(&text, &[]);
    assert_eq!(place.pass(100), NOTHING);
    let right = place.now_ms;
    place.now_ms += 365 * 86_400_000;
    assert_eq!(place.pass(100), ["0 allowed, 0 denied"]);
    place.now_ms = right;
    assert_eq!(place.pass(100), ["1 allowed, 0 denied"]);
    assert_eq!(place.pass(1000), NOTHING, "told once");
    place.now_ms = until.0;
    assert_eq!(place.pass(100), ["0 allowed, 0 denied"]);
}
