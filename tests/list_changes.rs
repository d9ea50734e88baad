//! `weir allow` and `weir deny` (CONTROL-8): the service changes rules.json as one compare and
//! swap, a command does where none runs, and nobody's edit is lost.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use serde_json::{Value, json};

use crate::support::application::Application;
use crate::support::command::{Ran, command, ran, run};
use crate::support::wait_until;
use crate::support::weir::{StateDir, Weir, from_now, state_dir};

fn rules(state: &StateDir) -> Value {
    let text = fs::read_to_string(state.path().join("rules.json")).expect("rules.json");
    serde_json::from_str(&text).expect("JSON")
}

fn denied(state: &StateDir) -> Vec<String> {
    let rules = rules(state);
    let members = rules["deny"].as_array().cloned().unwrap_or_default();
    let mut netblocks: Vec<String> = members
        .iter()
        .map(|member| member["netblock"].as_str().expect("a netblock").to_owned())
        .collect();
    netblocks.sort();
    netblocks
}

/// Twelve commands at the same time, each of which denies another address.
#[track_caller]
fn twelve_at_once(state: &StateDir) -> Vec<Ran> {
    let children: Vec<_> = (1..=12)
        .map(|number| {
            let mut command = command(state.path(), &["deny", &format!("198.51.100.{number}")]);
            command
                .stdout(std::process::Stdio::piped())
                .stderr(std::process::Stdio::piped())
                .spawn()
                .expect("the binary runs")
        })
        .collect();
    let ended = children.into_iter();
    ended
        .map(|child| ran(child.wait_with_output().expect("its end")))
        .collect()
}

fn all_twelve() -> Vec<String> {
    let mut all: Vec<String> = (1..=12).map(|n| format!("198.51.100.{n}/32")).collect();
    all.sort();
    all
}

/// CONTROL-8: twelve at once are twelve in the file and in force when each returns; without a
/// service they are twelve in the file.
#[test]
fn twelve_at_once_are_twelve() {
    let application = Application::ok();
    let state = state_dir();
    let mut weir = Weir::start_at(application.address(), &state, &[]);
    for ran in twelve_at_once(&state) {
        assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{}", ran.out);
        assert!(ran.out.ends_with(": in force\n"), "{}", ran.out);
    }
    assert_eq!(denied(&state), all_twelve());
    for number in 1..=12 {
        let client = format!("198.51.100.{number}");
        assert_eq!(weir.get("/a", &client).status, 429, "{client}");
    }
    weir.stop();
    fs::remove_file(state.path().join("rules.json")).expect("removes it");
    for ran in twelve_at_once(&state) {
        assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{}", ran.out);
        assert!(ran.out.ends_with(": written; no service runs\n"));
    }
    assert_eq!(denied(&state), all_twelve());
    let left: Vec<_> = fs::read_dir(state.path())
        .expect("the directory")
        .map(|entry| entry.expect("an entry").file_name())
        .filter(|name| name.to_string_lossy().starts_with(".rules.json"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

/// CONTROL-8: what a person saves while commands write stays, whether a service runs or not.
#[test]
fn an_edit_by_hand_is_not_lost() {
    let application = Application::ok();
    for with_service in [true, false] {
        let state = state_dir();
        let path = state.path().join("rules.json");
        fs::write(&path, r#"{"version":1,"deny":[]}"#).expect("writes");
        let weir = with_service.then(|| Weir::start_at(application.address(), &state, &[]));
        let hand = || {
            for number in 0..100 {
                let mut rules = rules(&state);
                let entry =
                    json!({"netblock": format!("203.0.113.{number}"), "comment": "by hand"});
                rules["deny"].as_array_mut().expect("a list").push(entry);
                let new = state.path().join("mine");
                fs::write(&new, rules.to_string()).expect("writes");
                fs::rename(&new, &path).expect("renames");
                std::thread::yield_now();
            }
        };
        std::thread::scope(|scope| {
            let edits = scope.spawn(hand);
            for _ in 0..3 {
                for ran in twelve_at_once(&state) {
                    assert_eq!(ran.code, 0, "{}", ran.err);
                }
            }
            edits.join().expect("the edits");
        });
        let held = denied(&state);
        for number in 0..100 {
            let mine = format!("203.0.113.{number}");
            let found = held.iter().any(|held| held.trim_end_matches("/32") == mine);
            assert!(found, "{mine} of {held:?}");
        }
        drop(weir);
    }
}

/// CONTROL-8: what people wrote stays, ended entries of the lists go, a link stays a link, and
/// owner and mode are kept; with a service and without.
#[test]
fn the_file_stays_what_it_is() {
    let application = Application::ok();
    for with_service in [true, false] {
        let state = state_dir();
        let elsewhere = state_dir();
        let target = elsewhere.path().join("of-mine.json");
        let written = json!({
            "$schema": "https://weir.example/schema/proxy/rules.schema.json",
            "version": 1,
            "comment": "ours",
            "traps": [{"name": "scanner", "paths": ["/.env"], "comment": "kept"}],
            "deny": [
                {"netblock": "192.0.2.0/24", "comment": "scraper"},
                {"netblock": "192.0.3.0/24", "until": from_now(-5)},
            ],
            "allow": [{"netblock": "192.0.4.1", "until": from_now(-5)}],
        });
        fs::write(&target, written.to_string()).expect("writes");
        fs::set_permissions(&target, fs::Permissions::from_mode(0o604)).expect("chmod");
        let path = state.path().join("rules.json");
        symlink(&target, &path).expect("a link");
        let weir = with_service.then(|| Weir::start_at(application.address(), &state, &[]));
        let done = run(state.path(), &["deny", "198.51.100.1", "--json"]);
        assert_eq!((done.code, done.err.as_str()), (0, ""));
        let done: Value = serde_json::from_str(&done.out).expect("JSON");
        assert_eq!(done["ended"], 2, "{done:#}");
        assert_eq!(
            done["in_force"],
            if with_service {
                json!(true)
            } else {
                Value::Null
            }
        );
        let link = fs::symlink_metadata(&path).expect("the link");
        assert!(link.is_symlink(), "{with_service}");
        let found = fs::metadata(&target).expect("the target");
        assert_eq!(found.mode() & 0o777, 0o604);
        let mut expected = written.clone();
        expected["deny"] = json!([
            {"netblock": "192.0.2.0/24", "comment": "scraper"},
            {"netblock": "198.51.100.1/32"},
        ]);
        expected["allow"] = json!([]);
        assert_eq!(rules(&state), expected);
        let names = |value: &Value| -> Vec<String> {
            value
                .as_object()
                .expect("an object")
                .keys()
                .cloned()
                .collect()
        };
        assert_eq!(
            names(&rules(&state)),
            names(&written),
            "their order is kept"
        );
        drop(weir);
    }
}

/// CONTROL-8, FEED-6: an entry that no longer fits beside half a million others is refused, for
/// what it is and not for a place in a text that nobody has seen; the file stays as it is.
#[test]
fn what_would_not_fit_is_not_written() {
    let state = state_dir();
    let member = |number: u32| {
        let (high, middle, low) = (number >> 16, number >> 8 & 255, number & 255);
        format!(r#"{{"netblock":"10.{high}.{middle}.{low}"}}"#)
    };
    let members: Vec<String> = (0..500_000).map(member).collect();
    let rules = format!(r#"{{"version":1,"deny":[{}]}}"#, members.join(","));
    let path = state.path().join("rules.json");
    fs::write(&path, &rules).expect("writes");
    let ran = run(state.path(), &["deny", "198.51.100.1"]);
    assert_eq!(ran.code, 78, "{}", ran.err);
    let told = "stays as it is: with this change it would not fit: ";
    assert!(ran.err.contains(told), "{}", ran.err);
    assert!(!ran.err.contains("line "), "{}", ran.err);
    let is_as_it_was = fs::read_to_string(&path).expect("reads") == rules;
    assert!(is_as_it_was);
}

/// CONTROL-8: an entry that is taken out from inside a wider one is out, and the command says what
/// still decides.
#[test]
fn a_narrow_entry_inside_a_wide_one() {
    let application = Application::ok();
    let state = state_dir();
    let weir = Weir::start_at(application.address(), &state, &[]);
    let run = |arguments: &[&str]| run(state.path(), arguments);
    for netblock in ["198.51.100.0/24", "198.51.100.7"] {
        assert_eq!(run(&["deny", netblock]).code, 0);
    }
    let out = run(&["deny", "198.51.100.7", "--remove"]);
    assert_eq!(
        (out.code, out.out.as_str()),
        (
            0,
            "took 198.51.100.7/32 out of the list \"deny\": in force; 198.51.100.0/24 of rules.json refuses it all the same\n"
        ),
        "{}",
        out.err
    );
    assert_eq!(denied(&state), ["198.51.100.0/24"]);
    assert_eq!(run(&["allow", "198.51.100.0/25"]).code, 0);
    let out = run(&["deny", "198.51.100.9"]).out;
    let told = "denied 198.51.100.9/32: in force; 198.51.100.0/25 of rules.json lets it through all the same\n";
    assert_eq!(out, told);
    weir.get("/a", "198.51.100.9").expect(200);
}

/// CONTROL-8, ALIVE-5: what would refuse or let through nearly everybody, or refuse a trusted
/// proxy, needs `--force`, with a service and without.
#[test]
fn too_wide_needs_force() {
    let application = Application::ok();
    let state = state_dir();
    let mut weir = Weir::start_at(application.address(), &state, &[]);
    let wide = |with_service: bool| {
        for arguments in [
            ["deny", "0.0.0.0/0"],
            ["deny", "::/0"],
            ["allow", "0.0.0.0/0"],
            ["deny", "8.0.0.0/7"],
            ["allow", "2000::/15"],
        ] {
            let refused = run(state.path(), &arguments);
            assert_eq!(
                (refused.code, refused.out.as_str()),
                (2, ""),
                "{arguments:?}"
            );
            let told = refused.err;
            assert!(
                told.contains("--force if that is meant"),
                "{arguments:?}: {told}"
            );
        }
        let proxy = run(state.path(), &["deny", "127.0.0.0/8"]);
        assert_eq!(
            proxy.code,
            if with_service { 2 } else { 0 },
            "{}",
            proxy.err
        );
    };
    wide(true);
    assert!(!state.path().join("rules.json").exists());
    let forced = run(state.path(), &["deny", "0.0.0.0/0", "--force"]);
    assert_eq!(forced.out, "denied 0.0.0.0/0: in force\n", "{}", forced.err);
    weir.get("/a", "198.51.100.9").expect(429);
    assert_eq!(
        run(state.path(), &["deny", "0.0.0.0/0", "--remove"]).code,
        0
    );
    weir.get("/a", "198.51.100.9").expect(200);
    weir.stop();
    wide(false);
}

/// CONTROL-8: a file that does not fit is left alone, with the place of the fault; once it is
/// mended the command works.
#[test]
fn a_faulty_file_is_left_alone() {
    let application = Application::ok();
    let state = state_dir();
    let weir = Weir::start_at(application.address(), &state, &[]);
    let path = state.path().join("rules.json");
    let faulty = "{\"version\":1,\n \"deny\":[{\"netblok\":\"192.0.2.1\"}]}";
    fs::write(&path, faulty).expect("writes");
    let refused = run(state.path(), &["deny", "192.0.2.0/24"]);
    assert_eq!(refused.code, 78, "{}", refused.err);
    for word in [
        "rules.json does not fit: line 2",
        "/deny/0/netblok",
        "mend it first",
    ] {
        assert!(refused.err.contains(word), "{word}: {}", refused.err);
    }
    assert_eq!(fs::read_to_string(&path).expect("the file"), faulty);
    fs::write(&path, "{\"version\":1}").expect("writes");
    assert_eq!(run(state.path(), &["deny", "192.0.2.0/24"]).code, 0);
    weir.get("/a", "192.0.2.9").expect(429);
}

/// CONTROL-8: a file that the service may not write (below /etc, under the unit of the package) is
/// changed by a command whose own settings name it, and the service takes it in before the command
/// returns.
#[test]
fn a_file_that_the_service_may_not_write() {
    let application = Application::ok();
    let (state, elsewhere) = (state_dir(), state_dir());
    let file = elsewhere.path().join("rules.json");
    let named = ("WAF_RULES_FILE", file.to_str().expect("a path"));
    let weir = Weir::start_at(application.address(), &state, &[named]);
    let blocked = elsewhere.path().join(".rules.json.new");
    // Where nobody can make the new file, nobody can: both say so.
    fs::create_dir(&blocked).expect("a directory");
    let refused = run(state.path(), &["deny", "192.0.2.0/24"]);
    assert_eq!(refused.code, 78, "{}", refused.err);
    assert!(
        refused.err.contains("cannot be changed: "),
        "{}",
        refused.err
    );
    fs::remove_dir(&blocked).expect("removes it");
    let mut own = command(state.path(), &["deny", "192.0.2.0/24"]);
    let done = ran(own.env(named.0, named.1).output().expect("the binary runs"));
    assert_eq!(done.out, "denied 192.0.2.0/24: in force\n", "{}", done.err);
    weir.get("/a", "192.0.2.9").expect(429);
    assert!(!Path::new(state.path()).join("rules.json").exists());
    fs::write(&file, r#"{"version":1}"#).expect("writes");
    wait_until("no rules", || weir.get("/a", "192.0.2.9").status == 200);
}
