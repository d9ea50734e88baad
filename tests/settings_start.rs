//! The start (SETTING): what stops it, what it says, and what it only warns of.

use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};

use rustix::process::Signal;

use crate::support::application::Application;
use crate::support::command::ran;
use crate::support::process::Process;
use crate::support::raw_client::{exchange, get};
use crate::support::weir::{Weir, state_dir};
use crate::support::{free_address, wait_for};

/// SETTING-1: each wrong value stops the start with 78, and its message has the name, the whole
/// value and what is expected. (The sentences themselves are judged where the settings are read.)
#[test]
fn every_wrong_value_is_explained() {
    // Batched: SETTING-1 has them reported together, so one start shows many.
    let batches: &[&[(&str, &str)]] = &[
        &[
            ("WAF_LISTEN", "nowhere"),
            ("WAF_UPSTREAM", "https://example.org"),
            ("WAF_MODE", "watch"),
            ("WAF_WORKERS", "0"),
            ("WAF_TRUSTED_PROXIES", "127.0.0.1, nonsense"),
            ("WAF_CLIENT_IP_HEADER", "not a header"),
            ("WAF_ALLOW_NETS", "203.0.113.0/33"),
            ("WAF_DENY_NETS", "example.org"),
            ("WAF_EXEMPT_PATHS", "static"),
            ("WAF_RATE_LIMIT_PER_MINUTE", "-1"),
            ("WAF_RATE_LIMIT_PER_HOUR", "many"),
            ("WAF_RATE_LIMIT_PER_DAY", "1.5"),
            ("WAF_BYTES_LIMIT_PER_MINUTE", "10g"),
            ("WAF_BYTES_LIMIT_PER_HOUR", "G"),
            ("WAF_BYTES_LIMIT_PER_DAY", "-5"),
            ("WAF_BYTES_COUNT", "all"),
            ("WAF_MAX_BODY_SIZE", "big"),
            ("WAF_RATE_LIMIT_HEADERS", "sometimes"),
        ],
        &[
            ("WAF_HEADER_TIMEOUT", "10"),
            ("WAF_BODY_TIMEOUT", "soon"),
            ("WAF_KEEPALIVE_TIMEOUT", "1w"),
            ("WAF_UPSTREAM_CONNECT_TIMEOUT", "s"),
            ("WAF_UPSTREAM_TIMEOUT", "-1s"),
            ("WAF_UPSTREAM_KEEPALIVE", "4"),
            ("WAF_WEBSOCKET_IDLE_TIMEOUT", "never"),
            ("WAF_MAX_CONNECTIONS", "0"),
            ("WAF_MAX_CONNECTIONS_PER_CLIENT", "x"),
            ("WAF_SHUTDOWN_TIMEOUT", "30"),
            ("WAF_BAN_FIRST", "off"),
            ("WAF_BAN_FACTOR", "off"),
            ("WAF_BAN_REPEAT_WINDOW", "off"),
            ("WAF_BAN_PERMANENT_AFTER", "off"),
            ("WAF_BAN_IPV4_PREFIX", "7"),
            ("WAF_BAN_IPV6_PREFIX", "65"),
            ("WAF_BAN_RESPONSE", "200"),
            ("WAF_MAX_BANS", "off"),
            ("WAF_STATE_WRITE_DELAY", "x"),
            ("WAF_STATE_COUNTER_INTERVAL", "x"),
            ("WAF_LOG_REQUESTS", "some"),
            ("WAF_LOG_REQUEST_HEADERS", "Accept, not a name"),
            ("WAF_LOG_LEVEL", "loud"),
        ],
        &[
            ("WAF_BAN_IPV4_PREFIX", "33"),
            ("WAF_BAN_IPV6_PREFIX", "15"),
            ("WAF_BAN_RESPONSE", "600"),
            ("WAF_BAN_FACTOR", "0"),
            ("WAF_BAN_FIRST", "0s"),
            ("WAF_LOG_REQUEST_HEADERS", "Host"),
            ("WAF_UPSTREAM", "127.0.0.1"),
        ],
        &[
            ("WAF_BAN_IPV4_PREFIX", "x"),
            ("WAF_LOG_REQUEST_HEADERS", "Transfer-Encoding"),
            ("WAF_UPSTREAM", "http://127.0.0.1:99999"),
            ("WAF_BAN_RESPONSE", "close"),
        ],
    ];
    for batch in batches {
        let refused = Weir::refuse(&state_dir(), batch);
        assert_eq!(refused.code, Some(78), "{refused:?}");
        let lines = refused.stderr.lines();
        let messages: Vec<&str> = lines
            .filter_map(|line| line.strip_prefix("weir: "))
            .collect();
        for (name, value) in *batch {
            let begin = format!("{name}={value:?} ");
            let message = messages.iter().find(|message| message.starts_with(&begin));
            let message = message.unwrap_or_else(|| panic!("{begin}: {}", refused.stderr));
            let (_, expected) = message.split_once("expected ").expect("what is expected");
            assert!(expected.len() > 3, "{message}");
        }
    }
}

/// SETTING-2: without an upstream there is nothing to protect.
#[test]
fn an_upstream_is_needed() {
    let refused = Weir::refuse(&state_dir(), &[("WAF_UPSTREAM", "")]);
    assert_eq!(refused.code, Some(78));
    assert!(refused.stderr.contains("WAF_UPSTREAM"), "{refused:?}");
}

/// SETTING-2, METRIC-3: both forms of a token contradict each other; their values are never shown.
/// A file that is not there stops the start too.
#[test]
fn both_forms_of_a_token_stop_the_start() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("token");
    std::fs::write(&path, "SECRET-FILE").expect("writes");
    for (setting, file) in [
        ("WAF_ADMIN_TOKEN", "WAF_ADMIN_TOKEN_FILE"),
        ("WAF_METRICS_TOKEN", "WAF_METRICS_TOKEN_FILE"),
    ] {
        let both = [
            (setting, "SECRET-VALUE"),
            (file, path.to_str().expect("a path")),
        ];
        let refused = Weir::refuse(&state_dir(), &both);
        assert_eq!(refused.code, Some(78));
        let told = format!("{setting} too: expected only one of them");
        assert!(refused.stderr.contains(&told), "{refused:?}");
        assert!(!refused.stderr.contains("SECRET-"), "{refused:?}");
        let missing = [(setting, ""), (file, "/nonexistent/token")];
        let missing = Weir::refuse(&state_dir(), &missing);
        assert_eq!(missing.code, Some(78));
        let told = format!("{file}: /nonexistent/token cannot be read");
        assert!(missing.stderr.contains(&told), "{missing:?}");
    }
}

/// SETTING-2: an address that somebody has, or that is not ours, cannot be listened on.
#[test]
fn an_address_in_use_stops_the_start() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = taken
        .local_addr()
        .map(|address| (address, taken))
        .expect("it");
    for address in [taken.0.to_string(), "192.0.2.1:8080".to_owned()] {
        let refused = Weir::refuse(&state_dir(), &[("WAF_LISTEN", &address)]);
        assert_eq!(refused.code, Some(78), "{refused:?}");
        assert!(refused.stderr.contains(&address), "{refused:?}");
    }
    // Two services would share a port unnoticed, because workers do.
    let application = Application::ok();
    let first = Weir::start(&application, &[]);
    let address = first.address().to_string();
    let second = Weir::refuse(&state_dir(), &[("WAF_LISTEN", &address)]);
    assert_eq!(second.code, Some(78), "{second:?}");
    assert!(second.stderr.contains(&address), "{second:?}");
}

/// CONN-4, SETTING-1: a start with too few open files is one sentence that names the limit and what
/// is needed, and with that many the service serves.
#[test]
fn too_few_open_files_stop_the_start() {
    let application = Application::ok();
    let state = state_dir();
    let (upstream, address) = (format!("http://{}", application.address()), free_address());
    let with = |limit: u64, arguments: &str| {
        let mut shell = Command::new("/bin/sh");
        shell
            .args(["-c", &format!("ulimit -n {limit}; exec \"$0\" {arguments}")])
            .arg(env!("CARGO_BIN_EXE_weir"))
            .env_clear()
            .env("WAF_STATE_DIR", state.path())
            .env("WAF_LISTEN", address.to_string())
            .env("WAF_UPSTREAM", &upstream)
            .env("WAF_LOOKUP_SOURCE", "off")
            .env("WAF_WORKERS", "2")
            .stdout(Stdio::null());
        shell
    };
    let told = "weir: 20 open files are allowed (LimitNOFILE=, ulimit -n): a start with these \
                settings needs 54, and 2 more for each connection\n";
    for arguments in ["", "check"] {
        let refused = ran(with(20, arguments).output().expect("runs"));
        assert_eq!((refused.code, &*refused.err), (78, told), "{arguments:?}");
    }
    let mut weir = Process::start(with(54, "").stderr(Stdio::null()));
    wait_for("the listener", || TcpStream::connect(address).ok());
    assert_eq!(exchange(address, &get("/a", &[])).status, 200);
    weir.signal(Signal::TERM);
    assert_eq!(weir.wait().code(), Some(0));
}

/// SETTING-2: an upstream that is the service itself would answer in circles.
#[test]
fn the_service_does_not_protect_itself() {
    // Bound and not listening: nobody else gets the port meanwhile.
    let (address, _bound) = Application::nobody();
    let address = address.to_string();
    let refused = Weir::refuse(
        &state_dir(),
        &[
            ("WAF_LISTEN", &address),
            ("WAF_UPSTREAM", &format!("http://{address}")),
        ],
    );
    assert_eq!(refused.code, Some(78), "{refused:?}");
    assert!(refused.stderr.contains("WAF_UPSTREAM"), "{refused:?}");
}

/// SETTING-1: an unknown name is a warning with the nearest known one.
#[test]
fn an_unknown_name_is_a_warning() {
    let application = Application::ok();
    let weir = Weir::start(
        &application,
        &[
            ("WAF_RATE_LIMIT_PER_MINUT", "5"),
            ("WAF_DENY_NET", "0.0.0.0/0"),
        ],
    );
    weir.wait_for_process_log(&[
        "WARN",
        "WAF_RATE_LIMIT_PER_MINUT",
        "WAF_RATE_LIMIT_PER_MINUTE",
    ]);
    weir.wait_for_process_log(&["WARN", "WAF_DENY_NET", "WAF_DENY_NETS"]);
    weir.get("/a", "203.0.113.7").expect(200);
}

/// SETTING-1: an empty value is an unset one.
#[test]
fn an_empty_value_is_unset() {
    let application = Application::ok();
    let weir = Weir::start(
        &application,
        &[
            ("WAF_MODE", ""),
            ("WAF_DENY_NETS", ""),
            ("WAF_RATE_LIMIT_PER_MINUTE", ""),
            ("WAF_BAN_RESPONSE", ""),
            ("WAF_WORKERS", ""),
        ],
    );
    weir.get("/a", "203.0.113.7").expect(200);
}

/// SETTING-4: an IPv6 listener, and lists with blanks.
#[test]
#[ignore = "needs IPv6 on loopback; .ci/run runs it"]
fn ipv6_can_be_listened_on() {
    let application = Application::ok();
    let weir = Weir::start(
        &application,
        &[
            ("WAF_LISTEN", "[::1]:0"),
            ("WAF_TRUSTED_PROXIES", " ::1 , 127.0.0.0/8 ,"),
        ],
    );
    weir.get("/six", "203.0.113.7").expect(200);
    assert_eq!(weir.line_of("/six")["client"], "203.0.113.7");
}

/// What the command line does not know is an error of usage and starts nothing.
#[test]
fn an_unknown_argument_starts_nothing() {
    let refused = Weir::try_start(
        &["no-such-command"],
        ([127, 0, 0, 1], 9).into(),
        &state_dir(),
        &[],
    );
    let refused = refused.err().expect("refused");
    assert_ne!(refused.code, Some(0));
    assert!(refused.stderr.contains("no-such-command"), "{refused:?}");
}
