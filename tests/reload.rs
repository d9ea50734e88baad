//! The settings file, and settings that change while the service runs (RELOAD-1 to RELOAD-3).

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use weir_shared::settings::{Taken, table};

use crate::control::{file, validator};
use crate::handover::{GENERATORS, Traffic};
use crate::support::application::{After, Application};
use crate::support::command::{Ran, run};
use crate::support::geo::Geo;
use crate::support::raw_client::{Connection, Response, get, request};
use crate::support::weir::{ADMIN, ADMIN_TOKEN, METRICS_TOKEN, Weir, milliseconds, state_dir};
use crate::support::{GATHERED, wait_for, wait_until};

/// RELOAD-1: `weir --settings FILE` reads settings from lines of a file; a name in the environment
/// wins and is told; the settings say where each comes from.
#[test]
fn settings_come_from_a_file() {
    let application = Application::ok();
    let state = state_dir();
    let file = state.path().join("weir.env");
    fs::write(
        &file,
        "# limits\nWAF_RATE_LIMIT_PER_HOUR='1'\nWAF_ADMIN_TOKEN=of-the-file-123456\n",
    )
    .expect("writes");
    let path = file.to_str().expect("a path");
    // A file that the command line names wins over the environment: tests/operator.rs.
    let settings = [("WAF_SETTINGS_FILE", path)];
    let weir = Weir::try_start(&[], application.address(), &state, &settings).expect("it starts");
    weir.break_limit("203.0.113.7");
    let told = format!(
        "WAF_ADMIN_TOKEN is set in the environment, which counts, and in settings file {path}, line 3"
    );
    weir.wait_for_process_log(&[&told]);
    let settings = weir.control("GET", "/v1/settings", None).json();
    let settings = settings["settings"].as_array().expect("a list");
    let origin = |name: &str| {
        let mut named = settings.iter().filter(|one| one["name"] == name);
        named.next().map(|one| one["origin"].clone())
    };
    assert_eq!(origin("WAF_RATE_LIMIT_PER_HOUR"), Some("file".into()));
    assert_eq!(origin("WAF_ADMIN_TOKEN"), Some("environment".into()));
}

/// RELOAD-1: a fault of the file stops the start with 78 and names the file and the line; so does
/// `weir check`.
#[test]
fn a_fault_of_the_settings_file_names_its_line() {
    let state = state_dir();
    let file = state.path().join("weir.env");
    let path = file.to_str().expect("a path");
    for (text, told) in [
        (
            "\nWAF_MODE=watch\n",
            "WAF_MODE=\"watch\" is not known: expected enforce or observe (settings file FILE, line 2)",
        ),
        (
            "WAF_MODE='observe\n",
            "settings file FILE, line 1 has a ' that is not closed",
        ),
        (
            "",
            "WAF_UPSTREAM is not set: expected http://host:port, the address of the application",
        ),
    ] {
        fs::write(&file, text).expect("writes");
        for arguments in [&["check"][..], &["serve"]] {
            let ran = Command::new(env!("CARGO_BIN_EXE_weir"))
                .args(arguments)
                .env_clear()
                .env("WAF_SETTINGS_FILE", path)
                .env("WAF_STATE_DIR", state.path())
                .stdin(Stdio::null())
                .output()
                .expect("the binary runs");
            let said = String::from_utf8_lossy(&ran.stderr).into_owned();
            assert_eq!(ran.status.code(), Some(78), "{said}");
            assert!(said.contains(&told.replace("FILE", path)), "{said}");
        }
    }
    let refused = Weir::refuse(&state, &[("WAF_SETTINGS_FILE", "/nowhere/weir.env")]);
    assert_eq!(refused.code, Some(78));
    let told = "WAF_SETTINGS_FILE: /nowhere/weir.env cannot be read: No such file or directory";
    assert!(refused.stderr.contains(told), "{}", refused.stderr);
}

/// A service whose settings are lines of a file.
struct Reloading {
    weir: Weir,
    file: PathBuf,
}

impl Reloading {
    /// The harness's own settings are in the file too, so that a line may change each.
    #[track_caller]
    fn start(application: &Application, lines: &str) -> Self {
        let state = state_dir();
        let file = state.path().join("weir.env");
        write(&file, lines);
        let path = file.to_str().expect("a path");
        let in_file = [
            "WAF_UPSTREAM",
            "WAF_TRUSTED_PROXIES",
            "WAF_ALLOW_NETS",
            "WAF_ADMIN_TOKEN",
            "WAF_METRICS_TOKEN",
            "WAF_LOOKUP_SOURCE",
        ];
        let mut settings = in_file.map(|name| (name, "")).to_vec();
        settings.push(("WAF_SETTINGS_FILE", path));
        let upstream = format!("WAF_UPSTREAM=http://{}\n", application.address());
        write(&file, &(upstream + lines));
        let weir = Weir::start_at(application.address(), &state, &settings);
        Self { weir, file }
    }

    /// Writes the file anew and asks for a reload.
    #[track_caller]
    fn reload(&self, application: &Application, lines: &str) -> Response {
        let upstream = format!("WAF_UPSTREAM=http://{}\n", application.address());
        write(&self.file, &(upstream + lines));
        self.weir.control("POST", "/v1/reload", None)
    }

    /// The same; it is taken.
    #[track_caller]
    fn take(&self, application: &Application, lines: &str) -> Value {
        self.reload(application, lines).expect(200).json()
    }
}

/// What the harness says of a service, and these lines; the last of a name counts.
#[track_caller]
fn write(file: &Path, lines: &str) {
    let base = format!(
        "WAF_TRUSTED_PROXIES=127.0.0.0/8\nWAF_ALLOW_NETS={ADMIN}\nWAF_ADMIN_TOKEN={ADMIN_TOKEN}\n\
         WAF_METRICS_TOKEN={METRICS_TOKEN}\nWAF_LOOKUP_SOURCE=off\n"
    );
    fs::write(file, base + lines).expect("writes");
}

fn texts(changes: &Value) -> Vec<&str> {
    let changes = changes.as_array().expect("a list").iter();
    changes
        .filter_map(|change| change["text"].as_str())
        .collect()
}

/// RELOAD-2: what has changed is taken and told, by the answer and by the log, a token without its
/// value; what needs a restart is told, again by the next reload, and waits.
#[test]
fn changes_are_taken_and_told() {
    let application = Application::ok();
    let service = Reloading::start(&application, "");
    let weir = &service.weir;
    let lines = "WAF_RATE_LIMIT_PER_HOUR=1\nWAF_ADMIN_TOKEN=another-token-0001\nWAF_WORKERS=7\n";
    let told = service.take(&application, lines);
    let hour = "WAF_RATE_LIMIT_PER_HOUR 10000 -> 1";
    let token = "WAF_ADMIN_TOKEN (hidden) -> (hidden)";
    assert_eq!(texts(&told["taken"]), [hour, token]);
    let waiting = told["restart"][0]["text"].as_str().expect("a text");
    assert!(waiting.starts_with("WAF_WORKERS ") && waiting.ends_with(" -> 7"));
    for line in [
        format!("changed: {hour}"),
        format!("a restart is needed for {waiting}"),
    ] {
        weir.wait_for_process_log(&[&line]);
    }
    assert!(!weir.process_log_text().contains("another-token"));
    weir.get("/", "203.0.113.7").expect(200);
    weir.get("/", "203.0.113.7").expect(429);
    assert_eq!(weir.admin("GET", "/_waf/bans", None).status, 401);
    let told = service.take(&application, lines);
    assert_eq!(told["taken"], json!([]));
    assert_eq!(told["restart"].as_array().map(Vec::len), Some(1));
    let settings = weir.control("GET", "/v1/settings", None).json();
    let all = settings["settings"].as_array().expect("a list").iter();
    let limit: Vec<_> = all
        .filter(|one| one["name"] == "WAF_RATE_LIMIT_PER_HOUR")
        .collect();
    assert_eq!(
        (&limit[0]["value"], &limit[0]["origin"]),
        (&json!("1"), &json!("file"))
    );
}

/// RELOAD-2: SIGHUP is a reload too, and so is `weir reload`, which prints what has changed; a
/// fault is told with 78 and changes nothing.
#[test]
fn a_reload_is_asked_for_in_three_ways() {
    let application = Application::ok();
    let service = Reloading::start(&application, "");
    let weir = &service.weir;
    let upstream = format!("WAF_UPSTREAM=http://{}\n", application.address());
    write(
        &service.file,
        &format!("{upstream}WAF_DENY_NETS=203.0.113.0/24\n"),
    );
    weir.signal("HUP");
    weir.wait_for_process_log(&["changed: WAF_DENY_NETS (unset) -> 203.0.113.0/24"]);
    weir.get("/", "203.0.113.7").expect(429);
    let run = |arguments: &[&str]| {
        let Ran { code, out, err } = run(&weir.state_path(""), arguments);
        (Some(code), out, err)
    };
    write(
        &service.file,
        &format!("{upstream}WAF_DENY_RESPONSE=403\nWAF_WORKERS=9\n"),
    );
    let (code, out, err) = run(&["reload"]);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    let mut lines = out.lines();
    assert_eq!(
        lines.next(),
        Some("WAF_DENY_NETS 203.0.113.0/24 -> (unset)")
    );
    assert_eq!(lines.next(), Some("WAF_DENY_RESPONSE (unset) -> 403"));
    assert!(
        lines
            .next()
            .is_some_and(|line| line.ends_with(" -> 9  (needs a restart)"))
    );
    weir.get("/", "203.0.113.7").expect(200);
    write(&service.file, &format!("{upstream}WAF_MODE=watch\n"));
    let (code, out, err) = run(&["reload"]);
    assert_eq!((code, out.as_str()), (Some(78), ""));
    let fault = "weir: WAF_MODE=\"watch\" is not known: expected enforce or observe";
    assert!(
        err.starts_with(fault) && err.ends_with("weir: nothing is changed\n"),
        "{err}"
    );
    write(&service.file, &upstream);
    let (code, out, _) = run(&["reload", "--json"]);
    assert_eq!(code, Some(0));
    let value: Value = serde_json::from_str(&out).expect("JSON");
    let document = file("openapi.json");
    let schema = json!({"$ref": "#/components/schemas/Reloaded"});
    assert!(validator(&document, &schema).is_valid(&value), "{value}");
}

/// RELOAD-3: a fault anywhere, in the settings or in a file that is read again, leaves everything
/// as it was, and is told with what is expected.
#[test]
fn a_fault_leaves_everything_as_it_was() {
    let application = Application::ok();
    let service = Reloading::start(&application, "WAF_DENY_NETS=203.0.113.0/24\n");
    let weir = &service.weir;
    let rules = weir.state_path("rules.json");
    let bad_token = weir.state_path("token");
    fs::write(&bad_token, "").expect("writes");
    let token_file = format!(
        "WAF_ADMIN_TOKEN=\nWAF_ADMIN_TOKEN_FILE={}\n",
        bad_token.display()
    );
    let cases = [
        ("WAF_MODE=watch\n", "WAF_MODE=\"watch\" is not known"),
        ("WAF_MODE='enforce\n", "that is not closed"),
        (token_file.as_str(), "must hold one token"),
        (
            "WAF_REFUSAL_PAGE=/nowhere/page\n",
            "WAF_REFUSAL_PAGE /nowhere/page cannot be read",
        ),
        (
            "WAF_LOG_FILE=/nowhere/log\n",
            "WAF_LOG_FILE /nowhere/log cannot be opened",
        ),
        (
            "WAF_DENY_COUNTRIES=DE\n",
            "needs lookups and WAF_LOOKUP_SOURCE=\"off\"",
        ),
        ("rules", "rules.json does not fit"),
    ];
    for (lines, told) in cases {
        if lines == "rules" {
            fs::write(&rules, "{\"version\":1,\"deny\":[{}]}").expect("writes");
        }
        let lines = if lines == "rules" { "" } else { lines };
        // What is sound of it is not taken either.
        let answer = service.reload(&application, &format!("WAF_DENY_RESPONSE=403\n{lines}"));
        let problem = answer.expect(422).json();
        let detail = problem["detail"].as_str().expect("a detail");
        assert!(
            detail.starts_with("nothing is changed: ") && detail.contains(told),
            "{detail}"
        );
        weir.wait_for_process_log(&[
            "the reload is refused, nothing is changed: ",
            &told.replace('"', "\\\""),
        ]);
        weir.get("/", "203.0.113.7").expect(429);
        weir.admin("GET", "/_waf/bans", None).expect(200);
    }
    fs::remove_file(&rules).expect("removes");
    service.take(
        &application,
        "WAF_DENY_NETS=203.0.113.0/24\nWAF_DENY_RESPONSE=403\n",
    );
    weir.get("/", "203.0.113.7").expect(403);
}

/// RELOAD-3: SIGHUP opens a log that was moved away again, also where the reload finds a fault.
#[test]
fn a_fault_does_not_keep_the_old_log_open() {
    let application = Application::ok();
    let directory = state_dir();
    let log = directory.path().join("weir.log");
    let lines = format!("WAF_LOG_FILE={}\n", log.display());
    let service = Reloading::start(&application, &lines);
    fs::rename(&log, directory.path().join("weir.log.1")).expect("moves");
    write(&service.file, "WAF_MODE=watch\n");
    service.weir.signal("HUP");
    wait_until("the new file", || log.exists());
    service.weir.get("/after", "203.0.113.7").expect(200);
    wait_until("its line", || {
        fs::read_to_string(&log).is_ok_and(|text| text.contains("/after"))
    });
}

/// RELOAD-2: a request has one set of settings from its head to its end, also where it began before
/// the reload and ends after it.
#[test]
fn a_request_keeps_its_settings() {
    let application = Application::ok();
    let service = Reloading::start(&application, "WAF_MAX_BODY_SIZE=100000\n");
    let weir = &service.weir;
    let head = |client: &str| {
        format!(
            "POST / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: {client}\r\nTransfer-Encoding: chunked\r\n\r\n\
             {:x}\r\n{}\r\n",
            GATHERED,
            "x".repeat(GATHERED)
        )
    };
    let rest = "a\r\n0123456789\r\n0\r\n\r\n";
    let mut begun = Connection::open(weir.address());
    begun.send(head("203.0.113.1").as_bytes());
    wait_until("the request is under way", || application.connections() > 0);
    service.take(
        &application,
        "WAF_MAX_BODY_SIZE=15\nWAF_DENY_NETS=203.0.113.0/24\n",
    );
    begun.send(rest.as_bytes());
    begun.response().expect(200);
    // The next one of the same connection has the new ones.
    begun.send(&get("/", &[("X-Forwarded-For", "203.0.113.1")]));
    begun.response().expect(429);
    let mut next = Connection::open(weir.address());
    next.send(format!("{}{rest}", head("198.51.100.1")).as_bytes());
    next.response().expect(413);
}

/// What one set of lines makes of a service, in a word.
type Probe = fn(&Weir) -> String;

/// Settings, and a behaviour that shows that a change of them is taken.
struct Case {
    /// The heading of the settings that it is about.
    theme: &'static str,
    before: &'static str,
    after: &'static str,
    probe: Probe,
    seen: [&'static str; 2],
}

fn status(target: &str, client: &str, weir: &Weir) -> String {
    weir.get(target, client).status.to_string()
}

/// The status of the second request of a client that nobody else is.
fn second(weir: &Weir) -> String {
    let client = fresh_client();
    weir.get("/", &client);
    status("/", &client, weir)
}

fn fresh_client() -> String {
    use std::sync::atomic::{AtomicU16, Ordering};
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let [high, low] = NEXT.fetch_add(1, Ordering::SeqCst).to_be_bytes();
    format!("10.{high}.{low}.1")
}

/// A member of the newest ban of a client that exceeds a limit.
fn ban_of(member: &str, weir: &Weir) -> String {
    let client = fresh_client();
    for _ in 0..4 {
        weir.get("/", &client);
    }
    let ban = wait_for("the ban", || {
        let bans = weir.bans();
        bans.into_iter()
            .find(|ban| ban["client"] == client.as_str())
    });
    let text = |name: &str| ban[name].as_str().unwrap_or_default().to_owned();
    match member {
        "length" => {
            let time = |name: &str| crate::support::weir::ms(&json!(text(name)));
            ((time("ban_expires") - time("ban_started")) / 1000).to_string()
        }
        "prefix" => text("netblock")
            .rsplit('/')
            .next()
            .unwrap_or_default()
            .to_owned(),
        other => text(other),
    }
}

fn logged(member: &str, weir: &Weir) -> String {
    let path = format!("/{}", fresh_client());
    let bytes = get(
        &path,
        &[("X-Forwarded-For", "203.0.113.9"), ("X-Extra", "e")],
    );
    weir.send(&bytes);
    let line = weir.line_of(&path);
    let value = &line[member];
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned)
}

/// How a connection ends whose head does not come.
fn unfinished_head(weir: &Weir) -> String {
    let mut connection = Connection::open(weir.address());
    connection.set_patience(Duration::from_secs(4));
    connection.send(b"GET / HTTP/1.1\r\nHost: a\r\n");
    connection
        .try_response(false)
        .map_or_else(|_| "waits".to_owned(), |answer| answer.status.to_string())
}

/// Whether it comes; what does not costs three seconds.
fn comes(mut is_there: impl FnMut() -> bool) -> bool {
    let end = std::time::Instant::now() + Duration::from_secs(3);
    while !is_there() {
        if std::time::Instant::now() >= end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    true
}

/// How many of three connections of one untrusted client are served.
fn connections(weir: &Weir) -> String {
    wait_until("no connection of before", || {
        let status = weir.control("GET", "/v1/status", None).json();
        status["connections"]["open"] == 0
    });
    let open: Vec<_> = (0..3)
        .map(|_| {
            let mut connection = Connection::open_from(weir.address(), "127.0.0.77");
            connection.send(&get("/_waf/health", &[]));
            let answered = connection.try_response(false).is_ok();
            (connection, answered)
        })
        .collect();
    open.iter()
        .filter(|(_, answered)| *answered)
        .count()
        .to_string()
}

const CASES: &[Case] = &[
    Case {
        theme: "Service",
        before: "WAF_DENY_NETS=203.0.113.0/24\n",
        after: "WAF_DENY_NETS=203.0.113.0/24\nWAF_MODE=observe\n",
        probe: |weir| status("/", "203.0.113.1", weir),
        seen: ["429", "200"],
    },
    Case {
        theme: "Clients",
        before: "WAF_DENY_NETS=203.0.113.0/24\n",
        after: "WAF_DENY_NETS=203.0.113.0/24\nWAF_TRUSTED_PROXIES=192.0.2.1\n",
        probe: |weir| status("/", "203.0.113.1", weir),
        seen: ["429", "200"],
    },
    Case {
        theme: "Clients",
        before: "WAF_DENY_NETS=203.0.113.0/24\n",
        after: "WAF_DENY_NETS=203.0.113.0/24\nWAF_CLIENT_IP_HEADER=X-Real-IP\n",
        probe: |weir| {
            let fields = [
                ("X-Forwarded-For", "198.51.100.1"),
                ("X-Real-IP", "203.0.113.1"),
            ];
            weir.send(&get("/", &fields)).status.to_string()
        },
        seen: ["200", "429"],
    },
    Case {
        theme: "Lists",
        before: "WAF_DENY_NETS=203.0.113.0/24\n",
        after: "WAF_DENY_NETS=203.0.113.0/24\nWAF_ALLOW_NETS=203.0.113.1,192.0.2.200\n",
        probe: |weir| status("/", "203.0.113.1", weir),
        seen: ["429", "200"],
    },
    Case {
        theme: "Lists",
        before: "WAF_RATE_LIMIT_PER_HOUR=1\n",
        after: "WAF_RATE_LIMIT_PER_HOUR=1\nWAF_EXEMPT_PATHS=/\n",
        probe: second,
        seen: ["429", "200"],
    },
    Case {
        theme: "Limits",
        before: "",
        after: "WAF_RATE_LIMIT_PER_MINUTE=1\n",
        probe: second,
        seen: ["200", "429"],
    },
    Case {
        theme: "Limits",
        before: "WAF_RATE_LIMIT_PER_SECOND=1\n",
        after: "WAF_RATE_LIMIT_PER_SECOND=1000\n",
        probe: |weir| {
            let client = fresh_client();
            // A busy machine may need a second for one.
            let refused = (0..20).any(|_| weir.get("/", &client).status == 429);
            if refused { "429" } else { "200" }.to_owned()
        },
        seen: ["429", "200"],
    },
    Case {
        theme: "Limits",
        before: "WAF_RATE_LIMIT_HEADERS=always\n",
        after: "WAF_RATE_LIMIT_HEADERS=off\n",
        probe: |weir| {
            weir.get("/", "10.9.9.9")
                .header("ratelimit")
                .is_some()
                .to_string()
        },
        seen: ["true", "false"],
    },
    Case {
        theme: "Limits",
        before: "",
        after: "WAF_MAX_BODY_SIZE=3\n",
        probe: |weir| {
            let fields = [("X-Forwarded-For", "10.9.9.8")];
            weir.send(&request("POST", "/", &fields, Some(b"four")))
                .status
                .to_string()
        },
        seen: ["200", "413"],
    },
    Case {
        theme: "Bans",
        before: "WAF_RATE_LIMIT_PER_HOUR=1\n",
        after: "WAF_RATE_LIMIT_PER_HOUR=1\nWAF_BAN_FIRST=2h\n",
        probe: |weir| ban_of("length", weir),
        seen: ["3600", "7200"],
    },
    Case {
        theme: "Bans",
        before: "WAF_RATE_LIMIT_PER_HOUR=1\n",
        after: "WAF_RATE_LIMIT_PER_HOUR=1\nWAF_BAN_IPV4_PREFIX=31\n",
        probe: |weir| ban_of("prefix", weir),
        seen: ["24", "31"],
    },
    Case {
        theme: "Bans",
        before: "WAF_DENY_NETS=203.0.113.0/24\nWAF_BAN_RESPONSE=503\n",
        after: "WAF_DENY_NETS=203.0.113.0/24\nWAF_DENY_RESPONSE=403\n",
        probe: |weir| status("/", "203.0.113.1", weir),
        seen: ["503", "403"],
    },
    Case {
        theme: "Connections",
        before: "WAF_TRUSTED_PROXIES=192.0.2.1\n",
        after: "WAF_TRUSTED_PROXIES=192.0.2.1\nWAF_MAX_CONNECTIONS_PER_CLIENT=1\n",
        probe: connections,
        seen: ["3", "1"],
    },
    Case {
        theme: "Time-outs",
        before: "",
        after: "WAF_HEADER_TIMEOUT=1s\n",
        probe: unfinished_head,
        seen: ["waits", "408"],
    },
    Case {
        theme: "State",
        before: "WAF_STATE_COUNTER_INTERVAL=1h\n",
        after: "WAF_STATE_COUNTER_INTERVAL=50ms\n",
        probe: |weir| {
            weir.get("/", "10.9.9.7");
            comes(|| weir.state_path("clients.json").exists()).to_string()
        },
        seen: ["false", "true"],
    },
    Case {
        theme: "Metrics and administration",
        before: "",
        after: "WAF_METRICS_TOKEN=another-token-0002\n",
        probe: |weir| {
            let bearer = format!("Bearer {METRICS_TOKEN}");
            let fields = [("X-Forwarded-For", ADMIN), ("Authorization", &*bearer)];
            weir.send(&get("/_waf/metrics", &fields)).status.to_string()
        },
        seen: ["200", "401"],
    },
    Case {
        theme: "Alerts",
        before: "",
        after: "WAF_ANOMALY_TOTAL_REQUESTS_PER_MINUTE=1\n",
        probe: |weir| {
            for _ in 0..3 {
                weir.get("/", "10.9.9.6");
            }
            let raised = comes(|| {
                let alerts = weir.control("GET", "/v1/alerts", None).json();
                alerts["alerts"]
                    .as_array()
                    .is_some_and(|all| !all.is_empty())
            });
            u8::from(raised).to_string()
        },
        seen: ["0", "1"],
    },
    Case {
        theme: "TLS",
        before: "",
        after: "WAF_H2C=on\n",
        probe: |weir| {
            let mut connection = Connection::open(weir.address());
            connection.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0");
            // Where HTTP/2 is not spoken it is a bad request.
            let answer = connection.bytes(9);
            let is_http2 = answer.is_ok_and(|answer| !answer.starts_with(b"HTTP/1.1"));
            if is_http2 { "HTTP/2" } else { "HTTP/1.1" }.to_owned()
        },
        seen: ["HTTP/1.1", "HTTP/2"],
    },
    Case {
        theme: "Logs",
        before: "WAF_INSTANCE_NAME=one\n",
        after: "WAF_INSTANCE_NAME=two\n",
        probe: |weir| logged("instance", weir),
        seen: ["one", "two"],
    },
    Case {
        theme: "Logs",
        before: "",
        after: "WAF_LOG_REQUEST_HEADERS=X-Extra\n",
        probe: |weir| logged("headers", weir),
        seen: ["null", "{\"x-extra\":\"e\"}"],
    },
];

/// RELOAD-2: a change of a setting that is taken live takes effect: at least one behaviour of each
/// group of settings.
#[test]
fn what_is_taken_live_takes_effect() {
    let application = Application::ok();
    for case in CASES {
        let service = Reloading::start(&application, case.before);
        let seen = |after: usize| {
            let found = (case.probe)(&service.weir);
            assert_eq!(
                found, case.seen[after],
                "{} {after}: {:?}",
                case.theme, case.after
            );
        };
        seen(0);
        service.take(&application, case.after);
        seen(1);
        service.take(&application, case.before);
    }
    let shown: BTreeSet<&str> = CASES.iter().map(|case| case.theme).collect();
    for theme in table() {
        let mut settings = theme.rows.iter().flat_map(|row| &row.settings);
        let is_live = settings.any(|setting| setting.taken == Some(Taken::Live));
        // Lookups and fleets have tests of their own.
        let elsewhere = ["Countries and AS numbers", "Fleet"].contains(&theme.title);
        assert!(
            !is_live || elsewhere || shown.contains(theme.title),
            "{}",
            theme.title
        );
    }
}

/// RELOAD-2: the application may be another one.
#[test]
fn another_application_is_taken() {
    let first = Application::ok();
    let second = Application::start(|exchange| {
        exchange.read_body();
        exchange.record();
        exchange.answer(203, &[], b"second");
        After::KeepAlive
    });
    let service = Reloading::start(&first, "");
    let mut connection = Connection::open(service.weir.address());
    connection.send(&get("/", &[]));
    connection.response().expect(200);
    service.take(&second, "");
    connection.send(&get("/", &[]));
    connection.response().expect(203);
    service.take(&first, "");
    connection.send(&get("/", &[]));
    connection.response().expect(200);
}

/// RELOAD-2: reloads under load from four generators: no request fails, and no count is lost or
/// reset.
#[track_caller]
fn reloads(rounds: u64) {
    const NO_LIMITS: &str =
        "WAF_RATE_LIMIT_PER_MINUTE=off\nWAF_RATE_LIMIT_PER_HOUR=off\nWAF_RATE_LIMIT_PER_DAY=off\n";
    let application = Application::ok();
    let service = Reloading::start(&application, NO_LIMITS);
    let weir = &service.weir;
    let traffic = Traffic::start(weir.address());
    for round in 0..rounds {
        let lines = format!(
            "{NO_LIMITS}WAF_BYTES_LIMIT_PER_DAY={}G\nWAF_MAX_BODY_SIZE={}M\nWAF_KEEPALIVE_TIMEOUT={}s\n\
             WAF_DENY_NETS=203.0.113.{}\n",
            200 + round,
            200 + round,
            200 + round,
            round % 250,
        );
        let told = service.take(&application, &lines);
        assert!(texts(&told["taken"]).len() >= 4, "{told}");
        weir.get("/", &format!("203.0.113.{}", round % 250))
            .expect(429);
    }
    let (requests, longest) = traffic.finish();
    let counted = || {
        let each = (0..GENERATORS).map(|number| {
            let target = format!("/v1/clients/10.1.{number}.1");
            let client = weir.control("GET", &target, None).expect(200).json();
            client["client"]["passed"].as_u64().expect("a number")
        });
        each.sum::<u64>()
    };
    // A request is counted when its answer has been written, a moment after the client has it.
    wait_until("each request is counted", || counted() >= requests);
    assert_eq!(counted(), requests);
    println!(
        "{rounds} reloads, {requests} requests, longest wait {:.0} ms",
        milliseconds(longest)
    );
    assert!(requests > rounds);
}

/// RELOAD-2: a hundred.
#[test]
fn a_hundred_reloads_lose_nothing() {
    reloads(100);
}

/// RELOAD-2: a lookup service is asked as the new settings say, at another place and with other
/// roots; a country list that comes with it holds for clients that are known already.
#[test]
fn another_lookup_service_is_asked() {
    let application = Application::ok();
    let first = Geo::saying(r#"{"country_code":"DE"}"#);
    let second = Geo::saying(r#"{"country_code":"FR"}"#);
    let lines = |geo: &Geo, more: &str| {
        let settings = geo.settings(&[]).into_iter();
        let lines = settings.map(|(name, value)| format!("{name}={value}\n"));
        lines.collect::<String>() + more
    };
    let service = Reloading::start(&application, &lines(&first, "WAF_DENY_COUNTRIES=US\n"));
    let weir = &service.weir;
    weir.get("/", "81.2.69.7").expect(200);
    assert_eq!(first.asked(), ["81.2.69.7"]);
    service.take(&application, &lines(&second, "WAF_DENY_COUNTRIES=DE\n"));
    weir.get("/", "81.2.69.7").expect(429);
    weir.get("/", "81.2.69.8").expect(200);
    assert_eq!(second.asked(), ["81.2.69.8"]);
    service.take(&application, &lines(&second, "WAF_DENY_COUNTRIES=FR\n"));
    weir.get("/", "81.2.69.7").expect(200);
    weir.get("/", "81.2.69.8").expect(429);
    // Only other sources need a restart.
    let told = service.take(&application, "WAF_LOOKUP_SOURCE=off\n");
    assert_eq!(texts(&told["restart"]), ["WAF_LOOKUP_SOURCE geojs -> off"]);
}
