//! Notices that rules.json or one of its lists was saved, by any editor, and loads it once it has
//! not changed for a moment.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};

use super::change;
use super::compile::{Compiled, Compiler, Read};
use super::entry::{Change, Changed, NotChanged};
use super::found::Found;
use super::list_file;
use super::listed::FileChange;
use crate::faults::{Faults, PartFault};
use crate::feeds::handle::FeedsHandle;
use crate::feeds::kept::Offered;
use crate::memory;
use crate::state::fault::Fault;
use crate::watching::file::{Doubts, Known, Stamps, stamps};
use crate::watching::settling::Settling;
use crate::watching::{POLL, Watched};

/// How often the files are looked at while they change.
const TICK: Duration = Duration::from_millis(25);
/// A valid edit is loaded once the files have not changed for this long.
const SETTLE: Duration = Duration::from_millis(120);
/// The same for a faulty edit or a missing file: it may be partly saved, or about to come back.
const SETTLE_BAD: Duration = Duration::from_millis(500);

/// Reads rules.json and its lists. The state of the files, rules.json first, is taken before the
/// reading, so that a change meanwhile is seen at the next look. With a fault it still includes the
/// earlier lists.
pub(super) fn read(
    compiler: &mut Compiler,
    path: &Path,
    before: &[PathBuf],
    now_ms: u64,
) -> (Known, Result<Compiled, Fault>) {
    let (seen, read) = read_files(compiler, path, before);
    (seen, read.map(|read| compiler.compile(read, now_ms)))
}

/// Reads the files without compiling them, so that the identity of rules does not change.
fn read_files(
    compiler: &Compiler,
    path: &Path,
    before: &[PathBuf],
) -> (Known, Result<Read, Fault>) {
    let path = path.to_owned();
    let mut seen = Known::of([&path]);
    let bytes = match list_file::bytes(&path) {
        Ok(bytes) => Ok(Some(bytes)),
        // A path below a file does not exist either: the owner of the state directory reports that
        // fault.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Ok(None)
        }
        Err(error) => Err(Fault::unreadable(&error)),
    };
    let read = bytes.and_then(|bytes| {
        let file = compiler.read(bytes.as_deref())?;
        seen.extend(&compiler.list_paths(&file));
        compiler.read_lists(bytes.as_deref().unwrap_or_default(), file)
    });
    if read.is_err() {
        let is_new = |path: &&PathBuf| !seen.stamps.iter().any(|(held, _)| held == *path);
        let more: Vec<_> = before.iter().filter(is_new).collect();
        seen.extend(more);
    }
    (seen, read)
}

/// Called once with the result of a change.
pub(crate) type Told = Box<dyn FnOnce(Result<Changed, NotChanged>) + Send>;

/// Reports and counts refused edits, and unusable lists (RULE-10).
#[derive(Clone, Default)]
pub(super) struct Bad {
    pub(super) faults: Faults,
    pub(super) count: Arc<AtomicU64>,
}

impl Bad {
    fn tell(&self, path: &Path, error: &str) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.faults.tell(PartFault::file(&path.display(), error));
    }

    pub(super) fn tell_lists(&self, held: &Compiled) {
        for bad in held.bad_lists() {
            self.tell(&bad.path, &bad.error);
        }
    }
}

/// A step of a reload, or a change.
pub(super) enum WatchCommand {
    /// Read and check the files, and reply with a fault, if any.
    Read(Sender<Result<(), Fault>>),
    /// Put the files that were read into force, then call this.
    Take(Box<dyn FnOnce() + Send>),
    /// Change the file, and reply once the change is in force.
    Change(Change, Told),
    /// Write these entries to lists.json, and reply once they are in force.
    Lists(Vec<FileChange>, Told),
    /// Take a version of a feed, or reply why not.
    Feed(Offered, Sender<Result<(), String>>),
}

/// The state of the thread.
pub(super) struct Watching {
    compiler: Compiler,
    path: PathBuf,
    settling: Settling<Stamps>,
    doubts: Doubts,
    /// The rules in force.
    held: Compiled,
    /// The state of files that were read and refused, while somebody may still be writing.
    in_vain: Option<Stamps>,
    /// The files that a reload has read and not put into force yet.
    read: Option<(Known, Read)>,
    /// The number of entries in force when it was last logged.
    told: usize,
    /// True while the lists in force are not kept on disk yet (RULE-10).
    to_be_kept: bool,
    /// The thread of the feeds.
    feeds: FeedsHandle,
    bad: Bad,
    found: Sender<Found>,
    orders: Receiver<WatchCommand>,
}

impl Watching {
    pub(super) fn new(
        compiler: Compiler,
        path: PathBuf,
        known: Known,
        held: Compiled,
        feeds: FeedsHandle,
        bad: Bad,
        (found, orders): (Sender<Found>, Receiver<WatchCommand>),
    ) -> Self {
        feeds.want(held.feeds(&path));
        Self {
            feeds,
            compiler,
            path,
            settling: Settling::new(known.stamps),
            doubts: known.doubts,
            told: held.entries(),
            held,
            in_vain: None,
            read: None,
            to_be_kept: true,
            bad,
            found,
            orders,
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

    fn obey(&mut self, order: WatchCommand, now_ms: u64) {
        match order {
            WatchCommand::Read(told) => {
                let (known, read) = read_files(&self.compiler, &self.path, &[]);
                let read = read.map(|read| self.read = Some((known, read)));
                let _ = told.send(read);
            }
            WatchCommand::Take(told) => match self.read.take() {
                Some((known, read)) if known.stamps != *self.settling.known() => {
                    let read = self.compiler.with_feeds(read);
                    self.held = self.compiler.compile(read, now_ms);
                    self.settle(known);
                    self.taken(Some(told));
                }
                // Rules that were loaded a moment ago may still be on their way to the control
                // loop.
                Some(_) | None => self.tell_rules(false, Some(told)),
            },
            WatchCommand::Change(change, told) => self.change(&change, told, now_ms),
            WatchCommand::Lists(changes, told) => {
                let changed = self.compiler.change_lists(&changes, now_ms);
                self.changed(changed, told, now_ms);
            }
            WatchCommand::Feed(offered, told) => {
                let taken = Compiler::put_feed(&mut self.held.read, offered);
                if taken.is_ok() {
                    self.compile_again(now_ms);
                    self.tell_rules(false, None);
                }
                let _ = told.send(taken);
            }
        }
    }

    /// Changes a file, and loads the result.
    fn change(&mut self, change: &Change, told: Told, now_ms: u64) {
        let changed = if self.compiler.is_of_lists(change) {
            let changes = [FileChange::asked(change)];
            self.compiler.change_lists(&changes, now_ms)
        } else {
            change::change(&self.compiler, &self.path, change, now_ms)
        };
        if changed.as_ref().is_ok_and(|changed| changed.changed) {
            tracing::info!(
                list = change.list.name(), netblock = %change.netblock,
                removed = change.entry.is_none(), "a list is changed"
            );
        }
        self.changed(changed, told, now_ms);
    }

    fn changed(&mut self, changed: Result<Changed, NotChanged>, told: Told, now_ms: u64) {
        let changed = match changed {
            Ok(changed) if changed.changed => changed,
            other => return told(other),
        };
        let (known, read) = read(&mut self.compiler, &self.path, &[], now_ms);
        match read {
            Ok(held) => {
                self.held = held;
                self.settle(known);
                self.taken(Some(Box::new(move || told(Ok(changed)))));
            }
            // Another program saved the file at this moment: the next looks will notice it.
            Err(fault) => {
                let path = self.path.clone();
                told(Err(NotChanged::DoesNotFit { path, fault }));
            }
        }
    }

    /// Passes newly read rules to the control loop.
    fn taken(&mut self, told: Option<Box<dyn FnOnce() + Send>>) {
        self.to_be_kept = true;
        self.held.log(&self.path);
        self.feeds.want(self.held.feeds(&self.path));
        self.tell_rules(true, told);
        self.bad.tell_lists(&self.held);
    }

    /// These files were read.
    fn settle(&mut self, known: Known) {
        self.settling.take(known.stamps);
        self.doubts = known.doubts;
    }

    fn pause(&self, now_ms: u64) -> Duration {
        let pause = if self.settling.is_settled() && self.doubts.is_empty() {
            POLL
        } else {
            TICK
        };
        let until_end = self.held.ends_ms.map(|end| end.saturating_sub(now_ms));
        until_end.map_or(pause, |end| pause.min(Duration::from_millis(end)))
    }

    /// Looks once at the files and at the clock.
    fn look_once(&mut self, now: Instant, now_ms: u64) {
        self.doubts.look(&mut self.settling);
        let current = stamps(self.settling.known().iter().map(|(path, _)| path));
        if let Some(still) = self.settling.look(current.clone(), now) {
            self.look_at_change(&current, still, now_ms);
        }
        let has_ended = self.held.ends_ms.is_some_and(|end| end <= now_ms);
        let holds_again = self.held.ended_ms.is_some_and(|end| end > now_ms);
        if has_ended || holds_again {
            self.compile_again(now_ms);
            if self.held.has_ends_of_feeds() {
                self.feeds.want(self.held.feeds(&self.path));
            }
            let told = match has_ended {
                true => "an entry of the rules has ended",
                false => "the clock was set back: an entry of the rules holds again",
            };
            tracing::info!(file = %self.path.display(), "{told}");
            self.tell_rules(false, None);
        }
    }

    /// Compiles the same files again, for the current time.
    fn compile_again(&mut self, now_ms: u64) {
        let read = std::mem::take(&mut self.held.read);
        self.held = self.compiler.compile(read, now_ms);
    }

    /// Handles files that have changed and have not changed again for `still`.
    fn look_at_change(&mut self, current: &Stamps, still: Duration, now_ms: u64) {
        let is_gone = current.first().is_some_and(|(_, stamp)| stamp.is_none());
        if still < SETTLE || (is_gone && still < SETTLE_BAD) {
            return;
        }
        // A refused state is read once more when it has been unchanged for longer.
        if still < SETTLE_BAD && self.in_vain.as_ref() == Some(current) {
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
            Ok(held) if still < SETTLE_BAD && !held.bad_lists().is_empty() => {
                self.in_vain = Some(current.clone());
            }
            Ok(held) => {
                self.held = held;
                self.settle(known);
                tracing::info!(file = %self.path.display(), "edit of the rules taken in");
                self.taken(None);
            }
            Err(fault) if still >= SETTLE_BAD => {
                self.settle(known);
                tracing::error!(
                    file = %self.path.display(),
                    line = fault.line,
                    column = fault.column,
                    pointer = fault.pointer,
                    "the edit of the rules is not taken: {fault}; what was held stays in force"
                );
                let error = format!("{}: {fault}", self.path.display());
                self.bad.tell(&self.path, &error);
            }
            // Somebody may still be writing.
            Err(_) => self.in_vain = Some(current.clone()),
        }
    }

    fn tell_rules(&mut self, is_edit: bool, told: Option<Box<dyn FnOnce() + Send>>) {
        let entries = self.held.entries();
        memory::freed(entries.max(std::mem::replace(&mut self.told, entries)));
        let rules = Arc::clone(&self.held.rules);
        let (lists, digest) = self.held.listed();
        // Waits for room. If the control loop is gone, the process is about to end.
        let _ = self.found.send(Found {
            rules,
            lists,
            digest,
            is_edit,
            told,
        });
    }
}

impl Watched for Watching {
    fn files(&self) -> Vec<PathBuf> {
        let known = self.settling.known().iter();
        known.map(|(path, _)| path.clone()).collect()
    }

    fn look(&mut self, now: Instant, now_ms: u64) -> Duration {
        while let Ok(order) = self.orders.try_recv() {
            self.obey(order, now_ms);
        }
        self.look_once(now, now_ms);
        self.keep_lists();
        self.pause(now_ms)
    }
}

#[cfg(test)]
mod tests;
