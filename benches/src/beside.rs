//! Something that is done while other work lasts, on a thread of its own.

use std::time::Duration;

use anyhow::{Result, anyhow};
use crossbeam_channel::{Receiver, RecvTimeoutError, bounded};

/// Whether the other work has ended: it holds the sender, and sends nothing.
#[derive(Debug)]
pub struct Ended(Receiver<()>);

impl Ended {
    /// Whether it has now.
    pub fn is_now(&self) -> bool {
        self.is_within(Duration::ZERO)
    }

    /// Waits for so long, or until it has: whether it has.
    pub fn is_within(&self, time: Duration) -> bool {
        self.0.recv_timeout(time) == Err(RecvTimeoutError::Disconnected)
    }
}

/// Does both: `other` is to end soon after `work` has.
/// Of two errors that of `other` is told: `work` may have failed for its sake.
pub fn beside<A: Send, B>(
    other: impl FnOnce(&Ended) -> Result<A> + Send,
    work: impl FnOnce() -> Result<B>,
) -> Result<(A, B)> {
    let (lasts, ended) = bounded(0);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| other(&Ended(ended)));
        let worked = work();
        drop(lasts);
        let other = other.join();
        let other = other.map_err(|_| anyhow!("what was done beside the work panicked"))?;
        Ok((other?, worked?))
    })
}

/// Does something once a second, first after half a second, while `work` lasts.
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
