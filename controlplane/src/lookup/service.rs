//! Asks a lookup service over HTTPS: one question in flight for each client, a bounded number in
//! all, on a thread of its own (LOOKUP-1..3).
//!
//! A question contains the address, of an IPv6 client its /64, and nothing else about the visitor.
//! Redirects are not followed, and bodies are bounded. `answer.rs` checks the response,
//! `breaker.rs` decides when to ask, `cache.rs` keeps the answers.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use http::header::{ACCEPT, USER_AGENT};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::sync::{Semaphore, mpsc};
use weir_shared::client::Client;
use weir_shared::clock::{Clock, Now};
use weir_shared::lookup::{Lookup, LookupStarted, OnLookup};
use weir_shared::settings::{CountryList, LookupSettings, LookupUrl};
use weir_shared::table::ClientTable;
use weir_shared::units::Time;

use super::answer::{NoAnswer, Pointers, judge};
use super::breaker::{BackOff, Breaker, Gate};
use super::budget::Budget;
use super::cache::{Cache, LookupRow};
use super::error::LookupError;
use super::outcome::{Counts, Outcome};
use crate::outgoing::{chain, retry_after, tls};

/// The most questions under way at once.
const MAX_IN_FLIGHT: usize = 64;
/// The most questions that wait; further clients are looked up later (LOOKUP-2).
const MAX_QUEUE: usize = 4096;
/// When a client whose question found no place is looked up again.
const NO_PLACE_NS: u64 = 10_000_000_000;
/// The most bytes of an answer's body that are read.
const MAX_BODY: usize = 64 * 1024;
/// The longest pause that a service may ask for.
const MAX_PAUSE: Duration = Duration::from_secs(3600);
/// The longest pause while a country list or a percentage needs answers: a forged answer must not
/// switch these off for an hour (ALIVE-6).
const MAX_PAUSE_NEEDED: Duration = Duration::from_secs(60);
/// Idle connections to the service, and how long they are kept.
const MAX_IDLE: usize = 8;
const IDLE: Duration = Duration::from_secs(30);

/// The service that is asked.
pub(super) struct Service {
    /// Replaced by a reload; a question under way keeps the old value.
    asking: ArcSwap<Asking>,
    clock: Clock,
    table: Arc<dyn ClientTable>,
    counts: Arc<Counts>,
    queue: mpsc::Sender<Client>,
    /// Locked for a new client and for an answer, never for a known client.
    state: Mutex<State>,
    /// For tests: a question panics, as by a bug.
    #[cfg(test)]
    panics: std::sync::atomic::AtomicBool,
}

/// The settings of a question.
pub(super) struct Asking {
    url: LookupUrl,
    pointers: Pointers,
    timeout: Duration,
    /// The longest `Retry-After` that is obeyed.
    max_pause: Duration,
    http: HttpClient<HttpsConnector<HttpConnector>, Empty<Bytes>>,
}

impl Asking {
    /// Reads them from the settings.
    ///
    /// # Errors
    /// The certificates of `WAF_LOOKUP_CA_FILE` cannot be used.
    pub(super) fn of(settings: &LookupSettings) -> Result<Self, LookupError> {
        Ok(Self {
            http: http_client(settings)?,
            url: settings.url.clone(),
            pointers: Pointers {
                country: settings.json_country.clone(),
                asn: settings.json_asn.clone(),
                as_name: settings.json_as_name.clone(),
            },
            timeout: settings.timeout,
            max_pause: if settings.countries != CountryList::None || settings.percents.lower() {
                MAX_PAUSE_NEEDED
            } else {
                MAX_PAUSE
            },
        })
    }
}

struct State {
    cache: Cache,
    breaker: Breaker,
    back_off: BackOff,
    budget: Budget,
    /// Clients whose lookup is queued or under way, with the requests that wait for it.
    flights: HashMap<Client, Vec<OnLookup>>,
}

/// Why a question failed.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("no answer within WAF_LOOKUP_TIMEOUT")]
    TimedOut,
    #[error("the connection failed: {0}")]
    Connection(String),
    #[error("the answer has status {0}")]
    Status(StatusCode),
    #[error("the service asks for a pause of {} s", .0.as_secs())]
    Pause(Duration),
    #[error("the answer's body is larger than {MAX_BODY} bytes or was broken off")]
    Body,
    #[error(transparent)]
    NoAnswer(#[from] NoAnswer),
    #[error("the lookup panicked")]
    Panicked,
}

impl Service {
    /// Starts the thread. It ends with the process: no work of it must be finished.
    pub(super) fn start(
        settings: &LookupSettings,
        clock: Clock,
        table: Arc<dyn ClientTable>,
        counts: Arc<Counts>,
        rows: Vec<LookupRow>,
    ) -> Result<Arc<Self>, LookupError> {
        let asking = Asking::of(settings)?;
        let (queue, queued) = mpsc::channel(MAX_QUEUE);
        let service = Arc::new(Self {
            asking: ArcSwap::from_pointee(asking),
            clock,
            table,
            counts,
            queue,
            state: Mutex::new(State {
                cache: Cache::new(settings.ttl),
                breaker: Breaker::default(),
                back_off: BackOff::default(),
                budget: Budget::default(),
                flights: HashMap::new(),
            }),
            #[cfg(test)]
            panics: Default::default(),
        });
        rows.into_iter().for_each(|row| service.put(row));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()
            .map_err(LookupError::Thread)?;
        let running = Arc::clone(&service);
        weir_shared::threads::spawn("weir-lookup", move || runtime.block_on(running.run(queued)))
            .map_err(LookupError::Thread)?;
        Ok(service)
    }

    /// Applies new settings of questions, and a new time to live of answers.
    pub(super) fn take(&self, asking: Asking, ttl: Duration) {
        self.asking.store(Arc::new(asking));
        self.state().cache.set_ttl(ttl);
    }

    /// Answers from memory, or queues the question. Never blocks.
    pub(super) fn ask(&self, client: Client, answered: Option<OnLookup>) -> LookupStarted {
        let now = self.clock.now();
        let mut state = self.state();
        if let Some((lookup, left_ms)) = state.cache.fresh(client, now.wall_ms) {
            let until_ns = after(now, left_ms);
            return LookupStarted::Known { lookup, until_ns };
        }
        if let Some(waiting) = state.flights.get_mut(&client) {
            waiting.extend(answered);
            return LookupStarted::Later;
        }
        let skipped = |again_ns| {
            self.counts.count(Outcome::Skipped);
            LookupStarted::NotNow { again_ns }
        };
        if let Some(again_ns) = state.back_off.until(client, now.mono_ns) {
            return skipped(again_ns);
        }
        if let Some(again_ns) = state.budget.spent_until(client, now.mono_ns) {
            return match state.cache.newest_beside(client, now.wall_ms) {
                Some(lookup) => LookupStarted::Known {
                    lookup,
                    until_ns: again_ns,
                },
                None => skipped(again_ns),
            };
        }
        let gate = state.breaker.ask(now.mono_ns);
        if let Gate::Shut(again_ns) = gate {
            return skipped(again_ns);
        }
        if self.queue.try_send(client).is_err() {
            return skipped(now.mono_ns.saturating_add(NO_PLACE_NS));
        }
        state.budget.spend(client, now.mono_ns);
        if gate == Gate::Probe {
            // No request waits, but an answer still goes to the client table.
            state.flights.insert(client, Vec::new());
            let again_ns = now.mono_ns.saturating_add(NO_PLACE_NS);
            return LookupStarted::NotNow { again_ns };
        }
        state.flights.insert(client, answered.into_iter().collect());
        LookupStarted::Later
    }

    /// The valid answer about a client, if there is one, and until when it is valid.
    pub(super) fn known(&self, client: Client) -> Option<(Arc<Lookup>, u64)> {
        let now = self.clock.now();
        let (lookup, left_ms) = self.state().cache.fresh(client, now.wall_ms)?;
        Some((lookup, after(now, left_ms)))
    }

    /// Inserts an answer of lookups.json.
    pub(super) fn put(&self, row: LookupRow) {
        self.state().cache.put(row);
    }

    /// Removes an answer.
    pub(super) fn remove(&self, client: Client) {
        self.state().cache.remove(client);
    }

    /// Every valid answer.
    pub(super) fn rows(&self) -> Vec<LookupRow> {
        let now_ms = self.clock.now().wall_ms;
        self.state().cache.rows(now_ms)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while the lock is held; even then each part would be whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn run(self: Arc<Self>, mut queued: mpsc::Receiver<Client>) {
        let places = Arc::new(Semaphore::new(MAX_IN_FLIGHT));
        loop {
            let Ok(place) = Arc::clone(&places).acquire_owned().await else {
                return;
            };
            let Some(client) = queued.recv().await else {
                return;
            };
            let shut_until = self.state().breaker.shut_until(self.clock.now().mono_ns);
            if let Some(again_ns) = shut_until {
                self.counts.count(Outcome::Skipped);
                let waiting = self.state().flights.remove(&client);
                self.table.ask_again(client, again_ns);
                tell(waiting, None);
                continue;
            }
            let mut flight = Flight {
                service: Arc::clone(&self),
                client,
                outcome: Some(Err(Failure::Panicked)),
            };
            tokio::spawn(async move {
                let asking = flight.service.asking.load_full();
                let fetched = flight.service.fetch(&asking, flight.client);
                let fetched = tokio::time::timeout(asking.timeout, fetched).await;
                flight.outcome = Some(fetched.unwrap_or(Err(Failure::TimedOut)));
                drop((flight, place));
            });
        }
    }

    async fn fetch(&self, asking: &Asking, client: Client) -> Result<Lookup, Failure> {
        let connection = |error: &dyn std::error::Error| Failure::Connection(chain(error));
        let request = Request::get(asking.url.of(client.first_address()))
            .header(USER_AGENT, "weir")
            .header(ACCEPT, "application/json")
            .body(Empty::new())
            .map_err(|error| connection(&error))?;
        let response = (asking.http)
            .request(request)
            .await
            .map_err(|error| connection(&error))?;
        let status = response.status();
        if status != StatusCode::OK {
            let pauses = [
                StatusCode::TOO_MANY_REQUESTS,
                StatusCode::SERVICE_UNAVAILABLE,
            ];
            let now_ms = self.clock.now().wall_ms;
            let pause =
                retry_after(response.headers(), now_ms).filter(|_| pauses.contains(&status));
            let pause = pause.map(|pause| pause.min(asking.max_pause));
            return Err(pause.map_or(Failure::Status(status), Failure::Pause));
        }
        let body = Limited::new(response.into_body(), MAX_BODY)
            .collect()
            .await
            .map_err(|_| Failure::Body)?;
        #[cfg(test)]
        assert!(
            !self.panics.load(std::sync::atomic::Ordering::Relaxed),
            "a bug"
        );
        Ok(judge(&body.to_bytes(), &asking.pointers)?)
    }

    /// Handles the outcome of a question: keeps it, updates the client table, then calls the
    /// waiting requests.
    fn settle(&self, client: Client, outcome: Result<Lookup, Failure>) {
        let now = self.clock.now();
        match outcome {
            Ok(lookup) => self.succeed(client, lookup, now),
            Err(failure) => self.fail(client, &failure, now),
        }
    }

    fn succeed(&self, client: Client, lookup: Lookup, now: Now) {
        let known = lookup.country.is_some();
        self.counts.count(if known {
            Outcome::Known
        } else {
            Outcome::Unknown
        });
        let lookup = Arc::new(lookup);
        let (waiting, left_ms, closed) = {
            let mut state = self.state();
            state.back_off.succeed(client);
            state.cache.put(LookupRow {
                client,
                lookup: Arc::clone(&lookup),
                answered: Time(now.wall_ms),
            });
            let left = state.cache.fresh(client, now.wall_ms);
            (
                state.flights.remove(&client),
                left.map_or(0, |(_, left_ms)| left_ms),
                state.breaker.succeed(),
            )
        };
        if closed {
            tracing::info!(
                service = self.asking.load().url.origin,
                "lookups are answered again"
            );
        }
        self.table
            .answer(client, Arc::clone(&lookup), after(now, left_ms));
        tell(waiting, Some(&lookup));
    }

    fn fail(&self, client: Client, failure: &Failure, now: Now) {
        self.counts.count(match failure {
            Failure::TimedOut => Outcome::TimedOut,
            _ => Outcome::Error,
        });
        let (waiting, again_ns, opened) = {
            let mut state = self.state();
            let again_ns = state.back_off.fail(client, now.mono_ns);
            let opened = match failure {
                Failure::Pause(pause) => {
                    let until_ns = now.mono_ns.saturating_add(nanos(*pause));
                    state.breaker.pause(until_ns)
                }
                _ => state.breaker.fail(now.mono_ns),
            };
            let shut = state.breaker.shut_until(now.mono_ns).unwrap_or(0);
            (state.flights.remove(&client), again_ns.max(shut), opened)
        };
        if opened {
            tracing::warn!(
                service = self.asking.load().url.origin,
                "lookups fail and no request waits for them any more until one is answered: {failure}"
            );
        } else {
            tracing::debug!(
                service = self.asking.load().url.origin,
                "a lookup failed: {failure}"
            );
        }
        self.table.ask_again(client, again_ns);
        tell(waiting, None);
    }
}

/// A question under way. It is settled however it ends, even by a panic.
struct Flight {
    service: Arc<Service>,
    client: Client,
    outcome: Option<Result<Lookup, Failure>>,
}

impl Drop for Flight {
    fn drop(&mut self) {
        if let Some(outcome) = self.outcome.take() {
            self.service.settle(self.client, outcome);
        }
    }
}

fn tell(waiting: Option<Vec<OnLookup>>, lookup: Option<&Arc<Lookup>>) {
    for answered in waiting.into_iter().flatten() {
        answered(lookup.cloned());
    }
}

/// This many milliseconds after `now`, on the monotonic clock.
fn after(now: Now, milliseconds: u64) -> u64 {
    now.mono_ns
        .saturating_add(milliseconds.saturating_mul(1_000_000))
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The HTTP client for questions.
fn http_client(
    settings: &LookupSettings,
) -> Result<HttpClient<HttpsConnector<HttpConnector>, Empty<Bytes>>, LookupError> {
    let tls = tls(settings.ca_file.as_deref())?;
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(settings.timeout));
    let connector = hyper_rustls::HttpsConnectorBuilder::new()
        .with_tls_config(tls)
        .https_or_http()
        .enable_http1()
        .wrap_connector(connector);
    Ok(HttpClient::builder(TokioExecutor::new())
        .pool_max_idle_per_host(MAX_IDLE)
        .pool_idle_timeout(IDLE)
        .pool_timer(TokioTimer::new())
        .build(connector))
}

#[cfg(test)]
mod tests;
