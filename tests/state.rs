//! The state files as an administrator meets them (STATE): written, edited by hand, broken, locked.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt, chown};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::{Value, json};

use crate::support::application::Application;
use crate::support::command::{command, ran};
use crate::support::weir::{
    EXEMPT, ONE_PER_HOUR, Weir, from_now, milliseconds, ms, now_ms, pretty, state_dir, write_bans,
};
use crate::support::{wait_for, wait_until};

/// STATE-1: after a ban bans.json is written; the file is versioned, private and readable by
/// people.
#[test]
fn a_ban_is_written() {
    let application = Application::ok();
    let weir = Weir::start(
        &application,
        &[ONE_PER_HOUR, ("WAF_STATE_WRITE_DELAY", "50ms")],
    );
    weir.break_limit("203.0.113.7");
    let file = weir.wait_for_bans("the ban", |bans| bans.len() == 1);
    assert_eq!(file["version"], 1);
    let path = weir.state_path("bans.json");
    assert_eq!(
        fs::metadata(&path).expect("it").permissions().mode() & 0o777,
        0o600
    );
    let text = fs::read_to_string(&path).expect("it");
    assert!(text.lines().count() > 5, "pretty-printed: {text}");
}

/// STATE-1: the counters are written at their interval, and everything at a stop.
#[test]
fn counters_are_written_at_intervals_and_at_a_stop() {
    let application = Application::ok();
    let mut weir = Weir::start(&application, &[("WAF_STATE_COUNTER_INTERVAL", "100ms")]);
    weir.get("/a", "203.0.113.7");
    let clients = || {
        let text = fs::read_to_string(weir.state_path("clients.json")).ok()?;
        let file: Value = serde_json::from_str(&text).ok()?;
        Some(file["clients"].as_array()?.clone())
    };
    let found = wait_for("the client on disk", || {
        clients()?
            .into_iter()
            .find(|client| client["client"] == "203.0.113.7")
    });
    assert_eq!(found["requests"]["day"]["current"], 1);
    let before = fs::read_to_string(weir.state_path("clients.json")).expect("it");
    assert!(before.contains("\"version\": 1"), "{before}");
    weir.stop();

    let mut quiet = Weir::start(
        &application,
        &[ONE_PER_HOUR, ("WAF_STATE_WRITE_DELAY", "1h")],
    );
    quiet.break_limit("203.0.113.7");
    quiet.get("/a", "198.51.100.1");
    quiet.stop();
    let bans = quiet.state_file("bans.json").expect("bans.json");
    assert_eq!(bans["bans"][0]["netblock"], "203.0.113.0/24");
    let clients = quiet.state_file("clients.json").expect("clients.json");
    let clients = clients["clients"].as_array().expect("a list");
    assert!(clients.iter().any(|row| row["client"] == "198.51.100.1"));
}

/// STATE-2: the thread that writes gives way to those that serve, where processors are scarce.
#[test]
fn a_write_gives_way_to_requests() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[("WAF_WORKERS", "2")]);
    let niceness = || {
        let threads = fs::read_dir(format!("/proc/{}/task", weir.pid())).expect("the threads");
        let one = |thread: fs::DirEntry| {
            let stat = fs::read_to_string(thread.path().join("stat")).ok()?;
            let (before, after) = stat.rsplit_once(") ")?;
            // The nineteenth field, of which two stand before the bracket (proc_pid_stat(5)).
            let nice = after.split(' ').nth(16)?.parse::<i32>().ok()?;
            Some((before.split_once('(')?.1.to_owned(), nice))
        };
        threads
            .filter_map(|thread| one(thread.ok()?))
            .collect::<HashMap<_, _>>()
    };
    // A new thread has its parent's name until it runs.
    let named = ["weir-control", "weir-worker-0", "weir-worker-1"];
    wait_until("each thread runs", || {
        let niceness = niceness();
        named.iter().all(|name| niceness.contains_key(*name))
    });
    let before = niceness()["weir-control"];
    let after = (before + 5).min(19);
    wait_until("it gives way", || {
        niceness().get("weir-state") == Some(&after)
    });
    for (name, nice) in niceness() {
        assert!(nice == before || name == "weir-state", "{name} has {nice}");
    }
}

/// STATE-1: counters outlive a restart, so a limit cannot be dodged by one.
#[test]
fn counters_survive_a_restart() {
    let application = Application::ok();
    let state = state_dir();
    let settings = [("WAF_RATE_LIMIT_PER_DAY", "3")];
    let mut weir = Weir::start_at(application.address(), &state, &settings);
    for _ in 0..3 {
        assert_eq!(weir.get("/a", "203.0.113.7").status, 200);
    }
    weir.stop();
    let weir = Weir::start_at(application.address(), &state, &settings);
    assert_eq!(weir.get("/a", "203.0.113.7").status, 429);
}

/// STATE-2: an acknowledged admin ban survives a kill the moment after; the file is never partial.
#[test]
fn an_acknowledged_ban_survives_a_kill() {
    let application = Application::ok();
    let state = state_dir();
    for round in 0..5 {
        let mut weir = Weir::start_at(
            application.address(),
            &state,
            &[("WAF_STATE_WRITE_DELAY", "1ms")],
        );
        assert_eq!(weir.bans().len(), round * 3, "nothing lost");
        for n in 0..3 {
            weir.ban("netblock", &format!("10.{round}.{n}.0/24"), "1h");
        }
        weir.kill();
        assert_eq!(weir.bans_on_disk().len(), (round + 1) * 3);
    }
}

/// STATE-3: a ban marked lifted in place is lifted, kept, logged and counted; the client is served
/// again.
#[test]
fn an_edit_in_place_lifts() {
    let application = Application::ok();
    let weir = Weir::start(
        &application,
        &[ONE_PER_HOUR, EXEMPT, ("WAF_STATE_WRITE_DELAY", "10ms")],
    );
    weir.break_limit("203.0.113.7");
    let mut file = weir.wait_for_bans("the ban", |bans| bans.len() == 1);
    file["bans"][0]["lifted"] = json!(from_now(0));
    fs::write(weir.state_path("bans.json"), pretty(&file)).expect("writes");
    let saved = Instant::now();
    weir.wait_until_served("203.0.113.7");
    println!(
        "STATE-3: in force after {:.0} ms",
        milliseconds(saved.elapsed())
    );
    weir.wait_for_process_log(&["1 lifted"]);
    let bans = weir.bans();
    assert_eq!(bans.len(), 1, "kept");
    assert!(bans[0]["lifted"].is_string());
    assert_eq!(weir.edits("bans.json", "taken"), 1.0);
}

/// STATE-3: the same by a rename over the file, as vim, sed -i and VS Code save.
#[test]
fn an_edit_by_rename_adds_and_removes() {
    let application = Application::ok();
    let weir = Weir::start(
        &application,
        &[ONE_PER_HOUR, EXEMPT, ("WAF_STATE_WRITE_DELAY", "10ms")],
    );
    weir.break_limit("203.0.113.7");
    let mut file = weir.wait_for_bans("the ban", |bans| bans.len() == 1);
    file["bans"] = json!([
        {"netblock": "198.51.100.9/24", "ban_expires": "permanent", "reason": "by hand"},
    ]);
    let aside = weir.state_path("bans.json.swp");
    fs::write(&aside, pretty(&file)).expect("writes");
    fs::rename(&aside, weir.state_path("bans.json")).expect("renames");
    weir.wait_until_refused("198.51.100.1");
    weir.wait_until_served("203.0.113.7");
    weir.wait_for_process_log(&["1 added", "1 removed"]);
    let bans = weir.bans();
    assert_eq!(bans.len(), 1, "{bans:?}");
    assert_eq!(bans[0]["netblock"], "198.51.100.0/24");
    assert_eq!(bans[0]["cause"], "edit");
    assert_eq!(bans[0]["reason"], "by hand");
    assert!(ms(&bans[0]["ban_started"]) <= now_ms());
}

/// STATE-3: a removed entry feeds no escalation: the next break is a first ban again.
#[test]
fn a_removed_ban_is_forgotten() {
    let application = Application::ok();
    let weir = Weir::start_with_bans(
        &application,
        &json!([{"netblock": "203.0.113.0/24", "ban_started": from_now(-4200),
                 "ban_expires": from_now(-600), "cause": "rate_limit"}]),
        &[ONE_PER_HOUR],
    );
    write_bans(weir.state_path("").as_path(), &json!([]));
    weir.wait_for_process_log(&["1 removed"]);
    wait_until("the edit to be in force", || weir.bans().is_empty());
    weir.break_limit("203.0.113.7");
    let ban = wait_for("the ban", || weir.bans().into_iter().next());
    assert_eq!(ms(&ban["ban_expires"]) - ms(&ban["ban_started"]), 3_600_000);
}

/// STATE-3, STATE-4: an edit and what happened in memory since are both kept.
#[test]
fn an_edit_and_memory_are_merged() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[ONE_PER_HOUR]);
    weir.ban("netblock", "10.1.0.0/24", "1h");
    let mut file = weir.state_file("bans.json").expect("bans.json");
    weir.break_limit("203.0.113.7");
    let entry = json!({"netblock": "198.51.100.0/24", "ban_expires": "permanent"});
    file["bans"].as_array_mut().expect("a list").push(entry);
    fs::write(weir.state_path("bans.json"), pretty(&file)).expect("writes");
    let nets = |bans: &[Value]| {
        let mut nets: Vec<_> = bans
            .iter()
            .map(|ban| ban["netblock"].as_str().unwrap_or_default().to_owned())
            .collect();
        nets.sort();
        nets
    };
    let all = ["10.1.0.0/24", "198.51.100.0/24", "203.0.113.0/24"];
    weir.wait_for_bans("all three", |bans| nets(bans) == all);
    assert_eq!(nets(&weir.bans()), all);
}

/// STATE-4: a script reads every file, bans are made, lifted and clients counted and all of it is
/// written, and then the script saves what it read with a change of its own: nothing of either is
/// lost, in memory and on disk.
#[test]
fn a_stale_copy_forgets_nothing() {
    let application = Application::ok();
    let settings = [
        ("WAF_RATE_LIMIT_PER_MINUTE", "4"),
        ("WAF_STATE_WRITE_DELAY", "10ms"),
        ("WAF_STATE_COUNTER_INTERVAL", "100ms"),
        ("WAF_ANOMALY_TOTAL_REQUESTS_PER_HOUR", "1000"),
    ];
    let weir = Weir::start(&application, &settings);
    weir.ban("netblock", "10.1.0.0/24", "1h");
    weir.ban("netblock", "10.2.0.0/24", "1h");
    let count = |number: usize| {
        for _ in 0..number {
            weir.get("/a", "192.0.2.7");
        }
    };
    count(1);
    let passed = |file: &Value| {
        let rows = file["clients"].as_array()?;
        rows.iter().find(|row| row["client"] == "192.0.2.7")?["passed"].as_u64()
    };
    let total = |file: &Value| file["counters"][0]["requests"]["hour"]["current"].as_u64();
    let read = |name: &str| weir.state_file(name).expect("a state file");
    wait_for("one request in both files", || {
        let counted = weir
            .state_file("clients.json")
            .is_some_and(|file| passed(&file) == Some(1))
            && weir
                .state_file("alerts.json")
                .is_some_and(|file| total(&file) >= Some(1));
        counted.then_some(())
    });
    let names = ["bans.json", "clients.json", "alerts.json"];
    let [mut bans, mut clients, mut alerts] = names.map(read);

    // The editor is open: an admin's ban, an automatic one, a lift, and requests.
    weir.ban("netblock", "10.3.0.0/24", "1h");
    assert_eq!(
        weir.admin("DELETE", "/_waf/bans/10.1.0.7", None).status,
        200
    );
    for _ in 0..5 {
        weir.get("/a", "203.0.113.7");
    }
    count(2);
    weir.wait_for_bans("four bans", |bans| bans.len() == 4);
    let counted =
        |clients: &Value, alerts: &Value| passed(clients) == Some(3) && total(alerts) >= Some(8);
    wait_for("all requests in both files", || {
        let (clients, alerts) = (
            weir.state_file("clients.json")?,
            weir.state_file("alerts.json")?,
        );
        counted(&clients, &alerts).then_some(())
    });

    let entry = json!({"netblock": "198.51.100.0/24", "ban_expires": "permanent"});
    bans["bans"].as_array_mut().expect("a list").push(entry);
    clients["owner"] = json!("ops");
    alerts["owner"] = json!("ops");
    for (name, file) in names.iter().zip([&bans, &clients, &alerts]) {
        fs::write(weir.state_path(name), pretty(file)).expect("writes");
    }
    let (all, lifted) = (
        [
            "10.1.0.0/24",
            "10.2.0.0/24",
            "10.3.0.0/24",
            "198.51.100.0/24",
            "203.0.113.0/24",
        ],
        ["10.1.0.0/24"],
    );
    let sorted = |bans: &[Value], keep: &dyn Fn(&Value) -> bool| {
        let mut nets: Vec<_> = bans
            .iter()
            .filter(|ban| keep(ban))
            .map(|ban| ban["netblock"].as_str().unwrap_or_default().to_owned())
            .collect();
        nets.sort();
        nets
    };
    weir.wait_for_bans("all five", |bans| sorted(bans, &|_| true) == all);
    for bans in [
        weir.bans(),
        read("bans.json")["bans"]
            .as_array()
            .expect("a list")
            .clone(),
    ] {
        assert_eq!(sorted(&bans, &|_| true), all);
        assert_eq!(sorted(&bans, &|ban| !ban["lifted"].is_null()), lifted);
    }
    wait_for("the copies are taken in and the files written", || {
        let (clients, alerts) = (
            weir.state_file("clients.json")?,
            weir.state_file("alerts.json")?,
        );
        let taken = clients["owner"] == "ops" && alerts["owner"] == "ops";
        (taken && counted(&clients, &alerts)).then_some(())
    });
    let client = weir.admin("GET", "/_waf/clients/192.0.2.7", None).json();
    assert_eq!(client["client"]["passed"], 3);
}

/// STATE, TELL-4: members that nobody here knows are kept at every level of each file, also where
/// memory changes what they stand beside, and where an edit changes them; the log names that edit.
#[test]
fn unknown_members_survive_at_every_level() {
    let (now, later) = (from_now(-1), from_now(3600));
    let window = |x: &str| json!({"start": now, "current": 3, "previous": 1, "x": x});
    let lookup =
        |x: &str| json!({"country": "DE", "asn": "AS64496", "as_name": "Example", "x": {"x": [x]}});
    let ban = json!({"netblock": "203.0.113.0/24", "ban_started": now, "ban_expires": later, "x": 1,
        "notes": {"x": 2, "limit": "hour", "request": {"path": "/a", "x": 3}, "lookup": lookup("ban")}});
    let client = json!({"client": "198.51.100.7", "first_seen": now, "last_seen": now, "x": 1, "lookup": lookup("client"),
        "requests": {"x": 2, "minute": window("minute"), "hour": window("hour"), "day": window("day")},
        "bytes": {"x": {}, "hour": window("bytes")}});
    let counter = json!({"scope": "client", "of": "198.51.100.7", "x": 1,
        "requests": {"x": 2, "minute": window("minute"), "hour": window("hour")}, "bytes": {"x": [], "hour": window("bytes")}});
    let cooldown = json!({"scope": "total", "started": now, "ends": later, "hour": now, "x": null});
    let alert = json!({"time": now, "kind": "ban", "x": 1, "lookup": lookup("alert")});
    let files = [
        (
            "bans.json",
            json!({"version": 1, "x": {"x": 1}, "bans": [ban]}),
        ),
        (
            "clients.json",
            json!({"version": 1, "clients": [client], "x": 2}),
        ),
        (
            "lookups.json",
            json!({"x": 3, "version": 1, "lookups": [{"client": "198.51.100.7", "answered": now, "country": "DE", "x": {"x": 1}}]}),
        ),
        (
            "alerts.json",
            json!({"version": 1, "x": 4, "counters": [counter], "cooldowns": [cooldown], "alerts": [alert]}),
        ),
    ];
    let application = Application::ok();
    let state = state_dir();
    for (name, file) in &files {
        fs::write(state.path().join(name), pretty(file)).expect("writes");
    }
    let settings = [
        ("WAF_STATE_WRITE_DELAY", "10ms"),
        ("WAF_ANOMALY_CLIENT_REQUESTS_PER_HOUR", "1000"),
        ("WAF_ANOMALY_TOTAL_REQUESTS_PER_HOUR", "1000"),
    ];
    let mut weir = Weir::start_at(application.address(), &state, &settings);
    assert_eq!(weir.get("/a", "198.51.100.7").status, 200);
    let lifted = weir.admin("DELETE", "/_waf/bans/203.0.113.7", None);
    assert_eq!(lifted.json()["lifted"][0]["notes"]["request"]["x"], 3);
    weir.stop();
    for (name, before) in &files {
        let after = weir.state_file(name).expect("the file");
        assert_eq!(unknown(&after), unknown(before), "{name}");
    }
    let bans = weir.state_file("bans.json").expect("bans.json");
    assert!(bans["bans"][0]["lifted"].is_string(), "{bans}");
    let clients = weir.state_file("clients.json").expect("clients.json");
    let row = clients["clients"]
        .as_array()
        .and_then(|rows| rows.iter().find(|row| row["client"] == "198.51.100.7"))
        .expect("the client");
    assert_eq!(row["requests"]["day"]["current"], 4, "{row}");

    let mut weir = Weir::start_at(application.address(), &state, &settings);
    let mut edited = weir.state_file("clients.json").expect("clients.json");
    edited["clients"][0]["requests"]["hour"]["x"] = json!("changed");
    fs::write(weir.state_path("clients.json"), pretty(&edited)).expect("writes");
    let uid = fs::metadata(weir.state_path("clients.json")).map(|file| file.uid());
    let uid = format!("\"uid\":{}", uid.expect("the file"));
    let client = edited["clients"][0]["client"].as_str().expect("a client");
    let done = format!("{client} changed");
    weir.wait_for_process_log(&[
        "INFO",
        "clients.json",
        "edit taken in: 1 changed",
        &done,
        &uid,
    ]);
    weir.stop();
    let after = weir.state_file("clients.json").expect("clients.json");
    assert_eq!(unknown(&after), unknown(&edited));
}

/// Every member called "x", with the pointer to it.
fn unknown(value: &Value) -> Vec<(String, Value)> {
    fn gather(at: &str, value: &Value, found: &mut Vec<(String, Value)>) {
        match value {
            Value::Object(members) => {
                for (name, member) in members {
                    let at = format!("{at}/{name}");
                    if name == "x" {
                        found.push((at, member.clone()));
                    } else {
                        gather(&at, member, found);
                    }
                }
            }
            Value::Array(items) => items.iter().for_each(|item| gather(at, item, found)),
            _ => {}
        }
    }
    let mut found = Vec::new();
    gather("", value, &mut found);
    found.sort_by(|(one, _), (other, _)| one.cmp(other));
    found
}

/// STATE-5: an edit that does not parse is reported with its place, changes nothing, and is set
/// aside at the next write.
#[test]
fn a_broken_edit_is_set_aside() {
    let application = Application::ok();
    let weir = Weir::start(
        &application,
        &[ONE_PER_HOUR, ("WAF_STATE_WRITE_DELAY", "10ms")],
    );
    weir.ban("netblock", "203.0.113.0/24", "1h");
    let broken = "{\n  \"version\": 1,\n  \"bans\": [ nonsense ]\n}\n";
    fs::write(weir.state_path("bans.json"), broken).expect("writes");
    weir.wait_for_process_log(&["bans.json", "line 3"]);
    assert_eq!(weir.get("/a", "203.0.113.7").status, 429, "memory stays");
    weir.ban("netblock", "198.51.100.0/24", "1h");
    let bad = wait_for("bans.json.bad", || {
        fs::read_to_string(weir.state_path("bans.json.bad")).ok()
    });
    assert_eq!(bad, broken);
    weir.wait_for_bans("both bans", |bans| bans.len() == 2);
    wait_until("its count", || weir.edits("bans.json", "bad") == 1.0);
}

/// STATE-6: what cannot be read stops the start, with the place, and the file is left as it was.
#[test]
fn a_malformed_file_stops_the_start() {
    for (name, text, wanted) in [
        (
            "no JSON",
            "{\n\"version\": 1,\n\"bans\": [}\n",
            &["line 3"][..],
        ),
        ("empty", "", &["bans.json"]),
        ("another form", "[]", &["bans.json"]),
        (
            "unknown version",
            "{\"version\": 2, \"bans\": []}",
            &["version"],
        ),
        ("no version", "{\"bans\": []}", &["version"]),
        ("no list", "{\"version\": 1}", &["bans"]),
        (
            "a missing member",
            "{\n\"version\": 1,\n\"bans\": [\n{\"netblock\": \"203.0.113.0/24\"}\n]}",
            &["/bans/0", "ban_expires", "line 4"],
        ),
        (
            "the second entry",
            "{\"version\": 1, \"bans\": [{\"netblock\": \"10.0.0.0/8\", \"ban_expires\": \"permanent\"}, {\"netblock\": \"203.0.113.0/33\", \"ban_expires\": \"permanent\"}]}",
            &["/bans/1/netblock", "line 1"],
        ),
        (
            "a wrong time",
            "{\"version\": 1, \"bans\": [{\"netblock\": \"10.0.0.0/8\", \"ban_expires\": \"soon\"}]}",
            &["/bans/0/ban_expires"],
        ),
        (
            "a wrong type",
            "{\"version\": 1, \"bans\": [{\"netblock\": 7, \"ban_expires\": \"permanent\"}]}",
            &["/bans/0/netblock"],
        ),
    ] {
        let state = state_dir();
        let path = state.path().join("bans.json");
        fs::write(&path, text).expect("writes");
        let refused = Weir::refuse(&state, &[]);
        assert_eq!(refused.code, Some(78), "{name}: {refused:?}");
        assert!(refused.stderr.contains("bans.json"), "{name}: {refused:?}");
        for fragment in wanted {
            assert!(
                refused.stderr.contains(fragment),
                "{name}, {fragment}: {refused:?}"
            );
        }
        assert_eq!(fs::read_to_string(&path).expect("it"), text, "{name}");
    }
    let state = state_dir();
    fs::write(
        state.path().join("clients.json"),
        "{\"version\": 1, \"clients\": [{\"passed\": 1}]}",
    )
    .expect("writes");
    let refused = Weir::refuse(&state, &[]);
    assert_eq!(refused.code, Some(78), "{refused:?}");
    assert!(refused.stderr.contains("clients.json"), "{refused:?}");
    assert!(refused.stderr.contains("/clients/0"), "{refused:?}");
}

/// STATE-6: a directory that cannot be written stops the start.
#[test]
fn a_directory_that_cannot_be_written_stops_the_start() {
    // Permission bits do not bind root; these two refuse everybody.
    let state = state_dir();
    let file = state.path().join("file");
    fs::write(&file, "").expect("writes");
    for directory in [file.to_str().expect("a path"), "/proc/self"] {
        let refused = Weir::refuse(&state, &[("WAF_STATE_DIR", directory)]);
        assert_eq!(refused.code, Some(78), "{directory}: {refused:?}");
        assert!(refused.stderr.contains(directory), "{refused:?}");
        assert!(refused.stderr.contains("WAF_STATE_DIR"), "{refused:?}");
    }
}

/// STATE-6: the second service on a directory refuses to start, and the first goes on.
#[test]
fn two_services_do_not_share_a_directory() {
    let application = Application::ok();
    let state = state_dir();
    let mut weir = Weir::start_at(application.address(), &state, &[]);
    let refused = Weir::refuse(&state, &[]);
    assert_eq!(refused.code, Some(78), "{refused:?}");
    assert!(
        refused
            .stderr
            .contains(state.path().to_str().expect("a path")),
        "{refused:?}"
    );
    assert_eq!(weir.get("/a", "203.0.113.7").status, 200);
    weir.ban("netblock", "10.0.0.0/24", "1h");
    // A lock dies with its holder: what a killed service leaves behind stops nobody.
    weir.kill();
    let next = Weir::start_at(application.address(), &state, &[]);
    assert_eq!(next.bans().len(), 1);
}

/// STATE-11: a bans.json that is removed while the service runs takes nothing out: it is written
/// again, an alert says so, and who was banned stays banned; an empty list takes all out.
#[test]
fn a_removed_file_is_written_again() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[EXEMPT]);
    weir.ban("netblock", "203.0.113.0/24", "1h");
    let path = weir.state_path("bans.json");
    fs::remove_file(&path).expect("removes");
    let alert = wait_for("the alert", || {
        let alerts = weir.control("GET", "/v1/alerts", None).json();
        let mut alerts = alerts["alerts"].as_array()?.iter();
        alerts.find(|alert| alert["kind"] == "state_error").cloned()
    });
    let told = alert.to_string();
    assert!(
        told.contains("it was removed while the service runs"),
        "{told}"
    );
    weir.wait_for_bans("the ban on disk", |bans| bans.len() == 1);
    assert_eq!(weir.get("/exempt", "203.0.113.7").status, 429);
    let empty = json!({"version": 1, "bans": []});
    fs::write(&path, pretty(&empty)).expect("writes");
    weir.wait_until_served("203.0.113.7");
    assert_eq!(weir.bans().len(), 0);
}

/// STATE-11: a pipe, a directory or a link to a device in the place of bans.json takes nothing out:
/// it is set aside, the file is written again, an alert says so, and what is banned meanwhile is
/// still banned after a stop and a start.
#[test]
fn what_is_no_file_is_set_aside() {
    let application = Application::ok();
    let state = state_dir();
    let mut weir = Weir::start_at(application.address(), &state, &[EXEMPT]);
    weir.ban("netblock", "203.0.113.0/24", "1h");
    let path = weir.state_path("bans.json");
    let put: [fn(&Path); 4] = [
        |path| mknodat(CWD, path, FileType::Fifo, Mode::from(0o666), 0).expect("a pipe"),
        |path| fs::create_dir(path).expect("a directory"),
        |path| std::os::unix::fs::symlink("/dev/zero", path).expect("a link"),
        |path| std::os::unix::fs::symlink("/nonexistent/bans.json", path).expect("a link"),
    ];
    for (number, put) in put.into_iter().enumerate() {
        fs::remove_file(&path).expect("removes");
        put(&path);
        weir.ban("netblock", &format!("198.51.{number}.0/24"), "1h");
        let is_file = || fs::symlink_metadata(&path).is_ok_and(|found| found.is_file());
        wait_until("the file is written again", is_file);
        weir.wait_for_bans("the bans on disk", |bans| bans.len() == 2 + number);
    }
    let aside = |name: &str| fs::symlink_metadata(weir.state_path(name)).expect(name);
    assert!(aside("bans.json.directory").is_dir());
    assert!(aside("bans.json.bad").is_symlink());
    assert!(!aside("bans.json.bad.1").is_file());
    let alerts = weir.control("GET", "/v1/alerts", None).json().to_string();
    assert!(alerts.contains("no regular file"), "{alerts}");
    // Put there in the last moment.
    fs::remove_file(&path).expect("removes");
    fs::create_dir(weir.state_path("bans.json")).expect("a directory");
    fs::remove_dir(weir.state_path("bans.json.directory")).expect("removes");
    weir.stop();
    let next = Weir::start_at(application.address(), &state, &[EXEMPT]);
    assert_eq!(next.bans().len(), 5);
    assert_eq!(next.get("/exempt", "203.0.113.7").status, 429);
}

/// STATE-6: a link that leads to nothing in the place of a state file is no missing file: a check
/// tells it, and a start ends with it.
#[test]
fn a_link_to_nothing_is_no_missing_file() {
    let application = Application::ok();
    for file in [
        "bans.json",
        "clients.json",
        "lookups.json",
        "alerts.json",
        "rules.json",
    ] {
        let state = state_dir();
        let path = state.path().join(file);
        std::os::unix::fs::symlink("/nonexistent/it", &path).expect("a link");
        for arguments in [&["check"][..], &[]] {
            let mut command = command(state.path(), arguments);
            command
                .env("WAF_LISTEN", "127.0.0.1:0")
                .env("WAF_UPSTREAM", format!("http://{}", application.address()))
                .env("WAF_LOOKUP_SOURCE", "off");
            let ran = ran(command.output().expect("the binary runs"));
            assert_eq!(ran.code, 78, "{file}: {}", ran.err);
            let told = ran.err.contains(file) && ran.err.contains("a link that leads to nothing");
            assert!(told, "{file}: {}", ran.err);
        }
        assert!(path.is_symlink());
    }
}

/// BAN-4: an ended entry that says not when it began has no length; the next ban is a first one.
#[test]
fn an_ended_entry_without_a_beginning_has_no_length() {
    let application = Application::ok();
    let state = state_dir();
    let ended = json!([{"netblock": "203.0.113.0/24", "ban_expires": from_now(-60)}]);
    write_bans(state.path(), &ended);
    let weir = Weir::start_at(application.address(), &state, &[ONE_PER_HOUR]);
    let ban = weir.break_limit("203.0.113.7");
    let length_ms = ms(&ban["ban_expires"]) - ms(&ban["ban_started"]);
    assert_eq!(length_ms, 3_600_000, "{ban}");
}

/// STATE-11: a ban with an origin of a later version does not stop the start, refuses, and is
/// written as it was.
#[test]
fn an_origin_that_is_not_known_is_kept() {
    let application = Application::ok();
    let state = state_dir();
    let ban = json!([{"netblock": "203.0.113.0/24", "ban_expires": "permanent", "origin": "a_vote@edge-1"}]);
    write_bans(state.path(), &ban);
    let mut weir = Weir::start_at(application.address(), &state, &[EXEMPT]);
    assert_eq!(weir.get("/exempt", "203.0.113.7").status, 429);
    weir.ban("netblock", "198.18.0.0/24", "1h");
    weir.stop();
    let bans = weir.state_file("bans.json").expect("bans.json").to_string();
    assert!(bans.contains("\"origin\":\"a_vote@edge-1\""), "{bans}");
}

/// STATE-11: a stop leaves each file in which nothing but its time would change, whoever wrote it
/// last; a ban with a cause of a later version does not stop the start, refuses, and is written as
/// it was.
#[test]
fn a_stop_leaves_what_has_not_changed_and_causes_that_are_not_known() {
    let application = Application::ok();
    let state = state_dir();
    let files = ["bans.json", "clients.json", "lookups.json", "alerts.json"];
    let mut weir = Weir::start_at(application.address(), &state, &[EXEMPT]);
    weir.ban("netblock", "203.0.113.0/24", "1h");
    weir.get("/exempt", "198.51.100.1");
    weir.stop();
    let path = weir.state_path("bans.json");
    let text = fs::read_to_string(&path).expect("it");
    let text = text.replace("\"cause\": \"admin\"", "\"cause\": \"vote_of_peers\"");
    fs::write(&path, &text).expect("writes");

    let mut weir = Weir::start_at(application.address(), &state, &[EXEMPT]);
    assert_eq!(weir.bans()[0]["cause"], "vote_of_peers");
    assert_eq!(weir.get("/exempt", "203.0.113.7").status, 429);
    weir.ban("netblock", "198.18.0.0/24", "1h");
    weir.stop();
    let bans = weir.state_file("bans.json").expect("bans.json");
    let causes: Vec<&Value> = bans["bans"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|ban| &ban["cause"])
        .collect();
    assert!(causes.contains(&&json!("vote_of_peers")), "{causes:?}");

    let seen = || {
        files.map(|file| {
            let found = fs::metadata(state.path().join(file)).ok()?;
            Some((
                found.ino(),
                found.mtime(),
                found.mtime_nsec(),
                found.ctime_nsec(),
            ))
        })
    };
    let before = seen();
    assert!(before.iter().flatten().count() >= 2, "{before:?}");
    for _ in 0..2 {
        let mut weir = Weir::start_at(application.address(), &state, &[EXEMPT]);
        weir.stop();
        assert_eq!(seen(), before);
    }
}

/// STATE-6: wherever the system refuses a thread, the start ends with a sentence, not by a panic.
#[test]
#[ignore = "needs root, to be another user"]
fn a_refused_thread_ends_the_start_with_a_sentence() {
    // The bound counts all processes of a user: this one has no others.
    const USER: u32 = 61_234;
    const PANIC: Option<i32> = Some(101);
    let place = state_dir();
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).expect("chmod");
    let program = place.path().join("weir");
    fs::copy(env!("CARGO_BIN_EXE_weir"), &program).expect("a copy");
    for most in 1.. {
        let state = state_dir();
        chown(state.path(), Some(USER), Some(USER)).expect("chown");
        let log = place.path().join(format!("{most}.log"));
        let mut starting = Command::new("setpriv")
            .args([
                &format!("--reuid={USER}"),
                &format!("--regid={USER}"),
                "--clear-groups",
            ])
            .args(["prlimit", &format!("--nproc={most}")])
            .arg(&program)
            .env("WAF_LISTEN", "127.0.0.1:0")
            .env("WAF_UPSTREAM", "http://127.0.0.1:9")
            .env("WAF_STATE_DIR", state.path())
            .env("WAF_LOOKUP_SOURCE", "off")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(&log).expect("a file"))
            .spawn()
            .expect("setpriv runs");
        let said = || fs::read_to_string(&log).expect("the log");
        let ended = wait_for("its end, or a service", || {
            let ended = starting.try_wait().expect("its state");
            (ended.is_some() || said().contains("\"listening\"")).then_some(ended)
        });
        let Some(status) = ended else {
            starting.kill().expect("kills");
            starting.wait().expect("its end");
            break;
        };
        assert_ne!(status.code(), PANIC, "{most}: {}", said());
    }
}
