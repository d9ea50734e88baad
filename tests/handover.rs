//! A new process takes over from the old one (RESTART-1): nothing is refused, lost or forgotten.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::feeds::decisions::changes_once;
use crate::feeds::publisher::Publisher;
use crate::feeds::save;
use crate::support::application::{After, Application};
use crate::support::command::{Ran, run};
use crate::support::dns::Dns;
use crate::support::http2::{self, Http2};
use crate::support::process::{Process, end, wait_for_end};
use crate::support::raw_client::{Connection, Response, exchange, get, request};
use crate::support::tls::{Pair, shared_pair};
use crate::support::transport::{self, Transport};
use crate::support::weir::{ADMIN_TOKEN, StateDir, milliseconds, state_dir};
use crate::support::{PATIENCE, wait_for_within, wait_until};

/// Clients that ask all the time.
pub(crate) const GENERATORS: usize = 4;

/// A service whose process changes.
pub(crate) struct Service {
    first: Process,
    address: SocketAddr,
    pub(crate) state: StateDir,
    log: PathBuf,
}

impl Service {
    #[track_caller]
    fn start(program: &str, application: &Application) -> Self {
        Self::start_on(program, application, "", &[])
    }

    /// The same, listening at one more place, with these settings.
    #[track_caller]
    pub(crate) fn start_on(
        program: &str,
        application: &Application,
        place: &str,
        settings: &[(&str, &str)],
    ) -> Self {
        let state = state_dir();
        let log = state.path().join("said.log");
        let mut command = Command::new(program);
        command
            .env_clear()
            .env("WAF_LISTEN", format!("127.0.0.1:0,{place}"))
            .env("WAF_UPSTREAM", format!("http://{}", application.address()))
            .env("WAF_STATE_DIR", state.path())
            .env("WAF_LOOKUP_SOURCE", "off")
            .env("WAF_TRUSTED_PROXIES", "127.0.0.1")
            .env("WAF_ADMIN_TOKEN", ADMIN_TOKEN)
            .env("WAF_WORKERS", "2")
            .env("WAF_RATE_LIMIT_PER_MINUTE", "off")
            .env("WAF_RATE_LIMIT_PER_HOUR", "off")
            .env("WAF_RATE_LIMIT_PER_DAY", "off")
            .envs(settings.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log).expect("a file"));
        let mut service = Self {
            first: Process::start(&mut command),
            address: SocketAddr::from(([0; 4], 0)),
            state,
            log,
        };
        service.wait_for("listening", 1);
        service.address = service.places()[0].parse().expect("an address");
        service
    }

    /// Every place where it listens.
    #[track_caller]
    fn places(&self) -> Vec<String> {
        let line = self.said("listening").remove(0);
        let places = line["listen"].as_str().expect("a list").split(',');
        places.map(str::to_owned).collect()
    }

    /// What all processes have said with this beginning.
    #[track_caller]
    pub(crate) fn said(&self, message: &str) -> Vec<Value> {
        let text = fs::read_to_string(&self.log).expect("the log");
        let lines = text
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok());
        let named = |line: &Value| {
            line["message"]
                .as_str()
                .is_some_and(|text| text.starts_with(message))
        };
        lines.filter(named).collect()
    }

    /// A process starts in some tenths of a second, unless others leave it no processor: then ten
    /// of 34 runs waited for more than 20 s.
    #[track_caller]
    pub(crate) fn wait_for(&self, message: &str, count: usize) {
        wait_for_within(3 * PATIENCE, &format!("{message}, {count} times"), || {
            (self.said(message).len() >= count).then_some(())
        });
    }

    /// The process that serves now.
    #[track_caller]
    fn process(&self) -> Pid {
        let last = self.said("handing over").pop();
        let id = last.map_or(u64::from(self.first.id()), |line| {
            line["process"].as_u64().expect("its number")
        });
        Pid::from_raw(i32::try_from(id).expect("a number")).expect("a process")
    }

    #[track_caller]
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.process(), signal).expect("it is there");
    }

    /// A hand-over from request to its end.
    #[track_caller]
    pub(crate) fn hand_over(&self) {
        let count = |message| self.said(message).len();
        let (serves, given) = (count("listening"), count("handing over"));
        self.signal(Signal::USR2);
        self.wait_for("listening", serves + 1);
        // The old process says who takes over, and may say it last.
        self.wait_for("handing over", given + 1);
    }

    #[track_caller]
    pub(crate) fn admin(&self, method: &str, path: &str, body: Option<&str>) -> Response {
        let token = format!("Bearer {ADMIN_TOKEN}");
        let fields = [
            ("Authorization", &*token),
            ("X-Forwarded-For", "192.0.2.250"),
            ("Connection", "close"),
        ];
        exchange(
            self.address,
            &request(method, path, &fields, body.map(str::as_bytes)),
        )
    }

    #[track_caller]
    fn get(&self, client: &str) -> Response {
        exchange(
            self.address,
            &get("/", &[("X-Forwarded-For", client), ("Connection", "close")]),
        )
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let last = self.process();
        let rested = if std::thread::panicking() {
            Ok(())
        } else if last == self.first.pid() {
            self.first.end()
        } else {
            let ended = end(last);
            ended.and(self.first.end())
        };
        let _ = kill_process(last, Signal::KILL);
        self.first.kill();
        if std::thread::panicking() || rested.is_err() {
            let log = fs::read_to_string(&self.log).unwrap_or_default();
            eprintln!("what the processes said:\n{log}");
        }
        if !std::thread::panicking() {
            rested.unwrap_or_else(|fault| panic!("{fault}"));
            for word in ["panicked", "error"] {
                let bad = self.said(word);
                assert!(bad.is_empty(), "{bad:?}");
            }
        }
    }
}

/// Clients that ask one request after the other, on connections that they keep as long as they may;
/// each answer must be 200.
pub(crate) struct Traffic {
    stopping: Arc<AtomicBool>,
    threads: Vec<JoinHandle<(u64, Duration)>>,
}

impl Traffic {
    #[track_caller]
    pub(crate) fn start(address: SocketAddr) -> Self {
        Self::of(address, generate)
    }

    #[track_caller]
    fn of(
        address: SocketAddr,
        generate: fn(SocketAddr, usize, &AtomicBool) -> (u64, Duration),
    ) -> Self {
        let stopping = Arc::new(AtomicBool::new(false));
        let threads = (0..GENERATORS).map(|number| {
            let stopping = Arc::clone(&stopping);
            std::thread::spawn(move || generate(address, number, &stopping))
        });
        Self {
            threads: threads.collect(),
            stopping,
        }
    }

    /// How many were answered, and the longest wait.
    #[track_caller]
    pub(crate) fn finish(self) -> (u64, Duration) {
        self.stopping.store(true, Ordering::SeqCst);
        let ended = self
            .threads
            .into_iter()
            .map(|thread| thread.join().expect("every request is answered"));
        ended.fold((0, Duration::ZERO), |(sum, longest), (count, wait)| {
            (sum + count, longest.max(wait))
        })
    }
}

#[track_caller]
fn generate(address: SocketAddr, number: usize, stopping: &AtomicBool) -> (u64, Duration) {
    let client = format!("10.1.{number}.1");
    let bytes = get("/", &[("X-Forwarded-For", &client)]);
    let (mut count, mut longest) = (0, Duration::ZERO);
    let mut connection = None;
    while !stopping.load(Ordering::SeqCst) {
        let began = Instant::now();
        let kept = connection.is_some();
        let mut open = connection
            .take()
            .unwrap_or_else(|| Connection::open(address));
        open.send(&bytes);
        let answer = open.try_response(false).unwrap_or_else(|ended| {
            let wait = began.elapsed();
            panic!("request {count} of {client} after {wait:?}: {ended:?}; kept: {kept}")
        });
        assert_eq!(answer.status, 200, "request {count} of {client}");
        longest = longest.max(began.elapsed());
        count += 1;
        if answer.header("connection") != Some("close") {
            connection = Some(open);
        }
    }
    (count, longest)
}

/// Whether a stream was opened behind the last one that its connection took: GOAWAY says so, and
/// the client asks again (RFC 9113 §6.8). The library opens what it has queued when the first word
/// of the end has come already.
fn was_not_taken(error: &h2::Error) -> bool {
    error.is_go_away() && error.is_remote() && error.reason() == Some(h2::Reason::NO_ERROR)
}

/// The same over HTTP/2, eight streams at once: what was asked is answered, whenever the connection
/// ends, or was not taken.
#[track_caller]
fn generate_over_http2(
    address: SocketAddr,
    number: usize,
    stopping: &AtomicBool,
) -> (u64, Duration) {
    const STREAMS: usize = 8;
    let client = format!("10.2.{number}.1");
    let request = http2::get("/streams", &[("x-forwarded-for", &client)]);
    let (mut count, mut longest) = (0, Duration::ZERO);
    let mut connection = None;
    while !stopping.load(Ordering::SeqCst) {
        let began = Instant::now();
        let mut open = connection.take().unwrap_or_else(|| Http2::open(address));
        let answers = open.ask_at_once(&request, STREAMS);
        let mut ends = answers.len() < STREAMS;
        for answer in answers {
            match answer {
                Ok(answer) => assert_eq!(answer.status, 200, "request {count} of {client}"),
                Err(error) if was_not_taken(&error) => {
                    ends = true;
                    continue;
                }
                Err(error) => panic!("request {count}: {error}"),
            }
            count += 1;
        }
        connection = (!ends).then_some(open);
        longest = longest.max(began.elapsed());
    }
    (count, longest)
}

/// RESTART-1: under load from four generators no connection is refused, no request fails, and no
/// ban and no count that was made before is lost.
#[track_caller]
fn hand_overs(rounds: u8) {
    let application = Application::ok();
    let service = Service::start(env!("CARGO_BIN_EXE_weir"), &application);
    let traffic = Traffic::start(service.address);
    for round in 0..rounds {
        let banned = format!("198.51.100.{round}");
        let order =
            json!({"netblock": format!("{banned}/32"), "duration": "permanent", "reason": "r"});
        service
            .admin("POST", "/_waf/bans", Some(&order.to_string()))
            .expect(201);
        let counted = format!("192.0.2.{round}");
        for _ in 0..3 {
            service.get(&counted).expect(200);
        }
        service.hand_over();
        for earlier in 0..=round {
            service.get(&format!("198.51.100.{earlier}")).expect(429);
        }
        let client = service
            .admin("GET", &format!("/_waf/clients/{counted}"), None)
            .json();
        assert_eq!(client["client"]["passed"], 3, "{client}");
    }
    let (requests, longest) = traffic.finish();
    println!(
        "{rounds} hand-overs, {requests} requests, longest wait {:.0} ms",
        milliseconds(longest)
    );
    assert!(requests > u64::from(rounds));
    assert!(service.state.path().join("bans.json").exists());
}

/// RESTART-1: a few of them.
#[test]
fn a_hand_over_loses_nothing() {
    hand_overs(3);
}

/// CRAWL-4, RESTART-1: an address that was verified as a crawler to one process is in no ban that
/// the next one makes.
#[test]
fn a_verified_crawler_is_handed_over() {
    let (application, dns) = (Application::ok(), Dns::start());
    dns.both("66.249.66.1", "crawl-66-249-66-1.googlebot.com");
    let server = dns.setting();
    let settings = [
        ("WAF_NAME_SERVERS", server.as_str()),
        ("WAF_METRICS_TOKEN", ADMIN_TOKEN),
    ];
    let program = env!("CARGO_BIN_EXE_weir");
    let service = Service::start_on(program, &application, "", &settings);
    let rules = json!({"version": 1,
        "crawlers": [{"name": "googlebot", "purpose": "search", "user_agent": ["Googlebot"],
                      "verify": {"dns": [".googlebot.com"]}}],
        "limits": [{"name": "page", "match": {"paths": ["/page"]}, "per_day": 2, "on_limit": "ban"}]});
    let new = service.state.path().join("rules.new");
    fs::write(&new, rules.to_string()).expect("writes");
    fs::rename(new, service.state.path().join("rules.json")).expect("renames");
    let ask = |path: &str, client: &str, agent: &str| {
        let fields = [
            ("X-Forwarded-For", client),
            ("User-Agent", agent),
            ("Connection", "close"),
        ];
        exchange(service.address, &get(path, &fields)).status
    };
    let verified =
        "waf_crawler_requests_total{crawler=\"googlebot\",state=\"verified\",outcome=\"passed\"}";
    wait_until("the proof", || {
        ask("/", "66.249.66.1", "Googlebot/2.1");
        let metrics = service.admin("GET", "/_waf/metrics", None).text();
        let mut lines = metrics.lines();
        lines.any(|line| line.starts_with(verified) && !line.ends_with(" 0"))
    });
    service.hand_over();
    for client in ["66.249.66.1", "66.249.66.200"] {
        for _ in 0..4 {
            ask("/page", client, "curl/8");
        }
    }
    let banned = || service.admin("GET", "/_waf/bans", None).json()["bans"].clone();
    wait_until("the ban", || {
        banned().as_array().is_some_and(|bans| !bans.is_empty())
    });
    let bans = banned();
    assert_eq!(bans.as_array().map(Vec::len), Some(1), "{bans}");
    assert_eq!(bans[0]["netblock"], "66.249.66.200/32");
}

/// RESTART-1: fifty.
#[test]
#[ignore = "long; .ci/run runs it"]
fn fifty_hand_overs_lose_nothing() {
    hand_overs(50);
}

/// RESTART-1: a connection whose last answer began before the hand-over, and did not say that it
/// is the last, is left the time for one more request; an idle one ends after it.
#[test]
fn an_answer_that_had_begun_is_followed_by_one_more() {
    let (release, wait) = mpsc::channel();
    let wait = Mutex::new(wait);
    let application = Application::start(move |exchange| {
        exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nhalf");
        if exchange.request.target == "/held" {
            let _ = wait.lock().expect("the channel").recv();
        }
        exchange.send(b"half");
        After::KeepAlive
    });
    let service = Service::start(env!("CARGO_BIN_EXE_weir"), &application);
    let old = service.process();
    let mut idle = Connection::open(service.address);
    idle.send(&get("/", &[]));
    idle.response().expect(200);
    let mut running = Connection::open(service.address);
    running.send(&get("/held", &[]));
    assert_eq!(running.head().expect("its head").header("connection"), None);
    service.hand_over();
    // Longer than an idle connection is left.
    assert!(idle.ends());
    release.send(()).expect("the application waits");
    assert_eq!(running.bytes(8).expect("all of it"), b"halfhalf");
    // Some ticks of its worker.
    std::thread::sleep(Duration::from_millis(300));
    running.send(&get("/", &[]));
    let last = running.response();
    assert_eq!(last.header("connection"), Some("close"));
    assert_eq!(last.body, b"halfhalf");
    wait_for_end(old);
}

/// RESTART-1, EDGE-2, EDGE-3: nor over HTTP/2, whose streams that run are answered, nor over TLS.
#[test]
fn a_hand_over_loses_nothing_over_http2_and_tls() {
    let (release, wait) = mpsc::channel();
    let wait = Mutex::new(wait);
    let application = Application::start(move |exchange| {
        if exchange.request.target == "/held" {
            exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nhalf");
            let _ = wait.lock().expect("the channel").recv();
            exchange.send(b"half");
        } else {
            exchange.answer(200, &[], b"fine");
        }
        After::KeepAlive
    });
    let mut settings = vec![("WAF_H2C", "on")];
    let files = Pair::settings(&[shared_pair()]);
    settings.extend(files.iter().map(|(name, value)| (*name, &**value)));
    let program = env!("CARGO_BIN_EXE_weir");
    let place = "https://127.0.0.1:0";
    let service = Service::start_on(program, &application, place, &settings);
    let places = service.places();
    let over_tls = places[1].strip_prefix("https://").expect("https");
    let over_tls = over_tls.parse().expect("an address");
    transport::note(over_tls, Transport::Tls);
    let tls = Traffic::start(over_tls);
    let streams = Traffic::of(service.address, generate_over_http2);
    for _ in 0..3 {
        let mut held = Http2::open(service.address);
        let open = held.begin(http2::get("/held", &[]), true);
        let (_, mut body) = held.head(open.response).expect("a head").into_parts();
        service.hand_over();
        release.send(()).expect("the application waits");
        assert_eq!(held.rest(&mut body), b"halfhalf");
    }
    for (name, path, traffic) in [("TLS", "/", tls), ("HTTP/2", "/streams", streams)] {
        let (requests, longest) = traffic.finish();
        println!(
            "{requests} requests over {name}, longest wait {:.0} ms",
            milliseconds(longest)
        );
        assert!(requests > 3, "{name}");
        // Whoever got no answer has not been at the application either.
        let all = application.requests();
        let arrived = all.iter().filter(|request| request.target == path);
        assert_eq!(arrived.count() as u64, requests, "{name}");
    }
    transport::forget(over_tls);
}

/// RESTART-1: what lies at the program's place and does not start changes nothing: the old process
/// goes on, and says why. Then a good one takes over.
#[test]
fn a_broken_binary_changes_nothing() {
    let application = Application::ok();
    let directory = state_dir();
    let program = directory.path().join("weir");
    fs::copy(env!("CARGO_BIN_EXE_weir"), &program).expect("a copy");
    let service = Service::start(program.to_str().expect("a path"), &application);
    let replace = |content: &[u8]| {
        let beside = directory.path().join("next");
        fs::copy("/bin/sh", &beside).expect("a program's mode");
        fs::write(&beside, content).expect("writes");
        fs::rename(&beside, &program).expect("replaces");
    };
    let traffic = Traffic::start(service.address);
    for (content, why) in [
        (&b"#!/bin/sh\nexit 3\n"[..], "it ended with exit status: 3"),
        (b"no program", "cannot be started"),
    ] {
        replace(content);
        service.signal(Signal::USR2);
        wait_until(why, || {
            let log = fs::read_to_string(&service.log).expect("the log");
            log.contains(why) && log.contains("goes on")
        });
        service.get("192.0.2.1").expect(200);
    }
    assert_eq!(service.said("listening").len(), 1);
    replace(&fs::read(env!("CARGO_BIN_EXE_weir")).expect("the binary"));
    service.hand_over();
    traffic.finish();
}

/// RESTART-1: what can be read without the state is read before the old process stops accepting.
#[test]
fn a_successor_reads_its_rules_while_the_old_process_serves() {
    let application = Application::ok();
    let service = Service::start(env!("CARGO_BIN_EXE_weir"), &application);
    let rules = r#"{"version":1,"deny":[{"netblock":"198.51.100.7/32"}]}"#;
    fs::write(service.state.path().join("rules.json"), rules).expect("writes");
    service.wait_for("edit of the rules taken in", 1);
    let before = service.said("").len();
    service.hand_over();
    let lines = service.said("").split_off(before);
    let place = |beginning: &str| {
        let named = |line: &Value| {
            let message = line["message"].as_str();
            message.is_some_and(|text| text.starts_with(beginning))
        };
        lines.iter().position(named).expect(beginning)
    };
    assert!(place("rules in force") < place("handing over"), "{lines:?}");
    service.get("198.51.100.7").expect(429);
}

/// RULE-10: a successor that cannot read a list takes the last good one, which the process before
/// has kept.
#[test]
fn a_successor_has_the_last_good_list() {
    let application = Application::ok();
    let service = Service::start(env!("CARGO_BIN_EXE_weir"), &application);
    let list = service.state.path().join("drop.txt");
    fs::write(&list, "198.51.100.0/24\n").expect("writes");
    let rules = r#"{"version":1,"deny":[{"file":"drop.txt"}]}"#;
    fs::write(service.state.path().join("rules.json"), rules).expect("writes");
    service.wait_for("edit of the rules taken in", 1);
    let kept =
        || fs::read_dir(service.state.path().join("lists")).is_ok_and(|all| all.count() == 1);
    wait_until("the kept list", kept);
    fs::write(&list, "<html>not found</html>\n").expect("writes");
    service.hand_over();
    service.get("198.51.100.7").expect(429);
    service.get("192.0.2.1").expect(200);
}

/// EDGE-1: a Unix socket is handed over with its file, which goes with the last process.
#[test]
fn a_unix_socket_is_handed_over() {
    let application = Application::ok();
    let directory = state_dir();
    let socket = directory.path().join("in.sock");
    let place = format!("unix:{}", socket.display());
    let service = Service::start_on(env!("CARGO_BIN_EXE_weir"), &application, &place, &[]);
    let ask = || {
        let mut connection = Connection::open_unix(&socket);
        connection.send(&get("/", &[("X-Forwarded-For", "203.0.113.1")]));
        connection.response().expect(200);
    };
    ask();
    for _ in 0..2 {
        let before = service.process();
        service.hand_over();
        wait_for_end(before);
        ask();
        service.get("203.0.113.1").expect(200);
    }
    service.signal(Signal::TERM);
    wait_for_end(service.process());
    assert!(!socket.exists());
}

/// RESTART-1: `weir upgrade` hands over and says to whom; a new process that finds a fault in what
/// it would take over (settings, rules, state files, log file) changes nothing, and its sentence is
/// the answer.
#[test]
fn an_upgrade_is_answered() {
    let application = Application::ok();
    let service = Service::start(env!("CARGO_BIN_EXE_weir"), &application);
    let upgrade = || run(service.state.path(), &["upgrade", "--json"]);
    let traffic = Traffic::start(service.address);
    let rules = service.state.path().join("rules.json");
    fs::write(&rules, "{\"version\":1,\"deny\":[{}]}").expect("writes");
    let Ran {
        code, err: said, ..
    } = upgrade();
    assert_eq!(code, 1, "{said}");
    assert!(
        said.starts_with("weir: this process goes on: ") && said.contains("does not fit"),
        "{said}"
    );
    assert_eq!(service.said("handing over").len(), 0);
    service.get("192.0.2.1").expect(200);
    fs::remove_file(&rules).expect("removes");
    let before = service.process();
    let Ran { code, out, err } = upgrade();
    assert_eq!((code, err.as_str()), (0, ""));
    let told: Value = serde_json::from_str(&out).expect("JSON");
    // The process log has a queue of its own: its line may come behind the answer.
    wait_until("the process that the answer names", || {
        let process = i64::from(service.process().as_raw_nonzero().get());
        told == json!({ "process": process })
    });
    assert_ne!(service.process(), before);
    traffic.finish();
}

/// FEED-7, RESTART-4: the decisions that the old process held, no more and no fewer, hold in the
/// new one, though the LAPI answers nobody any more.
#[test]
fn decisions_outlive_a_hand_over() {
    let lapi = Publisher::plain();
    changes_once(&lapi);
    let application = Application::ok();
    let service = Service::start(env!("CARGO_BIN_EXE_weir"), &application);
    let rules = json!({"version": 1, "feeds": [
        {"name": "crowdsec", "crowdsec": lapi.url(""), "key_file": "crowdsec.key"}]});
    fs::write(service.state.path().join("crowdsec.key"), "open-sesame").expect("writes");
    save(service.state.path(), "rules.json", &rules.to_string());
    wait_until("the change is there", || {
        service.get("203.0.113.3").status == 429
    });
    service.get("203.0.113.1").expect(200);
    service.hand_over();
    lapi.wait_for_heads(3);
    for (client, status) in [
        ("203.0.113.1", 200),
        ("203.0.113.2", 429),
        ("203.0.113.3", 429),
    ] {
        service.get(client).expect(status);
    }
}
