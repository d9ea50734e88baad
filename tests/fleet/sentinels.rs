//! An engine that Sentinels have watched, and put another in place of.

use super::*;

/// FLEET-2, FLEET-15: instances find the engine by its Sentinel; when it dies and its replica is
/// made the master, they go on with that one, and what was banned meanwhile holds at both.
#[test]
#[ignore = "needs redis-server"]
fn instances_follow_a_failover() {
    let (application, mut master) = (Application::ok(), Engine::start());
    let mut replica = Engine::away();
    replica.begin_as_replica(&master);
    wait_until("the replica in step", || {
        let told = String::from_utf8(replica.ask(&[b"ROLE"])).expect("text");
        told.contains("connected")
    });
    let mut sentinel = Engine::away();
    sentinel.begin_as_sentinel(&master, "main");
    let by_sentinel = sentinel.place().replace("valkey://", "valkey+sentinel://") + "/main";
    let [one, other] = ["edge-1", "edge-2"].map(|name| {
        let mut settings = settings(&master, name);
        settings[0].1.clone_from(&by_sentinel);
        start_at(&application, &state_dir(), &settings)
    });
    wait_in_step(&one, 2);
    assert_eq!(fleet(&one)["engine"], by_sentinel);
    one.ban("client", "203.0.113.7", "1h");
    other.wait_until_refused("203.0.113.7");
    master.kill();
    one.ban("client", "198.51.100.7", "1h");
    other.wait_until_refused("198.51.100.7");
    wait_in_step(&other, 2);
    let told = String::from_utf8(replica.ask(&[b"ROLE"])).expect("text");
    assert!(told.contains("master"), "{told}");
    // A name that it does not know is told.
    let mut settings = settings(&master, "edge-3");
    settings[0].1 = by_sentinel.replace("/main", "/other");
    let lost = start_at(&application, &state_dir(), &settings);
    let why = wait_for("alone", || {
        let fleet = fleet(&lost);
        (fleet["state"] == "alone").then(|| fleet["why"].to_string())
    });
    assert!(why.contains("it knows no engine"), "{why}");
}
