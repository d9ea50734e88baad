//! Notices loops of the service that hang (ALIVE-7).
//!
//! [`crate::threads`] notices a thread that has ended. One that hangs has not ended, but beats no
//! more. The measure is looks rather than time: a process or machine that was suspended has missed
//! looks and beats alike.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// After so many looks in a row without a beat a loop hangs: health fails.
pub const HANGS: u32 = 5;

/// Static, because a process has one set of loops, as it has one watchdog.
static LOOPS: Mutex<Vec<Loop>> = Mutex::new(Vec::new());
/// Whether a loop hung at the last look.
static HANGING: AtomicBool = AtomicBool::new(false);

struct Loop {
    /// The name of its thread.
    name: String,
    beats: Weak<AtomicU64>,
    /// Its number of beats at the last look.
    seen: u64,
    /// Looks in a row without a beat.
    still: u32,
}

/// Held by a loop that beats at least once a second. Dropping it ends the watch on the loop.
pub struct Pulse {
    beats: Arc<AtomicU64>,
    #[cfg(debug_assertions)]
    hang: Option<std::path::PathBuf>,
}

impl Pulse {
    /// The pulse of a loop of this thread.
    pub fn of_this_thread() -> Self {
        let beats = Arc::new(AtomicU64::new(1));
        let name = std::thread::current()
            .name()
            .unwrap_or("a thread")
            .to_owned();
        #[cfg(debug_assertions)]
        let hang = test_hook::file_of(&name);
        let mut loops = LOOPS.lock().unwrap_or_else(PoisonError::into_inner);
        loops.push(Loop {
            name,
            beats: Arc::downgrade(&beats),
            seen: 0,
            still: 0,
        });
        Self {
            beats,
            #[cfg(debug_assertions)]
            hang,
        }
    }

    /// Notes a turn of the loop.
    pub fn beat(&self) {
        #[cfg(debug_assertions)]
        test_hook::hang_while(self.hang.as_deref());
        self.beats
            .store(self.beats.load(Relaxed).wrapping_add(1), Relaxed);
    }
}

/// A loop without a beat between two looks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Still {
    /// The name of its thread.
    pub name: String,
    /// Looks in a row without a beat.
    pub looks: u32,
}

/// Looks at every loop; must be called once a second. Returns those without a beat since the last
/// look.
pub fn look() -> Vec<Still> {
    let mut loops = LOOPS.lock().unwrap_or_else(PoisonError::into_inner);
    let mut still = Vec::new();
    loops.retain_mut(|each| {
        let Some(beats) = each.beats.upgrade() else {
            return false;
        };
        let now = beats.load(Relaxed);
        each.still = if now == each.seen { each.still + 1 } else { 0 };
        each.seen = now;
        if each.still > 0 {
            still.push(Still {
                name: each.name.clone(),
                looks: each.still,
            });
        }
        true
    });
    HANGING.store(still.iter().any(|each| each.looks >= HANGS), Relaxed);
    still
}

/// Whether a loop hung at the last look: the service is not healthy.
pub fn hangs() -> bool {
    HANGING.load(Relaxed)
}

/// A test can have a loop hang: `WEIR_TEST_HANG=<thread>:<file>` has the thread of this name stand
/// still in its loop while the file exists. Not in a release build.
#[cfg(debug_assertions)]
mod test_hook {
    use std::path::{Path, PathBuf};
    use std::time::Duration;

    pub(super) fn file_of(thread: &str) -> Option<PathBuf> {
        let asked = std::env::var("WEIR_TEST_HANG").ok()?;
        let (name, file) = asked.split_once(':')?;
        (name == thread).then(|| file.into())
    }

    pub(super) fn hang_while(file: Option<&Path>) {
        while file.is_some_and(Path::exists) {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ALIVE-7: a hanging loop is named with the time for which it hangs; an ended one is not.
    #[test]
    fn a_loop_that_hangs_is_named() {
        let named = |name: &str| {
            let make = std::thread::Builder::new().name(name.to_owned());
            make.spawn(Pulse::of_this_thread).unwrap().join().unwrap()
        };
        let still = |name: &str, looks| Still {
            name: name.to_owned(),
            looks,
        };
        let (goes_on, hung, ends) = (named("a"), named("b"), named("c"));
        assert_eq!(look(), [], "each has just begun");
        goes_on.beat();
        drop(ends);
        assert_eq!(look(), [still("b", 1)]);
        for looks in 2..HANGS {
            goes_on.beat();
            assert_eq!(look(), [still("b", looks)]);
            assert!(!hangs());
        }
        goes_on.beat();
        assert_eq!(look(), [still("b", HANGS)]);
        assert!(hangs());
        hung.beat();
        assert_eq!(look(), [still("a", 1)]);
        assert!(!hangs());
    }
}
