//! The threads of the service, and the notice that one has ended (ALIVE-2).
//!
//! A service without its log, its state files or one of its workers is half alive, and no
//! supervisor notices. So every thread is started here: whether it returns or panics, its end is
//! reported to the watcher. The watcher decides what an end means; during a stop it means nothing.

use std::io;
use std::sync::OnceLock;
use std::thread::JoinHandle;

/// The end of a thread, or of a task that a thread needs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ended {
    /// Its name.
    pub name: String,
    /// How.
    pub how: How,
}

/// How a thread has ended, or stopped working.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    /// It returned.
    Returned,
    /// It panicked.
    Panicked,
    /// It exists, and does no work any more (ALIVE-7).
    Hangs,
}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let how = match self.how {
            How::Returned => "returned",
            How::Panicked => "ended by a panic",
            How::Hangs => "hangs",
        };
        write!(f, "{} {how}", self.name)
    }
}

type Watcher = Box<dyn Fn(Ended) + Send + Sync>;

/// Static, because a process has one watcher, as it has one panic hook.
static WATCHER: OnceLock<Watcher> = OnceLock::new();

/// Sets the watcher. It is called on the thread that ends, and must not block. A later call has no
/// effect.
pub fn watch(watcher: impl Fn(Ended) + Send + Sync + 'static) {
    let _ = WATCHER.set(Box::new(watcher));
}

/// Reports to the watcher when it is dropped. Held by a thread or task that must not end before the
/// service.
pub struct Alive {
    name: String,
    /// True if a return is no fault.
    may_return: bool,
}

impl Alive {
    /// For a thread or a task of this name.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            may_return: false,
        }
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        let how = if std::thread::panicking() {
            How::Panicked
        } else {
            How::Returned
        };
        if how == How::Panicked || !self.may_return {
            tell(Ended {
                name: std::mem::take(&mut self.name),
                how,
            });
        }
    }
}

/// Reports an end to the watcher. A thread that gives up reports it before its last work.
pub fn tell(ended: Ended) {
    if let Some(watcher) = WATCHER.get() {
        watcher(ended);
    }
}

/// Starts a thread whose end is reported to the watcher.
///
/// # Errors
/// The system refused it.
pub fn spawn<T: Send + 'static>(
    name: impl Into<String>,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    start(Alive::new(name), true, body)
}

/// Starts a thread that returns once there is no more work for it: only its panic is reported.
///
/// # Errors
/// The system refused it.
pub fn spawn_while_needed<T: Send + 'static>(
    name: impl Into<String>,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let alive = Alive {
        name: name.into(),
        may_return: true,
    };
    start(alive, true, body)
}

/// Starts a thread whose start somebody waits for: it reports itself when it is [`at_work`].
///
/// # Errors
/// The system refused it.
pub fn spawn_starting<T: Send + 'static>(
    name: impl Into<String>,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    start(Alive::new(name), false, body)
}

fn start<T: Send + 'static>(
    alive: Alive,
    is_at_work: bool,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let thread = std::thread::Builder::new().name(alive.name.clone());
    thread.spawn(move || {
        let _alive = alive;
        if is_at_work {
            at_work();
        }
        body()
    })
}

/// Notes that the start of this thread is over; a test may make it end here.
pub fn at_work() {
    #[cfg(debug_assertions)]
    test_hook::end_if_asked();
}

/// A test can have a thread end: `WEIR_TEST_END_THREAD=<thread>:<file>` has the thread of this name
/// wait for the file and unwind, instead of doing its work. Not in a release build.
#[cfg(debug_assertions)]
mod test_hook {
    use std::path::Path;
    use std::time::Duration;

    pub(super) fn end_if_asked() {
        let Ok(asked) = std::env::var("WEIR_TEST_END_THREAD") else {
            return;
        };
        let Some((thread, file)) = asked.split_once(':') else {
            return;
        };
        if std::thread::current().name() != Some(thread) {
            return;
        }
        while !Path::new(file).exists() {
            std::thread::sleep(Duration::from_millis(10));
        }
        // Without the panic hook: tests take its words for a bug.
        std::panic::resume_unwind(Box::new(()));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// ALIVE-2: a return and a panic are both reported, with thread and task; of a thread that may
    /// return, only a panic is.
    #[test]
    fn an_end_is_told() {
        let (told, ends) = mpsc::channel();
        watch(move |ended| told.send(ended).unwrap());
        let end = |name: &str, how| Ended {
            name: name.to_owned(),
            how,
        };
        assert_eq!(spawn("returns", || 7).unwrap().join().unwrap(), 7);
        assert_eq!(ends.recv().unwrap(), end("returns", How::Returned));
        assert!(spawn("panics", || panic!("a bug")).unwrap().join().is_err());
        assert_eq!(ends.recv().unwrap(), end("panics", How::Panicked));
        let idle = spawn_while_needed("not needed", || 7).unwrap();
        assert_eq!(idle.join().unwrap(), 7);
        let bug = spawn_while_needed("needed", || panic!("a bug")).unwrap();
        assert!(bug.join().is_err());
        assert_eq!(ends.recv().unwrap(), end("needed", How::Panicked));
        drop(Alive::new("task"));
        assert_eq!(ends.recv().unwrap(), end("task", How::Returned));
    }
}
