//! Which loops of the service still come round: what a supervisor's watchdog is told (RESTART-2).
//!
//! A thread that has ended is noticed by [`crate::threads`]. One that hangs has not ended; its
//! pulse stands still.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// A process has one set of loops, as it has one watchdog.
static LOOPS: Mutex<Vec<Loop>> = Mutex::new(Vec::new());

struct Loop {
    name: String,
    beats: Weak<AtomicU64>,
    /// What it stood at when it was last looked at.
    seen: u64,
}

/// Held by a loop that comes round at least once a second. A loop that has ended is not asked of
/// any more.
pub struct Pulse(Arc<AtomicU64>);

impl Pulse {
    /// Of a loop with this name.
    pub fn new(name: impl Into<String>) -> Self {
        let beats = Arc::new(AtomicU64::new(1));
        let mut loops = LOOPS.lock().unwrap_or_else(PoisonError::into_inner);
        loops.push(Loop {
            name: name.into(),
            beats: Arc::downgrade(&beats),
            seen: 0,
        });
        Self(beats)
    }

    /// The loop has come round.
    pub fn beat(&self) {
        self.0.store(self.0.load(Relaxed).wrapping_add(1), Relaxed);
    }
}

/// The loops that have not come round since this was last asked.
pub fn still() -> Vec<String> {
    let mut loops = LOOPS.lock().unwrap_or_else(PoisonError::into_inner);
    let mut still = Vec::new();
    loops.retain_mut(|each| {
        let Some(beats) = each.beats.upgrade() else {
            return false;
        };
        let now = beats.load(Relaxed);
        if now == each.seen {
            still.push(each.name.clone());
        }
        each.seen = now;
        true
    });
    still
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RESTART-2: a loop that hangs is named, one that has ended is not.
    #[test]
    fn a_loop_that_hangs_is_named() {
        let (goes_on, hangs, ends) = (Pulse::new("a"), Pulse::new("b"), Pulse::new("c"));
        assert_eq!(still(), [""; 0], "each has just begun");
        goes_on.beat();
        drop(ends);
        assert_eq!(still(), ["b"]);
        hangs.beat();
        assert_eq!(still(), ["a"]);
    }
}
