use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use http::HeaderMap;
use http::header::RETRY_AFTER;
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
        Self::start_with(fake, timeout, |_| {})
    }

    fn start_with(
        fake: &Fake,
        timeout: Duration,
        change: impl FnOnce(&mut LookupSettings),
    ) -> Self {
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
        change(&mut settings.lookup);
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

/// LOOKUP-2: a thousand questions about one client are one question to the service, and all are
/// answered by it.
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

/// LOOKUP-2: 100,000 new clients and a service that never answers: 64 questions in flight, a
/// bounded queue, and the rest is counted and asked about later.
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

/// LOOKUP-3: failures are not kept; the client is asked about again after its back-off; after five
/// in a row nothing is asked and nobody waits for 30 s, then one probe goes, and its answer closes
/// the breaker.
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
    // It is counted before the breaker has it, which is under one lock with the flight.
    let settled = |outcome, count| {
        asking.counted(outcome) == count && asking.service.state().flights.is_empty()
    };
    until("the probe", || settled(Outcome::Error, 6));
    assert_eq!(fake.asked(), 6);
    asking.clock.advance_ms(30_000);
    assert_eq!(asking.wait(7), None);
    until("the second probe", || settled(Outcome::Known, 1));
    assert!(asking.wait(8).is_some());
    assert!(asking.service.rows().len() == 2, "failures are not kept");
}

/// LOOKUP-3: a panic in a lookup is only a failure: waiting requests go on at once without an
/// answer, it is counted, the client is asked about again later, and the next question is answered.
/// A panic frees its place among the questions under way.
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

/// LOOKUP-3: questions that are queued when the breaker opens are not sent any more, and no request
/// waits for them.
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
    assert_eq!(read("99999999999999999999999"), Some(u64::MAX));
    assert_eq!(read("Sat, 21 Nov 2026 16:02:00 GMT"), Some(120));
    assert_eq!(read("Sat, 21 Nov 2020 16:02:00 GMT"), Some(0));
    for wrong in ["", "-1", "soon", "1.5"] {
        assert_eq!(read(wrong), None, "{wrong}");
    }

    let fake = Fake::start(|_, stream| say(stream, "429 Slow down", "Retry-After: 100\r\n", ""));
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

/// LOOKUP-2: the question contains the address, of IPv6 the /64, and nothing else about the
/// visitor.
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
    let fault = || LookupError::from(tls(Some(&file)).err().unwrap()).to_string();
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

/// ALIVE-6: of a /24 256 clients are asked about in a minute; for the others the newest answer of
/// the network stands in until they can be asked, and for a network without one they are unknown
/// and counted. Another network is asked about all the while.
#[test]
fn one_network_is_asked_about_256_times_a_minute() {
    let fake = Fake::start(|number, stream| match number {
        0..256 => say(stream, "200 OK", "", GERMANY),
        _ => say(stream, "200 OK", "", r#"{"country_code":"FR"}"#),
    });
    let asking = Asking::start(&fake, LONG);
    for host in 0..256 {
        assert!(asking.wait(host).is_some());
    }
    // The whole network is asked about; an answer is forgotten, as when it was dropped.
    asking.service.remove(Client::V4(7));
    let stood_in = asking.service.ask(Client::V4(7), None);
    let LookupStarted::Known { lookup, until_ns } = stood_in else {
        panic!("nothing stands in");
    };
    assert_eq!(lookup.country.as_deref(), Some("DE"));
    assert_eq!(fake.asked(), 256);
    assert_eq!(asking.wait(256).unwrap().country.as_deref(), Some("FR"));
    assert_eq!(asking.counted(Outcome::Skipped), 0);
    (0..256).for_each(|host| asking.service.remove(Client::V4(host)));
    assert_eq!(asking.wait(7), None);
    assert_eq!(asking.counted(Outcome::Skipped), 1);
    assert_eq!(fake.asked(), 257);
    asking.clock.advance_ms(70_000);
    assert!(until_ns <= asking.service.clock.now().mono_ns);
    assert_eq!(asking.wait(7).unwrap().country.as_deref(), Some("FR"));
}

/// ALIVE-6: a service cannot switch country lists off for an hour by `Retry-After`: it is asked
/// again after a minute. If nothing needs the answers, it gets the whole pause.
#[test]
fn a_pause_is_a_minute_at_most_where_answers_are_needed() {
    for needed in [true, false] {
        let fake =
            Fake::start(|_, stream| say(stream, "429 Slow down", "Retry-After: 1800\r\n", ""));
        let asking = Asking::start_with(&fake, LONG, |lookup| {
            if needed {
                lookup.countries = CountryList::Deny(Default::default());
            }
        });
        assert_eq!(asking.wait(1), None);
        asking.clock.advance_ms(60_001);
        asking.wait(2);
        until("the second question", || !needed || fake.asked() == 2);
        assert_eq!(fake.asked(), if needed { 2 } else { 1 });
    }
}
