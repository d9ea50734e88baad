//! How fast a client sends its body, or takes an answer (CONN-7). Pure: time is an argument, on the
//! monotonic clock, nanoseconds.

/// A deadline that is never reached; no time.
pub const NEVER: u64 = u64::MAX;

/// A client is judged by so much time in which it was waited for.
pub const WINDOW_NS: u64 = 30_000_000_000;
const WINDOW_SECONDS: u64 = WINDOW_NS / 1_000_000_000;
/// Bytes beyond what was wanted in a window that count in the next, at most. What a client takes is
/// seen in steps: TCP tells of room in segments, and the system hands them on in bursts of up to
/// this size. A slow and steady client has them seldom.
const STEP: u64 = 64 * 1024;

/// One direction of a connection.
#[derive(Debug)]
pub struct Pace {
    /// Since when the client is waited for, if it is.
    since: u64,
    /// How long it was waited for before, in this window.
    waited: u64,
    /// Bytes that moved in this window.
    bytes: u64,
    /// The client was waited for at all.
    begun: bool,
}

impl Pace {
    /// Nobody was waited for yet.
    pub const fn new() -> Self {
        Self {
            since: NEVER,
            waited: 0,
            bytes: 0,
            begun: false,
        }
    }

    /// Forgets everything.
    pub fn reset(&mut self) {
        self.since = NEVER;
        self.waited = 0;
        self.bytes = 0;
        self.begun = false;
    }

    /// The client is waited for from now on.
    pub fn wait(&mut self, now_ns: u64) {
        self.begun = true;
        if self.since == NEVER {
            self.since = now_ns;
        }
    }

    /// The same where it was waited for before.
    pub fn wait_again(&mut self, now_ns: u64) {
        if self.begun {
            self.wait(now_ns);
        }
    }

    /// The client is not waited for any more.
    pub fn pause(&mut self, now_ns: u64) {
        self.waited = self.waited_ns(now_ns);
        self.since = NEVER;
    }

    /// Bytes moved. What the system takes before it waits for the client says nothing of the
    /// client.
    pub fn moved(&mut self, now_ns: u64, bytes: u64) {
        if self.begun {
            self.bytes = self.bytes.saturating_add(bytes);
            self.pause(now_ns);
        }
    }

    /// So much time does not count. It may be among that which was waited, where something moved
    /// before this was known.
    pub fn put_off(&mut self, by_ns: u64) {
        self.since = self.since.saturating_add(by_ns);
        self.waited = self.waited.saturating_sub(by_ns);
    }

    /// Whether the client has been slower over a window than `least` bytes a second. Begins the
    /// next window where one is over.
    pub fn is_too_slow(&mut self, now_ns: u64, least: u64) -> bool {
        let is_over = self.since != NEVER && self.waited_ns(now_ns) >= WINDOW_NS;
        let wanted = least.saturating_mul(WINDOW_SECONDS);
        if !is_over {
            return false;
        }
        let Some(more) = self.bytes.checked_sub(wanted) else {
            return true;
        };
        self.bytes = more.min(STEP);
        self.waited = 0;
        self.since = now_ns;
        false
    }

    fn waited_ns(&self, now_ns: u64) -> u64 {
        let since = self.since;
        let waiting = if since == NEVER {
            0
        } else {
            now_ns.saturating_sub(since)
        };
        self.waited.saturating_add(waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const LEAST: u64 = 500;

    /// When a client that moves `bytes` every `seconds` is found too slow, within two hours.
    fn ends(bytes: u64, seconds: u64) -> Option<u64> {
        let mut pace = Pace::new();
        pace.wait(0);
        (1..7_200).find(|now| {
            if now % seconds == 0 {
                pace.moved(now * SECOND, bytes);
                pace.wait(now * SECOND);
            }
            pace.is_too_slow(now * SECOND, LEAST)
        })
    }

    /// CONN-7: who is slower than the least rate over 30 s is found; who is not, is not, however
    /// its bytes come.
    #[test]
    fn a_client_below_the_rate_is_found() {
        assert_eq!(ends(0, 1), Some(30));
        assert_eq!(ends(499, 1), Some(30));
        assert_eq!(ends(500, 1), None);
        assert_eq!(ends(15_000, 30), None);
        assert_eq!(ends(14_999, 30), Some(30));
        // Steps of the system's buffers, the first of them in time.
        assert_eq!(ends(30_000, 29), None);
        assert_eq!(ends(STEP, 25), None);
        // What was fast once is no excuse for long.
        let mut pace = Pace::new();
        pace.wait(0);
        pace.moved(SECOND, 1 << 40);
        pace.wait(SECOND);
        let found = (2..7_200).find(|now| pace.is_too_slow(now * SECOND, LEAST));
        assert!(found.is_some_and(|seconds| seconds <= 6 * 30), "{found:?}");
    }

    /// CONN-10, CONN-7: time in which the worker stood still does not count, nor where the client
    /// moved before that was known.
    #[test]
    fn time_that_is_put_off_does_not_count() {
        for moves in [false, true] {
            let mut pace = Pace::new();
            pace.wait(0);
            if moves {
                pace.moved(60 * SECOND, 1);
                pace.wait(60 * SECOND);
            }
            pace.put_off(60 * SECOND);
            assert!(!pace.is_too_slow(90 * SECOND - 1, LEAST));
            assert!(pace.is_too_slow(150 * SECOND, LEAST));
        }
    }

    /// CONN-7: time in which the client is not waited for does not count, nor do bytes that the
    /// system took before it first waited.
    #[test]
    fn only_time_in_which_it_is_waited_for_counts() {
        let mut pace = Pace::new();
        pace.moved(0, 1 << 40);
        assert!(!pace.is_too_slow(1_000 * SECOND, LEAST));
        pace.wait(1_000 * SECOND);
        pace.pause(1_029 * SECOND);
        assert!(!pace.is_too_slow(9_000 * SECOND, LEAST));
        pace.wait(9_000 * SECOND);
        assert!(!pace.is_too_slow(9_001 * SECOND - 1, LEAST));
        assert!(pace.is_too_slow(9_001 * SECOND, LEAST));
        pace.reset();
        pace.wait(9_001 * SECOND);
        assert!(!pace.is_too_slow(9_030 * SECOND, LEAST));
        assert!(pace.is_too_slow(9_031 * SECOND, LEAST));
    }
}
