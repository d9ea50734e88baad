//! What a change of bans costs, and that it is safe all the same (STATE-10). Kills at random
//! moments are `durability.rs`, a disk that fails as well.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::application::Application;
use crate::support::command;
use crate::support::wait_until;
use crate::support::weir::{
    EXEMPT, StateDir, Weir, from_now, pretty, state_dir, state_dir_on_disk,
};

/// No document is written by itself.
const LINES_ALONE: [(&str, &str); 3] = [
    EXEMPT,
    ("WAF_STATE_WRITE_DELAY", "1h"),
    ("WAF_STATE_COUNTER_INTERVAL", "1h"),
];

fn start(application: &Application, state: &StateDir) -> Weir {
    Weir::start_at(application.address(), state, &LINES_ALONE)
}

/// Bytes that the process has passed to the system, files and sockets together.
fn written(weir: &Weir) -> u64 {
    let io = fs::read_to_string(format!("/proc/{}/io", weir.pid())).expect("/proc");
    let line = io.lines().find_map(|line| line.strip_prefix("wchar: "));
    line.and_then(|bytes| bytes.parse().ok()).expect("a number")
}

fn journal(weir: &Weir) -> String {
    fs::read_to_string(weir.state_path("bans.journal")).unwrap_or_default()
}

/// Bans two netblocks, the second one in the journal.
#[track_caller]
fn ban_two(weir: &Weir) {
    weir.ban("netblock", "10.1.0.0/24", "1h");
    wait_until("lines", || {
        weir.ban("netblock", "10.2.0.0/24", "1h");
        !journal(weir).is_empty()
    });
}

/// A state of so many bans as they are made in use.
fn full_state(bans: usize) -> StateDir {
    let state = state_dir_on_disk();
    let bans: Vec<Value> = (0..bans)
        .map(|number| {
            let client = format!("100.{}.{}.1", 64 + number / 256, number % 256);
            json!({"netblock": client, "client": client, "ban_started": from_now(-60), "ban_expires": from_now(36_000),
                "cause": "rate_limit", "reason": "more than 1000 requests per minute",
                "notes": {"request": {"method": "GET", "host": "example.org", "path": "/a", "user_agent": "x", "request_id": "y"},
                    "netblock_requests": 1043, "limit": "minute", "limit_value": 1000, "limit_percent": 100}})
        })
        .collect();
    let text = pretty(&json!({"version": 1, "bans": bans}));
    fs::write(state.path().join("bans.json"), text).expect("writes");
    state
}

/// STATE-10: at 10,000 bans an administrator's ban writes at most 16 KiB before it is answered, and
/// an import of 10,000 lines at most 64 MiB.
#[test]
fn a_ban_costs_what_changed() {
    let application = Application::ok();
    let state = full_state(9_900);
    let mut settings = LINES_ALONE.to_vec();
    settings.push(("WAF_MAX_BANS", "20000"));
    let mut weir = Weir::start_at(application.address(), &state, &settings);
    // The file was written by hand: the first document says what it holds.
    weir.ban("netblock", "10.0.0.0/24", "1h");
    wait_until("an open journal", || {
        weir.ban("netblock", "10.0.1.0/24", "1h");
        !journal(&weir).is_empty()
    });
    // A document that was asked for by an answer that gave up may still be written.
    let mut last = 0;
    wait_until("a disk at rest", || {
        let now = written(&weir);
        std::thread::sleep(Duration::from_millis(300));
        std::mem::replace(&mut last, now) + (16 << 10) > now
    });
    let mut given_up = 0;
    for number in 0..20 {
        let before = written(&weir);
        let ban = weir.ban("netblock", &format!("10.1.{number}.0/24"), "1h");
        let cost = written(&weir) - before;
        println!("STATE-10: a ban beside 10,000 others wrote {cost} bytes, its answer included");
        if ban["persisted"] == false {
            // The disk was so slow that a document was asked for.
            given_up += 1;
            weir.wait_for_rest();
        } else {
            assert!(cost <= 16 << 10, "{cost} bytes");
        }
    }
    assert!(given_up <= 5, "{given_up} of 20 answers gave up");
    let documents = weir.writes("bans.json", "ok");

    let lines: String = (0..10_000)
        .map(|n| format!("10.{}.{}.0/24\n", 2 + n / 250, n % 250))
        .collect();
    let path = state.path().join("list.txt");
    fs::write(&path, lines).expect("writes");
    let before = written(&weir);
    let name = path.to_str().expect("a path");
    let ran = command::run(
        state.path(),
        &["bans", "import", name, "--for", "1h", "--reason", "r"],
    );
    assert_eq!(ran.code, 0, "{}", ran.err);
    // A slow disk has the import answered before its document is there.
    wait_until("the document", || {
        weir.writes("bans.json", "ok") > documents
    });
    let cost = written(&weir) - before;
    println!("STATE-10: an import of 10,000 lines wrote {cost} bytes");
    assert!(cost <= 64 << 20, "{cost} bytes");
    let held = weir.bans_on_disk().len();
    assert!(held > 19_900, "{held}");
    weir.stop();
    assert_eq!(journal(&weir), "", "a stop leaves it empty");
}

/// STATE-10, STATE-2: what is acknowledged and in no document yet outlives a kill; a line that was
/// torn is no error, one that is damaged is told. A stop leaves the journal empty.
#[test]
fn the_journal_outlives_a_kill() {
    let application = Application::ok();
    let state = state_dir();
    let mut weir = start(&application, &state);
    ban_two(&weir);
    weir.ban("netblock", "10.3.0.0/24", "1h");
    weir.admin("DELETE", "/_waf/bans/10.1.0.7", None)
        .expect(200);
    let document = weir.state_file("bans.json").expect("bans.json");
    assert!(!document.to_string().contains("10.3.0.0/24"), "{document}");
    weir.kill();
    let append = |bytes: &str| {
        let mut file = fs::File::options()
            .append(true)
            .open(state.path().join("bans.journal"))
            .expect("opens");
        file.write_all(bytes.as_bytes()).expect("writes");
    };
    append("{\"number\":99,\"put\":[{\"netbl");
    // Without a service the command reads both.
    let ran = command::run(state.path(), &["bans", "list"]);
    assert!(ran.out.contains("10.3.0.0/24"), "{}", ran.out);

    let mut weir = start(&application, &state);
    let status = |weir: &Weir| {
        ["10.1.0.7", "10.2.0.7", "10.3.0.7"].map(|client| weir.get("/exempt", client).status)
    };
    assert_eq!(status(&weir), [200, 429, 429]);
    assert!(!weir.state_path("bans.journal.bad").exists());
    weir.wait_for_bans("the lines, in the document", |bans| {
        bans.iter().any(|ban| ban["netblock"] == "10.3.0.0/24")
    });
    wait_until("an empty journal", || journal(&weir).is_empty());
    weir.ban("netblock", "10.4.0.0/24", "1h");
    weir.kill();
    append("\0\0\n{}\n");

    let mut weir = start(&application, &state);
    assert_eq!(status(&weir), [200, 429, 429]);
    assert_eq!(weir.get("/exempt", "10.4.0.7").status, 429);
    weir.wait_for_process_log(&["ERROR", "bans.journal", "damaged"]);
    assert!(weir.state_path("bans.journal.bad").exists());
    weir.stop();
    assert_eq!(journal(&weir), "");
    assert_eq!(weir.bans_on_disk().len(), 4);
    let written = weir.state_file("bans.json").expect("bans.json");
    let weir = start(&application, &state);
    drop(weir);
    let file = fs::read_to_string(state.path().join("bans.json")).expect("bans.json");
    let again: Value = serde_json::from_str(&file).expect("JSON");
    assert_eq!(again["bans"], written["bans"]);
}

/// STATE-10, STATE-4: an edit by hand while the journal has newer bans loses nothing, whichever is
/// killed when: the edit is on top of what was acknowledged before it, and what was acknowledged
/// after it is on top of the edit. The editor's file is never set aside.
#[test]
fn an_edit_and_the_journal_are_merged() {
    let application = Application::ok();
    for killed_at_once in [true, false] {
        let state = state_dir();
        let mut weir = start(&application, &state);
        weir.ban("netblock", "10.1.0.0/24", "1h");
        let mut file = weir.state_file("bans.json").expect("bans.json");
        wait_until("lines", || {
            weir.ban("netblock", "10.2.0.0/24", "1h");
            !journal(&weir).is_empty()
        });
        // The editor saw the first alone, and has never heard of the lift.
        weir.admin("DELETE", "/_waf/bans/10.1.0.7", None)
            .expect(200);
        file["bans"][0]["reason"] = json!("looked into");
        let entry = json!({"netblock": "172.16.0.0/24", "ban_expires": "permanent"});
        file["bans"].as_array_mut().expect("a list").push(entry);
        let save = |weir: &Weir| {
            let aside = weir.state_path("edited");
            fs::write(&aside, pretty(&file)).expect("writes");
            fs::rename(&aside, weir.state_path("bans.json")).expect("renames");
        };
        if killed_at_once {
            weir.kill();
            save(&weir);
        } else {
            save(&weir);
            weir.wait_until_refused("172.16.0.7");
            // Acknowledged behind the edit.
            weir.admin("DELETE", "/_waf/bans/172.16.0.7", None)
                .expect(200);
            weir.kill();
        }
        let weir = start(&application, &state);
        let held = weir.bans();
        let ban = |netblock: &str| {
            let found = held.iter().find(|ban| ban["netblock"] == netblock);
            found.unwrap_or_else(|| panic!("{netblock} is lost"))
        };
        assert_eq!(ban("10.1.0.0/24")["reason"], "looked into");
        assert!(ban("10.1.0.0/24")["lifted"].is_string());
        assert!(ban("10.2.0.0/24")["lifted"].is_null());
        assert_eq!(ban("172.16.0.0/24")["lifted"].is_string(), !killed_at_once);
        assert!(!weir.state_path("bans.json.bad").exists());
    }
}

/// STATE-2, STATE-10, STATE-11: what is acknowledged behind a document that somebody has removed is
/// in a new document, not in a journal that a start would leave aside.
#[test]
fn a_ban_behind_a_removed_document_outlives_a_kill() {
    let application = Application::ok();
    for _ in 0..3 {
        let state = state_dir();
        let mut weir = start(&application, &state);
        ban_two(&weir);
        fs::remove_file(weir.state_path("bans.json")).expect("removes");
        let answer = weir.ban("netblock", "10.3.0.0/24", "1h");
        assert_eq!(answer.get("persisted"), None, "{answer}");
        weir.kill();
        let weir = start(&application, &state);
        for client in ["10.1.0.7", "10.2.0.7", "10.3.0.7"] {
            assert_eq!(weir.get("/exempt", client).status, 429, "{client}");
        }
    }
}

/// STATE-10: a journal that somebody removed, or that cannot be a file, costs no acknowledged ban:
/// the document holds it.
#[test]
fn without_its_journal_a_ban_is_in_the_document() {
    let application = Application::ok();
    let state = state_dir();
    let weir = start(&application, &state);
    ban_two(&weir);
    let path = weir.state_path("bans.journal");
    fs::remove_file(&path).expect("removes");
    let answer = weir.ban("netblock", "10.3.0.0/24", "1h");
    assert_eq!(answer.get("persisted"), None, "{answer}");
    weir.wait_for_process_log(&["WARN", "bans.journal", "not as it was left"]);
    wait_until("a journal again", || {
        weir.ban("netblock", "10.4.0.0/24", "1h");
        !journal(&weir).is_empty()
    });
    fs::remove_file(&path).expect("removes");
    fs::create_dir(&path).expect("makes");
    let answer = weir.ban("netblock", "10.5.0.0/24", "1h");
    assert_eq!(answer.get("persisted"), None, "{answer}");
    let held = weir.state_file("bans.json").expect("bans.json").to_string();
    for earlier in 1..=5 {
        assert!(
            held.contains(&format!("10.{earlier}.0.0/24")),
            "{earlier}: {held}"
        );
    }
    // It is told, and out of the way.
    wait_until("the alert", || {
        let alerts = weir.control("GET", "/v1/alerts", None).json().to_string();
        alerts.contains("bans.journal") && alerts.contains("it is no regular file")
    });
    wait_until("a journal again", || {
        weir.ban("netblock", "10.6.0.0/24", "1h");
        path.is_file() && !journal(&weir).is_empty()
    });
    assert!(weir.state_path("bans.journal.directory").is_dir());
}

/// STATE-2, STATE-10, STATE-11: while a directory lies in the place of bans.json nothing is
/// acknowledged in the journal alone, which a start without bans.json leaves aside.
#[test]
fn a_ban_behind_a_directory_outlives_a_kill() {
    let application = Application::ok();
    let state = state_dir();
    let mut weir = start(&application, &state);
    ban_two(&weir);
    let path = weir.state_path("bans.json");
    fs::remove_file(&path).expect("removes");
    fs::create_dir(&path).expect("makes");
    let answer = weir.ban("netblock", "10.3.0.0/24", "1h");
    assert_eq!(answer.get("persisted"), None, "{answer}");
    weir.kill();
    // As whoever mends it does.
    let _ = fs::remove_dir(&path);
    let weir = start(&application, &state);
    for client in ["10.1.0.7", "10.2.0.7", "10.3.0.7"] {
        assert_eq!(weir.get("/exempt", client).status, 429, "{client}");
    }
}

/// STATE-10, STATE-2: behind the last number that a line may have, or a number in the copy beside
/// bans.json that no line has, there is none for the next line: a ban that is acknowledged then is
/// in the document, and outlives a kill.
#[test]
fn a_ban_behind_a_forged_number_outlives_a_kill() {
    const LAST: u64 = 1 << 48;
    let application = Application::ok();
    let forge_line = |state: &Path| {
        let path = state.join("bans.journal");
        let mut file = fs::File::options().append(true).open(path).expect("opens");
        writeln!(file, "{{\"number\":{LAST}}}").expect("writes");
    };
    let forge_copy = |number: u64| {
        move |state: &Path| {
            let path = state.join(".bans.json.base");
            let text = fs::read_to_string(&path).expect("the copy");
            let (document, trailer) = text.trim_end().rsplit_once('\n').expect("a last line");
            let mut trailer: Value = serde_json::from_str(trailer).expect("JSON");
            trailer["history"]["journal"] = json!(number);
            fs::write(&path, format!("{document}\n{trailer}\n")).expect("writes");
        }
    };
    let forgeries: [&dyn Fn(&Path); 4] = [
        &forge_line,
        &forge_copy(LAST),
        &forge_copy(LAST + 1),
        &forge_copy(u64::MAX),
    ];
    for (number, forge) in forgeries.into_iter().enumerate() {
        let state = state_dir();
        let mut weir = start(&application, &state);
        ban_two(&weir);
        weir.kill();
        forge(state.path());
        let mut weir = start(&application, &state);
        for netblock in ["10.3.0.0/24", "10.4.0.0/24"] {
            let answer = weir.ban("netblock", netblock, "1h");
            assert_eq!(answer.get("persisted"), None, "{number}: {answer}");
        }
        weir.kill();
        let weir = start(&application, &state);
        for client in ["10.1.0.7", "10.3.0.7", "10.4.0.7"] {
            assert_eq!(
                weir.get("/exempt", client).status,
                429,
                "{number}: {client}"
            );
        }
    }
}
