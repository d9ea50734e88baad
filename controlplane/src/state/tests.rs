//! The library with real files in a temporary directory.

use std::fs;
use std::io::{Seek, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;
use weir_shared::ban::Ban;
use weir_shared::client::Client;
use weir_shared::netblock::Netblock;
use weir_shared::table::ClientRow;
use weir_shared::units::Time;

use super::document::Row;
use super::step::Step;
use super::step::testing::Faults;
use super::*;
use crate::alert::document::AlertsFile;
use crate::bans::document::{BanKey, BansFile};
use crate::clients::ClientsFile;
use crate::faults::PartFault;
use crate::lookup::document::LookupsFile;
use crate::watching::FileThread;

/// Generous, for a machine that does other things too; the figures are measured elsewhere.
const DEADLINE: Duration = Duration::from_secs(10);

struct Setup {
    dir: TempDir,
    bans: Arc<StateFile<BansFile>>,
    clients: Arc<StateFile<ClientsFile>>,
    lookups: Arc<StateFile<LookupsFile>>,
    alerts: Arc<StateFile<AlertsFile>>,
    thread: StateThread,
    told: crate::faults::Faults,
    faults: Arc<Faults>,
}

impl Setup {
    /// What is told as an alert.
    fn fault(&self) -> PartFault {
        let start = Instant::now();
        loop {
            if let Some(fault) = self.told.next() {
                return fault;
            }
            assert!(start.elapsed() < DEADLINE, "no fault is told");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn setup() -> Setup {
    setup_with(&FileThread::start(Clock::system()).unwrap())
}

fn setup_with(looks: &FileThread) -> Setup {
    let dir = tempfile::tempdir().unwrap();
    let lock = StateLock::claim(dir.path()).unwrap();
    let state = StateDir::open(lock, Clock::manual(NOW).0).unwrap();
    let faults = Arc::clone(&state.store.faults);
    let (bans, held, first) = state.read(None).unwrap();
    let (clients, _, second) = state.read(None).unwrap();
    let (lookups, _, third) = state.read(None).unwrap();
    let (alerts, _, fourth) = state.read(None).unwrap();
    assert!(held.entries.is_empty());
    let files = vec![first, second, third, fourth];
    Setup {
        dir,
        bans: Arc::new(bans),
        clients: Arc::new(clients),
        lookups: Arc::new(lookups),
        alerts: Arc::new(alerts),
        thread: state.start(files, looks).unwrap(),
        told: looks.faults().clone(),
        faults,
    }
}

const NOW: u64 = 1_795_276_800_000;

fn ban(number: u8) -> Arc<Ban> {
    let mut ban: Ban = serde_json::from_value(
        json!({"netblock": format!("203.0.{number}.0/24"), "ban_expires": "permanent"}),
    )
    .unwrap();
    ban.ban_started = Some(Time(NOW + u64::from(number)));
    Arc::new(ban)
}

fn text(bans: &[Arc<Ban>]) -> String {
    serde_json::to_string_pretty(&json!({"version": 1, "bans": bans})).unwrap()
}

/// The bans that a start finds.
fn found(read: Read<BansFile>) -> Vec<Arc<Ban>> {
    crate::bans::journal::replay(read.entries, Vec::new(), read.edit.as_deref())
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !done() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

impl Setup {
    fn file(&self) -> PathBuf {
        self.dir.path().join("bans.json")
    }

    /// Saves and waits for the outcome.
    fn save(&self, bans: &[Arc<Ban>], applied: u64) -> bool {
        self.send(bans, applied).recv_timeout(DEADLINE).unwrap()
    }

    /// Saves; the outcome comes later.
    fn send(&self, bans: &[Arc<Ban>], revision: u64) -> Receiver<bool> {
        let (told, outcome) = bounded(1);
        let saved = Saved::new(move |ok| told.send(ok).unwrap_or_default());
        self.bans
            .save(Stand::default(), bans.to_vec(), revision, vec![saved]);
        outcome
    }

    fn edit(&self) -> (u64, Vec<Netblock>, Vec<BanKey>) {
        let edit = self.bans.edits().recv_timeout(DEADLINE).unwrap();
        let (mut put, mut removed) = (Vec::new(), Vec::new());
        for change in edit.changes {
            match change {
                Change::Put { after, .. } => put.push(after.netblock),
                Change::Remove(key) => removed.push(key),
            }
        }
        (edit.revision, put, removed)
    }

    fn on_disk(&self) -> Vec<String> {
        let read: Value = serde_json::from_slice(&fs::read(self.file()).unwrap()).unwrap();
        read["bans"]
            .as_array()
            .unwrap()
            .iter()
            .map(|ban| ban["netblock"].as_str().unwrap().to_owned())
            .collect()
    }

    fn counts(&self) -> FileCounts {
        self.bans.counts()
    }
}

/// Saves a text as some editor does.
type Way<'a> = &'a dyn Fn(&str);

/// STATE-3: an edit is seen in whatever way an editor saves, and own writes are none; STATE-5: a
/// half-written file is not taken for a bad one.
#[test]
fn every_way_of_saving_is_seen() {
    let setup = setup();
    let (dir, file) = (setup.dir.path(), setup.file());
    assert!(setup.save(&[ban(1)], 0));
    let mut held = vec![ban(1)];
    let ways: [(&str, Way); 6] = [
        ("truncated and written in place", &|text| {
            fs::write(&file, text).unwrap();
        }),
        ("renamed over", &|text| {
            fs::write(dir.join("4913~"), text).unwrap();
            fs::rename(dir.join("4913~"), &file).unwrap();
        }),
        ("copied over", &|text| {
            fs::write(dir.join("copy"), text).unwrap();
            fs::copy(dir.join("copy"), &file).unwrap();
        }),
        ("moved away and made anew", &|text| {
            fs::rename(&file, dir.join("bans.json~")).unwrap();
            fs::write(&file, text).unwrap();
        }),
        ("deleted and made anew", &|text| {
            fs::remove_file(&file).unwrap();
            fs::write(&file, text).unwrap();
        }),
        ("written slowly, in pieces", &|text| {
            let mut open = fs::File::create(&file).unwrap();
            for piece in text.as_bytes().chunks(text.len().div_ceil(12)) {
                open.write_all(piece).unwrap();
                // Not a wait for the keeper: this is what a slow writer does.
                std::thread::sleep(Duration::from_millis(50));
            }
        }),
    ];
    let mut waits = Vec::new();
    for (number, (way, save)) in ways.into_iter().enumerate() {
        let added = ban(10 + u8::try_from(number).unwrap());
        held.push(Arc::clone(&added));
        save(&text(&held));
        let saved = Instant::now();
        let (edit, put, removed) = setup.edit();
        waits.push(saved.elapsed());
        assert_eq!(edit, number as u64 + 1, "{way}");
        assert_eq!(put, [added.netblock], "{way}");
        assert!(removed.is_empty(), "{way}");
        assert!(setup.save(&held, edit), "{way}");
    }
    // On a busy machine they may be late without telling anything. Without events each of the first
    // five waits for the poll, two seconds after the write before it.
    let first = waits.iter().take(5).min().unwrap();
    assert!(*first < Duration::from_secs(1), "{waits:?}");
    assert!(setup.bans.edits().is_empty());
    assert_eq!(
        (setup.counts().edits_taken, setup.counts().edits_bad),
        (6, 0)
    );
    assert_eq!(setup.counts().writes_ok, 7);
}

/// STATE-3: where no events come the poll finds the edit.
#[test]
fn an_edit_is_seen_without_events() {
    let setup = setup_with(&FileThread::default());
    assert!(setup.save(&[ban(1)], 0));
    fs::write(setup.file(), text(&[ban(1), ban(2)])).unwrap();
    assert_eq!(setup.edit().1, [ban(2).netblock]);
}

/// STATE-4, STATE-5: a write waits for a slow editor instead of setting half a file aside.
#[test]
fn a_write_waits_for_half_an_edit() {
    let setup = setup();
    assert!(setup.save(&[ban(1)], 0));
    let text = text(&[ban(1), ban(9)]);
    let mut pieces = text.as_bytes().chunks(text.len().div_ceil(12));
    let mut open = fs::File::create(setup.file()).unwrap();
    open.write_all(pieces.next().unwrap()).unwrap();
    let outcome = setup.send(&[ban(1), ban(2)], 0);
    for piece in pieces {
        // Not a wait for the keeper: this is what a slow writer does.
        std::thread::sleep(Duration::from_millis(50));
        assert!(outcome.is_empty());
        open.write_all(piece).unwrap();
    }
    // The document lacks the edit: the next one is written, and told to those who wait.
    assert_eq!(setup.edit().1, [ban(9).netblock]);
    assert!(outcome.is_empty());
    assert!(setup.save(&[ban(1), ban(2), ban(9)], 1));
    assert_eq!(outcome.recv_timeout(DEADLINE), Ok(true));
    assert_eq!(
        setup.on_disk(),
        ["203.0.1.0/24", "203.0.2.0/24", "203.0.9.0/24"]
    );
    assert_eq!(setup.counts().edits_bad, 0);
}

/// STATE-3, STATE-11: entries taken out are removed; a touch is no edit, and a file that is gone
/// takes nothing out and is written again, with an alert; an empty list takes all out.
#[test]
fn what_is_taken_out_is_removed() {
    let setup = setup();
    assert!(setup.save(&[ban(1), ban(2), ban(3)], 0));
    fs::write(setup.file(), fs::read(setup.file()).unwrap()).unwrap();
    fs::write(setup.file(), text(&[ban(1), ban(3)])).unwrap();
    assert_eq!(setup.edit(), (1, vec![], vec![BanKey::of(&ban(2))]));
    // The owner answers with what it holds now.
    assert!(setup.save(&[ban(1), ban(3)], 1));
    fs::remove_file(setup.file()).unwrap();
    let told = setup.fault();
    assert!(told.of == "bans.json" && told.error.starts_with("it was removed"));
    let start = Instant::now();
    while !setup.file().exists() && start.elapsed() < DEADLINE {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(setup.on_disk(), ["203.0.1.0/24", "203.0.3.0/24"]);
    fs::write(setup.file(), text(&[])).unwrap();
    assert_eq!(
        setup.edit(),
        (2, vec![], vec![BanKey::of(&ban(1)), BanKey::of(&ban(3))])
    );
}

/// STATE-4: a write takes in an edit made since, and a document that does not contain an edit yet
/// gets it.
#[test]
fn a_write_takes_in_an_edit_made_since() {
    let setup = setup();
    assert!(setup.save(&[ban(1), ban(2)], 0));
    fs::write(setup.file(), text(&[ban(2), ban(9)])).unwrap();
    // At once, long before the edit has settled; memory has made ban 3 meanwhile.
    let outcome = setup.send(&[ban(1), ban(2), ban(3)], 0);
    assert_eq!(setup.edit().0, 1);
    assert_eq!(setup.on_disk(), ["203.0.2.0/24", "203.0.9.0/24"]);
    // A document that was sent before the edit was taken in is not written.
    let late = setup.send(&[ban(1), ban(2), ban(3)], 0);
    assert!(setup.save(&[ban(2), ban(3), ban(9)], 1));
    assert_eq!(outcome.recv_timeout(DEADLINE), Ok(true));
    assert_eq!(late.recv_timeout(DEADLINE), Ok(true));
    let both = ["203.0.2.0/24", "203.0.3.0/24", "203.0.9.0/24"];
    assert_eq!(setup.on_disk(), both);
    // Memory may drop what the edit added.
    assert!(setup.save(&[ban(2), ban(3)], 1));
    assert_eq!(setup.on_disk(), ["203.0.2.0/24", "203.0.3.0/24"]);
}

/// STATE-5: a bad edit changes nothing; at the next write it is set aside, and counted then.
#[test]
fn a_bad_edit_is_set_aside_at_the_next_write() {
    let setup = setup();
    assert!(setup.save(&[ban(1)], 0));
    let bad = r#"{"version":1,"bans":[{"netblock":"203.0.113.0/24"}]}"#;
    fs::write(setup.file(), bad).unwrap();
    assert!(setup.save(&[ban(1), ban(2)], 0));
    assert_eq!(setup.on_disk(), ["203.0.1.0/24", "203.0.2.0/24"]);
    let aside = setup.dir.path().join("bans.json.bad");
    assert_eq!(fs::read_to_string(aside).unwrap(), bad);
    assert!(setup.bans.edits().is_empty());
    assert_eq!(
        (setup.counts().edits_taken, setup.counts().edits_bad),
        (0, 1)
    );
}

/// STATE-5: a bad edit that is mended before the next write is taken in, and nothing is set aside.
#[test]
fn a_mended_edit_is_taken_in() {
    let setup = setup();
    assert!(setup.save(&[ban(1)], 0));
    fs::write(setup.file(), "{").unwrap();
    fs::write(setup.file(), text(&[ban(1), ban(2)])).unwrap();
    assert_eq!(setup.edit().1, [ban(2).netblock]);
    assert_eq!(setup.counts().edits_bad, 0);
    assert!(!setup.dir.path().join("bans.json.bad").exists());
}

/// STATE-4: an editor that opened the file before a write and saves into it after has not saved
/// into nothing.
#[test]
fn an_edit_of_the_replaced_file_is_taken_in() {
    let setup = setup();
    assert!(setup.save(&[ban(1)], 0));
    let mut open = fs::File::options().write(true).open(setup.file()).unwrap();
    assert!(setup.save(&[ban(1), ban(2)], 0));
    open.set_len(0).unwrap();
    open.rewind().unwrap();
    open.write_all(text(&[ban(1), ban(9)]).as_bytes()).unwrap();
    assert_eq!(setup.edit(), (1, vec![ban(9).netblock], vec![]));
    assert!(setup.save(&[ban(1), ban(2), ban(9)], 1));
    let all = ["203.0.1.0/24", "203.0.2.0/24", "203.0.9.0/24"];
    assert_eq!(setup.on_disk(), all);
}

/// STATE-2, STATE-7: whatever step fails, the one who waits is told at once, the last good file
/// stays, and once the disk is well the document is written without being sent again.
#[test]
fn a_failing_disk_is_told_and_tried_again() {
    let setup = setup();
    assert!(setup.save(&[ban(1)], 0));
    let (no_space, io_error) = (28, 5);
    for (step, errno) in [
        (Step::Create, no_space),
        (Step::Write, no_space),
        (Step::SyncFile, io_error),
        (Step::Swap, io_error),
    ] {
        setup.faults.fail(step, errno);
        assert!(!setup.save(&[ban(1), ban(2)], 0), "{step:?}");
        assert_eq!(setup.on_disk(), ["203.0.1.0/24"], "{step:?}");
    }
    // The rename took place, only its sync failed: our own file is no edit.
    setup.faults.fail(Step::SyncDir, io_error);
    assert!(!setup.save(&[ban(1), ban(3)], 0));
    assert_eq!(setup.on_disk(), ["203.0.1.0/24", "203.0.3.0/24"]);
    assert_eq!(setup.counts().writes_ok, 1);
    setup.faults.heal();
    until("the document is written", || setup.counts().writes_ok == 2);
    assert_eq!(setup.on_disk(), ["203.0.1.0/24", "203.0.3.0/24"]);
    assert!(setup.counts().writes_error >= 5);
    assert_eq!(setup.counts().edits_taken, 0);
}

/// STATE-2: bans that an answer waits for are written before the other files that wait.
#[test]
fn awaited_bans_go_first() {
    let setup = setup();
    let (told, outcome) = bounded(1);
    let (bans, clients) = (Arc::clone(&setup.bans), Arc::clone(&setup.clients));
    let (lookups, alerts) = (Arc::clone(&setup.lookups), Arc::clone(&setup.alerts));
    // In the middle of the first write, that of clients.json.
    setup.faults.meanwhile(Step::Write, move || {
        lookups.save(Stand::default(), Vec::new(), 0, Vec::new());
        alerts.save(Stand::default(), Vec::new(), 0, Vec::new());
        let of_bans = Arc::clone(&bans);
        let saved = Saved::new(move |ok| {
            let written = [
                of_bans.counts().writes_ok,
                clients.counts().writes_ok,
                lookups.counts().writes_ok,
                alerts.counts().writes_ok,
            ];
            told.send((ok, written)).unwrap();
        });
        bans.save(Stand::default(), vec![ban(1)], 0, vec![saved]);
    });
    setup
        .clients
        .save(Stand::default(), Vec::new(), 0, Vec::new());
    let in_the_order_of_counts = [1, 1, 0, 0];
    assert_eq!(
        outcome.recv_timeout(DEADLINE).unwrap(),
        (true, in_the_order_of_counts)
    );
}

/// STATE-7: a directory that is removed while the service runs is made again with all that was in
/// it.
#[test]
fn a_removed_directory_is_made_again() {
    let setup = setup();
    assert!(setup.save(&[ban(1)], 0));
    fs::remove_dir_all(setup.dir.path()).unwrap();
    until("the file is there again", || setup.file().exists());
    assert_eq!(setup.on_disk(), ["203.0.1.0/24"]);
    assert!(setup.save(&[ban(1), ban(2)], 0));
    assert_eq!(setup.counts().edits_taken, 0);
    // The lock and the watch moved along.
    assert!(StateLock::claim(setup.dir.path()).is_err());
    fs::write(setup.file(), text(&[ban(1)])).unwrap();
    assert_eq!(setup.edit().2, [BanKey::of(&ban(2))]);
}

/// STATE-4: a directory that was replaced by another adds what it holds; what it lacks was not
/// taken out by an edit.
#[test]
fn a_replaced_directory_takes_nothing_out() {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    let setup = setup();
    assert!(setup.save(&[ban(1)], 0));
    let other = tempfile::tempdir().unwrap();
    fs::write(other.path().join("bans.json"), text(&[ban(9)])).unwrap();
    renameat_with(
        CWD,
        other.path(),
        CWD,
        setup.dir.path(),
        RenameFlags::EXCHANGE,
    )
    .unwrap();
    assert_eq!(setup.edit(), (1, vec![ban(9).netblock], vec![]));
    assert!(setup.save(&[ban(1), ban(9)], 1));
    assert_eq!(setup.on_disk(), ["203.0.1.0/24", "203.0.9.0/24"]);
}

/// STATE-1: a stop writes what is queued; the next start reads it, unknown members included.
#[test]
fn a_stop_writes_what_is_queued() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("bans.json");
    fs::write(&file, r#"{"$schema":"x","version":1,"bans":[{"netblock":"203.0.1.0/24","ban_expires":"permanent","ticket":"OPS-1"}]}"#).unwrap();
    let open = || {
        let state =
            StateDir::open(StateLock::claim(dir.path()).unwrap(), Clock::manual(NOW).0).unwrap();
        let (file, read, first) = state.read::<BansFile>(None).unwrap();
        let held = found(read);
        let (clients, _, second) = state.read::<ClientsFile>(None).unwrap();
        (
            file,
            clients,
            held,
            state
                .start(vec![first, second], &FileThread::default())
                .unwrap(),
        )
    };
    let (bans, clients, held, thread) = open();
    assert_eq!(held[0].ban_started, Some(Time(NOW)));
    bans.save(
        Stand::default(),
        vec![Arc::clone(&held[0]), ban(2)],
        0,
        Vec::new(),
    );
    clients.save(Stand::default(), Vec::new(), 0, Vec::new());
    drop(thread);
    let (_, _, held, _thread) = open();
    assert_eq!(held[0].unknown.get("ticket"), Some(&json!("OPS-1")));
    assert_eq!(held.len(), 2);
    let read: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    assert_eq!(read["$schema"], "x");
    assert!(dir.path().join("clients.json").exists());
}

/// STATE-6: a file that does not fit stops the start with a sentence that names its place.
#[test]
fn a_bad_file_stops_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("clients.json");
    fs::write(&file, "{\"version\":1,\n\"clients\":[{}]}").unwrap();
    let state = StateDir::open(StateLock::claim(dir.path()).unwrap(), Clock::system()).unwrap();
    let error = state.read::<ClientsFile>(None).err().unwrap();
    assert_eq!(
        error.to_string(),
        format!(
            "state file {} does not fit: line 2, column 13, at \"/clients/0\": missing field `client`; mend it or move it away",
            file.display()
        )
    );
}

/// A newer document takes the place of the one that waits, and both are told.
#[test]
fn a_newer_document_replaces_the_one_that_waits() {
    let setup = setup();
    setup.faults.fail(Step::Write, 28);
    assert!(!setup.save(&[ban(1)], 0));
    setup.faults.heal();
    let outcomes = [2, 3].map(|number| setup.send(&[ban(number)], 0));
    for outcome in outcomes {
        assert_eq!(outcome.recv_timeout(DEADLINE), Ok(true));
    }
    assert_eq!(setup.on_disk(), ["203.0.3.0/24"]);
}

/// STATE-3: clients are edited the same way: what was changed and taken out is told, the rest is
/// not.
#[test]
fn clients_are_edited_too() {
    let setup = setup();
    let row = |number: u32| ClientRow {
        client: Client::V4(number),
        first_seen: Time(NOW),
        last_seen: Time(NOW + u64::from(number)),
        lookup: None,
        passed: 1,
        refused: 0,
        requests: Default::default(),
        bytes: Default::default(),
        rules: Vec::new(),
        other_sites: None,
        first_passed: None,
    };
    let (told, outcome) = bounded(1);
    let saved = Saved::new(move |ok| told.send(ok).unwrap());
    let rows = [1, 2, 3].map(|number| Row::from(row(number))).to_vec();
    setup.clients.save(Stand::default(), rows, 0, vec![saved]);
    assert_eq!(outcome.recv_timeout(DEADLINE), Ok(true));
    let file = setup.dir.path().join("clients.json");
    let mut read: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    read["clients"][1]["refused"] = json!(7);
    read["clients"].as_array_mut().unwrap().remove(0);
    fs::write(&file, read.to_string()).unwrap();
    let edit = setup.clients.edits().recv_timeout(DEADLINE).unwrap();
    let [Change::Put { after, .. }, Change::Remove(removed)] = &edit.changes[..] else {
        panic!("other changes")
    };
    assert_eq!(*removed, Client::V4(1));
    assert_eq!((after.row.client, after.row.refused), (Client::V4(2), 7));
    assert_eq!(setup.clients.counts().edits_taken, 1);
}

/// STATE-4: edits that race with writes, by rename and in place: none is lost, none is set aside.
#[test]
fn edits_that_race_with_writes_are_not_lost() {
    let setup = setup();
    assert!(setup.save(&[ban(0)], 0));
    let (file, other) = (setup.file(), setup.dir.path().join("new"));
    let editor = std::thread::spawn(move || {
        let mut bans = vec![ban(0)];
        for number in 1..=100 {
            bans.push(ban(number));
            if number % 2 == 0 {
                fs::write(&file, text(&bans)).unwrap();
            } else {
                fs::write(&other, text(&bans)).unwrap();
                fs::rename(&other, &file).unwrap();
            }
            std::thread::yield_now();
        }
    });
    let mut memory = vec![ban(0)];
    let mut applied = 0;
    let deadline = Instant::now() + DEADLINE * 3;
    while !(editor.is_finished() && memory.len() == 101) {
        assert!(Instant::now() < deadline, "{} of 101", memory.len());
        let mut outcome = setup.send(&memory, applied);
        while outcome.recv_timeout(Duration::from_millis(1)).is_err() {
            assert!(Instant::now() < deadline, "{} of 101", memory.len());
            while let Ok(edit) = setup.bans.edits().try_recv() {
                for change in edit.changes {
                    let Change::Put { after, .. } = change else {
                        panic!("an entry is lost")
                    };
                    memory.push(after);
                }
                applied = edit.revision;
                outcome = setup.send(&memory, applied);
            }
        }
    }
    editor.join().unwrap();
    let mut keys: Vec<_> = memory.iter().map(|ban| BanKey::of(ban)).collect();
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), 101);
    assert_eq!(setup.on_disk().len(), 101);
    assert_eq!(setup.counts().edits_bad, 0);
    assert!(!setup.dir.path().join("bans.json.bad").exists());
}

/// STATE-2: killed at any step of a write, the file and its base together give the old or the new
/// bans at the next start, also when a copy from before is saved over the file.
#[test]
fn a_kill_at_any_step_leaves_a_base_that_fits() {
    let steps = [
        Step::Create,
        Step::Write,
        Step::SyncFile,
        Step::CopyBase,
        Step::NameBase,
        Step::Name,
        Step::Swap,
        Step::Look,
        Step::Remove,
        Step::SyncDir,
    ];
    for step in steps {
        for stale in [false, true] {
            let setup = setup();
            assert!(setup.save(&[ban(1)], 0));
            let copy = fs::read(setup.file()).unwrap();
            assert!(setup.save(&[ban(1), ban(2)], 0));
            setup.faults.die(step);
            assert!(!setup.save(&[ban(1), ban(2), ban(3)], 0));
            let Setup { dir, thread, .. } = setup;
            drop(thread);
            if stale {
                fs::write(dir.path().join("bans.json"), &copy).unwrap();
            }
            let state = StateDir::open(StateLock::claim(dir.path()).unwrap(), Clock::manual(NOW).0)
                .unwrap();
            let (_file, read, _) = state.read::<BansFile>(None).unwrap();
            let mut held = found(read);
            BansFile::sort(&mut held);
            let old = [ban(1), ban(2)];
            let new = [ban(1), ban(2), ban(3)];
            assert!(held == old || held == new, "{step:?} {stale}: {held:?}");
        }
    }
}

/// TELL-3: a document that the next start would refuse for its size is not written; the last good
/// one stays, and the answer says so.
#[test]
fn what_a_start_would_refuse_is_not_written() {
    let setup = setup();
    assert!(setup.save(&[ban(1)], 0));
    let mut large = Ban::clone(&ban(2));
    large.reason = "x".repeat(5 << 20);
    assert!(!setup.save(&[ban(1), Arc::new(large)], 0));
    assert_eq!(setup.on_disk(), ["203.0.1.0/24"]);
    let fault = setup.fault();
    assert!(
        fault.error.contains("which the next start refuses"),
        "{fault:?}"
    );
    assert!(setup.save(&[ban(1), ban(3)], 0));
}

/// STATE-2: a base that is damaged, or that belongs to nobody, stops no start: the file counts as
/// it stands.
#[test]
fn a_damaged_base_is_not_used() {
    let setup = setup();
    assert!(setup.save(&[ban(1)], 0));
    let copy = fs::read(setup.file()).unwrap();
    assert!(setup.save(&[ban(1), ban(2)], 0));
    let Setup { dir, thread, .. } = setup;
    drop(thread);
    let base = dir.path().join(".bans.json.base");
    let whole = fs::read(&base).unwrap();
    let held = |base_is: &[u8]| {
        fs::write(dir.path().join("bans.json"), &copy).unwrap();
        fs::write(&base, base_is).unwrap();
        let state =
            StateDir::open(StateLock::claim(dir.path()).unwrap(), Clock::manual(NOW).0).unwrap();
        let (_file, read, _) = state.read::<BansFile>(None).unwrap();
        found(read).len()
    };
    assert_eq!(held(&whole), 2);
    let mut other = whole.clone();
    other[40] ^= 1;
    for damaged in [&whole[..whole.len() - 9], &whole[..50], b"", b"\n", &other] {
        assert_eq!(held(damaged), 1);
    }
    assert_eq!(held(&whole), 2);
}

/// The moment that the file says it is of.
fn written(setup: &Setup) -> Time {
    let read: Value = serde_json::from_slice(&fs::read(setup.file()).unwrap()).unwrap();
    read["written"].as_str().unwrap().parse().unwrap()
}

/// STATE-3: a file whose entries did not change is not written again, so that no open editor warns;
/// neither is an edit that the service would have written the same way.
#[test]
fn what_did_not_change_is_not_written() {
    let setup = setup();
    assert!(setup.save(&[ban(1)], 0));
    let before = fs::read(setup.file()).unwrap();
    assert!(setup.save(&[ban(1)], 0));
    assert_eq!(fs::read(setup.file()).unwrap(), before);
    assert_eq!(setup.counts().writes_ok, 1);

    let mut lifted = ban(1);
    Arc::make_mut(&mut lifted).lifted = Some(Time(NOW));
    let was = "\"lifted\": null";
    let is = format!("\"lifted\": \"{}\"", Time(NOW));
    let edited = String::from_utf8(before).unwrap().replace(was, &is);
    fs::write(setup.file(), &edited).unwrap();
    assert_eq!(setup.edit().1, [ban(1).netblock]);
    assert!(setup.save(&[Arc::clone(&lifted)], 1));
    assert_eq!(fs::read_to_string(setup.file()).unwrap(), edited);
    assert_eq!(setup.counts().writes_ok, 1);
    // One that is written in another way is, once.
    fs::write(setup.file(), edited.replace('\n', " ")).unwrap();
    until("the edit is seen", || setup.counts().edits_taken == 2);
    assert!(setup.save(&[lifted], 1));
    assert_eq!(setup.counts().writes_ok, 2);
}

/// STATE-2, STATE-10: the base of an edit that the service would have written the same way has its
/// name synced before the edit counts as on disk: behind an older base, the next start would take
/// the edit in after the lines of the journal that came behind it.
#[test]
fn a_base_that_is_renewed_alone_is_synced() {
    let setup = setup();
    assert!(setup.save(&[ban(1)], 0));
    let mut lifted = ban(1);
    Arc::make_mut(&mut lifted).lifted = Some(Time(NOW));
    let is = format!("\"lifted\": \"{}\"", Time(NOW));
    let edited = fs::read_to_string(setup.file()).unwrap();
    let edited = edited.replace("\"lifted\": null", &is);
    fs::write(setup.file(), &edited).unwrap();
    assert_eq!(setup.edit().1, [ban(1).netblock]);
    setup.faults.fail(Step::SyncDir, 5);
    assert!(!setup.save(&[Arc::clone(&lifted)], 1));
    setup.faults.heal();
    assert!(setup.save(&[lifted], 1));
    let base = fs::read_to_string(setup.dir.path().join(".bans.json.base")).unwrap();
    assert!(base.starts_with(&edited), "{base}");
    assert_eq!(fs::read_to_string(setup.file()).unwrap(), edited);
}

/// STATE-4: each write has a moment of its own, also two within one tick of the clock.
#[test]
fn each_write_has_its_moment() {
    let setup = setup();
    assert!(setup.save(&[ban(1)], 0));
    assert_eq!(written(&setup), Time(NOW));
    assert!(setup.save(&[ban(2)], 0));
    assert_eq!(written(&setup), Time(NOW + 1));
}

/// STATE-4: an editor reads, the service writes, the editor saves what it read with one ban more:
/// what it did not see stays, a lift is not undone, and what it took out is gone.
#[test]
fn a_stale_copy_forgets_nothing() {
    let setup = setup();
    assert!(setup.save(&[ban(1), ban(2), ban(3)], 0));
    let mut copy: Value = serde_json::from_slice(&fs::read(setup.file()).unwrap()).unwrap();
    let mut lifted = ban(1);
    Arc::make_mut(&mut lifted).lifted = Some(Time(NOW));
    assert!(setup.save(&[lifted.clone(), ban(2), ban(3), ban(4)], 0));
    let bans = copy["bans"].as_array_mut().unwrap();
    bans.remove(1);
    bans.push(serde_json::to_value(ban(9)).unwrap());
    fs::write(setup.file(), copy.to_string()).unwrap();
    let edit = (1, vec![ban(9).netblock], vec![BanKey::of(&ban(2))]);
    assert_eq!(setup.edit(), edit);
    let all = [lifted, ban(3), ban(4), ban(9)];
    assert!(setup.save(&all, 1));
    assert_eq!(
        setup.on_disk(),
        [
            "203.0.1.0/24",
            "203.0.3.0/24",
            "203.0.4.0/24",
            "203.0.9.0/24"
        ]
    );
}

/// STATE-4: of clients that were counted while an editor had the file open the counts stay, and
/// clients that were dropped meanwhile do not come back.
#[test]
fn a_stale_copy_rolls_no_counter_back() {
    let setup = setup();
    let row = |number: u32, passed| {
        Row::from(ClientRow {
            client: Client::V4(number),
            first_seen: Time(NOW),
            last_seen: Time(NOW),
            lookup: None,
            passed,
            refused: 0,
            requests: Default::default(),
            bytes: Default::default(),
            rules: Vec::new(),
            other_sites: None,
            first_passed: None,
        })
    };
    let save = |rows: Vec<_>, revision| {
        let (told, outcome) = bounded(1);
        let saved = Saved::new(move |ok| told.send(ok).unwrap_or_default());
        setup
            .clients
            .save(Stand::default(), rows, revision, vec![saved]);
        assert_eq!(outcome.recv_timeout(DEADLINE), Ok(true));
    };
    save(vec![row(1, 1), row(2, 1), row(3, 1)], 0);
    let file = setup.dir.path().join("clients.json");
    let mut copy: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    save(vec![row(1, 500), row(2, 1), row(4, 7)], 0);
    copy["clients"][1]["refused"] = json!(9);
    fs::write(&file, copy.to_string()).unwrap();
    let edit = setup.clients.edits().recv_timeout(DEADLINE).unwrap();
    let [Change::Put { after, .. }] = &edit.changes[..] else {
        panic!("{} changes", edit.changes.len())
    };
    assert_eq!((after.row.client, after.row.refused), (Client::V4(2), 9));
}

/// STATE-7: a bug in the thread is a write that failed: who waits is told, it is reported, and the
/// next try succeeds.
#[test]
fn a_panic_is_a_write_that_failed() {
    let setup = setup();
    setup.faults.meanwhile(Step::Write, || panic!("a bug"));
    assert!(!setup.save(&[ban(1)], 0));
    let fault = setup.fault();
    assert_eq!(fault.of, "bans.json");
    assert!(setup.save(&[ban(1)], 0));
    assert_eq!(setup.on_disk(), ["203.0.1.0/24"]);
}

/// RESTART-4: a thread that is held touches no file: it neither writes nor takes an edit in, until
/// it is resumed; one that is dropped then ends as it is, and its lock goes with the last holder.
#[test]
fn a_thread_that_is_held_touches_nothing() {
    let mut setup = setup();
    assert!(setup.save(&[ban(1)], 0));
    let hold = |setup: &mut Setup| {
        let held = setup.thread.hold().recv_timeout(DEADLINE);
        held.expect("it answers").expect("a descriptor")
    };
    let lock = hold(&mut setup);
    let saved = setup.send(&[ban(1), ban(2)], 0);
    fs::write(setup.file(), text(&[ban(1), ban(3)])).unwrap();
    // Several times what it takes otherwise.
    std::thread::sleep(Duration::from_millis(500));
    assert!(saved.is_empty() && setup.bans.edits().is_empty());
    setup.thread.resume();
    assert_eq!(setup.edit().1, [ban(3).netblock]);
    assert!(setup.save(&[ban(1), ban(2), ban(3)], 1));
    assert!(saved.recv_timeout(DEADLINE).unwrap());

    // Given up before it has come to it: it goes on, and is held when that is asked for again.
    let (goes_on, waits) = bounded(1);
    let disk_is_slow = move || waits.recv_timeout(DEADLINE).expect("it is told to go on");
    setup.faults.meanwhile(Step::Write, disk_is_slow);
    let slow = setup.send(&[ban(1), ban(2)], 1);
    drop(setup.thread.hold());
    setup.thread.resume();
    let again = setup.thread.hold();
    goes_on.send(()).unwrap();
    assert!(again.recv_timeout(DEADLINE).unwrap().is_ok());
    setup.thread.resume();
    assert!(slow.recv_timeout(DEADLINE).unwrap());

    drop(hold(&mut setup));
    let _unsaved = setup.send(&[ban(1)], 1);
    let Setup { dir, thread, .. } = setup;
    drop(thread);
    let left = fs::read_to_string(dir.path().join("bans.json")).unwrap();
    assert!(left.contains("203.0.2.0/24"), "{left}");
    let of = |lock| StateLock::passed(dir.path(), lock);
    assert!(StateLock::claim(dir.path()).is_err(), "it was passed");
    drop(of(lock).unwrap());
    assert!(StateLock::claim(dir.path()).is_ok());
}
