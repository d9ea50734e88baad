//! Asking a service over HTTPS: one question in flight a client, a bounded number in all, on a thread of its own
//! (LOOKUP-1..3).
//!
//! What leaves is the address, of an IPv6 client its /64, and nothing else of the visitor. Redirects are not followed,
//! bodies are bounded, and what came is judged by `answer.rs`. When to ask at all is `breaker.rs`, what is known already
//! `cache.rs`.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, RETRY_AFTER, USER_AGENT};
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use tokio::sync::{Semaphore, mpsc};
use weir_shared::client::Client;
use weir_shared::clock::{Clock, Now};
use weir_shared::lookup::{Lookup, LookupStarted, OnLookup};
use weir_shared::settings::{LookupSettings, LookupUrl};
use weir_shared::table::ClientTable;
use weir_shared::units::Time;

use super::answer::{NoAnswer, Pointers, judge};
use super::breaker::{BackOff, Breaker, Gate};
use super::cache::{Cache, LookupRow};
use super::{Counts, LookupError, Outcome};

/// The most questions under way at once.
const MAX_IN_FLIGHT: usize = 64;
/// The most that wait for their turn; further clients are asked about later (LOOKUP-2).
const MAX_QUEUE: usize = 4096;
/// When a client whose question found no place is asked about again.
const NO_PLACE_NS: u64 = 10_000_000_000;
/// The most of an answer's body that is read.
const MAX_BODY: usize = 64 * 1024;
/// The longest pause that a service may ask for.
const MAX_PAUSE: Duration = Duration::from_secs(3600);
/// Idle connections to the service, and how long they are kept.
const MAX_IDLE: usize = 8;
const IDLE: Duration = Duration::from_secs(30);

/// The service that is asked.
pub(super) struct Service {
    url: LookupUrl,
    pointers: Pointers,
    timeout: Duration,
    clock: Clock,
    table: Arc<dyn ClientTable>,
    counts: Arc<Counts>,
    http: HttpClient<HttpsConnector<HttpConnector>, Empty<Bytes>>,
    queue: mpsc::Sender<Client>,
    /// Locked for a new client and for an answer, never for a client that is known.
    state: Mutex<State>,
    /// A question panics, as a bug would.
    #[cfg(test)]
    panics: std::sync::atomic::AtomicBool,
}

struct State {
    cache: Cache,
    breaker: Breaker,
    back_off: BackOff,
    /// Clients that are asked about, with the requests that wait. At most queue and flight together.
    flights: HashMap<Client, Vec<OnLookup>>,
}

/// Why there is no answer.
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
    /// Starts the thread. It ends with the process: nothing that it holds has to be finished.
    pub(super) fn start(
        settings: &LookupSettings,
        clock: Clock,
        table: Arc<dyn ClientTable>,
        counts: Arc<Counts>,
        rows: Vec<LookupRow>,
    ) -> Result<Arc<Self>, LookupError> {
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
        let http = HttpClient::builder(TokioExecutor::new())
            .pool_max_idle_per_host(MAX_IDLE)
            .pool_idle_timeout(IDLE)
            .pool_timer(TokioTimer::new())
            .build(connector);
        let ttl_ms = u64::try_from(settings.ttl.as_millis()).unwrap_or(u64::MAX);
        let (queue, queued) = mpsc::channel(MAX_QUEUE);
        let service = Arc::new(Self {
            url: settings.url.clone(),
            pointers: Pointers {
                country: settings.json_country.clone(),
                asn: settings.json_asn.clone(),
                as_name: settings.json_as_name.clone(),
            },
            timeout: settings.timeout,
            clock,
            table,
            counts,
            http,
            queue,
            state: Mutex::new(State {
                cache: Cache::new(ttl_ms),
                breaker: Breaker::default(),
                back_off: BackOff::default(),
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
        let gate = state.breaker.ask(now.mono_ns);
        if let Gate::Shut(again_ns) = gate {
            return skipped(again_ns);
        }
        if self.queue.try_send(client).is_err() {
            return skipped(now.mono_ns.saturating_add(NO_PLACE_NS));
        }
        if gate == Gate::Probe {
            // The answer reaches the table all the same, if there is one.
            state.flights.insert(client, Vec::new());
            let again_ns = now.mono_ns.saturating_add(NO_PLACE_NS);
            return LookupStarted::NotNow { again_ns };
        }
        state.flights.insert(client, answered.into_iter().collect());
        LookupStarted::Later
    }

    /// Takes in an answer of a file.
    pub(super) fn put(&self, row: LookupRow) {
        self.state().cache.put(row);
    }

    /// Forgets an answer.
    pub(super) fn remove(&self, client: Client) {
        self.state().cache.remove(client);
    }

    /// Every answer that holds.
    pub(super) fn rows(&self) -> Vec<LookupRow> {
        let now_ms = self.clock.now().wall_ms;
        self.state().cache.rows(now_ms)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it is held; if it ever does, each part is still whole.
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
                let fetched = tokio::time::timeout(
                    flight.service.timeout,
                    flight.service.fetch(flight.client),
                )
                .await;
                flight.outcome = Some(fetched.unwrap_or(Err(Failure::TimedOut)));
                drop((flight, place));
            });
        }
    }

    async fn fetch(&self, client: Client) -> Result<Lookup, Failure> {
        let connection = |error: &dyn std::error::Error| Failure::Connection(chain(error));
        let request = Request::get(self.url.of(client.first_address()))
            .header(USER_AGENT, "weir")
            .header(ACCEPT, "application/json")
            .body(Empty::new())
            .map_err(|error| connection(&error))?;
        let response = self
            .http
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
        Ok(judge(&body.to_bytes(), &self.pointers)?)
    }

    /// A question has its outcome: remembers it, tells the client table, then those who wait.
    fn settle(&self, client: Client, outcome: Result<Lookup, Failure>) {
        let now = self.clock.now();
        match outcome {
            Ok(lookup) => {
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
                    tracing::info!(service = self.url.origin, "lookups are answered again");
                }
                self.table
                    .answer(client, Arc::clone(&lookup), after(now, left_ms));
                tell(waiting, Some(&lookup));
            }
            Err(failure) => {
                self.counts.count(match failure {
                    Failure::TimedOut => Outcome::TimedOut,
                    _ => Outcome::Error,
                });
                let (waiting, again_ns, opened) = {
                    let mut state = self.state();
                    let again_ns = state.back_off.fail(client, now.mono_ns);
                    let opened = match failure {
                        Failure::Pause(pause) => {
                            let until_ns = now.mono_ns.saturating_add(nanos(pause));
                            state.breaker.pause(until_ns)
                        }
                        _ => state.breaker.fail(now.mono_ns),
                    };
                    let shut = state.breaker.shut_until(now.mono_ns).unwrap_or(0);
                    (state.flights.remove(&client), again_ns.max(shut), opened)
                };
                if opened {
                    tracing::warn!(
                        service = self.url.origin,
                        "lookups fail and no request waits for them any more until one is answered: {failure}"
                    );
                } else {
                    tracing::debug!(service = self.url.origin, "a lookup failed: {failure}");
                }
                self.table.ask_again(client, again_ns);
                tell(waiting, None);
            }
        }
    }
}

/// A question under way. However it ends, also by a panic, it is settled.
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

/// An error with its causes: hyper's own says only that it is one.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

/// `Retry-After` in seconds or as a date (RFC 9110 §10.2.3), bounded.
fn retry_after(headers: &HeaderMap, now_ms: u64) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let seconds = if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        text.parse().unwrap_or(u64::MAX)
    } else {
        let date = jiff::fmt::rfc2822::parse(text).ok()?;
        let date_ms = u64::try_from(date.timestamp().as_millisecond()).ok()?;
        date_ms.saturating_sub(now_ms).div_ceil(1000)
    };
    Some(Duration::from_secs(seconds).min(MAX_PAUSE))
}

/// One provider, named: two in one build would panic at run time if it were left to be found.
fn tls(ca_file: Option<&Path>) -> Result<ClientConfig, LookupError> {
    let mut roots = RootCertStore::empty();
    roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    if let Some(path) = ca_file {
        let wrong = |fault: String| LookupError::CaFile {
            path: path.display().to_string(),
            fault,
        };
        let pem = std::fs::read(path).map_err(|error: io::Error| wrong(error.to_string()))?;
        let before = roots.len();
        for certificate in CertificateDer::pem_slice_iter(&pem) {
            let certificate = certificate.map_err(|error| wrong(error.to_string()))?;
            roots
                .add(certificate)
                .map_err(|error| wrong(error.to_string()))?;
        }
        if roots.len() == before {
            return Err(wrong("it holds no PEM certificate".to_owned()));
        }
    }
    ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| LookupError::Tls(error.to_string()))
        .map(|builder| builder.with_root_certificates(roots).with_no_client_auth())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Instant;

    use weir_shared::clock::ManualClock;
    use weir_shared::settings::LookupSource;

    use super::*;
    use crate::testing::{Rig, Touch, settings};

    /// A service on loopback: counts its questions, and answers each as told. A thread a connection.
    struct Fake {
        address: std::net::SocketAddr,
        asked: Arc<AtomicUsize>,
    }

    impl Fake {
        fn start(answer: impl Fn(usize, &mut TcpStream) + Send + Sync + 'static) -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let asked = Arc::new(AtomicUsize::new(0));
            let (counter, answer) = (Arc::clone(&asked), Arc::new(answer));
            std::thread::spawn(move || {
                for stream in listener.incoming() {
                    let (counter, answer) = (Arc::clone(&counter), Arc::clone(&answer));
                    std::thread::spawn(move || {
                        let mut stream = stream.unwrap();
                        let mut head = [0; 4096];
                        while matches!(stream.read(&mut head), Ok(count) if count > 0) {
                            let number = counter.fetch_add(1, Ordering::SeqCst);
                            answer(number, &mut stream);
                        }
                    });
                }
            });
            Self { address, asked }
        }

        fn asked(&self) -> usize {
            self.asked.load(Ordering::SeqCst)
        }
    }

    fn say(stream: &mut TcpStream, status: &str, fields: &str, body: &str) {
        let length = body.len();
        let text = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n{fields}\r\n{body}");
        let _ = stream.write_all(text.as_bytes());
    }

    const GERMANY: &str = r#"{"country_code":"DE","asn":7,"organization_name":"X"}"#;

    struct Asking {
        service: Arc<Service>,
        clock: Arc<ManualClock>,
        rig: Rig,
        counts: Arc<Counts>,
    }

    impl Asking {
        fn start(fake: &Fake, timeout: Duration) -> Self {
            let mut settings = settings();
            settings.lookup.source = LookupSource::Url;
            let url = [("WAF_LOOKUP_URL", format!("http://{}/{{ip}}", fake.address))];
            let more = [
                ("WAF_UPSTREAM", "http://app".to_owned()),
                ("WAF_LOOKUP_SOURCE", "url".to_owned()),
            ];
            let pairs = url
                .into_iter()
                .chain(more)
                .map(|(name, value)| (name.to_owned(), value));
            settings.lookup = weir_shared::settings::load(pairs).unwrap().settings.lookup;
            settings.lookup.timeout = timeout;
            let rig = Rig::new(crate::testing::settings());
            let counts = Arc::new(Counts::default());
            let (clock, manual) = Clock::manual(crate::testing::NOW);
            let table = Arc::clone(&rig.table) as Arc<dyn ClientTable>;
            let service = Service::start(
                &settings.lookup,
                clock,
                table,
                Arc::clone(&counts),
                Vec::new(),
            )
            .unwrap();
            Self {
                service,
                clock: manual,
                rig,
                counts,
            }
        }

        /// Asks and waits for the outcome.
        fn wait(&self, client: u32) -> Option<Arc<Lookup>> {
            let (send, receive) = crossbeam_channel::bounded(1);
            let answered = Box::new(move |lookup| drop(send.send(lookup)));
            match self.service.ask(Client::V4(client), Some(answered)) {
                LookupStarted::Known { lookup, .. } => Some(lookup),
                LookupStarted::NotNow { .. } => None,
                LookupStarted::Later => receive.recv_timeout(Duration::from_secs(20)).unwrap(),
            }
        }

        fn counted(&self, outcome: Outcome) -> u64 {
            self.counts.0[outcome as usize].load(std::sync::atomic::Ordering::Relaxed)
        }
    }

    fn until(what: &str, mut done: impl FnMut() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !done() {
            assert!(Instant::now() < deadline, "{what}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    const LONG: Duration = Duration::from_secs(20);

    /// LOOKUP-2: a thousand questions about one client are one question to the service, and all are answered by it.
    #[test]
    fn a_thousand_questions_about_one_client_are_one() {
        let (go, held) = crossbeam_channel::bounded::<()>(0);
        let fake = Fake::start(move |_, stream| {
            let _ = held.recv();
            say(stream, "200 OK", "", GERMANY);
        });
        let asking = Asking::start(&fake, LONG);
        let (send, receive) = crossbeam_channel::unbounded();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                let (service, send) = (&asking.service, send.clone());
                scope.spawn(move || {
                    for _ in 0..250 {
                        let send = send.clone();
                        let answered =
                            Box::new(move |lookup: Option<Arc<Lookup>>| drop(send.send(lookup)));
                        assert!(matches!(
                            service.ask(Client::V4(1), Some(answered)),
                            LookupStarted::Later
                        ));
                    }
                });
            }
        });
        drop(go);
        for _ in 0..1000 {
            let lookup = receive.recv_timeout(LONG).unwrap().unwrap();
            assert_eq!(lookup.country.as_deref(), Some("DE"));
        }
        assert_eq!((fake.asked(), asking.counted(Outcome::Known)), (1, 1));
        // From now on it is known, for as long as the answer holds.
        assert!(asking.wait(1).is_some());
        asking.clock.advance_ms(7 * 86_400_000 - 1);
        assert!(asking.wait(1).is_some());
        assert_eq!(fake.asked(), 1);
        asking.clock.advance_ms(1);
        assert!(asking.wait(1).is_some());
        assert_eq!(fake.asked(), 2);
    }

    /// LOOKUP-2: 100,000 new clients and a service that never answers: 64 questions in flight, a bounded queue, and the
    /// rest is counted and asked about later.
    #[test]
    fn a_flood_of_clients_is_bounded() {
        let fake = Fake::start(|_, _| std::thread::sleep(LONG));
        let asking = Asking::start(&fake, LONG);
        let (mut later, mut not_now) = (0u64, 0u64);
        for client in 0..100_000 {
            match asking.service.ask(Client::V4(client), None) {
                LookupStarted::Later => later += 1,
                LookupStarted::NotNow { .. } => not_now += 1,
                LookupStarted::Known { .. } => panic!("nobody answered"),
            }
        }
        assert_eq!(later + not_now, 100_000);
        // The thread takes some from the queue while it fills.
        let most = (MAX_QUEUE + MAX_IN_FLIGHT + 1) as u64;
        assert!((MAX_QUEUE as u64..=most).contains(&later), "{later}");
        assert_eq!(asking.counted(Outcome::Skipped), not_now);
        until("64 in flight", || fake.asked() == MAX_IN_FLIGHT);
        assert!(asking.service.state().flights.len() as u64 <= most);
    }

    /// LOOKUP-3: failures are not kept; the client is asked about again after its back-off; after five in a row nothing
    /// is asked and nobody waits for 30 s, then one probe goes, and its answer closes the breaker.
    #[test]
    fn failures_open_the_breaker_and_a_probe_closes_it() {
        let fake = Fake::start(|number, stream| {
            if number < 6 {
                say(stream, "500 Oops", "", "");
            } else {
                say(stream, "200 OK", "", GERMANY);
            }
        });
        let asking = Asking::start(&fake, LONG);
        assert_eq!(asking.wait(1), None);
        assert_eq!(
            asking.rig.touches(),
            [Touch::AskAgain(Client::V4(1), 10_000_000_000)]
        );
        assert_eq!(asking.wait(1), None);
        assert_eq!(
            (fake.asked(), asking.counted(Outcome::Skipped)),
            (1, 1),
            "back-off"
        );
        for client in 2..=5 {
            assert_eq!(asking.wait(client), None);
        }
        assert_eq!((fake.asked(), asking.counted(Outcome::Error)), (5, 5));
        assert_eq!(asking.wait(6), None);
        asking.clock.advance_ms(29_999);
        assert_eq!(asking.wait(6), None);
        assert_eq!(fake.asked(), 5, "the breaker is open");
        asking.clock.advance_ms(1);
        // The probe: nobody waits for it, and it fails.
        assert_eq!(asking.wait(6), None);
        assert_eq!(asking.wait(7), None);
        until("the probe", || asking.counted(Outcome::Error) == 6);
        assert_eq!(fake.asked(), 6);
        asking.clock.advance_ms(30_000);
        assert_eq!(asking.wait(7), None);
        until("the second probe", || asking.counted(Outcome::Known) == 1);
        assert!(asking.wait(8).is_some());
        assert!(asking.service.rows().len() == 2, "failures are not kept");
    }

    /// LOOKUP-3: a panic in a lookup is a failure and no more: who waits is told at once that there is no answer, it is
    /// counted, the client is asked about again later, and the next one is answered. No panic keeps a place among those in
    /// flight.
    #[test]
    fn a_panic_in_a_lookup_is_a_failure_and_no_more() {
        let fake = Fake::start(|_, stream| say(stream, "200 OK", "", GERMANY));
        let asking = Asking::start(&fake, LONG);
        let rounds = MAX_IN_FLIGHT as u32 + 1;
        for client in 0..rounds {
            asking.service.panics.store(true, Ordering::Relaxed);
            assert_eq!(asking.wait(client), None);
            let again = Touch::AskAgain(Client::V4(client), 10_000_000_000);
            assert_eq!(asking.rig.touches(), [again]);
            asking.service.panics.store(false, Ordering::Relaxed);
            assert!(asking.wait(client + rounds).is_some());
            until("the table is told", || !asking.rig.touches().is_empty());
        }
        let counted = [Outcome::Error, Outcome::Known].map(|outcome| asking.counted(outcome));
        assert_eq!(counted, [u64::from(rounds); 2]);
        assert!(asking.service.state().flights.is_empty());
        asking.clock.advance_ms(10_000);
        assert!(asking.wait(0).is_some());
    }

    /// LOOKUP-3: what waits in the queue when the breaker opens is not sent any more, and nobody waits for it.
    #[test]
    fn the_queue_is_given_up_when_the_breaker_opens() {
        let (go, held) = crossbeam_channel::bounded::<()>(0);
        let fake = Fake::start(move |_, stream| {
            let _ = held.recv();
            say(stream, "500 Oops", "", "");
        });
        let asking = Asking::start(&fake, LONG);
        let (send, receive) = crossbeam_channel::unbounded();
        for client in 0..200 {
            let send = send.clone();
            let answered = Box::new(move |lookup: Option<Arc<Lookup>>| drop(send.send(lookup)));
            assert!(matches!(
                asking.service.ask(Client::V4(client), Some(answered)),
                LookupStarted::Later
            ));
        }
        until("64 in flight", || fake.asked() == MAX_IN_FLIGHT);
        drop(go);
        for _ in 0..200 {
            assert_eq!(receive.recv_timeout(LONG).unwrap(), None);
        }
        // Some more may have gone before the fifth failure.
        assert!(fake.asked() <= MAX_IN_FLIGHT + 5, "{}", fake.asked());
        assert_eq!(
            asking.counted(Outcome::Error) + asking.counted(Outcome::Skipped),
            200
        );
        assert!(asking.service.state().flights.is_empty());
    }

    /// A service that asks for a pause gets it, in seconds or until a date, at most an hour.
    #[test]
    fn retry_after_is_read() {
        let read = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, text.parse().unwrap());
            retry_after(&headers, crate::testing::NOW).map(|pause| pause.as_secs())
        };
        assert_eq!(read("120"), Some(120));
        assert_eq!(read("0"), Some(0));
        assert_eq!(read("99999999999999999999999"), Some(3600));
        assert_eq!(read("Sat, 21 Nov 2026 16:02:00 GMT"), Some(120));
        assert_eq!(read("Sat, 21 Nov 2020 16:02:00 GMT"), Some(0));
        for wrong in ["", "-1", "soon", "1.5"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }

        let fake =
            Fake::start(|_, stream| say(stream, "429 Slow down", "Retry-After: 100\r\n", ""));
        let asking = Asking::start(&fake, LONG);
        assert_eq!(asking.wait(1), None);
        assert_eq!(
            asking.rig.touches(),
            [Touch::AskAgain(Client::V4(1), 100_000_000_000)]
        );
        asking.clock.advance_ms(99_999);
        assert_eq!(asking.wait(2), None);
        assert_eq!(fake.asked(), 1);
        asking.clock.advance_ms(1);
        assert_eq!(asking.wait(2), None);
        until("the probe", || fake.asked() == 2);
    }

    /// LOOKUP-2: what leaves is the address, of IPv6 the /64, and nothing of the visitor besides.
    #[test]
    fn only_the_address_leaves() {
        let (send, heads) = crossbeam_channel::unbounded();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut head = [0; 4096];
                let count = stream.read(&mut head).unwrap();
                send.send(String::from_utf8_lossy(&head[..count]).into_owned())
                    .unwrap();
                say(&mut stream, "200 OK", "Connection: close\r\n", GERMANY);
            }
        });
        let fake = Fake {
            address,
            asked: Arc::default(),
        };
        let asking = Asking::start(&fake, LONG);
        let client = Client::of("2a02:d0c0:1:2:3:4:5:6".parse().unwrap());
        asking.service.ask(client, None);
        let head = heads.recv_timeout(LONG).unwrap().to_ascii_lowercase();
        let expected = format!(
            "get /2a02:d0c0:1:2:: http/1.1\r\nuser-agent: weir\r\naccept: application/json\r\nhost: {address}\r\n\r\n"
        );
        assert_eq!(head, expected);
    }

    /// SETTING-1: roots that cannot be used stop the start with a sentence.
    #[test]
    fn roots_that_cannot_be_used_are_told() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("ca.pem");
        let fault = || tls(Some(&file)).err().unwrap().to_string();
        let begin = format!(
            "WAF_LOOKUP_CA_FILE={:?} cannot be used: ",
            file.display().to_string()
        );
        assert_eq!(
            fault(),
            format!("{begin}No such file or directory (os error 2)")
        );
        std::fs::write(&file, "no certificate").unwrap();
        assert_eq!(fault(), format!("{begin}it holds no PEM certificate"));
        std::fs::write(
            &file,
            "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        )
        .unwrap();
        assert!(fault().starts_with(&begin));
        assert!(tls(None).is_ok());
    }
}
