//! Finds that rules.json or one of its lists was saved, by any editor: the files are few, so they
//! are looked at a few times a second, which sees a rename, a write in place and a link that was
//! turned elsewhere alike, on any file system.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use weir_shared::clock::Clock;

use super::change::{self, Change, Changed, NotChanged};
use super::compile::{Compiled, Compiler, Read};
use super::found::Found;
use super::list_file;
use crate::state::fault::Fault;
use crate::state::stat::Stat;

/// How often the files are looked at.
const POLL: Duration = Duration::from_millis(200);
/// How often while something is not settled.
const TICK: Duration = Duration::from_millis(25);
/// An edit that fits is taken in after the files have lain still for this long.
const SETTLE: Duration = Duration::from_millis(120);
/// One that does not fit may be half of one that does, and a file that is gone may be about to come
/// back.
const SETTLE_BAD: Duration = Duration::from_millis(500);

/// The files that are looked at, each as it was: rules.json first, then its lists.
type Stamps = Vec<(PathBuf, Option<Stat>)>;

fn stamps<'a>(paths: impl Iterator<Item = &'a PathBuf>) -> Stamps {
    paths.map(|path| (path.clone(), Stat::at(path))).collect()
}

/// Reads rules.json and its lists. The stamps are from before the reading: what changes meanwhile
/// is seen at the next look. With a fault the lists that were looked at before stay among them.
pub(super) fn read(
    compiler: &mut Compiler,
    path: &Path,
    before: &[PathBuf],
    now_ms: u64,
) -> (Stamps, Result<Compiled, Fault>) {
    let (seen, read) = read_files(compiler, path, before);
    (seen, read.map(|read| compiler.compile(read, now_ms)))
}

/// The same, not yet compiled: which rule is which stays as it is.
fn read_files(
    compiler: &Compiler,
    path: &Path,
    before: &[PathBuf],
) -> (Stamps, Result<Read, Fault>) {
    let path = path.to_owned();
    let mut seen = stamps(std::iter::once(&path));
    let bytes = match list_file::bytes(&path) {
        Ok(bytes) => Ok(Some(bytes)),
        // Below a file there is nothing either: its owner tells what is wrong with the directory.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Ok(None)
        }
        Err(error) => Err(Fault::unreadable(&error)),
    };
    let read = bytes.and_then(|bytes| {
        let file = compiler.read(bytes.as_deref())?;
        seen.extend(stamps(compiler.list_paths(&file).iter()));
        compiler.read_lists(bytes.as_deref().unwrap_or_default(), file)
    });
    if read.is_err() {
        let more = before
            .iter()
            .filter(|path| !seen.iter().any(|(held, _)| held == *path));
        let more = stamps(more);
        seen.extend(more);
    }
    (seen, read)
}

/// Called once with what became of a change.
pub(super) type Told = Box<dyn FnOnce(Result<Changed, NotChanged>) + Send>;

/// What is told of lists that cannot be used (RULE-10).
pub(super) fn bad_lists(held: &Compiled) -> impl Iterator<Item = Found> {
    held.bad_lists().iter().map(|bad| Found::Fault {
        file: bad.path.display().to_string(),
        error: bad.error.clone(),
    })
}

/// A step of a reload, or a change.
pub(super) enum Order {
    /// Read the files and judge them; a fault is told.
    Read(Sender<Result<(), Fault>>),
    /// Take what was read.
    Take,
    /// Change the file. It is told once that is in force.
    Change(Change, Told),
}

/// The thread's own.
pub(super) struct Watching {
    compiler: Compiler,
    path: PathBuf,
    /// The state that was read, or tried, last.
    known: Stamps,
    /// The latest other state, and since when.
    changed: Option<(Stamps, Instant)>,
    /// What is in force.
    held: Compiled,
    /// What a reload has read and not taken yet.
    read: Option<(Stamps, Read)>,
    /// The lists in force are not kept on disk yet (RULE-10).
    to_be_kept: bool,
    found: Sender<Found>,
    orders: Receiver<Order>,
}

impl Watching {
    pub(super) fn new(
        compiler: Compiler,
        path: PathBuf,
        known: Stamps,
        held: Compiled,
        found: Sender<Found>,
        orders: Receiver<Order>,
    ) -> Self {
        Self {
            compiler,
            path,
            known,
            changed: None,
            held,
            read: None,
            to_be_kept: true,
            found,
            orders,
        }
    }

    /// Looks for changes for as long as the process lives.
    #[expect(
        clippy::disallowed_methods,
        reason = "a thread of its own, at the edge"
    )]
    pub(super) fn run(mut self, clock: &Clock) {
        loop {
            let pause = self.pause(clock.now().wall_ms);
            match self.orders.recv_timeout(pause) {
                Ok(order) => self.obey(order, clock.now().wall_ms),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => std::thread::sleep(pause),
            }
            self.look(Instant::now(), clock.now().wall_ms);
            self.keep_lists();
        }
    }

    /// Keeps the lists in force for a start that cannot read them (RULE-10): once the state
    /// directory is there, and once for each edit.
    fn keep_lists(&mut self) {
        if !self.to_be_kept {
            return;
        }
        match self.compiler.keep(&self.held.read) {
            Err(error) if error.kind() == ErrorKind::NotFound => return,
            Err(error) => tracing::warn!(
                "the lists of the rules cannot be kept in the state directory: {error}; a start that cannot read a list goes without it"
            ),
            Ok(()) => {}
        }
        self.to_be_kept = false;
    }

    fn obey(&mut self, order: Order, now_ms: u64) {
        match order {
            Order::Read(told) => {
                let (stamps, read) = read_files(&self.compiler, &self.path, &[]);
                let read = read.map(|read| self.read = Some((stamps, read)));
                let _ = told.send(read);
            }
            Order::Take => {
                let Some((known, read)) = self.read.take() else {
                    return;
                };
                if known != self.known {
                    self.held = self.compiler.compile(read, now_ms);
                    self.known = known;
                    self.taken(None);
                }
            }
            Order::Change(change, told) => self.change(&change, told, now_ms),
        }
    }

    /// Changes the file, and takes in what then lies there.
    fn change(&mut self, change: &Change, told: Told, now_ms: u64) {
        let changed = match change::change(&self.compiler, &self.path, change, now_ms) {
            Ok(changed) => changed,
            Err(why) => return told(Err(why)),
        };
        if !changed.changed {
            return told(Ok(changed));
        }
        let (known, read) = read(&mut self.compiler, &self.path, &[], now_ms);
        match read {
            Ok(held) => {
                self.held = held;
                self.known = known;
                tracing::info!(
                    file = %self.path.display(), list = change.list.name(), netblock = %change.netblock,
                    removed = change.entry.is_none(), ended = changed.ended, "a list is changed"
                );
                self.taken(Some(Box::new(move || told(Ok(changed)))));
            }
            // Saved by somebody else in this moment: the looks at the file will tell of it.
            Err(fault) => {
                let path = self.path.clone();
                told(Err(NotChanged::DoesNotFit { path, fault }));
            }
        }
    }

    /// What is held was read anew.
    fn taken(&mut self, told: Option<Box<dyn FnOnce() + Send>>) {
        self.changed = None;
        self.to_be_kept = true;
        self.held.log(&self.path);
        self.tell_rules(true, told);
        for fault in bad_lists(&self.held) {
            self.tell(fault);
        }
    }

    fn pause(&self, now_ms: u64) -> Duration {
        let pause = if self.changed.is_some() { TICK } else { POLL };
        let until_end = self.held.ends_ms.map(|end| end.saturating_sub(now_ms));
        until_end.map_or(pause, |end| pause.min(Duration::from_millis(end)))
    }

    /// One look at the files and at the clock.
    fn look(&mut self, now: Instant, now_ms: u64) {
        let current = stamps(self.known.iter().map(|(path, _)| path));
        if current == self.known {
            self.changed = None;
        } else {
            self.look_at_change(current, now, now_ms);
        }
        let has_ended = self.held.ends_ms.is_some_and(|end| end <= now_ms);
        let holds_again = self.held.ended_ms.is_some_and(|end| end > now_ms);
        if has_ended || holds_again {
            let read = std::mem::take(&mut self.held.read);
            self.held = self.compiler.compile(read, now_ms);
            let told = match has_ended {
                true => "an entry of the rules has ended",
                false => "the clock was set back: an entry of the rules holds again",
            };
            tracing::info!(file = %self.path.display(), "{told}");
            self.tell_rules(false, None);
        }
    }

    fn look_at_change(&mut self, current: Stamps, now: Instant, now_ms: u64) {
        let since = match &self.changed {
            Some((seen, since)) if *seen == current => *since,
            _ => {
                self.changed = Some((current, now));
                return;
            }
        };
        let still = now.saturating_duration_since(since);
        let is_gone = current.first().is_some_and(|(_, stamp)| stamp.is_none());
        if still < SETTLE || (is_gone && still < SETTLE_BAD) {
            return;
        }
        let before: Vec<PathBuf> = current
            .iter()
            .skip(1)
            .map(|(path, _)| path.clone())
            .collect();
        let (known, read) = read(&mut self.compiler, &self.path, &before, now_ms);
        match read {
            // Somebody may still be writing a list.
            Ok(held) if still < SETTLE_BAD && !held.bad_lists().is_empty() => {}
            Ok(held) => {
                self.held = held;
                self.known = known;
                tracing::info!(file = %self.path.display(), "edit of the rules taken in");
                self.taken(None);
            }
            Err(fault) if still >= SETTLE_BAD => {
                self.known = known;
                self.changed = None;
                tracing::error!(
                    file = %self.path.display(),
                    line = fault.line,
                    column = fault.column,
                    pointer = fault.pointer,
                    "the edit of the rules is not taken: {fault}; what was held stays in force"
                );
                let file = self.path.display().to_string();
                let error = format!("{file}: {fault}");
                self.tell(Found::Fault { file, error });
            }
            // Somebody may still be writing.
            Err(_) => {}
        }
    }

    fn tell_rules(&self, is_edit: bool, told: Option<Box<dyn FnOnce() + Send>>) {
        let rules = Arc::clone(&self.held.rules);
        self.tell(Found::Taken {
            rules,
            is_edit,
            told,
        });
    }

    /// Waits for room; without a control loop the process is about to end.
    fn tell(&self, found: Found) {
        let _ = self.found.send(found);
    }
}

#[cfg(test)]
mod tests;
