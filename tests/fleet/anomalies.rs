//! Anomalies that several instances find together (FLEET-19, FLEET-20).

use super::*;

const CLIENT: &str = "203.0.113.7";

fn watching(engine: &Engine, name: &str, mode: &str) -> Vec<(String, String)> {
    let mut settings = settings(engine, name);
    settings.retain(|(name, _)| name != ONE_PER_HOUR.0);
    for (name, value) in [
        ("WAF_ANOMALY_CLIENT_REQUESTS_PER_HOUR", "30"),
        ("WAF_ANOMALY_COOLDOWN", "2h"),
        ("WAF_MODE", mode),
    ] {
        settings.push((name.to_owned(), value.to_owned()));
    }
    settings
}

/// The alerts of anomalies that both have told, for this client.
fn told(both: &[Weir], client: &str) -> Vec<Value> {
    let lines = both.iter().flat_map(Weir::log_lines);
    lines
        .filter(|line| line["event"] == "alert" && line["kind"] == "anomaly")
        .filter(|line| line["of"] == client)
        .collect()
}

fn pass(weir: &Weir, client: &str, count: usize) {
    for _ in 0..count {
        weir.get("/", client).expect(200);
    }
}

/// Whether an instance that has ended had a cooldown of this client.
fn has_cooldown(weir: &Weir, client: &str) -> bool {
    let file = weir.state_file("alerts.json").expect("alerts.json");
    let mut cooldowns = file["cooldowns"].as_array().expect("a list").iter();
    cooldowns.any(|cooldown| cooldown["of"] == client)
}

/// FLEET-19: two instances each under a threshold and together over it tell one alert, with the
/// sum; the cooldown holds at both, also once each is over the threshold by itself. Without the
/// engine each decides alone.
#[test]
#[ignore = "needs redis-server"]
fn a_threshold_is_that_of_the_fleet() {
    let (application, mut engine) = (Application::ok(), Engine::start());
    let mut both = ["edge-1", "edge-2"].map(|name| {
        let settings = watching(&engine, name, "enforce");
        start_at(&application, &state_dir(), &settings)
    });
    both.iter().for_each(|weir| drop(wait_in_step(weir, 2)));
    both.iter().for_each(|weir| pass(weir, CLIENT, 20));
    wait_until("the alert", || !told(&both, CLIENT).is_empty());
    let alert = told(&both, CLIENT).remove(0);
    // Told as soon as the sum is over the threshold: the last may not be counted then.
    let count = alert["count"].as_u64().expect("a number");
    assert!((31..=40).contains(&count), "{alert}");
    assert_eq!(alert["limit"], 30, "{alert}");
    // It was told, and its name stands until the cooldown ends; until then it goes within seconds,
    // so that another tells it where this one has crashed.
    let names = engine.ask(&[b"KEYS", b"weir:{weir}:cd:*"]);
    let names = String::from_utf8(names).expect("text");
    let key = names.lines().find(|line| line.starts_with("weir:"));
    let key = key.expect("its name").as_bytes().to_vec();
    wait_until("the name stands", || {
        let left = String::from_utf8(engine.ask(&[b"PTTL", &key])).expect("text");
        let left: i64 = left.lines().next().unwrap_or_default()[1..]
            .parse()
            .expect("a time");
        left > 3_600_000
    });
    // Each by itself is over it now. The engine is asked for one alert after the other: those of
    // these further clients are told after that one was decided.
    both.iter().for_each(|weir| pass(weir, CLIENT, 20));
    for (weir, further) in both.iter().zip(["198.51.100.1", "198.51.100.2"]) {
        pass(weir, further, 31);
        wait_until("the alert of one", || !told(&both, further).is_empty());
    }
    assert_eq!(told(&both, CLIENT).len(), 1);
    engine.kill();
    wait_until("alone", || {
        both.iter().all(|weir| fleet(weir)["state"] == "alone")
    });
    let other = "198.51.100.7";
    both.iter().for_each(|weir| pass(weir, CLIENT, 5));
    both.iter().for_each(|weir| pass(weir, other, 31));
    wait_until("an alert of each", || told(&both, other).len() == 2);
    both.iter_mut().for_each(Weir::stop);
    assert_eq!(told(&both, CLIENT).len(), 1);
    assert!(both.iter().all(|weir| has_cooldown(weir, CLIENT)));
}

/// FLEET-20: what an instance in observe mode counts is no part of the sums of one that enforces.
#[test]
#[ignore = "needs redis-server"]
fn who_observes_has_thresholds_of_its_own() {
    let (application, engine) = (Application::ok(), Engine::start());
    let both = [("edge-1", "enforce"), ("edge-2", "observe")]
        .map(|(name, mode)| start_at(&application, &state_dir(), &watching(&engine, name, mode)));
    both.iter().for_each(|weir| drop(wait_in_step(weir, 2)));
    both.iter().for_each(|weir| pass(weir, CLIENT, 20));
    // Both are over it with a further client, each by itself and each in its own mode.
    let other = "198.51.100.7";
    both.iter().for_each(|weir| pass(weir, other, 31));
    wait_until("an alert of each", || told(&both, other).len() == 2);
    // Beats that came after the counts.
    let ban = both[0].ban("client", "100.64.1.7", "1h");
    in_force_at(&ban, &["edge-1", "edge-2"], || {
        let mut bans = both[1].bans().into_iter();
        bans.any(|held| held["netblock"] == ban["netblock"])
    });
    assert_eq!(told(&both, CLIENT).len(), 0);
}
