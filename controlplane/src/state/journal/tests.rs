//! The journal with a real file, and its reader with bytes of every kind.

use std::fs;
use std::path::Path;
use std::time::Duration;

use proptest::prelude::*;

use super::file::lines;
use super::*;
use crate::state::Standing;
use crate::state::step::Step;
use crate::state::step::testing::Faults;

const DEADLINE: Duration = Duration::from_secs(10);
const EIO: i32 = 5;

type Text = Journal<String, u32>;

fn line(number: u64, put: &[&str], remove: &[u32]) -> Line<String, u32> {
    Line {
        number,
        put: put.iter().map(|text| (*text).to_owned()).collect(),
        remove: remove.to_vec(),
    }
}

fn start(dir: &Path, standing: Standing) -> (Text, file::Found<String, u32>, Arc<Faults>) {
    let faults = Arc::<Faults>::default();
    fs::write(dir.join("bans.json"), "the document").unwrap();
    let found = read(dir, standing).unwrap();
    let tail = Tail::new(dir, &found, Arc::clone(&faults));
    let inbox = crate::faults::Faults::default();
    (Journal::start(tail, inbox).unwrap(), found, faults)
}

/// Writes a line and waits for its outcome.
fn write(journal: &Text, line: Line<String, u32>) -> bool {
    let (told, outcome) = bounded(1);
    let saved = Saved::new(move |ok| told.send(ok).unwrap_or_default());
    assert!(journal.write(line, vec![saved]).is_ok());
    outcome.recv_timeout(DEADLINE).unwrap()
}

fn settle(journal: &Text) {
    let (told, settled) = bounded(1);
    journal.settle(Saved::new(move |ok| told.send(ok).unwrap_or_default()));
    assert_eq!(settled.recv_timeout(DEADLINE), Ok(true));
}

fn text(dir: &Path) -> String {
    fs::read_to_string(dir.join(JOURNAL)).unwrap_or_default()
}

/// STATE-10: what is acknowledged is in the file, one line a batch; a start takes those that the
/// document does not hold. Once a document holds them the file is empty.
#[test]
fn lines_are_appended_read_and_emptied() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, found, _) = start(dir.path(), Standing::Every);
    assert_eq!((found.lines.len(), found.last), (0, 0));
    assert!(write(&journal, line(1, &["a"], &[])));
    assert!(write(&journal, line(2, &["b"], &[7])));
    assert_eq!(
        text(dir.path()),
        "{\"number\":1,\"put\":[\"a\"]}\n{\"number\":2,\"put\":[\"b\"],\"remove\":[7]}\n"
    );
    drop(journal);
    let (journal, found, _) = start(dir.path(), Standing::After(1));
    assert_eq!(found.lines, [line(2, &["b"], &[7])]);
    assert!(write(&journal, line(3, &["c"], &[])));
    // A later line keeps the file; a document with all of them empties it.
    journal.held(2);
    settle(&journal);
    assert_eq!(text(dir.path()).lines().count(), 3);
    journal.held(3);
    settle(&journal);
    assert_eq!(text(dir.path()), "");
    assert_eq!(journal.bytes(), 0);
    assert!(write(&journal, line(4, &["d"], &[])));
    assert_eq!(text(dir.path()).lines().count(), 1);
    drop(journal);
    let (_journal, found, _) = start(dir.path(), Standing::Nothing);
    assert!(found.lines.is_empty());
    assert!(!dir.path().join(JOURNAL).exists());
}

/// STATE-10, STATE-7: a write or a sync that fails is told, nothing is appended behind it, and a
/// document opens the journal again. A panic counts as a failure.
#[test]
fn a_failure_closes_the_journal_until_a_document_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _, faults) = start(dir.path(), Standing::Every);
    assert!(write(&journal, line(1, &["a"], &[])));
    let mut number = 1;
    for step in [Step::Append, Step::SyncJournal] {
        faults.fail(step, EIO);
        number += 1;
        assert!(!write(&journal, line(number, &["lost"], &[])));
        assert!(journal.take_lost());
        let told = journal.shared.faults.next().unwrap();
        let is_it = told.of == JOURNAL && told.error.contains("os error 5");
        assert!(is_it, "{told:?}");
        faults.heal();
        assert!(!write(&journal, line(number + 1, &["too early"], &[])));
        assert!(!text(dir.path()).contains("lost") && !text(dir.path()).contains("early"));
        number += 1;
        // A start would read the line that was acknowledged, and no other.
        assert_eq!(
            lines::<String, u32>(text(dir.path()).as_bytes(), 0)
                .0
                .lines
                .len(),
            1
        );
        journal.held(number);
        settle(&journal);
        number += 1;
        assert!(write(&journal, line(number, &["after"], &[])));
    }
    faults.meanwhile(Step::Append, || panic!("a bug"));
    assert!(!write(&journal, line(number + 1, &["x"], &[])));
    assert!(journal.take_lost() && journal.shared.faults.next().is_some());
    let counts = journal.counts();
    assert_eq!((counts.writes_ok, counts.writes_error), (3, 5));
}

/// STATE-10: a sync that hangs holds up nobody: lines queue up to a bound, further ones are
/// refused, and those that were queued are told in the end.
#[test]
fn a_disk_that_hangs_is_waited_for_by_a_bounded_number() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _, faults) = start(dir.path(), Standing::Every);
    let (go_on, hangs) = bounded::<()>(0);
    faults.meanwhile(Step::SyncJournal, move || {
        let _ = hangs.recv();
    });
    let (told, outcomes) = crossbeam_channel::unbounded();
    let many = "x".to_owned();
    let mut number = 0;
    let mut send = || {
        number += 1;
        let told = told.clone();
        let saved = Saved::new(move |ok| told.send(ok).unwrap_or_default());
        let line = Line {
            number,
            put: vec![many.clone(); 1000],
            remove: Vec::new(),
        };
        journal.write(line, vec![saved]).is_ok()
    };
    let queued = (0..1000).take_while(|_| send()).count();
    // The queue, and what the thread took of it before the disk hung.
    assert!((16..=3 * 16).contains(&queued), "{queued}");
    assert!(outcomes.is_empty() || queued > 0);
    drop(go_on);
    let mut told = Vec::new();
    while told.len() <= queued {
        told.push(outcomes.recv_timeout(DEADLINE).unwrap());
    }
    // The refused one was dropped, which tells it.
    assert_eq!(told.iter().filter(|ok| **ok).count(), queued);
}

/// STATE-10: a file that somebody removed, replaced or wrote to is not appended to: what waits goes
/// into a document, and the journal begins anew.
#[test]
fn a_file_that_is_not_as_it_was_left_is_not_appended_to() {
    type Disturb = fn(&Path);
    let ways: [Disturb; 6] = [
        |path| fs::remove_file(path).unwrap(),
        |path| fs::write(path, "{\"number\":1").unwrap(),
        |path| {
            fs::remove_file(path).unwrap();
            fs::write(path, "other\n").unwrap();
        },
        |path| {
            fs::remove_file(path).unwrap();
            std::os::unix::fs::symlink("/dev/null", path).unwrap();
        },
        |path| {
            fs::remove_file(path).unwrap();
            fs::create_dir(path).unwrap();
        },
        |path| {
            let document = path.with_file_name("bans.json");
            fs::remove_file(&document).unwrap();
            fs::create_dir(document).unwrap();
        },
    ];
    for (way, disturb) in ways.into_iter().enumerate() {
        let dir = tempfile::tempdir().unwrap();
        let (journal, ..) = start(dir.path(), Standing::Every);
        assert!(write(&journal, line(1, &["a"], &[])));
        disturb(&dir.path().join(JOURNAL));
        assert!(!write(&journal, line(2, &["b"], &[])), "{way}");
        assert!(journal.take_lost(), "{way}");
        // What is no file is told as an alert, and set aside.
        assert_eq!(journal.shared.faults.next().is_some(), way == 4, "{way}");
        journal.held(2);
        settle(&journal);
        if way == 3 {
            // It is not ours to empty.
            assert!(!write(&journal, line(3, &["c"], &[])));
            fs::remove_file(dir.path().join(JOURNAL)).unwrap();
            journal.held(3);
            settle(&journal);
        }
        if way == 5 {
            // Behind a directory a start would take no line.
            assert!(!write(&journal, line(3, &["c"], &[])));
            fs::remove_dir(dir.path().join("bans.json")).unwrap();
            fs::write(dir.path().join("bans.json"), "the document").unwrap();
            journal.held(3);
            settle(&journal);
        }
        assert!(write(&journal, line(4, &["d"], &[])), "{way}");
        assert_eq!(dir.path().join("bans.journal.directory").is_dir(), way == 4);
        assert_eq!(
            text(dir.path()),
            "{\"number\":4,\"put\":[\"d\"]}\n",
            "{way}"
        );
    }
}

/// STATE-10: a line that a kill tore is no error and is cut off; one that is damaged is left out,
/// and the file is kept beside; one that was written twice counts once.
#[test]
fn torn_damaged_and_repeated_lines_stop_no_start() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(JOURNAL);
    let good = "{\"number\":1,\"put\":[\"a\"]}\n";
    fs::write(&path, format!("{good}{{\"number\":2,\"pu")).unwrap();
    let (_, found, _) = start(dir.path(), Standing::Every);
    assert_eq!(found.lines, [line(1, &["a"], &[])]);
    assert_eq!(text(dir.path()), good);
    assert!(!dir.path().join("bans.journal.bad").exists());

    let damaged =
        format!("{good}{good}\0\0\0\n\n{{\"number\":5}}\n{{\"number\":4,\"put\":[\"late\"]}}\n");
    fs::write(&path, &damaged).unwrap();
    let (_, found, _) = start(dir.path(), Standing::Every);
    assert_eq!(found.lines, [line(1, &["a"], &[]), line(5, &[], &[])]);
    let kept = fs::read_to_string(dir.path().join("bans.journal.bad")).unwrap();
    assert_eq!(kept, damaged);
}

/// STATE-10: what this service cannot have written stops the start instead of its memory, or of
/// being lost.
#[test]
fn a_huge_journal_and_one_that_is_no_file_stop_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(JOURNAL);
    let refused = |dir: &Path| {
        let read = read::<String, u32>(dir, Standing::Every);
        read.err()
            .map(|error| error.to_string())
            .unwrap_or_default()
    };
    let huge = fs::File::create(&path).unwrap();
    huge.set_len(crate::state::stat::MAX_BYTES + 1).unwrap();
    assert!(refused(dir.path()).contains("is larger than"));
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert!(refused(dir.path()).contains("it is a directory"));
    fs::remove_dir(&path).unwrap();
    // Of another, who has no line end there.
    let other = dir.path().join("other");
    fs::write(&other, "one\ntwo").unwrap();
    std::os::unix::fs::symlink(&other, &path).unwrap();
    assert!(refused(dir.path()).contains("it is a link"));
    assert_eq!(fs::read(&other).unwrap(), b"one\ntwo");
    assert!(!dir.path().join("bans.journal.bad").exists());
}

/// STATE-10: a line with a number that no service gives is damaged: the lines that follow would
/// find no numbers behind it, and a kill would lose what was acknowledged.
#[test]
fn a_forged_number_is_a_damaged_line() {
    for forged in [u64::MAX, u64::MAX - 1, (1 << 48) + 1] {
        let text = format!(
            "{{\"number\":1,\"put\":[],\"remove\":[7]}}\n{{\"number\":{forged},\"put\":[],\"remove\":[8]}}\n"
        );
        let (found, damaged) = lines::<String, u32>(text.as_bytes(), 0);
        assert_eq!(
            (found.lines.len(), found.last, damaged),
            (1, 1, 1),
            "{forged}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// STATE-10: wherever a kill cuts the file, the lines before the cut are there, whole and in
    /// order; whatever other bytes come, they are judged.
    #[test]
    fn any_cut_and_any_bytes_are_read(
        texts in prop::collection::vec(".{0,12}", 0..8), after in 0u64..9,
        cut in any::<prop::sample::Index>(), noise in prop::collection::vec(any::<u8>(), 0..60),
    ) {
        let written: Vec<Line<String, u32>> = (texts.iter().zip(1..))
            .map(|(text, number)| line(number, &[text], &[]))
            .collect();
        let mut bytes = Vec::new();
        let mut ends = vec![0];
        for line in &written {
            serde_json::to_writer(&mut bytes, line).unwrap();
            bytes.push(b'\n');
            ends.push(bytes.len());
        }
        let cut = cut.index(bytes.len() + 1);
        let whole = ends.iter().filter(|end| **end > 0 && **end <= cut).count();
        let (found, damaged) = lines::<String, u32>(&bytes[..cut], after);
        let skipped = usize::try_from(after).unwrap().min(whole);
        prop_assert_eq!(&found.lines[..], &written[skipped..whole]);
        prop_assert_eq!((found.end, damaged), (ends[whole] as u64, 0));

        let (found, _) = lines::<String, u32>(&[&bytes[..], &noise[..]].concat(), 0);
        prop_assert!(found.lines.starts_with(&written));
        prop_assert!(found.end <= (bytes.len() + noise.len()) as u64);
    }
}
