//! What the system tells of directories, by the library `notify`. Directories are watched, not
//! files: editors replace files by rename. Where no events come, as on network file systems, a poll
//! finds the change.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use notify::event::{AccessKind, AccessMode, ModifyKind};
use notify::{ErrorKind, Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};

/// How often files are looked at without any event.
pub(crate) const POLL: Duration = Duration::from_secs(2);

/// Whether an event can mean that a file was saved, removed or replaced. Not each write: a file is
/// looked at once its writer has closed it, and one that stays open is found by the poll. Nor our
/// own reads.
const fn is_a_save(kind: EventKind) -> bool {
    match kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write)) => true,
        EventKind::Access(_) | EventKind::Modify(ModifyKind::Data(_)) => false,
        _ => true,
    }
}

/// The directories that are watched.
pub(super) struct Events {
    /// None where the system refused; the poll goes on.
    watcher: Option<RecommendedWatcher>,
    happened: Arc<Mutex<Happened>>,
    watched: HashSet<PathBuf>,
    /// Directories that cannot be watched, which was said.
    told: HashSet<PathBuf>,
}

/// Where something happened since this was last asked.
#[derive(Default)]
pub(super) struct Happened {
    /// In these directories, or to them.
    places: HashSet<PathBuf>,
    /// Somewhere: there were too many events.
    anywhere: bool,
}

/// Places that are told apart at most: more are everywhere.
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

    /// Whether it happened in this directory.
    pub(super) fn is_in(&self, directory: &Path) -> bool {
        self.anywhere || self.places.contains(directory)
    }
}

impl Events {
    /// Nothing is watched yet. `wake` is called, on the library's thread, where something happens.
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

    /// Watches these directories and no others. One that was made anew is watched anew.
    pub(super) fn watch(&mut self, directories: HashSet<PathBuf>) {
        let Some(watcher) = &mut self.watcher else {
            return;
        };
        for gone in self.watched.difference(&directories) {
            // Gone with its directory, perhaps.
            let _ = watcher.unwatch(gone);
        }
        self.watched.clear();
        for directory in directories {
            // The same watch where there is one already.
            match watcher.watch(&directory, RecursiveMode::NonRecursive) {
                Ok(()) => {
                    self.told.remove(&directory);
                    self.watched.insert(directory);
                }
                Err(error) => {
                    // What is not there may come.
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

    /// Takes what happened.
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
