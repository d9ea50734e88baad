//! rules.json and its lists: read at the start, watched while the service runs, judged, compiled
//! and handed to the control loop, which publishes them with the bans (RULE).
//!
//! The thread `weir-files` (`watching/`) alone reads them, and it alone writes, where a command
//! asks for a change of a list. `document.rs` says what the file may hold, `list_file.rs` what a
//! list may, `compile.rs` makes the rules of both, `watch.rs` finds what was saved, `change.rs`
//! changes a list, `swap.rs` replaces the file.

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

/// What the thread found and the loop has not taken yet; the thread waits for room.
const WAITING: usize = 4;
/// Steps of reloads, and changes, that may wait for the thread; one more change is 503.
const ORDERS: usize = 64;
/// How long the thread may take to read the files.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why the rules cannot be used at the start.
#[derive(Debug, thiserror::Error)]
pub enum RulesError {
    /// The file cannot be used.
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
    /// The roots for feeds cannot be used.
    #[error("{0}")]
    Roots(String),
}

/// For the metrics.
#[derive(Clone, Debug, Default)]
pub(crate) struct RulesFacts {
    /// Edits of rules.json and its lists that are in force.
    pub(crate) edits_taken: u64,
    /// Those that were told as faults.
    pub(crate) edits_bad: u64,
    /// Every rule and list that is in force.
    pub(crate) rules: Vec<Arc<Rule>>,
    /// Every crawler that is in force.
    pub(crate) crawlers: Vec<Arc<Crawler>>,
}

/// The loop's side.
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

/// How a reload asks the thread.
#[derive(Clone, Default)]
pub(crate) struct RulesOrders {
    /// None without a thread.
    orders: Option<(Sender<WatchCommand>, FileThread)>,
    path: PathBuf,
}

impl RulesOrders {
    /// Has a list changed. Once that is in force, or is not to be, `told` is called; where too many
    /// changes wait it is dropped.
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

    /// Has lists.json hold what a fleet says. Once that is in force, or is not to be, `told` is
    /// called; where too many changes wait it is dropped.
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

    /// Where the thread of the feeds brings its versions, and its faults.
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

    /// The part of a reload: rules.json and its lists are read again.
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
                // Before they are in force the reload is not answered.
                let taken = sent.is_ok() && taken.recv_timeout(PATIENCE).is_ok();
                taken.then_some(()).ok_or_else(|| {
                    format!("{}: what was in force stays so: {}", file.display(), late())
                })
            }) as Take)
        })
    }
}

/// What rules.json and its lists say now, without a start (CONTROL-4, CONTROL-6), with a sentence
/// for each list that cannot be used (RULE-10).
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
    // Lists are judged as they lie there: none that was good before stands in.
    let beside = path.parent().unwrap_or(Path::new(""));
    change::change(&Compiler::new(path, beside), path, asked, now.wall_ms)
}

/// Whether lists.json of this state directory has the entry that is to be changed.
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

/// Changes lists.json of this state directory, which no service watches. `held` is what it held
/// where it is gone.
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

    /// What reads rules.json. Lists that it names lie beside a file that is not there.
    pub struct Rules(Compiler);

    impl Rules {
        /// With no file.
        pub fn new() -> Self {
            Self(Compiler::new(
                Path::new("/nowhere/rules.json"),
                Path::new("/nowhere"),
            ))
        }

        /// The kinds and names of all rules that hold at a moment; the fault where the file does
        /// not fit.
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
    /// Reads rules.json and its lists, and has them looked at.
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
        let (stamps, read) = watch::read(&mut compiler, &path, &[], now.wall_ms);
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
            stamps,
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

    /// How a reload asks for them.
    pub(crate) fn orders(&self) -> RulesOrders {
        self.orders.clone()
    }

    /// How others speak to the thread of the feeds.
    pub(crate) fn feeds(&self) -> FeedsHandle {
        self.feeds.clone()
    }

    /// What limits and crawlers use that these rules still have: counts outlive a limit that is
    /// taken out, or gets another `per`, for it may come back.
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
        used
    }

    /// The rules that hold.
    pub fn current(&self) -> Arc<RuleSet> {
        Arc::clone(&self.current)
    }

    /// lists.json, and a number for rules.json.
    pub(crate) fn lists(&self) -> (Arc<SharedLists>, u64) {
        (Arc::clone(&self.lists), self.digest)
    }

    /// What the loop wakes for.
    pub(crate) fn select<'a>(&'a self, select: &mut Select<'a>) {
        select.recv(&self.found);
    }

    /// What was found since this was last asked; an edit counts once it is asked for.
    pub(crate) fn next(&mut self) -> Option<Found> {
        let found = match self.found.try_recv() {
            Ok(found) => found,
            Err(crossbeam_channel::TryRecvError::Empty) => return None,
            // A closed channel is always ready: it would be asked without a pause.
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
