use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use hickory_resolver::proto::op::ResponseCode;
use weir_shared::clock::ManualClock;

use super::*;
use crate::testing::{NOW, Rig, Table, settings};

/// A server on loopback that counts its questions and answers each with this code; 3 is NXDOMAIN,
/// none is silence.
fn server(code: Option<u8>) -> (SocketAddr, Arc<AtomicUsize>) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&asked);
    std::thread::spawn(move || {
        let mut query = [0; 1500];
        while let Ok((length, peer)) = socket.recv_from(&mut query) {
            counter.fetch_add(1, Ordering::SeqCst);
            let Some(code) = code else { continue };
            // The end of the name, and what follows it.
            let end = query[12..length]
                .iter()
                .position(|byte| *byte == 0)
                .unwrap();
            let mut answer = query[..12 + end + 5].to_vec();
            answer[2..12].copy_from_slice(&[0x81, 0x80 | code, 0, 1, 0, 0, 0, 0, 0, 0]);
            let _ = socket.send_to(&answer, peer);
        }
    });
    (address, asked)
}

struct Asking {
    service: Arc<Service>,
    table: Arc<Table>,
    clock: Arc<ManualClock>,
    asked: Arc<AtomicUsize>,
}

impl Asking {
    fn start(code: Option<u8>) -> Self {
        let (address, asked) = server(code);
        let mut settings = settings();
        settings.lookup.name_servers = vec![address];
        let (clock, manual) = Clock::manual(NOW);
        let table = Arc::clone(&Rig::new(crate::testing::settings()).table);
        let face = Arc::clone(&table) as Arc<dyn ClientTable>;
        Self {
            service: CrawlerNames::new(&settings, clock, face, Arc::default()).0,
            table,
            clock: manual,
            asked,
        }
    }

    /// What is known at once; the answer of DNS where that has to be waited for.
    fn ask(&self, address: IpAddr) -> (bool, NamesAnswer) {
        let before = self.table.names.lock().unwrap().len();
        if let Some(known) = self.service.ask(address, &suffixes()) {
            return (true, known);
        }
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            if let Some((told, answer)) = self.table.names.lock().unwrap().get(before) {
                assert_eq!(*told, address);
                return (false, answer.clone());
            }
            assert!(Instant::now() < deadline, "no answer");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

fn suffixes() -> Arc<Suffixes> {
    Arc::new(Suffixes::new([".crawl.example".to_owned()]))
}

fn address(last: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(66, 249, 66, last))
}

/// CRAWL-3: an answer is stored in the table, and kept for at least ten minutes; other suffixes are
/// another question.
#[test]
fn an_answer_is_kept() {
    let asking = Asking::start(Some(3));
    let (at_once, answer) = asking.ask(address(1));
    assert!(!at_once && answer.names.as_deref() == Some(&[]));
    assert_eq!(answer.until_ns, SHORTEST_NS);
    let asked = asking.asked.load(Ordering::SeqCst);
    asking.clock.advance_ms(SHORTEST_NS / 1_000_000 - 1);
    assert_eq!(asking.ask(address(1)), (true, answer));
    assert_eq!(asking.asked.load(Ordering::SeqCst), asked);
    asking.clock.advance_ms(1);
    let (at_once, answer) = asking.ask(address(1));
    assert!(!at_once && answer.until_ns == 2 * SHORTEST_NS);
    let others = Arc::new(Suffixes::new([".other.example".to_owned()]));
    assert_eq!(asking.service.ask(address(1), &others), None);
}

/// CRAWL-3: an answer is kept for its TTL, ten minutes at least and seven days at most.
#[test]
fn an_answer_is_kept_for_its_ttl() {
    let asking = Asking::start(Some(3));
    let question = Question {
        address: address(1),
        suffixes: suffixes(),
    };
    for (ttl_seconds, kept_ns) in [
        (0, SHORTEST_NS),
        (601, 601 * SECOND_NS),
        (u32::MAX, LONGEST_NS),
    ] {
        let found = Found {
            names: Vec::new(),
            ttl_seconds,
        };
        let now = asking.service.clock.now();
        let answer = asking.service.succeed(&question, found, now);
        assert_eq!(answer.until_ns, now.mono_ns + kept_ns);
    }
}

/// CRAWL-3, LOOKUP-3: an address without an answer from DNS is asked about again after ten seconds,
/// then after twice as long; questions about others do not wait.
#[test]
fn a_failure_is_asked_about_again() {
    let asking = Asking::start(Some(2));
    for last in 1..=9 {
        let (at_once, answer) = asking.ask(address(last));
        assert!(!at_once && answer.names.is_none());
        assert_eq!(answer.until_ns, 10 * SECOND_NS);
    }
    let (at_once, answer) = asking.ask(address(1));
    assert!(at_once && answer.names.is_none() && answer.until_ns == 10 * SECOND_NS);
    asking.clock.advance_ms(10_000);
    let (at_once, answer) = asking.ask(address(1));
    assert!(!at_once && answer.until_ns == 30 * SECOND_NS);
}

/// CRAWL-3, LOOKUP-2: in a flood of claims with a silent server a bounded number of questions
/// waits, and the others are asked later; private addresses are never asked about.
#[test]
fn a_flood_of_claims_is_bounded() {
    let asking = Asking::start(None);
    let (mut later, mut not_now) = (0, 0);
    for number in 0..20_000_u32 {
        let address = IpAddr::V4(Ipv4Addr::from(0x4200_0000 + number * 256));
        match asking.service.ask(address, &suffixes()) {
            None => later += 1,
            Some(answer) => {
                assert_eq!(answer.until_ns, NO_PLACE_NS);
                not_now += 1;
            }
        }
    }
    assert_eq!(later + not_now, 20_000);
    // The thread takes some from the queue while it fills.
    assert!(
        (MAX_QUEUE..=MAX_QUEUE + MAX_IN_FLIGHT + 1).contains(&later),
        "{later}"
    );
    assert_eq!(asking.service.state().flights.len(), later);
    let private = "10.1.2.3".parse().unwrap();
    let never = asking.service.ask(private, &suffixes()).unwrap();
    assert_eq!(never.until_ns, u64::MAX);
}

/// CRAWL-3, LOOKUP-3: a client whose own zone gives no answer, or no usable one, does not stop
/// questions about others: its network counts once. Five networks open the breaker, and the first
/// question after that is about another client.
#[test]
fn one_silent_network_shuts_nobody_out() {
    let asking = Asking::start(Some(3));
    let service = &asking.service;
    let fail_with = |text: &str, failure: Failure| {
        let now = service.clock.now();
        service.fail(text.parse().unwrap(), &failure, now);
    };
    let fail = |text: &str| fail_with(text, Failure::Late);
    for last in 1..=20 {
        fail(&format!("2001:db8:{last}::1"));
        let cut = Failure::Server("truncated".to_owned());
        fail_with(&format!("2001:db8:{last}::2"), cut);
        let refused = Failure::Refused(ResponseCode::Refused);
        fail_with(&format!("2001:db8:{last}::3"), refused);
    }
    assert!(!service.state().breaker.is_open());
    assert!(!asking.ask(address(1)).0);
    for network in 1..=5 {
        fail(&format!("11.{network}.0.1"));
    }
    assert!(service.state().breaker.is_open());
    asking.clock.advance_ms(30_000);
    let again = service.ask("11.1.0.2".parse().unwrap(), &suffixes());
    assert_eq!(again.map(|known| known.until_ns), Some(60 * SECOND_NS));
    assert!(service.state().breaker.is_open());
    assert!(!asking.ask(address(2)).0);
    assert!(!service.state().breaker.is_open());
}
