//! The service's handle of the thread `weir-feeds`: sets the feeds, passes operators' requests,
//! reads the reports, and has the part of a reload. No call blocks.

use std::collections::BTreeMap;
use std::sync::Arc;

use crossbeam_channel::{Receiver, bounded};
use weir_shared::clock::Clock;
use weir_shared::reload::{Part, Take};
use weir_shared::rules::Feed;
use weir_shared::settings::Settings;

use super::facts::FeedFacts;
use super::report::{NotAccepted, Report};
use super::said::{Order, Outer, Outlets, Said, Shared};
use super::thread::{self, Feeding};
use super::wanted::Wanted;
use crate::outgoing::{RootsError, tls};

/// The most requests of operators that may wait; a further one is refused.
const MAX_ORDERS: usize = 64;

/// The handle of the thread. The default is a handle without a thread: there are no feeds.
#[derive(Clone, Default)]
pub(crate) struct FeedsHandle(Option<Arc<Shared>>);

impl FeedsHandle {
    /// A handle; no thread runs yet.
    pub(crate) fn new(settings: &Settings, clock: Clock, outlets: Outlets) -> Self {
        Self(Some(Arc::new(Shared::new(settings, clock, outlets))))
    }

    /// Sets the feeds of rules.json. The first feed starts the thread.
    pub(crate) fn want(&self, wanted: Vec<(Wanted, Arc<Feed>)>) {
        self.say(|said| said.wanted = Some(wanted));
    }

    /// Starts fetching: the service has its state now.
    pub(crate) fn begin(&self) {
        self.say(|said| said.may_run = true);
    }

    /// Stops fetching, because the state is given away or the service stops. The receiver is
    /// disconnected once the copies are complete on disk.
    pub(crate) fn stand_still(&self) -> Receiver<()> {
        let (keep, kept) = bounded(0);
        self.say(|said| {
            said.stands_still = true;
            // The new process would not get the results of these requests.
            said.orders.clear();
            said.keep = said.is_running.then_some(keep);
        });
        kept
    }

    /// Resumes fetching: the state was taken back.
    pub(crate) fn go_on(&self) {
        self.say(|said| said.stands_still = false);
    }

    /// Has a feed fetched now. Returns whether there is such a feed; none if too many requests
    /// wait, or the state is given away.
    pub(crate) fn fetch(&self, name: &str) -> Option<bool> {
        self.order(name, Order::Fetch)
    }

    /// Has the refused version of a feed accepted. `told` is called if there is such a feed.
    pub(crate) fn accept(
        &self,
        name: &str,
        told: impl FnOnce(Result<usize, NotAccepted>) + Send + 'static,
    ) -> Option<bool> {
        self.order(name, |name| Order::Accept(name, Box::new(told)))
    }

    fn order(&self, name: &str, order: impl FnOnce(String) -> Order) -> Option<bool> {
        let Some(shared) = &self.0 else {
            return Some(false);
        };
        if !shared.reports().contains_key(name) {
            return Some(false);
        }
        let mut said = shared.said();
        let has_room = !said.stands_still && said.orders.len() < MAX_ORDERS;
        if has_room {
            said.orders.push(order(name.to_owned()));
        }
        drop(said);
        shared.wake.notify_one();
        has_room.then_some(true)
    }

    /// The report of each feed, by name.
    pub(crate) fn reports(&self) -> BTreeMap<String, Report> {
        let shared = self.0.as_ref();
        shared
            .map(|shared| shared.reports().clone())
            .unwrap_or_default()
    }

    /// The facts of each feed, for the metrics.
    pub(crate) fn facts(&self, now_ms: u64) -> Vec<FeedFacts> {
        let reports = self.reports().into_iter();
        let facts = reports.map(|(name, report)| FeedFacts::of(name, &report, now_ms));
        facts.collect()
    }

    /// The feeds' part of a reload: checks the file of roots, and fetches feeds that are too old.
    pub(crate) fn part(&self) -> Part {
        let handle = self.clone();
        Box::new(move |new| {
            check(&new.settings).map_err(|fault| vec![fault])?;
            let (handle, outer) = (handle.clone(), Outer::from(&*new.settings));
            Ok(Box::new(move || {
                if let Some(shared) = &handle.0 {
                    shared.outer.store(Arc::new(outer));
                }
                handle.say(|said| said.reloaded = true);
                Ok(())
            }) as Take)
        })
    }

    fn say(&self, say: impl FnOnce(&mut Said)) {
        let Some(shared) = &self.0 else { return };
        let mut said = shared.said();
        say(&mut said);
        let has_feeds = said.wanted.as_ref().is_some_and(|all| !all.is_empty());
        if said.may_run && !said.is_running && has_feeds {
            said.is_running = true;
            drop(said);
            let feeding = Feeding::new(Arc::clone(shared));
            if let Err(error) = thread::start(feeding) {
                tracing::error!("the thread of the feeds cannot be started: {error}");
            }
        }
        shared.wake.notify_one();
    }
}

/// Checks the file of roots as a start would.
///
/// # Errors
/// A sentence: the file cannot be used.
pub(crate) fn check(settings: &Settings) -> Result<(), String> {
    match tls(settings.state.feed_ca_file.as_deref()) {
        Ok(_) => Ok(()),
        Err(RootsError::CaFile { path, fault }) => {
            Err(format!("WAF_FEED_CA_FILE={path:?} cannot be used: {fault}"))
        }
        Err(error @ RootsError::Tls(_)) => Err(error.to_string()),
    }
}

#[cfg(test)]
impl FeedsHandle {
    /// For tests: a handle with a feed that no thread fetches.
    pub(crate) fn idle(clock: Clock, name: &str) -> Self {
        let outlets = Outlets {
            offer: Box::new(|_| Ok(())),
            alert: Box::new(|_, _| {}),
        };
        let shared = Shared::new(&Settings::default(), clock, outlets);
        let report = Report {
            used: None,
            feed: Arc::new(Feed::none(name)),
            checked: None,
            outcome: None,
            error: None,
            next: weir_shared::units::Time(0),
            fetches: [0; super::report::Outcome::ALL.len()],
        };
        shared.tell(BTreeMap::from([(name.to_owned(), report)]));
        Self(Some(Arc::new(shared)))
    }
}
