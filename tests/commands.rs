//! The commands as a person runs them: what they print, their exit status, their JSON, and one
//! sentence for every wrong call (CONTROL-3).

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::control::{file, validator};
use crate::support::application::{After, Application};
use crate::support::command::{Ran, command, ran, run};
use crate::support::raw_client::get;
use crate::support::transport;
use crate::support::weir::{ADMIN_TOKEN, ONE_PER_HOUR, Weir, state_dir};
use crate::support::{free_address, wait_for};

impl Ran {
    /// It ended so, and said nothing else on standard error.
    #[track_caller]
    fn ends(self, code: i32, err: &str) -> Self {
        assert_eq!(self.code, code, "{}{}", self.out, self.err);
        assert_eq!(self.err.trim_end(), err, "{}", self.out);
        self
    }

    /// The JSON, as the OpenAPI document describes it for this component.
    #[track_caller]
    fn json(&self, component: &str) -> Value {
        let value: Value = serde_json::from_str(&self.out).expect("JSON");
        let document = file("openapi.json");
        let schema = format!("{{\"$ref\":\"#/components/schemas/{component}\"}}");
        let schema = serde_json::from_str(&schema).expect("JSON");
        let validator = validator(&document, &schema);
        let errors: Vec<String> = validator
            .iter_errors(&value)
            .map(|e| e.to_string())
            .collect();
        assert!(errors.is_empty(), "{errors:?} in {value:#}");
        value
    }

    /// The line that begins so, with single blanks.
    #[track_caller]
    fn line(&self, begin: &str) -> String {
        let line = self.out.lines().find(|line| line.starts_with(begin));
        let line = line.unwrap_or_else(|| panic!("no line {begin:?}: {}", self.out));
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    }
}

/// CONTROL-3: a service that has banned somebody, looked at with every command; each has JSON, and
/// nothing is coloured.
#[test]
fn a_service_is_looked_at() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[ONE_PER_HOUR]);
    weir.break_limit("203.0.113.7");
    let state = weir.state_path("");
    let run = |arguments: &[&str]| run(&state, arguments);

    let status = run(&["status"]).ends(0, "");
    assert!(
        status.line("weir").contains(" enforce up "),
        "{}",
        status.out
    );
    assert!(
        status
            .line("bans")
            .starts_with("bans 1 active of at most 10000 made")
    );
    let both = run(&["status", "--json"]).ends(0, "").json("Status");
    assert_eq!(both["bans"]["active"], 1);

    assert_eq!(run(&["health"]).ends(0, "").out, "pass\n");
    run(&["health", "--json"]).ends(0, "").json("Health");

    let bans = run(&["bans"]).ends(0, "");
    assert!(
        bans.line("203.0.113.0/24")
            .ends_with("hour 1 203.0.113.7 2 – – GET /break")
    );
    let json = run(&["bans", "list", "--json"]).ends(0, "").json("Bans");
    assert_eq!(json["bans"][0]["netblock"], "203.0.113.0/24");
    let cells = run(&["bans", "--tsv"]).ends(0, "").out;
    let mut cells = cells
        .lines()
        .map(|line| line.split('\t').collect::<Vec<_>>());
    let (names, ban) = (cells.next().expect("names"), cells.next().expect("a ban"));
    let of: BTreeMap<_, _> = names.into_iter().zip(ban).collect();
    assert_eq!(of["netblock"], "203.0.113.0/24");
    assert_eq!(of["ban_expires"], json["bans"][0]["ban_expires"]);
    assert_eq!((of["path"], of["country"]), ("/break", ""));
    assert_eq!(of["reason"], json["bans"][0]["reason"]);
    assert_eq!(cells.next(), None, "one ban");
    let covering = |address| {
        run(&["bans", "list", "--covering", address])
            .ends(0, "")
            .out
    };
    assert!(covering("203.0.113.99").contains("203.0.113.0/24"));
    assert_eq!(covering("203.0.114.1"), "no bans\n");

    let clients = run(&["clients", "--sort", "refused", "--limit", "1"]).ends(0, "");
    assert!(
        clients.line("203.0.113.7").contains(" ago 1 1 "),
        "{}",
        clients.out
    );
    let json = run(&["clients", "--sort", "refused", "--json"])
        .ends(0, "")
        .json("Clients");
    assert_eq!(json["clients"][0]["client"], "203.0.113.7");

    let client = run(&["client", "203.0.113.7"]).ends(0, "");
    assert!(
        client.line("requests").ends_with("1 passed, 1 refused"),
        "{}",
        client.out
    );
    assert!(
        client.line("ban").contains("more than 1 requests per hour"),
        "{}",
        client.out
    );
    run(&["client", "203.0.113.7", "--json"])
        .ends(0, "")
        .json("Client");
    let nobody = run(&["client", "192.0.2.77"]).ends(1, "");
    assert!(
        nobody
            .out
            .starts_with("192.0.2.77 is not among the clients that are kept\n")
    );

    let alerts = run(&["alerts"]).ends(0, "");
    assert!(alerts.out.contains("203.0.113.0/24"), "{}", alerts.out);
    run(&["alerts", "--json"]).ends(0, "").json("Alerts");

    let settings = run(&["settings"]).ends(0, "");
    assert_eq!(
        settings.line(ONE_PER_HOUR.0),
        format!("{} 1 environment", ONE_PER_HOUR.0)
    );
    assert_eq!(
        settings.line("WAF_ADMIN_TOKEN"),
        "WAF_ADMIN_TOKEN (not shown) environment"
    );
    let json = run(&["settings", "--json"]).ends(0, "");
    json.json("Settings");
    for out in [&settings.out, &json.out, &status.out, &bans.out] {
        assert!(
            !out.contains(ADMIN_TOKEN) && !out.contains('\u{1b}'),
            "{out}"
        );
    }
}

/// CONTROL-3: bans are made, lifted, exported, imported and checked.
#[test]
fn bans_are_made_and_lifted() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[]);
    let state = weir.state_path("");
    let run = |arguments: &[&str]| run(&state, arguments);
    let terms = ["--for", "2h", "--reason", "scraping"];
    let add = |netblock: &str, more: &[&str]| {
        run(&[&["bans", "add", netblock], &terms[..], more].concat())
    };
    let added = add("198.51.100.0/24", &[]).ends(0, "").out;
    assert!(
        added.starts_with("banned 198.51.100.0/24 (") && added.ends_with(")\n"),
        "{added}"
    );
    weir.get("/a", "198.51.100.7").expect(429);
    let json = add("198.51.0.0/16", &["--json"]).ends(0, "").json("Ban");
    assert_eq!(json["reason"], "scraping");
    // The trusted proxy of the harness.
    let refused = add("127.0.0.0/8", &[]);
    assert_eq!(refused.code, 2, "{}", refused.err);
    assert!(refused.err.contains("weir: netblock: "), "{}", refused.err);
    add("127.0.0.0/8", &["--force"]).ends(0, "");
    let lifted = run(&["bans", "lift", "127.0.0.0/8"]).ends(0, "").out;
    assert!(lifted.starts_with("lifted 127.0.0.0/8 ("), "{lifted}");
    let again = run(&["bans", "lift", "127.0.0.0/8"]).ends(1, "");
    assert_eq!(
        again.out,
        "nothing lifted: no active ban of exactly 127.0.0.0/8\n"
    );

    let exported = run(&["bans", "export"]).ends(0, "").out;
    let document: Value = serde_json::from_str(&exported).expect("JSON");
    assert!(
        jsonschema::validator_for(&file("bans.schema.json"))
            .expect("a schema")
            .is_valid(&document),
        "{document:#}"
    );
    let both = run(&["bans", "lift", "198.51.100.7", "--json"])
        .ends(0, "")
        .json("Lifted");
    assert_eq!(both["lifted"].as_array().map(Vec::len), Some(2));
    weir.get("/a", "198.51.100.7").expect(200);
    let copy = state.join("copy.json");
    let name = copy.to_str().expect("a path");
    std::fs::write(&copy, &exported).expect("writes");
    run(&["bans", "check", name]).ends(0, "");
    run(&["bans", "check", name, "--json"])
        .ends(0, "")
        .json("FileChecked");
    // CONTROL-9: what was exported stands again, as it was.
    let again = run(&["bans", "import", name, "--json"])
        .ends(0, "")
        .json("Imported");
    assert_eq!(
        (&again["imported"], &again["new"]),
        (&Value::from(2), &Value::from(0))
    );
    run(&["bans", "lift", "198.51.100.7"]);
    let imported = run(&["bans", "import", name]).ends(0, "");
    assert_eq!(imported.out, "imported 2 bans, 0 of them new\n");
    weir.get("/a", "198.51.100.7").expect(429);

    std::fs::write(&copy, exported.replace("198.51.100.0/24", "nowhere")).expect("writes");
    let faulty = run(&["bans", "check", name]);
    assert_eq!((faulty.code, faulty.out.as_str()), (1, ""));
    assert!(faulty.err.contains("/bans/"), "{}", faulty.err);

    let mut import = command(&state, &[&["bans", "import", "-"], &terms[..]].concat());
    let import = import
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut import = import.spawn().expect("the binary runs");
    let mut input = import.stdin.take().expect("its input");
    let lines = b"# a list\n192.0.2.128/25 ; one\n\nnowhere\n2001:db8::/32\n";
    input.write_all(lines).expect("writes");
    drop(input);
    let import = ran(import.wait_with_output().expect("ends"));
    assert_eq!(
        (import.code, import.out.as_str()),
        (1, "nothing is imported: 1 fault\n")
    );
    assert!(
        import
            .err
            .starts_with("weir: -: line 4: \"nowhere\" is not a netblock"),
        "{}",
        import.err
    );
    weir.get("/a", "192.0.2.130").expect(200);
}

/// CONTROL-3: an application that does not answer shows in the status, beside its answers.
#[test]
fn a_status_tells_of_an_application_that_does_not_answer() {
    let state = state_dir();
    let weir = Weir::start_at(free_address(), &state, &[]);
    weir.get("/a", "203.0.113.7").expect(502);
    let told = "app p99 – 5xx – upstream_error 100.0 %";
    wait_for("the line of the application", || {
        let status = run(state.path(), &["status"]).ends(0, "");
        (status.line("app") == told).then_some(())
    });
}

/// CONTROL-3: where no service runs, the files are read; what needs a service ends with 69 and says
/// where it was looked for.
#[test]
fn files_answer_where_no_service_runs() {
    let application = Application::ok();
    let state = state_dir();
    let rules = r#"{"version":1,"limits":[{"name":"api","path":"/api","per_day":9}]}"#;
    fs::write(state.path().join("rules.json"), rules).expect("writes rules.json");
    let mut weir = Weir::start_at(application.address(), &state, &[ONE_PER_HOUR]);
    weir.get("/api", "192.0.2.7").expect(200);
    weir.break_limit("203.0.113.7");
    weir.ban("netblock", "198.51.100.0/24", "1h");
    weir.control("DELETE", "/v1/bans/198.51.100.0/24", None)
        .expect(200);
    weir.stop();
    let dir = state.path();
    let word = format!(
        "weir: no service runs: read from the files in {}",
        dir.display()
    );
    let bans = run(dir, &["bans", "--json"]).ends(0, &word).json("Bans");
    assert_eq!(bans["bans"].as_array().map(Vec::len), Some(1));
    let bans = run(dir, &["bans", "list", "--all"]).ends(0, &word);
    assert!(
        bans.line("198.51.100.0/24").contains(" lifted "),
        "{}",
        bans.out
    );
    let clients = run(dir, &["clients"]).ends(0, &word);
    clients.line("203.0.113.7");
    let client = run(dir, &["client", "203.0.113.7"]).ends(0, &word);
    assert!(
        client.line("ban").contains("203.0.113.0/24"),
        "{}",
        client.out
    );
    let client = run(dir, &["client", "192.0.2.7"]);
    let counted = client.line("limit");
    assert!(counted.contains("api day 1 "), "{counted}");
    run(dir, &["alerts", "--json"])
        .ends(0, &word)
        .json("Alerts");
    let socket = dir.join("weir.sock");
    let nobody = format!(
        "weir: no service answers at {}; is it running, and is WAF_STATE_DIR its directory? --socket names another",
        socket.display()
    );
    for arguments in [
        &["status"][..],
        &["health"],
        &["bans", "lift", "203.0.113.7"],
        &[
            "bans",
            "add",
            "192.0.2.0/24",
            "--for",
            "1h",
            "--reason",
            "r",
        ],
    ] {
        run(dir, arguments).ends(69, &nobody);
    }
    let other = dir.join("other.sock");
    let other = other.to_str().expect("a path");
    let elsewhere = run(dir, &["bans", "--socket", other]);
    assert_eq!((elsewhere.code, elsewhere.out.as_str()), (69, ""));
    std::fs::write(dir.join("bans.json"), "{").expect("writes");
    assert_eq!(run(dir, &["bans"]).code, 78);
    let settings = run(dir, &["settings"]);
    assert_eq!(settings.code, 78);
    assert!(
        settings.err.contains("WAF_UPSTREAM is not set"),
        "{}",
        settings.err
    );
}

/// CONTROL-3: a wrong call ends with 2 and says what is wrong.
#[test]
fn wrong_calls_are_told() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[]);
    let state = weir.state_path("");
    for (arguments, word) in [
        (
            &["bans", "lift", "nobody"][..],
            "\"nobody\" is not an address, nor a netblock: expected",
        ),
        (
            &["bans", "lift", "203.0.113.0/33"],
            "\"203.0.113.0/33\" is not",
        ),
        (&["client", "x"], "\"x\""),
        (&["clients", "--sort", "size"], "invalid value 'size'"),
        (&["clients", "--limit", "0"], "invalid value '0'"),
        (
            &["bans", "add", "192.0.2.0/24", "--for", "2", "--reason", "r"],
            "--for: ",
        ),
        (
            &["bans", "add", "192.0.2.0/24", "--reason", ""],
            "weir: --reason: it is shorter than 1 character\n",
        ),
        (
            &["bans", "import", "/nowhere", "--for", "1h", "--reason", "r"],
            "/nowhere cannot be read",
        ),
        (&["bans", "check", "/nowhere"], "/nowhere is no file"),
        (&["stats"], "unrecognized subcommand"),
        (&["completions", "tcl"], "invalid value 'tcl'"),
    ] {
        let wrong = run(&state, arguments);
        assert_eq!(wrong.code, 2, "{arguments:?}: {}{}", wrong.out, wrong.err);
        assert!(wrong.err.contains(word), "{arguments:?}: {}", wrong.err);
    }
    let long = "x".repeat(200);
    let mut command = command(&state, &["status"]);
    let wrong = ran(command
        .env("WAF_CONTROL_SOCKET", long)
        .output()
        .expect("runs"));
    assert_eq!(wrong.code, 78);
    assert!(wrong.err.contains("is 200 bytes long"), "{}", wrong.err);
}

/// CONTROL-3: whoever closes the output early has read enough; completions and the man page are
/// there.
#[test]
fn what_is_written_can_be_piped() {
    let state = state_dir();
    for (arguments, word) in [
        (&["completions", "bash"][..], "_weir()"),
        (&["completions", "fish"], "complete -c weir"),
        (&["man"], ".TH weir 1"),
    ] {
        let written = run(state.path(), arguments).ends(0, "");
        assert!(written.out.contains(word), "{arguments:?}");
    }
    let mut closed = command(state.path(), &["completions", "bash"]);
    let mut closed = closed
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("runs");
    drop(closed.stdout.take());
    let ended = ran(closed.wait_with_output().expect("ends"));
    assert_eq!((ended.code, ended.err.as_str()), (0, ""));
}

/// CONTROL-1: another user is not served, even where the file would let it in.
#[test]
#[ignore = "needs root, to be another user"]
fn another_user_is_not_served() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[]);
    let (state, socket) = (weir.state_path(""), weir.state_path("weir.sock"));
    let chmod = |path: &Path, mode: &str| {
        let status = Command::new("chmod").arg(mode).arg(path).status();
        assert!(status.expect("chmod runs").success());
    };
    let socket = socket.to_str().expect("a path");
    // The binary itself may lie where others cannot read it.
    let ask = || {
        let mut command = Command::new("python3");
        let script = "import socket,sys\ns=socket.socket(socket.AF_UNIX)\ns.connect(sys.argv[1])\n\
             try:\n s.sendall(b'GET /v1/health HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n')\n print(len(s.recv(99)))\n\
             except OSError:\n print(0)\n";
        command.args(["-c", script, socket]);
        command
    };
    let own = ran(ask().output().expect("python3 runs"));
    assert_ne!(own.out, "0\n", "{}", own.err);
    let other = ran(ask()
        .uid(65_534)
        .gid(65_534)
        .output()
        .expect("python3 runs"));
    assert_eq!(other.code, 1, "{}", other.out);
    chmod(&state, "0777");
    chmod(Path::new(socket), "0777");
    let other = ran(ask()
        .uid(65_534)
        .gid(65_534)
        .output()
        .expect("python3 runs"));
    assert_eq!(other.out, "0\n", "{}", other.err);
    weir.wait_for_process_log(&["asked by another user"]);
}

/// CONTROL-5, BAN-6: that a refused client gets no answer is told.
#[test]
fn a_closed_connection_is_explained() {
    let application = Application::ok();
    let settings = [
        ("WAF_DENY_NETS", "192.0.2.0/25"),
        ("WAF_DENY_RESPONSE", "drop"),
    ];
    let weir = Weir::start(&application, &settings);
    let told = run(&weir.state_path(""), &["explain", "192.0.2.7"]).ends(1, "");
    assert_eq!(
        told.line(" response"),
        "response none: the connection closes unanswered"
    );
}

/// CONTROL-3: what the program is, for people and for programs.
#[test]
fn a_version_is_told_in_full() {
    let state = state_dir();
    let run = |arguments: &[&str]| run(state.path(), arguments).ends(0, "").out;
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(run(&["--version"]), format!("weir {version}\n"));
    assert!(run(&["version"]).starts_with(&format!("weir {version}\ntarget ")));
    let json: Value = serde_json::from_str(&run(&["version", "--json"])).expect("JSON");
    assert_eq!(json["version"], version);
    assert_eq!(json["features"][0], "fleet");
}

/// CONTROL-5: a target as it stands in a log has its query behind the path.
#[test]
fn a_target_is_explained_with_its_query() {
    let application = Application::ok();
    let state = state_dir();
    let rules = r#"{"version":1,"denials":[{"name":"facets","match":{"paths":["/search"],"query":["facet"]},"answer":403}]}"#;
    fs::write(state.path().join("rules.json"), rules).expect("writes rules.json");
    let weir = Weir::start_at(application.address(), &state, &[]);
    weir.get("/search?facet=1", "203.0.113.7").expect(403);
    let asked = |arguments: &[&str]| {
        let all = [&["explain", "203.0.113.7"], arguments].concat();
        run(state.path(), &all)
    };
    for arguments in [
        &["--path", "/search?facet=1"][..],
        &["--path", "/search", "--query", "facet=1"],
    ] {
        let refused = asked(arguments).ends(1, "");
        let begin = "REFUSED now: denied_rule\n";
        assert!(refused.out.starts_with(begin), "{}", refused.out);
    }
    asked(&["--path", "/search?page=1"]).ends(0, "");
    let both = asked(&["--path", "/search?a=1", "--query", "b=2"]);
    assert_eq!(both.code, 2, "{}", both.err);
    assert!(both.err.contains("expected one"), "{}", both.err);
}

/// CONTROL-5: a request is explained by its id as soon as its refusal is answered.
#[test]
fn a_request_that_was_just_refused_is_explained() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[("WAF_DENY_NETS", "203.0.113.0/24")]);
    for _ in 0..5 {
        let refused = weir.get("/", "203.0.113.7").expect(429).json();
        let id = refused["request_id"].as_str().expect("an id");
        run(&weir.state_path(""), &["explain", "--request", id]).ends(1, "");
    }
}

/// CONTROL-5: a ban, a list, a limit and a free way are explained in words, with the exit status of
/// the answer; a request is found by its id in the bans and in the log. Nothing is charged.
#[test]
fn a_refusal_is_explained() {
    let application = Application::ok();
    let state = state_dir();
    let log = state.path().join("requests.log");
    let settings = [
        ONE_PER_HOUR,
        ("WAF_DENY_NETS", "192.0.2.0/25"),
        ("WAF_LOG_FILE", log.to_str().expect("a path")),
    ];
    let weir = Weir::start_at(application.address(), &state, &settings);
    let ban = weir.break_limit("203.0.113.7");
    weir.get("/once", "198.51.100.7").expect(200);
    let run = |arguments: &[&str]| run(state.path(), &[&["explain"], arguments].concat());

    let banned = run(&["203.0.113.9", "--path", "/search"]).ends(1, "");
    assert!(
        banned
            .out
            .starts_with("REFUSED now: banned, the ban ends in "),
        "{}",
        banned.out
    );
    let evidence = banned.line(" ban");
    assert!(
        evidence.starts_with("ban 203.0.113.0/24 until "),
        "{evidence}"
    );
    assert!(
        evidence
            .contains("more than 1 requests per hour; first by 203.0.113.7 GET /break, request "),
        "{evidence}"
    );
    assert_eq!(
        banned.line(" without it"),
        "without it passes: the application answers"
    );
    assert_eq!(banned.line(" undo"), "undo weir bans lift 203.0.113.9");
    assert!(banned.out.ends_with("weir allow 203.0.113.9 --for 24h\n"));
    let json = run(&["203.0.113.9", "--json"])
        .ends(1, "")
        .json("Explanation");
    assert_eq!(json["now"]["action"], "banned");
    // What the client gets, to the second.
    let got = weir.get("/search", "203.0.113.9");
    let told = run(&["203.0.113.9", "--path", "/search"]).ends(1, "");
    let seconds = |text: &str| text.parse::<u64>().expect("seconds");
    let gets = told.line(" response");
    let gets = gets.strip_prefix("response 429, Retry-After ");
    let waits = seconds(got.header("retry-after").expect("Retry-After"));
    assert!((waits - 20..=waits).contains(&seconds(gets.expect("what it gets"))));

    let denied = run(&["192.0.2.7"]).ends(1, "");
    assert_eq!(
        denied.line(" lists"),
        "lists denied by 192.0.2.0/25 of WAF_DENY_NETS"
    );
    assert_eq!(denied.line(" response"), "response 429");
    assert!(
        denied.out.starts_with("REFUSED now: denied_net\n"),
        "{}",
        denied.out
    );
    for _ in 0..3 {
        let used_up = run(&["198.51.100.7"]).ends(1, "");
        assert!(
            used_up
                .out
                .starts_with("REFUSED now: rate_limited (limit: hour), the ban ends in "),
            "{}",
            used_up.out
        );
        assert!(
            used_up.line(" requests").contains("hour 1/1 (room in "),
            "{}",
            used_up.out
        );
    }
    let free = run(&["198.51.100.8"]).ends(0, "");
    assert!(
        free.out.starts_with("passes: the application answers\n"),
        "{}",
        free.out
    );
    assert!(
        free.line(" requests").contains("hour 0/1 day 0/50000"),
        "{}",
        free.out
    );
    let health = run(&["192.0.2.7", "--path", "/_waf/health"]).ends(0, "");
    assert!(
        health.out.starts_with("passes: the health check"),
        "{}",
        health.out
    );
    let allowed = run(&["192.0.2.200"]).ends(0, "");
    assert!(
        allowed.line(" lists").contains("WAF_ALLOW_NETS"),
        "{}",
        allowed.out
    );

    let id = ban["notes"]["request"]["request_id"]
        .as_str()
        .expect("an id");
    let by_ban = run(&["--request", id]).ends(1, "");
    assert!(
        by_ban
            .line(" request")
            .contains("GET /break from 203.0.113.7"),
        "{}",
        by_ban.out
    );
    let line = crate::support::wait_for("the line", || {
        let text = std::fs::read_to_string(&log).expect("the log");
        text.lines()
            .find(|line| line.contains("/once"))
            .map(str::to_owned)
    });
    let line: Value = serde_json::from_str(&line).expect("JSON");
    let id = line["request_id"].as_str().expect("an id");
    let by_log = run(&["--request", id]).ends(1, "");
    assert!(
        by_log
            .line(" request")
            .contains("GET /once from 198.51.100.7"),
        "{}",
        by_log.out
    );
    // CONTROL-5: the service knows its last refusals, wherever its log goes.
    weir.get("/denied", "192.0.2.7").expect(429);
    let refused = crate::support::wait_for("the refusal", || {
        let text = std::fs::read_to_string(&log).expect("the log");
        text.lines()
            .find(|line| line.contains("/denied"))
            .map(str::to_owned)
    });
    let refused: Value = serde_json::from_str(&refused).expect("JSON");
    let id = refused["request_id"].as_str().expect("an id");
    std::fs::write(&log, "").expect("empties it");
    let by_ring = run(&["--request", id]).ends(1, "");
    assert!(
        by_ring
            .line(" request")
            .contains("GET /denied from 192.0.2.7"),
        "{}",
        by_ring.out
    );
    assert!(
        by_ring.line(" then").starts_with("then denied_net at 20"),
        "{}",
        by_ring.out
    );
    for (arguments, word) in [
        (&["--request", "nobody"][..], "names the request \"nobody\""),
        (
            &["nobody"],
            "\"nobody\" is not a client: expected an IPv4 address",
        ),
        (
            &["::1", "--path", "x"],
            "expected a path that begins with /",
        ),
        (&["::1", "--request", "x"], "cannot be used with"),
        (&[], "required arguments"),
    ] {
        let wrong = run(arguments);
        assert_eq!(wrong.code, 2, "{arguments:?}: {}", wrong.err);
        assert!(wrong.err.contains(word), "{arguments:?}: {}", wrong.err);
    }
    assert_eq!(run(&["198.51.100.7", "--socket", "/nowhere"]).code, 69);
}

/// CONTROL-5, RULE-8, ALIVE-5: what a request for the page of another site would meet, what a jail
/// has counted, and what each ban would cover.
#[test]
fn what_another_site_asks_for_is_explained() {
    let application = Application::start(|exchange| {
        exchange.read_body();
        exchange.answer(401, &[], b"");
        After::KeepAlive
    });
    let state = state_dir();
    let rules = r#"{"version":1,"limits":[{"name":"api","path":"/login","per_day":9}],
        "traps":[{"name":"scanner","paths":["/.env"]}],
        "jails":[{"name":"auth","path":"/login","statuses":[401],"per_day":2}]}"#;
    std::fs::write(state.path().join("rules.json"), rules).expect("writes");
    let settings = [("WAF_TRUSTED_PROXIES", "127.0.0.0/8,198.51.100.1")];
    let weir = Weir::start_at(application.address(), &state, &settings);
    let run = |arguments: &[&str]| run(state.path(), &[&["explain"], arguments].concat());
    let trap = run(&["203.0.113.7", "--path", "/.env"]).ends(1, "");
    assert!(
        trap.out.contains("trapped, the ban ends in"),
        "{}",
        trap.out
    );
    let picture = run(&["203.0.113.7", "--path", "/.env", "--other-site"]).ends(1, "");
    assert!(
        picture.out.starts_with("REFUSED now: trapped\n"),
        "{}",
        picture.out
    );
    let login = ["203.0.113.7", "--path", "/login"];
    let free = run(&login).ends(0, "");
    assert_eq!(
        free.line(" jail"),
        "jail auth: day 0/2 would ban 203.0.113.7/32"
    );
    assert_eq!(
        free.line(" rule limit"),
        "rule limit api: day 0/9 would ban 203.0.113.0/24"
    );
    for _ in 0..2 {
        weir.send(&get(
            "/login",
            &[
                ("X-Forwarded-For", "203.0.113.7"),
                ("Sec-Fetch-Site", "cross-site"),
            ],
        ));
    }
    weir.lines_of("/login", 2);
    let full = run(&[&login[..], &["--other-site"]].concat()).ends(1, "");
    assert!(
        full.out
            .starts_with("REFUSED now: rate_limited (limit: auth)\n"),
        "{}",
        full.out
    );
    assert!(full.line(" jail").contains("day 2/2"), "{}", full.out);
    assert!(
        full.line(" jail").ends_with("would ban nobody"),
        "{}",
        full.out
    );
    // Beside a proxy, alone.
    let beside = run(&["198.51.100.7", "--path", "/login"]).ends(0, "");
    assert_eq!(
        beside.line(" rule limit"),
        "rule limit api: day 0/9 would ban 198.51.100.7/32"
    );
    let json = run(&["198.51.100.7", "--json"])
        .ends(0, "")
        .json("Explanation");
    assert_eq!(json["netblock"], "198.51.100.7/32");
}

/// `weir check` with a whole environment.
fn check(state: &Path, settings: &[(&str, &str)], arguments: &[&str]) -> Ran {
    let mut command = command(state, &[&["check"], arguments].concat());
    command
        .env("WAF_LISTEN", "127.0.0.1:0")
        .env("WAF_LOOKUP_SOURCE", "off");
    for (name, value) in settings {
        command.env(name, value);
    }
    ran(command.output().expect("the binary runs"))
}

/// CONTROL-4: what stops a start is found without one, in the words of the start; nothing is made
/// or changed meanwhile.
#[test]
fn a_check_finds_what_a_start_finds() {
    let state = state_dir();
    let dir = state.path();
    let note = dir.join("note");
    std::fs::write(&note, "a note").expect("writes");
    let note = note.to_str().expect("a path");
    let broken = dir.join("broken");
    std::fs::create_dir(&broken).expect("a directory");
    std::fs::write(broken.join("bans.json"), "{\"version\":1,\"bans\":[7]}").expect("writes");
    let broken = broken.to_str().expect("a path");
    let full = dir.join("full");
    std::fs::create_dir(&full).expect("a directory");
    let ban = |number| format!(r#"{{"netblock":"203.0.{number}.0/24","ban_expires":"permanent"}}"#);
    let bans = format!(r#"{{"version":1,"bans":[{},{}]}}"#, ban(1), ban(2));
    std::fs::write(full.join("bans.json"), bans).expect("writes");
    let full = full.to_str().expect("a path");
    let held = std::net::TcpListener::bind("127.0.0.1:0").expect("binds");
    let address = held.local_addr().expect("its address").to_string();
    let fine = "http://127.0.0.1:9";
    let cases: [&[(&str, &str)]; 12] = [
        &[("WAF_MODE", "strict")],
        &[("WAF_ADMIN_TOKEN_FILE", "/nowhere/token")],
        &[("WAF_LOOKUP_SOURCE", "file"), ("WAF_LOOKUP_DB_PATH", note)],
        &[
            ("WAF_LOOKUP_SOURCE", "geojs"),
            ("WAF_LOOKUP_CA_FILE", "/nowhere/ca.pem"),
        ],
        &[("WAF_LOG_FILE", "/nowhere/weir.log")],
        &[("WAF_REFUSAL_PAGE", "/nowhere/page.html")],
        &[("WAF_RULES_FILE", note)],
        &[("WAF_STATE_DIR", broken)],
        &[("WAF_STATE_DIR", full), ("WAF_MAX_BANS", "1")],
        &[("WAF_CONTROL_SOCKET", note)],
        &[("WAF_LISTEN", &address)],
        &[("WAF_ADMIN_LISTEN", &address)],
    ];
    for settings in cases {
        let settings = [&[("WAF_UPSTREAM", fine)], settings].concat();
        let inner = dir.join("inner");
        let checked = check(&inner, &settings, &[]);
        assert_eq!(
            (checked.code, checked.out.as_str()),
            (78, ""),
            "{settings:?}: {}",
            checked.err
        );
        assert!(!inner.exists());
        let mut start = command(&inner, &[]);
        start
            .env("WAF_LISTEN", "127.0.0.1:0")
            .env("WAF_LOOKUP_SOURCE", "off");
        for (name, value) in &settings {
            start.env(name, value);
        }
        let started = ran(start.output().expect("the binary runs"));
        assert_eq!(started.code, 78, "{settings:?}: {}", started.err);
        let reason = started.err.lines().find(|line| line.starts_with("weir: "));
        let reason = reason.expect("a reason");
        assert!(checked.err.contains(reason), "{reason}\n{}", checked.err);
        let _ = std::fs::remove_dir_all(&inner);
    }
    // Everything at once, and as JSON.
    let all = [
        ("WAF_UPSTREAM", fine),
        ("WAF_ADMIN_TOKEN_FILE", "/nowhere/token"),
        ("WAF_STATE_DIR", broken),
        ("WAF_LISTEN", &address),
    ];
    let checked = check(dir, &all, &["--json"]);
    let found = checked.json("Checked");
    assert_eq!(
        found["faults"].as_array().map(Vec::len),
        Some(3),
        "{found:#}"
    );
    assert_eq!(checked.code, 78);
    // SETTING-1: a start tells all of them, too, each once.
    let mut start = command(dir, &[]);
    start.env("WAF_LOOKUP_SOURCE", "off").envs(all);
    let started = ran(start.output().expect("the binary runs"));
    assert_eq!(started.code, 78, "{}", started.err);
    let told = started
        .err
        .lines()
        .filter_map(|line| line.strip_prefix("weir: "));
    let mut told: Vec<_> = told.map(Value::from).collect();
    let mut faults = found["faults"].as_array().cloned().unwrap_or_default();
    told.sort_by_key(Value::to_string);
    faults.sort_by_key(Value::to_string);
    assert_eq!(told, faults);
}

/// CONTROL-4: what a running service of these settings holds is told and is no fault; what a
/// restart would change, and what may not be meant, is warned of.
#[test]
fn a_check_beside_the_service_and_its_warnings() {
    if transport::is_left_out_over_tls("the check has no certificate") {
        return;
    }
    let application = Application::ok();
    let upstream = format!("http://{}", application.address());
    let address = free_address().to_string();
    // Fewer than any system has open files for: no warning of that.
    let settings = [
        ("WAF_UPSTREAM", upstream.as_str()),
        ("WAF_LISTEN", &address),
        ("WAF_MAX_CONNECTIONS", "100"),
    ];
    let state = state_dir();
    let fine = check(state.path(), &settings, &[]).ends(0, "");
    assert_eq!(
        fine.out,
        "the settings are fine: a start would find no fault\n"
    );
    let off = [("WAF_ADMIN_TOKEN", ""), ("WAF_METRICS_TOKEN", "")];
    let other = [
        ("WAF_TRUSTED_PROXIES", ""),
        ("WAF_ALLOW_NETS", ""),
        ("WAF_SHUTDOWN_TIMEOUT", ""),
    ];
    let started = [&settings[..], &off, &other].concat();
    let _weir = Weir::start_at(application.address(), &state, &started);
    let beside = check(state.path(), &settings, &[]).ends(0, "");
    let dir = state.path().display();
    let told = format!(
        "the running service holds the state directory {dir}\nthe running service holds WAF_LISTEN={address}\n"
    );
    assert!(beside.out.starts_with(&told), "{}", beside.out);
    let changed = [&settings[..], &[("WAF_RATE_LIMIT_PER_MINUTE", "7")]].concat();
    check(state.path(), &changed, &[]).ends(
        0,
        "weir: warning: WAF_RATE_LIMIT_PER_MINUTE is 1000 in the running service and 7 here",
    );
    let unknown = [&settings[..], &[("WAF_CONTROL_SOCKET", "off")]].concat();
    let held = check(state.path(), &unknown, &[]);
    assert_eq!(held.code, 78);
    assert!(
        held.err.contains("does not answer at the control socket"),
        "{}",
        held.err
    );

    let state = state_dir();
    let warned = check(
        state.path(),
        &[
            ("WAF_UPSTREAM", "http://127.0.0.1:9"),
            ("WAF_MODE", "observe"),
            ("WAF_TRUSTED_PROXIES", "0.0.0.0/0"),
            ("WAF_DENY_NETS", "203.0.113.7/24"),
            ("WAF_LOOKUP_SOURCE", "geojs"),
            ("WAF_DENY_COUNTRIES", "DE"),
            ("WAF_ADMIN_TOKEN", ADMIN_TOKEN),
            ("WAF_CONTROL_SOCKET", "off"),
        ],
        &["--json"],
    );
    assert_eq!(warned.code, 0, "{}{}", warned.out, warned.err);
    let warned = warned.json("Checked");
    let warnings = warned["warnings"].to_string();
    assert!(
        !warnings.contains("0.0.0.0/0, which is wider"),
        "one warning is enough"
    );
    for word in [
        "refuses nobody",
        "WAF_TRUSTED_PROXIES has",
        "host bits are set",
        "a country list asks a lookup service",
        "neither WAF_ALLOW_NETS nor a control socket",
        "the application at 127.0.0.1:9 cannot be reached",
    ] {
        assert!(warnings.contains(word), "{word}: {warned:#}");
    }
}

/// CONTROL-4, CLIENT-3: trusted nets that may hold clients beside the proxies are warned of.
#[test]
fn a_check_warns_of_wide_trust() {
    let application = Application::ok();
    let upstream = format!("http://{}", application.address());
    let warned = |nets: &str| {
        let settings = [("WAF_UPSTREAM", &*upstream), ("WAF_TRUSTED_PROXIES", nets)];
        let state = state_dir();
        let checked = check(state.path(), &settings, &[]);
        assert_eq!(checked.code, 0, "{}", checked.err);
        let lines = checked.err.lines();
        lines
            .filter(|line| line.contains("which is wider than a /24"))
            .count()
    };
    assert_eq!(
        warned("192.0.2.0/24,198.51.100.1,2001:db8::/48,127.0.0.0/8,::1"),
        0
    );
    assert_eq!(
        warned("10.0.0.0/8,192.0.2.0/23,2001:db8::/47,192.0.2.0/24"),
        3
    );
}

/// CONTROL-3, RULE-1: an address is allowed for a time and a netblock denied, both in force when
/// the command returns; taken out again they are not. What cannot be read is left alone.
#[test]
fn lists_are_changed() {
    let application = Application::ok();
    let state = state_dir();
    let mut weir = Weir::start_at(application.address(), &state, &[ONE_PER_HOUR]);
    weir.break_limit("203.0.113.7");
    let run = |arguments: &[&str]| run(state.path(), arguments);
    let allowed = run(&["allow", "203.0.113.7", "--for", "24h"])
        .ends(0, "")
        .out;
    assert!(allowed.starts_with("allowed 203.0.113.7"), "{allowed}");
    assert!(allowed.ends_with(": in force\n"), "{allowed}");
    weir.get("/a", "203.0.113.7").expect(200);
    weir.get("/a", "203.0.113.8").expect(429);
    // CONTROL-5: nothing that an allowed client does can ban it.
    let explained = run(&["explain", "203.0.113.7"]).ends(0, "");
    assert_eq!(explained.line(" next ban"), "next ban none can be made");
    let denied = ["deny", "198.51.100.0/24", "--comment", "scraper"];
    let told = run(&denied).ends(0, "").out;
    assert_eq!(told, "denied 198.51.100.0/24: in force\n");
    assert_ne!(weir.get("/a", "198.51.100.7").status, 200);
    // Once more replaces it.
    let told = run(&[&denied[..], &["--json"]].concat()).ends(0, "");
    assert_eq!(told.json("ListChanged")["in_force"], true);
    let rules = weir.state_file("rules.json").expect("rules.json");
    assert_eq!(rules["deny"].as_array().map(Vec::len), Some(1), "{rules:#}");
    let until = rules["allow"][0]["until"].as_str().expect("an end");
    assert!(until > weir_shared::units::Time(0).to_string().as_str());
    let schema = file("rules.schema.json");
    assert!(
        jsonschema::validator_for(&schema)
            .expect("a schema")
            .is_valid(&rules)
    );

    run(&["deny", "198.51.100.0/24", "--remove"]).ends(0, "");
    weir.get("/b", "198.51.100.8").expect(200);
    let gone = run(&["deny", "198.51.100.0/24", "--remove"]);
    assert_eq!((gone.code, gone.err.as_str()), (1, ""));
    for (arguments, word) in [
        (&["allow", "nobody"][..], "\"nobody\""),
        (&["allow", "::1", "--for", "2"], "--for: "),
        (
            &["deny", "::1", "--for", "1h", "--remove"],
            "cannot be used with",
        ),
    ] {
        let wrong = run(arguments);
        assert_eq!(wrong.code, 2, "{arguments:?}: {}", wrong.err);
        assert!(wrong.err.contains(word), "{arguments:?}: {}", wrong.err);
    }
    weir.stop();
    let told = run(&["deny", "192.0.2.0/24"]).ends(0, "").out;
    assert_eq!(told, "denied 192.0.2.0/24: written; no service runs\n");
    let path = state.path().join("rules.json");
    std::fs::write(&path, "{\"version\":1,").expect("writes");
    let broken = run(&["deny", "192.0.2.0/24"]);
    assert_eq!(broken.code, 78);
    assert!(broken.err.contains("mend it first"), "{}", broken.err);
    let text = std::fs::read_to_string(&path).expect("the file");
    assert_eq!(text, "{\"version\":1,");
}

/// CONTROL-2, CONTROL-3: commands ask the admin listener instead of the socket, with the token of
/// the settings or of its file, and show its answers alike; without the right token, without one
/// and without a listener each says so, and nothing is read from files instead.
#[test]
fn commands_ask_the_admin_listener() {
    let application = Application::ok();
    let weir = Weir::start(
        &application,
        &[ONE_PER_HOUR, ("WAF_ADMIN_LISTEN", "127.0.0.1:0")],
    );
    weir.break_limit("203.0.113.7");
    let log = weir.wait_for_process_log(&["listening"]);
    let address = log["admin"].as_str().expect("an address");
    let elsewhere = state_dir();
    let tokens = elsewhere.path().join("token");
    fs::write(&tokens, format!("{ADMIN_TOKEN}\n")).expect("writes");
    let ask = |settings: &[(&str, &str)], arguments: &[&str]| {
        let arguments = [arguments, &["--admin", address]].concat();
        let mut command = command(elsewhere.path(), &arguments);
        ran(command
            .envs(settings.iter().copied())
            .output()
            .expect("the binary runs"))
    };
    let own = [("WAF_ADMIN_TOKEN", ADMIN_TOKEN)];
    let of_file = [("WAF_ADMIN_TOKEN_FILE", tokens.to_str().expect("a path"))];
    for token in [own, of_file] {
        let listed = ask(&token, &["bans"]);
        assert_eq!(listed.code, 0, "{}", listed.err);
        assert!(listed.out.contains("203.0.113.0/24"), "{}", listed.out);
    }
    let refused = ask(&own, &["explain", "203.0.113.7"]);
    assert_eq!(refused.code, 1, "{}", refused.err);
    let look = ask(&own, &["top", "--json"]);
    assert_eq!(look.code, 0, "{}", look.err);
    let look: Value = serde_json::from_str(&look.out).expect("JSON");
    let netblocks = look["netblocks"]["groups"].as_array().expect("a list");
    let mut netblocks = netblocks.iter();
    assert!(netblocks.any(|one| one["group"] == "203.0.113.0/24"));
    let lifted = ask(&own, &["bans", "lift", "203.0.113.7"]);
    assert_eq!(lifted.code, 0, "{}", lifted.err);
    assert!(weir.bans().iter().all(|ban| ban["lifted"].is_string()));
    for (settings, arguments, code, told) in [
        (
            &[][..],
            &["status"][..],
            78,
            "--admin needs the admin token",
        ),
        (
            &[("WAF_ADMIN_TOKEN", "another-token-0001")],
            &["status"],
            1,
            "the token is missing or wrong: that of WAF_ADMIN_TOKEN",
        ),
        (&own, &["status", "--socket", "x"], 2, "cannot be used with"),
    ] {
        let ran = ask(settings, arguments);
        assert_eq!(ran.code, code, "{arguments:?}: {}", ran.err);
        assert!(ran.err.contains(told), "{arguments:?}: {}", ran.err);
    }
    // CONTROL-8: the service writes its file, so a list is changed from elsewhere, too.
    let allowed = ask(&own, &["allow", "203.0.113.7"]);
    assert_eq!(
        allowed.out, "allowed 203.0.113.7/32: in force\n",
        "{}",
        allowed.err
    );
    assert!(weir.state_path("rules.json").exists());
    let nobody = state_dir();
    let ran = ran(command(nobody.path(), &["bans", "--admin", "127.0.0.1:1"])
        .envs(own)
        .output()
        .expect("the binary runs"));
    assert_eq!((ran.code, ran.out.as_str()), (69, ""));
    let told = "weir: no service answers at 127.0.0.1:1: Connection refused";
    assert!(ran.err.starts_with(told), "{}", ran.err);
}
