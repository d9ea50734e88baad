//! rules.json and its lists: read at the start, watched while the service runs, checked, compiled
//! and passed to the control loop, which publishes them with the bans (RULE).
//!
//! Only the thread `weir-files` (`watching/`) reads them, and writes them when a command changes a
//! list. `document.rs` reads the file, `list_text.rs` a list, `compile.rs` makes rules from both,
//! `watch.rs` finds edits, `change.rs` changes a list, `swap.rs` replaces the file.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crossbeam_channel::{Receiver, Select, Sender, bounded, never};
use weir_shared::clock::{Clock, Now};
use weir_shared::reload::{Part, Take};
use weir_shared::rules::{Crawler, Per, Rule, RuleSet};
use weir_shared::settings::{LookupSource, Settings};
use weir_shared::table::{SharedCountsUse, SharedUse};

mod agent_file;
mod change;
mod choosing;
mod compile;
mod document;
mod entry;
mod fed;
mod found;
mod kept;
mod list_file;
mod list_text;
mod listed;
mod making;
mod swap;
mod watch;

use compile::Compiler;
pub use entry::{Change, Changed, Entry, List, ListKey, NotChanged};
pub(crate) use found::Found;
pub(crate) use list_file::FILE;
#[cfg(feature = "fleet")]
pub(crate) use listed::Expected;
pub(crate) use listed::{Entries, FileChange, SharedLists, too_much};
pub(crate) use watch::Told as OnChanged;
use watch::{Bad, WatchCommand, Watching};

use crate::faults::{Faults, PartFault};
use crate::feeds::handle::FeedsHandle;
use crate::feeds::said::Outlets;
use crate::watching::{FileThread, Subject};

/// Loaded rules that may wait for the loop; the thread waits for room.
const WAITING: usize = 4;
/// Steps of reloads, and changes, that may wait for the thread; a further change is answered 503.
const ORDERS: usize = 64;
/// How long the thread may take to read the files.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why the rules cannot be used at the start.
#[derive(Debug, thiserror::Error)]
pub enum RulesError {
    /// rules.json cannot be used.
    #[error("rules file {} does not fit: {fault}; mend it or move it away", path.display())]
    DoesNotFit {
        /// The file.
        path: PathBuf,
        /// Where and why.
        fault: crate::state::fault::Fault,
    },
    /// lists.json cannot be used.
    #[error("{0}; mend it or move it away")]
    Lists(String),
    /// The root certificates for feeds cannot be used.
    #[error("{0}")]
    Roots(String),
}

/// The facts for the metrics.
#[derive(Clone, Debug, Default)]
pub(crate) struct RulesFacts {
    /// Edits of rules.json and its lists that were put into force.
    pub(crate) edits_taken: u64,
    /// Edits that were refused.
    pub(crate) edits_bad: u64,
    /// Every rule and list in force.
    pub(crate) rules: Vec<Arc<Rule>>,
    /// Every crawler in force.
    pub(crate) crawlers: Vec<Arc<Crawler>>,
}

/// The control loop's handle of the rules.
pub struct LiveRules {
    current: Arc<RuleSet>,
    lists: Arc<SharedLists>,
    digest: u64,
    found: Receiver<Found>,
    orders: RulesOrders,
    feeds: FeedsHandle,
    edits_taken: u64,
    bad: Bad,
}

impl Default for LiveRules {
    /// No rules, and no file.
    fn default() -> Self {
        Self {
            current: Arc::default(),
            lists: Arc::default(),
            digest: 0,
            found: never(),
            orders: RulesOrders::default(),
            feeds: FeedsHandle::default(),
            edits_taken: 0,
            bad: Bad::default(),
        }
    }
}

#[cfg(test)]
impl LiveRules {
    /// No rules, and these feeds.
    pub(crate) fn with_feeds(feeds: FeedsHandle) -> Self {
        Self {
            feeds,
            ..Self::default()
        }
    }
}

/// The queue of the thread for reloads and changes.
#[derive(Clone, Default)]
pub(crate) struct RulesOrders {
    /// None without a thread.
    orders: Option<(Sender<WatchCommand>, FileThread)>,
    path: PathBuf,
}

impl RulesOrders {
    /// Has a list changed. Calls `told` once the change is in force or refused; drops `told` if too
    /// many changes wait.
    pub(crate) fn change(
        &self,
        change: Change,
        told: impl FnOnce(Result<Changed, NotChanged>) + Send + 'static,
    ) {
        if let Some((orders, looks)) = &self.orders {
            let _ = orders.try_send(WatchCommand::Change(change, Box::new(told)));
            looks.wake();
        }
    }

    /// Has the fleet's entries written to lists.json. Calls `told` once they are in force or
    /// refused; drops `told` if too many changes wait.
    pub(crate) fn file(
        &self,
        changes: Vec<FileChange>,
        told: impl FnOnce(Result<Changed, NotChanged>) + Send + 'static,
    ) {
        if let Some((orders, looks)) = &self.orders {
            let _ = orders.try_send(WatchCommand::Lists(changes, Box::new(told)));
            looks.wake();
        }
    }

    /// The callbacks by which the thread of the feeds delivers versions and faults.
    fn outlets(&self, faults: &Faults) -> Outlets {
        let (rules, faults) = (self.clone(), faults.clone());
        Outlets {
            offer: Box::new(move |offered| {
                let late = |_| "the thread that looks at files does not answer".to_owned();
                let Some((orders, looks)) = &rules.orders else {
                    return Err("nobody reads rules.json".to_owned());
                };
                let (told, taken) = bounded(1);
                let order = WatchCommand::Feed(offered, told);
                let sent = orders.send_timeout(order, PATIENCE).map_err(drop);
                sent.map_err(late)?;
                looks.wake();
                let taken = taken.recv_timeout(PATIENCE).map_err(drop);
                taken.map_err(late)?
            }),
            alert: Box::new(move |feed, error| faults.tell(PartFault::feed(feed, error))),
        }
    }

    /// The rules' part of a reload: reads rules.json and its lists again.
    pub(crate) fn part(&self) -> Part {
        let asked = self.clone();
        Box::new(move |_| {
            let Some((orders, looks)) = asked.orders.clone() else {
                return Ok(Box::new(|| Ok(())) as Take);
            };
            let late = || "the thread that looks at files does not answer: try again".to_owned();
            let (told, read) = bounded(1);
            let order = WatchCommand::Read(told);
            orders
                .send_timeout(order, PATIENCE)
                .map_err(|_| vec![late()])?;
            looks.wake();
            let read = read.recv_timeout(PATIENCE).map_err(|_| vec![late()])?;
            let path = asked.path.clone();
            let file = path.clone();
            read.map_err(|fault| vec![RulesError::DoesNotFit { path, fault }.to_string()])?;
            Ok(Box::new(move || {
                let (told, taken) = bounded(1);
                let told = Box::new(move || told.send(()).unwrap_or_default());
                let sent = orders.send_timeout(WatchCommand::Take(told), PATIENCE);
                looks.wake();
                // The reload is answered only once they are in force.
                let taken = sent.is_ok() && taken.recv_timeout(PATIENCE).is_ok();
                taken.then_some(()).ok_or_else(|| {
                    format!("{}: what was in force stays so: {}", file.display(), late())
                })
            }) as Take)
        })
    }
}

/// Reads rules.json and its lists without a start (CONTROL-4, CONTROL-6), with a sentence for each
/// unusable list (RULE-10).
///
/// # Errors
/// As [`LiveRules::start`].
pub(crate) fn read(
    settings: &Settings,
    now: Now,
) -> Result<(Arc<RuleSet>, Vec<String>), RulesError> {
    let path = path_of(settings);
    let mut compiler = Compiler::of(settings, &path);
    let (_, read) = watch::read(&mut compiler, &path, &[], now.wall_ms);
    match read {
        Ok(read) => {
            if let Some(fault) = read.bad_listed() {
                return Err(RulesError::Lists(fault.to_owned()));
            }
            let bad = read.bad_lists().iter().map(|bad| bad.error.clone());
            let feeds = read.feeds(&path).into_iter();
            let keys = feeds.filter_map(|(wanted, _)| {
                let key = crate::feeds::stream::key(&wanted.crowdsec?.key_file);
                Some(format!("the feed {:?}: {}", wanted.name, key.err()?))
            });
            let is_idle = settings.lookup.source == LookupSource::Off;
            let idle = read.rules.feeds.iter().filter(|_| is_idle);
            let idle = idle.filter_map(|feed| fed::idle(feed));
            Ok((
                Arc::clone(&read.rules),
                bad.chain(keys).chain(idle).collect(),
            ))
        }
        Err(fault) => Err(RulesError::DoesNotFit { path, fault }),
    }
}

/// Changes a list of a file that no service watches (CONTROL-8).
///
/// # Errors
/// [`NotChanged`]; the file is as it was.
pub(crate) fn change_file(path: &Path, asked: &Change, now: Now) -> Result<Changed, NotChanged> {
    // Lists are checked as they are: no earlier content is used instead.
    let beside = path.parent().unwrap_or(Path::new(""));
    change::change(&Compiler::new(path, beside), path, asked, now.wall_ms)
}

/// Whether lists.json of this state directory has the entry to change.
///
/// # Errors
/// [`NotChanged::DoesNotFit`]
pub(crate) fn holds_list(state_dir: &Path, asked: &Change) -> Result<bool, NotChanged> {
    let path = state_dir.join(list_file::LISTS);
    match listed::read_at(&path) {
        Ok(entries) => Ok(entries.is_some_and(|entries| entries.contains_key(&asked.key()))),
        Err(fault) => Err(NotChanged::DoesNotFit { path, fault }),
    }
}

/// Changes lists.json of this state directory, which no service watches. `held` is its earlier
/// content, for a file that is gone.
///
/// # Errors
/// [`NotChanged`]; the file is as it was.
pub(crate) fn change_lists(
    state_dir: &Path,
    held: &Entries,
    asked: &Change,
    now: Now,
) -> Result<Changed, NotChanged> {
    let path = state_dir.join(list_file::LISTS);
    let held = listed::Held {
        entries: held,
        sets_aside: false,
    };
    listed::change(
        &path,
        held,
        &[listed::FileChange::asked(asked)],
        now.wall_ms,
    )
}

/// Entry point for the fuzz targets.
#[cfg(fuzzing)]
pub mod fuzzing {
    use std::path::Path;

    use super::Compiler;

    /// A reader of rules.json. Lists that it names do not exist.
    pub struct Rules(Compiler);

    impl Rules {
        /// A reader without a file.
        pub fn new() -> Self {
            Self(Compiler::new(
                Path::new("/nowhere/rules.json"),
                Path::new("/nowhere"),
            ))
        }

        /// The kinds and names of all rules in force at a given time, or the fault of the file.
        pub fn read(&mut self, bytes: &[u8], now_ms: u64) -> Result<Vec<String>, String> {
            let file = self
                .0
                .read(Some(bytes))
                .map_err(|fault| fault.to_string())?;
            let read = self.0.read_lists(bytes, file);
            let read = read.map_err(|fault| fault.to_string())?;
            let rules = self.0.compile(read, now_ms).rules;
            let named = |rule: &std::sync::Arc<weir_shared::rules::Rule>| {
                format!("{} {}", rule.kind.name(), rule.name)
            };
            Ok(rules.rules().map(named).collect())
        }
    }
}

fn path_of(settings: &Settings) -> PathBuf {
    let file = settings.state.rules_file.clone();
    file.unwrap_or_else(|| settings.state.dir.join(FILE))
}

impl LiveRules {
    /// Reads rules.json and its lists, and has them watched.
    ///
    /// # Errors
    /// [`RulesError`], one sentence an operator can act on.
    pub fn start(
        settings: &Settings,
        clock: &Clock,
        looks: &FileThread,
    ) -> Result<Self, RulesError> {
        crate::feeds::handle::check(settings).map_err(RulesError::Roots)?;
        let path = path_of(settings);
        let mut compiler = Compiler::of(settings, &path);
        let now = clock.now();
        let (known, read) = watch::read(&mut compiler, &path, &[], now.wall_ms);
        let read = read.map_err(|fault| RulesError::DoesNotFit {
            path: path.clone(),
            fault,
        })?;
        if let Some(fault) = read.bad_listed() {
            return Err(RulesError::Lists(fault.to_owned()));
        }
        let current = Arc::clone(&read.rules);
        let (lists, digest) = read.listed();
        read.log(&path);
        let bad = Bad {
            faults: looks.faults().clone(),
            count: Arc::default(),
        };
        bad.tell_lists(&read);
        let (found_out, found) = bounded(WAITING);
        let (orders, ordered) = bounded(ORDERS);
        let orders = RulesOrders {
            orders: Some((orders, looks.clone())),
            path: path.clone(),
        };
        let outlets = orders.outlets(&bad.faults);
        let feeds = FeedsHandle::new(settings, clock.clone(), outlets);
        let channels = (found_out, ordered);
        let watching = Watching::new(
            compiler,
            path,
            known,
            read,
            feeds.clone(),
            bad.clone(),
            channels,
        );
        looks.watch(Subject::Rules, watching);
        Ok(Self {
            current,
            lists,
            digest,
            found,
            orders,
            feeds,
            edits_taken: 0,
            bad,
        })
    }

    /// The queue of the thread, for reloads and changes.
    pub(crate) fn orders(&self) -> RulesOrders {
        self.orders.clone()
    }

    /// The handle of the thread of the feeds.
    pub(crate) fn feeds(&self) -> FeedsHandle {
        self.feeds.clone()
    }

    /// The use of counts by the limits and crawlers of these rules, and 0 of each shared limit that
    /// has none. Counts outlive a limit that is removed or gets another `per`, because it may come
    /// back.
    pub(crate) fn in_force(&self, mut used: SharedCountsUse) -> SharedCountsUse {
        let crawlers = || self.current.crawlers();
        let crawlers = || crawlers().map(|crawler| (&crawler.rule, Per::All.shared()));
        let limits = || self.current.all_limits().iter();
        let limits = || limits().map(|limit| (&limit.rule, limit.per.shared()));
        let is_of = |of: &SharedUse| {
            let mut all = limits().chain(crawlers());
            all.any(|(rule, per)| per == Some(of.per) && Arc::ptr_eq(rule, &of.rule))
        };
        used.rules.retain(is_of);
        for (rule, per) in limits().filter_map(|(rule, per)| Some((rule, per?))) {
            if !used.rules.iter().any(|of| Arc::ptr_eq(rule, &of.rule)) {
                used.rules.push(SharedUse {
                    rule: Arc::clone(rule),
                    per,
                    ratio: 0.0,
                    keys: 0,
                    counts: 0,
                });
            }
        }
        used
    }

    /// The rules in force.
    pub fn current(&self) -> Arc<RuleSet> {
        Arc::clone(&self.current)
    }

    /// lists.json, and the digest of rules.json.
    pub(crate) fn lists(&self) -> (Arc<SharedLists>, u64) {
        (Arc::clone(&self.lists), self.digest)
    }

    /// Adds the channel of loaded rules to the loop's select.
    pub(crate) fn select<'a>(&'a self, select: &mut Select<'a>) {
        select.recv(&self.found);
    }

    /// The next loaded rules, if any; an edit is counted when it is returned.
    pub(crate) fn next(&mut self) -> Option<Found> {
        let found = match self.found.try_recv() {
            Ok(found) => found,
            Err(crossbeam_channel::TryRecvError::Empty) => return None,
            // A disconnected channel is always ready: it would wake the loop without a pause.
            Err(crossbeam_channel::TryRecvError::Disconnected) => {
                self.found = never();
                return None;
            }
        };
        self.current = Arc::clone(&found.rules);
        self.lists = Arc::clone(&found.lists);
        self.digest = found.digest;
        self.edits_taken += u64::from(found.is_edit);
        Some(found)
    }

    pub(crate) fn facts(&self) -> RulesFacts {
        RulesFacts {
            edits_taken: self.edits_taken,
            edits_bad: self.bad.count.load(Ordering::Relaxed),
            rules: self.current.rules().cloned().collect(),
            crawlers: self.current.crawlers().cloned().collect(),
        }
    }
}
