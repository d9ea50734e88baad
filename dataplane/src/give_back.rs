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
/// Ticks between two looks where this worker frees nothing: other threads do, such as the one that
/// has written the state files.
const EVERY: u32 = 100;
/// Has a page to itself. Nothing is written to it, so that it costs an address and no memory.
const OWN_PAGE: usize = 1024 * 1024;

/// Looks after the memory that has been freed.
pub struct GiveBack {
    /// What had happened at the last tick.
    seen: Cell<usize>,
    /// Ticks until the allocator is made to look.
    left: Cell<u32>,
    /// Something happened since it looked last. That may be too young for the next look.
    again: Cell<bool>,
}

impl Default for GiveBack {
    fn default() -> Self {
        Self {
            seen: Cell::new(0),
            left: Cell::new(EVERY),
            again: Cell::new(false),
        }
    }
}

impl GiveBack {
    /// A tick; `happened` counts what frees memory: connections that ended or began to be idle.
    /// True if the allocator was made to look.
    pub fn tick(&self, happened: usize) -> bool {
        let freed = self.seen.replace(happened) != happened;
        let left = self.left.get().min(if freed { WAIT } else { EVERY });
        self.again.set(self.again.get() || freed);
        let looks = left == 0;
        if looks {
            drop(black_box(Vec::<u8>::with_capacity(OWN_PAGE)));
        }
        let next = || if self.again.take() { WAIT } else { EVERY };
        self.left.set(left.checked_sub(1).unwrap_or_else(next));
        looks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How often it looks in so many ticks, after what had happened by then.
    fn looks(give_back: &GiveBack, happened: usize, ticks: u32) -> usize {
        let looked = (0..ticks).filter(|_| give_back.tick(happened));
        looked.count()
    }

    /// CONN-1: the allocator is made to look soon after something was freed, however long that
    /// goes on, and now and then in any case.
    #[test]
    fn it_looks_soon_after_something_was_freed() {
        let give_back = GiveBack::default();
        assert_eq!(looks(&give_back, 0, 1_010), 10);
        assert_eq!(looks(&give_back, 1, WAIT), 0);
        assert_eq!(looks(&give_back, 1, 1), 1);
        let busy = (2..1_002).filter(|happened| give_back.tick(*happened));
        assert_eq!(busy.count(), 40);
        assert_eq!(looks(&give_back, 1_001, 1_010), 10);
    }

    /// CONN-1: a look that comes too early for what was freed last, since it was due for another
    /// reason, is followed by one that does not.
    #[test]
    fn a_look_that_was_due_anyhow_is_followed_by_another() {
        for before in 0..2 * EVERY {
            let give_back = GiveBack::default();
            looks(&give_back, 0, before);
            give_back.tick(1);
            looks(&give_back, 1, WAIT - 1);
            // So much later it may give back what was freed then.
            assert!(looks(&give_back, 1, WAIT + 2) >= 1, "{before}");
        }
    }
}
