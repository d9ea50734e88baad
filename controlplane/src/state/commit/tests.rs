use std::os::unix::fs::{FileTypeExt, PermissionsExt};

use rustix::fs::{Mode, mknodat};

use super::*;
use crate::state::StateLock;

fn put(store: &Store, text: &str, expected: Option<&Seen>) -> io::Result<Commit> {
    let staged = store.stage("x.json", |out| out.write_all(text.as_bytes()))?;
    store.commit("x.json", staged, expected, false)
}

fn seen(store: &Store) -> Option<Seen> {
    stat::read(&store.path("x.json"))
        .unwrap()
        .map(|(_, seen)| seen)
}

fn text(dir: &Path) -> String {
    fs::read_to_string(dir.join("x.json")).unwrap()
}

const STEPS: [Step; 8] = [
    Step::Create,
    Step::Write,
    Step::SyncFile,
    Step::Name,
    Step::Swap,
    Step::Look,
    Step::Remove,
    Step::SyncDir,
];

/// What lies there beside the file and the lock.
fn leftovers(dir: &Path) -> Vec<String> {
    fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with('.'))
        .collect()
}

/// STATE-2: a process killed at any step of a write leaves the old or the new file whole, and what
/// it left behind hinders nobody.
#[test]
fn a_kill_at_any_step_leaves_a_whole_file() {
    for step in STEPS {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(StateLock::claim(dir.path()).unwrap()).unwrap();
        assert!(matches!(put(&store, "old", None), Ok(Commit::Done { .. })));
        store.faults.die(step);
        assert!(put(&store, "new", seen(&store).as_ref()).is_err());
        drop(store);
        let swapped = matches!(step, Step::Look | Step::Remove | Step::SyncDir);
        let expected = if swapped { "new" } else { "old" };
        assert_eq!(text(dir.path()), expected, "{step:?}");
        let store = Store::open(StateLock::claim(dir.path()).unwrap()).unwrap();
        store.recover("x.json").unwrap();
        assert_eq!(text(dir.path()), expected, "{step:?}");
        let again = put(&store, "newer", seen(&store).as_ref());
        assert!(matches!(again, Ok(Commit::Done { .. })), "{step:?}");
        assert_eq!(text(dir.path()), "newer");
        assert_eq!(leftovers(dir.path()), [""; 0], "{step:?}");
    }
}

/// STATE-4: an edit of the last moment that has the size and the time of what was read is put back:
/// editors save within one tick of the clock, too.
#[test]
fn an_edit_within_the_tick_of_the_last_look_is_put_back() {
    // A busy machine may take longer than a tick.
    let is_put_back = (0..50).any(|_| {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(StateLock::claim(dir.path()).unwrap()).unwrap();
        let _ = put(&store, "old!", None).unwrap();
        let (path, expected) = (dir.path().join("x.json"), seen(&store));
        store.faults.meanwhile(Step::Swap, move || {
            let time = fs::metadata(&path).unwrap().modified().unwrap();
            fs::write(&path, "edit").unwrap();
            let file = File::options().write(true).open(&path).unwrap();
            file.set_modified(time).unwrap();
        });
        let put = put(&store, "new", expected.as_ref()).unwrap();
        matches!(put, Commit::Changed) && text(dir.path()) == "edit"
    });
    assert!(is_put_back);
}

/// STATE-4, STATE-5: an edit that was saved in the last moment before the swap survives a kill at
/// any step after it: the next start puts it back. So does one after which somebody saved once
/// more, as a bad file, and a bad one.
#[test]
fn a_kill_after_the_swap_loses_no_edit() {
    let dir = || tempfile::tempdir().unwrap();
    let save = |dir: &Path, text: &'static str| {
        let (edit, target) = (dir.join("edit"), dir.join("x.json"));
        move || {
            fs::write(&edit, text).unwrap();
            fs::rename(&edit, &target).unwrap();
        }
    };
    for step in [Step::Swap, Step::Look, Step::SwapBack, Step::Remove] {
        let dir = dir();
        let store = Store::open(StateLock::claim(dir.path()).unwrap()).unwrap();
        let _ = put(&store, "old", None).unwrap();
        store.faults.meanwhile(Step::Swap, save(dir.path(), "edit"));
        store.faults.die(step);
        assert!(put(&store, "new", seen(&store).as_ref()).is_err());
        drop(store);
        let swapped = matches!(step, Step::Look | Step::SwapBack);
        assert_eq!(
            text(dir.path()),
            if swapped { "new" } else { "edit" },
            "{step:?}"
        );
        let store = Store::open(StateLock::claim(dir.path()).unwrap()).unwrap();
        store.recover("x.json").unwrap();
        assert_eq!(text(dir.path()), "edit", "{step:?}");
        assert_eq!(leftovers(dir.path()), [""; 0], "{step:?}");
    }
    for step in [Step::Look, Step::SwapBack] {
        let dir = dir();
        let store = Store::open(StateLock::claim(dir.path()).unwrap()).unwrap();
        let _ = put(&store, "old", None).unwrap();
        store.faults.meanwhile(Step::Swap, save(dir.path(), "edit"));
        store.faults.die(step);
        assert!(put(&store, "new", seen(&store).as_ref()).is_err());
        drop(store);
        save(dir.path(), "later")();
        let store = Store::open(StateLock::claim(dir.path()).unwrap()).unwrap();
        store.recover("x.json").unwrap();
        assert_eq!(text(dir.path()), "later", "{step:?}");
        let bad = fs::read_to_string(dir.path().join("x.json.bad"));
        assert_eq!(bad.unwrap(), "edit", "{step:?}");
    }
    for step in [
        Step::Name,
        Step::Swap,
        Step::Look,
        Step::Remove,
        Step::SyncDir,
    ] {
        let dir = dir();
        let store = Store::open(StateLock::claim(dir.path()).unwrap()).unwrap();
        fs::write(dir.path().join("x.json"), "bad").unwrap();
        store.faults.die(step);
        let staged = store.stage("x.json", |out| out.write_all(b"good")).unwrap();
        let known = seen(&store);
        assert!(
            store
                .commit("x.json", staged, known.as_ref(), true)
                .is_err()
        );
        drop(store);
        let store = Store::open(StateLock::claim(dir.path()).unwrap()).unwrap();
        store.recover("x.json").unwrap();
        let bad =
            ["x.json", "x.json.bad"].map(|name| fs::read_to_string(dir.path().join(name)).ok());
        assert!(
            bad.iter().flatten().any(|text| text == "bad"),
            "{step:?}: {bad:?}"
        );
    }
}

/// STATE-5: where files cannot be swapped, a bad file has a second name until the new one stands.
#[test]
fn a_kill_leaves_a_bad_file_by_its_second_name() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(StateLock::claim(dir.path()).unwrap()).unwrap();
    fs::write(dir.path().join("x.json"), "bad").unwrap();
    fs::hard_link(dir.path().join("x.json"), store.linked("x.json")).unwrap();
    store.recover("x.json").unwrap();
    assert_eq!(text(dir.path()), "bad");
    assert_eq!(leftovers(dir.path()), [""; 0]);
    fs::write(dir.path().join("good"), "good").unwrap();
    fs::hard_link(dir.path().join("x.json"), store.linked("x.json")).unwrap();
    fs::rename(dir.path().join("good"), dir.path().join("x.json")).unwrap();
    store.recover("x.json").unwrap();
    assert_eq!(text(dir.path()), "good");
    let bad = fs::read_to_string(dir.path().join("x.json.bad"));
    assert_eq!(bad.unwrap(), "bad");
    assert_eq!(leftovers(dir.path()), [""; 0]);
}

/// STATE-7: a write that fails at any step leaves the old or the new file whole and no leftovers.
#[test]
fn a_failure_at_any_step_leaves_a_whole_file_and_nothing_else() {
    for step in STEPS {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(StateLock::claim(dir.path()).unwrap()).unwrap();
        let _ = put(&store, "old", None).unwrap();
        store.faults.fail(step, 28);
        let error = put(&store, "new", seen(&store).as_ref()).err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        let swapped = matches!(step, Step::Remove | Step::SyncDir);
        assert_eq!(
            text(dir.path()),
            if swapped { "new" } else { "old" },
            "{step:?}"
        );
        // What could not be removed goes with the next write.
        store.recover("x.json").unwrap();
        assert_eq!(leftovers(dir.path()), [""; 0], "{step:?}");
    }
}

/// STATE-4: a file saved between the last look and the swap is never replaced, whichever way it was
/// saved.
#[test]
fn an_edit_in_the_last_moment_is_never_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(StateLock::claim(dir.path()).unwrap()).unwrap();
    let _ = put(&store, "old", None).unwrap();
    let known = seen(&store).unwrap();
    let staged = store.stage("x.json", |out| out.write_all(b"new")).unwrap();
    fs::write(dir.path().join("edit"), "edit").unwrap();
    fs::rename(dir.path().join("edit"), dir.path().join("x.json")).unwrap();
    assert!(matches!(
        store.commit("x.json", staged, Some(&known), false),
        Ok(Commit::Changed)
    ));
    // The same past the look: what is known is made to agree with the edit in everything but the
    // content.
    let known = Seen {
        stat: store.stat("x.json").unwrap().unwrap(),
        ..known
    };
    let staged = store.stage("x.json", |out| out.write_all(b"new")).unwrap();
    let lying = Seen {
        stat: Stat {
            modified_ns: 0,
            ..known.stat
        },
        ..known
    };
    assert!(
        !store
            .is_expected(&dir.path().join("x.json"), &lying)
            .unwrap()
    );
    renameat_with(
        CWD,
        &staged.file.path,
        CWD,
        dir.path().join("x.json"),
        RenameFlags::EXCHANGE,
    )
    .unwrap();
    store
        .swap_back(&staged, &dir.path().join("x.json"))
        .unwrap();
    assert_eq!(text(dir.path()), "edit");
    // And a file that appears where none was.
    fs::remove_file(dir.path().join("x.json")).unwrap();
    let staged = store.stage("x.json", |out| out.write_all(b"new")).unwrap();
    fs::write(dir.path().join("x.json"), "edit").unwrap();
    assert!(matches!(
        store.commit("x.json", staged, None, false),
        Ok(Commit::Changed)
    ));
    assert_eq!(text(dir.path()), "edit");
}

/// RELOAD-4, STATE-11: a pipe that is put in the place of the file between the last look and the
/// swap is not waited for: the write fails, and the pipe lies where it was put.
#[test]
fn a_pipe_of_the_last_moment_is_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(StateLock::claim(dir.path()).unwrap()).unwrap();
    let _ = put(&store, "old", None).unwrap();
    let target = dir.path().join("x.json");
    let pipe = target.clone();
    store.faults.meanwhile(Step::Swap, move || {
        fs::remove_file(&pipe).unwrap();
        let mode = Mode::from(0o600);
        mknodat(CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    });
    let error = put(&store, "new", seen(&store).as_ref()).err().unwrap();
    assert_eq!(
        error.to_string(),
        "it is a named pipe, and a regular file is expected"
    );
    assert!(fs::metadata(&target).unwrap().file_type().is_fifo());
    assert_eq!(leftovers(dir.path()), [""; 0]);
}

/// STATE-4: while an edit of the last moment is put back, somebody saves once more: the later save
/// stands.
#[test]
fn a_save_while_an_edit_is_put_back_stands() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(StateLock::claim(dir.path()).unwrap()).unwrap();
    let _ = put(&store, "old", None).unwrap();
    let known = seen(&store).unwrap();
    let staged = store.stage("x.json", |out| out.write_all(b"new")).unwrap();
    let target = dir.path().join("x.json");
    let save = |text: &'static str| {
        let (beside, target) = (dir.path().join(text), target.clone());
        move || {
            fs::write(&beside, text).unwrap();
            fs::rename(&beside, &target).unwrap();
        }
    };
    // The edit comes between the look and the swap, the later save between the swap and its
    // undoing.
    save("edit")();
    renameat_with(CWD, &staged.file.path, CWD, &target, RenameFlags::EXCHANGE).unwrap();
    assert!(!store.is_expected(&staged.file.path, &known).unwrap());
    store.faults.meanwhile(Step::SwapBack, save("later"));
    store.swap_back(&staged, &target).unwrap();
    assert_eq!(text(dir.path()), "later");
}

/// STATE-5: bad files are kept, the newest as `.bad`, at most ten.
#[test]
fn at_most_ten_bad_files_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(StateLock::claim(dir.path()).unwrap()).unwrap();
    for number in 0..12 {
        fs::write(dir.path().join("x.json"), format!("bad {number}")).unwrap();
        let staged = store.stage("x.json", |out| out.write_all(b"good")).unwrap();
        let done = store.commit("x.json", staged, seen(&store).as_ref(), true);
        assert!(matches!(done, Ok(Commit::Done { .. })));
        assert_eq!(text(dir.path()), "good");
    }
    let read = |name: &str| fs::read_to_string(dir.path().join(name)).ok();
    assert_eq!(read("x.json.bad").as_deref(), Some("bad 11"));
    assert_eq!(read("x.json.bad.1").as_deref(), Some("bad 10"));
    assert_eq!(read("x.json.bad.9").as_deref(), Some("bad 2"));
    assert_eq!(read("x.json.bad.10"), None);
}

/// STATE-6: a missing directory is made for the service alone; the second service is refused; files
/// are 0600.
#[test]
fn one_service_owns_the_directory() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("deep/state");
    let store = StateLock::claim(&dir).and_then(Store::open).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&dir), 0o700);
    let _ = put(&store, "x", None).unwrap();
    assert_eq!(mode(&dir.join("x.json")), 0o600);
    let error = StateLock::claim(&dir).err().unwrap();
    assert_eq!(
        error.to_string(),
        format!(
            "state directory {} is in use by another service (it holds weir.lock); stop it or set WAF_STATE_DIR",
            dir.display()
        )
    );
    drop(store);
    assert!(StateLock::claim(&dir).and_then(Store::open).is_ok());
}

/// STATE-6: a directory that cannot be written stops the start.
#[test]
fn a_directory_that_cannot_be_written_stops_the_start() {
    let error = StateLock::claim(Path::new("/dev/null/state"))
        .err()
        .unwrap();
    let error = error.to_string();
    assert!(
        error.starts_with("state directory /dev/null/state cannot be made: "),
        "{error}"
    );
}
