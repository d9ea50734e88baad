//! Database files (LOOKUP-5): read whole into memory, checked, read again 2 seconds after their last change.
//!
//! Records are read by what they hold, so both common layouts and lists of files (country and AS apart) need no setting.
//! Many addresses share a record: what was made of one is kept, so most clients cost a walk of the search tree and no
//! allocation. Never mapped: a file that is cut short under a map ends the process. A replacement that cannot be used changes
//! nothing; it is logged, counted and alerted once.

use std::collections::HashSet;
use std::fs::File;
use std::io::Read;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ahash::RandomState;
use arc_swap::ArcSwap;
use crossbeam_channel::{Receiver, Sender, bounded};
use maxminddb::{LookupResult, MaxMindDbError, Reader, WithinOptions};
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use weir_shared::clock::Clock;
use weir_shared::lookup::{AsNumber, Country, Lookup};

use super::answer;

/// A change is read once the file has lain still for this long (LOOKUP-5).
pub(super) const SETTLE: Duration = Duration::from_secs(2);
/// How often the files are looked at where no event tells of a change.
const POLL: Duration = Duration::from_secs(2);
/// Replacements that may wait to be told: one every few seconds at most.
const FAULTS: usize = 16;
/// How often while a change settles.
const TICK: Duration = Duration::from_millis(200);
/// Larger files are refused: they are held in memory. Complete country and AS databases have a few dozen MiB.
const MAX_BYTES: u64 = 1 << 30;
/// Answers that are kept, about as many as there are clients: so many groups of so many.
const GROUPS: usize = 1 << 12;
const GROUP: usize = 4;
/// Answers of longer lists of files are not kept: two are all that anybody needs.
const MAX_KEPT_FILES: usize = 4;

/// The databases in use, and what became of their replacements.
pub(super) struct Databases {
    paths: Vec<PathBuf>,
    current: ArcSwap<InUse>,
    /// When they were read last, milliseconds since 1970.
    pub(super) read_ms: AtomicU64,
    /// Replacements that could not be used.
    pub(super) errors: AtomicU64,
    /// The same, one by one, until they are told.
    faults: (Sender<FileFault>, Receiver<FileFault>),
    /// Looking up panics, as a bug would.
    #[cfg(test)]
    pub(super) panics: std::sync::atomic::AtomicBool,
}

/// A replacement that could not be used, for its alert.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct FileFault {
    /// Its path.
    pub(crate) file: String,
    /// The whole sentence.
    pub(crate) error: String,
}

/// The files as they were read together, and what was made of their records: both are replaced as one.
struct InUse {
    databases: Vec<Database>,
    answers: Answers,
}

/// Where each file's record about an address lies, plus one; 0 where it has none.
type Records = [u32; MAX_KEPT_FILES];

/// Answers by the records they were made of. The hash names the group, where a new one puts the oldest out: bounded
/// without a list of who was used last, and two workers seldom meet at one lock.
struct Answers {
    groups: Vec<Mutex<Group>>,
    /// Keyed: nobody outside can aim at one group.
    hasher: RandomState,
}

/// The latest first.
type Group = [Option<(Records, Arc<Lookup>)>; GROUP];

/// One file, in memory.
struct Database {
    reader: Reader<Vec<u8>>,
}

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The system refused it.
    #[error("the lookup database {path} cannot be read: {source}")]
    Unreadable {
        /// Which.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// It is larger than memory should hold.
    #[error("the lookup database {path} has {bytes} bytes: at most {MAX_BYTES} are allowed")]
    TooLarge {
        /// Which.
        path: String,
        /// Its size.
        bytes: u64,
    },
    /// It is no database, or a damaged one.
    #[error("the lookup database {path} is damaged or no MaxMind DB file: {fault}")]
    Damaged {
        /// Which.
        path: String,
        /// What is wrong.
        fault: String,
    },
    /// It is a database of other things.
    #[error(
        "the lookup database {path} holds neither countries nor AS numbers: a country or ASN database is needed"
    )]
    OfOtherThings {
        /// Which.
        path: String,
    },
}

impl FileError {
    fn path(&self) -> &str {
        match self {
            Self::Unreadable { path, .. }
            | Self::TooLarge { path, .. }
            | Self::Damaged { path, .. }
            | Self::OfOtherThings { path } => path,
        }
    }
}

impl Databases {
    /// Reads and checks every file.
    ///
    /// # Errors
    /// [`FileError`] names the first that cannot be used.
    pub(super) fn open(paths: &[PathBuf], clock: &Clock) -> Result<Self, FileError> {
        let databases = InUse::read(paths)?;
        Ok(Self {
            paths: paths.to_vec(),
            current: ArcSwap::from_pointee(databases),
            read_ms: AtomicU64::new(clock.now().wall_ms),
            errors: AtomicU64::new(0),
            faults: bounded(FAULTS),
            #[cfg(test)]
            panics: Default::default(),
        })
    }

    /// Replacements that could not be used since this was last asked.
    pub(super) fn faults(&self) -> impl Iterator<Item = FileFault> {
        self.faults.1.try_iter()
    }

    /// What the files know of an address; of several files the first that knows a country, and the first that knows an
    /// AS.
    ///
    /// # Errors
    /// A record that cannot be read; every record was read when the file was checked.
    pub(super) fn look_up(&self, address: IpAddr) -> Result<Arc<Lookup>, MaxMindDbError> {
        #[cfg(test)]
        assert!(!self.panics.load(Ordering::Relaxed), "a bug");
        self.current.load().look_up(address)
    }

    /// Reads the files anew. A failure leaves what is in use.
    fn replace(&self, clock: &Clock) -> bool {
        match InUse::read(&self.paths) {
            Ok(new) => {
                let is_older = self
                    .current
                    .load()
                    .databases
                    .iter()
                    .zip(&new.databases)
                    .any(|(held, new)| new.build_epoch() < held.build_epoch());
                if is_older {
                    tracing::warn!("a lookup database was replaced by one that was built earlier");
                }
                self.current.store(Arc::new(new));
                // Relaxed: a number for the metrics, nothing hangs on it.
                self.read_ms.store(clock.now().wall_ms, Ordering::Relaxed);
                tracing::info!("the lookup databases were read again");
                true
            }
            Err(error) => {
                self.errors.fetch_add(1, Ordering::Relaxed);
                // Full: so many wait to be told already.
                let _ = self.faults.0.try_send(FileFault {
                    file: error.path().to_owned(),
                    error: error.to_string(),
                });
                tracing::error!(
                    kind = "file_error",
                    "{error}; what was read before stays in use"
                );
                false
            }
        }
    }

    /// Watches the files on a thread of its own, for as long as the process lives. `replaced` is called after each
    /// successful reading.
    #[expect(
        clippy::disallowed_methods,
        reason = "a thread of its own, at the edge"
    )]
    pub(super) fn watch(
        self: &Arc<Self>,
        clock: Clock,
        replaced: impl Fn() + Send + 'static,
    ) -> std::io::Result<()> {
        let databases = Arc::clone(self);
        // Before the thread starts: a change right after the start must not be missed.
        let mut watching = Watching::new(stamps(&self.paths));
        let (wake, woken) = bounded(1);
        let watcher = watcher(&self.paths, wake);
        weir_shared::threads::spawn("weir-lookup-file", move || {
            let _watcher = watcher;
            loop {
                wait(&woken, watching.pause());
                if watching.is_due(stamps(&databases.paths), Instant::now())
                    && databases.replace(&clock)
                {
                    replaced();
                }
            }
        })
        .map(drop)
    }
}

fn wait(woken: &Receiver<()>, pause: Duration) {
    if let Err(crossbeam_channel::RecvTimeoutError::Disconnected) = woken.recv_timeout(pause) {
        // The watcher is gone with its thread; the poll goes on.
        std::thread::sleep(pause);
    }
}

/// Watches the directories, because files are replaced by rename.
fn watcher(paths: &[PathBuf], wake: crossbeam_channel::Sender<()>) -> Option<RecommendedWatcher> {
    let handler = move |event: notify::Result<notify::Event>| {
        // An error is an overflow: something happened, nobody knows what. Our own reads are no news.
        if !event.is_ok_and(|event| matches!(event.kind, EventKind::Access(_))) {
            // Full means that the thread is to wake already.
            let _ = wake.try_send(());
        }
    };
    let directories: HashSet<&Path> = paths
        .iter()
        .map(|path| match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        })
        .collect();
    let watcher = notify::recommended_watcher(handler).and_then(|mut watcher| {
        for directory in directories {
            watcher.watch(directory, RecursiveMode::NonRecursive)?;
        }
        Ok(watcher)
    });
    watcher
        .inspect_err(|error| {
            tracing::warn!(
                "changes of the lookup databases are looked for every {} seconds only: {error}",
                POLL.as_secs()
            );
        })
        .ok()
}

/// What tells one state of a file from another; none while there is no file.
type Stamp = Option<(u64, u64, u64, i64, i64, i64, i64)>;

fn stamps(paths: &[PathBuf]) -> Vec<Stamp> {
    let stamp = |path: &PathBuf| {
        let meta = std::fs::metadata(path).ok()?;
        Some((
            meta.dev(),
            meta.ino(),
            meta.size(),
            meta.mtime(),
            meta.mtime_nsec(),
            meta.ctime(),
            meta.ctime_nsec(),
        ))
    };
    paths.iter().map(stamp).collect()
}

/// When a change is due to be read: pure, but for the instants it is given.
struct Watching {
    /// The state that was read, or tried, last.
    known: Vec<Stamp>,
    /// The latest other state, and since when.
    changed: Option<(Vec<Stamp>, Instant)>,
}

impl Watching {
    fn new(known: Vec<Stamp>) -> Self {
        Self {
            known,
            changed: None,
        }
    }

    fn pause(&self) -> Duration {
        if self.changed.is_some() { TICK } else { POLL }
    }

    /// Whether the files changed and have lain still since for [`SETTLE`]. A state is due once, good or bad.
    fn is_due(&mut self, now_stamps: Vec<Stamp>, now: Instant) -> bool {
        if now_stamps == self.known {
            self.changed = None;
            return false;
        }
        match &self.changed {
            Some((stamps, since)) if *stamps == now_stamps => {
                let due = now.saturating_duration_since(*since) >= SETTLE;
                if due {
                    self.known = now_stamps;
                    self.changed = None;
                }
                due
            }
            _ => {
                self.changed = Some((now_stamps, now));
                false
            }
        }
    }
}

impl InUse {
    fn read(paths: &[PathBuf]) -> Result<Self, FileError> {
        let databases = paths.iter().map(|path| Database::read(path));
        Ok(Self {
            databases: databases.collect::<Result<_, _>>()?,
            answers: Answers::default(),
        })
    }

    fn look_up(&self, address: IpAddr) -> Result<Arc<Lookup>, MaxMindDbError> {
        let Some(records) = self.records(address)? else {
            return self.read_out(address);
        };
        self.answers.of(records, || self.read_out(address))
    }

    /// The records about an address; none if the list of files is too long.
    fn records(&self, address: IpAddr) -> Result<Option<Records>, MaxMindDbError> {
        if self.databases.len() > MAX_KEPT_FILES {
            return Ok(None);
        }
        let mut records = Records::default();
        for (record, database) in records.iter_mut().zip(&self.databases) {
            let found = database.find(address)?;
            let Some(offset) = found.and_then(|found| found.offset()) else {
                continue;
            };
            // Offsets lie below MAX_BYTES.
            match u32::try_from(offset + 1) {
                Ok(offset) => *record = offset,
                Err(_) => return Ok(None),
            }
        }
        Ok(Some(records))
    }

    fn read_out(&self, address: IpAddr) -> Result<Arc<Lookup>, MaxMindDbError> {
        let mut found = Record::default();
        for database in &self.databases {
            if let Some(record) = database.record(address)? {
                found.country = found.country.or(record.country);
                if found.number.is_none() {
                    (found.number, found.as_name) = (record.number, record.as_name);
                }
            }
        }
        Ok(Arc::new(answer::lookup(
            found.country,
            found.number,
            found.as_name,
        )))
    }
}

impl Default for Answers {
    fn default() -> Self {
        Self {
            groups: std::iter::repeat_with(Mutex::default)
                .take(GROUPS)
                .collect(),
            hasher: RandomState::new(),
        }
    }
}

impl Answers {
    /// The answer that was made of these records, or a new one. A failure is not kept.
    fn of<E>(
        &self,
        records: Records,
        make: impl FnOnce() -> Result<Arc<Lookup>, E>,
    ) -> Result<Arc<Lookup>, E> {
        // The remainder fits: GROUPS does.
        let group = self.hasher.hash_one(records) % GROUPS as u64;
        let Some(group) = self.groups.get(usize::try_from(group).unwrap_or(0)) else {
            return make();
        };
        // A panic under this lock leaves each answer whole.
        let mut group = group.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, answer)) = group.iter().flatten().find(|(held, _)| *held == records) {
            return Ok(Arc::clone(answer));
        }
        let answer = make()?;
        group.rotate_right(1);
        if let Some(first) = group.first_mut() {
            *first = Some((records, Arc::clone(&answer)));
        }
        Ok(answer)
    }
}

impl Database {
    fn read(path: &Path) -> Result<Self, FileError> {
        let shown = || path.display().to_string();
        let unreadable = |source| FileError::Unreadable {
            path: shown(),
            source,
        };
        let file = File::open(path).map_err(unreadable)?;
        let meta = file.metadata().map_err(unreadable)?;
        if meta.is_dir() {
            return Err(unreadable(std::io::ErrorKind::IsADirectory.into()));
        }
        let bytes = meta.len();
        if bytes > MAX_BYTES {
            return Err(FileError::TooLarge {
                path: shown(),
                bytes,
            });
        }
        let mut content = Vec::with_capacity(usize::try_from(bytes).unwrap_or(0));
        // A file that grows while it is read is no longer the one that was asked for; the bound holds all the same.
        file.take(MAX_BYTES)
            .read_to_end(&mut content)
            .map_err(unreadable)?;
        // The file is not ours and neither is its parser: a panic is one more fault of the file.
        let checked = catch_unwind(|| Self::check(content));
        let checked = checked.unwrap_or_else(|_| Err(Some("reading it panicked".to_owned())));
        checked.map_err(|fault| match fault {
            Some(fault) => FileError::Damaged {
                path: shown(),
                fault,
            },
            None => FileError::OfOtherThings { path: shown() },
        })
    }

    /// Opens a database and reads every record that its tree reaches, as lookups will: what is damaged shows now. The
    /// library's own check is stricter than lookups need and would refuse sound databases for their metadata.
    ///
    /// The fault is none where the database is sound and holds nothing that is looked for.
    fn check(content: Vec<u8>) -> Result<Self, Option<String>> {
        let told = |error: MaxMindDbError| Some(error.to_string());
        let reader = Reader::from_source(content).map_err(told)?;
        let database = Self { reader };
        // A sound tree has at most two leaves a node; a damaged one may lead in circles.
        let most = u64::from(database.reader.metadata().node_count).saturating_mul(3);
        let (mut visited, mut seen, mut useful) = (0u64, HashSet::new(), false);
        let every = WithinOptions::default().include_networks_without_data();
        for network in database.reader.networks(every).map_err(told)? {
            let network = network.map_err(told)?;
            visited += 1;
            if visited > most {
                return Err(Some("its search tree leads in circles".to_owned()));
            }
            if let Some(offset) = network.offset()
                && seen.insert(offset)
            {
                let record = network.decode::<Record>().map_err(told)?;
                useful |= record
                    .is_some_and(|record| record.country.is_some() || record.number.is_some());
            }
        }
        if useful { Ok(database) } else { Err(None) }
    }

    fn find(&self, address: IpAddr) -> Result<Option<LookupResult<'_, Vec<u8>>>, MaxMindDbError> {
        // A database of IPv4 networks alone says nothing of IPv6 addresses, which is no fault.
        if address.is_ipv6() && self.reader.metadata().ip_version == 4 {
            return Ok(None);
        }
        self.reader.lookup(address).map(Some)
    }

    fn record(&self, address: IpAddr) -> Result<Option<Record<'_>>, MaxMindDbError> {
        match self.find(address)? {
            Some(found) => found.decode(),
            None => Ok(None),
        }
    }

    fn build_epoch(&self) -> u64 {
        self.reader.metadata().build_epoch
    }
}

/// A door for the fuzz targets: checks a database and looks addresses up in it.
#[cfg(fuzzing)]
pub fn read_database(content: Vec<u8>, addresses: &[IpAddr]) -> Result<Vec<Lookup>, String> {
    let database =
        Database::check(content).map_err(|fault| fault.unwrap_or("of other things".to_owned()))?;
    let answer = |address: &IpAddr| {
        let record = database.record(*address).map_err(|e| e.to_string())?;
        let Record {
            country,
            number,
            as_name,
        } = record.unwrap_or_default();
        Ok(answer::lookup(country, number, as_name.as_deref()))
    };
    addresses.iter().map(answer).collect()
}

/// What is read of a record, in either layout.
#[derive(Debug, Default, PartialEq)]
struct Record<'a> {
    country: Option<Country>,
    number: Option<AsNumber>,
    as_name: Option<&'a str>,
}

impl<'de: 'a, 'a> Deserialize<'de> for Record<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        /// The members of both layouts: `country` is a map in one and a name in the other.
        #[derive(Deserialize)]
        struct Members<'a> {
            #[serde(default, borrow)]
            country: Value<'a>,
            #[serde(default, borrow)]
            country_code: Value<'a>,
            #[serde(default, borrow)]
            autonomous_system_number: Value<'a>,
            #[serde(default, borrow)]
            autonomous_system_organization: Value<'a>,
            #[serde(default, borrow)]
            asn: Value<'a>,
            #[serde(default, borrow)]
            as_name: Value<'a>,
        }

        let members = Members::deserialize(deserializer)?;
        let code = |value: &Value<'_>| value.text()?.parse().ok();
        let number = members
            .autonomous_system_number
            .number()
            .or_else(|| members.asn.number());
        let name = members
            .autonomous_system_organization
            .text()
            .or(members.as_name.text());
        Ok(Self {
            country: code(&members.country_code).or_else(|| code(&members.country)),
            number,
            as_name: name,
        })
    }
}

/// A member of a record: a text, a number, the `iso_code` of a map, or nothing of use.
#[derive(Default)]
enum Value<'a> {
    #[default]
    Nothing,
    Text(&'a str),
    Number(u64),
}

impl<'a> Value<'a> {
    fn text(&self) -> Option<&'a str> {
        match self {
            Self::Text(text) => Some(*text),
            Self::Number(_) | Self::Nothing => None,
        }
    }

    fn number(&self) -> Option<AsNumber> {
        match self {
            Self::Text(text) => AsNumber::parse_named(text).ok()?.0,
            Self::Number(number) => AsNumber::new(u32::try_from(*number).ok()?),
            Self::Nothing => None,
        }
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Value<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;

        impl<'de> Visitor<'de> for Any {
            type Value = Value<'de>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a value")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Value<'de>, E> {
                Ok(Value::Text(text))
            }

            fn visit_str<E>(self, _: &str) -> Result<Value<'de>, E> {
                Ok(Value::Nothing)
            }

            fn visit_u64<E>(self, number: u64) -> Result<Value<'de>, E> {
                Ok(Value::Number(number))
            }

            fn visit_i64<E>(self, number: i64) -> Result<Value<'de>, E> {
                Ok(u64::try_from(number).map_or(Value::Nothing, Value::Number))
            }

            fn visit_u128<E>(self, _: u128) -> Result<Value<'de>, E> {
                Ok(Value::Nothing)
            }

            fn visit_f64<E>(self, _: f64) -> Result<Value<'de>, E> {
                Ok(Value::Nothing)
            }

            fn visit_bool<E>(self, _: bool) -> Result<Value<'de>, E> {
                Ok(Value::Nothing)
            }

            fn visit_bytes<E>(self, _: &[u8]) -> Result<Value<'de>, E> {
                Ok(Value::Nothing)
            }

            fn visit_seq<A: serde::de::SeqAccess<'de>>(
                self,
                mut list: A,
            ) -> Result<Value<'de>, A::Error> {
                while list.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Value::Nothing)
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value<'de>, A::Error> {
                let mut code = Value::Nothing;
                while let Some(key) = map.next_key::<&str>()? {
                    if key == "iso_code" {
                        code = map.next_value()?;
                    } else {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                Ok(code)
            }
        }

        deserializer.deserialize_any(Any)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn fixture(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../tests/fixtures")
            .join(name)
    }

    fn open(names: &[&str]) -> Databases {
        let paths: Vec<_> = names.iter().map(|name| fixture(name)).collect();
        Databases::open(&paths, &Clock::manual(7).0).unwrap()
    }

    fn found(databases: &Databases, address: &str) -> [Option<String>; 3] {
        let lookup = databases.look_up(address.parse().unwrap()).unwrap();
        [&lookup.country, &lookup.asn, &lookup.as_name].map(Clone::clone)
    }

    fn known(country: &str, asn: &str, name: &str) -> [Option<String>; 3] {
        [country, asn, name].map(|text| (!text.is_empty()).then(|| text.to_owned()))
    }

    /// LOOKUP-5, LOOKUP-4: country and AS in two files, IPv4 in the IPv6 tree, IPv6, a record without a country, 64512,
    /// and addresses that no file knows; in either order of the files.
    #[test]
    fn the_layout_of_two_files_is_read() {
        for names in [["country.mmdb", "asn.mmdb"], ["asn.mmdb", "country.mmdb"]] {
            let databases = open(&names);
            for (address, expected) in [
                ("81.2.69.1", known("GB", "AS20712", "Andrews & Arnold Ltd")),
                (
                    "81.2.69.255",
                    known("GB", "AS20712", "Andrews & Arnold Ltd"),
                ),
                ("81.2.70.0", known("", "", "")),
                ("89.160.20.128", known("SE", "AS29518", "Bredband2 AB")),
                ("89.160.21.1", known("", "AS29518", "Bredband2 AB")),
                ("67.43.156.1", known("", "AS35908", "VPLS")),
                ("2a02:d0c0:1:2::", known("DE", "", "")),
                ("2a02:d0c1::", known("", "", "")),
            ] {
                assert_eq!(found(&databases, address), expected, "{address}");
            }
        }
    }

    /// LOOKUP-5: the layout of one file with texts, and a file of IPv4 alone.
    #[test]
    fn the_layout_of_one_file_is_read() {
        let databases = open(&["lite.mmdb"]);
        assert_eq!(
            found(&databases, "81.2.69.7"),
            known("GB", "AS20712", "Andrews & Arnold Ltd")
        );
        assert_eq!(
            found(&databases, "2a02:d0c0::"),
            known("DE", "AS64496", "Example")
        );
        let v4 = open(&["country-v4.mmdb"]);
        assert_eq!(found(&v4, "81.2.69.7"), known("GB", "", ""));
        assert_eq!(found(&v4, "2a02:d0c0::"), known("", "", ""));
    }

    /// LOOKUP-5: addresses of one record share its answer; another record of either file makes another. With more files
    /// than answers are kept for, the answers are the same.
    #[test]
    fn addresses_of_one_record_share_an_answer() {
        let databases = open(&["country.mmdb", "asn.mmdb"]);
        let found = |text: &str| databases.look_up(text.parse().unwrap()).unwrap();
        assert!(Arc::ptr_eq(&found("81.2.69.1"), &found("81.2.69.255")));
        assert!(Arc::ptr_eq(&found("81.2.70.0"), &found("9.9.9.9")));
        assert_ne!(found("89.160.20.1"), found("89.160.21.1"));

        let many = open(&[
            "country.mmdb",
            "asn.mmdb",
            "asn.mmdb",
            "asn.mmdb",
            "asn.mmdb",
        ]);
        for text in ["81.2.69.1", "89.160.21.1", "2a02:d0c0::", "9.9.9.9"] {
            assert_eq!(many.look_up(text.parse().unwrap()).unwrap(), found(text));
        }
    }

    /// LOOKUP-5: whatever was asked before, the answer is that of the records asked for, and no more are kept than there
    /// is room for; a failure is not kept.
    #[test]
    fn kept_answers_are_bounded_and_never_mixed_up() {
        let (answers, mut made) = (Answers::default(), 0);
        let (most, few) = (4 * GROUPS * GROUP, GROUP);
        for number in (0..most).chain((0..few).cycle().take(1000)) {
            let records = [number as u32, 0, 7, 0];
            let lookup = || {
                made += 1;
                let as_name = Some(number.to_string());
                Ok::<_, ()>(Arc::new(Lookup {
                    as_name,
                    ..Lookup::default()
                }))
            };
            let answer = answers.of(records, lookup).unwrap();
            assert_eq!(answer.as_name, Some(number.to_string()));
        }
        assert!(made <= most + few, "{made}");
        let kept = answers
            .groups
            .iter()
            .map(|group| group.lock().unwrap().iter().flatten().count());
        assert!(kept.sum::<usize>() <= GROUPS * GROUP);

        let never = [u32::MAX; MAX_KEPT_FILES];
        assert_eq!(answers.of(never, || Err("no")), Err("no"));
        assert!(answers.of(never, || Ok::<_, ()>(Arc::default())).is_ok());
    }

    /// LOOKUP-5: what cannot be used says so in a sentence, and why.
    #[test]
    fn what_cannot_be_used_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let fault = |path: &Path| {
            let error = Databases::open(&[path.to_owned()], &Clock::manual(0).0).err();
            error.unwrap().to_string()
        };
        let missing = dir.path().join("none.mmdb");
        assert_eq!(
            fault(&missing),
            format!(
                "the lookup database {} cannot be read: No such file or directory (os error 2)",
                missing.display()
            )
        );
        assert!(fault(dir.path()).contains("cannot be read"));
        assert!(fault(&fixture("other.mmdb")).contains("holds neither countries nor AS numbers"));
        assert!(fault(&fixture("make_mmdb.py")).contains("is damaged or no MaxMind DB file"));
        let sparse = dir.path().join("sparse.mmdb");
        File::create(&sparse).unwrap().set_len(2 << 30).unwrap();
        assert!(fault(&sparse).contains("has 2147483648 bytes"));
    }

    /// LOOKUP-5: a file that is cut anywhere is not taken, and one that is cut in place takes nothing down.
    #[test]
    fn a_truncated_file_is_never_taken() {
        for name in ["country.mmdb", "lite.mmdb"] {
            let whole = std::fs::read(fixture(name)).unwrap();
            assert!(Database::check(whole.clone()).is_ok());
            for length in 0..whole.len() {
                assert!(
                    Database::check(whole[..length].to_vec()).is_err(),
                    "{name} cut at {length}"
                );
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(600))]

        /// A damaged file is refused or read; it is never a panic, neither at the check nor at a lookup after it.
        #[test]
        fn damage_never_panics(name in prop::sample::select(vec!["country.mmdb", "lite.mmdb", "asn.mmdb"]), hits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8)) {
            let mut bytes = std::fs::read(fixture(name)).unwrap();
            for (at, byte) in hits {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            if let Ok(database) = Database::check(bytes) {
                for address in ["81.2.69.1", "89.160.20.1", "2a02:d0c0::", "8.8.8.8"] {
                    let _ = database.record(address.parse().unwrap());
                }
            }
        }
    }

    /// LOOKUP-5: a change is due 2 seconds after the last of it, once, whether it was good or bad; a change that is
    /// taken back is none.
    #[test]
    fn a_change_is_due_after_two_still_seconds() {
        let (one, two, three) = (
            vec![Some((1, 1, 1, 1, 1, 1, 1))],
            vec![Some((1, 1, 2, 1, 1, 1, 1))],
            vec![None],
        );
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut watching = Watching::new(one.clone());
        assert!(!watching.is_due(one.clone(), at(0)));
        assert_eq!(watching.pause(), POLL);
        assert!(!watching.is_due(two.clone(), at(100)));
        assert_eq!(watching.pause(), TICK);
        assert!(!watching.is_due(three.clone(), at(1500)));
        assert!(!watching.is_due(two.clone(), at(2000)));
        assert!(!watching.is_due(two.clone(), at(3999)));
        assert!(watching.is_due(two.clone(), at(4000)));
        assert!(!watching.is_due(two.clone(), at(9000)));
        assert!(!watching.is_due(three.clone(), at(10_000)));
        assert!(!watching.is_due(two, at(11_000)));
        assert!(!watching.is_due(three.clone(), at(12_000)));
        assert!(watching.is_due(three, at(14_000)));
    }

    /// LOOKUP-5: a bad replacement is counted and changes nothing; a good one is taken, an earlier build too.
    #[test]
    fn a_bad_replacement_leaves_what_is_in_use() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("db.mmdb");
        std::fs::copy(fixture("lite.mmdb"), &path).unwrap();
        let (clock, manual) = Clock::manual(1000);
        let databases = Databases::open(std::slice::from_ref(&path), &clock).unwrap();
        manual.advance_ms(500);
        let numbers = || {
            let read_ms = databases.read_ms.load(Ordering::Relaxed);
            (read_ms, databases.errors.load(Ordering::Relaxed))
        };
        std::fs::write(&path, b"garbage").unwrap();
        assert!(!databases.replace(&clock));
        std::fs::remove_file(&path).unwrap();
        assert!(!databases.replace(&clock));
        assert_eq!(numbers(), (1000, 2));
        assert_eq!(found(&databases, "81.2.69.7")[0].as_deref(), Some("GB"));
        for (name, country) in [("lite-later.mmdb", "FR"), ("lite-earlier.mmdb", "IT")] {
            std::fs::copy(fixture(name), &path).unwrap();
            assert!(databases.replace(&clock));
            assert_eq!(found(&databases, "81.2.69.7")[0].as_deref(), Some(country));
        }
        assert_eq!(numbers(), (1500, 2));
    }
}
