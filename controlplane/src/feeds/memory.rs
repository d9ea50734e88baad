//! What the version before has held goes back to the system on this thread, not on a worker.
//!
//! The allocator keeps what was freed for a second. After that the first thread that frees a page
//! gives all of it back, one system call for each 64 KiB: of half a million entries that is some
//! 18 ms, which a request waits for where the thread is a worker's. So this thread frees a page
//! often until then. A worker seldom does: four times a second with 2,000 requests.

use std::hint::black_box;
use std::time::Duration;

/// More than the allocator puts into a page with others.
const PAGE_BYTES: usize = 1024 * 1024;
/// From one page to the next.
const PAUSE: Duration = Duration::from_millis(2);
/// For two seconds and a half: the second of what was freed first, and that of what was freed
/// meanwhile.
const TURNS: u32 = 1250;

/// Frees a page now and then, until what has just been freed is given back.
pub(super) async fn give_back() {
    for _ in 0..TURNS {
        tokio::time::sleep(PAUSE).await;
        // Never written to, so it costs no memory.
        let mut page = Vec::<u8>::new();
        let _ = page.try_reserve_exact(PAGE_BYTES);
        drop(black_box(page));
    }
}
