//! The system's events about directories, by the library `notify`. Directories are watched rather
//! than files, because editors replace files by rename. On network file systems, which give no
//! events, a poll finds changes.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use notify::event::{AccessKind, AccessMode, ModifyKind};
use notify::{ErrorKind, Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};

/// How often files are checked without any event.
pub(crate) const POLL: Duration = Duration::from_secs(2);

/// Whether an event can mean that a file was saved, removed or replaced. Single writes do not
/// count: a file is checked once its writer has closed it, and the poll finds one that stays open.
/// Reads do not count either.
const fn is_a_save(kind: EventKind) -> bool {
    match kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write)) => true,
        EventKind::Access(_) | EventKind::Modify(ModifyKind::Data(_)) => false,
        _ => true,
    }
}

/// The directories that are watched.
pub(super) struct Events {
    /// None if the system refused; then only the poll works.
    watcher: Option<RecommendedWatcher>,
    happened: Arc<Mutex<Happened>>,
    watched: HashSet<PathBuf>,
    /// Directories that cannot be watched, and were logged.
    told: HashSet<PathBuf>,
}

/// The directories with events since the last call.
#[derive(Default)]
pub(super) struct Happened {
    /// Directories in which, or to which, something happened.
    places: HashSet<PathBuf>,
    /// Too many events came: any directory may have changed.
    anywhere: bool,
}

/// The most directories that are remembered; beyond it any may have changed.
const MAX_PLACES: usize = 64;

impl Happened {
    fn note(&mut self, event: notify::Result<Event>) {
        let event = match event {
            Ok(event) if !event.need_rescan() => event,
            Ok(_) | Err(_) => {
                self.anywhere = true;
                return;
            }
        };
        for path in event.paths {
            let directory = path.parent().map(Path::to_owned);
            self.places.extend(directory);
            self.places.insert(path);
        }
        if self.places.len() > MAX_PLACES {
            *self = Self {
                places: HashSet::new(),
                anywhere: true,
            };
        }
    }

    /// Whether something may have happened in this directory.
    pub(super) fn is_in(&self, directory: &Path) -> bool {
        self.anywhere || self.places.contains(directory)
    }
}

impl Events {
    /// Watches no directory yet. Calls `wake`, on the library's thread, at each event.
    pub(super) fn new(wake: impl Fn() + Send + 'static) -> Self {
        let happened: Arc<Mutex<Happened>> = Arc::default();
        let noted = Arc::clone(&happened);
        let handler = move |event: notify::Result<Event>| {
            if event.as_ref().is_ok_and(|event| !is_a_save(event.kind)) {
                return;
            }
            lock(&noted).note(event);
            wake();
        };
        let watcher = notify::recommended_watcher(handler).inspect_err(|error| {
            tracing::warn!(
                "changes of files are looked for every {} seconds only: {error}",
                POLL.as_secs()
            );
        });
        Self {
            watcher: watcher.ok(),
            happened,
            watched: HashSet::new(),
            told: HashSet::new(),
        }
    }

    /// Watches exactly these directories. A directory that was created again is watched again.
    pub(super) fn watch(&mut self, directories: HashSet<PathBuf>) {
        let Some(watcher) = &mut self.watcher else {
            return;
        };
        for gone in self.watched.difference(&directories) {
            // The watch may be gone with its directory.
            let _ = watcher.unwatch(gone);
        }
        self.watched.clear();
        for directory in directories {
            // This keeps an existing watch.
            match watcher.watch(&directory, RecursiveMode::NonRecursive) {
                Ok(()) => {
                    self.told.remove(&directory);
                    self.watched.insert(directory);
                }
                Err(error) => {
                    // A missing directory may be created later.
                    if !is_missing(&error) && self.told.insert(directory.clone()) {
                        tracing::warn!(
                            "changes in {} are looked for every {} seconds only: {error}",
                            directory.display(),
                            POLL.as_secs()
                        );
                    }
                }
            }
        }
        self.told
            .retain(|directory| !self.watched.contains(directory));
    }

    /// Takes the events since the last call.
    pub(super) fn take(&self) -> Happened {
        std::mem::take(&mut *lock(&self.happened))
    }
}

fn is_missing(error: &notify::Error) -> bool {
    match &error.kind {
        ErrorKind::PathNotFound => true,
        ErrorKind::Io(error) => error.kind() == io::ErrorKind::NotFound,
        _ => false,
    }
}

fn lock(happened: &Mutex<Happened>) -> std::sync::MutexGuard<'_, Happened> {
    // It is whole whatever happened to who held it.
    happened.lock().unwrap_or_else(PoisonError::into_inner)
}
