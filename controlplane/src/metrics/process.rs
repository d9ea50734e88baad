//! The operating system's figures of this process (METRIC-3), from `/proc/self` only, because a
//! hardened unit hides the rest of `/proc`.

use rustix::time::{ClockId, clock_gettime};

/// Exact up to 2⁵³, which no fact here reaches.
#[expect(
    clippy::cast_precision_loss,
    reason = "Prometheus knows no other number"
)]
pub(super) fn float(value: u64) -> f64 {
    value as f64
}

/// The operating system's figures of the process.
pub(crate) struct Process {
    pub(super) cpu_seconds: f64,
    pub(super) resident_bytes: u64,
    pub(super) virtual_bytes: u64,
    pub(super) open_fds: u64,
    /// Infinite if there is no bound.
    pub(super) max_fds: f64,
    pub(super) threads: u64,
    pub(super) start_seconds: f64,
}

/// When the machine started, in seconds since 1970: now minus its uptime, as the kernel computes
/// `btime` of `/proc/stat`.
#[expect(
    clippy::cast_precision_loss,
    reason = "seconds since 1970 and nanoseconds of a second stay far below 2⁵³"
)]
pub(super) fn boot_seconds() -> f64 {
    let read = |clock| {
        let time = clock_gettime(clock);
        time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
    };
    read(ClockId::Realtime) - read(ClockId::Boottime)
}

impl Process {
    /// Reads `/proc/self`; none if there is no `/proc`.
    pub(super) fn read(boot_seconds: f64) -> Option<Self> {
        let file = |name: &str| std::fs::read_to_string(format!("/proc/self/{name}")).ok();
        let open_fds = std::fs::read_dir("/proc/self/fd").ok()?.count() as u64;
        Self::parse(
            &file("stat")?,
            &file("status")?,
            &file("limits")?,
            boot_seconds,
            // One of the descriptors is the directory that is being read.
            open_fds.saturating_sub(1),
        )
    }

    pub(super) fn parse(
        stat: &str,
        status: &str,
        limits: &str,
        boot_seconds: f64,
        open_fds: u64,
    ) -> Option<Self> {
        // proc_pid_stat(5): times are in USER_HZ, which is 100 on every architecture that Linux
        // gives to programs.
        const TICKS_A_SECOND: f64 = 100.0;
        // The second field is the name in parentheses and may hold blanks: count from its end, at
        // field 3.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        let kibibytes = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            let number = line.trim().strip_suffix("kB")?.trim();
            Some(number.parse::<u64>().ok()? * 1024)
        };
        let soft_limit = limits
            .lines()
            .find_map(|line| line.strip_prefix("Max open files"))?
            .split_whitespace()
            .next()?;
        Some(Self {
            cpu_seconds: float(field(14)? + field(15)?) / TICKS_A_SECOND,
            resident_bytes: kibibytes("VmRSS:")?,
            virtual_bytes: kibibytes("VmSize:")?,
            open_fds,
            max_fds: soft_limit.parse().unwrap_or(f64::INFINITY),
            threads: field(20)?,
            start_seconds: boot_seconds + float(field(22)?) / TICKS_A_SECOND,
        })
    }
}
