//! What an engine is asked over, what is told of it, and what one costs that lies (FLEET-2,
//! FLEET-4, FLEET-26, FLEET-28).

use std::net::TcpListener;
use std::time::Duration;

use super::*;
use crate::support::tls::Pair;

/// FLEET-28, FLEET-4: a policy by which the engine could drop the log is named by `weir check`, by
/// an alert and in `weir fleet`; `weir check` says what holds at each instance, and that an engine
/// does not answer, and finds no fault in either.
#[test]
#[ignore = "needs redis-server"]
fn a_policy_that_could_drop_the_log_is_named() {
    let (application, mut engine) = (Application::ok(), Engine::start());
    let check = |engine: &Engine| {
        let state = state_dir();
        let mut command = crate::support::command::command(state.path(), &["check"]);
        command.env("WAF_UPSTREAM", format!("http://{}", application.address()));
        command.env("WAF_LISTEN", "127.0.0.1:0");
        command.envs(settings(engine, "edge-1"));
        ran(command.output().expect("it runs"))
    };
    let named = "maxmemory-policy allkeys-lru, which can drop the log";
    let fine = check(&engine);
    assert_eq!(fine.code, 0, "{}{}", fine.out, fine.err);
    assert!(
        fine.out
            .contains("hold at each instance by itself: per_second"),
        "{}",
        fine.out
    );
    assert!(!fine.err.contains("maxmemory"), "{}", fine.err);
    engine.ask(&[b"CONFIG", b"SET", b"maxmemory-policy", b"allkeys-lru"]);
    let told = check(&engine);
    assert_eq!(told.code, 0, "{}{}", told.out, told.err);
    assert!(told.err.contains(named), "{}", told.err);
    let (state, settings) = (state_dir(), settings(&engine, "edge-1"));
    let mut weir = start_at(&application, &state, &settings);
    wait_in_step(&weir, 1);
    wait_until("the alert", || {
        let mut lines = weir.log_lines().into_iter();
        lines.any(|line| line["kind"] == "fleet" && line["what"] == "eviction")
    });
    let shown = run(weir.state_path("").as_path(), &["fleet"]);
    assert!(shown.out.contains(named), "{}", shown.out);
    // alerts.json has the alert, and is read again.
    weir.stop();
    drop(weir);
    drop(start_at(&application, &state, &settings));
    engine.kill();
    let away = check(&engine);
    assert_eq!(away.code, 0, "{}{}", away.out, away.err);
    assert!(away.err.contains("cannot be asked"), "{}", away.err);
}

/// FLEET-26: over TLS an engine is one as any other, where its certificate is signed by who is
/// trusted; where it is not, nothing is said to it, and the instance says why it is alone.
#[test]
#[ignore = "needs redis-server"]
fn an_engine_is_asked_over_tls() {
    let certificates = tempfile::tempdir().expect("a directory");
    let dir = certificates.path();
    let (pair, _) = Pair::with_authority(dir, "engine", &["127.0.0.1"]);
    let (_, _) = Pair::with_authority(dir, "other", &["127.0.0.1"]);
    let (application, mut engine) = (Application::ok(), Engine::away());
    engine.begin_with_tls(&pair.cert, &pair.key, None);
    let settings = |name: &str, authority: &str| {
        let mut settings = settings(&engine, name);
        settings[0].1 = engine.place().replace("valkey://", "valkeys://");
        let authority = dir.join(authority).display().to_string();
        settings.push(("WAF_FLEET_CA_FILE".to_owned(), authority));
        settings
    };
    let [one, other] = ["edge-1", "edge-2"]
        .map(|name| start_at(&application, &state_dir(), &settings(name, "engine.ca")));
    wait_in_step(&one, 2);
    one.ban("client", "203.0.113.7", "1h");
    other.wait_until_refused("203.0.113.7");
    let third = start_at(&application, &state_dir(), &settings("edge-3", "other.ca"));
    let why = wait_for("alone", || {
        let fleet = fleet(&third);
        (fleet["state"] == "alone").then(|| fleet["why"].to_string())
    });
    assert!(why.contains("certificate"), "{why}");
    assert_eq!(fleet(&one)["instances"].as_array().map(Vec::len), Some(2));
}

/// FLEET-26: an engine that asks for a certificate is shown that of WAF_FLEET_CERT; without one, or
/// with one that somebody else has signed, the instance is alone and says why.
#[test]
#[ignore = "needs redis-server"]
fn an_engine_is_shown_a_certificate() {
    let certificates = tempfile::tempdir().expect("a directory");
    let dir = certificates.path();
    let pairs = ["engine", "clients", "others"]
        .map(|name| Pair::with_authority(dir, name, &["127.0.0.1"]).0);
    let [engine_pair, client, other] = &pairs;
    let (application, mut engine) = (Application::ok(), Engine::away());
    let signs = dir.join("clients.ca");
    engine.begin_with_tls(&engine_pair.cert, &engine_pair.key, Some(&signs));
    let start = |name: &str, pair: Option<&Pair>| {
        let mut settings = settings(&engine, name);
        settings[0].1 = engine.place().replace("valkey://", "valkeys://");
        let mut set = |name: &str, path: &Path| {
            settings.push((name.to_owned(), path.display().to_string()));
        };
        set("WAF_FLEET_CA_FILE", &dir.join("engine.ca"));
        if let Some(pair) = pair {
            set("WAF_FLEET_CERT", &pair.cert);
            set("WAF_FLEET_CERT_KEY", &pair.key);
        }
        start_at(&application, &state_dir(), &settings)
    };
    let [one, two] = ["edge-1", "edge-2"].map(|name| start(name, Some(client)));
    wait_in_step(&one, 2);
    one.ban("client", "203.0.113.7", "1h");
    two.wait_until_refused("203.0.113.7");
    for pair in [None, Some(other)] {
        let refused = start("edge-3", pair);
        wait_until("alone", || fleet(&refused)["state"] == "alone");
    }
    assert_eq!(fleet(&one)["instances"].as_array().map(Vec::len), Some(2));
}

/// FLEET-2: an engine that answers without an end, byte by byte, or with what is no answer leaves
/// the instance alone, which says why; it costs no request, and no more memory than a bound.
#[test]
fn an_engine_that_lies_costs_little() {
    let application = Application::ok();
    for (beginning, more, pause, expected) in [
        (
            &b"$536870912\r\n"[..],
            65_536,
            0,
            &["more than 16 MiB", "no answer within"][..],
        ),
        (b"+", 65_536, 0, &["more than 16 MiB", "no answer within"]),
        (b"$1000\r\n", 1, 100, &["no answer within"]),
        (
            b"HTTP/1.1 400 Bad Request\r\n\r\n",
            0,
            0,
            &["does not answer as an engine does"],
        ),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let place = listener.local_addr().expect("an address");
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                std::thread::spawn(move || lie(stream, beginning, more, pause));
            }
        });
        let nobody = Engine::away();
        let mut settings = settings(&nobody, "edge-1");
        settings[0].1 = format!("valkey://{place}");
        let weir = start_at(&application, &state_dir(), &settings);
        let why = wait_for("alone", || {
            let fleet = fleet(&weir);
            let why = fleet["why"].as_str()?.to_owned();
            let is_told = expected.iter().any(|words| why.contains(words));
            (fleet["state"] == "alone" && is_told).then_some(why)
        });
        for _ in 0..20 {
            weir.get("/exempt", "203.0.113.7").expect(200);
        }
        let status = fs::read_to_string(format!("/proc/{}/status", weir.pid())).expect("it");
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let peak = peak.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok());
        // Four connections, and each reader has its buffer twice while that grows.
        assert!(peak < Some(256_000_u64), "{peak:?} KiB: {why}");
    }
}

fn lie(mut stream: TcpStream, beginning: &[u8], more: usize, pause_ms: u64) {
    let _ = stream.read(&mut [0; 4096]);
    let _ = stream.write_all(beginning);
    let more = vec![b'x'; more];
    while !more.is_empty() && stream.write_all(&more).is_ok() {
        std::thread::sleep(Duration::from_millis(pause_ms));
    }
    // Until the other end goes.
    let _ = stream.read_to_end(&mut Vec::new());
}
