//! The thread `weir-feeds`: fetches one feed after the other, each when it is due, and writes the
//! copies. It is there only where rules.json names a feed.

use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::fetch::{Failure, Fetched, fetch};
use super::judge::Guard;
use super::kept::{Kept, NotAccepted, Offered, Outside};
use super::own::guard;
use super::said::{Order, Said, Shared};
use crate::outgoing::tls;

/// The longest sleep: the wall clock may be set meanwhile.
const MAX_SLEEP_MS: u64 = 60_000;

/// The thread's own.
pub(super) struct Feeding {
    shared: Arc<Shared>,
    feeds: Vec<Kept>,
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
            stands_still: false,
        }
    }

    async fn run(mut self) {
        loop {
            let said = self.shared.take_said();
            self.take_in(said);
            self.tell();
            match self.next() {
                Some(index) => self.fetch(index).await,
                None => self.sleep().await,
            }
        }
    }

    /// Takes in what others said.
    fn take_in(&mut self, said: Said) {
        let shared = Arc::clone(&self.shared);
        self.stands_still = said.stands_still;
        if let Some(wanted) = said.wanted {
            let mut before = std::mem::take(&mut self.feeds);
            for (wanted, feed) in wanted {
                let held = before.iter().position(|kept| kept.is(&wanted));
                let kept = match held.map(|index| before.swap_remove(index)) {
                    Some(mut kept) => {
                        kept.want(wanted, feed, &*shared);
                        kept
                    }
                    None => Kept::new(wanted, feed, &shared.copies, &*shared),
                };
                self.feeds.push(kept);
            }
            let feeds = &self.feeds;
            let is_named = |name: &str| feeds.iter().any(|kept| kept.wanted.name == name);
            if !self.stands_still {
                shared.copies.forget_others(is_named);
            }
        }
        if said.reloaded {
            for kept in &mut self.feeds {
                kept.guard_anew(&shared.copies, &*shared);
                kept.event(&*shared);
            }
        }
        for order in said.orders {
            self.obey(order);
        }
    }

    fn obey(&mut self, order: Order) {
        let shared = Arc::clone(&self.shared);
        match order {
            Order::Fetch(name) => {
                if let Some(kept) = self.named(&name) {
                    kept.ask(&*shared);
                }
            }
            Order::Accept(name, told) => {
                let accepted = match self.named(&name) {
                    Some(kept) => kept.accept(&shared.copies, &*shared),
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
        self.shared.tell(reports.collect());
    }

    /// The feed that is due, if one is: of several the one that is due for longest.
    fn next(&mut self) -> Option<usize> {
        if self.stands_still {
            return None;
        }
        let shared = Arc::clone(&self.shared);
        self.feeds
            .iter_mut()
            .for_each(|kept| kept.tell_due(&*shared));
        let now_ms = shared.clock.now().wall_ms;
        let due = self.feeds.iter().enumerate();
        due.filter(|(_, kept)| kept.fetch_in_ms(now_ms) == 0)
            .min_by_key(|(_, kept)| kept.report().next)
            .map(|(index, _)| index)
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
        let waits = self.feeds.iter().map(|kept| kept.wait_ms(now_ms));
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
