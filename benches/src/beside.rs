//! Something that is done while other work lasts, on a thread of its own.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Result, anyhow};

/// Whether the other work has ended.
#[derive(Debug, Default)]
pub struct Ended {
    has: Mutex<bool>,
    changed: Condvar,
}

impl Ended {
    /// Whether it has now.
    pub fn is_now(&self) -> bool {
        *self.has.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for so long, or until it has: whether it has.
    pub fn is_within(&self, time: Duration) -> bool {
        let has = self.has.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(has, time, |has| !*has);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn set(&self) {
        *self.has.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }
}

/// Does both: `other` is to end soon after `work` has.
///
/// # Errors
/// That of either; of `other` first, since `work` may have failed for its sake.
pub fn beside<A: Send, B>(
    other: impl FnOnce(&Ended) -> Result<A> + Send,
    work: impl FnOnce() -> Result<B>,
) -> Result<(A, B)> {
    let ended = Ended::default();
    std::thread::scope(|scope| {
        let other = scope.spawn(|| other(&ended));
        let worked = work();
        ended.set();
        let other = other.join();
        let other = other.map_err(|_| anyhow!("what was done beside the work panicked"))?;
        Ok((other?, worked?))
    })
}

/// Does something once a second, first after half a second, while `work` lasts.
///
/// # Errors
/// That of either.
pub fn each_second<T>(
    often: impl Fn() -> Result<()> + Send,
    work: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let often = move |ended: &Ended| {
        let mut pause = Duration::from_millis(500);
        while !ended.is_within(pause) {
            often()?;
            pause = Duration::from_secs(1);
        }
        Ok(())
    };
    beside(often, work).map(|((), result)| result)
}
