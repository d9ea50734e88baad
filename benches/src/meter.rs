//! What the kernel says of a process and of its threads: CPU time, memory. What is measured is one
//! process: none of the proxies has children here.

use anyhow::{Context, Result, bail};
use procfs::process::{Process, Status, Task};

fn of(process: u32) -> Result<Process> {
    let number = i32::try_from(process)?;
    Process::new(number).with_context(|| format!("process {process} cannot be looked at"))
}

/// Its CPU time in seconds: in itself, and in the kernel.
pub fn cpu_seconds(process: u32) -> Result<[f64; 2]> {
    let stat = of(process)?.stat()?;
    Ok([stat.utime, stat.stime].map(|ticks| ticks as f64 / procfs::ticks_per_second() as f64))
}

/// Its threads, with their names.
pub fn threads(process: u32) -> Result<Vec<(Task, String)>> {
    // One that has just ended has no name.
    let named = |task: Task| task.status().ok().map(|status| (task, status.name));
    Ok(of(process)?.tasks()?.flatten().filter_map(named).collect())
}

/// Time on the processor of those threads of a process whose name begins so, in nanoseconds.
pub fn thread_nanoseconds(process: u32, name: &str) -> Result<u64> {
    let mut threads = threads(process)?;
    threads.retain(|(_, other)| other.starts_with(name));
    if threads.is_empty() {
        bail!("process {process} has no thread {name}");
    }
    let times = threads.iter().map(|(thread, _)| thread.schedstat());
    times.map(|time| Ok(time?.sum_exec_runtime)).sum()
}

/// Memory, threads, and who traces it.
pub fn status(process: u32) -> Result<Status> {
    Ok(of(process)?.status()?)
}

/// What a process holds: resident memory, what of it is its own and not pages of its file, which
/// come in as they are used, open files and threads.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    pub kib: u64,
    pub own_kib: u64,
    pub files: u64,
    pub threads: u64,
}

/// What it holds now.
pub fn held(process: u32) -> Result<Held> {
    let status = status(process)?;
    Ok(Held {
        kib: status.vmrss.context("it has ended")?,
        own_kib: status.rssanon.context("no own memory is told")?,
        files: of(process)?.fd_count()? as u64,
        threads: status.threads,
    })
}

/// Resident memory, in MiB.
pub fn memory_mebibytes(process: u32) -> Result<f64> {
    Ok(held(process)?.kib as f64 / 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_metered_by_name() {
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::Builder::new().name("metered-7".to_owned());
        let thread = thread.spawn(move || ended.recv()).unwrap();
        // It has its name, and its time is brought up to date, a moment after it has begun.
        while thread_nanoseconds(std::process::id(), "metered-").unwrap_or(0) == 0 {
            std::thread::yield_now();
        }
        assert!(thread_nanoseconds(std::process::id(), "nobody-").is_err());
        assert!(memory_mebibytes(std::process::id()).unwrap() > 0.5);
        drop(end);
        thread.join().unwrap().unwrap_err();
    }
}
