//! A fleet that comes, changes and goes with a reload (RELOAD-2), and two instances of one name
//! (FLEET-23).

use std::time::Duration;

use super::*;

/// An instance whose settings are those of the environment, and these lines of a file.
struct Reloading {
    weir: Weir,
    file: std::path::PathBuf,
}

impl Reloading {
    #[track_caller]
    fn start(application: &Application, state: &StateDir, lines: &[(String, String)]) -> Self {
        let file = state.path().join("weir.env");
        write(&file, lines);
        let place = ("WAF_SETTINGS_FILE".to_owned(), file.display().to_string());
        let weir = start_at(application, state, &[place]);
        Self { weir, file }
    }

    /// Writes the file anew; `weir reload` takes it.
    #[track_caller]
    fn take(&self, lines: &[(String, String)]) -> Ran {
        write(&self.file, lines);
        let told = run(self.weir.state_path("").as_path(), &["reload"]);
        assert_eq!(told.code, 0, "{}{}", told.out, told.err);
        told
    }

    /// The threads that speak with an engine, and that of fleet.json.
    fn threads(&self) -> Vec<String> {
        let all = fs::read_dir(format!("/proc/{}/task", self.weir.pid())).expect("them");
        let name = |thread: std::io::Result<fs::DirEntry>| {
            fs::read_to_string(thread.ok()?.path().join("comm")).ok()
        };
        let names = all.filter_map(name).map(|name| name.trim().to_owned());
        let mut names: Vec<String> = names
            .filter(|name| name.starts_with("weir-fleet") || name == "weir-counts")
            .collect();
        names.sort();
        names
    }

    #[track_caller]
    fn wait_for_threads(&self, expected: &[&str]) {
        wait_until("the threads of the fleet", || self.threads() == expected);
    }
}

#[track_caller]
fn write(file: &Path, lines: &[(String, String)]) {
    let line = |(name, value): &(String, String)| format!("{name}={value}\n");
    fs::write(file, lines.iter().map(line).collect::<String>()).expect("writes");
}

fn with(mut settings: Vec<(String, String)>, name: &str, value: &str) -> Vec<(String, String)> {
    settings.retain(|(held, _)| held != name);
    settings.push((name.to_owned(), value.to_owned()));
    settings
}

const ALL: [&str; 4] = [
    "weir-counts",
    "weir-fleet",
    "weir-fleet-file",
    "weir-fleet-read",
];

/// RELOAD-2: a reload takes an instance into a fleet, changes what it shares and how often, has it
/// use another engine, and takes it out again. Every ban that it holds goes with it, those of the
/// time between, too; each time only the threads that are needed are there.
#[test]
#[ignore = "needs redis-server"]
fn a_fleet_comes_changes_and_goes_with_a_reload() {
    let application = Application::ok();
    let (first, second) = (Engine::start(), Engine::start());
    let state = state_dir();
    let in_first = with(settings(&first, "edge-1"), "WAF_FLEET_NAME", "weir");
    let in_second = with(in_first.clone(), "WAF_FLEET", &second.place());
    let off = with(in_first.clone(), "WAF_FLEET", "off");
    let one = Reloading::start(&application, &state, &off);
    let there = start(&application, &first, "edge-2");
    let key = ("WAF_FLEET_KEY_FILE", first.key_file().display().to_string());
    let elsewhere = with(settings(&second, "edge-3"), key.0, &key.1);
    let elsewhere = start_at(&application, &state_dir(), &elsewhere);
    one.wait_for_threads(&[]);
    one.weir.ban("client", "203.0.113.1", "1h");
    assert!(
        run(one.weir.state_path("").as_path(), &["fleet"])
            .err
            .contains("of no fleet")
    );

    let told = one.take(&in_first);
    assert!(
        told.out.contains("WAF_FLEET off -> valkey://"),
        "{}",
        told.out
    );
    there.wait_until_refused("203.0.113.1");
    wait_in_step(&one.weir, 2);
    one.wait_for_threads(&ALL);
    there.ban("client", "198.51.100.2", "1h");
    one.weir.wait_until_refused("198.51.100.2");

    // What is shared, and how often: bans alone need no thread that counts.
    one.take(&with(in_first.clone(), "WAF_FLEET_SHARE", "bans"));
    one.wait_for_threads(&ALL[1..]);
    wait_in_step(&one.weir, 2);
    let more = with(in_first.clone(), "WAF_FLEET_INTERVAL", "20ms");
    one.take(&with(more, "WAF_FLEET_RATE", "100"));
    one.wait_for_threads(&ALL);
    wait_in_step(&one.weir, 2);
    // A fault of its files is told, and nothing is changed.
    write(&one.file, &with(in_first.clone(), key.0, "/nowhere/key"));
    let refused = run(one.weir.state_path("").as_path(), &["reload"]);
    assert_eq!(refused.code, 78, "{}{}", refused.out, refused.err);
    assert!(
        refused.err.contains("WAF_FLEET_KEY_FILE /nowhere/key"),
        "{}",
        refused.err
    );
    assert_eq!(fleet(&one.weir)["state"], "live");

    // Another engine: it gets all that the instance has, and the first one nothing more.
    one.take(&in_second);
    for client in ["203.0.113.1", "198.51.100.2"] {
        elsewhere.wait_until_refused(client);
    }
    wait_in_step(&one.weir, 2);
    one.wait_for_threads(&ALL);
    let lifted = one
        .weir
        .admin("DELETE", "/_waf/bans/203.0.113.1", None)
        .expect(200);
    assert!(lifted.json()["fleet"]["pending"].is_array());
    elsewhere.wait_until_served("203.0.113.1");
    there.get("/", "203.0.113.1").expect(429);
    wait_until("it has left", || {
        fleet(&there)["instances"].as_array().map(Vec::len) == Some(1)
    });

    one.take(&off);
    one.wait_for_threads(&[]);
    assert!(
        run(one.weir.state_path("").as_path(), &["fleet"])
            .err
            .contains("of no fleet")
    );
    one.weir.get("/", "198.51.100.2").expect(429);
    one.weir.ban("client", "100.67.0.3", "1h");

    // Again, by a signal: what happened meanwhile goes out, and the lift is not forgotten.
    write(&one.file, &in_first);
    one.weir.signal("HUP");
    for (weir, client) in [(&there, "100.67.0.3"), (&one.weir, "198.51.100.2")] {
        weir.wait_until_refused(client);
    }
    there.wait_until_served("203.0.113.1");
    wait_in_step(&one.weir, 2);
    one.wait_for_threads(&ALL);
}

/// RELOAD-2, FLEET-17: what is edited while an instance is in no fleet, between two reloads, is an
/// edit when it is back: what was taken out and changed is so at the others, too.
#[test]
#[ignore = "needs redis-server"]
fn an_edit_between_two_reloads_holds_at_both() {
    let (application, engine) = (Application::ok(), Engine::start());
    let in_fleet = settings(&engine, "edge-1");
    let one = Reloading::start(&application, &state_dir(), &in_fleet);
    let other = start(&application, &engine, "edge-2");
    wait_in_step(&one.weir, 2);
    for netblock in ["203.0.113.0/24", "198.51.100.0/24", "198.18.0.0/24"] {
        other.ban("netblock", netblock, "1h");
    }
    let mut file = (one.weir).wait_for_bans("all of them", |bans| bans.len() == 3);
    wait_in_step(&one.weir, 2);
    one.take(&with(in_fleet.clone(), "WAF_FLEET", "off"));
    one.wait_for_threads(&[]);
    let bans = file["bans"].as_array_mut().expect("a list");
    bans.retain(|ban| ban["netblock"] != "203.0.113.0/24");
    let changed = bans
        .iter_mut()
        .find(|ban| ban["netblock"] == "198.51.100.0/24");
    changed.expect("it")["reason"] = json!("looked into");
    fs::write(one.weir.state_path("bans.json"), pretty(&file)).expect("writes");
    let is_edited = |bans: &[Value]| {
        let of = |netblock: &str| bans.iter().find(|ban| ban["netblock"] == netblock);
        let changed = of("198.51.100.0/24").map(|ban| ban["reason"].clone());
        bans.len() == 2 && changed == Some(json!("looked into")) && of("198.18.0.0/24").is_some()
    };
    wait_for_bans(&one.weir, "the edit", is_edited);
    one.take(&in_fleet);
    wait_in_step(&one.weir, 2);
    for weir in [&other, &one.weir] {
        wait_for_bans(weir, "the edit in the fleet", is_edited);
    }
}

/// RELOAD-2, FLEET-25: the key of the fleet is read anew with a reload: one instance after the
/// other takes another key, by way of both, and none loses sight of the other for good.
#[test]
#[ignore = "needs redis-server"]
fn a_key_is_changed_by_reloads() {
    let (application, engine) = (Application::ok(), Engine::start());
    let (old, new) = (
        "0123456789abcdef0123456789abcdef",
        "another-key-another-key-another-key",
    );
    let both = ["edge-1", "edge-2"].map(|name| {
        let key = engine.write_key(name, old).display().to_string();
        let settings = with(settings(&engine, name), "WAF_FLEET_KEY_FILE", &key);
        Reloading::start(&application, &state_dir(), &settings)
    });
    wait_in_step(&both[0].weir, 2);
    for key in [format!("{new}\n{old}"), new.to_owned()] {
        for (name, one) in ["edge-1", "edge-2"].into_iter().zip(&both) {
            engine.write_key(name, &key);
            one.weir.control("POST", "/v1/reload", None).expect(200);
        }
        wait_in_step(&both[0].weir, 2);
        wait_in_step(&both[1].weir, 2);
    }
    both[0].weir.ban("client", "203.0.113.7", "1h");
    both[1].weir.wait_until_refused("203.0.113.7");
}

/// FLEET-23: of two live instances of one name the second takes another, says so, and keeps its
/// bans and that name over a restart; the first keeps its own. A restart of either, also after a
/// crash, takes no other name.
#[test]
#[ignore = "needs redis-server"]
fn the_second_of_a_name_takes_another() {
    let (application, engine) = (Application::ok(), Engine::start());
    let states = [state_dir(), state_dir()];
    let settings = settings(&engine, "edge-1");
    let name = |weir: &Weir| fleet(weir)["instance"].clone();
    let mut first = start_at(&application, &states[0], &settings);
    wait_in_step(&first, 1);
    // Two beats: the second one says since when the name is its own. Of two that begin in one
    // moment either may be the second.
    std::thread::sleep(Duration::from_secs(2));
    let mut second = start_at(&application, &states[1], &settings);
    second.ban("client", "203.0.113.7", "1h");
    wait_until("another name", || name(&second) == "edge-1-2");
    wait_in_step(&first, 2);
    wait_in_step(&second, 2);
    assert_eq!(name(&first), "edge-1");
    second.wait_for_process_log(&[
        "another instance of the fleet is called edge-1: this one is edge-1-2",
    ]);
    let alerts = second.control("GET", "/v1/alerts", None).json();
    let mut alerts = alerts["alerts"].as_array().expect("a list").iter();
    assert!(alerts.any(|alert| alert["kind"] == "fleet" && alert["what"] == "name"));
    first.wait_until_refused("203.0.113.7");
    let ban = second.ban("client", "203.0.113.8", "1h");
    in_force_at(&ban, &["edge-1-2", "edge-1"], || {
        is_refused(&first, "203.0.113.8")
    });
    assert_eq!(first.bans().len(), 2);
    // After a crash the beat of the boot before stands still: nobody has the name.
    first.kill();
    drop(first);
    first = start_at(&application, &states[0], &settings);
    second.stop();
    drop(second);
    second = start_at(&application, &states[1], &settings);
    wait_in_step(&second, 2);
    wait_in_step(&first, 2);
    first.ban("client", "203.0.113.9", "1h");
    second.wait_until_refused("203.0.113.9");
    assert_eq!(
        (name(&first), name(&second)),
        (json!("edge-1"), json!("edge-1-2"))
    );
    let is_sure = |weir: &Weir| {
        let words = "another instance of the fleet is called";
        !weir.process_log_text().contains(words)
    };
    assert!(is_sure(&first) && is_sure(&second));
    second.wait_for_process_log(&["this instance goes on as edge-1-2"]);
}

/// FLEET-6: an instance that observes for a while, and then enforces again, tells the others of
/// nothing twice.
#[test]
#[ignore = "needs redis-server"]
fn a_change_of_mode_counts_nothing_twice() {
    const CLIENT: &str = "203.0.113.7";
    let (application, engine) = (Application::ok(), Engine::start());
    let limited = |name: &str| {
        let settings = with(settings(&engine, name), ONE_PER_HOUR.0, "off");
        let settings = with(settings, "WAF_RATE_LIMIT_PER_DAY", "300");
        with(settings, "WAF_FLEET_NAME", "weir")
    };
    let enforces = limited("edge-1");
    let observes = with(enforces.clone(), "WAF_MODE", "observe");
    let one = Reloading::start(&application, &state_dir(), &enforces);
    let other = start_at(&application, &state_dir(), &limited("edge-2"));
    wait_in_step(&one.weir, 2);
    wait_in_step(&other, 2);
    // Requests that it knows of, and how many of them others have counted: none.
    let known = |weir: &Weir| {
        let path = format!("/v1/explain?address={CLIENT}&path=%2F");
        let explained = weir.control("GET", &path, None).expect(200).json();
        let used = explained["requests"]["day"]["used"].as_u64();
        let elsewhere = explained["elsewhere"]["requests"]["day"].as_u64();
        (used.unwrap_or_default(), elsewhere.unwrap_or_default())
    };
    let told = || fleet(&one.weir)["counts"]["sent"].as_u64();
    let mut counted = 100;
    for _ in 0..counted {
        one.weir.get("/", CLIENT).expect(200);
    }
    wait_until("what it has counted, at the engine", || told() > Some(0));
    for settings in [&observes, &enforces] {
        one.take(settings);
        let before = told();
        wait_until("what it counts in this mode, at the engine", || {
            one.weir.get("/", CLIENT).expect(200);
            counted += 1;
            told() > before
        });
    }
    assert_eq!(known(&one.weir), (counted, 0));
}
