//! The service's clock, and a hook for tests that moves it (SHARE-9).
//!
//! `WEIR_TEST_CLOCK` names a file with a number of milliseconds: the wall clock and the monotonic
//! clock are ahead of the system's by that much, a millisecond after the file is written. The
//! offset in force is written to a file beside it, `….seen`. Only the service's clocks move: timers
//! of connections use the system's. Not in a release build.

use weir_shared::clock::Clock;

/// The clock of the service.
pub fn clock() -> Clock {
    #[cfg(debug_assertions)]
    if let Some(file) = std::env::var_os("WEIR_TEST_CLOCK") {
        return hook::moved_by(file.into());
    }
    Clock::system()
}

#[cfg(debug_assertions)]
mod hook {
    use std::path::PathBuf;
    use std::time::Duration;

    use weir_shared::clock::{Clock, ManualClock};

    /// A clock that is ahead of the system's by the offset in the file.
    pub(super) fn moved_by(file: PathBuf) -> Clock {
        let system = Clock::system();
        let (clock, manual) = Clock::manual(system.now().wall_ms);
        // The thread never ends: without it the clock would stand still.
        let thread = std::thread::Builder::new().name("weir-test-clock".to_owned());
        let _ = thread.spawn(move || go(&file, &system, &manual));
        clock
    }

    fn go(file: &PathBuf, system: &Clock, manual: &ManualClock) {
        let seen = file.with_extension("seen");
        let (mut passed_ms, mut told) = (0, None);
        loop {
            let text = std::fs::read_to_string(file).unwrap_or_default();
            let ahead_ms: u64 = text.trim().parse().unwrap_or(0);
            let now_ms = system.now().mono_ns / 1_000_000 + ahead_ms;
            manual.advance_ms(now_ms.saturating_sub(passed_ms));
            passed_ms = now_ms.max(passed_ms);
            if told != Some(ahead_ms) {
                told = Some(ahead_ms);
                let _ = std::fs::write(&seen, ahead_ms.to_string());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
