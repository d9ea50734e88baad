//! Paths that ban who asks for them (RULE-3), and answers that ban where there are too many of them
//! (RULE-4).

use serde_json::{Value, json};

use super::{ban_of, hits, start, statuses};
use crate::support::application::{After, Application};
use crate::support::frames::{self, Frames, HEADERS, Reaction, WHOLE, frame};
use crate::support::raw_client::{Connection, get};

const TRAPS: &str =
    r#"{"version":1,"traps":[{"name":"scanner","paths":["/.env","/wp-login.php","/.git/"]}]}"#;

/// RULE-3, RULE-8: a trap is never forwarded, however it is written, and bans the client. In
/// observe mode it is forwarded, and the same is told.
#[test]
fn a_trap_bans() {
    for mode in ["enforce", "observe"] {
        let application = Application::ok();
        let settings = [
            ("WAF_MODE", mode),
            ("WAF_EXEMPT_PATHS", "/static"),
            ("WAF_RATE_LIMIT_PER_DAY", "1"),
        ];
        let (weir, _state) = start(&application, TRAPS, &settings);
        let paths = [
            "/.env",
            "//%2eenv",
            "/a/../.git",
            "/.git/config",
            "/wp-login.php?x=1",
        ];
        for (number, path) in paths.iter().enumerate() {
            let answer = weir.get(path, &format!("203.0.{number}.7"));
            assert_eq!(
                answer.status,
                if mode == "enforce" { 429 } else { 200 },
                "{path}"
            );
            let line = weir.line_of(path.split('?').next().unwrap());
            assert_eq!(line["action"], "trapped", "{path}");
            assert_eq!(line["rule"], json!({"name": "scanner", "kind": "trap"}));
            assert_eq!(line["enforced"], mode == "enforce");
            assert!(line.get("counts").is_none(), "before the count: {line}");
        }
        for path in ["/.envx", "/.github", "/static/../wp-login.phpx"] {
            // Each client has one request a day: a trap must not have counted.
            let client = format!("198.51.{}.7", path.len());
            weir.get(path, &client).expect(200);
        }
        weir.get("/static/.env", "192.0.2.1").expect(200);
        let ban = ban_of(&weir, "trap");
        assert!(ban["netblock"].as_str().unwrap().ends_with("/32"), "{ban}");
        assert_eq!(ban["reason"], "a path of the trap scanner");
        assert_eq!(
            ban["notes"]["rule"],
            json!({"name": "scanner", "kind": "trap"})
        );
        crate::support::wait_until("every ban", || weir.bans().len() == paths.len());
        assert_eq!(hits(&weir, "scanner", "trap"), Some(5.0));
        weir.get("/next", "203.0.0.7");
        assert_eq!(weir.line_of("/next")["action"], "banned");
        weir.get("/beside", "203.0.0.9").expect(200);
        let forwarded = application.requests().len();
        assert_eq!(forwarded, if mode == "enforce" { 5 } else { 11 });
    }
}

/// RULE-3, BAN-1: traps go up the same escalation as limits: a second ban is three times as long.
#[test]
fn a_trap_escalates() {
    let application = Application::ok();
    let settings = [("WAF_BAN_FIRST", "100ms"), ("WAF_BAN_RESPONSE", "403")];
    let (weir, _state) = start(&application, TRAPS, &settings);
    weir.get("/.env", "203.0.113.7").expect(403);
    ban_of(&weir, "trap");
    crate::support::wait_until("the end of the ban", || {
        weir.get("/a", "203.0.113.7").status == 200
    });
    weir.get("/.env", "203.0.113.7").expect(403);
    crate::support::wait_until("the second ban", || weir.bans().len() == 2);
    let length = |ban: &Value| {
        crate::support::weir::ms(&ban["ban_expires"])
            - crate::support::weir::ms(&ban["ban_started"])
    };
    let lengths: Vec<u64> = weir.bans().iter().map(length).collect();
    assert_eq!(lengths, [100, 300]);
}

/// RULE-4, RULE-8: too many answers of a status ban the client; nothing is cut short, and the
/// request that was one too many has its answer. Paths, and answers with other statuses, do not
/// count.
#[test]
fn a_jail_bans() {
    for mode in ["enforce", "observe"] {
        let application = statuses();
        let rules = r#"{"version":1,"jails":[
            {"name":"not-found","statuses":[404],"per_day":3},
            {"name":"auth","path":"/login","statuses":[401,403],"per_day":2}]}"#;
        let (weir, _state) = start(&application, rules, &[("WAF_MODE", mode)]);
        for number in 0..3 {
            weir.get(&format!("/{number}/404"), "203.0.113.7")
                .expect(404);
        }
        for path in ["/login/401", "/x/401", "/login/403", "/x/403", "/x/200"] {
            weir.get(path, "203.0.113.7")
                .expect(path[path.len() - 3..].parse().unwrap());
        }
        assert_eq!(weir.bans(), Vec::<Value>::new());
        weir.get("/last/404", "203.0.113.7").expect(404);
        let line = weir.line_of("/last/404");
        assert_eq!(
            (&line["action"], &line["status"]),
            (&json!("passed"), &json!(404))
        );
        assert_eq!(line["rule"], json!({"name": "not-found", "kind": "jail"}));
        let ban = ban_of(&weir, "jail");
        assert_eq!(
            ban["reason"],
            "more than 3 answers that the jail not-found counts per day"
        );
        assert_eq!(
            ban["notes"]["rule"],
            json!({"name": "not-found", "kind": "jail", "window": "day"})
        );
        assert_eq!(ban["observed"], mode == "observe");
        weir.get("/after", "203.0.113.7")
            .expect(if mode == "enforce" { 429 } else { 200 });
        weir.get("/beside", "203.0.113.8").expect(200);
        for path in ["/login/401", "/login/x/403", "/y/../login/401"] {
            weir.get(path, "198.51.100.7");
        }
        crate::support::wait_until("the other ban", || weir.bans().len() == 2);
        assert_eq!(hits(&weir, "not-found", "jail"), Some(1.0));
        assert_eq!(hits(&weir, "auth", "jail"), Some(1.0));
    }
}

/// RULE-4: an answer of ours is none of the application's: refusals and 502 fill no jail.
#[test]
fn our_own_answers_fill_no_jail() {
    let (nobody, _kept) = Application::nobody();
    let state = crate::support::weir::state_dir();
    let rules = r#"{"version":1,"jails":[{"name":"all","statuses":[404,429,502],"per_day":1}]}"#;
    std::fs::write(state.path().join("rules.json"), rules).unwrap();
    let settings = [("WAF_ON_LIMIT", "refuse"), ("WAF_RATE_LIMIT_PER_DAY", "3")];
    let weir = crate::support::weir::Weir::start_at(nobody, &state, &settings);
    for expected in [502, 502, 404, 429, 429] {
        let path = if expected == 404 {
            "/_waf/nothing"
        } else {
            "/a"
        };
        weir.get(path, "203.0.113.7").expect(expected);
    }
    assert_eq!(weir.bans(), Vec::<Value>::new());
}

const GUESSES: &str =
    r#"{"version":1,"jails":[{"name":"auth","path":"/login","statuses":[401],"per_day":10}]}"#;

/// Answers 401 and holds back the end of the answer until weir goes.
fn never_ending() -> Application {
    Application::start(|exchange| {
        exchange.read_body();
        exchange.send(b"HTTP/1.1 401 X\r\nContent-Length: 100000\r\n\r\nx");
        exchange.wait_for_close();
        After::Close
    })
}

/// RULE-9: whoever has read a status has guessed: answers that do not end fill a jail as others do,
/// and each counts once.
#[test]
fn a_held_answer_fills_a_jail() {
    let application = never_ending();
    let (weir, _state) = start(&application, GUESSES, &[]);
    let fields = [("X-Forwarded-For", "203.0.113.7")];
    let ask = || {
        let mut connection = Connection::open(weir.address());
        connection.send(&get("/login", &fields));
        let status = connection.head().expect("an answer").status;
        (connection, status)
    };
    let mut held = Vec::new();
    for guess in 1..=11 {
        assert_eq!(weir.bans(), Vec::<Value>::new(), "before guess {guess}");
        let (connection, status) = ask();
        assert_eq!(status, 401);
        held.push(connection);
    }
    assert_eq!(ban_of(&weir, "jail")["netblock"], "203.0.113.7/32");
    for _ in 11..250 {
        assert_eq!(ask().1, 429);
    }
    assert_eq!(application.requests().len(), 11);
    drop(held);
    assert_eq!(weir.lines_of("/login", 250).len(), 250);
    assert_eq!(hits(&weir, "auth", "jail"), Some(1.0));
    assert_eq!(weir.bans().len(), 1);
}

/// RULE-9: the same over HTTP/2, whose streams a client may hold by the hundred with one window.
#[test]
fn held_streams_fill_a_jail() {
    let application = Application::start(|exchange| {
        exchange.read_body();
        exchange.answer(401, &[], b"wrong");
        After::KeepAlive
    });
    let (weir, _state) = start(&application, GUESSES, &[("WAF_H2C", "on")]);
    let fields: [(&str, &[u8]); 1] = [("x-forwarded-for", b"203.0.113.7")];
    let head = frames::get("/login", &fields);
    let mut guesses = 0;
    let mut held = Vec::new();
    for _ in 0..7 {
        // No byte of a body may come.
        let mut connection = Frames::open_with(weir.address(), &[(4, 0)]);
        for stream in (1..256).step_by(2) {
            if guesses == 11 {
                ban_of(&weir, "jail");
            }
            connection.send(&frame(HEADERS, WHOLE, stream, &head));
            guesses += 1;
            match connection.reaction(stream) {
                Reaction::Status(status) => {
                    assert_eq!(status, if guesses <= 11 { 401 } else { 429 })
                }
                // One connection has only so many refusals.
                Reaction::Goaway(_) | Reaction::Closed if guesses > 12 => break,
                other => panic!("{other:?} to guess {guesses}"),
            }
        }
        held.push(connection);
    }
    assert_eq!(application.requests().len(), 11);
}
