//! TLS: certificates by name, replaced while it runs, versions, what is no TLS (EDGE-2, EDGE-5).

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rcgen::{CertificateParams, date_time_ymd};
use rustls::HandshakeKind;
use rustls::version::{TLS12, TLS13};

use crate::support::application::Application;
use crate::support::command::run;
use crate::support::raw_client::{Connection, exchange, get};
use crate::support::tls::{Pair, Secured, client, connect};
use crate::support::weir::{StateDir, Weir, state_dir};
use crate::support::{PATIENCE, wait_until};

/// A service with a plain place and one of TLS.
pub(super) struct Edge {
    pub(super) weir: Weir,
    pub(super) state: StateDir,
    pub(super) plain: SocketAddr,
    pub(super) tls: SocketAddr,
}

impl Edge {
    #[track_caller]
    pub(super) fn start(application: &Application, settings: &[(&str, &str)]) -> Self {
        let state = state_dir();
        let pair = Pair::write(state.path(), "one", &["a.test"]);
        Self::start_with(application, state, &[&pair], settings)
    }

    #[track_caller]
    pub(super) fn start_with(
        application: &Application,
        state: StateDir,
        pairs: &[&Pair],
        settings: &[(&str, &str)],
    ) -> Self {
        let files = Pair::settings(pairs);
        let mut all = vec![("WAF_LISTEN", "127.0.0.1:0,https://127.0.0.1:0")];
        all.extend(files.iter().map(|(name, value)| (*name, &**value)));
        all.extend_from_slice(settings);
        let weir = Weir::start_at(application.address(), &state, &all);
        Self::of(weir, state)
    }

    /// Of a service that listens at a plain place, then at one of TLS.
    #[track_caller]
    fn of(weir: Weir, state: StateDir) -> Self {
        let places = weir.places();
        let tls = places[1].strip_prefix("https://").expect("a place of TLS");
        Self {
            plain: places[0].parse().expect("an address"),
            tls: tls.parse().expect("an address"),
            weir,
            state,
        }
    }

    /// The names of the certificate that a client of this name gets.
    #[track_caller]
    fn certificate_for(&self, name: &str) -> Vec<u8> {
        let secured = connect(self.tls, name, &client(rustls::ALL_VERSIONS, &[])).expect("TLS");
        secured.conn.peer_certificates().expect("a certificate")[0].to_vec()
    }

    #[track_caller]
    pub(super) fn handshakes(&self, outcome: &str) -> f64 {
        let series = format!("waf_tls_handshakes_total{{outcome=\"{outcome}\"}}");
        metric(self.plain, &series)
    }

    #[track_caller]
    pub(super) fn connection_errors(&self, kind: &str) -> f64 {
        metric(
            self.plain,
            &format!("waf_connection_errors_total{{kind=\"{kind}\"}}"),
        )
    }
}

#[track_caller]
fn metric(address: SocketAddr, series: &str) -> f64 {
    let token = format!("Bearer {}", crate::support::weir::METRICS_TOKEN);
    let fields = [
        ("Authorization", &*token),
        ("X-Forwarded-For", "192.0.2.200"),
    ];
    let page = exchange(address, &get("/_waf/metrics", &fields))
        .expect(200)
        .text();
    let value = page
        .lines()
        .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    value.expect("the series").parse().expect("a number")
}

#[track_caller]
pub(super) fn ask(secured: &mut Secured, path: &str, fields: &[(&str, &str)]) -> String {
    secured.write_all(&get(path, fields)).expect("sends");
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let count = secured.read(&mut buffer).expect("an answer");
        answer.extend_from_slice(&buffer[..count]);
        let text = String::from_utf8_lossy(&answer);
        if count == 0 || text.contains("hello") || text.contains("\"status\":") {
            return text.into_owned();
        }
    }
}

/// EDGE-2: 1.2 and 1.3 are spoken, and a session goes on by a ticket in both; scheme and
/// `X-Forwarded-Proto` follow, and the log says so.
#[test]
fn both_versions_are_spoken_and_sessions_go_on() {
    let application = Application::ok();
    let edge = Edge::start(&application, &[("WAF_TRUSTED_PROXIES", "192.0.2.1")]);
    for (version, path) in [(&TLS12, "/old"), (&TLS13, "/new")] {
        let config = client(&[version], &[]);
        for kind in [HandshakeKind::Full, HandshakeKind::Resumed] {
            let mut secured = connect(edge.tls, "a.test", &config).expect("TLS");
            let path = format!("{path}-{kind:?}");
            assert!(ask(&mut secured, &path, &[]).starts_with("HTTP/1.1 200 "));
            assert_eq!(secured.conn.handshake_kind(), Some(kind), "{path}");
            let got = application.request(&path);
            assert_eq!(got.header("x-forwarded-proto"), Some("https"));
            assert_eq!(edge.weir.line_of(&path)["scheme"], "https");
        }
    }
    exchange(edge.plain, &get("/plain", &[])).expect(200);
    assert_eq!(
        application.request("/plain").header("x-forwarded-proto"),
        Some("http")
    );
    let page = edge
        .weir
        .control("GET", "/v1/metrics", None)
        .expect(200)
        .text();
    for series in [
        "waf_tls_handshakes_total{outcome=\"full\"} 2",
        "waf_tls_handshakes_total{outcome=\"resumed\"} 2",
        "waf_tls_certificate_expiry_timestamp_seconds{name=\"a.test\"} ",
    ] {
        assert!(page.contains(series), "{series}: {page}");
    }
}

/// EDGE-2: the certificate is that of the name, also by a wildcard; else the first.
#[test]
fn the_certificate_is_that_of_the_name() {
    let application = Application::ok();
    let state = state_dir();
    let pairs = [
        Pair::write(state.path(), "one", &["a.test"]),
        Pair::write(state.path(), "two", &["b.test", "*.c.test"]),
        Pair::write(state.path(), "three", &["x.c.test"]),
    ];
    let all: Vec<&Pair> = pairs.iter().collect();
    let edge = Edge::start_with(&application, state, &all, &[]);
    let [first, second, third] =
        ["a.test", "b.test", "x.c.test"].map(|name| edge.certificate_for(name));
    assert!(first != second && second != third && first != third);
    assert_eq!(edge.certificate_for("y.c.test"), second);
    assert_eq!(edge.certificate_for("B.Test"), second);
    assert_eq!(edge.certificate_for("x.y.c.test"), first);
    assert_eq!(edge.certificate_for("other.test"), first);
    assert_eq!(edge.certificate_for("127.0.0.1"), first);
}

/// EDGE-2: a certificate that is replaced is in use soon, without one failed handshake or request
/// meanwhile; a pair that does not fit leaves the last good one, and an alert says so.
#[test]
fn certificates_are_replaced_while_it_runs() {
    let application = Application::ok();
    // A machine that is quick asks more often than the default limit.
    let edge = Edge::start(&application, &[("WAF_RATE_LIMIT_PER_MINUTE", "off")]);
    let stopping = Arc::new(AtomicBool::new(false));
    let served = Arc::new(AtomicU64::new(0));
    let traffic = {
        let (stopping, served, address) = (Arc::clone(&stopping), Arc::clone(&served), edge.tls);
        std::thread::spawn(move || {
            while !stopping.load(Ordering::SeqCst) {
                let mut secured =
                    connect(address, "a.test", &client(&[&TLS13], &[])).expect("a handshake");
                assert!(ask(&mut secured, "/", &[]).starts_with("HTTP/1.1 200 "));
                served.fetch_add(1, Ordering::SeqCst);
            }
        })
    };
    let first = edge.certificate_for("a.test");
    Pair::write(edge.state.path(), "one", &["a.test"]);
    wait_until("the new certificate", || {
        edge.certificate_for("a.test") != first
    });
    let second = edge.certificate_for("a.test");
    Pair::write(edge.state.path(), "other", &["a.test"]);
    fs::copy(
        edge.state.path().join("other.key"),
        edge.state.path().join("one.key"),
    )
    .expect("copies");
    edge.weir
        .wait_for_process_log(&["is not the key of", "what was read before stays in use"]);
    wait_until("the alert", || {
        edge.weir
            .log_lines()
            .iter()
            .any(|line| line["kind"] == "file_error")
    });
    assert_eq!(edge.certificate_for("a.test"), second);
    wait_until("some traffic", || served.load(Ordering::SeqCst) > 10);
    stopping.store(true, Ordering::SeqCst);
    traffic.join().expect("no handshake failed");
}

/// EDGE-2, RELOAD-2: a reload takes other certificates, which are watched from then on, and whether
/// plain requests are sent to https; what cannot be used leaves everything as it was.
#[test]
fn a_reload_takes_other_certificates() {
    let application = Application::ok();
    let state = state_dir();
    let [one, two] = ["one", "two"].map(|stem| Pair::write(state.path(), stem, &["a.test"]));
    let file = state.path().join("weir.env");
    let lines = |pairs: &[&Pair], more: &str| {
        let [cert, key] = Pair::settings(pairs).map(|(name, value)| format!("{name}={value}\n"));
        fs::write(&file, cert + &key + more).expect("writes");
    };
    lines(&[&one], "");
    let settings = [
        ("WAF_LISTEN", "127.0.0.1:0,https://127.0.0.1:0"),
        ("WAF_SETTINGS_FILE", file.to_str().expect("a path")),
    ];
    let weir = Weir::start_at(application.address(), &state, &settings);
    let edge = Edge::of(weir, state);
    let reload = || edge.weir.control("POST", "/v1/reload", None);
    let plain = || exchange(edge.plain, &get("/", &[])).status;
    let first = edge.certificate_for("a.test");
    assert_eq!(plain(), 200);
    lines(&[&two], "WAF_REDIRECT_HTTP=on\n");
    reload().expect(200);
    let second = edge.certificate_for("a.test");
    assert_ne!(first, second);
    assert_eq!(plain(), 308);
    let missing = Pair {
        cert: edge.state.path().join("missing.pem"),
        key: two.key.clone(),
    };
    lines(&[&one, &missing], "");
    let refused = reload();
    assert_ne!(refused.status, 200);
    assert!(refused.text().contains("missing.pem"), "{}", refused.text());
    fs::write(&file, "").expect("writes");
    assert_ne!(reload().status, 200, "none is left");
    assert_eq!(edge.certificate_for("a.test"), second);
    assert_eq!(plain(), 308);
    Pair::write(edge.state.path(), "two", &["a.test"]);
    wait_until("the file that changed", || {
        edge.certificate_for("a.test") != second
    });
    lines(&[&one], "");
    reload().expect(200);
    assert_eq!(edge.certificate_for("a.test"), first);
    assert_eq!(plain(), 200);
}

/// EDGE-2: a certificate that ends within fourteen days, or has ended, raises an alert.
#[test]
fn a_certificate_that_ends_soon_is_told() {
    let application = Application::ok();
    let state = state_dir();
    let mut params = CertificateParams::new(vec!["a.test".to_owned()]).expect("a name");
    params.not_before = date_time_ymd(2020, 1, 1);
    params.not_after = date_time_ymd(2021, 1, 1);
    let pair = Pair::write_with(state.path(), "one", params);
    let edge = Edge::start_with(&application, state, &[&pair], &[]);
    wait_until("the alert", || {
        edge.weir.log_lines().iter().any(|line| {
            line["kind"] == "certificate"
                && line["name"] == "a.test"
                && line["expires"] == "2021-01-01T00:00:00Z"
        })
    });
    wait_until("the count", || {
        metric(edge.plain, "waf_alerts_total{kind=\"certificate\"}") == 1.0
    });
    // CONTROL-3: the command names the certificate and its end.
    let listed = run(&edge.weir.state_path(""), &["alerts"]).out;
    let told = listed.lines().find(|line| line.contains(" certificate "));
    let told = told.unwrap_or_else(|| panic!("no certificate: {listed}"));
    assert!(
        told.contains(" a.test ") && told.ends_with("2021-01-01T00:00:00Z"),
        "{told}"
    );
}

/// EDGE-2, SETTING-2: what cannot be served with stops the start, and `check` finds it.
#[test]
fn faulty_certificates_stop_the_start() {
    let state = state_dir();
    let one = Pair::write(state.path(), "one", &["a.test"]);
    let two = Pair::write(state.path(), "two", &["b.test"]);
    let text = |path: &std::path::Path| path.display().to_string();
    let listen = ("WAF_LISTEN", "https://127.0.0.1:0");
    let missing = text(&state.path().join("none.pem"));
    fs::write(state.path().join("empty"), "nothing").expect("writes");
    let empty = text(&state.path().join("empty"));
    for (cert, key, fault) in [
        ("", "", "and WAF_TLS_CERT is not set"),
        (
            &*text(&one.cert),
            "",
            "WAF_TLS_CERT names 1 files and WAF_TLS_KEY 0",
        ),
        (&missing, &text(&one.key), "cannot be read"),
        (&empty, &text(&one.key), "holds no certificate"),
        (&text(&one.cert), &empty, "holds no private key"),
        (&text(&one.cert), &text(&two.key), "is not the key of"),
    ] {
        let settings = [listen, ("WAF_TLS_CERT", cert), ("WAF_TLS_KEY", key)];
        let refused = Weir::refuse(&state_dir(), &settings);
        assert_eq!(refused.code, Some(78));
        assert!(
            refused.stderr.contains(fault),
            "{fault}: {}",
            refused.stderr
        );
        let check = Command::new(env!("CARGO_BIN_EXE_weir"))
            .arg("check")
            .env_clear()
            .env("WAF_UPSTREAM", "http://127.0.0.1:9")
            .env("WAF_STATE_DIR", state.path())
            .env("WAF_LOOKUP_SOURCE", "off")
            .envs(settings)
            .output()
            .expect("the binary runs");
        let said = String::from_utf8_lossy(&check.stderr);
        assert!(said.contains(fault), "{fault}: {said}");
    }
}

/// EDGE-2: plain requests are sent to https with host and target; health, own endpoints and
/// refusals are answered, and so is what a trusted proxy says came over https.
#[test]
fn plain_requests_are_sent_to_https() {
    let application = Application::ok();
    let settings = [
        ("WAF_REDIRECT_HTTP", "on"),
        ("WAF_DENY_NETS", "203.0.113.9"),
    ];
    let edge = Edge::start(&application, &settings);
    let port = edge.tls.port();
    let plain = |head: &str| exchange(edge.plain, head.as_bytes());
    let answer = plain("GET /a/b?c=d HTTP/1.1\r\nHost: a.test:81\r\n\r\n").expect(308);
    assert_eq!(
        answer.header("location"),
        Some(&*format!("https://a.test:{port}/a/b?c=d"))
    );
    let nameless = raw(edge.plain, b"GET / HTTP/1.0\r\n\r\n");
    assert!(nameless.starts_with(b"HTTP/1.0 400 "), "{nameless:?}");
    plain("GET /_waf/health HTTP/1.1\r\nHost: a.test\r\n\r\n").expect(200);
    plain("GET / HTTP/1.1\r\nHost: a.test\r\nX-Forwarded-For: 203.0.113.9\r\n\r\n").expect(429);
    plain("GET /secure HTTP/1.1\r\nHost: a.test\r\nX-Forwarded-Proto: https\r\n\r\n").expect(200);
    assert_eq!(application.requests().len(), 1);
    let mut secured = connect(edge.tls, "a.test", &client(&[&TLS13], &[])).expect("TLS");
    assert!(ask(&mut secured, "/", &[]).starts_with("HTTP/1.1 200 "));
}

/// Sends bytes and reads to the end of the connection; what came.
#[track_caller]
pub(super) fn raw(address: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).expect("connects");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    stream.write_all(bytes).expect("sends");
    let mut answer = Vec::new();
    // A reset is an end too.
    let _ = stream.read_to_end(&mut answer);
    answer
}

/// A ClientHello as OpenSSL 1.0 sent it, of this version: nothing newer is offered.
pub(super) fn hello(version: u8) -> Vec<u8> {
    let mut body = vec![3, version];
    body.extend([7; 32]);
    body.extend([0, 0, 4, 0xc0, 0x14, 0, 0x35, 1, 0]);
    let mut hello = vec![
        0x16,
        3,
        1,
        0,
        u8::try_from(body.len()).expect("short") + 4,
        1,
        0,
        0,
    ];
    hello.push(u8::try_from(body.len()).expect("short"));
    hello.extend(body);
    hello
}

/// EDGE-2, EDGE-5: older versions, oversize records, plain HTTP and noise end the connection, are
/// counted, and leave the service as it is; plain HTTP is answered in its own words.
#[test]
fn what_is_no_tls_is_refused() {
    let application = Application::ok();
    let edge = Edge::start(&application, &[]);
    for version in [0, 1, 2] {
        let answer = raw(edge.tls, &hello(version));
        assert_eq!(answer.first(), Some(&0x15), "an alert: {answer:?}");
    }
    let mut oversize = vec![0x16, 3, 1, 0xff, 0xff];
    oversize.extend(vec![1; 70_000]);
    raw(edge.tls, &oversize);
    let answer = raw(edge.tls, b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n");
    assert!(answer.starts_with(b"HTTP/1.1 400 "), "{answer:?}");
    raw(edge.tls, &[0x80, 0x2e, 1, 3, 1, 0, 21, 0, 0, 0, 16]);
    wait_until("the counts", || {
        edge.handshakes("failed") == 6.0 && edge.connection_errors("tls") == 6.0
    });
    let line = "the peer speaks plain HTTP; this port is TLS";
    edge.weir.wait_for_process_log(&[line]);
    for _ in 0..3 {
        raw(edge.tls, b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n");
        raw(edge.plain, &hello(3));
    }
    edge.weir
        .wait_for_process_log(&["the peer speaks TLS; this port is plain HTTP"]);
    let said = edge.weir.process_log_text();
    assert_eq!(said.matches(line).count(), 1, "{said}");
    assert_eq!(said.matches("the peer speaks TLS").count(), 1, "{said}");
    let mut secured = connect(edge.tls, "a.test", &client(&[&TLS13], &[])).expect("TLS");
    assert!(ask(&mut secured, "/", &[]).starts_with("HTTP/1.1 200 "));
}

/// EDGE-2: a handshake that is not done in time ends; it takes nothing from those who speak. One on
/// which nothing was ever sent ends in silence (CONN-8).
#[test]
fn a_slow_handshake_ends() {
    let application = Application::ok();
    let edge = Edge::start(&application, &[("WAF_HEADER_TIMEOUT", "3s")]);
    let slow: Vec<TcpStream> = (0..40)
        .map(|number| {
            let mut stream = TcpStream::connect(edge.tls).expect("connects");
            stream.write_all(&hello(3)[..number % 20]).expect("sends");
            stream
        })
        .collect();
    let mut secured = connect(edge.tls, "a.test", &client(&[&TLS13], &[])).expect("TLS");
    assert!(ask(&mut secured, "/", &[]).starts_with("HTTP/1.1 200 "));
    for mut stream in slow {
        stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        assert_eq!(rest, b"");
    }
    wait_until("the counts", || {
        edge.handshakes("timed_out") == 38.0 && edge.connection_errors("tls") == 38.0
    });
}

/// EDGE-2: a flood of handshakes leaves the worker to everybody else.
#[test]
fn a_flood_of_handshakes_starves_nobody() {
    let application = Application::ok();
    let edge = Edge::start(&application, &[("WAF_WORKERS", "1")]);
    let stopping = Arc::new(AtomicBool::new(false));
    let flood: Vec<_> = (0..8)
        .map(|_| {
            let (stopping, address) = (Arc::clone(&stopping), edge.tls);
            std::thread::spawn(move || {
                let mut made = 0;
                while !stopping.load(Ordering::SeqCst) {
                    let config = client(&[&TLS13], &[]);
                    made += u32::from(connect(address, "a.test", &config).is_ok());
                }
                made
            })
        })
        .collect();
    let mut plain = Connection::open(edge.plain);
    for _ in 0..200 {
        plain.send(&get("/", &[]));
        plain.response().expect(200);
    }
    stopping.store(true, Ordering::SeqCst);
    let made: u32 = flood
        .into_iter()
        .map(|thread| thread.join().expect("a thread"))
        .sum();
    assert!(made > 0);
}

/// EDGE-2, CONN-5: a large answer arrives whole, also at a client that reads slowly, and a body of
/// a megabyte at the application.
#[test]
fn large_bodies_pass_over_tls() {
    let application = Application::echo();
    let edge = Edge::start(&application, &[]);
    let body: Vec<u8> = (0..3_000_000_u32)
        .map(|number| number.to_be_bytes()[3])
        .collect();
    let mut secured = connect(edge.tls, "a.test", &client(&[&TLS13], &[])).expect("TLS");
    let head = format!(
        "POST /large HTTP/1.1\r\nHost: a.test\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    secured.write_all(head.as_bytes()).expect("sends");
    secured.write_all(&body).expect("sends");
    secured.flush().expect("sends");
    // What is written meanwhile waits on the other side.
    std::thread::sleep(Duration::from_millis(500));
    let mut answer = Vec::new();
    secured.read_to_end(&mut answer).expect("the end is said");
    assert!(answer.ends_with(&body));
    assert_eq!(edge.weir.line_of("/large")["bytes"]["response"], 3_000_000);
}
