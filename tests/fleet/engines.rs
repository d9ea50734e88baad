//! What an engine is asked over, and what is told of it (FLEET-4, FLEET-26, FLEET-28).

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
