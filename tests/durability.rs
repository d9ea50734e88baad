//! State that outlives everything: kills, full and read-only disks, a directory that goes away,
//! every way of saving (STATE-2, STATE-3, STATE-5, STATE-7). Hostile contents are
//! `hostile_files.rs`, full tables `full_files.rs`.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::application::Application;
use crate::support::raw_client::{Connection, Response, get, request};
use crate::support::traffic::Traffic;
use crate::support::weir::{
    ADMIN, ADMIN_TOKEN, EXEMPT, ONE_PER_HOUR, StateDir, Weir, pretty, state_dir, state_dir_on_disk,
};
use crate::support::{wait_for, wait_until};

/// STATE-3, STATE-4: an edit that was taken in is no edit of the next start, though it stands in
/// the file as the service would have written it, and the file is not written again: neither one
/// that a running service took in, nor one that a start did.
#[test]
fn an_edit_is_taken_in_once() {
    let application = Application::ok();
    let state = state_dir();
    let mut weir = Weir::start_at(application.address(), &state, &[EXEMPT]);
    weir.ban("netblock", "203.0.113.0/24", "1h");
    weir.stop();
    let path = weir.state_path("bans.json");
    let save = |before: &str, after: &str| {
        let [before, after] = [before, after].map(|reason| format!("\"reason\": \"{reason}\""));
        let text = fs::read_to_string(&path).expect("bans.json");
        assert!(text.contains(&before), "{text}");
        let text = text.replace(&before, &after);
        fs::write(&path, &text).expect("writes");
        text
    };
    let is_kept = |text: &str| {
        let base = fs::read_to_string(state.path().join(".bans.json.base"));
        base.is_ok_and(|base| base.starts_with(text))
    };

    weir = Weir::start_at(application.address(), &state, &[EXEMPT]);
    let text = save("test", "while it runs");
    weir.wait_for_process_log(&["INFO", "bans.json", "edit taken in: 1 changed"]);
    wait_until("the base is of the edit", || is_kept(&text));
    weir.kill();
    weir = Weir::start_at(application.address(), &state, &[EXEMPT]);
    assert_eq!(weir.bans()[0]["reason"], "while it runs");
    let told = "edit from before the start";
    let log = weir.process_log_text();
    assert!(!log.contains(told), "{log}");
    weir.kill();

    let text = save("while it runs", "while it does not");
    weir = Weir::start_at(application.address(), &state, &[EXEMPT]);
    weir.wait_for_process_log(&["INFO", "bans.json", told, "1 changed"]);
    wait_until("the base is of the edit", || is_kept(&text));
    weir.kill();
    weir = Weir::start_at(application.address(), &state, &[EXEMPT]);
    assert_eq!(weir.bans()[0]["reason"], "while it does not");
    let log = weir.process_log_text();
    assert!(!log.contains(told), "{log}");
    assert_eq!(fs::read_to_string(&path).expect("bans.json"), text);
}

/// STATE-2: killed at random moments under breaks, admin bans, lifts and edits, the next start
/// succeeds every time, every acknowledged admin ban and lift is there, and no file is partial.
#[test]
fn kills_at_random_moments_lose_nothing() {
    kills(40, 0x5eed_0001);
}

/// STATE-2: the same two hundred times, or as often as `WEIR_KILLS` says: each two hundred begin
/// with an empty state and other random numbers.
#[test]
#[ignore = "long; .ci/night runs it"]
fn two_hundred_kills_lose_nothing() {
    let rounds = std::env::var("WEIR_KILLS").map_or(200, |text| text.parse().expect("a number"));
    for batch in 0..usize::div_ceil(rounds, 200) {
        kills(200.min(rounds - batch * 200), 0x5eed_0002 + batch as u64);
    }
}

/// STATE-2, STATE-4: a copy from before an acknowledged ban is saved over bans.json, and the
/// service is killed before it looks: the next start takes the copy in as the running service
/// would. Lifts made since stay, entries of the copy count, what it was meant to take out is gone.
/// A file that somebody removed is an empty one.
#[test]
fn a_stale_copy_and_a_kill_lose_no_acknowledged_ban() {
    let application = Application::ok();
    let state = state_dir();
    let settings = [EXEMPT, ("WAF_STATE_WRITE_DELAY", "10ms")];
    let netblocks = |weir: &Weir| {
        let bans = weir.bans();
        let mut held: Vec<(String, bool)> = bans
            .iter()
            .filter_map(|ban| {
                Some((
                    ban["netblock"].as_str()?.to_owned(),
                    ban["lifted"].is_null(),
                ))
            })
            .collect();
        held.sort();
        held
    };
    let mut weir = Weir::start_at(application.address(), &state, &settings);
    for netblock in ["10.1.0.0/24", "10.2.0.0/24", "10.3.0.0/24"] {
        weir.ban("netblock", netblock, "1h");
    }
    let path = weir.state_path("bans.json");
    let mut copy = weir.wait_for_bans("all three", |bans| bans.len() == 3);
    weir.ban("netblock", "10.4.0.0/24", "1h");
    weir.admin("DELETE", "/_waf/bans/10.1.0.7", None);
    weir.kill();
    let bans = copy["bans"].as_array_mut().expect("a list");
    bans.retain(|ban| ban["netblock"] != "10.2.0.0/24");
    bans.push(json!({"netblock": "172.16.0.0/24", "ban_expires": "permanent"}));
    fs::write(&path, pretty(&copy)).expect("writes");

    let expected = [
        ("10.1.0.0/24", false),
        ("10.3.0.0/24", true),
        ("10.4.0.0/24", true),
        ("172.16.0.0/24", true),
    ]
    .map(|(netblock, active)| (netblock.to_owned(), active));
    weir = Weir::start_at(application.address(), &state, &settings);
    weir.wait_for_process_log(&["INFO", "bans.json", "edit from before the start"]);
    assert_eq!(netblocks(&weir), expected);
    assert_eq!(weir.get("/exempt", "10.4.0.7").status, 429);
    weir.kill();
    weir = Weir::start_at(application.address(), &state, &settings);
    assert_eq!(netblocks(&weir), expected);
    weir.kill();
    fs::remove_file(&path).expect("removes");
    weir = Weir::start_at(application.address(), &state, &settings);
    assert_eq!(netblocks(&weir), []);
    weir.kill();
    // What is put in its place counts as it stands.
    fs::write(&path, pretty(&copy)).expect("writes");
    weir = Weir::start_at(application.address(), &state, &settings);
    assert_eq!(netblocks(&weir).len(), 3);
}

/// STATE-7, STATE-2: where files may not grow, requests go on, nothing on disk is lost, answers say
/// `"persisted": false`, errors are counted and logged, and once there is room everything is
/// written.
#[test]
fn a_file_size_limit_stops_no_request() {
    let state = state_dir();
    outage(&state, limit_files);
}

/// STATE-7: what could not be written is tried again by itself: nothing else has to happen, no
/// interval to pass.
#[test]
fn a_failed_write_is_tried_again() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[("WAF_STATE_COUNTER_INTERVAL", "1h")]);
    weir.ban("netblock", "10.1.0.0/24", "1h");
    limit_files(&weir, true);
    assert_eq!(post_ban(&weir, "10.2.0.0/24")["persisted"], false);
    limit_files(&weir, false);
    weir.wait_for_bans("both bans", |bans| bans.len() == 2);
    weir.wait_for_process_log(&["INFO", "bans.json", "written again"]);
}

/// STATE-7: the same on a full disk.
#[test]
#[ignore = "mounts a tmpfs; .ci/run runs it as root"]
fn a_full_disk_stops_no_request() {
    let state = state_dir();
    let _mount = Mount::tmpfs(state.path(), "size=256k");
    outage(&state, |weir, fails| {
        let filler = weir.state_path("filler");
        if fails {
            let mut file = fs::File::create(&filler).expect("the filler");
            while file.write_all(&[0; 4096]).is_ok() {}
        } else {
            fs::remove_file(&filler).expect("removes the filler");
        }
    });
}

/// STATE-7: the same where the directory is suddenly on a read-only file system.
#[test]
#[ignore = "mounts a tmpfs; .ci/run runs it as root"]
fn a_read_only_disk_stops_no_request() {
    let state = state_dir();
    let mount: Mutex<Option<Mount>> = Mutex::default();
    outage(&state, |weir, fails| {
        let mounted = fails.then(|| Mount::tmpfs(&weir.state_path(""), "ro,size=64k"));
        *mount.lock().expect("the mount") = mounted;
    });
}

/// STATE-7: a directory that is removed while the service runs is made anew, with everything in it,
/// and still locked.
#[test]
fn a_removed_directory_is_made_anew() {
    let application = Application::ok();
    let state = state_dir();
    let weir = Weir::start_at(
        application.address(),
        &state,
        &[ONE_PER_HOUR, EXEMPT, ("WAF_STATE_COUNTER_INTERVAL", "50ms")],
    );
    weir.ban("netblock", "10.1.0.0/24", "1h");
    weir.break_limit("203.0.113.7");
    wait_for("clients.json", || {
        weir.state_path("clients.json").exists().then_some(())
    });
    let traffic = Traffic::start(weir.address(), 2, "/exempt", |_| "198.51.100.1".to_owned());
    // A write in between may put a file into the directory that is being emptied.
    wait_for("an empty place", || fs::remove_dir_all(state.path()).ok());
    weir.wait_for_bans("both bans", |bans| bans.len() == 2);
    weir.wait_for_process_log(&["WARN", "the state directory was gone"]);
    let answer = post_ban(&weir, "10.2.0.0/24");
    assert_eq!(answer.get("persisted"), None, "{answer}");
    assert_eq!(weir.bans_on_disk().len(), 3);
    wait_for("clients.json", || {
        weir.state_path("clients.json").exists().then_some(())
    });
    let refused = Weir::refuse(&state, &[]);
    assert_eq!(refused.code, Some(78), "still locked: {refused:?}");
    wait_for("requests meanwhile", || {
        (application.requests().len() > 10).then_some(())
    });
    traffic.finish();
}

/// STATE-3: an edit is seen whatever way it is saved, with the programs that people use; each in
/// force, none set aside.
#[test]
fn every_way_of_saving_is_seen() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[EXEMPT, ("WAF_STATE_WRITE_DELAY", "10ms")]);
    weir.ban("netblock", "10.0.0.0/24", "1h");
    let path = weir.state_path("bans.json");
    let shell = |line: &str| run("sh", &["-ec", line]);
    type Way<'a> = (&'a str, Box<dyn Fn(&Path, &str) + 'a>);
    let ways: Vec<Way<'_>> = vec![
        (
            "sh: >",
            Box::new(|new, old| shell(&format!("cat {} > {old}", new.display()))),
        ),
        (
            "sh: > in two pieces",
            Box::new(|new, old| {
                let new = new.display();
                // Half a file lies there for longer than an edit that fits needs to settle.
                shell(&format!(
                    "(head -c 40 {new}; sleep 0.3; tail -c +41 {new}) > {old}"
                ));
            }),
        ),
        ("cp", Box::new(|new, old| run("cp", &[text(new), old]))),
        ("mv", Box::new(|new, old| run("mv", &[text(new), old]))),
        (
            "tee",
            Box::new(|new, old| shell(&format!("tee {old} < {} > /dev/null", new.display()))),
        ),
        (
            "rm and create",
            Box::new(|new, old| shell(&format!("rm {old}; cat {} > {old}", new.display()))),
        ),
        (
            "sed -i of the same text",
            Box::new(|new, old| {
                let entry = entry_of(new);
                run(
                    "sed",
                    &["-i", &format!("s|\"bans\": \\[|\"bans\": [{entry},|"), old],
                );
            }),
        ),
        (
            "perl-style: rename aside, write anew",
            Box::new(|new, old| {
                shell(&format!(
                    "mv {old} {old}~; cat {} > {old}; rm {old}~",
                    new.display()
                ));
            }),
        ),
    ];
    let count = ways.len();
    for (number, (way, save)) in ways.iter().enumerate() {
        let netblock = format!("198.51.{number}.0/24");
        let mut file = weir.state_file("bans.json").expect("bans.json");
        let entry = json!({"netblock": netblock, "ban_expires": "permanent"});
        file["bans"].as_array_mut().expect("a list").push(entry);
        // Beside the file, as editors do; mv across file systems would be a copy.
        let new = weir.state_path("new");
        fs::write(&new, pretty(&file)).expect("writes");
        save(&new, text(&path));
        wait_for(&format!("{way}: in force"), || {
            (weir.get("/exempt", &format!("198.51.{number}.7")).status == 429).then_some(())
        });
        // The next write brings the whole entry into the file.
        weir.ban("netblock", &format!("10.1.{number}.0/24"), "1h");
        let count = 1 + 2 * (number + 1);
        weir.wait_for_bans(&format!("{way}: all"), |bans| bans.len() == count);
    }
    let edits = |outcome: &str| {
        weir.metric(&format!(
            "waf_state_edits_total{{file=\"bans.json\",outcome=\"{outcome}\"}}"
        ))
    };
    assert_eq!(edits("bad"), Some(0.0), "{}", weir.process_log_text());
    assert_eq!(
        edits("taken"),
        Some(count as f64),
        "{}",
        weir.process_log_text()
    );
    assert!(!weir.state_path("bans.json.bad").exists());
}

/// STATE-3: and by vim, in place and by rename.
#[test]
#[ignore = "needs vim; .ci/run installs it"]
fn vim_saves_are_seen() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[EXEMPT, ("WAF_STATE_WRITE_DELAY", "10ms")]);
    weir.ban("netblock", "10.0.0.0/24", "1h");
    // vim saves no file that was written since it has read it: it asks, and here nobody answers.
    let is_written = |count: usize| {
        weir.wait_for_bans("the document", |bans| {
            bans.len() == count && bans.iter().all(|ban| ban["ban_started"].is_string())
        });
    };
    is_written(1);
    let path = weir.state_path("bans.json");
    for (number, backup) in ["yes", "no", "auto"].into_iter().enumerate() {
        let entry =
            format!("{{\"netblock\": \"198.51.{number}.0/24\", \"ban_expires\": \"permanent\"}},");
        let put = format!("call append(search('\"bans\": \\['), '{entry}')");
        run(
            "vim",
            &[
                "-es",
                "-u",
                "NONE",
                "-c",
                &format!("set backupcopy={backup} writebackup"),
                "-c",
                &put,
                "-c",
                "wq",
                text(&path),
            ],
        );
        wait_for(&format!("backupcopy={backup}: in force"), || {
            (weir.get("/exempt", &format!("198.51.{number}.7")).status == 429).then_some(())
        });
        is_written(number + 2);
    }
    assert_eq!(
        weir.edits("bans.json", "bad"),
        0.0,
        "{}",
        weir.process_log_text()
    );
}

/// STATE-3, STATE-5: a ban that is made in the middle of a slow save is answered, and the document
/// waits for the end of the save: half a file is not set aside while somebody still writes to it.
#[test]
fn a_write_waits_for_the_end_of_a_save() {
    let application = Application::ok();
    let tried = (0..5).any(|_| {
        let weir = Weir::start(&application, &[EXEMPT]);
        weir.ban("netblock", "10.1.0.0/24", "1h");
        let mut file = weir.state_file("bans.json").expect("bans.json");
        let entry = json!({"netblock": "198.51.100.0/24", "ban_expires": "permanent"});
        file["bans"].as_array_mut().expect("a list").push(entry);
        let text = pretty(&file);
        let (first, second) = text.split_at(60);
        let mut saved = fs::File::create(weir.state_path("bans.json")).expect("opens");
        saved.write_all(first.as_bytes()).expect("writes");
        let began = Instant::now();
        let in_time = std::thread::scope(|scope| {
            let answer = scope.spawn(|| post_ban(&weir, "10.2.0.0/24"));
            // Reported, but not given up: a writer may be slower than that.
            weir.wait_for_process_log(&["ERROR", "bans.json", "the edit is not taken"]);
            saved.write_all(second.as_bytes()).expect("writes");
            // After a second without a change it is set aside, on a machine that is too busy.
            let in_time = began.elapsed() < Duration::from_millis(900);
            let answer = answer.join().expect("the answer");
            assert!(!in_time || answer.get("persisted").is_none(), "{answer}");
            in_time
        });
        if in_time {
            weir.wait_for_bans("all three", |bans| bans.len() == 3);
            assert_eq!(weir.get("/exempt", "198.51.100.7").status, 429);
            assert!(!weir.state_path("bans.json.bad").exists());
        }
        in_time
    });
    assert!(tried, "never within a second");
}

/// STATE-5: bad edits are set aside one after the other, the newest as `.bad`; what was held stays
/// in force and in the file.
#[test]
fn bad_edits_are_kept_in_a_row() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[EXEMPT, ("WAF_STATE_WRITE_DELAY", "10ms")]);
    weir.ban("netblock", "203.0.113.0/24", "1h");
    let read = |name: &str| fs::read_to_string(weir.state_path(name)).ok();
    for bad in ["first", "second"] {
        fs::write(weir.state_path("bans.json"), bad).expect("writes");
        // A ban made now has to wait for the file to settle, or it would write over a save in
        // progress.
        let answer = post_ban(&weir, &format!("10.0.0.{}/32", bad.len()));
        assert_eq!(answer.get("persisted"), None, "{answer}");
        wait_for("the edit, set aside", || {
            (read("bans.json.bad")? == bad).then_some(())
        });
    }
    assert_eq!(read("bans.json.bad").as_deref(), Some("second"));
    assert_eq!(read("bans.json.bad.1").as_deref(), Some("first"));
    weir.wait_for_bans("all three", |bans| bans.len() == 3);
    assert_eq!(weir.get("/exempt", "203.0.113.7").status, 429);
    // It is counted behind the rename.
    wait_until("both are counted", || weir.edits("bans.json", "bad") == 2.0);
}

fn kills(rounds: usize, seed: u64) {
    let application = Application::ok();
    let state = state_dir_on_disk();
    let settings = [
        ONE_PER_HOUR,
        ("WAF_STATE_WRITE_DELAY", "1ms"),
        ("WAF_STATE_COUNTER_INTERVAL", "25ms"),
    ];
    // Documents are few, and what is acknowledged is in the journal alone.
    let lines_alone = [
        ONE_PER_HOUR,
        ("WAF_STATE_WRITE_DELAY", "1h"),
        ("WAF_STATE_COUNTER_INTERVAL", "1h"),
    ];
    let mut random = Random(seed);
    let numbers = AtomicU32::new(0);
    // What the service has said is on disk: the netblock, and whether its ban is lifted.
    let acknowledged: Mutex<BTreeMap<String, bool>> = Mutex::default();
    let mut breaks = 0;
    for round in 0..rounds {
        let chosen = match round % 4 {
            1 => &lines_alone,
            _ => &settings,
        };
        let mut weir = Weir::start_at(application.address(), &state, chosen);
        let bans = weir.bans();
        let held: BTreeMap<&str, bool> = bans
            .iter()
            .filter_map(|ban| Some((ban["netblock"].as_str()?, !ban["lifted"].is_null())))
            .collect();
        for (netblock, lifted) in &*acknowledged.lock().expect("the list") {
            assert_eq!(
                held.get(netblock.as_str()),
                Some(lifted),
                "round {round}, seed {seed:#x}: {netblock}"
            );
        }
        breaks = bans
            .iter()
            .filter(|ban| ban["cause"] == "rate_limit")
            .count();
        let (address, directory) = (weir.address(), state.path().to_owned());
        let killed = AtomicBool::new(false);
        // A write waits for an edit to settle, so rounds with edits acknowledge little and last
        // longer.
        let (edits, span_us) = if round.is_multiple_of(3) {
            (3, 400_000)
        } else {
            (0, 160_000)
        };
        std::thread::scope(|scope| {
            scope.spawn(|| break_limits(address, &numbers, &killed));
            scope.spawn(|| {
                for _ in 0..6 {
                    if ban_and_lift(address, &numbers, &acknowledged).is_none() {
                        break;
                    }
                }
            });
            scope.spawn(|| {
                for _ in 0..edits {
                    edit(&directory, &numbers, &killed);
                }
            });
            std::thread::sleep(Duration::from_micros(random.below(span_us)));
            weir.kill();
            killed.store(true, Ordering::SeqCst);
        });
        for file in ["bans.json", "clients.json", "lookups.json", "alerts.json"] {
            if let Some(file) = weir.state_file(file) {
                assert_eq!(file["version"], 1, "round {round}");
            }
        }
    }
    let acknowledged = acknowledged.lock().expect("the list").len();
    println!(
        "STATE-2: {rounds} kills, {acknowledged} acknowledged admin bans, {breaks} automatic bans: all there"
    );
    // A load that did nothing would prove nothing.
    assert!(
        acknowledged >= rounds / 8 && breaks >= rounds / 8,
        "{acknowledged} {breaks}"
    );
}

/// Clients that break their limit, until the service is gone.
fn break_limits(address: SocketAddr, numbers: &AtomicU32, killed: &AtomicBool) {
    for _ in 0..8 {
        let number = numbers.fetch_add(1, Ordering::SeqCst);
        let client = format!("100.{}.{}.7", number / 256, number % 256);
        for _ in 0..2 {
            if killed.load(Ordering::SeqCst)
                || try_send(address, &get("/a", &[("X-Forwarded-For", &client)])).is_none()
            {
                return;
            }
        }
    }
}

/// Bans, sometimes lifts; keeps what was acknowledged as persisted. None once the service is gone.
fn ban_and_lift(
    address: SocketAddr,
    numbers: &AtomicU32,
    acknowledged: &Mutex<BTreeMap<String, bool>>,
) -> Option<()> {
    let persisted = |answer: &Response| answer.json().get("persisted").is_none();
    let number = numbers.fetch_add(1, Ordering::SeqCst);
    let one = format!("10.{}.{}.1", number / 256, number % 256);
    let netblock = format!("{one}/32");
    let body = json!({"netblock": netblock, "duration": "1h", "reason": "test"}).to_string();
    let answer = try_send(address, &admin("POST", "/_waf/bans", Some(&body)))?;
    assert_eq!(answer.status, 201, "{}", answer.text());
    if persisted(&answer) {
        acknowledged
            .lock()
            .expect("the list")
            .insert(netblock.clone(), false);
    }
    if number.is_multiple_of(3) {
        // Asked for but not acknowledged: nobody can say what is on disk.
        acknowledged.lock().expect("the list").remove(&netblock);
        let answer = try_send(
            address,
            &admin("DELETE", &format!("/_waf/bans/{one}"), None),
        )?;
        assert_eq!(answer.status, 200, "{}", answer.text());
        if persisted(&answer) {
            acknowledged
                .lock()
                .expect("the list")
                .insert(netblock, true);
        }
    }
    Some(())
}

/// An administrator adds an entry, in place or by rename.
fn edit(directory: &Path, numbers: &AtomicU32, killed: &AtomicBool) {
    if killed.load(Ordering::SeqCst) {
        return;
    }
    let path = directory.join("bans.json");
    let Ok(text) = fs::read_to_string(&path) else {
        return;
    };
    let mut file: Value =
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("partial: {error}: {text}"));
    let number = numbers.fetch_add(1, Ordering::SeqCst);
    let netblock = format!("172.{}.{}.0/24", number / 256, number % 256);
    let entry = json!({"netblock": netblock, "ban_expires": "permanent"});
    file["bans"].as_array_mut().expect("a list").push(entry);
    if number.is_multiple_of(2) {
        fs::write(&path, pretty(&file)).expect("writes");
    } else {
        let aside = directory.join("bans.json.new");
        fs::write(&aside, pretty(&file)).expect("writes");
        fs::rename(&aside, &path).expect("renames");
    }
}

/// The whole story of a disk that fails and is mended, with traffic all the while.
fn outage(state: &StateDir, mut disk: impl FnMut(&Weir, bool)) {
    let application = Application::ok();
    let mut weir = Weir::start_at(
        application.address(),
        state,
        &[
            ONE_PER_HOUR,
            EXEMPT,
            ("WAF_STATE_WRITE_DELAY", "10ms"),
            ("WAF_STATE_COUNTER_INTERVAL", "50ms"),
        ],
    );
    weir.ban("netblock", "10.1.0.0/24", "1h");
    // In the document: a line of the journal would leave room for others in its block of the disk.
    let before = weir.wait_for_bans("the first", |bans| bans.len() == 1);
    wait_for("clients.json", || {
        weir.state_path("clients.json").exists().then_some(())
    });
    let traffic = Traffic::start(weir.address(), 2, "/exempt", |_| "198.51.100.1".to_owned());
    let writes = |weir: &Weir, file: &str, outcome: &str| {
        weir.metric(&format!(
            "waf_state_writes_total{{file=\"{file}\",outcome=\"{outcome}\"}}"
        ))
        .expect("the series")
    };
    assert_eq!(writes(&weir, "bans.json", "error"), 0.0);

    let began = Instant::now();
    disk(&weir, true);
    let answer = post_ban(&weir, "10.2.0.0/24");
    assert_eq!(answer["persisted"], false, "{answer}");
    assert_eq!(
        weir.get("/exempt", "10.2.0.7").status,
        429,
        "in force all the same"
    );
    weir.break_limit("203.0.113.7");
    wait_for("the ban", || {
        (weir.get("/exempt", "203.0.113.8").status == 429).then_some(())
    });
    let lifted = weir.admin("DELETE", "/_waf/bans/10.1.0.7", None).json();
    assert_eq!(lifted["persisted"], false, "{lifted}");
    assert_eq!(
        weir.get("/exempt", "10.1.0.7").status,
        200,
        "lifted all the same"
    );
    // lookups.json does not change, and is not written then.
    for file in ["bans.json", "clients.json", "alerts.json"] {
        wait_for(&format!("the errors of {file}"), || {
            (writes(&weir, file, "error") >= 1.0).then_some(())
        });
        weir.wait_for_process_log(&["ERROR", file, "cannot be written"]);
    }
    let alert = wait_for("the alert", || {
        let mut lines = weir.raw_output().into_iter();
        let line = lines.find(|line| line.contains("\"state_error\""))?;
        serde_json::from_str::<Value>(&line).ok()
    });
    assert_eq!(alert["event"], "alert", "{alert}");
    assert!(weir.metric("waf_alerts_total{kind=\"state_error\"}") >= Some(1.0));
    let errors = writes(&weir, "bans.json", "error");
    let written = writes(&weir, "bans.json", "ok");
    let lasted = began.elapsed();

    disk(&weir, false);
    // The last good file stayed until the disk was mended.
    let found = weir.state_file("bans.json").expect("bans.json");
    assert!(
        found == before || found["bans"].as_array().map(Vec::len) == Some(3),
        "{found}"
    );
    let file = weir.wait_for_bans("everything", |bans| bans.len() == 3);
    assert!(file["bans"][0]["lifted"].is_string(), "{file}");
    for file in ["bans.json", "clients.json", "alerts.json"] {
        weir.wait_for_process_log(&["INFO", file, "written again"]);
    }
    assert!(writes(&weir, "bans.json", "ok") > written);
    // One try for each of the two answers that waited, and its own: the first once the directory is
    // found to take nothing, then a second later, then two, then four.
    let own = 1.0 + (lasted.as_secs_f64() + 1.0).log2().floor();
    assert!(
        errors <= 2.0 + own,
        "{errors} tries in {lasted:?}: it pauses between them"
    );
    let answer = post_ban(&weir, "10.3.0.0/24");
    assert_eq!(answer.get("persisted"), None, "{answer}");
    let passed = traffic.finish().len();
    assert!(passed > 100, "{passed} requests");
    weir.stop();
    let next = Weir::start_at(application.address(), state, &[ONE_PER_HOUR]);
    assert_eq!(next.bans().len(), 4);
    println!("STATE-7: {passed} requests during the outage, none failed; {errors} tries");
}

/// Lets no file of the service grow, or any.
fn limit_files(weir: &Weir, fails: bool) {
    let limit = if fails {
        "0:unlimited"
    } else {
        "unlimited:unlimited"
    };
    run(
        "prlimit",
        &[
            "--pid",
            &weir.pid().to_string(),
            &format!("--fsize={limit}"),
        ],
    );
}

fn post_ban(weir: &Weir, netblock: &str) -> Value {
    weir.ban("netblock", netblock, "1h")
}

fn admin(method: &str, target: &str, body: Option<&str>) -> Vec<u8> {
    let bearer = format!("Bearer {ADMIN_TOKEN}");
    let headers = [("X-Forwarded-For", ADMIN), ("Authorization", &*bearer)];
    request(method, target, &headers, body.map(str::as_bytes))
}

/// A request on a connection of its own; none where the service is gone before the whole answer.
fn try_send(address: SocketAddr, bytes: &[u8]) -> Option<Response> {
    let mut connection = Connection::try_open(address)?;
    connection.send_what_is_taken(bytes);
    connection.try_response(false).ok()
}

fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path")
}

/// The last entry of a file, on one line.
fn entry_of(path: &Path) -> String {
    let file: Value = serde_json::from_str(&fs::read_to_string(path).expect("it")).expect("JSON");
    file["bans"]
        .as_array()
        .and_then(|bans| bans.last())
        .expect("an entry")
        .to_string()
}

/// A mounted file system; unmounted at the end.
struct Mount(PathBuf);

impl Mount {
    fn tmpfs(at: &Path, options: &str) -> Self {
        run("mount", &["-t", "tmpfs", "-o", options, "tmpfs", text(at)]);
        Self(at.to_owned())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Lazily: a service that is still running may hold its lock file open.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// xorshift64: a seed replays.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}
