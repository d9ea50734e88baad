//! The data between the thread `weir-feeds` and the rest of the service: requests to the thread,
//! and its reports.

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

/// Called with a feed's name and why its version is refused.
pub(crate) type Alerting = Box<dyn Fn(&str, &str) + Send + Sync>;

/// The callbacks of the thread for versions and faults.
pub(crate) struct Outlets {
    /// Offers a version to the rules. The error is the end of a sentence.
    pub(crate) offer: Box<dyn Fn(Offered) -> Result<(), String> + Send + Sync>,
    /// Raises `feed_error` for a feed.
    pub(crate) alert: Alerting,
}

/// A request to the thread.
pub(super) enum Order {
    /// Fetch this feed now.
    Fetch(String),
    /// Accept the refused version of this feed.
    Accept(String, Accepted),
}

/// Called once with the number of entries in force.
pub(super) type Accepted = Box<dyn FnOnce(Result<usize, NotAccepted>) + Send>;

/// The settings of feeds.
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

/// Requests that the thread has not taken yet.
#[derive(Default)]
pub(super) struct Said {
    /// Every feed of rules.json with its version in force; set by an edit.
    pub(super) wanted: Option<Vec<(Wanted, Arc<Feed>)>>,
    /// The settings were reloaded.
    pub(super) reloaded: bool,
    pub(super) orders: Vec<Order>,
    /// The service has its state, so the thread may fetch.
    pub(super) may_run: bool,
    pub(super) is_running: bool,
    /// The state is given away, or the service stops: the thread must not fetch.
    pub(super) stands_still: bool,
    /// Dropped once the copies are complete on disk.
    pub(super) keep: Option<Sender<()>>,
}

/// The data that both sides share.
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

    /// The requests since the last call.
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

    /// Replaces the reports.
    pub(super) fn tell(&self, reports: BTreeMap<String, Report>) {
        *self.reports() = reports;
    }

    pub(super) fn said(&self) -> MutexGuard<'_, Said> {
        // Nothing panics while the lock is held; even then each part would be whole.
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn reports(&self) -> MutexGuard<'_, BTreeMap<String, Report>> {
        // As above.
        self.reports.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
