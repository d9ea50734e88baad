//! What the thread `weir-feeds` and the rest of the service have in common: what was said to it,
//! and what it tells.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use crossbeam_channel::Sender;
use tokio::sync::Notify;
use weir_shared::clock::Clock;
use weir_shared::netblock::NetSet;
use weir_shared::rules::Feed;
use weir_shared::settings::Settings;

use super::copy::Copies;
use super::kept::Offered;
use super::report::{NotAccepted, Report};
use super::wanted::Wanted;

/// Is told a feed and why its version is not taken.
pub(crate) type Alerting = Box<dyn Fn(&str, &str) + Send + Sync>;

/// What the thread does with a version, and with a fault.
pub(crate) struct Outlets {
    /// Has the rules take it. An error is the end of a sentence.
    pub(crate) offer: Box<dyn Fn(Offered) -> Result<(), String> + Send + Sync>,
    /// Raises `feed_error` for a feed.
    pub(crate) alert: Alerting,
}

/// What the thread is asked.
pub(super) enum Order {
    /// Fetch it now.
    Fetch(String),
    /// Take the version that was not taken.
    Accept(String, Accepted),
}

/// Called once with the entries that then hold.
pub(super) type Accepted = Box<dyn FnOnce(Result<usize, NotAccepted>) + Send>;

/// The settings that feeds go by.
#[derive(Clone, Debug)]
pub(super) struct Outer {
    /// `WAF_FEED_CA_FILE`
    pub(super) ca_file: Option<PathBuf>,
    /// `WAF_TRUSTED_PROXIES`
    pub(super) trusted: NetSet,
}

impl From<&Settings> for Outer {
    fn from(settings: &Settings) -> Self {
        Self {
            ca_file: settings.state.feed_ca_file.clone(),
            trusted: settings.identity.trusted_proxies.clone(),
        }
    }
}

/// What others have said, and the thread has not taken in yet.
#[derive(Default)]
pub(super) struct Said {
    /// Every feed of rules.json with the version that holds, since the last edit.
    pub(super) wanted: Option<Vec<(Wanted, Arc<Feed>)>>,
    /// The settings are others.
    pub(super) reloaded: bool,
    pub(super) orders: Vec<Order>,
    /// The thread may run: the service has its state.
    pub(super) may_run: bool,
    pub(super) is_running: bool,
    /// The state is another process's, or the service stops.
    pub(super) stands_still: bool,
    /// Dropped once the copies hold what is known.
    pub(super) keep: Option<Sender<()>>,
}

/// What both sides see.
pub(super) struct Shared {
    pub(super) clock: Clock,
    pub(super) copies: Copies,
    pub(super) outlets: Outlets,
    pub(super) outer: ArcSwap<Outer>,
    said: Mutex<Said>,
    reports: Mutex<BTreeMap<String, Report>>,
    pub(super) wake: Notify,
}

impl Shared {
    pub(super) fn new(settings: &Settings, clock: Clock, outlets: Outlets) -> Self {
        Self {
            clock,
            copies: Copies::new(&settings.state.dir),
            outlets,
            outer: ArcSwap::from_pointee(Outer::from(settings)),
            said: Mutex::default(),
            reports: Mutex::default(),
            wake: Notify::new(),
        }
    }

    /// What was said since this was last asked.
    pub(super) fn take_said(&self) -> Said {
        let mut said = self.said();
        Said {
            wanted: said.wanted.take(),
            reloaded: std::mem::take(&mut said.reloaded),
            orders: std::mem::take(&mut said.orders),
            keep: said.keep.take(),
            ..*said
        }
    }

    /// This is told from now on.
    pub(super) fn tell(&self, reports: BTreeMap<String, Report>) {
        *self.reports() = reports;
    }

    pub(super) fn said(&self) -> MutexGuard<'_, Said> {
        // Nothing panics while it is held; if it ever does, each part is still whole.
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn reports(&self) -> MutexGuard<'_, BTreeMap<String, Report>> {
        // As above.
        self.reports.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
