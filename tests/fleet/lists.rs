//! FLEET-18: what `weir allow` and `weir deny` say at one instance holds at all, by lists.json.

use super::*;
use crate::support::command::command;

/// An instance that shares lists.
fn sharing(engine: &Engine, name: &str) -> Vec<(String, String)> {
    let mut settings = settings(engine, name);
    settings.push(("WAF_FLEET_SHARE".to_owned(), "bans,lists".to_owned()));
    settings
}

/// A list of lists.json, as netblocks; none where there is no such file.
fn listed(weir: &Weir, list: &str) -> Vec<String> {
    let text = fs::read(weir.state_path("lists.json")).unwrap_or_default();
    let file: Value = serde_json::from_slice(&text).unwrap_or_default();
    let entries = file[list].as_array().cloned().unwrap_or_default();
    let netblock = |entry: &Value| entry["netblock"].as_str().expect("a text").to_owned();
    entries.iter().map(netblock).collect()
}

#[track_caller]
fn wait_for_list(weir: &Weir, list: &str, netblocks: &[&str]) {
    wait_until(&format!("{list}: {netblocks:?}"), || {
        listed(weir, list) == netblocks
    });
}

fn put(weir: &Weir, list: &str, netblock: &str) -> Value {
    let body = json!({"list": list, "netblock": netblock, "comment": "said so"});
    let answer = weir.control("POST", "/v1/lists", Some(&body.to_string()));
    answer.expect(200).json()
}

fn take_out(weir: &Weir, list: &str, netblock: &str) -> Value {
    let target = format!("/v1/lists/{list}/{netblock}");
    weir.control("DELETE", &target, None).expect(200).json()
}

/// FLEET-18, FLEET-16: what is denied and allowed at one is so at the other; an edit of lists.json
/// there holds here; what was taken out stays out over a restart of an instance.
#[test]
#[ignore = "needs redis-server"]
fn lists_hold_at_both() {
    let (application, engine) = (Application::ok(), Engine::start());
    let state = state_dir();
    let mut one = start_at(&application, &state, &sharing(&engine, "edge-1"));
    let other = start_at(&application, &state_dir(), &sharing(&engine, "edge-2"));
    wait_in_step(&one, 2);
    let told = put(&one, "deny", "203.0.113.0/24");
    assert_eq!(
        told["file"],
        json!(one.state_path("lists.json")),
        "{told:#}"
    );
    one.get("/exempt", "203.0.113.7").expect(429);
    wait_until("the denial", || {
        other.get("/exempt", "203.0.113.7").status == 429
    });
    wait_for_list(&other, "deny", &["203.0.113.0/24"]);
    put(&one, "deny", "198.51.100.0/24");
    wait_for_list(&other, "deny", &["198.51.100.0/24", "203.0.113.0/24"]);
    other.wait_until_refused("198.51.100.7");
    assert!(!one.state_path("rules.json").exists());
    // An edit by hand there: one entry less, and one more.
    let file = json!({"version": 1, "deny": [{"netblock": "203.0.113.0/24", "comment": "said so"}],
        "allow": [{"netblock": "192.0.2.77", "comment": "the monitor"}]});
    fs::write(other.state_path("lists.json"), pretty(&file)).expect("writes");
    wait_for_list(&one, "allow", &["192.0.2.77/32"]);
    wait_for_list(&one, "deny", &["203.0.113.0/24"]);
    wait_until("in force", || {
        one.get("/exempt", "198.51.100.7").status == 200
    });
    for _ in 0..3 {
        one.get("/", "192.0.2.77").expect(200);
    }
    wait_in_step(&one, 2);
    one.stop();
    drop(one);
    let one = start_at(&application, &state, &sharing(&engine, "edge-1"));
    wait_in_step(&one, 2);
    assert_eq!(listed(&one, "deny"), ["203.0.113.0/24"]);
    assert_eq!(listed(&other, "deny"), ["203.0.113.0/24"]);
    // Taken out here, whoever put it in.
    assert_eq!(take_out(&one, "deny", "203.0.113.0%2F24")["changed"], true);
    wait_for_list(&other, "deny", &[]);
    wait_until("served", || {
        other.get("/exempt", "203.0.113.7").status == 200
    });
    let answer = one.control("GET", "/v1/explain?address=192.0.2.77", None);
    assert_eq!(answer.json()["list"]["source"], "lists.json");
}

/// FLEET-18, FLEET-15: without an engine, lists are changed here, and an instance that is killed
/// and starts again brings what it has changed to the others once the engine is back; an edit that
/// was made while it was down, too.
#[test]
#[ignore = "needs redis-server"]
fn lists_outlive_the_engine_and_a_kill() {
    let (application, mut engine) = (Application::ok(), Engine::start());
    let state = state_dir();
    let mut one = start_at(&application, &state, &sharing(&engine, "edge-1"));
    let other = start_at(&application, &state_dir(), &sharing(&engine, "edge-2"));
    wait_in_step(&one, 2);
    put(&one, "deny", "203.0.113.0/24");
    put(&one, "deny", "198.51.100.0/24");
    wait_for_list(&other, "deny", &["198.51.100.0/24", "203.0.113.0/24"]);
    engine.kill();
    wait_until("alone", || fleet(&one)["state"] == "alone");
    take_out(&one, "deny", "203.0.113.0%2F24");
    put(&one, "allow", "192.0.2.77");
    one.kill();
    drop(one);
    let path = state.path().join("lists.json");
    let mut file: Value = serde_json::from_slice(&fs::read(&path).expect("a file")).expect("JSON");
    file["deny"] = json!([{"netblock": "100.64.1.0/24"}]);
    fs::write(&path, pretty(&file)).expect("writes");
    engine.begin();
    let one = start_at(&application, &state, &sharing(&engine, "edge-1"));
    wait_for_list(&other, "deny", &["100.64.1.0/24"]);
    wait_for_list(&other, "allow", &["192.0.2.77/32"]);
    wait_in_step(&one, 2);
    // A third one with nothing of its own, and one whose file is gone.
    let third = start_at(&application, &state_dir(), &sharing(&engine, "edge-3"));
    wait_for_list(&third, "deny", &["100.64.1.0/24"]);
    third.wait_until_refused("100.64.1.7");
    drop(third);
    drop(one);
    fs::remove_file(&path).expect("removes");
    let one = start_at(&application, &state, &sharing(&engine, "edge-1"));
    wait_for_list(&one, "deny", &["100.64.1.0/24"]);
    assert_eq!(listed(&other, "deny"), ["100.64.1.0/24"]);
}

/// FLEET-18, CONTROL-8: where lists are not shared rules.json is written, and nobody else hears of
/// it; that it differs is told, with both numbers. lists.json holds all the same, without a fleet
/// too, and what stands there is taken out of it.
#[test]
#[ignore = "needs redis-server"]
fn without_lists_rules_json_is_written() {
    let (application, engine) = (Application::ok(), Engine::start());
    let [one, other] = ["edge-1", "edge-2"].map(|name| {
        let mut settings = settings(&engine, name);
        settings.push(("WAF_FLEET_SHARE".to_owned(), "bans,counts".to_owned()));
        start_at(&application, &state_dir(), &settings)
    });
    wait_in_step(&one, 2);
    let told = put(&one, "deny", "203.0.113.0/24");
    assert_eq!(told["file"], json!(one.state_path("rules.json")));
    assert!(!one.state_path("lists.json").exists());
    let differing = wait_for("rules.json differs", || {
        let told = fleet(&other);
        let settings = told["instances"][1]["settings"].as_array()?.clone();
        settings.into_iter().find(|one| one["name"] == "rules.json")
    });
    assert_ne!(differing["here"], differing["there"], "{differing:#}");
    other.get("/exempt", "203.0.113.7").expect(200);
    // Without a fleet.
    let state = state_dir();
    let file = json!({"version": 1, "deny": [{"netblock": "203.0.113.0/24"}]});
    fs::write(state.path().join("lists.json"), pretty(&file)).expect("writes");
    let alone = Weir::start_at(application.address(), &state, &[EXEMPT]);
    alone.get("/exempt", "203.0.113.7").expect(429);
    let told = take_out(&alone, "deny", "203.0.113.0%2F24");
    assert_eq!(told["file"], json!(alone.state_path("lists.json")));
    alone.get("/exempt", "203.0.113.7").expect(200);
}

/// FLEET-18, STATE-5, STATE-6: a bad edit of lists.json is told with line and pointer, and what was
/// in force stays; the next change sets it aside. One that is bad at a start stops it, and `weir
/// check` says the same.
#[test]
#[ignore = "needs redis-server"]
fn a_bad_edit_of_lists_json_is_told_and_set_aside() {
    let (application, engine) = (Application::ok(), Engine::start());
    let one = start_at(&application, &state_dir(), &sharing(&engine, "edge-1"));
    let other = start_at(&application, &state_dir(), &sharing(&engine, "edge-2"));
    wait_in_step(&one, 2);
    put(&one, "deny", "203.0.113.0/24");
    wait_for_list(&other, "deny", &["203.0.113.0/24"]);
    // In force, so that the file is written.
    other.wait_until_refused("203.0.113.7");
    let bad = "{\"version\":1,\n\"deny\":[{\"netblock\":\"nobody\"}]}\n";
    fs::write(other.state_path("lists.json"), bad).expect("writes");
    other.wait_for_process_log(&["lists.json", "line 2", "/deny/0/netblock"]);
    other.get("/exempt", "203.0.113.7").expect(429);
    put(&one, "deny", "198.51.100.0/24");
    wait_for_list(&other, "deny", &["198.51.100.0/24", "203.0.113.0/24"]);
    let aside = fs::read_to_string(other.state_path("lists.json.bad"));
    assert_eq!(aside.expect("it is kept"), bad);
    assert_eq!(listed(&one, "deny"), ["198.51.100.0/24", "203.0.113.0/24"]);
    let state = state_dir();
    fs::write(state.path().join("lists.json"), bad).expect("writes");
    let settings = state.path().join("weir.env");
    fs::write(&settings, "WAF_UPSTREAM=http://127.0.0.1:9\n").expect("writes");
    let settings = settings.display().to_string();
    let told = run(state.path(), &["check", "--settings", &settings]);
    assert_eq!(told.code, 78, "{}{}", told.out, told.err);
    assert!(told.err.contains("/deny/0/netblock"), "{}", told.err);
}

/// FLEET-18, CONTROL-8: where no service runs the commands change lists.json, where their settings
/// say that a fleet shares lists, and the others have it once the instance runs. Of a file that is
/// gone they write what it held, so that nothing is taken out with it. What stands in lists.json is
/// taken out of it, whatever the settings say.
#[test]
#[ignore = "needs redis-server"]
fn commands_without_a_service_change_lists_json() {
    let (application, engine) = (Application::ok(), Engine::start());
    let state = state_dir();
    let shared = |arguments: &[&str]| {
        let mut command = command(state.path(), arguments);
        command.env("WAF_FLEET", engine.place());
        command.env("WAF_FLEET_SHARE", "bans,lists");
        ran(command.output().expect("the binary runs"))
    };
    let other = start_at(&application, &state_dir(), &sharing(&engine, "edge-2"));
    let told = shared(&["deny", "203.0.113.0/24", "--comment", "by hand"]);
    assert_eq!(told.code, 0, "{}", told.err);
    assert!(
        told.out.contains("written; no service runs"),
        "{}",
        told.out
    );
    assert!(!state.path().join("rules.json").exists());
    let too_wide = shared(&["deny", "8.0.0.0/7"]);
    assert_eq!(too_wide.code, 2, "{}{}", too_wide.out, too_wide.err);
    let mut one = start_at(&application, &state, &sharing(&engine, "edge-1"));
    wait_for_list(&other, "deny", &["203.0.113.0/24"]);
    put(&other, "allow", "192.0.2.77");
    wait_for_list(&one, "allow", &["192.0.2.77/32"]);
    wait_in_step(&one, 2);
    one.stop();
    drop(one);
    let path = state.path().join("lists.json");
    fs::remove_file(&path).expect("removes");
    let told = shared(&["deny", "198.51.100.0/24"]);
    assert_eq!(told.code, 0, "{}", told.err);
    let one = start_at(&application, &state, &sharing(&engine, "edge-1"));
    wait_for_list(&other, "deny", &["198.51.100.0/24", "203.0.113.0/24"]);
    wait_in_step(&one, 2);
    assert_eq!(listed(&other, "allow"), ["192.0.2.77/32"]);
    assert_eq!(listed(&one, "allow"), ["192.0.2.77/32"]);
    drop(one);
    // Without these settings.
    let told = run(state.path(), &["deny", "203.0.113.0/24", "--remove"]);
    assert_eq!(told.code, 0, "{}", told.err);
    assert!(told.out.contains("took 203.0.113.0/24 out"), "{}", told.out);
    let told = run(state.path(), &["deny", "100.64.1.0/24"]);
    assert_eq!(told.code, 0, "{}", told.err);
    assert!(state.path().join("rules.json").exists());
    let one = start_at(&application, &state, &sharing(&engine, "edge-1"));
    wait_for_list(&other, "deny", &["198.51.100.0/24"]);
    one.wait_until_refused("100.64.1.7");
    other.get("/exempt", "100.64.1.7").expect(200);
}

/// FLEET-18, STATE-5: whatever lies there in place of lists.json, it is told, what was in force
/// stays and the others hear nothing of it. A link that leads to a file is followed.
#[test]
#[ignore = "needs redis-server"]
fn a_hostile_lists_json_takes_nothing_out() {
    let (application, engine) = (Application::ok(), Engine::start());
    let one = start_at(&application, &state_dir(), &sharing(&engine, "edge-1"));
    let other = start_at(&application, &state_dir(), &sharing(&engine, "edge-2"));
    wait_in_step(&one, 2);
    put(&one, "deny", "203.0.113.0/24");
    // In force, so that the file is written and is the last good one.
    other.wait_until_refused("203.0.113.7");
    let path = other.state_path("lists.json");
    let elsewhere = other.state_path("elsewhere");
    let good = fs::read(&path).expect("the file");
    let huge = fs::File::create(other.state_path("huge")).expect("a file");
    huge.set_len(65 << 20).expect("a hole");
    let lie = |told: &str, lie: &dyn Fn()| {
        let was = format!("was {told}");
        fs::rename(&path, other.state_path(&was)).expect("renames");
        lie();
        other.wait_for_process_log(&["lists.json", told, "last good 1 entries stay"]);
        other.get("/exempt", "203.0.113.7").expect(429);
    };
    let write = |bytes: &[u8]| fs::write(&path, bytes).expect("writes");
    lie("EOF while parsing", &|| write(&good[..good.len() - 5]));
    lie("is gone", &|| ());
    write(&good);
    lie("line 1, column 0", &|| write(b""));
    lie("unknown version 2", &|| {
        write(b"{\"version\":2,\"deny\":[]}")
    });
    lie("expected an object", &|| write(b"[]"));
    lie("colour", &|| {
        write(b"{\"version\":1,\"colour\":\"blue\",\"deny\":[]}")
    });
    lie("stands in the list twice", &|| {
        write(b"{\"version\":1,\"deny\":[{\"netblock\":\"192.0.2.1\"},{\"netblock\":\"192.0.2.1/32\"}]}");
    });
    lie("is every client", &|| {
        write(b"{\"version\":1,\"deny\":[{\"netblock\":\"0.0.0.0/0\"}]}");
    });
    lie("directory", &|| fs::create_dir(&path).expect("a directory"));
    lie("MiB", &|| {
        fs::rename(other.state_path("huge"), &path).expect("renames")
    });
    lie("pipe", &|| {
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &path, kind, mode, 0).expect("a pipe");
    });
    lie("symbolic links", &|| {
        std::os::unix::fs::symlink(&path, &path).expect("a link");
    });
    assert_eq!(listed(&one, "deny"), ["203.0.113.0/24"]);
    // A link that leads somewhere is followed, and stays.
    fs::remove_file(&path).expect("removes");
    let edit = "{\"version\":1,\"deny\":[{\"netblock\":\"198.51.100.0/24\"}]}";
    fs::write(&elsewhere, edit).expect("writes");
    std::os::unix::fs::symlink("elsewhere", &path).expect("a link");
    wait_for_list(&one, "deny", &["198.51.100.0/24"]);
    put(&one, "deny", "192.0.2.0/24");
    wait_for_list(&other, "deny", &["192.0.2.0/24", "198.51.100.0/24"]);
    assert!(
        fs::symlink_metadata(&path)
            .expect("it")
            .file_type()
            .is_symlink()
    );
}
