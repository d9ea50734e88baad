//! A process of the service, and what must hold of each at its end.
//!
//! When a [`Process`] is dropped, the test's clients are gone as a rule. Then it is at rest: none
//! of its threads works any more. And SIGTERM ends it in time and in good order. A test in which
//! one of these is not so ends its process itself: [`Process::kill`].

use std::fmt::Write as _;
use std::fs;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use super::{PATIENCE, wait_for_within, wait_until};

/// How long a process is watched. Every test pays for it.
const WATCHED: Duration = Duration::from_millis(20);
/// Of that time, the processor time of a process at rest is less than one part in so many.
const PART: u32 = 5;
/// Where others leave it no processor, its threads are found waiting for one at every look: then it
/// is watched for longer, and its processor time is less than one part in so many. Whoever works
/// without an end gets more, unless a hundred others do so beside it.
const WATCHED_LONG: Duration = Duration::from_secs(1);
const PART_LONG: u32 = 50;

/// A process of the service, which is ended with the test.
pub(crate) struct Process {
    child: Child,
    status: Option<ExitStatus>,
}

impl Process {
    #[track_caller]
    pub(crate) fn start(command: &mut Command) -> Self {
        Self {
            child: command.spawn().expect("the binary runs"),
            status: None,
        }
    }

    pub(crate) fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    #[track_caller]
    pub(crate) fn pid(&self) -> Pid {
        let id = i32::try_from(self.id()).ok();
        id.and_then(Pid::from_raw).expect("a process")
    }

    #[track_caller]
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("it is there");
    }

    /// How it ended, if it has.
    #[track_caller]
    pub(crate) fn try_wait(&mut self) -> Option<ExitStatus> {
        self.status = self.child.try_wait().expect("its state");
        self.status
    }

    /// Waits for its end. A stop waits ten seconds for a disk by itself, and a busy machine is
    /// slow to come that far.
    #[track_caller]
    pub(crate) fn wait(&mut self) -> ExitStatus {
        wait_for_within(3 * PATIENCE, "the end of the process", || self.try_wait())
    }

    /// Ends it as a power cut would.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        self.status = self.child.wait().ok();
    }

    /// Ends it, if it runs: it is at rest, and SIGTERM is enough.
    ///
    /// # Errors
    /// A sentence that says what did not hold; it has ended all the same.
    pub(crate) fn end(&mut self) -> Result<(), String> {
        if self.status.is_some() || self.try_wait().is_some() {
            return Ok(());
        }
        let ended = end_within(PATIENCE, self.pid(), || self.try_wait().is_some());
        match self.status {
            None => self.kill(),
            Some(status) if status.success() => {}
            Some(status) => return ended.and(Err(format!("SIGTERM ended it with {status}"))),
        }
        ended
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.kill();
        } else if let Err(fault) = self.end() {
            panic!("{fault}");
        }
    }
}

/// Ends a process that may be no child of ours: it is at rest, and SIGTERM ends it in time.
///
/// # Errors
/// A sentence that says what did not hold.
pub(crate) fn end(pid: Pid) -> Result<(), String> {
    end_within(PATIENCE, pid, || !is_running(pid))
}

/// The same with another patience, for a process whose end is seen otherwise.
pub(crate) fn end_within(
    patience: Duration,
    pid: Pid,
    mut has_ended: impl FnMut() -> bool,
) -> Result<(), String> {
    let rests = comes_to_rest(pid, patience);
    // It may end by itself meanwhile.
    let _ = kill_process(pid, Signal::TERM);
    let deadline = Instant::now() + patience;
    while !has_ended() {
        if Instant::now() > deadline {
            let said = format!("SIGTERM did not end it within {patience:?}");
            return rests.and(Err(said));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    rests
}

/// Whether a process is there and has not ended: one that nobody waits for is there for ever.
pub(crate) fn is_running(pid: Pid) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    test_kill_process(pid).is_ok() && status.is_ok_and(|text| !text.contains(") Z "))
}

/// Waits for the end of a process that may be no child of ours.
#[track_caller]
pub(crate) fn wait_for_end(pid: Pid) {
    wait_until("the end of a process", || !is_running(pid));
}

/// The columns of /proc/net/tcp with a socket's own address, and with the other end's.
pub(crate) const OWN_ADDRESS: usize = 1;
pub(crate) const OTHER_ADDRESS: usize = 2;

/// Waits until the established connections of this process with this port in this column have a
/// timer of TCP keep-alive, and there is one at least.
#[track_caller]
pub(crate) fn wait_for_keep_alive(pid: u32, port: u16, column: usize) {
    // Its sockets alone: ports of other connections on this machine may be the same ones.
    let is_ours = |inode: &str| {
        let files = fs::read_dir(format!("/proc/{pid}/fd")).expect("its files");
        let socket = format!("socket:[{inode}]");
        let mut targets = files.filter_map(|file| fs::read_link(file.ok()?.path()).ok());
        targets.any(|target| target.as_os_str() == &*socket)
    };
    let port = format!(":{port:04X}");
    wait_until("a timer of keep-alive", || {
        let table = fs::read_to_string("/proc/net/tcp").expect("the sockets");
        let lines = table
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>());
        // 01: established. The table is read in pieces: a connection may be in it twice.
        let ours: Vec<_> = lines
            .filter(|line| line[column].ends_with(&port) && line[3] == "01" && is_ours(line[9]))
            .collect();
        // 02: the timer of keep-alive.
        let timed = ours.iter().all(|line| line[5].starts_with("02"));
        timed && !ours.is_empty()
    });
}

/// Whether a process catches the last of the signals that it sets handlers for.
pub(crate) fn has_handlers(pid: Pid) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero()));
    let status = status.unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    caught.is_some_and(|mask| mask & 1 << (Signal::USR2.as_raw() - 1) != 0)
}

/// A thread at one moment.
struct Thread {
    id: String,
    name: String,
    /// It runs, or waits for a processor.
    is_runnable: bool,
    worked: Duration,
}

impl Thread {
    /// How long it worked since an earlier look.
    fn since(&self, earlier: &[Self]) -> Duration {
        let before = earlier.iter().find(|before| before.id == self.id);
        let before = before.map_or(Duration::ZERO, |before| before.worked);
        self.worked.saturating_sub(before)
    }
}

/// Waits until a process is at rest: a busy machine comes late to what is still to be done.
///
/// # Errors
/// A sentence with the threads that still work.
pub(crate) fn comes_to_rest(pid: Pid, patience: Duration) -> Result<(), String> {
    let (began, first) = (Instant::now(), threads(pid));
    let mut before = threads(pid);
    let mut looked = Instant::now();
    let (mut long_before, mut long_looked) = (threads(pid), Instant::now());
    loop {
        std::thread::sleep(WATCHED);
        let (after, watched) = (threads(pid), looked.elapsed());
        let worked = |before: &[Thread]| -> Duration {
            after.iter().map(|thread| thread.since(before)).sum()
        };
        let is_waiting = after.iter().any(|thread| thread.is_runnable);
        if worked(&before) <= watched / PART && !is_waiting {
            return Ok(());
        }
        let watched = long_looked.elapsed();
        if watched >= WATCHED_LONG {
            if worked(&long_before) <= watched / PART_LONG {
                return Ok(());
            }
            (long_before, long_looked) = (threads(pid), Instant::now());
        }
        if began.elapsed() > patience {
            let mut fault = format!("{patience:?} after the last client it is not at rest:");
            for thread in &after {
                let worked = thread.since(&first);
                if worked > WATCHED {
                    let _ = write!(fault, " {} worked {worked:?}", thread.name);
                }
            }
            return Err(fault);
        }
        (before, looked) = (after, Instant::now());
    }
}

/// The threads of a process; none once it has ended.
fn threads(pid: Pid) -> Vec<Thread> {
    let folder = fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero()));
    let entries = folder.into_iter().flatten().flatten();
    // One that ends meanwhile is not at work.
    entries.filter_map(|entry| thread(&entry.path())).collect()
}

fn thread(folder: &std::path::Path) -> Option<Thread> {
    let stat = fs::read_to_string(folder.join("stat")).ok()?;
    let (name, rest) = stat.split_once('(')?.1.rsplit_once(')')?;
    // Nanoseconds on a processor, and two more numbers.
    let times = fs::read_to_string(folder.join("schedstat")).ok()?;
    Some(Thread {
        id: folder.file_name()?.to_str()?.to_owned(),
        name: name.to_owned(),
        is_runnable: rest.trim_start().starts_with('R'),
        worked: Duration::from_nanos(times.split(' ').next()?.parse().ok()?),
    })
}
