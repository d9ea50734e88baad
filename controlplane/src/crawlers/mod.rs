//! The DNS names of addresses whose clients claim to be a crawler: looked up at a DNS server, and
//! cached (CRAWL-3).
//!
//! The data plane calls a function and never waits: the answer goes to the client table. The first
//! question starts the thread `weir-crawlers`; without a crawler that is verified by DNS there is
//! no thread. `resolver.rs` asks DNS, `cache.rs` keeps the answers. Whether a question may be asked
//! is decided as for lookups (LOOKUP-2, LOOKUP-3, ALIVE-6).

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc};
use weir_shared::client::Client;
use weir_shared::clock::{Clock, Now};
use weir_shared::lookup::is_public;
use weir_shared::proof::{AskNames, Names, NamesAnswer, Suffixes};
use weir_shared::settings::Settings;
use weir_shared::spared::Spared;
use weir_shared::table::ClientTable;
use weir_shared::threads;

mod cache;
pub(crate) mod falls;
mod resolver;
mod silent;
pub(crate) mod warnings;

use self::cache::Cache;
use self::resolver::{Failure, Found, Resolving, Servers, Whose};
use self::silent::Silent;
use crate::lookup::breaker::{BackOff, Breaker, Gate};
use crate::lookup::budget::Budget;

/// The most questions under way at once, each with one socket: more than the addresses of one
/// network that may be asked about while a silent zone's questions time out.
const MAX_IN_FLIGHT: usize = 32;
/// The most questions that wait; further addresses are looked up later (LOOKUP-2).
const MAX_QUEUE: usize = 4096;
/// When an address whose question found no place is looked up again.
const NO_PLACE_NS: u64 = 10_000_000_000;
/// The bounds on an answer's TTL (CRAWL-3).
const SHORTEST_NS: u64 = 600_000_000_000;
const LONGEST_NS: u64 = 7 * 86_400_000_000_000;
/// A question that takes longer has no answer.
const PATIENCE: Duration = Duration::from_secs(20);
const SECOND_NS: u64 = 1_000_000_000;

/// The names, shared by all threads.
#[derive(Clone)]
pub struct CrawlerNames(Arc<Service>);

impl CrawlerNames {
    /// No question is asked yet.
    pub fn new(
        settings: &Settings,
        clock: Clock,
        table: Arc<dyn ClientTable>,
        spared: Arc<Spared>,
    ) -> Self {
        Self(Arc::new(Service {
            servers: Servers::of(&settings.lookup.name_servers),
            clock,
            table,
            spared,
            queue: OnceLock::new(),
            state: Mutex::default(),
        }))
    }

    /// The function that the data plane asks.
    pub fn asking(&self) -> AskNames {
        let service = Arc::clone(&self.0);
        Arc::new(move |address, suffixes| service.ask(address, suffixes))
    }
}

/// What is asked about an address.
struct Question {
    address: IpAddr,
    suffixes: Arc<Suffixes>,
}

struct Service {
    servers: Servers,
    clock: Clock,
    table: Arc<dyn ClientTable>,
    /// Told of each address with a confirmed name.
    spared: Arc<Spared>,
    /// The queue of the thread, once it is started; closed if it could not be started.
    queue: OnceLock<mpsc::Sender<Question>>,
    /// Locked for an address that is new to its client, and for an answer.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    cache: Cache,
    breaker: Breaker,
    silent: Silent,
    back_off: BackOff,
    budget: Budget,
    /// Addresses whose lookup is queued or under way.
    flights: HashSet<IpAddr>,
}

impl Service {
    /// Answers from memory, or queues the question. Never blocks.
    fn ask(self: &Arc<Self>, address: IpAddr, suffixes: &Arc<Suffixes>) -> Option<NamesAnswer> {
        let now = self.clock.now();
        let unknown_until = |until_ns| {
            Some(NamesAnswer {
                suffixes: suffixes.id(),
                names: None,
                until_ns,
            })
        };
        if !is_public(address) {
            return unknown_until(u64::MAX);
        }
        let client = Client::of(address);
        let mut state = self.state();
        if let Some(known) = state.cache.fresh(address, suffixes.id(), now.mono_ns) {
            return Some(known);
        }
        if state.flights.contains(&address) {
            return None;
        }
        let waits = state.back_off.until(client, now.mono_ns);
        if let Some(again_ns) = waits.or_else(|| state.budget.spent_until(client, now.mono_ns)) {
            return unknown_until(again_ns);
        }
        // While the breaker is open, a question about a silent network proves little, and comes
        // after the others.
        if state.breaker.is_open()
            && let Some(again_ns) = state.silent.until(address, now.mono_ns)
        {
            return unknown_until(again_ns);
        }
        if let Gate::Shut(again_ns) = state.breaker.ask(now.mono_ns) {
            return unknown_until(again_ns);
        }
        let question = Question {
            address,
            suffixes: Arc::clone(suffixes),
        };
        let queue = self.queue.get_or_init(|| self.start());
        if queue.try_send(question).is_err() {
            return unknown_until(now.mono_ns.saturating_add(NO_PLACE_NS));
        }
        state.budget.spend(client, now.mono_ns);
        state.flights.insert(address);
        None
    }

    /// Starts the thread. It ends with the process: no work of it must be finished.
    fn start(self: &Arc<Self>) -> mpsc::Sender<Question> {
        let (queue, queued) = mpsc::channel(MAX_QUEUE);
        let service = Arc::clone(self);
        let started = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()
            .and_then(|runtime| {
                threads::spawn("weir-crawlers", move || {
                    runtime.block_on(service.run(queued));
                })
            });
        match started {
            Ok(_) => tracing::info!(
                servers = %self.servers,
                "addresses of clients that claim to be a crawler are asked about at the DNS server"
            ),
            Err(error) => tracing::error!(
                "the thread that asks for the names of crawlers cannot be started: {error}"
            ),
        }
        queue
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while the lock is held; even then each part would be whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn run(self: Arc<Self>, mut queued: mpsc::Receiver<Question>) {
        let places = Arc::new(Semaphore::new(MAX_IN_FLIGHT));
        let mut resolving = Resolving::new(self.servers.clone());
        loop {
            let Ok(place) = Arc::clone(&places).acquire_owned().await else {
                return;
            };
            let Some(question) = queued.recv().await else {
                return;
            };
            let mut flight = Flight {
                service: Arc::clone(&self),
                question,
                outcome: Some(Err(Failure::Panicked)),
            };
            let now_ns = self.clock.now().mono_ns;
            if self.state().breaker.shut_until(now_ns).is_some() {
                flight.outcome = Some(Err(Failure::Shut));
                continue;
            }
            let resolver = resolving.resolver(now_ns);
            tokio::spawn(async move {
                let Question { address, suffixes } = &flight.question;
                let outcome = match resolver {
                    Ok(resolver) => {
                        let found = resolver.names(*address, suffixes);
                        let found = tokio::time::timeout(PATIENCE, found).await;
                        found.unwrap_or(Err(Failure::Late))
                    }
                    Err(failure) => Err(failure),
                };
                flight.outcome = Some(outcome);
                drop((flight, place));
            });
        }
    }

    /// Handles the outcome of a question: keeps it, and updates the client table.
    fn settle(&self, question: &Question, outcome: Result<Found, Failure>) {
        let now = self.clock.now();
        let (address, suffixes) = (question.address, question.suffixes.id());
        let answer = match outcome {
            Ok(found) => self.succeed(question, found, now),
            Err(failure) => NamesAnswer {
                suffixes,
                names: None,
                until_ns: self.fail(address, &failure, now),
            },
        };
        self.table.names(address, answer);
    }

    fn succeed(&self, question: &Question, found: Found, now: Now) -> NamesAnswer {
        let kept_ns = u64::from(found.ttl_seconds).saturating_mul(SECOND_NS);
        let kept_ns = kept_ns.clamp(SHORTEST_NS, LONGEST_NS);
        // The request that made weir ask may stay the crawler's only one for hours: a ban beside it
        // must not wait for the next (CRAWL-4).
        if !found.names.is_empty() {
            (self.spared).spare_crawler(Client::of(question.address), now.wall_ms);
        }
        let answer = NamesAnswer {
            suffixes: question.suffixes.id(),
            names: Some(Names::from(found.names)),
            until_ns: now.mono_ns.saturating_add(kept_ns),
        };
        let closed = {
            let mut state = self.state();
            state.flights.remove(&question.address);
            state.back_off.succeed(Client::of(question.address));
            state.cache.put(question.address, answer.clone());
            state.silent = Silent::default();
            state.breaker.succeed()
        };
        if closed {
            tracing::info!(servers = %self.servers, "names of crawlers are answered again");
        }
        answer
    }

    /// Handles a failure; returns when the address may be looked up again.
    fn fail(&self, address: IpAddr, failure: &Failure, now: Now) -> u64 {
        let mut state = self.state();
        state.flights.remove(&address);
        let counts = match failure.whose() {
            Whose::Server => true,
            Whose::OneOfThem => state.silent.note(address, now.mono_ns),
            Whose::Zone => false,
        };
        let opened = counts && state.breaker.fail(now.mono_ns);
        let shut_ns = state.breaker.shut_until(now.mono_ns).unwrap_or(0);
        let again_ns = match failure {
            Failure::Shut => shut_ns,
            _ => {
                let client = Client::of(address);
                state.back_off.fail(client, now.mono_ns).max(shut_ns)
            }
        };
        drop(state);
        if opened {
            tracing::warn!(
                servers = %self.servers,
                "names of crawlers are not answered: no further crawler is verified by DNS until they are ({failure})"
            );
        } else {
            tracing::debug!(%address, "names are not answered: {failure}");
        }
        again_ns
    }
}

/// A question under way. It is settled however it ends, even by a panic.
struct Flight {
    service: Arc<Service>,
    question: Question,
    outcome: Option<Result<Found, Failure>>,
}

impl Drop for Flight {
    fn drop(&mut self) {
        if let Some(outcome) = self.outcome.take() {
            self.service.settle(&self.question, outcome);
        }
    }
}

#[cfg(test)]
mod tests;
