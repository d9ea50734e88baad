//! A loop that hangs ends the service, with or without a supervisor that has a watchdog (ALIVE-7).
//!
//! A thread of its own watches the loops, because the main thread may itself wait for a file or for
//! the control loop.

use std::io;
use std::time::Duration;

use weir_shared::pulse::{self, HANGS};
use weir_shared::threads::{self, Ended, How};

/// How often the watching thread looks for beats.
const LOOK: Duration = Duration::from_secs(1);
/// After so many looks in a row without a beat of one loop, the service stops.
const ENDS: u32 = 30;
/// After so many looks the stop has failed: the process exits, even where state is not written.
const ENDS_AT_ONCE: u32 = 90;

/// Watches the loops of the service from now on. Where the stop for a hanging loop fails as well,
/// the process exits with `exit_status`.
///
/// # Errors
/// The system refused a thread.
pub fn watch(exit_status: u8) -> io::Result<()> {
    threads::spawn("weir-pulse", move || {
        let look = interval();
        loop {
            std::thread::sleep(look);
            for still in pulse::look() {
                judge(still, exit_status);
            }
        }
    })
    .map(drop)
}

fn judge(still: pulse::Still, exit_status: u8) {
    match still.looks {
        HANGS => tracing::error!(
            "the thread {} has done nothing for {HANGS} s: health fails, and the service ends in {} s if that goes on",
            still.name,
            ENDS - HANGS
        ),
        ENDS => threads::tell(Ended {
            name: still.name,
            how: How::Hangs,
        }),
        ENDS_AT_ONCE.. => std::process::exit(exit_status.into()),
        _ => {}
    }
}

#[cfg(not(debug_assertions))]
const fn interval() -> Duration {
    LOOK
}

/// `WEIR_TEST_LOOK_MS` shortens the interval for tests. Not in a release build.
#[cfg(debug_assertions)]
fn interval() -> Duration {
    let asked = std::env::var("WEIR_TEST_LOOK_MS").ok();
    let ms = asked.and_then(|text| text.parse().ok());
    ms.map_or(LOOK, Duration::from_millis)
}
