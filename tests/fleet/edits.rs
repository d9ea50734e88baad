//! Edits at several instances (FLEET-17), instances that do not hold the same (FLEET-16), and what
//! comes from the engine and is not as this instance would have it (FLEET-24).

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use weir_controlplane::fleet::seal::{FleetKey, Kind};

use super::*;
use crate::handover::Service;
use crate::support::clocks::Clocks;
use crate::support::weir::{from_now, now_ms};

const LOG: &[u8] = b"weir:{weir}:log";

/// One of the alerts of a fleet.
fn alert(weir: &Weir, what: &str) -> Option<Value> {
    let told = weir.control("GET", "/v1/alerts", None).json();
    let mut alerts = told["alerts"].as_array()?.clone().into_iter();
    alerts.find(|alert| alert["kind"] == "fleet" && alert["what"] == what)
}

#[track_caller]
fn wait_for_alert(weir: &Weir, what: &str) -> Value {
    wait_for(what, || alert(weir, what))
}

/// An instance whose clocks are moved.
fn start_moved(application: &Application, engine: &Engine, name: &str) -> (Weir, Clocks) {
    let state = state_dir();
    let clocks = Clocks::new(state.path());
    let mut settings = settings(engine, name);
    settings.push(clocks.setting());
    (start_at(application, &state, &settings), clocks)
}

/// FLEET-16: two that do not hold the same for a minute raise an alert, read and send all of it
/// again, and hold the same. The log has lost a ban before one of them has read it.
#[test]
#[ignore = "needs redis-server"]
fn two_that_differ_for_a_minute_are_told_and_mend() {
    let (application, engine) = (Application::ok(), Engine::start());
    let (one, mut clock_of_one) = start_moved(&application, &engine, "edge-1");
    let (other, mut clock_of_other) = start_moved(&application, &engine, "edge-2");
    wait_in_step(&one, 2);
    wait_in_step(&other, 2);
    other.signal("STOP");
    wait_until("it reads no more", || engine.has_a_reader_that_rests());
    one.ban("client", "203.0.113.7", "permanent");
    wait_until("the ban in the log", || {
        engine.ask(&[b"XLEN", LOG]).starts_with(b":1\r\n")
    });
    engine.ask(&[b"XTRIM", LOG, b"MAXLEN", b"0"]);
    other.signal("CONT");
    let holds = |weir: &Weir| weir.bans().len();
    wait_until("the other one again", || fleet(&other)["state"] == "live");
    assert_eq!((holds(&one), holds(&other)), (1, 0));
    // The engine has answered since: neither is alone.
    let step = |weir: &Weir, clocks: &mut Clocks| {
        clocks.move_on(1500);
        let since = i64::try_from(clocks.ahead_ms()).expect("a while") - 700;
        wait_until("an answer of the engine", || {
            let clock = &fleet(weir)["instances"][0]["clock_ms"];
            clock.as_i64().is_some_and(|ahead| ahead >= since)
        });
    };
    let told = (0..60).find_map(|_| {
        assert_eq!(holds(&other), 0, "it mends itself before it is told");
        step(&one, &mut clock_of_one);
        step(&other, &mut clock_of_other);
        alert(&one, "out_of_step")
    });
    let told = told.expect("the alert");
    let detail = told["detail"].as_str().expect("a text");
    assert!(detail.starts_with("edge-2 has held other"), "{detail}");
    other.wait_until_refused("203.0.113.7");
    wait_in_step(&one, 2);
    wait_in_step(&other, 2);
}

/// FLEET-17: two edits of one member while nobody hears of the other: the later one holds at both,
/// and both log it. Of an entry of lists.json the same.
#[test]
#[ignore = "needs redis-server"]
fn of_two_edits_the_later_holds() {
    let (application, engine) = (Application::ok(), Engine::start());
    let [one, other] = ["edge-1", "edge-2"].map(|name| {
        let mut settings = settings(&engine, name);
        settings.push(("WAF_FLEET_SHARE".to_owned(), "bans,lists".to_owned()));
        start_at(&application, &state_dir(), &settings)
    });
    wait_in_step(&one, 2);
    one.ban("netblock", "203.0.113.0/24", "1h");
    wait_in_step(&one, 2);
    engine.hang();
    for (weir, text) in [(&one, "earlier"), (&other, "later")] {
        let mut file = weir.wait_for_bans("the ban", |bans| bans.len() == 1);
        file["bans"][0]["reason"] = json!(text);
        fs::write(weir.state_path("bans.json"), pretty(&file)).expect("writes");
        wait_until("taken in", || weir.bans()[0]["reason"] == text);
        let lists =
            json!({"version": 1, "deny": [{"netblock": "198.51.100.0/24", "comment": text}]});
        fs::write(weir.state_path("lists.json"), pretty(&lists)).expect("writes");
        wait_until("denied", || {
            weir.get("/exempt", "198.51.100.7").status == 429
        });
    }
    engine.go_on();
    wait_until("the later edit", || one.bans()[0]["reason"] == "later");
    let comment = |weir: &Weir| {
        let file = weir.state_file("lists.json").expect("lists.json");
        file["deny"][0]["comment"].clone()
    };
    wait_until("the later entry", || comment(&one) == "later");
    wait_in_step(&one, 2);
    assert_eq!(other.bans()[0]["reason"], "later");
    assert_eq!(comment(&other), "later");
    for weir in [&one, &other] {
        weir.wait_for_process_log(&[
            "two edits of reason of 203.0.113.0/24",
            "\\\"later\\\" of edge-2 holds",
            "\\\"earlier\\\" of edge-1 does not",
        ]);
        weir.wait_for_process_log(&["two edits of 198.51.100.0/24 in deny"]);
    }
}

/// FLEET-17: what an edit takes out stays out, whoever still has it: an instance that comes with a
/// copy of the file from before loses it, too.
#[test]
#[ignore = "needs redis-server"]
fn what_is_taken_out_stays_out() {
    let (application, engine) = (Application::ok(), Engine::start());
    let one = start(&application, &engine, "edge-1");
    let other = start(&application, &engine, "edge-2");
    wait_in_step(&one, 2);
    one.ban("netblock", "203.0.113.0/24", "permanent");
    one.ban("netblock", "198.51.100.0/24", "permanent");
    let copy = other.wait_for_bans("both", |bans| bans.len() == 2);
    let mut file = one.wait_for_bans("both", |bans| bans.len() == 2);
    let bans = file["bans"].as_array_mut().expect("a list");
    bans.retain(|ban| ban["netblock"] == "198.51.100.0/24");
    fs::write(one.state_path("bans.json"), pretty(&file)).expect("writes");
    other.wait_until_served("203.0.113.7");
    let state = state_dir();
    fs::write(state.path().join("bans.json"), pretty(&copy)).expect("writes");
    let third = start_at(&application, &state, &settings(&engine, "edge-3"));
    third.wait_until_served("203.0.113.7");
    wait_in_step(&third, 3);
    for weir in [&one, &other, &third] {
        assert_eq!(weir.bans().len(), 1);
        assert_eq!(weir.bans()[0]["netblock"], "198.51.100.0/24");
    }
}

/// FLEET-15, FLEET-17, RESTART-1: what is taken out of bans.json and changed in it while its
/// instance does not run, or as it stops, is so at all instances once it runs again.
#[test]
#[ignore = "needs redis-server"]
fn an_edit_around_an_end_holds_at_both() {
    let (application, engine) = (Application::ok(), Engine::start());
    let one = start(&application, &engine, "edge-1");
    let (state, of_other) = (state_dir(), settings(&engine, "edge-2"));
    let mut other = start_at(&application, &state, &of_other);
    wait_in_step(&one, 2);
    let ends = ["stopped", "killed", "stopping", "stopping", "stopping"];
    for (number, end) in ends.into_iter().enumerate() {
        let netblock = |part: &str| format!("10.{number}.{part}.0/24");
        for part in ["0", "1"] {
            one.ban("netblock", &netblock(part), "1h");
        }
        let mut file = other.wait_for_bans("both", |bans| bans.len() == number + 2);
        match end {
            "stopped" => other.stop(),
            "killed" => other.kill(),
            _ => {}
        }
        let bans = file["bans"].as_array_mut().expect("a list");
        bans.retain(|ban| ban["netblock"] != netblock("0"));
        let changed = bans.iter_mut().find(|ban| ban["netblock"] == netblock("1"));
        changed.expect("it")["reason"] = json!(end);
        fs::write(other.state_path("edited"), pretty(&file)).expect("writes");
        fs::rename(other.state_path("edited"), other.state_path("bans.json")).expect("renames");
        if end == "stopping" {
            other.stop();
        }
        drop(other);
        other = start_at(&application, &state, &of_other);
        wait_in_step(&other, 2);
        for weir in [&one, &other] {
            wait_for_bans(weir, end, |bans| {
                let is_changed =
                    |ban: &Value| ban["netblock"] == netblock("1") && ban["reason"] == end;
                bans.len() == number + 1 && bans.iter().any(is_changed)
            });
        }
    }
}

/// FLEET-14, RESTART-4: whoever waits until a ban is in force at the others when its instance hands
/// over is answered before.
#[test]
#[ignore = "needs redis-server"]
fn who_waits_for_others_is_answered_at_a_hand_over() {
    let (application, engine) = (Application::ok(), Engine::start());
    let of_one = settings(&engine, "edge-1");
    let of_one: Vec<(&str, &str)> = (of_one.iter())
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    let one = Service::start_on(env!("CARGO_BIN_EXE_weir"), &application, "", &of_one);
    let other = start(&application, &engine, "edge-2");
    wait_in_step(&other, 2);
    // Each ban waits a second for it.
    other.signal("STOP");
    let (state, has_ended) = (one.state.path(), AtomicBool::new(false));
    thread::scope(|scope| {
        for net in 0..4 {
            let has_ended = &has_ended;
            scope.spawn(move || {
                for host in 0..=u8::MAX {
                    let subject = format!("203.0.{net}.{host}");
                    let ran = run(state, &["bans", "add", &subject, "--for", "1h"]);
                    assert!(!ran.err.contains("did not answer"), "{}", ran.err);
                    if has_ended.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
        }
        one.hand_over();
        has_ended.store(true, Ordering::Relaxed);
    });
    other.signal("CONT");
}

/// FLEET-15, FLEET-17, RESTART-1: what is taken out of bans.json and changed in it before, while
/// and after its instance hands over is so at all instances.
#[test]
#[ignore = "needs redis-server"]
fn an_edit_around_a_hand_over_holds_at_both() {
    let (application, engine) = (Application::ok(), Engine::start());
    let one = start(&application, &engine, "edge-1");
    let of_other = settings(&engine, "edge-2");
    // What is asked below is more than one request an hour.
    let of_other: Vec<(&str, &str)> = (of_other.iter())
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .filter(|(name, _)| *name != ONE_PER_HOUR.0)
        .collect();
    let other = Service::start_on(env!("CARGO_BIN_EXE_weir"), &application, "", &of_other);
    let path = other.state.path().join("bans.json");
    wait_in_step(&one, 2);
    // Before it, at once, so many milliseconds into it, and behind it.
    let moments = [None, Some(0), Some(20), Some(60), Some(120), Some(250)];
    for (number, moment) in moments.into_iter().enumerate() {
        let netblock = |part: &str| format!("10.{number}.{part}.0/24");
        for part in ["0", "1"] {
            one.ban("netblock", &netblock(part), "1h");
        }
        let mut file = wait_for("both in the file", || {
            let file: Value = serde_json::from_slice(&fs::read(&path).ok()?).ok()?;
            (file["bans"].as_array()?.len() == number + 2).then_some(file)
        });
        let bans = file["bans"].as_array_mut().expect("a list");
        bans.retain(|ban| ban["netblock"] != netblock("0"));
        let changed = bans.iter_mut().find(|ban| ban["netblock"] == netblock("1"));
        let reason = number.to_string();
        changed.expect("it")["reason"] = json!(reason);
        let save = || {
            let edited = other.state.path().join("edited");
            fs::write(&edited, pretty(&file)).expect("writes");
            fs::rename(edited, &path).expect("renames");
        };
        let serves = other.said("listening").len();
        if moment.is_none() {
            save();
        }
        other.signal(Signal::USR2);
        if let Some(moment @ ..250) = moment {
            thread::sleep(Duration::from_millis(moment));
            save();
        }
        other.wait_for("listening", serves + 1);
        other.wait_for("handing over", serves);
        if moment > Some(249) {
            save();
        }
        let bans_of_other = || {
            let answer = other.admin("GET", "/_waf/bans", None).json();
            answer["bans"].as_array().cloned().unwrap_or_default()
        };
        let is_so = |bans: &[Value]| {
            let is_changed =
                |ban: &Value| ban["netblock"] == netblock("1") && ban["reason"] == *reason;
            bans.len() == number + 1 && bans.iter().any(is_changed)
        };
        wait_for_bans(&one, &format!("{moment:?}: the edit at the first"), is_so);
        wait_until(&format!("{moment:?}: the edit at the other"), || {
            is_so(&bans_of_other())
        });
    }
}

/// FLEET-17: an instance whose last contact is older than seven days takes what the fleet holds.
/// What only it holds is put aside and told; what was made since is sent.
#[test]
#[ignore = "needs redis-server"]
fn after_seven_days_what_only_one_holds_is_put_aside() {
    let (application, engine) = (Application::ok(), Engine::start());
    let other = start(&application, &engine, "edge-2");
    other.ban("netblock", "100.65.0.0/24", "permanent");
    let (day, state) = (86_400, state_dir());
    let ban = |netblock: &str, days: i64| {
        json!({"netblock": netblock, "ban_started": from_now(-days * day),
            "ban_expires": "permanent", "reason": "of before"})
    };
    let bans = [ban("203.0.113.0/24", 9), ban("198.51.100.0/24", 1)];
    let bans = json!({"version": 1, "bans": bans});
    fs::write(state.path().join("bans.json"), pretty(&bans)).expect("writes");
    let key = json!({"list": "deny", "netblock": "100.64.1.0/24"});
    let lists = json!({"version": 1, "deny": [{"netblock": "100.64.1.0/24"}]});
    fs::write(state.path().join("lists.json"), pretty(&lists)).expect("writes");
    let contact_ms = now_ms() - 8 * 86_400_000;
    let known = json!({"version": 1, "fleet": "weir", "instance": "edge-1", "contact_ms": contact_ms,
        "events": [{"list": {"key": key, "entry": {}, "stamp": [contact_ms - 1000, 0, null]}}],
        "lists": {"held": [[key, {}]], "sent": []}});
    fs::write(state.path().join("fleet.json"), pretty(&known)).expect("writes");
    let mut settings = settings(&engine, "edge-1");
    settings.push(("WAF_FLEET_SHARE".to_owned(), "bans,lists".to_owned()));
    let one = start_at(&application, &state, &settings);
    let told = wait_for_alert(&one, "aside");
    let detail = told["detail"].as_str().expect("a text");
    assert!(detail.contains("bans.json.before-fleet"), "{detail}");
    one.wait_until_served("203.0.113.7");
    wait_in_step(&one, 2);
    let netblocks = |weir: &Weir| {
        let bans = weir.bans().into_iter();
        let mut netblocks: Vec<_> = bans.map(|ban| ban["netblock"].to_string()).collect();
        netblocks.sort();
        netblocks
    };
    let both = ["\"100.65.0.0/24\"", "\"198.51.100.0/24\""];
    wait_until("both at both", || {
        netblocks(&one) == both && netblocks(&other) == both
    });
    let aside = one.state_file("bans.json.before-fleet").expect("the file");
    assert_eq!(aside["bans"][0]["netblock"], "203.0.113.0/24", "{aside:#}");
    assert_eq!(aside["bans"].as_array().map(Vec::len), Some(1), "{aside:#}");
    assert_eq!(aside["deny"][0]["netblock"], "100.64.1.0/24", "{aside:#}");
    one.wait_until_served("100.64.1.7");
    wait_until("lists.json", || {
        one.state_file("lists.json")
            .is_some_and(|file| file["deny"] == json!([]))
    });
}

/// FLEET-24: an automatic ban that is wider than this instance would make is taken and told. A ban
/// that covers a proxy which is trusted here is held and refuses nobody; one that an admin forced
/// does. All hold the same.
#[test]
#[ignore = "needs redis-server"]
fn wide_bans_are_taken_and_trusted_proxies_spared() {
    let (application, engine) = (Application::ok(), Engine::start());
    let [one, other] = [
        ("edge-1", "WAF_BAN_IPV4_PREFIX", "12"),
        (
            "edge-2",
            "WAF_TRUSTED_PROXIES",
            "127.0.0.0/8,198.51.100.9/32,192.0.2.9/32",
        ),
    ]
    .map(|(name, setting, value)| {
        let mut settings = settings(&engine, name);
        settings.push((setting.to_owned(), value.to_owned()));
        start_at(&application, &state_dir(), &settings)
    });
    wait_in_step(&one, 2);
    one.break_limit("203.0.113.7");
    other.wait_until_refused("203.1.2.3");
    other.wait_for_process_log(&["wider than this one would make", "203.0.0.0/12"]);
    let spared = one.ban("netblock", "198.51.100.0/24", "1h");
    in_force_at(&spared, &["edge-1", "edge-2"], || {
        let mut bans = other.bans().into_iter();
        bans.any(|held| held["netblock"] == spared["netblock"])
    });
    one.get("/exempt", "198.51.100.7").expect(429);
    other.get("/exempt", "198.51.100.7").expect(200);
    let held = |weir: &Weir| {
        let mut bans = weir.bans().into_iter();
        let ban = bans.find(|ban| ban["netblock"] == "198.51.100.0/24");
        ban.expect("the ban")["spared"].clone()
    };
    assert_eq!((held(&one), held(&other)), (Value::Null, json!(true)));
    let order =
        json!({"netblock": "192.0.2.0/24", "duration": "1h", "reason": "meant", "force": true});
    let forced = one.control("POST", "/v1/bans", Some(&order.to_string()));
    assert!((200..300).contains(&forced.status), "{forced:?}");
    other.wait_until_refused("192.0.2.7");
    wait_in_step(&one, 2);
    wait_in_step(&other, 2);
}

/// FLEET-24: what somebody says who has the key and lies is counted by its reason where it is
/// refused, keeps nothing else of its batch out, and ends no thread; what an edit may not do
/// without a word is told.
#[test]
#[ignore = "needs redis-server"]
fn lies_of_an_instance_are_counted_by_reason() {
    let (application, engine) = (Application::ok(), Engine::start());
    let one = start(&application, &engine, "edge-1");
    wait_in_step(&one, 1);
    let key = fs::read(engine.key_file()).expect("the key");
    let key = FleetKey::parse("weir", &key).expect("a key");
    let origin = "edge-9@00000000000000000000000000000001";
    let say = |number: u64, events: &[u8]| {
        let sealed = key.seal(Kind::Log, origin, number, events).expect("random");
        let number = number.to_string();
        let answer = engine.ask(&[
            b"XADD",
            LOG,
            b"*",
            b"o",
            origin.as_bytes(),
            b"n",
            number.as_bytes(),
            b"e",
            &sealed,
        ]);
        assert!(answer.starts_with(b"$"), "{answer:?}");
    };
    let start = from_now(-60);
    let entry = |netblock: &str, place: u64, stamp_ms: u64| {
        json!({"entry": {
            "id": {"netblock": netblock, "which": {"made": [start, "admin@edge-9", place]}},
            "made": [stamp_ms, 0, null],
            "body": {"by": "edge-9", "ban": {"netblock": netblock, "ban_started": start,
                "ban_expires": "permanent", "origin": "admin@edge-9"}}}})
    };
    let list = |comment: &str, netblock: &str| {
        json!({"list": {"key": {"list": "deny", "netblock": netblock},
            "entry": {"comment": comment}, "stamp": [now_ms(), 0, null]}})
    };
    let lies = json!([
        {"colour": 1},
        entry("192.0.2.0/24", 5_000, now_ms()),
        entry("192.0.2.0/24", 0, now_ms() + 3_600_000),
        list(&"x".repeat(600), "192.0.2.0/24"),
        list("everybody", "0.0.0.0/0"),
        entry("203.0.113.0/24", 0, now_ms()),
        entry("32.0.0.0/4", 0, now_ms()),
    ]);
    say(1, lies.to_string().as_bytes());
    let many = vec![json!(1); 257];
    say(2, json!(many).to_string().as_bytes());
    say(3, &vec![b' '; 61 * 1024]);
    one.wait_until_refused("203.0.113.7");
    one.wait_until_refused("33.1.2.3");
    let told = wait_for_alert(&one, "wide");
    let detail = told["detail"].as_str().expect("a text");
    assert!(
        detail.contains("32.0.0.0/4 is wider than an IPv4 /8"),
        "{detail}"
    );
    let count =
        |reason: &str| one.metric(&format!("waf_fleet_rejected_total{{reason=\"{reason}\"}}"));
    wait_until("all three batches", || count("size") == Some(2.0));
    assert_eq!(count("schema"), Some(4.0));
    assert_eq!(count("clock"), Some(1.0));
    one.get("/", "192.0.2.7").expect(200);
    assert_eq!(one.bans().len(), 2);
}
