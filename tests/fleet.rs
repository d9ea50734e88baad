//! Several instances as one: real instances, and a real redis-server between them.

mod anomalies;
mod clocks;
mod clusters;
mod counts;
mod edits;
mod engines;
mod liars;
mod lists;
mod reloads;
mod restarts;
mod sentinels;

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};
use weir_shared::api::fleet::Fleet;

use crate::control::same;
use crate::support::application::Application;
use crate::support::command::{Ran, ran, run};
use crate::support::engine::{Engine, free_port};
use crate::support::weir::{EXEMPT, ONE_PER_HOUR, StateDir, Weir, pretty, state_dir};
use crate::support::{wait_for, wait_until};

/// The settings of an instance.
fn settings(engine: &Engine, name: &str) -> Vec<(String, String)> {
    let key = engine.key_file().display().to_string();
    [
        ("WAF_FLEET", engine.place().as_str()),
        ("WAF_FLEET_INSTANCE", name),
        ("WAF_FLEET_KEY_FILE", &key),
        ("WAF_STATE_WRITE_DELAY", "50ms"),
        EXEMPT,
        ONE_PER_HOUR,
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .to_vec()
}

#[track_caller]
fn start_at(application: &Application, state: &StateDir, settings: &[(String, String)]) -> Weir {
    let settings: Vec<(&str, &str)> = settings
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    Weir::start_at(application.address(), state, &settings)
}

#[track_caller]
fn start(application: &Application, engine: &Engine, name: &str) -> Weir {
    start_at(application, &state_dir(), &settings(engine, name))
}

fn is_refused(weir: &Weir, client: &str) -> bool {
    weir.get("/exempt", client).status == 429
}

/// An answer waits a second for the others (FLEET-14), and a busy machine may need more: then it
/// names who is late, and that one is waited for.
#[track_caller]
fn in_force_at(answer: &Value, names: &[&str], is_there: impl Fn() -> bool) {
    let list = |name: &str| {
        let names = answer["fleet"][name].as_array();
        names.unwrap_or_else(|| panic!("{answer:#}")).clone()
    };
    let (mut all, late) = (list("in_force"), list("pending"));
    assert_eq!(all[0], names[0], "{answer:#}");
    all.extend(late.iter().cloned());
    all.sort_by_key(Value::to_string);
    let mut names = names.to_vec();
    names.sort_unstable();
    assert_eq!(all, names, "{answer:#}");
    if !late.is_empty() {
        wait_until("it is in force at the others", is_there);
    }
}

#[track_caller]
fn fleet(weir: &Weir) -> Value {
    let answer = weir.control("GET", "/v1/fleet", None).expect(200).json();
    same::<Fleet>(&answer);
    answer
}

/// Waits until so many instances live and hold the same.
#[track_caller]
fn wait_in_step(weir: &Weir, count: usize) -> Value {
    wait_for("the fleet in step", || {
        let fleet = fleet(weir);
        let live = fleet["instances"].as_array()?.iter();
        let live = live.filter(|one| one["state"] == "live").count();
        (fleet["in_step"] == true && live == count).then_some(fleet)
    })
}

/// Waits until an instance holds so many bans.
#[track_caller]
fn wait_for_bans(weir: &Weir, what: &str, holds: impl Fn(&[Value]) -> bool) -> Vec<Value> {
    wait_for(what, || {
        let bans = weir.bans();
        holds(&bans).then_some(bans)
    })
}

/// FLEET-11, FLEET-13, FLEET-14, FLEET-29: a ban that an admin makes at one instance refuses at the
/// other, and the answer says that it is in force there; a lift at the other ends it at both.
#[test]
#[ignore = "needs redis-server"]
fn a_ban_and_a_lift_hold_at_both() {
    let (application, engine) = (Application::ok(), Engine::start());
    let one = start(&application, &engine, "edge-1");
    let other = start(&application, &engine, "edge-2");
    wait_in_step(&one, 2);
    wait_in_step(&other, 2);
    let there = json!({"instances": 2, "in_force": ["edge-1", "edge-2"], "pending": []});
    wait_until("an answer in time", || {
        let ban = one.ban("client", "203.0.113.7", "1h");
        if ban["fleet"] == there {
            return true;
        }
        // A busy machine may need more than the second that an answer waits.
        other.wait_until_refused("203.0.113.7");
        one.admin("DELETE", "/_waf/bans/203.0.113.7", None)
            .expect(200);
        other.wait_until_served("203.0.113.7");
        false
    });
    // It is in force there: nothing is waited for.
    other.get("/", "203.0.113.7").expect(429);
    let mut held = other.bans();
    held.retain(|ban| ban["lifted"].is_null());
    assert_eq!(held.len(), 1);
    assert_eq!(held[0]["origin"], "admin@edge-1");
    let own = one.bans();
    let own = own.iter().find(|ban| ban["lifted"].is_null());
    assert_eq!(own.expect("the ban")["origin"], "admin");
    let lifted = other.admin("DELETE", "/_waf/bans/203.0.113.7", None);
    let lifted = lifted.expect(200).json();
    assert_eq!(lifted["lifted"][0]["origin"], "admin@edge-1", "{lifted:#}");
    in_force_at(&lifted, &["edge-2", "edge-1"], || {
        !is_refused(&one, "203.0.113.7")
    });
    other.get("/exempt", "203.0.113.7").expect(200);
    let told = run(one.state_path("").as_path(), &["fleet"]);
    assert_eq!(told.code, 0, "{}{}", told.out, told.err);
    assert!(
        told.out.contains("edge-1 *") && told.out.contains("in step"),
        "{}",
        told.out
    );
}

/// FLEET-11, FLEET-12: a ban for a broken limit refuses the netblock at the other instance, too,
/// and the next one is a step further, wherever it is made.
#[test]
#[ignore = "needs redis-server"]
fn a_ban_for_a_limit_holds_at_both_and_escalates() {
    let (application, engine) = (Application::ok(), Engine::start());
    let [one, other] = ["edge-1", "edge-2"].map(|name| {
        let mut settings = settings(&engine, name);
        settings.push(("WAF_BAN_FIRST".to_owned(), "3s".to_owned()));
        start_at(&application, &state_dir(), &settings)
    });
    wait_in_step(&one, 2);
    let first = one.break_limit("203.0.113.7");
    other.wait_until_refused("203.0.113.99");
    let held = wait_for_bans(&other, "the ban with its notes", |bans| {
        bans.len() == 1 && bans[0]["notes"].is_object()
    });
    assert_eq!(held[0]["origin"], "service@edge-1");
    assert_eq!(held[0]["ban_started"], first["ban_started"]);
    // It ends by itself, and counts for the next one.
    other.wait_until_served("203.0.113.7");
    other.break_limit("203.0.113.7");
    let both = wait_for_bans(&other, "the second ban", |bans| bans.len() == 2);
    let second = &both[1];
    let length = |ban: &Value| {
        let time = |name: &str| crate::support::weir::ms(&ban[name]);
        time("ban_expires") - time("ban_started")
    };
    assert_eq!(length(&held[0]), 3000);
    assert!(length(second) > 3000, "{second:#}");
    one.wait_until_refused("203.0.113.99");
}

/// FLEET-11: a read of the log that waits for what comes has a connection of its own: what is sent
/// meanwhile does not wait behind it.
#[test]
#[ignore = "needs redis-server"]
fn a_read_that_waits_holds_nobody_up() {
    let (application, engine) = (Application::ok(), Engine::start());
    let mut settings = settings(&engine, "edge-1");
    settings.push(("WAF_FLEET_SHARE".to_owned(), "bans".to_owned()));
    let weir = start_at(&application, &state_dir(), &settings);
    wait_in_step(&weir, 1);
    let last_commands = || -> Vec<String> {
        let told = String::from_utf8(engine.ask(&[b"CLIENT", b"LIST"])).expect("text");
        let commands = told.split(' ').filter_map(|word| word.strip_prefix("cmd="));
        commands.map(str::to_owned).collect()
    };
    wait_for("a beat beside the read", || {
        let commands = last_commands();
        let has = |name: &str| commands.iter().any(|command| command == name);
        (has("xread") && has("evalsha")).then_some(())
    });
}

/// FLEET-17, FLEET-16: an edit of bans.json at one instance is in force at the other, and so is a
/// ban that it takes out or adds; what was taken out stays out, also over a restart.
#[test]
#[ignore = "needs redis-server"]
fn an_edit_of_bans_json_holds_at_both() {
    let (application, engine) = (Application::ok(), Engine::start());
    let states = [state_dir(), state_dir()];
    let settings = ["edge-1", "edge-2"].map(|name| settings(&engine, name));
    let mut one = start_at(&application, &states[0], &settings[0]);
    let other = start_at(&application, &states[1], &settings[1]);
    wait_in_step(&one, 2);
    one.ban("netblock", "203.0.113.0/24", "1h");
    one.ban("netblock", "198.51.100.0/24", "1h");
    let mut file = other.wait_for_bans("both", |bans| bans.len() == 2);
    let bans = file["bans"].as_array_mut().expect("a list");
    bans.retain(|ban| ban["netblock"] == "203.0.113.0/24");
    bans[0]["reason"] = json!("edited");
    bans.push(json!({"netblock": "192.0.2.0/25", "ban_expires": "permanent", "ticket": 7}));
    fs::write(other.state_path("bans.json"), pretty(&file)).expect("writes");
    let edited = |bans: &[Value]| {
        let has = |netblock: &str| bans.iter().find(|ban| ban["netblock"] == netblock);
        has("198.51.100.0/24").is_none()
            && has("203.0.113.0/24").is_some_and(|ban| ban["reason"] == "edited")
            && has("192.0.2.0/25").is_some_and(|ban| ban["ticket"] == 7)
    };
    wait_for_bans(&one, "the edit", edited);
    one.wait_for_bans("the edit", edited);
    one.wait_until_served("198.51.100.1");
    one.wait_until_refused("192.0.2.9");
    // The other way, with a restart between.
    one.stop();
    drop(one);
    let one = start_at(&application, &states[0], &settings[0]);
    wait_in_step(&one, 2);
    assert!(edited(&one.bans()) && edited(&other.bans()));
    let mut file = one.wait_for_bans("the bans", |bans| bans.len() == 2);
    file["bans"][0]["reason"] = json!("again");
    fs::write(one.state_path("bans.json"), pretty(&file)).expect("writes");
    let reason = file["bans"][0]["netblock"].clone();
    wait_for_bans(&other, "the second edit", |bans| {
        let mut bans = bans.iter();
        bans.any(|ban| ban["netblock"] == reason && ban["reason"] == "again")
    });
}

/// FLEET-15: an engine that was killed and comes back with nothing has everything again: what was
/// made before, what was made while it was away, and lifts; and an instance that was killed while
/// the engine was away has sent what it had answered for.
#[test]
#[ignore = "needs redis-server"]
fn an_emptied_engine_has_everything_again() {
    let (application, mut engine) = (Application::ok(), Engine::start());
    let state = state_dir();
    let mut one = start_at(&application, &state, &settings(&engine, "edge-1"));
    let other = start(&application, &engine, "edge-2");
    wait_in_step(&one, 2);
    one.ban("client", "203.0.113.7", "1h");
    one.ban("client", "198.51.100.7", "1h");
    engine.kill();
    wait_until("alone", || fleet(&one)["state"] == "alone");
    let queued = one.ban("client", "100.64.1.7", "permanent");
    assert_eq!(queued["fleet"], json!({"queued": true}));
    let lifted = one.admin("DELETE", "/_waf/bans/203.0.113.7", None);
    assert_eq!(lifted.expect(200).json()["fleet"], json!({"queued": true}));
    // Both were answered: they are on its disk.
    one.kill();
    drop(one);
    other.wait_until_refused("203.0.113.7");
    engine.begin();
    let one = start_at(&application, &state, &settings(&engine, "edge-1"));
    other.wait_until_refused("100.64.1.7");
    other.wait_until_served("203.0.113.7");
    other.wait_until_refused("198.51.100.7");
    wait_in_step(&one, 2);
    wait_until("all three at the other", || {
        fleet(&one)["instances"][1]["bans"] == 3
    });
    // A third one, with nothing of its own, learns all of it.
    let third = start(&application, &engine, "edge-3");
    wait_in_step(&third, 3);
    assert_eq!(third.bans().len(), 3);
    third.get("/", "100.64.1.7").expect(429);
    third.wait_until_served("203.0.113.7");
}

/// FLEET-15, FLEET-13: an engine that is emptied over open connections has everything again,
/// without a further change: an instance that was away meanwhile learns of a lift made before.
#[test]
#[ignore = "needs redis-server"]
fn an_engine_that_is_emptied_as_it_runs_has_everything_again() {
    let (application, engine) = (Application::ok(), Engine::start());
    let state = state_dir();
    let one = start(&application, &engine, "edge-1");
    let mut other = start_at(&application, &state, &settings(&engine, "edge-2"));
    wait_in_step(&one, 2);
    one.ban("client", "203.0.113.7", "1h");
    one.ban("client", "198.51.100.7", "1h");
    other.wait_until_refused("203.0.113.7");
    other.wait_until_refused("198.51.100.7");
    other.stop();
    drop(other);
    let lifted = one.admin("DELETE", "/_waf/bans/203.0.113.7", None);
    lifted.expect(200);
    engine.ask(&[b"FLUSHALL"]);
    wait_until("the log again", || {
        !engine.told("XLEN weir:{weir}:log").starts_with(":0")
    });
    let other = start_at(&application, &state, &settings(&engine, "edge-2"));
    other.wait_until_served("203.0.113.7");
    wait_in_step(&one, 2);
    other.get("/", "198.51.100.7").expect(429);
}

/// FLEET-2, FLEET-3: without the engine an instance starts, serves and bans by itself; it says that
/// it is alone, and goes to the fleet by itself once the engine is there.
#[test]
#[ignore = "needs redis-server"]
fn a_start_does_not_wait_for_the_engine() {
    let (application, mut engine) = (Application::ok(), Engine::away());
    let one = start(&application, &engine, "edge-1");
    one.get("/", "203.0.113.7").expect(200);
    one.break_limit("198.51.100.7");
    wait_until("alone", || fleet(&one)["state"] == "alone");
    let told = run(one.state_path("").as_path(), &["fleet"]);
    assert_eq!(told.code, 1, "{}", told.out);
    assert!(told.out.contains("alone for"), "{}", told.out);
    one.wait_for_process_log(&["does not answer, this instance decides alone"]);
    assert_eq!(one.metric("waf_fleet_connected"), Some(0.0));
    engine.begin();
    wait_in_step(&one, 1);
    one.wait_for_process_log(&["answers again"]);
    let other = start(&application, &engine, "edge-2");
    other.wait_until_refused("198.51.100.7");
    assert_eq!(other.metric("waf_fleet_connected"), Some(1.0));
}

/// FLEET-14: `weir bans add` and `lift` say in words where the change is in force, and without an
/// engine that the others are told later.
#[test]
#[ignore = "needs redis-server"]
fn commands_say_where_a_change_is_in_force() {
    let (application, mut engine) = (Application::ok(), Engine::start());
    let one = start(&application, &engine, "edge-1");
    let other = start(&application, &engine, "edge-2");
    wait_in_step(&one, 2);
    wait_in_step(&other, 2);
    let said = |line: &[&str], code: i32| {
        let ran = run(one.state_path("").as_path(), line);
        assert_eq!(ran.code, code, "{}{}", ran.out, ran.err);
        ran.out
    };
    for line in [
        &["bans", "add", "203.0.113.0/24"][..],
        &["bans", "lift", "203.0.113.7"],
    ] {
        let told = said(line, 0);
        for name in ["edge-1", "edge-2"] {
            assert!(told.contains(name), "{told}");
        }
    }
    engine.kill();
    wait_until("alone", || fleet(&one)["state"] == "alone");
    let queued = "queued: no engine of the fleet answers";
    let told = said(&["bans", "add", "203.0.113.0/24"], 0);
    assert!(told.contains(queued), "{told}");
    // It may still end a ban of another instance.
    let told = said(&["bans", "lift", "198.51.100.7"], 1);
    assert!(told.contains(queued), "{told}");
}

/// FLEET-25, FLEET-24: an instance with another key is told apart, and nothing of it is taken in;
/// the engine holds neither address nor reason in clear.
#[test]
#[ignore = "needs redis-server"]
fn another_key_opens_nothing() {
    let (application, engine) = (Application::ok(), Engine::start());
    let one = start(&application, &engine, "edge-1");
    wait_in_step(&one, 1);
    let key = engine.write_key("other", "another-key-another-key-another-key");
    let mut foreign = settings(&engine, "edge-2");
    let key = ("WAF_FLEET_KEY_FILE".to_owned(), key.display().to_string());
    foreign.push(key);
    let other = start_at(&application, &state_dir(), &foreign);
    other.ban("netblock", "203.0.113.0/24", "1h");
    let one_told = wait_for("the other key", || {
        let told = fleet(&one);
        (told["instances"][1]["state"] == "other_key").then_some(told)
    });
    assert_eq!(one_told["in_step"], false);
    wait_until("what was refused", || {
        let series = "waf_fleet_rejected_total{reason=\"seal\"}";
        one.metric(series).is_some_and(|count| count >= 1.0)
    });
    wait_until("an alert", || {
        let alerts = one.control("GET", "/v1/alerts", None).json();
        let mut alerts = alerts["alerts"].as_array().expect("a list").iter();
        alerts.any(|alert| alert["kind"] == "fleet" && alert["what"] == "rejected")
    });
    one.ban("netblock", "198.51.100.0/24", "1h");
    assert_eq!(one.bans().len(), 1);
    let log = engine.ask(&[b"XRANGE", b"weir:{weir}:log", b"-", b"+"]);
    let has = |text: &str| log.windows(text.len()).any(|part| part == text.as_bytes());
    assert!(has("edge-1@"), "names are in clear");
    assert!(!has("198.51") && !has("203.0") && !has("test"));
}

/// FLEET-24: whatever somebody writes into the log is refused and counted, and the fleet goes on.
#[test]
#[ignore = "needs redis-server"]
fn hostile_entries_are_refused() {
    let (application, engine) = (Application::ok(), Engine::start());
    let one = start(&application, &engine, "edge-1");
    let other = start(&application, &engine, "edge-2");
    wait_in_step(&one, 2);
    let log: &[u8] = b"weir:{weir}:log";
    let origin = b"edge-9@00000000000000000000000000000001".as_slice();
    let long = vec![0xff; 200_000];
    let entries: [&[&[u8]]; 5] = [
        &[b"x", b"y"],
        &[b"o", b"EDGE@@", b"n", b"-7", b"e", b"[]"],
        &[b"o", origin, b"n", b"1", b"e", b"[{\"lift\":{}}]"],
        &[b"o", origin, b"n", b"18446744073709551615", b"e", &long],
        &[b"e", b"", b"o", origin],
    ];
    for entry in entries {
        let words: Vec<&[u8]> = [b"XADD".as_slice(), log, b"*"]
            .into_iter()
            .chain(entry.iter().copied())
            .collect();
        let answer = engine.ask(&words);
        assert!(answer.starts_with(b"$"), "{answer:?}");
    }
    let beats: &[u8] = b"weir:{weir}:m";
    engine.ask(&[b"HSET", beats, origin, &long]);
    engine.ask(&[b"ZADD", b"weir:{weir}:alive", b"99999999999999", origin]);
    engine.ask(&[b"ZADD", b"weir:{weir}:alive", b"1", b"not an origin"]);
    one.ban("client", "203.0.113.7", "1h");
    other.wait_until_refused("203.0.113.7");
    let refused = || {
        let of = |reason: &str| {
            let series = format!("waf_fleet_rejected_total{{reason=\"{reason}\"}}");
            other.metric(&series).unwrap_or_default()
        };
        of("seal") + of("size")
    };
    wait_until("what was refused", || refused() >= 5.0);
    // A key of another type in place of the log: it is begun anew, with everything.
    engine.ask(&[b"DEL", log]);
    engine.ask(&[b"SET", log, b"nothing"]);
    other.ban("client", "198.51.100.7", "1h");
    one.wait_until_refused("198.51.100.7");
}

/// FLEET-21: a setting that differs is named with both values, once in the log of either instance,
/// in `weir fleet` and by the metric; each instance keeps its own, and none is kept out.
#[test]
#[ignore = "needs redis-server"]
fn a_setting_that_differs_is_named() {
    let (application, engine) = (Application::ok(), Engine::start());
    let [mut one, other] = [("edge-1", "1h"), ("edge-2", "2h")].map(|(name, first)| {
        let mut settings = settings(&engine, name);
        settings.push(("WAF_BAN_FIRST".to_owned(), first.to_owned()));
        // Set at one of them alone.
        let deny = ("WAF_DENY_NETS".to_owned(), "192.0.2.0/24".to_owned());
        settings.extend((name == "edge-2").then_some(deny));
        start_at(&application, &state_dir(), &settings)
    });
    wait_in_step(&one, 2);
    let words = "each instance of the fleet judges by its own";
    let here = format!("WAF_BAN_FIRST is \"1h\" here, \"2h\" at edge-2: {words}");
    let there = format!("WAF_BAN_FIRST is \"2h\" here, \"1h\" at edge-1: {words}");
    let has = |weir: &Weir, told: &str| {
        let mut lines = weir.process_log().into_iter();
        lines.any(|line| line["message"] == told)
    };
    wait_until("both logs name it", || {
        has(&one, &here) && has(&other, &there)
    });
    let unset = "WAF_DENY_NETS is \"\" here, \"192.0.2.0/24\" at edge-2";
    wait_until("the other setting", || {
        let mut lines = one.process_log().into_iter();
        lines.any(|line| {
            let message = line["message"].as_str();
            message.is_some_and(|message| message.starts_with(unset))
        })
    });
    assert_eq!(one.metric("waf_fleet_settings_differ"), Some(2.0));
    let told = run(one.state_path("").as_path(), &["fleet"]);
    assert_eq!(told.code, 0, "{}", told.out);
    assert!(
        told.out.contains("WAF_BAN_FIRST 2h (here 1h)"),
        "{}",
        told.out
    );
    // The answer has waited for a beat of the other: it is logged once, not with each beat.
    for client in ["203.0.113.7", "198.51.100.7"] {
        let ban = one.ban("client", client, "1h");
        in_force_at(&ban, &["edge-1", "edge-2"], || is_refused(&other, client));
    }
    // Repeats that were held back are told at the end.
    one.stop();
    let lines = one.process_log().into_iter();
    let lines = lines.filter(|line| {
        line["message"]
            .as_str()
            .is_some_and(|it| it.contains(&here))
    });
    assert_eq!(lines.count(), 1);
}

/// The commands of docs/fleet.md: its blocks of `sh`, in their order.
fn blocks() -> Vec<String> {
    let text = include_str!("../docs/fleet.md");
    let blocks = text.split("```sh\n").skip(1);
    let blocks = blocks.filter_map(|rest| rest.split_once("```"));
    blocks.map(|(block, _)| block.to_owned()).collect()
}

/// The commands as a person types them, in a folder of their own.
struct Typed {
    dir: tempfile::TempDir,
    shell: Option<Child>,
    engine_port: u16,
}

impl Typed {
    fn shell(&self, commands: &str) -> Command {
        let programs = Path::new(env!("CARGO_BIN_EXE_weir")).parent();
        let programs = programs.expect("a folder").display();
        let path = std::env::var("PATH").expect("a PATH");
        let mut shell = Command::new("sh");
        shell
            .args(["-ec", commands])
            .env_clear()
            .env("PATH", format!("{programs}:{path}"))
            // No test may ask a service on the net.
            .env("WAF_LOOKUP_SOURCE", "off")
            .current_dir(self.dir.path())
            .stdin(Stdio::null());
        shell
    }

    #[track_caller]
    fn run(&self, line: &str) -> Ran {
        ran(self.shell(line).output().expect("sh runs"))
    }
}

impl Drop for Typed {
    fn drop(&mut self) {
        if let Some(mut shell) = self.shell.take() {
            if let Some(group) = Pid::from_raw(shell.id().cast_signed()) {
                let _ = kill_process_group(group, Signal::KILL);
            }
            let _ = shell.wait();
        }
        // It has left the group.
        if let Ok(mut engine) = TcpStream::connect(("127.0.0.1", self.engine_port)) {
            let _ = engine.write_all(b"SHUTDOWN NOSAVE\r\n");
            let _ = engine.read_to_end(&mut Vec::new());
        }
    }
}

/// FLEET-11, FLEET-29: the commands of docs/fleet.md, with other ports, make a fleet of two on one
/// machine; what it says is seen then, is seen.
#[test]
#[ignore = "needs redis-server"]
fn the_documented_commands_make_a_fleet() {
    let application = Application::ok();
    let blocks = blocks();
    let [begin, look] = blocks.as_slice() else {
        panic!("two blocks: {blocks:?}");
    };
    let engine_port = free_port();
    let mut begin = begin.clone();
    for (written, port) in [
        ("6399", engine_port),
        ("9000", application.address().port()),
        ("8081", free_port()),
        ("8082", free_port()),
    ] {
        assert!(begin.contains(written), "{written}: {begin}");
        begin = begin.replace(written, &port.to_string());
    }
    assert_eq!(begin.lines().count(), 5, "{begin}");
    let mut typed = Typed {
        dir: tempfile::tempdir().expect("a directory"),
        shell: None,
        engine_port,
    };
    let shell = typed
        .shell(&format!("{begin}wait\n"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn();
    typed.shell = Some(shell.expect("sh runs"));
    let look: Vec<&str> = look.lines().collect();
    let [show, ban, explain] = look.as_slice() else {
        panic!("three lines: {look:?}");
    };
    let shown = wait_for("both instances in step", || {
        let shown = typed.run(show);
        (shown.code == 0 && shown.out.contains("edge-2")).then_some(shown.out)
    });
    assert!(shown.contains("edge-1 *"), "{shown}");
    let banned = typed.run(ban);
    assert_eq!(banned.code, 0, "{}{}", banned.out, banned.err);
    let explained = typed.run(explain);
    assert_eq!(explained.code, 1, "{}{}", explained.out, explained.err);
    assert!(
        explained.out.starts_with("REFUSED now: banned"),
        "{}",
        explained.out
    );
}

/// FLEET-3, FLEET-26: faults of the settings and of the key file stop a start, each in a sentence;
/// a link that could be read on the way needs a word, which is told at the start.
#[test]
fn faults_of_the_settings_stop_a_start() {
    let engine = Engine::away();
    let key = engine.key_file().display().to_string();
    let short = engine.write_key("short", "too-short").display().to_string();
    let open = "valkey://192.0.2.1:6379";
    let cases: [(&[(&str, &str)], &str); 6] = [
        (
            &[("WAF_FLEET", "http://engine"), ("WAF_FLEET_KEY_FILE", &key)],
            "expected valkeys://",
        ),
        (
            &[("WAF_FLEET", "valkey://127.0.0.1")],
            "WAF_FLEET_KEY_FILE is not set",
        ),
        (
            &[("WAF_FLEET", open), ("WAF_FLEET_KEY_FILE", &key)],
            "is not TLS",
        ),
        (
            &[
                ("WAF_FLEET", "valkey://127.0.0.1"),
                ("WAF_FLEET_KEY_FILE", &short),
            ],
            "32 to 1024 visible characters",
        ),
        (
            &[
                ("WAF_FLEET", "valkey://127.0.0.1"),
                ("WAF_FLEET_KEY_FILE", &key),
                ("WAF_FLEET_NAME", "Main {1}"),
            ],
            "WAF_FLEET_NAME=\"Main {1}\" is no such name",
        ),
        (
            &[
                ("WAF_FLEET", "valkey://127.0.0.1"),
                ("WAF_FLEET_KEY_FILE", &key),
                ("WAF_FLEET_PASSWORD_FILE", "/nowhere/password"),
            ],
            "WAF_FLEET_PASSWORD_FILE /nowhere/password",
        ),
    ];
    for (settings, sentence) in cases {
        let refused = Weir::refuse(&state_dir(), settings);
        assert_eq!(refused.code, Some(78), "{sentence}");
        assert!(refused.stderr.contains(sentence), "{}", refused.stderr);
    }
    let application = Application::ok();
    let nobody = format!("valkey://localhost:{}", free_port());
    let settings = [
        ("WAF_FLEET", nobody.as_str()),
        ("WAF_FLEET_KEY_FILE", &key),
        ("WAF_FLEET_INSECURE", "on"),
    ];
    let weir = Weir::start(&application, &settings);
    assert!(!weir.process_log_text().contains("WAF_FLEET_INSECURE is on"));
    drop(weir);
    let everywhere = format!("valkey://0.0.0.0:{}", free_port());
    let settings = [
        ("WAF_FLEET", everywhere.as_str()),
        ("WAF_FLEET_KEY_FILE", key.as_str()),
        ("WAF_FLEET_INSECURE", "on"),
    ];
    let weir = Weir::start(&application, &settings);
    weir.wait_for_process_log(&["WAF_FLEET_INSECURE is on"]);
    let told = run(weir.state_path("").as_path(), &["fleet"]);
    assert_eq!(told.code, 1);
    let none = Weir::start(&application, &[]);
    let told = run(none.state_path("").as_path(), &["fleet"]);
    assert_eq!(told.code, 1);
    assert!(told.err.contains("of no fleet"), "{}", told.err);
}
