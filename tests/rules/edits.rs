//! rules.json as people edit it: by any editor, with faults, at the start (RULE-1).

use std::io::Write;

use super::{save, start, wait_for_edits};
use crate::support::application::Application;
use crate::support::wait_until;
use crate::support::weir::{Weir, state_dir};

fn deny(netblock: &str) -> String {
    format!("{{\"version\":1,\n \"deny\":[{{\"netblock\":\"{netblock}\"}}]}}\n")
}

/// RULE-1: an edit is in force whichever way an editor saves: a new file renamed over the old one,
/// the old one moved away and a new one made, the same file cut and written anew, a piece at a
/// time; and a link that is turned elsewhere. The file stays as the editor left it.
#[test]
fn every_way_of_saving_is_seen() {
    let application = Application::ok();
    let (weir, state) = start(&application, &deny("203.0.113.1"), &[]);
    let path = state.path().join("rules.json");
    let served = |client: &str| weir.get("/a", client).status == 200;
    assert!(!served("203.0.113.1") && served("203.0.113.2"));
    // A half that lies still for half a second is a fault, and rightly told.
    let is_slow = std::cell::Cell::new(false);
    type Save<'a> = &'a dyn Fn(&str);
    let ways: [(&str, Save<'_>); 4] = [
        ("rename", &|text| save(state.path(), "rules.json", text)),
        ("backup", &|text| {
            std::fs::rename(&path, state.path().join("rules.json~")).unwrap();
            std::fs::write(&path, text).unwrap();
        }),
        ("in place", &|text| {
            let begun = std::time::Instant::now();
            let mut file = std::fs::File::create(&path).unwrap();
            let (first, second) = text.split_at(text.len() / 2);
            file.write_all(first.as_bytes()).unwrap();
            file.flush().unwrap();
            std::thread::sleep(std::time::Duration::from_millis(200));
            file.write_all(second.as_bytes()).unwrap();
            is_slow.set(begun.elapsed() >= std::time::Duration::from_millis(500));
        }),
        ("link", &|text| {
            let other = state.path().join("other.json");
            std::fs::write(&other, text).unwrap();
            std::fs::remove_file(&path).unwrap();
            std::os::unix::fs::symlink(&other, &path).unwrap();
        }),
    ];
    for (number, (way, write)) in ways.iter().enumerate() {
        let client = format!("203.0.113.{}", 10 + number);
        let text = deny(&client);
        write(&text);
        wait_until(way, || !served(&client));
        assert!(served("203.0.113.1"), "{way}: the old list is gone");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text, "{way}");
    }
    assert!(weir.edits("rules.json", "bad") == 0.0 || is_slow.get());
    std::fs::remove_file(&path).unwrap();
    wait_until("no rules", || served("203.0.113.13"));
}

/// RULE-1: a fault is told with line, column and pointer, counted and alerted; the last good rules
/// stay in force, and the file is not renamed.
#[test]
fn a_fault_leaves_the_last_good_rules() {
    let application = Application::ok();
    let (weir, state) = start(&application, &deny("203.0.113.1"), &[]);
    for (number, (text, place)) in [
        (
            "{\"version\":1,\n \"deny\":[{\"netblock\":\"203.0.113.999\"}]}",
            "line 2, column 36, at \\\"/deny/0/netblock\\\"",
        ),
        ("{\"version\":1,\n \"deny\":[}", "line 2, column 10"),
        (
            "{\"version\":1,\"limits\":[{\"name\":\"a\",\"per_minit\":1}]}",
            "at \\\"/limits/0",
        ),
        ("{\"version\":2}", "unknown version 2: 1 is known"),
    ]
    .into_iter()
    .enumerate()
    {
        save(state.path(), "rules.json", text);
        wait_for_edits(&weir, "bad", (number + 1) as f64);
        weir.wait_for_process_log(&["the edit of the rules is not taken", place]);
        weir.get("/denied", "203.0.113.1").expect(429);
        assert_eq!(
            std::fs::read_to_string(state.path().join("rules.json")).unwrap(),
            text
        );
    }
    wait_until("the alerts", || {
        let alerts = weir.log_lines();
        alerts
            .iter()
            .filter(|line| line["kind"] == "file_error")
            .count()
            == 4
    });
    save(state.path(), "rules.json", &deny("203.0.113.2"));
    wait_for_edits(&weir, "taken", 1.0);
    weir.get("/served", "203.0.113.1").expect(200);
    weir.get("/denied", "203.0.113.2").expect(429);
}

/// RULE-1: at a start a fault stops it with 78 and the place; a file that is not there is none.
#[test]
fn a_fault_stops_the_start() {
    let state = state_dir();
    std::fs::write(
        state.path().join("rules.json"),
        "{\"version\":1,\n \"jails\":[{\"name\":\"a\",\"statuses\":[404]}]}",
    )
    .unwrap();
    let refused = Weir::refuse(&state, &[]);
    assert_eq!(refused.code, Some(78));
    assert!(
        refused
            .stderr
            .contains("rules.json does not fit: line 2, column "),
        "{}",
        refused.stderr
    );
    assert!(refused.stderr.contains("/jails/0"), "{}", refused.stderr);
    let elsewhere = state.path().join("of-mine.json");
    let application = Application::ok();
    let settings = [("WAF_RULES_FILE", elsewhere.to_str().unwrap())];
    let weir = Weir::start_at(application.address(), &state, &settings);
    weir.get("/a", "203.0.113.1").expect(200);
    save(state.path(), "of-mine.json", &deny("203.0.113.1"));
    wait_for_edits(&weir, "taken", 1.0);
    weir.get("/a", "203.0.113.1").expect(429);
}
