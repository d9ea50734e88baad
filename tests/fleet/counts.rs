//! What several instances count together (FLEET-4 to FLEET-9, FLEET-20, FLEET-30).

use std::time::Duration;

use super::*;
use crate::support::raw_client;

const CLIENT: &str = "203.0.113.7";

/// The settings of an instance with this limit a day.
fn limited(engine: &Engine, name: &str, limit: &str) -> Vec<(String, String)> {
    let mut settings = settings(engine, name);
    settings.retain(|(name, _)| name != ONE_PER_HOUR.0);
    settings.push(("WAF_RATE_LIMIT_PER_DAY".to_owned(), limit.to_owned()));
    settings
}

/// Two instances with this limit a day, that know of each other.
fn two(
    engine: &Engine,
    application: &Application,
    limit: &str,
    more: &[(&str, &str)],
) -> [Weir; 2] {
    let both = ["edge-1", "edge-2"].map(|name| {
        let mut settings = limited(engine, name, limit);
        let more = more.iter();
        settings.extend(more.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        start_at(application, &state_dir(), &settings)
    });
    both.iter().for_each(|weir| drop(wait_in_step(weir, 2)));
    both
}

/// Two instances with these rules, that know of each other.
fn two_under(engine: &Engine, application: &Application, rules: &Value) -> [Weir; 2] {
    let both = ["edge-1", "edge-2"].map(|name| {
        let state = state_dir();
        fs::write(state.path().join("rules.json"), pretty(rules)).expect("writes");
        start_at(application, &state, &limited(engine, name, "1000"))
    });
    both.iter().for_each(|weir| drop(wait_in_step(weir, 2)));
    both
}

fn explained(weir: &Weir) -> Value {
    let path = format!("/v1/explain?address={CLIENT}&path=%2F");
    weir.control("GET", &path, None).expect(200).json()
}

/// Requests of today that an instance knows of, and how many of them others have counted.
fn known(weir: &Weir) -> (u64, u64) {
    let explained = explained(weir);
    let used = explained["requests"]["day"]["used"].as_u64();
    let elsewhere = explained["elsewhere"]["requests"]["day"].as_u64();
    (used.unwrap_or_default(), elsewhere.unwrap_or_default())
}

#[track_caller]
fn wait_until_known(weir: &Weir, used: u64, elsewhere: u64) {
    wait_for("what both have counted", || {
        (known(weir) == (used, elsewhere)).then_some(())
    });
}

#[track_caller]
fn pass(weir: &Weir, count: usize) {
    for _ in 0..count {
        weir.get("/", CLIENT).expect(200);
    }
}

/// A client that takes its time: what instances learn of each other arrives meanwhile (FLEET-7).
fn breathe() {
    std::thread::sleep(Duration::from_millis(150));
}

/// FLEET-5, FLEET-8: a client that spreads its requests over two instances gets as many as its
/// limit has, and is banned soon after: by the one that learns of it, with what each has counted.
#[test]
#[ignore = "needs redis-server"]
fn a_client_that_spreads_is_limited_as_one() {
    let (application, engine) = (Application::ok(), Engine::start());
    let both = two(&engine, &application, "40", &[]);
    for _ in 0..20 {
        both.iter().for_each(|weir| pass(weir, 1));
    }
    // Each has sent nearly all that it counted: some of a tenth of what was left is held back.
    let mut more = 0;
    wait_for("the ban", || {
        breathe();
        let refused = both.iter().any(|weir| weir.get("/", CLIENT).status == 429);
        more += if refused { 0 } else { 2 };
        refused.then_some(())
    });
    assert!(more <= 30, "{more} more than its limit");
    let bans = wait_for_bans(&both[0], "the ban", |bans| {
        bans.iter().any(|ban| ban["notes"].is_object())
    });
    let notes = &bans[0]["notes"];
    let number = |name: &str| notes["fleet"][name].as_u64().unwrap_or_default();
    assert!(number("here") > 0 && number("here") <= 40, "{notes:#}");
    assert!(number("others") > 0, "{notes:#}");
    assert!(number("here") + number("others") > 40, "{notes:#}");
    assert_eq!(number("instances"), 2, "{notes:#}");
    assert_eq!(notes["limit"], "day");
    both.iter().for_each(|weir| weir.wait_until_refused(CLIENT));
    // Nobody else is.
    both[1].get("/", "198.51.100.1").expect(200);
}

/// FLEET-5: a client that stays with one instance is refused at the same request as without a
/// fleet.
#[test]
#[ignore = "needs redis-server"]
fn a_client_that_stays_has_its_limit() {
    let (application, engine) = (Application::ok(), Engine::start());
    let [one, other] = two(&engine, &application, "30", &[]);
    pass(&one, 30);
    one.get("/", CLIENT).expect(429);
    other.wait_until_refused(CLIENT);
    let bans = wait_for_bans(&one, "the ban", |bans| bans[0]["notes"].is_object());
    assert!(bans[0]["notes"].get("fleet").is_none(), "{bans:#?}");
}

/// FLEET-6: an engine that has lost everything has the counts again, and none of them twice; and
/// one that is away holds nobody up.
#[test]
#[ignore = "needs redis-server"]
fn an_emptied_engine_has_the_counts_again() {
    let (application, mut engine) = (Application::ok(), Engine::start());
    let [one, other] = two(&engine, &application, "2000", &[]);
    let mut all = 0;
    // Each asks again when it has counted some more, and has all of the other's then.
    let mut wait_until_both_know = |more: u64| {
        all += more;
        wait_for("the counts of both", || {
            let both = [&one, &other].map(|weir| {
                pass(weir, 1);
                all += 1;
                let (used, elsewhere) = known(weir);
                assert!(used <= all, "{used} of {all}");
                used + 40 >= all && elsewhere > 0
            });
            (both == [true, true]).then_some(())
        });
    };
    wait_until_both_know(0);
    engine.ask(&[b"FLUSHALL"]);
    pass(&one, 10);
    pass(&other, 10);
    wait_until_both_know(20);
    engine.kill();
    pass(&one, 1);
    pass(&other, 1);
    engine.begin();
    wait_in_step(&one, 2);
    wait_until_both_know(2);
}

/// FLEET-9: a ban voids what was counted before it at every instance and in the engine: after it
/// the client has its whole limit.
#[test]
#[ignore = "needs redis-server"]
fn a_ban_begins_the_counts_anew() {
    let (application, engine) = (Application::ok(), Engine::start());
    let more = [("WAF_BAN_FIRST", "4s")];
    let [one, other] = two(&engine, &application, "20", &more);
    pass(&one, 10);
    pass(&other, 2);
    wait_for("some counts", || {
        (known(&other).1 > 0 || known(&one).1 > 0).then_some(())
    });
    wait_for("the ban", || {
        (one.get("/", CLIENT).status == 429).then_some(())
    });
    other.wait_until_refused(CLIENT);
    one.wait_until_served(CLIENT);
    other.wait_until_served(CLIENT);
    wait_until_known(&one, 0, 0);
    wait_until_known(&other, 0, 0);
    pass(&one, 10);
    // An instance hears of a client's counts where it counts the client itself.
    let mut left = 8;
    wait_for("its new counts", || {
        let (used, elsewhere) = known(&other);
        assert!(used <= 20);
        if left > 0 && elsewhere < 9 {
            left -= 1;
            pass(&other, 1);
            std::thread::sleep(Duration::from_millis(150));
        }
        (elsewhere >= 9).then_some(())
    });
}

/// FLEET-30: an instance that stops sends what it held back; after a restart it sends nothing
/// twice.
#[test]
#[ignore = "needs redis-server"]
fn a_stop_sends_everything_and_a_restart_nothing_twice() {
    let (application, engine) = (Application::ok(), Engine::start());
    let states = [state_dir(), state_dir()];
    let settings = ["edge-1", "edge-2"].map(|name| limited(&engine, name, "1000"));
    let mut one = start_at(&application, &states[0], &settings[0]);
    let other = start_at(&application, &states[1], &settings[1]);
    wait_in_step(&one, 2);
    wait_in_step(&other, 2);
    // Far below what is held back.
    pass(&one, 7);
    one.stop();
    drop(one);
    pass(&other, 120);
    wait_for("what the other counted", || {
        (known(&other).1 == 7).then_some(())
    });
    let one = start_at(&application, &states[0], &settings[0]);
    wait_in_step(&one, 2);
    // Its client is asked about at once: it counted before. The other one holds back less than a
    // tenth of what is left of 1,000, and has 120 (FLEET-7).
    pass(&one, 1);
    wait_for("what the other counted", || {
        (known(&one).1 >= 120 - 88).then_some(())
    });
    let (used, elsewhere) = known(&one);
    assert_eq!(used - elsewhere, 8);
    pass(&other, 110);
    wait_for("the last", || (known(&other).1 >= 7).then_some(()));
    assert!(known(&other).1 <= 8, "{:?}", known(&other));
}

/// FLEET-30: what was held back is sent, although the connection for it idled and was closed.
#[test]
#[ignore = "needs redis-server"]
fn a_stop_sends_everything_over_another_connection() {
    // More than one batch has.
    const CLIENTS: usize = 501;
    let (application, engine) = (Application::ok(), Engine::start());
    let settings = limited(&engine, "edge-1", "100000");
    let mut weir = start_at(&application, &state_dir(), &settings);
    wait_in_step(&weir, 1);
    for client in 0..CLIENTS {
        let client = format!("10.{}.{}.1", client / 250, client % 250);
        weir.get("/", &client).expect(200);
    }
    // The other connections are used every second.
    let idle = wait_for("the connection that idles", || {
        let all = engine.told("CLIENT LIST");
        let field = |line: &str, name: &str| {
            let mut fields = line.split(' ');
            fields.find_map(|field| field.strip_prefix(name).map(str::to_owned))
        };
        let idles = |line: &&str| {
            let seconds = field(line, "idle=").and_then(|idle| idle.parse().ok());
            line.contains(" cmd=evalsha ") && seconds.is_some_and(|seconds: u64| seconds > 2)
        };
        field(all.lines().find(idles)?, "id=")
    });
    engine.told(&format!("CLIENT KILL ID {idle}"));
    weir.stop();
    let counts = engine.told("KEYS weir:{weir}:c:*");
    let counts = counts.lines().filter(|line| line.starts_with("weir:"));
    assert_eq!(counts.count(), CLIENTS);
}

/// FLEET-20: what an instance counts that observes refuses nobody at one that enforces.
#[test]
#[ignore = "needs redis-server"]
fn an_observer_counts_apart() {
    let (application, engine) = (Application::ok(), Engine::start());
    let mut settings = ["edge-1", "edge-2"].map(|name| limited(&engine, name, "40"));
    settings[0].push(("WAF_MODE".to_owned(), "observe".to_owned()));
    let [observer, other] =
        settings.map(|settings| start_at(&application, &state_dir(), &settings));
    wait_in_step(&observer, 2);
    pass(&observer, 35);
    pass(&other, 40);
    assert_eq!(known(&other), (40, 0));
    other.get("/", CLIENT).expect(429);
}

/// FLEET-29: `explain` says of the first limit of rules.json what others have counted of it, and
/// how long ago that was told; as JSON and in words.
#[track_caller]
fn assert_told_elsewhere(weir: &Weir, path: &str) {
    let asked = format!("/v1/explain?address={CLIENT}&path={path}");
    // More may be told between the two.
    wait_until("the same words", || {
        let explained = weir.control("GET", &asked, None).expect(200).json();
        let limit = &explained["rule_limits"][0];
        let used = limit["windows"]["day"]["used"].as_u64().expect("a number");
        let elsewhere = limit["elsewhere"]["day"].as_u64().expect("a number");
        assert!(elsewhere > 0 && elsewhere < used, "{limit:#}");
        assert!(limit["elsewhere"]["age_ms"].is_u64(), "{limit:#}");
        let told = run(
            weir.state_path("").as_path(),
            &["explain", CLIENT, "--path", path],
        );
        assert!(told.out.contains("elsewhere "), "{}{}", told.out, told.err);
        let words = format!("elsewhere {elsewhere} a day; told ");
        told.out.contains(&words)
    });
}

/// FLEET-4: limits and jails of rules.json count a client at all instances.
#[test]
#[ignore = "needs redis-server"]
fn limits_and_jails_are_shared() {
    let (application, engine) = (Application::ok(), Engine::start());
    let rules = json!({"version": 1, "limits": [
        {"name": "login", "path": "/login", "per_day": 20, "on_limit": "ban"},
        {"name": "search", "path": "/search", "per_day": 20, "on_limit": "refuse"},
    ]});
    let [one, other] = two_under(&engine, &application, &rules);
    let mut passed = 0;
    wait_for("the refusal", || {
        breathe();
        let [status, _] = [&one, &other].map(|weir| {
            let status = weir.get("/search", CLIENT).status;
            passed += usize::from(status == 200);
            status
        });
        (status == 429 && passed >= 20).then_some(())
    });
    assert!(passed < 40, "{passed}: the two did not know of each other");
    for weir in [&one, &other] {
        assert!(weir.bans().is_empty());
    }
    assert_told_elsewhere(&one, "/search");
    let mut passed = 0;
    wait_for("the ban", || {
        breathe();
        let refused = [&one, &other].map(|weir| {
            let status = weir.get("/login", CLIENT).status;
            passed += usize::from(status == 200);
            status == 429
        });
        (refused[0] && refused[1]).then_some(())
    });
    assert!((20..40).contains(&passed), "{passed}");
    let bans = wait_for_bans(&one, "the ban", |bans| bans[0]["notes"].is_object());
    assert_eq!(bans[0]["notes"]["rule"]["name"], "login");
    assert!(
        bans[0]["notes"]["fleet"]["others"].as_u64() > Some(0),
        "{bans:#?}"
    );
}

/// FLEET-4: limits that clients share are those of the fleet, and a client that one instance knows
/// is known at all of them (SHARE-4).
#[test]
#[ignore = "needs redis-server"]
fn shared_limits_are_of_all_instances() {
    let (application, engine) = (Application::ok(), Engine::start());
    let rules = json!({"version": 1, "limits": [
        {"name": "all", "path": "/all", "per": "all", "per_day": 40, "on_limit": "refuse"},
        {"name": "spared", "path": "/spared", "per": "all", "per_day": 20, "on_limit": "refuse", "spare_known": "1s"},
    ]});
    let [one, other] = two_under(&engine, &application, &rules);
    // Each from a client of its own.
    let (mut passed, mut client) = (0, 0);
    wait_for("the refusal at both", || {
        breathe();
        let refused = [&one, &other].map(|weir| {
            client += 1;
            let client = format!("198.51.100.{}", client % 200);
            let status = weir.get("/all", &client).status;
            passed += usize::from(status == 200);
            status == 429
        });
        (refused == [true, true]).then_some(())
    });
    assert!((40..80).contains(&passed), "{passed}");
    assert_told_elsewhere(&one, "/all");
    // The count of strangers is full at both; whom one of them knows has the second one.
    wait_for("the refusal at both", || {
        let refused = [&one, &other].map(|weir| weir.get("/spared", "192.0.2.1").status == 429);
        (refused == [true, true]).then_some(())
    });
    pass(&one, 1);
    wait_until("the client is known", || {
        pass(&one, 1);
        explained(&one)["known"] == true
    });
    wait_until("the client is known elsewhere", || {
        pass(&other, 1);
        explained(&other)["known"] == true
    });
    // A worker's clock is a moment behind the one that explains.
    wait_until("it is spared", || {
        other.get("/spared", CLIENT).status == 200
    });
    other.get("/spared", "192.0.2.2").expect(429);
}

/// FLEET-4: a limit by a field's value counts one value at all instances, and others apart from it.
#[test]
#[ignore = "needs redis-server"]
fn a_limit_by_a_value_is_of_all_instances() {
    let (application, engine) = (Application::ok(), Engine::start());
    let rules = json!({"version": 1, "limits": [
        {"name": "key", "per": {"field": "x-api-key"}, "per_day": 40, "on_limit": "refuse"},
    ]});
    let [one, other] = two_under(&engine, &application, &rules);
    let asked = |weir: &Weir, client: &str, key: &str| {
        let fields = [("X-Forwarded-For", client), ("x-api-key", key)];
        weir.send(&raw_client::get("/", &fields)).status
    };
    let (mut passed, mut client) = (0, 0);
    wait_for("the refusal at both", || {
        breathe();
        let refused = [&one, &other].map(|weir| {
            client += 1;
            let status = asked(weir, &format!("198.51.100.{}", client % 200), "red");
            passed += usize::from(status == 200);
            status == 429
        });
        (refused == [true, true]).then_some(())
    });
    assert!((40..80).contains(&passed), "{passed}");
    for weir in [&one, &other] {
        assert_eq!(asked(weir, "192.0.2.1", "blue"), 200);
    }
}

/// FLEET-1, FLEET-2: an engine that hangs holds no request up, and changes no verdict: a client has
/// its limit, to the request.
#[test]
#[ignore = "needs redis-server"]
fn an_engine_that_hangs_changes_nothing() {
    let (application, engine) = (Application::ok(), Engine::start());
    let [one, other] = two(&engine, &application, "30", &[]);
    engine.hang();
    for weir in [&one, &other] {
        pass(weir, 30);
        weir.get("/", CLIENT).expect(429);
    }
    wait_for("who is alone", || {
        (fleet(&one)["state"] == "alone").then_some(())
    });
    one.get("/", "198.51.100.1").expect(200);
    assert_eq!(known(&one).1, 0);
}

/// FLEET-10: no more counts a second go out than the setting says; what waits is counted, and goes.
#[test]
#[ignore = "needs redis-server"]
fn more_than_the_rate_waits() {
    let (application, engine) = (Application::ok(), Engine::start());
    let more = [("WAF_FLEET_RATE", "5")];
    let [one, _other] = two(&engine, &application, "3", &more);
    for client in 0..40 {
        one.get("/", &format!("198.51.100.{client}")).expect(200);
    }
    let counts = |name: &str| fleet(&one)["counts"][name].as_u64().unwrap_or_default();
    wait_for("what waits", || (counts("held") > 0).then_some(()));
    assert!(counts("sent") < 40);
    wait_for("the last of it", || {
        (counts("held") == 0 && counts("sent") >= 40).then_some(())
    });
}
