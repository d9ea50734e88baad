//! Time as an argument: only the edges of the program read a clock.
//!
//! Both clocks are read together. The wall clock is for windows and bans, because they outlive a
//! restart. The monotonic clock is for time-outs and for the order in which clients were seen,
//! because it never steps back.
#![expect(
    clippy::disallowed_methods,
    reason = "the one place that asks the system"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// One reading of both clocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Now {
    /// Wall clock, milliseconds since 1970-01-01T00:00:00Z.
    pub wall_ms: u64,
    /// Monotonic clock, nanoseconds since the clock was made.
    pub mono_ns: u64,
}

/// The source of time: the system, or a test.
#[derive(Clone, Debug)]
pub enum Clock {
    /// The system's clocks; monotonic time counts from this instant.
    System(Instant),
    /// A clock that a test moves.
    Manual(Arc<ManualClock>),
}

/// A clock that moves only when told to.
#[derive(Debug, Default)]
pub struct ManualClock {
    wall_ms: AtomicU64,
    mono_ns: AtomicU64,
}

impl Clock {
    /// The system's clocks.
    pub fn system() -> Self {
        Self::System(Instant::now())
    }

    /// A clock that stands at `wall_ms` until it is moved.
    pub fn manual(wall_ms: u64) -> (Self, Arc<ManualClock>) {
        let clock = Arc::new(ManualClock {
            wall_ms: AtomicU64::new(wall_ms),
            mono_ns: AtomicU64::new(0),
        });
        (Self::Manual(Arc::clone(&clock)), clock)
    }

    /// Reads both clocks.
    pub fn now(&self) -> Now {
        match self {
            Self::System(start) => Now {
                // A wall clock before 1970 reads as 1970: windows restart, nothing panics.
                wall_ms: SystemTime::now()
                    .duration_since(UNIX_EPOCH)
                    .map_or(0, millis),
                mono_ns: u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX),
            },
            // Relaxed: a test moves the clock and then makes a request; the request's own channel
            // orders the two.
            Self::Manual(clock) => Now {
                wall_ms: clock.wall_ms.load(Ordering::Relaxed),
                mono_ns: clock.mono_ns.load(Ordering::Relaxed),
            },
        }
    }
}

impl ManualClock {
    /// Moves both clocks forward.
    pub fn advance_ms(&self, milliseconds: u64) {
        self.wall_ms.fetch_add(milliseconds, Ordering::Relaxed);
        self.mono_ns
            .fetch_add(milliseconds * 1_000_000, Ordering::Relaxed);
    }
}

fn millis(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
