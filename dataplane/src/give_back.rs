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
}

impl Default for GiveBack {
    fn default() -> Self {
        Self {
            seen: Cell::new(0),
            left: Cell::new(EVERY),
        }
    }
}

impl GiveBack {
    /// A tick; `happened` counts what frees memory: connections that ended or began to be idle.
    /// True if the allocator was made to look.
    pub fn tick(&self, happened: usize) -> bool {
        let freed = self.seen.replace(happened) != happened;
        let left = self.left.get().min(if freed { WAIT } else { EVERY });
        let looks = left == 0;
        if looks {
            drop(black_box(Vec::<u8>::with_capacity(OWN_PAGE)));
        }
        self.left.set(left.checked_sub(1).unwrap_or(EVERY));
        looks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CONN-1: the allocator is made to look soon after something was freed, however long that
    /// goes on, and now and then in any case.
    #[test]
    fn it_looks_soon_after_something_was_freed() {
        let give_back = GiveBack::default();
        let looks = |happened, ticks| {
            let looked = (0..ticks).filter(|_| give_back.tick(happened));
            looked.count()
        };
        assert_eq!(looks(0, 1_010), 10);
        assert_eq!(looks(1, WAIT), 0);
        assert_eq!(looks(1, 1), 1);
        let busy = (2..1_002).filter(|happened| give_back.tick(*happened));
        assert_eq!(busy.count(), 40);
        assert_eq!(looks(1_001, 1_010), 10);
    }
}
