//! Time as one worker sees it: its clocks, its heartbeat, and what is done by it with freed
//! memory.

use std::cell::{Cell, RefCell};
use std::hint::black_box;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use http::HeaderValue;
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe::Receiver;
use tokio::time::{sleep, timeout, timeout_at};
use weir_shared::clock::{Clock, Now};
use weir_shared::units::http_date;

/// The two clocks of one worker. The monotonic clock is read where a request begins, where the
/// application's response begins, and where the request ends; deadlines use the latest reading. The
/// wall clock is read on each tick, and carried forward by the monotonic one in between: a clock
/// that is set is noticed within a tick.
pub struct CoarseClock {
    clock: Clock,
    mono_ns: Cell<u64>,
    /// Both clocks on the last tick.
    read: Cell<Now>,
    /// Before that, a worker that stands still is not noticed again.
    notices_from_ns: Cell<u64>,
    /// For how long it stood still in all, as far as that was noticed.
    stood_ns: Cell<u64>,
}

/// How often a worker looks at its deadlines, sends its log records and reads the wall clock anew.
pub const TICK: Duration = Duration::from_millis(50);

/// A worker whose next tick comes so late has stood still.
const STOOD_STILL_NS: u64 = 1_000_000_000;

impl CoarseClock {
    /// A clock that was just read.
    pub fn new(clock: Clock) -> Rc<Self> {
        let now = clock.now();
        Rc::new(Self {
            clock,
            mono_ns: Cell::new(now.mono_ns),
            read: Cell::new(now),
            notices_from_ns: Cell::new(0),
            stood_ns: Cell::new(0),
        })
    }

    /// Reads both clocks anew. Called on every tick of the worker. Where the worker has stood still
    /// since the last one, says for how long: what its sockets have meanwhile, nobody has read.
    ///
    /// Behind that the worker runs for as long as it stood before the next time is noticed: a
    /// worker that stood still again and again would keep its clients for ever.
    pub fn tick(&self) -> Option<u64> {
        let now = self.clock.now();
        self.mono_ns.set(now.mono_ns);
        let before_ns = self.read.replace(now).mono_ns;
        let stood_ns = now.mono_ns.saturating_sub(before_ns);
        if stood_ns < STOOD_STILL_NS || before_ns < self.notices_from_ns.get() {
            return None;
        }
        self.notices_from_ns
            .set(now.mono_ns.saturating_add(stood_ns));
        let all_ns = self.stood_ns.get();
        self.stood_ns.set(all_ns.saturating_add(stood_ns));
        Some(stood_ns)
    }

    /// Waits for `work`, at most so long and a tick. Time in which the worker stood still does not
    /// count: what came meanwhile is read before this gives up (CONN-10).
    pub async fn within<T>(&self, at_most: Duration, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        let mut end = sleep(at_most).deadline();
        let mut noticed_ns = self.stood_ns.get();
        loop {
            if let Ok(done) = timeout_at(end, work.as_mut()).await {
                return Some(done);
            }
            // Behind a standstill this timer may go off before the sockets were looked at, and
            // before the tick that notices.
            if let Ok(done) = timeout(TICK, work.as_mut()).await {
                return Some(done);
            }
            let all_ns = self.stood_ns.get();
            let stood_ns = all_ns - std::mem::replace(&mut noticed_ns, all_ns);
            if stood_ns == 0 {
                return None;
            }
            end += Duration::from_nanos(stood_ns);
        }
    }

    /// Now.
    pub fn now(&self) -> Now {
        match &self.clock {
            Clock::System(start) => {
                let mono_ns = nanos(start.elapsed());
                self.mono_ns.set(mono_ns);
                Now {
                    wall_ms: carried_ms(self.read.get(), mono_ns),
                    mono_ns,
                }
            }
            Clock::Manual(_) => {
                let now = self.clock.now();
                self.mono_ns.set(now.mono_ns);
                now
            }
        }
    }

    /// The monotonic clock when it was last read: at most a tick ago.
    pub fn mono_ns(&self) -> u64 {
        self.mono_ns.get()
    }

    /// The wall clock at the same moment, milliseconds since 1970.
    pub fn wall_ms(&self) -> u64 {
        carried_ms(self.read.get(), self.mono_ns.get())
    }

    /// Microseconds since `start`, read anew.
    pub fn since_us(&self, start: Now) -> u64 {
        self.now().mono_ns.saturating_sub(start.mono_ns) / 1000
    }
}

/// The wall clock when the monotonic one is `mono_ns`, carried forward from a reading of both. Up
/// to two milliseconds late, and never early: no ban ends before its time (BAN-7).
const fn carried_ms(read: Now, mono_ns: u64) -> u64 {
    let passed_ns = mono_ns.saturating_sub(read.mono_ns);
    read.wall_ms.saturating_add(passed_ns / 1_000_000)
}

/// The value of `Date`, made once a second: as text, and as the value of a field.
pub struct HttpDate(RefCell<(u64, String, HeaderValue)>);

impl Default for HttpDate {
    fn default() -> Self {
        let none = (0, String::new(), HeaderValue::from_static(""));
        Self(RefCell::new(none))
    }
}

impl HttpDate {
    /// Hands the date of this moment to `read`.
    pub fn with<R>(&self, wall_ms: u64, read: impl FnOnce(&str, &HeaderValue) -> R) -> R {
        let mut held = self.0.borrow_mut();
        let second = wall_ms / 1000;
        if held.0 != second {
            let text = http_date(wall_ms);
            // A date is visible ASCII: the fallback is never taken.
            let value = HeaderValue::try_from(&*text);
            let value = value.unwrap_or(HeaderValue::from_static(""));
            *held = (second, text, value);
        }
        read(&held.1, &held.2)
    }
}

/// A duration as the deadlines count.
pub fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// A heartbeat. The type is that of a pipe, which is read in the same way.
pub struct Ticking(Receiver);

impl Ticking {
    /// One that beats after each `period`.
    ///
    /// # Errors
    /// The system has no timer to give.
    pub fn every(period: Duration) -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        let period = Timespec::try_from(period).map_err(|_| Errno::INVAL)?;
        let beats = Itimerspec {
            it_interval: period,
            it_value: period,
        };
        timerfd_settime(&timer, TimerfdTimerFlags::empty(), &beats)?;
        Ok(Self(Receiver::from_owned_fd_unchecked(timer)?))
    }

    /// The next beat. Those that were missed are one.
    ///
    /// # Errors
    /// That of the system.
    pub async fn tick(&mut self) -> io::Result<()> {
        // Eight bytes come; that less came than was asked for says that it was all.
        self.0.read(&mut [0; 16]).await.map(drop)
    }
}

/// Has a page to itself. Nothing is written to it, so that it costs an address and no memory.
const OWN_PAGE: usize = 1024 * 1024;

/// Has the allocator give memory back that was freed more than a second ago.
///
/// The allocator, mimalloc, looks for it only when a thread takes a page or frees one. A worker
/// whose clients have all gone does neither. So it takes a page of its own and frees it.
pub fn release_memory() {
    drop(black_box(Vec::<u8>::with_capacity(OWN_PAGE)));
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    /// CONN-10: a tick that is late tells for how long the worker stood still; the next does only
    /// once the worker has run for as long.
    #[test]
    fn a_worker_that_stood_still_notices_it() {
        let (clock, manual) = Clock::manual(0);
        let clock = CoarseClock::new(clock);
        let after_ms = |milliseconds| {
            manual.advance_ms(milliseconds);
            clock.tick().map(|stood_ns| stood_ns / 1_000_000)
        };
        assert_eq!(after_ms(50), None);
        assert_eq!(after_ms(999), None);
        assert_eq!(after_ms(3_000), Some(3_000));
        assert_eq!(after_ms(2_000), None);
        assert_eq!(after_ms(900), None);
        assert_eq!(after_ms(5_000), None);
        assert_eq!(after_ms(1_000), Some(1_000));
        for _ in 0..20 {
            assert_eq!(after_ms(50), None);
        }
        assert_eq!(after_ms(60_000), Some(60_000));
    }

    /// CONN-10: a wait ends in its time, give or take a tick. The time for which the worker stood
    /// still comes on top; not the time before the wait.
    #[test]
    #[expect(
        clippy::disallowed_methods,
        reason = "the runtime's own clock, which stands"
    )]
    fn a_wait_goes_on_behind_a_standstill() {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let second = Duration::from_secs(1);
            for (stands_at, expected) in [(None, 5), (Some(0), 5), (Some(1), 12), (Some(4), 12)] {
                let (clock, manual) = Clock::manual(0);
                let clock = CoarseClock::new(clock);
                let stand = || {
                    manual.advance_ms(7_000);
                    assert_eq!(clock.tick(), Some(7_000_000_000));
                };
                if stands_at == Some(0) {
                    stand();
                }
                let began = Instant::now();
                let work = async {
                    if let Some(at @ 1..) = stands_at {
                        sleep(at * second).await;
                        stand();
                    }
                    std::future::pending::<()>().await;
                };
                assert_eq!(clock.within(5 * second, work).await, None);
                let waited = began.elapsed();
                let expected = expected * second;
                assert!(
                    waited >= expected && waited <= expected + 3 * TICK,
                    "{waited:?}"
                );
                let done = clock.within(second, async { 7 }).await;
                assert_eq!(done, Some(7));
            }
        });
    }

    /// BAN-7: wherever within their milliseconds the two clocks were read, the wall clock carried
    /// forward is never ahead of the real one, and less than two milliseconds behind.
    #[test]
    fn the_wall_clock_carried_forward_is_never_early() {
        const START_US: u64 = 1_795_276_800_000_000;
        for (wall, mono, passed) in (0..20)
            .flat_map(|wall| (0..20).map(move |mono| (wall, mono)))
            .flat_map(|(wall, mono)| (0..60).map(move |passed| (wall, mono, passed)))
        {
            let (wall_us, mono_us, passed_us) = (START_US + wall * 100, mono * 100, passed * 100);
            let read = Now {
                wall_ms: wall_us / 1000,
                mono_ns: mono_us * 1000,
            };
            let carried_us = carried_ms(read, (mono_us + passed_us) * 1000) * 1000;
            let exact_us = wall_us + passed_us;
            assert!(carried_us <= exact_us, "{wall} {mono} {passed}");
            assert!(carried_us + 2_000 > exact_us, "{wall} {mono} {passed}");
        }
    }
}

#[cfg(test)]
mod ticking_tests {
    use super::*;

    /// Beats come one after the other, and the timers of the runtime have no part in them.
    #[test]
    fn beats_come_by_themselves() {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_io().build().unwrap();
        runtime.block_on(async {
            let mut ticking = Ticking::every(Duration::from_millis(2)).unwrap();
            for _ in 0..5 {
                ticking.tick().await.unwrap();
            }
        });
    }
}
