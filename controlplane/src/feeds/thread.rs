//! The thread `weir-feeds`: fetches one feed after the other, each when it is due, and writes the
//! copies. It is there only where rules.json names a feed.

use std::collections::HashSet;
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use weir_shared::rules::Feed;

use super::fetch::{Failure, Fetched, decisions, fetch};
use super::judge::Guard;
use super::kept::{Kept, NotAccepted, Offered, Outside};
use super::own::guard;
use super::said::{Order, Said, Shared};
use super::stream::{self, Stream};
use super::wanted::Wanted;
use crate::outgoing::tls;

/// The longest sleep: the wall clock may be set meanwhile.
const MAX_SLEEP_MS: u64 = 60_000;

/// What is to be asked for now, by its place.
enum Due {
    Feed(usize),
    Stream(usize),
}

/// The thread's own.
pub(super) struct Feeding {
    shared: Arc<Shared>,
    feeds: Vec<Kept>,
    /// Decision streams (FEED-7).
    streams: Vec<Stream>,
    /// The state is another process's.
    stands_still: bool,
}

/// Starts the thread. It ends with the process: a copy that is half written is in no one's way.
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
    weir_shared::threads::spawn("weir-feeds", move || runtime.block_on(feeding.run()))?;
    Ok(())
}

impl Outside for Shared {
    fn now_ms(&self) -> u64 {
        self.clock.now().wall_ms
    }

    fn random(&self, most: u64) -> u64 {
        // The keys of a hash table are random, and nothing more is asked here.
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
    pub(super) const fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            feeds: Vec::new(),
            streams: Vec::new(),
            stands_still: false,
        }
    }

    async fn run(mut self) {
        loop {
            let said = self.shared.take_said();
            self.take_in(said);
            self.tell();
            match self.next() {
                Some(Due::Feed(index)) => self.fetch(index).await,
                Some(Due::Stream(index)) => self.ask(index).await,
                None => self.sleep().await,
            }
        }
    }

    /// Takes in what others said.
    fn take_in(&mut self, said: Said) {
        let shared = Arc::clone(&self.shared);
        self.stands_still = said.stands_still;
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

    /// These are the feeds now; what is known of those that stay is kept.
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
                    // Of a stream no version waits: what is not taken is asked for again.
                    None if is_stream => Err(NotAccepted::Nothing),
                    None => Err(NotAccepted::Unknown),
                };
                // What is told of it is there before the answer.
                self.tell();
                told(accepted);
            }
        }
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

    /// The feed that is due, if one is: of several the one that is due for longest.
    fn next(&mut self) -> Option<Due> {
        if self.stands_still {
            return None;
        }
        let shared = Arc::clone(&self.shared);
        self.feeds
            .iter_mut()
            .for_each(|kept| kept.tell_due(&*shared));
        let now_ms = shared.clock.now().wall_ms;
        for stream in &mut self.streams {
            stream.end_due(&*shared);
        }
        let due = self.feeds.iter().enumerate();
        let due = due
            .filter(|(_, kept)| kept.fetch_in_ms(now_ms) == 0)
            .map(|(index, kept)| (Due::Feed(index), kept.report().next));
        let streams = self.streams.iter().enumerate();
        let streams = streams
            .filter(|(_, stream)| stream.fetch_in_ms(now_ms) == 0)
            .map(|(index, stream)| (Due::Stream(index), stream.report().next));
        due.chain(streams)
            .min_by_key(|(_, next)| *next)
            .map(|(due, _)| due)
    }

    /// Asks a LAPI. What is said meanwhile waits.
    async fn ask(&mut self, index: usize) {
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
        let is_start = stream.is_start();
        let fetched = decisions(&tls, &stream.wanted.url, &key, is_start, now_ms).await;
        stream.settle(fetched, &shared.copies, &*shared);
    }

    /// Fetches a feed. What is said meanwhile waits.
    async fn fetch(&mut self, index: usize) {
        let shared = Arc::clone(&self.shared);
        let Some(kept) = self.feeds.get_mut(index) else {
            return;
        };
        let now_ms = shared.clock.now().wall_ms;
        let ca_file = shared.outer.load().ca_file.clone();
        let fetched: Result<Fetched, Failure> = match tls(ca_file.as_deref()) {
            Ok(tls) => fetch(&tls, &kept.wanted.url, &kept.validators(), now_ms).await,
            Err(error) => Err(Failure::Connection(format!("WAF_FEED_CA_FILE: {error}"))),
        };
        kept.settle(fetched, &shared.copies, &*shared);
    }

    /// Until something is due, or was said.
    async fn sleep(&self) {
        let now_ms = self.shared.clock.now().wall_ms;
        let streams = self.streams.iter().map(|stream| stream.wait_ms(now_ms));
        let waits = self.feeds.iter().map(|kept| kept.wait_ms(now_ms));
        let waits = waits.chain(streams);
        let wait_ms = match self.stands_still {
            true => MAX_SLEEP_MS,
            false => waits.min().unwrap_or(MAX_SLEEP_MS).min(MAX_SLEEP_MS),
        };
        let woken = self.shared.wake.notified();
        // At least a little: a clock that stands must not make this a loop without a pause.
        let wait = Duration::from_millis(wait_ms.max(10));
        let _ = tokio::time::timeout(wait, woken).await;
    }
}
