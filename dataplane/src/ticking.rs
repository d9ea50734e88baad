//! The heartbeat of a worker, as a timer of the system that runs by itself (timerfd_create(2)).
//!
//! A timer of the runtime would be set anew each time that the worker goes to sleep, by the
//! runtime and by the system, and taken back when it wakes: with a busy service several times a
//! request.

use std::io;
use std::time::Duration;

use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe::Receiver;
use tokio::time::{Interval, MissedTickBehavior};

/// A heartbeat.
pub struct Ticking {
    period: Duration,
    timer: Timer,
}

enum Timer {
    /// The system's. The type is that of a pipe, which is read in the same way.
    System(Receiver),
    /// The runtime's, where the system has none to give.
    Runtime(Interval),
}

impl Ticking {
    /// One that beats after each `period`.
    pub fn every(period: Duration) -> Self {
        let timer = timer(period).map_or_else(|_| interval(period), Timer::System);
        Self { period, timer }
    }

    /// The next beat. Those that were missed are one.
    pub async fn tick(&mut self) {
        match &mut self.timer {
            Timer::System(timer) => {
                // Eight bytes come; that less came than was asked for says that it was all.
                if timer.read(&mut [0; 16]).await.is_err() {
                    self.timer = interval(self.period);
                }
            }
            Timer::Runtime(interval) => drop(interval.tick().await),
        }
    }
}

fn interval(period: Duration) -> Timer {
    let mut interval = tokio::time::interval(period);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    Timer::Runtime(interval)
}

fn timer(period: Duration) -> io::Result<Receiver> {
    let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
    let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
    let period = Timespec::try_from(period).map_err(|_| Errno::INVAL)?;
    let beats = Itimerspec {
        it_interval: period,
        it_value: period,
    };
    timerfd_settime(&timer, TimerfdTimerFlags::empty(), &beats)?;
    Receiver::from_owned_fd_unchecked(timer)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: Duration = Duration::from_millis(2);

    /// Beats come one after the other, whoever makes them; the runtime has no part in those of the
    /// system.
    #[test]
    fn beats_come_by_themselves() {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_io().build().unwrap();
        runtime.block_on(async {
            let mut ticking = Ticking::every(PERIOD);
            assert!(matches!(ticking.timer, Timer::System(_)));
            for _ in 0..5 {
                ticking.tick().await;
            }
        });
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().build().unwrap();
        runtime.block_on(async {
            let timer = interval(PERIOD);
            let mut ticking = Ticking {
                period: PERIOD,
                timer,
            };
            for _ in 0..5 {
                ticking.tick().await;
            }
        });
    }
}
