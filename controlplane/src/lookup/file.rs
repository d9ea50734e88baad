//! The database files in use (LOOKUP-5), read again 2 seconds after their last change.
//!
//! Records of both common layouts, and lists of files (country and AS apart), are understood
//! without a setting. Many addresses share a record, so the answer made from a record is kept: most
//! clients cost a walk of the search tree and no allocation. Files are never memory-mapped:
//! truncating a mapped file would end the process. A replacement that cannot be used changes
//! nothing; it is logged, counted and alerted once.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ahash::RandomState;
use arc_swap::ArcSwap;
use maxminddb::MaxMindDbError;
use weir_shared::clock::Clock;
use weir_shared::lookup::Lookup;

use super::answer;
use super::database::{Database, FileError, Record};
use crate::faults::{Faults, PartFault};
use crate::memory;

/// Groups of kept answers: with [`GROUP`] answers each, about as many as there are clients.
const GROUPS: usize = 1 << 12;
const GROUP: usize = 4;
/// Answers from longer lists of files are not kept: two files are all that anybody needs.
const MAX_KEPT_FILES: usize = 4;

/// The databases in use, and the counts of their replacements.
pub(super) struct Databases {
    paths: Vec<PathBuf>,
    current: ArcSwap<InUse>,
    /// When they were last read, in milliseconds since 1970.
    pub(super) read_ms: AtomicU64,
    /// Replacements that could not be used.
    pub(super) errors: AtomicU64,
    /// For tests: a lookup panics, as by a bug.
    #[cfg(test)]
    pub(super) panics: std::sync::atomic::AtomicBool,
}

/// The files, and the answers made from their records. Both are replaced together.
pub(super) struct InUse {
    databases: Vec<Database>,
    answers: Answers,
}

/// The offset of each file's record about an address, plus one; 0 if it has none.
type Records = [u32; MAX_KEPT_FILES];

/// Answers by the records they were made from. The hash selects a group, in which a new answer
/// replaces the oldest. So the memory is bounded without a list of last uses, and two workers
/// seldom meet at one lock.
struct Answers {
    groups: Vec<Mutex<Group>>,
    /// Keyed, so that no client can aim at one group.
    hasher: RandomState,
}

/// The latest first.
type Group = [Option<(Records, Arc<Lookup>)>; GROUP];

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
            #[cfg(test)]
            panics: Default::default(),
        })
    }

    /// The lookup of an address: the country of the first file that has one, and the AS of the
    /// first file that has one.
    ///
    /// # Errors
    /// A record cannot be read, although every record was read when the file was checked.
    pub(super) fn look_up(&self, address: IpAddr) -> Result<Arc<Lookup>, MaxMindDbError> {
        #[cfg(test)]
        assert!(!self.panics.load(Ordering::Relaxed), "a bug");
        self.current.load().look_up(address)
    }

    /// Reads the files as they are now.
    ///
    /// # Errors
    /// [`FileError`] names the first that cannot be used.
    pub(super) fn read(&self) -> Result<InUse, FileError> {
        InUse::read(&self.paths)
    }

    /// Replaces the files in use.
    pub(super) fn put(&self, new: InUse, clock: &Clock) {
        let held = self.current.load();
        let mut pairs = held.databases.iter().zip(&new.databases);
        if pairs.any(|(held, new)| new.build_epoch() < held.build_epoch()) {
            tracing::warn!("a lookup database was replaced by one that was built earlier");
        }
        let both = held.databases.iter().chain(&new.databases);
        memory::freed(both.map(Database::nodes).sum());
        self.current.store(Arc::new(new));
        // Relaxed: a number for the metrics, which orders nothing else.
        self.read_ms.store(clock.now().wall_ms, Ordering::Relaxed);
        tracing::info!("the lookup databases were read again");
    }

    /// Reads the files again. On a failure the files in use stay, and the fault is reported.
    pub(super) fn replace(&self, clock: &Clock, faults: &Faults) -> bool {
        match self.read() {
            Ok(new) => {
                self.put(new, clock);
                true
            }
            Err(error) => {
                self.errors.fetch_add(1, Ordering::Relaxed);
                faults.tell(PartFault::file(error.path(), &error));
                tracing::error!(
                    kind = "file_error",
                    "{error}; what was read before stays in use"
                );
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
    /// The kept answer of these records, or a new one. A failure is not kept.
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

#[cfg(test)]
mod tests;
