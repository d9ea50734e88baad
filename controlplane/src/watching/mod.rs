//! The one thread that looks at files: `weir-files`. It watches their directories and reads what
//! has changed: rules and lists, certificates, databases, the refusal page. The thread of the state
//! files, which reads its own, is woken.
//!
//! It may hang with a mount. Nobody waits for it but whoever asks for something of a file, and not
//! without end.

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

/// Events that come together are one: a save makes several.
const TOGETHER: Duration = Duration::from_millis(5);

/// Files that are looked at.
pub(crate) trait Watched: Send {
    /// Which they are now. Their directories are watched.
    fn files(&self) -> Vec<PathBuf>;

    /// Looks at them, and reads what has changed and lies still. Returns when to look again at the
    /// latest.
    fn look(&mut self, now: Instant, now_ms: u64) -> Duration;

    /// Something happened in one of their directories. A look follows in any case.
    fn event(&mut self) {}
}

/// Whose files they are.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Subject {
    State,
    Rules,
    Certificates,
    Page,
    Databases,
}

/// The thread, for those who have files looked at and tell what is wrong with them. The default is
/// none: nothing is looked at.
#[derive(Clone, Default)]
pub struct FileThread {
    shared: Option<Arc<Shared>>,
    faults: Faults,
}

struct Shared {
    /// What is to be looked at from now on, in place of what was; none for nothing any more.
    orders: Mutex<BTreeMap<Subject, Option<Box<dyn Watched>>>>,
    /// Written to, it ends the wait of the thread.
    wake: OwnedFd,
}

impl FileThread {
    /// Starts the thread, which looks for as long as the process lives.
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

    /// Where faults of files are told, and heard.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// Looks at these from now on.
    pub(crate) fn watch(&self, subject: Subject, watched: impl Watched + 'static) {
        self.order(subject, Some(Box::new(watched)));
    }

    /// Looks at nothing of this any more.
    pub(crate) fn forget(&self, subject: Subject) {
        self.order(subject, None);
    }

    fn order(&self, subject: Subject, watched: Option<Box<dyn Watched>>) {
        if let Some(shared) = &self.shared {
            shared.orders().insert(subject, watched);
            self.wake();
        }
    }

    /// Has the thread look now.
    pub(crate) fn wake(&self) {
        if let Some(shared) = &self.shared {
            shared.wake();
        }
    }
}

impl Shared {
    fn wake(&self) {
        // It cannot be full: the thread takes all at once.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    fn orders(&self) -> MutexGuard<'_, BTreeMap<Subject, Option<Box<dyn Watched>>>> {
        // It is whole whatever happened to who held it.
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread's own.
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
            // Before the look: what changes after it makes an event.
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

/// Where a file lies, and where it lies in truth, if its name leads elsewhere.
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
