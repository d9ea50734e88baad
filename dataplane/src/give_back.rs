//! Memory that nobody uses any more goes back to the system also where nothing more happens
//! (CONN-1).
//!
//! The allocator, mimalloc, gives freed pages back a second after they were freed, but looks only
//! when a thread takes a page or frees one. A worker whose clients have all gone does neither. So
//! it takes a page of its own and frees it, once that second is over.

use std::cell::Cell;
use std::hint::black_box;

/// Ticks from the moment in which memory may have been freed: more than the allocator's second.
const WAIT: u32 = 24;
/// Has a page to itself. Nothing is written to it, so that it costs an address and no memory.
const OWN_PAGE: usize = 1024 * 1024;

/// Looks after the memory that one worker has freed.
#[derive(Default)]
pub struct GiveBack {
    /// What had happened at the last tick.
    seen: Cell<usize>,
    /// Ticks to go until the allocator is made to look; none while nothing was freed.
    due: Cell<Option<u32>>,
    /// Something was freed since the wait began, and may be too young at its end.
    again: Cell<bool>,
}

impl GiveBack {
    /// A tick; `happened` counts what frees memory: connections that ended or began to be idle.
    /// True if the allocator was made to look.
    pub fn tick(&self, happened: usize) -> bool {
        let freed = self.seen.replace(happened) != happened;
        match self.due.get() {
            None => {
                self.due.set(freed.then_some(WAIT));
                false
            }
            Some(0) => {
                drop(black_box(Vec::<u8>::with_capacity(OWN_PAGE)));
                let again = self.again.take() || freed;
                self.due.set(again.then_some(WAIT));
                true
            }
            Some(left) => {
                self.again.set(self.again.get() || freed);
                self.due.set(Some(left - 1));
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CONN-1: the allocator is made to look once after something was freed, a second time where
    /// that went on meanwhile, and never while nothing is.
    #[test]
    fn it_looks_when_something_was_freed() {
        let give_back = GiveBack::default();
        let looks = |happened, ticks| {
            let looked = (0..ticks).filter(|_| give_back.tick(happened));
            looked.count()
        };
        assert_eq!(looks(0, 1_000), 0);
        assert_eq!(looks(1, WAIT + 1), 0);
        assert_eq!(looks(1, 1_000), 1);
        assert_eq!(looks(2, 3), 0);
        assert_eq!(looks(3, 1_000), 2);
        assert_eq!(looks(3, 1_000), 0);
    }
}
