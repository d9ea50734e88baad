//! The thread `weir-feeds`: fetches one list after the other, each when it is due, and writes the
//! copies. Decision streams are asked concurrently, so that a stalling publisher delays none of
//! them. The thread exists only if rules.json names a feed.

use std::collections::{HashMap, HashSet};
use std::future::poll_fn;
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::task::{Id, JoinError, JoinSet};
use weir_shared::rules::Feed;

use super::fetch::{Failure, Fetched, Validators, decisions, fetch};
use super::judge::Guard;
use super::kept::{Kept, Offered, Outside};
use super::own::guard;
use super::report::NotAccepted;
use super::said::{Order, Said, Shared};
use super::stream::{self, Stream};
use super::wanted::Wanted;
use crate::outgoing::tls;

/// The longest sleep: the wall clock may be set meanwhile.
const MAX_SLEEP_MS: u64 = 60_000;

/// The list or stream that is due, by its index.
enum Due {
    Feed(usize),
    Stream(usize),
}

/// The state of the thread.
pub(super) struct Feeding {
    shared: Arc<Shared>,
    feeds: Vec<Kept>,
    /// Decision streams (FEED-7).
    streams: Vec<Stream>,
    /// Requests under way: at most one list, and each stream once.
    flights: HashMap<Id, Flight>,
    tasks: JoinSet<Came>,
    /// The state is given away, or the service stops.
    stands_still: bool,
}

impl Drop for Feeding {
    /// Releases whoever waits for the thread when it ends.
    fn drop(&mut self) {
        let mut said = self.shared.said();
        (said.is_running, said.keep) = (false, None);
    }
}

/// Added to the nice value of the service: beside busy workers the thread gets a tenth of a
/// processor. With 19 it would get a seventieth, and half a million entries would take longer than
/// a fetch may.
const NICE: i32 = 10;

/// A request under way.
struct Flight {
    /// The feed as it was asked for: rules.json may have changed when the answer comes.
    wanted: Wanted,
    /// What was asked: a list by its validators, or a stream and whether for everything.
    asked: Asked,
    /// An edit or a reload came while the request was under way.
    again: bool,
}

enum Asked {
    List(Validators),
    Stream { is_start: bool },
}

/// The result of a request.
enum Came {
    List(Result<Fetched, Failure>),
    Stream(Result<Vec<u8>, Failure>),
}

/// Starts the thread. It ends with the process: a half-written copy does no harm.
///
/// # Errors
/// The system refused it.
pub(super) fn start(feeding: Feeding) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .thread_name("weir-feeds")
        .max_blocking_threads(2)
        .build()?;
    weir_shared::threads::spawn("weir-feeds", move || {
        yield_to_others();
        runtime.block_on(feeding.run())
    })?;
    Ok(())
}

/// Lowers the priority of the thread: half a million entries take half a second of a processor,
/// nobody waits for them, and the workers must go first on a busy machine (FEED-6). If the system
/// does not allow it, the priority stays.
fn yield_to_others() {
    // On Linux each thread has its own nice value.
    let _ = rustix::process::nice(NICE);
}

impl Outside for Shared {
    fn now_ms(&self) -> u64 {
        self.clock.now().wall_ms
    }

    fn random(&self, most: u64) -> u64 {
        // The keys of a hash table are random enough for jitter.
        RandomState::new().hash_one(most) % most.saturating_add(1).max(1)
    }

    fn offer(&self, offered: Offered) -> Result<(), String> {
        (self.outlets.offer)(offered)
    }

    fn alert(&self, feed: &str, error: &str) {
        (self.outlets.alert)(feed, error);
    }

    fn guard(&self) -> Guard {
        guard(&self.outer.load().trusted)
    }
}

impl Feeding {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            feeds: Vec::new(),
            streams: Vec::new(),
            flights: HashMap::new(),
            tasks: JoinSet::new(),
            stands_still: false,
        }
    }

    async fn run(mut self) {
        loop {
            let said = self.shared.take_said();
            self.take_in(said);
            self.tell();
            match self.next() {
                Some(Due::Feed(index)) => self.fetch(index),
                Some(Due::Stream(index)) => self.ask(index),
                None => self.wait().await,
            }
        }
    }

    /// Applies the requests of the handle.
    fn take_in(&mut self, said: Said) {
        let shared = Arc::clone(&self.shared);
        self.stands_still = said.stands_still;
        if self.stands_still {
            self.give_up();
        }
        if let Some(keep) = said.keep {
            for stream in &mut self.streams {
                stream.keep(&shared.copies, shared.clock.now().wall_ms);
            }
            drop(keep);
        }
        for flight in self.flights.values_mut() {
            flight.again |= said.wanted.is_some() || said.reloaded;
        }
        if let Some(wanted) = said.wanted {
            self.want(wanted);
            let feeds = self.feeds.iter().map(|kept| &kept.wanted);
            let streams = self.streams.iter().map(|stream| &stream.wanted);
            let named: HashSet<&str> = feeds.chain(streams).map(|one| &*one.name).collect();
            let is_named = |name: &str| named.contains(name);
            if !self.stands_still {
                shared.copies.forget_others(is_named);
            }
        }
        if said.reloaded {
            for kept in &mut self.feeds {
                kept.guard_anew(&shared.copies, &*shared);
                kept.event(&*shared);
            }
            for stream in &mut self.streams {
                stream.guard_anew(&*shared);
                stream.event(&*shared);
            }
        }
        for order in said.orders {
            self.obey(order);
        }
    }

    /// Sets the feeds; the state of those that stay is kept.
    fn want(&mut self, all: Vec<(Wanted, Arc<Feed>)>) {
        let shared = Arc::clone(&self.shared);
        let mut feeds = std::mem::take(&mut self.feeds);
        let mut streams = std::mem::take(&mut self.streams);
        for (wanted, feed) in all {
            if let Some(crowdsec) = wanted.crowdsec.clone() {
                let held = streams.iter().position(|stream| stream.is(&wanted));
                let wanted = (wanted, crowdsec);
                self.streams
                    .push(match held.map(|index| streams.swap_remove(index)) {
                        Some(mut stream) => {
                            stream.want(wanted, feed, &*shared);
                            stream
                        }
                        None => Stream::new(wanted, feed, &shared.copies, &*shared),
                    });
                continue;
            }
            let held = feeds.iter().position(|kept| kept.is(&wanted));
            let kept = match held.map(|index| feeds.swap_remove(index)) {
                Some(mut kept) => {
                    kept.want(wanted, feed, &*shared);
                    kept
                }
                None => Kept::new(wanted, feed, &shared.copies, &*shared),
            };
            self.feeds.push(kept);
        }
    }

    fn obey(&mut self, order: Order) {
        let shared = Arc::clone(&self.shared);
        match order {
            Order::Fetch(name) => {
                if let Some(kept) = self.named(&name) {
                    kept.ask(&*shared);
                }
                let mut streams = self.streams.iter_mut();
                if let Some(stream) = streams.find(|stream| stream.wanted.name == name) {
                    stream.ask(&*shared);
                }
            }
            Order::Accept(name, told) => {
                let mut streams = self.streams.iter();
                let is_stream = streams.any(|stream| stream.wanted.name == name);
                let accepted = match self.named(&name) {
                    Some(kept) => kept.accept(&shared.copies, &*shared),
                    // A stream has no refused version to accept: it is asked again instead.
                    None if is_stream => Err(NotAccepted::Nothing),
                    None => Err(NotAccepted::Unknown),
                };
                // The report must be up to date before the answer.
                self.tell();
                told(accepted);
            }
        }
    }

    /// Gives up all requests: the new process writes the copies, and gets the LAPI's changes from
    /// now on.
    fn give_up(&mut self) {
        self.tasks.abort_all();
        self.flights.clear();
        self.streams.iter_mut().for_each(Stream::begin_anew);
    }

    fn named(&mut self, name: &str) -> Option<&mut Kept> {
        (self.feeds.iter_mut()).find(|kept| kept.wanted.name == name)
    }

    fn tell(&self) {
        let reports = self.feeds.iter();
        let reports = reports.map(|kept| (kept.wanted.name.clone(), kept.report()));
        let streams = self.streams.iter();
        let streams = streams.map(|stream| (stream.wanted.name.clone(), stream.report()));
        self.shared.tell(reports.chain(streams).collect());
    }

    /// The feed that is due; of several the one that is due for longest.
    fn next(&mut self) -> Option<Due> {
        if self.stands_still {
            return None;
        }
        let shared = Arc::clone(&self.shared);
        self.feeds
            .iter_mut()
            .for_each(|kept| kept.tell_due(&shared.copies, &*shared));
        let now_ms = shared.clock.now().wall_ms;
        for stream in &mut self.streams {
            stream.end_due(&*shared);
        }
        let lists = self.feeds.iter().enumerate();
        let lists = lists
            .filter(|(_, kept)| !self.is_fetching() && kept.fetch_in_ms(now_ms) == 0)
            .map(|(index, kept)| (Due::Feed(index), kept.next()));
        let streams = self.streams.iter().enumerate();
        let streams = streams
            .filter(|(_, stream)| !self.is_asked(stream) && stream.fetch_in_ms(now_ms) == 0)
            .map(|(index, stream)| (Due::Stream(index), stream.next()));
        lists
            .chain(streams)
            .min_by_key(|(_, next)| *next)
            .map(|(due, _)| due)
    }

    /// Whether a list is being fetched: one at a time (FEED-3).
    fn is_fetching(&self) -> bool {
        let mut flights = self.flights.values();
        flights.any(|flight| matches!(flight.asked, Asked::List(_)))
    }

    fn is_asked(&self, stream: &Stream) -> bool {
        let mut flights = self.flights.values();
        flights.any(|flight| stream.is(&flight.wanted))
    }

    /// Sends a request to a LAPI.
    fn ask(&mut self, index: usize) {
        let shared = Arc::clone(&self.shared);
        let Some(stream) = self.streams.get_mut(index) else {
            return;
        };
        let now_ms = shared.clock.now().wall_ms;
        let ca_file = shared.outer.load().ca_file.clone();
        let ready = tls(ca_file.as_deref())
            .map_err(|error| format!("WAF_FEED_CA_FILE: {error}"))
            .and_then(|tls| Ok((tls, stream::key(&stream.crowdsec.key_file)?)));
        let (tls, key) = match ready {
            Ok(ready) => ready,
            Err(why) => return stream.not_asked(why, &*shared),
        };
        let (is_start, wanted) = (stream.is_start(), stream.wanted.clone());
        let url = wanted.url.clone();
        let asking =
            async move { Came::Stream(decisions(&tls, &url, &key, is_start, now_ms).await) };
        self.fly(wanted, Asked::Stream { is_start }, asking);
    }

    /// Fetches a list.
    fn fetch(&mut self, index: usize) {
        let shared = Arc::clone(&self.shared);
        let Some(kept) = self.feeds.get_mut(index) else {
            return;
        };
        let now_ms = shared.clock.now().wall_ms;
        let ca_file = shared.outer.load().ca_file.clone();
        let tls = match tls(ca_file.as_deref()) {
            Ok(tls) => tls,
            Err(error) => {
                let failure = Failure::Connection(format!("WAF_FEED_CA_FILE: {error}"));
                return kept.settle(Err(failure), &shared.copies, &*shared);
            }
        };
        let (wanted, validators) = (kept.wanted.clone(), kept.validators());
        let (url, named) = (wanted.url.clone(), validators.clone());
        let fetching = async move { Came::List(fetch(&tls, &url, &named, now_ms).await) };
        self.fly(wanted, Asked::List(validators), fetching);
    }

    fn fly(
        &mut self,
        wanted: Wanted,
        asked: Asked,
        asking: impl Future<Output = Came> + Send + 'static,
    ) {
        let flight = Flight {
            wanted,
            asked,
            again: false,
        };
        self.flights.insert(self.tasks.spawn(asking).id(), flight);
    }

    /// Waits until a result comes, a feed is due, or a request of the handle comes.
    async fn wait(&mut self) {
        let now_ms = self.shared.clock.now().wall_ms;
        let is_fetching = self.is_fetching();
        let streams = self
            .streams
            .iter()
            .map(|stream| match self.is_asked(stream) {
                true => stream.ends_in_ms(now_ms),
                false => stream.wait_ms(now_ms),
            });
        let lists = self.feeds.iter().map(|kept| match is_fetching {
            true => kept.tell_in_ms(now_ms),
            false => kept.wait_ms(now_ms),
        });
        let wait_ms = match self.stands_still {
            true => MAX_SLEEP_MS,
            false => lists.chain(streams).min().unwrap_or(MAX_SLEEP_MS),
        };
        // At least a little: a clock that stands still must not make this a busy loop.
        let wait = Duration::from_millis(wait_ms.clamp(10, MAX_SLEEP_MS));
        let shared = Arc::clone(&self.shared);
        let mut woken = pin!(shared.wake.notified());
        let come = poll_fn(|context| match self.tasks.poll_join_next_with_id(context) {
            Poll::Ready(Some(came)) => Poll::Ready(Some(came)),
            // No request is under way, or none has a result.
            Poll::Ready(None) | Poll::Pending => woken.as_mut().poll(context).map(|()| None),
        });
        if let Ok(Some(came)) = tokio::time::timeout(wait, come).await {
            self.land(came);
        }
    }

    /// Handles a result. It is dropped if rules.json no longer names the feed, or the request was
    /// given up.
    fn land(&mut self, came: Result<(Id, Came), JoinError>) {
        let shared = Arc::clone(&self.shared);
        let (id, came) = match came {
            Ok((id, came)) => (id, Ok(came)),
            Err(error) => (error.id(), Err(Failure::Connection(error.to_string()))),
        };
        let Some(flight) = self.flights.remove(&id) else {
            return;
        };
        match flight.asked {
            Asked::List(validators) => {
                let came = came.and_then(|came| match came {
                    Came::List(fetched) => fetched,
                    Came::Stream(_) => Err(Failure::TimedOut),
                });
                let mut feeds = self.feeds.iter_mut();
                let Some(kept) = feeds.find(|kept| kept.is(&flight.wanted)) else {
                    return;
                };
                // Another version was accepted meanwhile, so the answer "unchanged" refers to an
                // older one.
                match came {
                    Ok(Fetched::Unchanged) if kept.validators() != validators => kept.ask(&*shared),
                    came => kept.settle(came, &shared.copies, &*shared),
                }
                if flight.again {
                    kept.event(&*shared);
                }
            }
            Asked::Stream { is_start } => {
                let came = came.and_then(|came| match came {
                    Came::Stream(fetched) => fetched,
                    Came::List(_) => Err(Failure::TimedOut),
                });
                let mut streams = self.streams.iter_mut();
                let Some(stream) = streams.find(|stream| stream.is(&flight.wanted)) else {
                    return;
                };
                stream.settle(came, is_start, &shared.copies, &*shared);
                if flight.again {
                    stream.event(&*shared);
                }
            }
        }
    }
}
