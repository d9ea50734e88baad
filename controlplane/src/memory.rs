//! Memory of something large that was replaced goes back to the system on a thread for that, not
//! on a worker.
//!
//! The allocator keeps what was freed for a second. After that the first thread that frees a page
//! gives all of it back, one system call for each 64 KiB: of half a million entries that is some
//! 18 ms, which a request waits for where the thread is a worker's. So `weir-memory` frees a page
//! often until then, and ends. A worker seldom does: four times a second with 2,000 requests.

use std::hint::black_box;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// More than the allocator puts into a page with others.
const PAGE_BYTES: usize = 1024 * 1024;
/// From one page to the next.
const PAUSE: Duration = Duration::from_millis(2);
/// For two seconds and a half: the second of what was freed first, and that of what was freed
/// meanwhile.
const TURNS: u32 = 1250;
/// Of the memory of fewer entries nobody notices who gives it back.
const LARGE: usize = 10_000;

/// Added to the nice value of the thread that starts it: the workers go first.
const NICE: i32 = 10;

/// How often the thread still frees a page; without any it is not there. A process has one
/// allocator.
static LEFT: AtomicU32 = AtomicU32::new(0);

/// So many entries were replaced, or read and dropped, by whatever thread.
pub(crate) fn freed(entries: usize) {
    if entries >= LARGE && LEFT.swap(TURNS, Ordering::Relaxed) == 0 {
        let started = weir_shared::threads::spawn_while_needed("weir-memory", give_back);
        if started.is_err() {
            // A worker gives this memory back; the next change tries again.
            LEFT.store(0, Ordering::Relaxed);
        }
    }
}

fn give_back() {
    // On Linux a nice value is that of a thread. It is always allowed, but by a filter of system
    // calls: then it competes.
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
