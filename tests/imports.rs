//! `weir bans export` and `weir bans import` (CONTROL-9): what one service exports another holds
//! once it took it in; many bans are one request and one write, judged whole.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::support::application::Application;
use crate::support::command::{Ran, command, fed, ran, run};
use crate::support::wait_until;
use crate::support::weir::{ONE_PER_HOUR, Weir, from_now, state_dir};

/// A command that reads this from standard input.
#[track_caller]
fn run_with(weir: &Weir, arguments: &[&str], input: &[u8]) -> Ran {
    ran(fed(&mut command(&weir.state_path(""), arguments), input))
}

/// Every ban that a service holds.
#[track_caller]
fn ledger(weir: &Weir) -> Vec<Value> {
    let exported = run(&weir.state_path(""), &["bans", "export", "--all"]);
    assert_eq!(exported.code, 0, "{}", exported.err);
    let exported: Value = serde_json::from_str(&exported.out).expect("JSON");
    exported["bans"].as_array().expect("a list").clone()
}

/// CONTROL-3: a command whose output cannot be written has failed, and says so.
#[test]
fn an_export_that_is_not_written_has_failed() {
    let state = state_dir();
    for arguments in [&["bans", "export"][..], &["crawlers"], &["man"]] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full");
        let mut command = command(state.path(), arguments);
        command.stdout(full.expect("the device"));
        let ran = ran(command.output().expect("the binary runs"));
        assert_eq!(ran.code, 1, "{arguments:?}: {}", ran.err);
        let told = "weir: standard output cannot be written: No space left on device";
        assert!(ran.err.contains(told), "{arguments:?}: {}", ran.err);
    }
}

/// CONTROL-9: of a list that is cut off on its way nothing is imported, and whoever sent it is
/// told.
#[test]
fn an_import_that_is_cut_off_is_refused() {
    let weir = Weir::start(&Application::ok(), &[]);
    for rest in [
        "Content-Length: 500\r\n\r\n192.0.2.1\n",
        "Transfer-Encoding: chunked\r\n\r\na\r\n192.0.2.1\n\r\nzz\r\n",
    ] {
        let path = weir.state_path("weir.sock");
        let mut socket = UnixStream::connect(path).expect("the socket");
        let head = "POST /v1/bans/import?duration=1h&reason=x HTTP/1.1\r\nHost: localhost\r\n";
        (socket.write_all(format!("{head}{rest}").as_bytes())).expect("it is taken");
        socket.shutdown(Shutdown::Write).expect("it ends");
        let mut answer = String::new();
        socket.read_to_string(&mut answer).expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
        assert!(answer.contains("the body ended early"), "{answer}");
    }
    assert_eq!(ledger(&weir), Vec::<Value>::new());
}

/// CONTROL-9: `export | import -` into a fresh service makes the same ledger, with ends, reasons,
/// causes, notes, `observed` and members that nobody knows, by one write; once more changes
/// nothing.
#[test]
fn what_is_exported_is_imported() {
    let application = Application::ok();
    let bans = json!([
        {"netblock": "192.0.2.0/24", "ban_started": from_now(-900), "ban_expires": from_now(-300), "cause": "trap"},
        {"netblock": "192.0.2.0/24", "ban_started": from_now(-200), "ban_expires": from_now(9000), "cause": "jail",
         "reason": "a jail", "notes": {"rule": {"name": "login", "kind": "jail", "window": "minute"}}},
        {"netblock": "192.0.3.0/24", "ban_started": from_now(-100), "ban_expires": "permanent", "observed": true,
         "cause": "rate_limit", "client": "192.0.3.9", "ticket": {"id": 7}},
        {"netblock": "2001:db8::/48", "ban_started": from_now(-50), "ban_expires": from_now(9000),
         "lifted": from_now(-10), "cause": "admin", "reason": "é"},
    ]);
    let from = Weir::start_with_bans(&application, &bans, &[ONE_PER_HOUR]);
    from.break_limit("203.0.113.7");
    from.ban("client", "198.51.100.7", "2h");
    let exported = run(&from.state_path(""), &["bans", "export", "--all"]).out;
    let held = ledger(&from);
    assert_eq!(held.len(), 6);

    let into = Weir::start(&application, &[]);
    let writes = into.writes("bans.json", "ok");
    let imported = run_with(&into, &["bans", "import", "-"], exported.as_bytes());
    assert_eq!(
        (imported.code, imported.out.as_str()),
        (0, "imported 6 bans, 6 of them new\n"),
        "{}",
        imported.err
    );
    assert_eq!(into.writes("bans.json", "ok"), writes + 1.0);
    assert_eq!(ledger(&into), held);
    into.get("/a", "203.0.113.9").expect(429);
    into.get("/a", "192.0.2.9").expect(429);
    // Observed ones and lifted ones refuse nobody.
    into.get("/a", "192.0.3.9").expect(200);
    into.get("/a", "2001:db8::9").expect(200);
    let again = run_with(&into, &["bans", "import", "-"], exported.as_bytes());
    assert_eq!(
        again.out, "imported 6 bans, 0 of them new\n",
        "{}",
        again.err
    );
    assert_eq!(ledger(&into), held);
    let active = run(&from.state_path(""), &["bans", "export"]).out;
    let active: Value = serde_json::from_str(&active).expect("JSON");
    assert_eq!(active["bans"].as_array().map(Vec::len), Some(4));
    let mut restarted = into;
    restarted.stop();
    let read = restarted.state_file("bans.json").expect("bans.json");
    assert_eq!(read["bans"].as_array().expect("a list"), &held);
}

/// CONTROL-9: with one fault nothing is taken, and each is named with its line or its pointer; what
/// does not go together is a wrong call.
#[test]
fn an_import_is_judged_whole() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[("WAF_MAX_BANS", "20")]);
    let terms = ["--for", "2h", "--reason", "a list"];
    let ban =
        |netblock: &str| format!("{{\"netblock\":\"{netblock}\",\"ban_expires\":\"permanent\"}}");
    let document = |bans: &[String]| format!("{{\"version\":1,\n\"bans\":[{}]}}", bans.join(",\n"));
    let list = |input: &str| {
        run_with(
            &weir,
            &[&["bans", "import", "-"], &terms[..]].concat(),
            input.as_bytes(),
        )
    };
    let file = |input: &str| run_with(&weir, &["bans", "import", "-"], input.as_bytes());
    let faulty = list("# ours\n192.0.2.1\nnowhere\n0.0.0.0/0\n127.0.0.1\n\n::ffff:1.2.3.4\n");
    assert_eq!(
        (faulty.code, faulty.out.as_str()),
        (1, "nothing is imported: 4 faults\n")
    );
    for told in [
        "weir: -: line 3: \"nowhere\" is not a netblock",
        "weir: -: line 4: 0.0.0.0/0 covers every address: --force if that is meant",
        "weir: -: line 5: 127.0.0.1/32 covers 127.0.0.0/8 of WAF_TRUSTED_PROXIES",
        "weir: -: line 7: \"::ffff:1.2.3.4\" is IPv4-mapped",
    ] {
        assert!(faulty.err.contains(told), "{told}: {}", faulty.err);
    }
    let faulty = file(&document(&[
        ban("192.0.2.0/24"),
        ban("::/0"),
        ban("10.0.0.0/7"),
    ]));
    assert_eq!(
        (faulty.code, faulty.out.as_str()),
        (1, "nothing is imported: 2 faults\n")
    );
    for told in [
        "/bans/1/netblock: line 3, column 18: ::/0 covers every address",
        "/bans/2/netblock: line 4, column ",
    ] {
        assert!(faulty.err.contains(told), "{told}: {}", faulty.err);
    }
    let faulty = file(&document(&[
        ban("192.0.2.0/24"),
        "{\"netblock\":7}".to_owned(),
    ]));
    assert_eq!(faulty.code, 1, "{}", faulty.err);
    assert!(faulty.err.contains("/bans/1"), "{}", faulty.err);
    assert!(faulty.err.contains("line 3, column "), "{}", faulty.err);
    let many: Vec<String> = (0..21)
        .map(|number| ban(&format!("192.0.{number}.0/24")))
        .collect();
    let full = file(&document(&many));
    assert_eq!((full.code, full.out.as_str()), (1, ""), "{}", full.err);
    assert!(full.err.contains("WAF_MAX_BANS"), "{}", full.err);
    for (arguments, input, told) in [
        (
            &["bans", "import", "-"][..],
            "192.0.2.1",
            "needs --for and --reason",
        ),
        (
            &[&["bans", "import", "-"], &terms[..]].concat(),
            "{}",
            "are for a list of netblocks",
        ),
        (
            &["bans", "import", "-", "--for", "2", "--reason", "r"],
            "192.0.2.1",
            "--for: \"2\" is not a duration",
        ),
        (
            &["bans", "import", "/nowhere"],
            "",
            "/nowhere cannot be read",
        ),
    ] {
        let wrong = run_with(&weir, arguments, input.as_bytes());
        assert_eq!(wrong.code, 2, "{arguments:?}: {}", wrong.err);
        assert!(wrong.err.contains(told), "{arguments:?}: {}", wrong.err);
    }
    assert_eq!(ledger(&weir), [Value::Null; 0], "nothing was taken");
    let forced = run_with(
        &weir,
        &["bans", "import", "-", "--force"],
        document(&[ban("8.0.0.0/7")]).as_bytes(),
    );
    assert_eq!(
        forced.out, "imported 1 ban, 1 of them new\n",
        "{}",
        forced.err
    );
    let listed = list("192.0.2.1\n192.0.2.1 ; again\n2001:db8::/32\n");
    assert_eq!(
        listed.out, "imported 2 bans, 2 of them new\n",
        "{}",
        listed.err
    );
    assert!(
        ledger(&weir)
            .iter()
            .any(|ban| ban["reason"] == "a list" && ban["cause"] == "admin")
    );
}

/// CONTROL-9, FEED-2: an import takes a list as it is published, JSON and JSON lines too; a
/// netblock that is too wide, or JSON that is cut, is told with its place, and nothing is taken.
#[test]
fn a_published_list_is_imported_as_it_is() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[]);
    let list = |input: &[u8]| {
        let terms = ["bans", "import", "-", "--for", "2h", "--reason", "a list"];
        run_with(&weir, &terms, input)
    };
    for (input, told) in [
        (
            "{\"prefixes\":[{\"ipv4Prefix\":\"192.0.2.0/24\"},{\"ipv4Prefix\":\"0.0.0.0/0\"}]}",
            "weir: -: /prefixes/1/ipv4Prefix: 0.0.0.0/0 covers every address: --force",
        ),
        (
            "{\"cidr\":\"192.0.2.0/24\"}\n{\"cidr\":\"10.0.0.0/7\"}\n",
            "weir: -: line 2, at \"/cidr\": 10.0.0.0/7 is wider than an IPv4 /8",
        ),
        (
            "{\"cidr\":\"192.0.2.0/24\"}\n{\"cidr\":\"198.51",
            "weir: -: /cidr: line 2, column 15: EOF while parsing a string",
        ),
    ] {
        let faulty = list(input.as_bytes());
        assert_eq!(
            (faulty.code, faulty.out.as_str()),
            (1, "nothing is imported: 1 fault\n")
        );
        assert!(faulty.err.contains(told), "{told}: {}", faulty.err);
    }
    assert_eq!(ledger(&weir), [Value::Null; 0], "nothing was taken");
    let published = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/lists");
    for (name, imported) in [
        ("spamhaus.json", "imported 3 bans, 3 of them new\n"),
        // One netblock is there for two services.
        ("aws.json", "imported 2 bans, 2 of them new\n"),
    ] {
        let file = std::fs::read(format!("{published}/{name}")).unwrap();
        let listed = list(&file);
        assert_eq!(listed.out, imported, "{name}: {}", listed.err);
    }
    let ranges = list(b"203.0.113.6 - 203.0.113.9\n");
    assert_eq!(
        ranges.out, "imported 2 bans, 2 of them new\n",
        "{}",
        ranges.err
    );
}

/// CONTROL-9: ten thousand lines are one write, and others are answered meanwhile; in observe mode
/// they are observed, as every ban that is made there.
#[test]
fn a_long_list_is_one_write() {
    let application = Application::ok();
    let state = state_dir();
    let weir = Weir::start_at(application.address(), &state, &[("WAF_MODE", "observe")]);
    let lines: String = (0..10_000)
        .map(|n| format!("10.{}.{}.0/24\n", n / 250, n % 250))
        .collect();
    let path = state.path().join("list.txt");
    fs::write(&path, &lines).expect("writes");
    let name = path.to_str().expect("a path");
    let writes = weir.writes("bans.json", "ok");
    let mut import = command(
        state.path(),
        &[
            "bans",
            "import",
            name,
            "--for",
            "permanent",
            "--reason",
            "r",
            "--json",
        ],
    );
    let mut import = import
        .stdout(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    weir.control("GET", "/v1/health", None).expect(200);
    assert!(import.wait().expect("its end").success());
    // A slow disk has the import answered before its document is there.
    wait_until("the document", || weir.writes("bans.json", "ok") > writes);
    assert_eq!(weir.writes("bans.json", "ok"), writes + 1.0);
    let bans = weir.bans();
    assert_eq!(bans.len(), 10_000);
    assert!(bans.iter().all(|ban| ban["observed"] == true));
    wait_until("the line of the import", || {
        weir.process_log_text().contains("bans imported")
    });
}

/// ALIVE-7, CONTROL-9: 60,000 entries of one netblock and one start are taken in, each as a ban of
/// its own, and the service goes on; the same file once more changes nothing, and a start reads
/// what was written.
#[test]
fn many_entries_of_one_start_hang_nothing() {
    const MANY: usize = 60_000;
    let application = Application::ok();
    let settings = [("WAF_MAX_BANS", "200000")];
    let weir = Weir::start(&application, &settings);
    let entry = r#"{"netblock":"192.0.2.0/24","ban_started":"2026-01-01T00:00:00Z","ban_expires":"permanent"}"#;
    let bans = format!("{entry},").repeat(MANY);
    let document = format!(
        "{{\"version\":1,\"bans\":[{}]}}",
        bans.trim_end_matches(',')
    );
    for new in [MANY, 0] {
        let imported = run_with(&weir, &["bans", "import", "-"], document.as_bytes());
        let told = format!("imported {MANY} bans, {new} of them new\n");
        // On a busy machine the answer may come before the disk is done with them.
        let out = imported.out.replace(", not on disk yet", "");
        assert_eq!(out, told, "{}", imported.err);
        wait_until("a loop that turns", || {
            weir.control("GET", "/v1/health", None).status == 200
        });
    }
    assert_eq!(ledger(&weir).len(), MANY);
    let mut weir = weir;
    weir.stop();
    let read = weir.state_file("bans.json").expect("bans.json");
    let starts: std::collections::HashSet<&str> = (read["bans"].as_array().expect("a list").iter())
        .filter_map(|ban| ban["ban_started"].as_str())
        .collect();
    assert_eq!(starts.len(), MANY);
}

/// CONTROL-9: a bans.json by hand, with a netblock and start that comes twice and an entry without
/// a start, is imported twice, and the second time changes nothing.
#[test]
fn a_second_import_changes_nothing() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[]);
    let dated = json!({"netblock": "192.0.2.0/24", "ban_started": from_now(-60), "ban_expires": from_now(9000)});
    let bare = json!({"netblock": "192.0.2.0/24", "ban_expires": "permanent", "reason": "ours"});
    let document = json!({"version": 1, "bans": [dated, dated, bare, bare]}).to_string();
    let import = || run_with(&weir, &["bans", "import", "-"], document.as_bytes()).out;
    assert_eq!(import(), "imported 4 bans, 4 of them new\n");
    let held = ledger(&weir);
    assert_eq!(held.len(), 4);
    assert_eq!(import(), "imported 4 bans, 0 of them new\n");
    assert_eq!(ledger(&weir), held);
}
