//! What the kernel says of a process and of its threads: CPU time, memory, system calls.

use std::fs;

use anyhow::{Context, Result, bail};
use rustix::param::clock_ticks_per_second;

/// CPU time, in seconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct CpuSeconds {
    /// In the process itself.
    pub user: f64,
    /// In the kernel.
    pub system: f64,
}

impl CpuSeconds {
    /// User and system time.
    pub fn total(self) -> f64 {
        self.user + self.system
    }
}

impl std::ops::Sub for CpuSeconds {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            user: self.user - before.user,
            system: self.system - before.system,
        }
    }
}

/// The time of a process and of all that descend from it.
pub fn cpu_seconds(process: u32) -> Result<CpuSeconds> {
    let (mut user, mut system) = (0, 0);
    for process in tree(process) {
        // A child may be gone by now; its time is then in its parent's.
        let stat = fs::read_to_string(format!("/proc/{process}/stat"));
        let ticks = stat.ok().as_deref().and_then(stat_ticks);
        user += ticks.map_or(0, |(user, _)| user);
        system += ticks.map_or(0, |(_, system)| system);
    }
    let seconds = |ticks: u64| ticks as f64 / clock_ticks_per_second() as f64;
    (user + system > 0)
        .then(|| CpuSeconds {
            user: seconds(user),
            system: seconds(system),
        })
        .with_context(|| format!("process {process} has ended or used no CPU time"))
}

/// The process and its descendants.
fn tree(process: u32) -> Vec<u32> {
    let mut found = vec![process];
    let mut next = 0;
    while let Some(process) = found.get(next).copied() {
        next += 1;
        let tasks = fs::read_dir(format!("/proc/{process}/task"));
        for task in tasks.into_iter().flatten().flatten() {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            found.extend(
                children
                    .split_whitespace()
                    .filter_map(|child| child.parse::<u32>().ok()),
            );
        }
    }
    found
}

/// `utime` and `cutime`, `stime` and `cstime` of `/proc/<pid>/stat` (proc_pid_stat(5)).
fn stat_ticks(stat: &str) -> Option<(u64, u64)> {
    // The name in parentheses may hold anything; what follows the last parenthesis begins with
    // field 3.
    let (_, fields) = stat.rsplit_once(") ")?;
    let times: Vec<u64> = fields
        .split(' ')
        .skip(11)
        .take(4)
        .map_while(|field| field.parse().ok())
        .collect();
    let [user, system, children_user, children_system] = times[..] else {
        return None;
    };
    Some((user + children_user, system + children_system))
}

/// Time on the processor of those threads of a process whose name begins so, in nanoseconds.
pub fn thread_nanoseconds(process: u32, name: &str) -> Result<u64> {
    let threads = threads(process);
    let chosen = threads
        .iter()
        .filter(|(_, other)| other.starts_with(name))
        .map(|(thread, _)| {
            let path = format!("/proc/{process}/task/{thread}/schedstat");
            let text =
                fs::read_to_string(&path).with_context(|| format!("{path} cannot be read"))?;
            on_processor(&text).with_context(|| format!("{path} holds no time"))
        });
    let times = chosen.collect::<Result<Vec<u64>>>()?;
    if times.is_empty() {
        bail!("process {process} has no thread {name}");
    }
    Ok(times.iter().sum())
}

/// The threads of a process, with their names.
pub fn threads(process: u32) -> Vec<(i32, String)> {
    let tasks = fs::read_dir(format!("/proc/{process}/task"));
    let tasks = tasks.into_iter().flatten().flatten();
    tasks
        .filter_map(|task| {
            let thread = task.file_name().to_str()?.parse().ok()?;
            // One that has just ended has no name.
            let name = fs::read_to_string(task.path().join("comm")).ok()?;
            Some((thread, name.trim_end().to_owned()))
        })
        .collect()
}

/// The first member of `schedstat` (the kernel's Documentation/scheduler/sched-stats): nanoseconds
/// on the processor.
fn on_processor(schedstat: &str) -> Option<u64> {
    schedstat.split_whitespace().next()?.parse().ok()
}

/// Resident memory of a process and its descendants, in MiB.
pub fn memory_mebibytes(process: u32) -> Result<f64> {
    let mut kibibytes = 0;
    for process in tree(process) {
        let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
        kibibytes += status_member(&status, "VmRSS:").unwrap_or(0);
    }
    (kibibytes > 0)
        .then(|| kibibytes as f64 / 1024.0)
        .with_context(|| format!("process {process} has ended"))
}

/// Whether somebody traces the process.
pub fn is_traced(process: u32) -> bool {
    fs::read_to_string(format!("/proc/{process}/status"))
        .is_ok_and(|status| status_member(&status, "TracerPid:").is_some_and(|tracer| tracer > 0))
}

/// A number of `/proc/<pid>/status`, in kilobytes where it is a size.
pub fn status_member(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The calls in the line `total` of `strace -c`.
pub fn total_calls(table: &str) -> Option<u64> {
    let line = table.lines().find(|line| line.ends_with(" total"))?;
    line.split_whitespace().nth(3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_found_behind_any_name() {
        let stat = "4711 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 100 20 3 4 20 0 1 0 99";
        assert_eq!(stat_ticks(stat), Some((103, 24)));
        assert_eq!(stat_ticks("4711 (a) S 1 2"), None);
    }

    #[test]
    fn the_own_process_has_used_time_and_memory() {
        // The kernel counts in ticks: on a busy machine nobody knows when this process has had its
        // first.
        let mut number = 0u64;
        while cpu_seconds(std::process::id()).is_err() {
            number = std::hint::black_box(number + 1);
        }
        assert!(cpu_seconds(std::process::id()).unwrap().total() > 0.0);
        assert!(memory_mebibytes(std::process::id()).unwrap() > 0.5);
        assert!(tree(std::process::id()).contains(&std::process::id()));
    }

    #[test]
    fn threads_are_metered_by_name() {
        let (started, wait) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::Builder::new().name("metered-7".to_owned());
        let thread = thread
            .spawn(move || {
                started.send(()).unwrap();
                let _ = ended.recv();
            })
            .unwrap();
        wait.recv().unwrap();
        // Its time is brought up to date when it leaves the processor, which may be a moment later.
        while thread_nanoseconds(std::process::id(), "metered-").unwrap() == 0 {
            std::thread::yield_now();
        }
        assert!(thread_nanoseconds(std::process::id(), "nobody-").is_err());
        drop(end);
        thread.join().unwrap();
        assert_eq!(on_processor("5013 77 12\n"), Some(5013));
        assert_eq!(on_processor(""), None);
    }

    #[test]
    fn the_total_of_strace_is_read_with_and_without_errors() {
        let table = "% time     seconds  usecs/call     calls    errors syscall\n\
                     ------ ----------- ----------- --------- --------- ----------------\n \
                     60.00    0.000600           1       600        10 read\n\
                     ------ ----------- ----------- --------- --------- ----------------\n\
                     100.00    0.001000           1      1000        10 total\n";
        assert_eq!(total_calls(table), Some(1000));
        assert_eq!(
            total_calls("100.00    0.001000    1      1000           total"),
            Some(1000)
        );
        assert_eq!(total_calls(""), None);
    }
}
