//! Returns the memory of large replaced values to the system on a thread of its own rather than on
//! a worker.
//!
//! The allocator keeps freed memory for a second. After that the first thread that frees a page
//! returns all of it, with one system call for each 64 KiB. For half a million entries that takes
//! some 18 ms, and delays requests if the thread is a worker. So `weir-memory` frees pages
//! frequently until then, and ends. A worker seldom frees a page: four times a second with 2,000
//! requests.

use std::hint::black_box;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// The size of a page: more than the allocator puts into a page with other values.
const PAGE_BYTES: usize = 1024 * 1024;
/// The pause between two pages.
const PAUSE: Duration = Duration::from_millis(2);
/// Enough turns for two and a half seconds: one second for the memory freed first, and one for that
/// freed meanwhile.
const TURNS: u32 = 1250;
/// With fewer entries, returning the memory takes no noticeable time.
const LARGE: usize = 10_000;

/// Added to the nice value of the thread that starts it: the workers go first.
const NICE: i32 = 10;

/// How many more pages the thread frees; 0 means that it does not run. Static, because a process
/// has one allocator.
static LEFT: AtomicU32 = AtomicU32::new(0);

/// Notes that so many entries were replaced, or read and dropped, by any thread.
pub(crate) fn freed(entries: usize) {
    if entries >= LARGE && LEFT.swap(TURNS, Ordering::Relaxed) == 0 {
        let started = weir_shared::threads::spawn_while_needed("weir-memory", give_back);
        if started.is_err() {
            // Without the thread a worker returns this memory; the next change tries again.
            LEFT.store(0, Ordering::Relaxed);
        }
    }
}

fn give_back() {
    // On Linux each thread has its own nice value. Only a system-call filter can forbid the change:
    // then the thread competes with the workers.
    let _ = rustix::process::nice(NICE);
    let one_less = |left: u32| left.checked_sub(1);
    while LEFT
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less)
        .is_ok_and(|left| left > 1)
    {
        std::thread::sleep(PAUSE);
        // Never written to, so it costs no memory.
        let mut page = Vec::<u8>::new();
        let _ = page.try_reserve_exact(PAGE_BYTES);
        drop(black_box(page));
    }
}
