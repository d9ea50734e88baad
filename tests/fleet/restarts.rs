//! From where an instance reads the log after a restart (FLEET-23).

use super::*;

/// Whether fleet.json has a point to go on from.
fn has_point(weir: &Weir) -> bool {
    let file = weir.state_file("fleet.json");
    file.is_some_and(|file| file["point"].is_object())
}

fn resyncs(weir: &Weir) -> Option<f64> {
    weir.metric("waf_fleet_resyncs_total")
}

/// FLEET-23, FLEET-15: after a crash an instance reads the log from where it was, and not from its
/// beginning; what it had made and not sent goes out, and what others have made meanwhile comes in.
#[test]
#[ignore = "needs redis-server"]
fn a_restart_goes_on_where_it_was() {
    let (application, engine) = (Application::ok(), Engine::start());
    let state = state_dir();
    let mut one = start_at(&application, &state, &settings(&engine, "edge-1"));
    let other = start(&application, &engine, "edge-2");
    wait_in_step(&one, 2);
    other.ban("client", "203.0.113.1", "1h");
    one.ban("client", "203.0.113.2", "1h");
    wait_until("a point on disk", || has_point(&one));
    assert_eq!(resyncs(&one), Some(1.0));
    engine.hang();
    wait_until("alone", || fleet(&one)["state"] == "alone");
    let queued = one.ban("client", "203.0.113.3", "1h");
    assert_eq!(queued["fleet"], json!({"queued": true}));
    one.kill();
    drop(one);
    engine.go_on();
    let ban = wait_for("the engine", || {
        (fleet(&other)["state"] == "live").then(|| other.ban("client", "203.0.113.4", "1h"))
    });
    assert!(ban["fleet"]["in_force"].is_array(), "{ban:#}");
    let one = start_at(&application, &state, &settings(&engine, "edge-1"));
    other.wait_until_refused("203.0.113.3");
    one.wait_until_refused("203.0.113.4");
    wait_in_step(&one, 2);
    wait_until("all four", || {
        one.bans().len() == 4 && other.bans().len() == 4
    });
    assert_eq!(resyncs(&one), Some(0.0));
}

/// FLEET-23: the point on disk is never ahead of bans.json: a ban of another instance that was in
/// force, and that no file held yet, is there again after a crash.
#[test]
#[ignore = "needs redis-server"]
fn a_point_is_never_ahead_of_the_file_of_the_bans() {
    let (application, engine) = (Application::ok(), Engine::start());
    let state = state_dir();
    let mut late = settings(&engine, "edge-1");
    late.retain(|(name, _)| name != "WAF_STATE_WRITE_DELAY");
    late.push(("WAF_STATE_WRITE_DELAY".to_owned(), "1h".to_owned()));
    let mut one = start_at(&application, &state, &late);
    let other = start(&application, &engine, "edge-2");
    wait_in_step(&one, 2);
    let ban = other.ban("client", "203.0.113.7", "1h");
    in_force_at(&ban, &["edge-2", "edge-1"], || {
        is_refused(&one, "203.0.113.7")
    });
    // A lift there has fleet.json written here, with what may stand in it.
    other.admin("DELETE", "/_waf/bans/198.51.100.7", None);
    wait_until("fleet.json", || {
        let file = one.state_file("fleet.json");
        file.is_some_and(|file| file["events"].as_array().is_some_and(|all| !all.is_empty()))
    });
    one.kill();
    drop(one);
    let one = start_at(&application, &state, &late);
    one.wait_until_refused("203.0.113.7");
}

/// FLEET-29, FLEET-30: an instance that was killed, has come back and stops in good order is named
/// no more: the beat of the boot that was killed goes with it.
#[test]
#[ignore = "needs redis-server"]
fn a_stop_takes_the_beats_of_killed_boots_along() {
    let (application, engine) = (Application::ok(), Engine::start());
    let state = state_dir();
    let mut one = start_at(&application, &state, &settings(&engine, "edge-1"));
    let other = start(&application, &engine, "edge-2");
    wait_in_step(&one, 2);
    one.kill();
    drop(one);
    let mut one = start_at(&application, &state, &settings(&engine, "edge-1"));
    wait_in_step(&one, 2);
    wait_in_step(&other, 2);
    one.stop();
    wait_until("the other one alone", || {
        fleet(&other)["instances"].as_array().map(Vec::len) == Some(1)
    });
    assert_eq!(fleet(&other)["in_step"], true);
}
