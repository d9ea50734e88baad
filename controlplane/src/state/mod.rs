//! The state files: one thread, the keeper, that alone touches the state directory (STATE-1..8).
//!
//! The control loop owns what is true in memory. It sends whole documents to be saved, and receives edits that were
//! found on disk as differences to be applied. A document that was sent before an edit was applied carries that fact
//! (`applied`), and the keeper applies the edit to it before writing, so neither side ever overwrites the other. What
//! "apply" means when both sides changed one entry stands at the top of `merge.rs`; memory gets the same rule through
//! [`Edit::merged`].
//!
//! One more state file is one more [`document::Document`], one more field of the thread and one more variant of [`Save`]
//! and [`EditChange`].

use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, bounded};
use weir_shared::ban::Ban;
use weir_shared::client::Client;
use weir_shared::clock::Clock;
use weir_shared::netblock::Netblock;
use weir_shared::table::ClientRow;
use weir_shared::units::Time;

use crate::lookup::LookupRow;

mod alerts;
mod bans;
mod clients;
mod document;
mod keeper;
mod lookups;
mod merge;
mod schema;
mod store;
mod watch;

pub use alerts::{AlertsEntry, AlertsKey};
pub use clients::client_json;

use alerts::Alerts;
use bans::Bans;
use clients::Clients;
use document::Document as _;
use keeper::{Common, Held, Job, Shared, Thread};
use lookups::Lookups;
use store::Store;
use watch::Watch;

/// Edits that wait for the control loop; it takes them every few milliseconds, an administrator saves every few seconds.
const EDITS: usize = 64;

/// Failing writes that wait to be told: a few files, each told once an outage.
const FAULTS: usize = 16;

/// What names a ban in the file and in memory. The ledger and the keeper see to it that no two bans share it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct BanKey {
    /// Its netblock.
    pub netblock: Netblock,
    /// When it was made; always filled in once an entry was read.
    pub ban_started: Time,
}

/// What was read at start.
#[derive(Debug, Default)]
pub struct StartState {
    /// bans.json
    pub bans: Vec<Arc<Ban>>,
    /// clients.json
    pub clients: Vec<ClientRow>,
    /// lookups.json
    pub lookups: Vec<LookupRow>,
    /// alerts.json
    pub alerts: Vec<AlertsEntry>,
}

/// A state file that could not be written, told once until it can be again (STATE-7).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WriteFault {
    /// The file's name.
    pub file: &'static str,
    /// What the system said.
    pub error: String,
}

/// An edit found on disk, as the difference from what was last read or written.
#[derive(Clone, Debug)]
pub struct Edit {
    /// Counts up from 1; the control loop says with each document which edits it contains.
    pub number: u64,
    /// Which entries changed.
    pub change: EditChange,
    /// The changed bans as they stood before the edit; see [`Edit::merged`].
    pub before: Vec<Arc<Ban>>,
}

/// The entries of one file that an edit touched.
#[derive(Clone, Debug)]
pub enum EditChange {
    /// Of bans.json.
    Bans {
        /// Added or changed entries, whole. One that memory holds too becomes [`Edit::merged`].
        put: Vec<Ban>,
        /// Entries taken out: forgotten, they feed no escalation (STATE-3).
        removed: Vec<BanKey>,
    },
    /// Of clients.json.
    Clients {
        /// Added or changed entries, whole.
        put: Vec<ClientRow>,
        /// Entries taken out.
        removed: Vec<Client>,
    },
    /// Of lookups.json.
    Lookups {
        /// Added or changed entries, whole.
        put: Vec<LookupRow>,
        /// Entries taken out.
        removed: Vec<Client>,
    },
    /// Of alerts.json.
    Alerts {
        /// Added or changed entries, whole.
        put: Vec<AlertsEntry>,
        /// Entries taken out.
        removed: Vec<AlertsKey>,
    },
}

/// Is told whether a document reached the disk: `true` once it is there after fsync and rename (STATE-2). Dropped without
/// a word, by a bug, it counts as a write that failed: nobody waits for an outcome that never comes.
pub struct Saved(Option<Box<dyn FnOnce(bool) + Send>>);

impl Saved {
    /// Calls `told` once with the outcome.
    pub fn new(told: impl FnOnce(bool) + Send + 'static) -> Self {
        Self(Some(Box::new(told)))
    }

    /// The outcome.
    pub fn tell(mut self, persisted: bool) {
        if let Some(told) = self.0.take() {
            told(persisted);
        }
    }
}

impl Drop for Saved {
    fn drop(&mut self) {
        if let Some(told) = self.0.take() {
            told(false);
        }
    }
}

/// The state files, in the order in which they are written at a stop: the one that answers wait for comes first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StateFile {
    /// bans.json
    Bans,
    /// clients.json
    Clients,
    /// lookups.json
    Lookups,
    /// alerts.json
    Alerts,
}

impl StateFile {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Bans, Self::Clients, Self::Lookups, Self::Alerts];

    /// The file's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bans => Bans::FILE,
            Self::Clients => Clients::FILE,
            Self::Lookups => Lookups::FILE,
            Self::Alerts => Alerts::FILE,
        }
    }
}

/// A document to be saved.
pub enum Save {
    /// bans.json, oldest first.
    Bans(Vec<Arc<Ban>>),
    /// clients.json, least recently seen first.
    Clients(Vec<ClientRow>),
    /// lookups.json, in any order.
    Lookups(Vec<LookupRow>),
    /// alerts.json, in the order of the file.
    Alerts(Vec<AlertsEntry>),
}

/// What the keeper did so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StateCounts {
    /// One row a file.
    pub files: [FileCounts; StateFile::ALL.len()],
}

/// Counts of one file, for `waf_state_writes_total` and `waf_state_edits_total`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileCounts {
    /// The file's name.
    pub file: &'static str,
    /// Writes that reached the disk.
    pub writes_ok: u64,
    /// Tries that failed.
    pub writes_error: u64,
    /// Edits taken in.
    pub edits_taken: u64,
    /// Edits set aside.
    pub edits_bad: u64,
}

/// The handle to the keeper's thread. Dropping it writes what is queued and waits for the thread, as [`Keeper::stop`].
pub struct Keeper {
    shared: Arc<Shared>,
    edits: Receiver<Edit>,
    faults: Receiver<WriteFault>,
    wake: Sender<()>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    /// Locks the directory, reads and checks every file, starts the thread and the watch.
    ///
    /// # Errors
    /// One sentence an operator can act on, with path, line, column and JSON pointer where there is one (STATE-6).
    pub fn open(dir: &Path, clock: Clock) -> Result<(Self, StartState), String> {
        Self::with_store(Store::open(dir)?, clock, Watch::start)
    }

    fn with_store(
        store: Store,
        clock: Clock,
        watch: fn(&Path, Sender<()>) -> Watch,
    ) -> Result<(Self, StartState), String> {
        let now = Time(clock.now().wall_ms);
        // clients.json, when full, is as large as the others together: two threads halve the wait for the first answer.
        let (clients, others) = std::thread::scope(|scope| {
            let clients = scope.spawn(|| Held::<Clients>::open(&store, now));
            let others = (|| {
                let bans = Held::<Bans>::open(&store, now)?;
                let lookups = Held::<Lookups>::open(&store, now)?;
                Ok::<_, String>((bans, lookups, Held::<Alerts>::open(&store, now)?))
            })();
            (clients.join(), others)
        });
        let (bans, lookups, alerts) = others?;
        let clients = clients
            .unwrap_or_else(|_| Err("the reading of clients.json ended by a panic".to_owned()))?;
        let start = StartState {
            bans: bans.entries().to_vec(),
            clients: clients::rows(clients.entries()),
            lookups: lookups::rows(lookups.entries()),
            alerts: alerts::rows(alerts.entries()),
        };
        let shared = Arc::new(Shared::default());
        let (edits_out, edits) = bounded(EDITS);
        let (faults_out, faults) = bounded(FAULTS);
        let (wake, woken) = bounded(1);
        let thread = Thread {
            watch: watch(&store.path(""), wake.clone()),
            common: Common {
                store,
                clock,
                edits: edits_out,
                faults: faults_out,
                shared: Arc::clone(&shared),
                number: 0,
                stopping: false,
            },
            bans,
            clients,
            lookups,
            alerts,
            wake: woken,
        };
        let thread = std::thread::Builder::new()
            .name("weir-state".to_owned())
            .spawn(move || thread.run())
            .map_err(|error| format!("the thread of the state files cannot be started: {error}"))?;
        Ok((
            Self {
                shared,
                edits,
                faults,
                wake,
                thread: Some(thread),
            },
            start,
        ))
    }

    /// Edits found on disk, in order. They are few; while nobody takes them, further ones wait on disk.
    pub fn edits(&self) -> &Receiver<Edit> {
        &self.edits
    }

    /// Writes that failed, one a file and outage. What is not taken is logged all the same.
    pub fn faults(&self) -> &Receiver<WriteFault> {
        &self.faults
    }

    /// Queues a document that contains all edits up to `applied`; returns at once. A document that is still queued when
    /// a newer one of the same file arrives is replaced by it, and both are told the outcome.
    pub fn save(&self, document: Save, applied: u64, saved: Option<Saved>) {
        let saved = saved.into_iter().collect();
        {
            let mut queue = self.shared.queue();
            match document {
                Save::Bans(document) => {
                    let job = Job {
                        document,
                        applied,
                        saved,
                    };
                    queue.bans = Some(job.replacing(queue.bans.take()));
                }
                Save::Clients(document) => {
                    let job = Job {
                        document,
                        applied,
                        saved,
                    };
                    queue.clients = Some(job.replacing(queue.clients.take()));
                }
                Save::Lookups(document) => {
                    let job = Job {
                        document,
                        applied,
                        saved,
                    };
                    queue.lookups = Some(job.replacing(queue.lookups.take()));
                }
                Save::Alerts(document) => {
                    let job = Job {
                        document,
                        applied,
                        saved,
                    };
                    queue.alerts = Some(job.replacing(queue.alerts.take()));
                }
            }
        }
        self.wake();
    }

    /// What was written and taken in so far.
    pub fn counts(&self) -> StateCounts {
        self.shared.counts()
    }

    /// Writes what is queued, then ends the thread and gives the lock back. A write that fails now is not tried again.
    pub fn stop(self) {
        drop(self);
    }

    fn wake(&self) {
        // Full means that the keeper is to wake already.
        let _ = self.wake.try_send(());
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.shared.queue().stop = true;
        self.wake();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of the state files ended by a panic");
        }
    }
}

impl Edit {
    /// What becomes of a ban that memory holds as `ours` and that this edit puts as `theirs`: members that the edit
    /// changed are as in the edit, the others as in memory, so that an edited reason does not undo a lift (STATE-4).
    pub fn merged(&self, ours: &Ban, theirs: &Ban) -> Ban {
        let key = BanKey::of(theirs);
        match self.before.iter().find(|before| BanKey::of(before) == key) {
            Some(before) if **before != *ours => bans::merge(before, ours, theirs),
            Some(_) | None => theirs.clone(),
        }
    }
}

/// A door for the fuzz targets: a file of this name as it is read at start, and written again.
#[cfg(fuzzing)]
pub fn reread(file: &str, bytes: &[u8]) -> Result<Vec<u8>, String> {
    use std::sync::LazyLock;

    use self::document::{Document, schema};
    use self::schema::FileSchema;

    fn of<D: Document>(
        schema: &Result<FileSchema, String>,
        bytes: &[u8],
    ) -> Result<Vec<u8>, String> {
        let schema = schema.as_ref().map_err(String::clone)?;
        let content = document::parse::<D>(schema, bytes).map_err(|fault| fault.to_string())?;
        let mut entries = D::complete(content.entries, &[], Time(1_795_276_800_000));
        D::sort(&mut entries);
        let mut out = Vec::new();
        document::write::<D>(&mut out, &entries, &content.envelope).map_err(|e| e.to_string())?;
        Ok(out)
    }

    static SCHEMAS: LazyLock<[Result<FileSchema, String>; 4]> = LazyLock::new(|| {
        [
            schema::<Bans>(),
            schema::<Clients>(),
            schema::<Lookups>(),
            schema::<Alerts>(),
        ]
    });
    let [bans, clients, lookups, alerts] = &*SCHEMAS;
    match file {
        "bans.json" => of::<Bans>(bans, bytes),
        "clients.json" => of::<Clients>(clients, bytes),
        "lookups.json" => of::<Lookups>(lookups, bytes),
        _ => of::<Alerts>(alerts, bytes),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{Seek, Write};
    use std::path::PathBuf;
    use std::time::{Duration, Instant};

    use serde_json::{Value, json};
    use tempfile::TempDir;

    use super::store::Step;
    use super::store::faults::Faults;
    use super::*;

    /// Generous, for a machine that does other things too; the figures are measured elsewhere.
    const DEADLINE: Duration = Duration::from_secs(10);

    struct Setup {
        dir: TempDir,
        keeper: Keeper,
        faults: Arc<Faults>,
    }

    fn setup() -> Setup {
        setup_with(Watch::start)
    }

    fn setup_with(watch: fn(&Path, Sender<()>) -> Watch) -> Setup {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let faults = Arc::clone(&store.faults);
        let (keeper, start) = Keeper::with_store(store, Clock::manual(NOW).0, watch).unwrap();
        assert!(start.bans.is_empty() && start.clients.is_empty() && start.alerts.is_empty());
        Setup {
            dir,
            keeper,
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
            let (told, outcome) = bounded(1);
            self.keeper.save(
                Save::Bans(bans.to_vec()),
                applied,
                Some(Saved::new(move |ok| told.send(ok).unwrap())),
            );
            outcome.recv_timeout(DEADLINE).unwrap()
        }

        fn edit(&self) -> (u64, Vec<Netblock>, Vec<BanKey>) {
            let edit = self.keeper.edits().recv_timeout(DEADLINE).unwrap();
            let EditChange::Bans { put, removed } = edit.change else {
                panic!("an edit of another file")
            };
            (
                edit.number,
                put.iter().map(|ban| ban.netblock).collect(),
                removed,
            )
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
            self.keeper.counts().files[0]
        }
    }

    /// Saves a text as some editor does.
    type Way<'a> = &'a dyn Fn(&str);

    /// STATE-3: an edit is seen in whatever way an editor saves, and own writes are none; STATE-5: a half-written file
    /// is not taken for a bad one.
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
        // The median: on a busy machine one of them may be late without telling anything.
        waits.sort();
        assert!(waits[3] < Duration::from_secs(1), "{waits:?}");
        assert!(setup.keeper.edits().is_empty());
        assert_eq!(
            (setup.counts().edits_taken, setup.counts().edits_bad),
            (6, 0)
        );
        assert_eq!(setup.counts().writes_ok, 7);
    }

    /// STATE-3: where no events come the poll finds the edit.
    #[test]
    fn an_edit_is_seen_without_events() {
        let setup = setup_with(|_, _| Watch::blind());
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
        let (told, outcome) = bounded(1);
        setup.keeper.save(
            Save::Bans(vec![ban(1), ban(2)]),
            0,
            Some(Saved::new(move |ok| told.send(ok).unwrap())),
        );
        for piece in pieces {
            // Not a wait for the keeper: this is what a slow writer does.
            std::thread::sleep(Duration::from_millis(50));
            assert!(outcome.is_empty());
            open.write_all(piece).unwrap();
        }
        assert_eq!(outcome.recv_timeout(DEADLINE), Ok(true));
        assert_eq!(
            setup.on_disk(),
            ["203.0.1.0/24", "203.0.2.0/24", "203.0.9.0/24"]
        );
        assert_eq!(setup.edit().1, [ban(9).netblock]);
        assert_eq!(setup.counts().edits_bad, 0);
    }

    /// STATE-3: entries taken out are removed, and a deleted file is all of them taken out; a touch is no edit.
    #[test]
    fn what_is_taken_out_is_removed() {
        let setup = setup();
        assert!(setup.save(&[ban(1), ban(2), ban(3)], 0));
        fs::write(setup.file(), fs::read(setup.file()).unwrap()).unwrap();
        fs::write(setup.file(), text(&[ban(1), ban(3)])).unwrap();
        assert_eq!(setup.edit(), (1, vec![], vec![BanKey::of(&ban(2))]));
        fs::remove_file(setup.file()).unwrap();
        assert_eq!(
            setup.edit(),
            (2, vec![], vec![BanKey::of(&ban(1)), BanKey::of(&ban(3))])
        );
    }

    /// STATE-4: a write takes in an edit made since, and a document that does not contain an edit yet gets it.
    #[test]
    fn a_write_takes_in_an_edit_made_since() {
        let setup = setup();
        assert!(setup.save(&[ban(1), ban(2)], 0));
        fs::write(setup.file(), text(&[ban(2), ban(9)])).unwrap();
        // At once, long before the edit has settled; memory has made ban 3 meanwhile.
        assert!(setup.save(&[ban(1), ban(2), ban(3)], 0));
        let both = ["203.0.2.0/24", "203.0.3.0/24", "203.0.9.0/24"];
        assert_eq!(setup.on_disk(), both);
        assert!(setup.save(&[ban(1), ban(2), ban(3)], 0));
        assert_eq!(setup.on_disk(), both);
        assert_eq!(setup.edit().0, 1);
        // Memory has taken the edit in, and then dropped what it added.
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
        assert!(setup.keeper.edits().is_empty());
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

    /// STATE-4: an editor that opened the file before a write and saves into it after has not saved into nothing.
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
        until("the edit is in the file", || {
            setup.on_disk() == ["203.0.1.0/24", "203.0.2.0/24", "203.0.9.0/24"]
        });
    }

    /// STATE-2, STATE-7: whatever step fails, the one who waits is told at once, the last good file stays, and once the
    /// disk is well the document is written without being sent again.
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
        let shared = Arc::clone(&setup.keeper.shared);
        let queue = Arc::clone(&shared);
        // In the middle of the first write, that of clients.json.
        setup.faults.meanwhile(Step::Write, move || {
            let counts = Arc::clone(&queue);
            queue.queue().bans = Some(Job {
                document: vec![ban(1)],
                applied: 0,
                saved: vec![Saved::new(move |ok| {
                    let written = counts.counts().files.map(|file| file.writes_ok);
                    told.send((ok, written)).unwrap();
                })],
            });
        });
        {
            let mut queue = shared.queue();
            queue.clients = Some(Job {
                document: Vec::new(),
                applied: 0,
                saved: Vec::new(),
            });
            queue.lookups = Some(Job {
                document: Vec::new(),
                applied: 0,
                saved: Vec::new(),
            });
            queue.alerts = Some(Job {
                document: Vec::new(),
                applied: 0,
                saved: Vec::new(),
            });
        }
        setup.keeper.wake();
        let in_the_order_of_counts = [1, 1, 0, 0];
        assert_eq!(
            outcome.recv_timeout(DEADLINE).unwrap(),
            (true, in_the_order_of_counts)
        );
    }

    /// STATE-7: a directory that is removed while the service runs is made again with all that was in it.
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
        assert!(Store::open(setup.dir.path()).is_err());
        fs::write(setup.file(), text(&[ban(1)])).unwrap();
        assert_eq!(setup.edit().2, [BanKey::of(&ban(2))]);
    }

    /// STATE-4: a directory that was replaced by another adds what it holds; what it lacks was not taken out by an edit.
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
        until("both are in the file", || {
            setup.on_disk() == ["203.0.1.0/24", "203.0.9.0/24"]
        });
    }

    /// STATE-1: a stop writes what is queued; the next start reads it, unknown members included.
    #[test]
    fn a_stop_writes_what_is_queued() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("bans.json");
        fs::write(&file, r#"{"$schema":"x","version":1,"bans":[{"netblock":"203.0.1.0/24","ban_expires":"permanent","ticket":"OPS-1"}]}"#).unwrap();
        let open = || Keeper::open(dir.path(), Clock::manual(NOW).0).unwrap();
        let (keeper, start) = open();
        assert_eq!(start.bans[0].ban_started, Some(Time(NOW)));
        let bans = vec![Arc::clone(&start.bans[0]), ban(2)];
        keeper.save(Save::Bans(bans), 0, None);
        keeper.save(Save::Clients(vec![]), 0, None);
        keeper.stop();
        let (_keeper, start) = open();
        assert_eq!(start.bans[0].unknown.get("ticket"), Some(&json!("OPS-1")));
        assert_eq!(start.bans.len(), 2);
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
        let error = Keeper::open(dir.path(), Clock::system()).err().unwrap();
        assert_eq!(
            error,
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
        let (told, outcomes) = bounded(2);
        for number in [2, 3] {
            let told = told.clone();
            let saved: Saved = Saved::new(move |ok| told.send(ok).unwrap());
            setup
                .keeper
                .save(Save::Bans(vec![ban(number)]), 0, Some(saved));
        }
        assert_eq!(outcomes.recv_timeout(DEADLINE), Ok(true));
        assert_eq!(outcomes.recv_timeout(DEADLINE), Ok(true));
        assert_eq!(setup.on_disk(), ["203.0.3.0/24"]);
    }

    /// STATE-3: clients are edited the same way: what was changed and taken out is told, the rest is not.
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
        };
        let (told, outcome) = bounded(1);
        let saved: Saved = Saved::new(move |ok| told.send(ok).unwrap());
        setup
            .keeper
            .save(Save::Clients(vec![row(1), row(2), row(3)]), 0, Some(saved));
        assert_eq!(outcome.recv_timeout(DEADLINE), Ok(true));
        let file = setup.dir.path().join("clients.json");
        let mut read: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        read["clients"][1]["refused"] = json!(7);
        read["clients"].as_array_mut().unwrap().remove(0);
        fs::write(&file, read.to_string()).unwrap();
        let edit = setup.keeper.edits().recv_timeout(DEADLINE).unwrap();
        let EditChange::Clients { put, removed } = edit.change else {
            panic!("an edit of another file")
        };
        assert_eq!(removed, [Client::V4(1)]);
        assert_eq!(
            (put.len(), put[0].client, put[0].refused),
            (1, Client::V4(2), 7)
        );
        assert_eq!(setup.keeper.counts().files[1].edits_taken, 1);
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
            while let Ok(edit) = setup.keeper.edits().try_recv() {
                let EditChange::Bans { put, removed } = edit.change else {
                    panic!()
                };
                assert!(removed.is_empty());
                memory.extend(put.into_iter().map(Arc::new));
                applied = edit.number;
            }
            setup.save(&memory, applied);
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

    /// Full files, read and written: within the start's 500 ms.
    #[test]
    #[ignore = "a measurement: run with --release --nocapture"]
    fn time_of_full_files() {
        let dir = tempfile::tempdir().unwrap();
        let bans = (0..10_000u32)
            .map(|number| {
                let [_, _, third, fourth] = number.to_be_bytes();
                Arc::new(
                    serde_json::from_value(json!({"netblock": format!("10.{third}.{fourth}.0/24"), "client": format!("10.{third}.{fourth}.7"),
                        "ban_started": "2026-11-21T16:00:00.123Z", "ban_expires": "2026-11-21T17:00:00.123Z", "cause": "rate_limit",
                        "reason": "more than 1000 requests per minute",
                        "notes": {"request": {"method": "GET", "host": "example.org", "path": "/a", "user_agent": "Mozilla/5.0", "request_id": "0193"},
                            "netblock_requests": 1043, "limit": "minute", "limit_value": 1000, "limit_percent": 100,
                            "lookup": {"country": "DE", "asn": "AS64496", "as_name": "Example"}}}))
                    .unwrap(),
                )
            })
            .collect();
        let window = weir_shared::window::Window {
            start_ms: NOW,
            current: 123,
            previous: 456,
        };
        let rows: Vec<_> = (0..20_000)
            .map(|number| ClientRow {
                client: Client::V4(number),
                first_seen: Time(NOW + 1),
                last_seen: Time(NOW + 2),
                lookup: None,
                passed: 1,
                refused: 2,
                requests: [window; 3].into(),
                bytes: [window; 3].into(),
            })
            .collect();
        let (keeper, _) = Keeper::open(dir.path(), Clock::system()).unwrap();
        let start = Instant::now();
        keeper.save(Save::Bans(bans), 0, None);
        keeper.save(Save::Clients(rows), 0, None);
        keeper.stop();
        eprintln!("written, with fsync: {:?}", start.elapsed());
        let start = Instant::now();
        let (_keeper, read) = Keeper::open(dir.path(), Clock::system()).unwrap();
        eprintln!("read: {:?}", start.elapsed());
        assert_eq!((read.bans.len(), read.clients.len()), (10_000, 20_000));
        for name in ["bans.json", "clients.json"] {
            eprintln!(
                "{name}: {} bytes",
                fs::metadata(dir.path().join(name)).unwrap().len()
            );
        }
    }
}
