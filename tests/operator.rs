//! What an operator meets first, as a person types it: sentences that can be pasted, words of the
//! command line, and what a slip of the hand must not do (CONTROL-3, CONTROL-4, CONTROL-5).

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::support::application::Application;
use crate::support::command::{Ran, command, ran, run};
use crate::support::raw_client::request;
use crate::support::weir::{ONE_PER_HOUR, Weir, ms, state_dir};
use crate::support::{wait_for, wait_until};

/// The line that begins so.
#[track_caller]
fn line<'a>(ran: &'a Ran, begin: &str) -> &'a str {
    let mut lines = ran.out.lines();
    let line = lines.find(|line| line.trim_start().starts_with(begin));
    line.unwrap_or_else(|| panic!("no line {begin:?}: {}{}", ran.out, ran.err))
}

/// CONTROL-5: what is printed to be typed names the service as the caller named it; bytes are told
/// in units.
#[test]
fn an_undo_can_be_pasted() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[ONE_PER_HOUR]);
    weir.break_limit("203.0.113.7");
    let socket = weir.state_path("weir.sock");
    let elsewhere = state_dir();
    let named = [
        "explain",
        "203.0.113.7",
        "--socket",
        socket.to_str().expect("a path"),
    ];
    let explained = run(elsewhere.path(), &named);
    assert_eq!(explained.code, 1, "{}", explained.err);
    let undo = line(&explained, "undo")
        .trim_start()
        .trim_start_matches("undo")
        .trim();
    let words: Vec<&str> = undo.split(' ').collect();
    assert_eq!(words.first(), Some(&"weir"), "{undo}");
    let undone = run(elsewhere.path(), &words[1..]);
    assert_eq!(undone.code, 0, "{undo}: {}", undone.err);
    assert!(weir.bans().iter().all(|ban| ban["lifted"].is_string()));
    let bytes = line(&explained, "bytes");
    assert!(bytes.contains(" B/") && bytes.contains("GiB"), "{bytes}");
}

/// CONTROL-3, BAN-3: a ban by hand needs a netblock alone; a second one makes it longer instead of
/// a second ban, and a shorter one changes nothing.
#[test]
fn a_ban_by_hand_has_defaults_and_is_extended() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[("WAF_BAN_FIRST", "7m")]);
    let state = weir.state_path("");
    let add = |more: &[&str]| {
        run(
            &state,
            &[&["bans", "add", "198.51.100.0/24"], more].concat(),
        )
    };
    let first = add(&[]);
    assert_eq!(first.code, 0, "{}", first.err);
    assert!(
        first.out.starts_with("banned 198.51.100.0/24 ("),
        "{}",
        first.out
    );
    let held = weir.bans();
    assert_eq!(
        (held.len(), &held[0]["reason"]),
        (1, &Value::from("by hand"))
    );
    let longer = add(&["--for", "2h"]);
    assert!(
        longer.out.starts_with("extended 198.51.100.0/24 ("),
        "{}{}",
        longer.out,
        longer.err
    );
    let after = weir.bans();
    assert_eq!(after.len(), 1, "{after:?}");
    assert_eq!(after[0]["ban_started"], held[0]["ban_started"]);
    assert_ne!(after[0]["ban_expires"], held[0]["ban_expires"]);
    let shorter = add(&["--for", "1m"]);
    assert!(
        shorter.out.starts_with("already banned for longer: "),
        "{}",
        shorter.out
    );
    assert_eq!(weir.bans(), after);
    add(&["--for", "permanent", "--reason", "enough"]);
    let last = weir.bans();
    assert_eq!(
        (last.len(), &last[0]["ban_expires"], &last[0]["reason"]),
        (1, &Value::from("permanent"), &Value::from("enough"))
    );
    // What has no end is told without one.
    let why = run(&state, &["explain", "198.51.100.7"]).out;
    assert!(
        why.starts_with("REFUSED now: banned, the ban is permanent\n"),
        "{why}"
    );
    assert!(why.contains("198.51.100.0/24 permanent: enough"), "{why}");
    let client = run(&state, &["client", "198.51.100.7"]).out;
    assert!(!client.contains("until permanent"), "{client}");
    // Too wide is told in words of the command line.
    let wide = run(&state, &["bans", "add", "0.0.0.0/0"]);
    assert_eq!(wide.code, 2);
    let told = "weir: netblock: 0.0.0.0/0 covers every address: --force if that is meant";
    assert_eq!(wide.err.trim_end(), told);
    // The list takes its flags with and without its name.
    let covering = run(&state, &["bans", "--covering", "198.51.100.7", "--all"]);
    assert!(
        covering.out.contains("198.51.100.0/24"),
        "{}{}",
        covering.out,
        covering.err
    );
    let lifted = run(&state, &["bans", "lift", "198.51.100.7"]);
    assert_eq!(lifted.out, "lifted 198.51.100.0/24 (permanent)\n");
}

/// CONTROL-9: a check takes what an import takes, without a service; a dry run of the import asks
/// the service and bans nobody.
#[test]
fn a_list_is_judged_before_it_bans() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[]);
    let state = weir.state_path("");
    let file = state.join("list.txt");
    let name = file.to_str().expect("a path");
    fs::write(&file, "192.0.2.0/24\nbad\n0.0.0.0/0\n").expect("writes");
    let nobody = state_dir();
    let checked = run(nobody.path(), &["bans", "check", name]);
    assert_eq!((checked.code, checked.out.as_str()), (1, ""));
    let told: Vec<&str> = checked.err.lines().collect();
    assert!(told[0].contains("line 2: \"bad\" is not"), "{told:?}");
    assert!(
        told[1].ends_with("line 3: 0.0.0.0/0 covers every address: --force if that is meant"),
        "{told:?}"
    );
    let terms = ["--for", "2h", "--reason", "a list", "--dry-run"];
    let dry = || run(&state, &[&["bans", "import", name], &terms[..]].concat());
    assert_eq!(dry().out, "nothing is imported: 2 faults\n");
    fs::write(&file, "192.0.2.0/24\n198.51.100.9\n").expect("writes");
    let good = dry();
    assert_eq!(
        (good.code, good.out.as_str()),
        (0, "no faults: 2 bans would be imported\n"),
        "{}",
        good.err
    );
    assert!(weir.bans().is_empty());
    let checked = run(nobody.path(), &["bans", "check", name]);
    assert_eq!(
        (checked.code, checked.out),
        (0, format!("{name}: 2 bans, no faults\n"))
    );
}

/// CONTROL-9: a list that is taken in every night makes no second ban of a netblock: the one that
/// stands is made longer, and none shorter; so a list has room as often as it comes.
#[test]
fn a_list_of_every_night_bans_once() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[("WAF_MAX_BANS", "4")]);
    let state = weir.state_path("");
    let file = state.join("list.txt");
    fs::write(&file, "192.0.2.0/24\n198.51.100.9\n203.0.113.0/24\n").expect("writes");
    let name = file.to_str().expect("a path");
    let take = |time: &str, reason: &str| {
        let taken = run(
            &state,
            &["bans", "import", name, "--for", time, "--reason", reason],
        );
        assert_eq!(taken.code, 0, "{}", taken.err);
        taken.out
    };
    assert_eq!(take("2h", "one"), "imported 3 bans, 3 of them new\n");
    let held = weir.bans();
    assert_eq!(held.len(), 3, "{held:?}");
    assert_eq!(take("1h", "two"), "imported 3 bans, 0 of them new\n");
    assert_eq!(weir.bans(), held);
    assert_eq!(take("3h", "three"), "imported 3 bans, 0 of them new\n");
    let longer = weir.bans();
    assert_eq!(longer.len(), 3, "{longer:?}");
    for (before, after) in held.iter().zip(&longer) {
        assert_eq!(after["ban_started"], before["ban_started"]);
        assert!(ms(&after["ban_expires"]) > ms(&before["ban_expires"]));
        assert_eq!(after["reason"], "three");
    }
}

/// RULE-1, CONTROL-8: a list that covers everybody is refused where nothing says that it is meant,
/// typed and in rules.json alike.
#[test]
fn a_list_of_everybody_is_asked_about() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[]);
    let state = weir.state_path("");
    let told = "0.0.0.0/0 covers every address";
    let denied = run(&state, &["deny", "0.0.0.0/0"]);
    assert_eq!(denied.code, 2, "{}", denied.out);
    assert!(
        denied.err.contains(told) && denied.err.contains("--force"),
        "{}",
        denied.err
    );
    let rules = state.join("rules.json");
    assert!(!rules.exists());
    fs::write(&rules, r#"{"version":1,"deny":[{"netblock":"0.0.0.0/0"}]}"#).expect("writes");
    let mut checked = command(&state, &["check"]);
    let checked = checked.env("WAF_UPSTREAM", "http://127.0.0.1:9").output();
    let checked = ran(checked.expect("runs"));
    let told = "\"force\": true if that is meant";
    assert!(checked.err.contains(told), "{}", checked.err);
    // To its end, where it says what to do.
    wait_until("the alert", || {
        let alerts = run(&state, &["alerts"]).out;
        let alert = alerts.lines().find(|line| line.contains("file_error"));
        alert.is_some_and(|alert| alert.contains(told))
    });
    weir.get("/a", "203.0.113.7").expect(200);
    fs::remove_file(&rules).expect("removes");
    let denied = run(&state, &["deny", "0.0.0.0/0", "--force"]);
    assert_eq!(denied.code, 0, "{}", denied.err);
    weir.get("/a", "203.0.113.7").expect(429);
}

/// CONTROL-4: a settings file that is named another way is the same file, and no difference.
#[test]
fn a_settings_file_by_another_name_is_the_same() {
    let application = Application::ok();
    let state = state_dir();
    let file = state.path().join("weir.env");
    fs::write(&file, "WAF_UPSTREAM=http://127.0.0.1:9\n").expect("writes");
    let name = file.to_str().expect("a path");
    let _weir = Weir::start_at(
        application.address(),
        &state,
        &[("WAF_SETTINGS_FILE", name)],
    );
    let differs = |file: &str| {
        let mut check = command(state.path(), &["--settings", file, "check"]);
        let checked = ran(check.current_dir(state.path()).output().expect("runs"));
        checked.err.contains("WAF_SETTINGS_FILE is ")
    };
    fs::copy(&file, state.path().join("other.env")).expect("copies");
    assert!(!differs("weir.env") && differs("other.env"));
}

/// CONTROL-3: what was typed wrong is told in the words that were typed, with what is expected.
#[test]
fn a_slip_is_told_as_it_was_typed() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[]);
    let state = weir.state_path("");
    let netblock = "expected an address or a prefix such as 192.0.2.0/24 or 2001:db8::/32";
    let time = "expected a duration such as 500ms, 90s, 1h30m or 7d";
    let client = "expected an IPv4 address, an IPv6 address or an IPv6 /64";
    for (words, told) in [
        (
            "bans add 300.1.2.3",
            format!("\"300.1.2.3\" is not a netblock: {netblock}"),
        ),
        (
            "deny 192.0.2.0/33",
            format!("\"192.0.2.0/33\" is not a netblock: {netblock}"),
        ),
        (
            "bans add 192.0.2.0/24 --for 5",
            format!("--for: \"5\" is not a duration: {time}, or permanent"),
        ),
        (
            "bans add 192.0.2.0/24 --for 0s",
            format!("--for: \"0s\" is no time at all: {time}, or permanent"),
        ),
        (
            "allow 192.0.2.1 --for day",
            format!("--for: \"day\" is not a duration: {time}"),
        ),
        (
            "explain host.example",
            format!("\"host.example\" is not a client: {client}"),
        ),
        (
            "bans --covering x",
            format!("\"x\" is not a client: {client}"),
        ),
    ] {
        let words: Vec<&str> = words.split(' ').collect();
        let wrong = run(&state, &words);
        assert_eq!(
            (wrong.code, wrong.err),
            (2, format!("weir: {told}\n")),
            "{words:?}"
        );
    }
    // A client as weir lists it.
    weir.get("/a", "2001:db8:5:1::7").expect(200);
    assert_eq!(run(&state, &["explain", "2001:db8:5:1::/64"]).code, 0);
    assert_eq!(run(&state, &["client", "2001:db8:5:1::/64"]).code, 0);
    let nowhere = state.join("nowhere");
    let nowhere = nowhere.to_str().expect("a path");
    let wrong = run(&state, &["status", "--socket", nowhere]);
    let told =
        format!("weir: no service answers at {nowhere}: No such file or directory (os error 2)\n");
    assert_eq!((wrong.code, wrong.err), (69, told));
    let wrong = run(&state, &["--settings", nowhere, "check"]);
    let told = format!(
        "weir: --settings: {nowhere} cannot be read: No such file or directory (os error 2)\n"
    );
    assert_eq!((wrong.code, wrong.err), (78, told));
}

/// CHECK-3: in observe mode nobody was refused, and no word says so.
#[test]
fn observe_mode_says_would_refuse() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[ONE_PER_HOUR, ("WAF_MODE", "observe")]);
    for _ in 0..3 {
        weir.get("/a", "203.0.113.7").expect(200);
    }
    let status = run(&weir.state_path(""), &["status"]);
    assert!(status.out.contains("   would refuse "), "{}", status.out);
    assert!(!status.out.contains("   refused "), "{}", status.out);
    let clients = run(&weir.state_path(""), &["clients"]);
    assert!(clients.out.ends_with("1 of 1 client\n"), "{}", clients.out);
    let banned = run(&weir.state_path(""), &["bans", "add", "192.0.2.7"]);
    let told = "; made in observe mode: it never refuses)\n";
    assert!(banned.out.ends_with(told), "{}{}", banned.out, banned.err);
}

/// CONTROL-3, CHECK-3: a second ban by hand makes the first one longer in observe mode, too; in
/// enforce mode a ban that was made there holds up none that refuses.
#[test]
fn a_ban_by_hand_is_extended_in_observe_mode() {
    let application = Application::ok();
    let state = state_dir();
    let add = |weir: &Weir, time: &str| {
        let arguments = ["bans", "add", "198.51.100.0/24", "--for", time];
        run(&weir.state_path(""), &arguments)
    };
    let observes = [("WAF_MODE", "observe")];
    let mut weir = Weir::start_at(application.address(), &state, &observes);
    let first = add(&weir, "1h");
    assert!(
        first.out.starts_with("banned "),
        "{}{}",
        first.out,
        first.err
    );
    let longer = add(&weir, "2h");
    assert!(
        longer.out.starts_with("extended "),
        "{}{}",
        longer.out,
        longer.err
    );
    let shorter = add(&weir, "1m");
    let told = "already banned for longer: ";
    assert!(
        shorter.out.starts_with(told),
        "{}{}",
        shorter.out,
        shorter.err
    );
    let held = weir.bans();
    assert_eq!((held.len(), &held[0]["observed"]), (1, &Value::from(true)));
    weir.stop();
    let weir = Weir::start_at(application.address(), &state, &[]);
    let refuses = add(&weir, "1h");
    assert!(
        refuses.out.starts_with("banned "),
        "{}{}",
        refuses.out,
        refuses.err
    );
    assert_eq!(weir.bans().len(), 2);
    let longer = add(&weir, "3h");
    assert!(
        longer.out.starts_with("extended "),
        "{}{}",
        longer.out,
        longer.err
    );
    assert_eq!(weir.bans().len(), 2);
}

/// RELOAD-1: a file that the command line names wins over the environment, and a line says so; one
/// that the environment names does not.
#[test]
fn a_named_file_wins_over_the_environment() {
    let state = state_dir();
    let file = state.path().join("weir.env");
    fs::write(&file, "WAF_UPSTREAM=http://127.0.0.1:9\nWAF_MODE=observe\n").expect("writes");
    let shown = |by_flag: bool| {
        let name = file.to_str().expect("a path");
        let flag: &[&str] = if by_flag { &["--settings", name] } else { &[] };
        let mut command = command(state.path(), &[flag, &["settings", "--json"]].concat());
        command.env("WAF_MODE", "enforce");
        if !by_flag {
            command.env("WAF_SETTINGS_FILE", name);
        }
        let shown = ran(command.output().expect("runs"));
        let listed: Value = serde_json::from_str(&shown.out).expect("JSON");
        let all = listed["settings"].as_array().expect("a list").clone();
        let member = |name: &str, member: &str| {
            let one = all.iter().find(|one| one["name"] == name);
            one.expect("the setting")[member].clone()
        };
        [
            member("WAF_MODE", "value"),
            member("WAF_SETTINGS_FILE", "origin"),
        ]
    };
    assert_eq!(shown(true), ["observe", "command line"]);
    assert_eq!(shown(false), ["enforce", "environment"]);
    let mut checked = command(
        state.path(),
        &["--settings", file.to_str().expect("a path"), "check"],
    );
    let checked = ran(checked.env("WAF_MODE", "enforce").output().expect("runs"));
    assert!(
        checked
            .err
            .contains("line 2, which counts, and in the environment"),
        "{}",
        checked.err
    );
}

/// CONTROL-4: what a start tells of open files, a check tells, too.
#[test]
fn a_check_tells_of_few_open_files() {
    let state = state_dir();
    let mut check = Command::new("/bin/sh");
    let check = check
        .args(["-c", "ulimit -n 256; exec \"$0\" check"])
        .arg(env!("CARGO_BIN_EXE_weir"))
        .env_clear()
        .env("WAF_STATE_DIR", state.path())
        .env("WAF_LISTEN", "127.0.0.1:0")
        .env("WAF_UPSTREAM", "http://127.0.0.1:9");
    let checked = ran(check.output().expect("runs"));
    assert!(
        checked
            .err
            .contains("need more open files than the 256 that are allowed"),
        "{}",
        checked.err
    );
}

/// SETTING-1: a misspelt name is met by the setting that has its words, or by none.
#[test]
fn the_setting_that_was_meant_has_its_words() {
    let state = state_dir();
    let told = |name: &str| {
        let mut check = command(state.path(), &["check"]);
        ran(check.env(name, "3").output().expect("runs")).err
    };
    let rate = told("WAF_RATELIMIT");
    assert!(rate.contains("did you mean WAF_RATE_LIMIT_"), "{rate}");
    let nothing = told("WAF_ZZZZZZZZ");
    assert!(
        nothing.contains("WAF_ZZZZZZZZ: unknown setting, ignored\n"),
        "{nothing}"
    );
}

/// LOG-5: where standard error is systemd's journal, each line has its priority.
#[test]
fn the_journal_has_priorities() {
    let application = Application::ok();
    let state = state_dir();
    let path = state.path().join("journal");
    let journal = File::create(&path).expect("a file");
    let stream = journal.metadata().expect("its place");
    let mut service = Command::new(env!("CARGO_BIN_EXE_weir"))
        .env_clear()
        .env(
            "JOURNAL_STREAM",
            format!("{}:{}", stream.dev(), stream.ino()),
        )
        .env("WAF_STATE_DIR", state.path())
        .env("WAF_LISTEN", "127.0.0.1:0")
        .env("WAF_LOOKUP_SOURCE", "off")
        .env("WAF_MODE", "observe")
        .env("WAF_NO_SUCH", "1")
        .env("WAF_UPSTREAM", format!("http://{}", application.address()))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(journal)
        .spawn()
        .expect("the binary runs");
    let text = wait_for("lines of the journal", || {
        let text = fs::read_to_string(&path).ok()?;
        (text.contains("<6>{") && text.contains("<4>{")).then_some(text)
    });
    service.kill().expect("it runs");
    service.wait().expect("it ends");
    assert!(text.lines().all(|line| line.starts_with('<')), "{text}");
    let warning = text.lines().find(|line| line.contains("WAF_NO_SUCH"));
    assert!(
        warning.is_some_and(|line| line.starts_with("<4>{")),
        "{text}"
    );
}

/// CONTROL-3: a page for each command, with what an operator looks for in the first of them.
#[test]
fn the_manual_has_a_page_for_each_command() {
    let state = state_dir();
    let dir = state.path().join("man");
    fs::create_dir(&dir).expect("a directory");
    let written = run(
        state.path(),
        &["man", "--dir", dir.to_str().expect("a path")],
    );
    assert_eq!((written.code, written.err.as_str()), (0, ""));
    let page = |name: &str| fs::read_to_string(dir.join(name)).expect(name);
    let first = page("weir.1");
    for heading in ["EXAMPLES", "ENVIRONMENT", "FILES", "EXIT STATUS"] {
        assert!(first.contains(&format!(".SH \"{heading}\"")), "{heading}");
    }
    for setting in weir_shared::settings::table()
        .iter()
        .flat_map(|theme| &theme.rows)
    {
        assert!(
            first.contains(&setting.name.replace('-', "\\-")),
            "{}",
            setting.name
        );
    }
    // What a page names is there.
    for entry in fs::read_dir(&dir).expect("a directory") {
        let text = fs::read_to_string(entry.expect("an entry").path()).expect("a page");
        let named = text.lines().filter_map(|line| line.strip_suffix("(1)"));
        for name in named.filter(|name| name.starts_with("weir")) {
            page(&format!("{}.1", name.replace('\\', "")));
        }
    }
    assert!(page("weir-bans-import.1").contains("\\-\\-dry\\-run"));
    assert_eq!(
        run(state.path(), &["man", "bans", "import"]).out,
        page("weir-bans-import.1")
    );
    assert_eq!(run(state.path(), &["man", "nothing"]).code, 2);
}

/// CLIENT-7: where nearly all requests are of one client, as behind the forwarding of a container
/// engine, the status says so.
#[test]
fn one_client_that_is_everybody_is_told() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[("WAF_RATE_LIMIT_PER_MINUTE", "100000")]);
    let warned = || run(&weir.state_path(""), &["status"]).out;
    for _ in 0..999 {
        weir.get("/a", "172.17.0.1");
    }
    assert!(
        !warned().contains("of the last hour are of"),
        "{}",
        warned()
    );
    weir.get("/a", "172.17.0.1");
    let told = "warning  100 % of the requests of the last hour are of 172.17.0.1: ";
    wait_for("the warning", || warned().contains(told).then_some(()));
    for number in 0..60 {
        weir.get("/a", &format!("203.0.113.{number}"));
    }
    assert!(
        !warned().contains("of the last hour are of"),
        "{}",
        warned()
    );
}

/// CONTROL-2: with the token for reading the admin listener tells, and changes nothing.
#[test]
fn a_team_may_look_and_change_nothing() {
    let application = Application::ok();
    let state = state_dir();
    let file = state.path().join("read-token");
    fs::write(&file, "a-token-for-the-team").expect("writes");
    let name = file.to_str().expect("a path");
    let listen = ("WAF_ADMIN_LISTEN", "127.0.0.1:0");
    let settings = [listen, ("WAF_ADMIN_READ_TOKEN_FILE", name)];
    let weir = Weir::start_at(application.address(), &state, &settings);
    let log = weir.wait_for_process_log(&["listening"]);
    let address = log["admin"].as_str().expect("an address");
    let elsewhere = state_dir();
    let asked = |arguments: &[&str]| {
        let all = [arguments, &["--admin", address]].concat();
        let mut command = command(elsewhere.path(), &all);
        let command = command.env("WAF_ADMIN_READ_TOKEN_FILE", name);
        ran(command.output().expect("runs"))
    };
    let status = asked(&["status"]);
    assert_eq!(status.code, 0, "{}", status.err);
    let refused = asked(&["bans", "add", "192.0.2.0/24", "--for", "1h"]);
    assert_eq!(refused.code, 1, "{}", refused.out);
    let told = "weir: this token may read and change nothing";
    assert!(refused.err.starts_with(told), "{}", refused.err);
    assert!(weir.bans().is_empty());
    assert_ne!(asked(&["reload"]).code, 0);
    // The public port knows it not.
    let bearer = ("Authorization", "Bearer a-token-for-the-team");
    weir.send(&request("GET", "/_waf/bans", &[bearer], None))
        .expect(401);
}

/// CONTROL-11: what was counted a minute is told, and the next process has it, too.
#[test]
fn the_history_outlives_a_restart() {
    let application = Application::ok();
    let state = state_dir();
    let mut weir = Weir::start_at(application.address(), &state, &[ONE_PER_HOUR]);
    weir.break_limit("203.0.113.7");
    let sum = |weir: &Weir, name: &str| {
        let told = weir.control("GET", "/v1/history", None).expect(200).json();
        let counts = told[name].as_array().expect("a list").clone();
        counts.iter().filter_map(Value::as_u64).sum::<u64>()
    };
    wait_for("what was counted", || {
        (sum(&weir, "requests") >= 2 && sum(&weir, "bans_made") == 1).then_some(())
    });
    let one = weir
        .control("GET", "/v1/history?minutes=1", None)
        .expect(200)
        .json();
    assert_eq!(one["times"].as_array().map(Vec::len), Some(1));
    weir.control("GET", "/v1/history?minutes=0", None)
        .expect(400);
    weir.stop();
    let weir = Weir::start_at(application.address(), &state, &[ONE_PER_HOUR]);
    wait_for("what was counted before", || {
        (sum(&weir, "requests") >= 2).then_some(())
    });
    assert!(weir.state_path("history.json").is_file());
}
