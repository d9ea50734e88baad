//! The thread that watches files, `weir-files`. It watches directories and reads changed files:
//! rules and lists, certificates, databases, the refusal page. It wakes the thread of the state
//! files, which reads those itself.
//!
//! The thread may hang with a mount. Only operations that need a file wait for it, and not without
//! a bound.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use weir_shared::clock::Clock;

use crate::faults::Faults;

mod events;
pub(crate) mod file;
pub(crate) mod settling;

use events::Events;
pub(crate) use events::POLL;

/// Events within this time count as one, because a save causes several.
const TOGETHER: Duration = Duration::from_millis(5);

/// Files to watch.
pub(crate) trait Watched: Send {
    /// The current files. Their directories are watched.
    fn files(&self) -> Vec<PathBuf>;

    /// Checks the files, and reads settled changes. Returns when to look again at the latest.
    fn look(&mut self, now: Instant, now_ms: u64) -> Duration;

    /// Called at an event in one of their directories. A look follows in any case.
    fn event(&mut self) {}
}

/// The owner of the files.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Subject {
    State,
    Rules,
    Certificates,
    Page,
    Databases,
}

/// The handle of the thread, for those who have files watched and report their faults. The default
/// is a handle without a thread.
#[derive(Clone, Default)]
pub struct FileThread {
    shared: Option<Arc<Shared>>,
    faults: Faults,
}

struct Shared {
    /// New watches by owner, each replacing the previous one; none ends a watch.
    orders: Mutex<BTreeMap<Subject, Option<Box<dyn Watched>>>>,
    /// An event descriptor that wakes the thread.
    wake: OwnedFd,
}

impl FileThread {
    /// Starts the thread, which runs as long as the process.
    ///
    /// # Errors
    /// The system refused it.
    pub fn start(clock: Clock) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            orders: Mutex::default(),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        });
        let looking = {
            let shared = Arc::clone(&shared);
            move || {
                let woken = Arc::clone(&shared);
                let looking = Looking {
                    shared,
                    watched: BTreeMap::new(),
                    events: Events::new(move || woken.wake()),
                    clock,
                };
                looking.run();
            }
        };
        weir_shared::threads::spawn("weir-files", looking)?;
        Ok(Self {
            shared: Some(shared),
            faults: Faults::default(),
        })
    }

    /// The inbox of file faults.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// Watches these files from now on.
    pub(crate) fn watch(&self, subject: Subject, watched: impl Watched + 'static) {
        self.order(subject, Some(Box::new(watched)));
    }

    /// Stops watching the files of this owner.
    pub(crate) fn forget(&self, subject: Subject) {
        self.order(subject, None);
    }

    fn order(&self, subject: Subject, watched: Option<Box<dyn Watched>>) {
        if let Some(shared) = &self.shared {
            shared.orders().insert(subject, watched);
            self.wake();
        }
    }

    /// Makes the thread look now.
    pub(crate) fn wake(&self) {
        if let Some(shared) = &self.shared {
            shared.wake();
        }
    }
}

impl Shared {
    fn wake(&self) {
        // The counter cannot overflow: the thread takes all of it at once.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    fn orders(&self) -> MutexGuard<'_, BTreeMap<Subject, Option<Box<dyn Watched>>>> {
        // It is whole whatever happened to who held it.
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The state of the thread.
struct Looking {
    shared: Arc<Shared>,
    watched: BTreeMap<Subject, Box<dyn Watched>>,
    events: Events,
    clock: Clock,
}

impl Looking {
    fn run(mut self) {
        loop {
            self.take_orders();
            // Before the look, so that a change after it causes an event.
            let files = self.watched.values().flat_map(|watched| watched.files());
            let files: Vec<PathBuf> = files.collect();
            let directories = files.iter().flat_map(|file| directories(file));
            self.events.watch(directories.collect());
            let pause = self.look();
            self.wait(pause);
            self.tell_events();
        }
    }

    fn take_orders(&mut self) {
        for (subject, watched) in std::mem::take(&mut *self.shared.orders()) {
            match watched {
                Some(watched) => drop(self.watched.insert(subject, watched)),
                None => drop(self.watched.remove(&subject)),
            }
        }
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "the edge: what is done with the time is given it"
    )]
    fn look(&mut self) -> Duration {
        let mut pause = POLL;
        for watched in self.watched.values_mut() {
            let next = watched.look(Instant::now(), self.clock.now().wall_ms);
            pause = pause.min(next);
        }
        pause
    }

    /// Waits for an event, an order, or the end of the pause.
    fn wait(&self, pause: Duration) {
        let mut waited = [PollFd::new(&self.shared.wake, PollFlags::IN)];
        let pause = Timespec::try_from(pause).ok();
        if !matches!(poll(&mut waited, pause.as_ref()), Ok(0)) {
            std::thread::sleep(TOGETHER);
        }
        let _ = rustix::io::read(&self.shared.wake, &mut [0; 8]);
    }

    fn tell_events(&mut self) {
        let happened = self.events.take();
        for watched in self.watched.values_mut() {
            let files = watched.files();
            let mut directories = files.iter().flat_map(|file| directories(file));
            if directories.any(|directory| happened.is_in(&directory)) {
                watched.event();
            }
        }
    }
}

/// The directory of a file, and that of the real file if its name is a link.
fn directories(file: &Path) -> HashSet<PathBuf> {
    let named = match file.parent() {
        Some(directory) if !directory.as_os_str().is_empty() => directory,
        _ => Path::new("."),
    };
    let target = fs::canonicalize(file).ok();
    let target = target.as_deref().and_then(Path::parent);
    let is_other = |target: &&Path| fs::canonicalize(named).is_ok_and(|named| named != *target);
    let target = target.filter(is_other);
    [Some(named), target]
        .into_iter()
        .flatten()
        .map(Path::to_owned)
        .collect()
}
