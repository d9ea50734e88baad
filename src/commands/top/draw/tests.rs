use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::super::source;
use super::super::source::{By, Command, Groups, Look, Sort, Wanted};
use super::*;
use crate::commands::paths::{Report, Row};

const NOW: u64 = 1_795_276_800_000;

/// The document of an answer.
fn of<T: DeserializeOwned>(answer: Value) -> T {
    serde_json::from_value(answer).unwrap()
}

fn look(requests: u64, now_ms: u64) -> source::Report {
    let client = |name: &str, country: &str, asn: &str, counts: [u64; 3], ban: Value| {
        json!({
            "client": name,
            "first_seen": "2026-11-21T09:00:00Z",
            "last_seen": "2026-11-21T15:59:58Z",
            "lookup": {"country": country, "asn": asn},
            "passed": counts[1],
            "refused": counts[2],
            "requests": {"day": {"start": "2026-11-21T00:00:00Z", "current": counts[0], "previous": 0}},
            "ban_expires": ban,
        })
    };
    let ban = |netblock: &str, expires: &str, cause: &str, reason: &str, of: Value| {
        json!({
            "netblock": netblock, "client": of, "ban_started": "2026-11-21T15:41:00Z",
            "ban_expires": expires, "cause": cause, "reason": reason, "lifted": null,
            "observed": false, "notes": {"netblock_requests": 8120},
        })
    };
    source::Report::Look(Box::new(Look {
        status: of(json!({
            "version": "0.1.0", "mode": "enforce", "uptime_seconds": 273_600,
            "address": "127.0.0.1:8080", "upstream": "127.0.0.1:3000",
            "recent": {
                "seconds": 300, "requests": 63_720, "passed": 62_509, "refused": 1_211,
                "actions": {"passed": 62_509, "banned": 1_147, "rate_limited": 48, "denied_net": 16},
                "upstream": {"p99_seconds": 0.05, "responses": {"2xx": 62_301, "5xx": 12}},
            },
            "total": {"requests": requests},
            "bans": {"active": 3, "max": 10_000},
            "clients": {"held": 8912, "max": 20_000},
            "connections": {"open": 120, "max": 10_000},
            "shared_limits": [{"rule": "search", "used": 0.873, "keys": 1, "hits": 1020}],
            "crawlers": [
                {"name": "googlebot", "purpose": "search", "state": "verified", "passed": 512, "refused": 0},
                {"name": "googlebot", "purpose": "search", "state": "fake", "passed": 0, "refused": 77},
            ],
        })),
        clients: of(json!({"held": 8912, "clients": [
            client("203.0.113.7", "DE", "AS64496", [9_020, 7_960, 1_060], json!("2026-11-21T16:41:00Z")),
            client("198.51.100.23", "US", "AS64511", [4_310, 4_310, 0], Value::Null),
            client("2001:db8:5:1::/64", "FR", "AS64499", [3_877, 3_865, 12], json!("permanent")),
            client("192.0.2.81", "NL", "AS64502", [911, 911, 0], Value::Null),
        ]})),
        bans: of(json!({"bans": [
            ban("192.0.2.0/25", "2026-11-27T16:00:00Z", "admin", "ops-17", Value::Null),
            ban("2001:db8:5::/56", "permanent", "rate_limit", "more than 1000 requests per minute", json!("2001:db8:5:1::/64")),
            ban("203.0.113.0/24", "2026-11-21T16:41:00Z", "rate_limit", "more than 1000 requests per minute", json!("203.0.113.7")),
        ]})),
        alerts: of(json!({"alerts": [
            {"time": "2026-11-21T15:41:00Z", "kind": "ban", "netblock": "203.0.113.0/24", "reason": "more than 1000 requests per minute"},
        ]})),
        history: of(json!({
            "passed": [9_000, 9_400, 11_000, 12_600, 12_100, 12_500, 12_509],
            "refused": [0, 0, 0, 12, 640, 580, 3],
        })),
        fleet: None,
        groups: None,
        now_ms,
    }))
}

fn groups(by: By) -> Groups {
    let group = |name: &str, counts: [u64; 5]| {
        let [clients, banned, requests, passed, refused] = counts;
        json!({
            "group": name, "name": "Example Networks", "clients": clients, "banned": banned,
            "requests": requests, "passed": passed, "refused": refused, "bytes": 1,
            "last_seen": "2026-11-21T15:59:58Z",
        })
    };
    let rows = json!({"by": by.name(), "held": 3, "groups": [
        group("203.0.113.0/24", [17, 17, 12_004, 9_120, 2_884]),
        group("198.51.100.0/24", [3, 0, 4_480, 4_480, 0]),
        group("2001:db8:5::/56", [1, 1, 3_877, 3_865, 12]),
    ]});
    Groups::Clients(by, of(rows))
}

fn some_paths() -> Groups {
    let row = |path: &str, requests, refused, failed, status| Row {
        path: path.to_owned(),
        requests,
        refused,
        failed,
        status,
    };
    Groups::Paths(Report {
        paths: vec![
            row("/search", 3120, 1020, 4, 429),
            row("/", 1407, 0, 0, 200),
            row("/wp-login.php", 88, 88, 0, 429),
        ],
        requests: 4615,
        left_out: 8129,
        fault: None,
    })
}

fn screen() -> Screen {
    let mut screen = Screen::default();
    screen.take(look(1_000_000, NOW - 1000));
    screen.take(look(1_000_214, NOW));
    screen
}

/// CONTROL-3: a list of groups is requested when it is chosen, and only its own rows are shown; a
/// netblock is banned, lifted and allowed as it stands, an AS and a path are not.
#[test]
fn groups_are_shown_and_netblocks_banned() {
    let mut screen = screen();
    let wanted = |by| {
        Command::Look(Wanted {
            sort: Sort::Requests,
            by: Some(by),
            bans: false,
        })
    };
    assert_eq!(press(&mut screen, "3"), Some(wanted(By::Asn)));
    screen.look.as_mut().unwrap().groups = Some(groups(By::Netblock));
    assert!(screen.rows().is_empty());
    assert_eq!(press(&mut screen, "2"), Some(wanted(By::Netblock)));
    assert_eq!(screen.rows().len(), 3);
    let netblock = || "203.0.113.0/24".to_owned();
    assert_eq!(
        press(&mut screen, "by"),
        Some(Command::BanNetblock(netblock()))
    );
    assert_eq!(press(&mut screen, "uy"), Some(Command::Lift(netblock())));
    assert_eq!(press(&mut screen, "ay"), Some(Command::Allow(netblock())));
    let first = "203.0.113.0".to_owned();
    assert_eq!(press(&mut screen, "\n"), Some(Command::Explain(first)));
    for (key, by, rows) in [
        ("3", By::Asn, groups(By::Asn)),
        ("5", By::Path, some_paths()),
    ] {
        assert_eq!(press(&mut screen, key), Some(wanted(by)));
        screen.look.as_mut().unwrap().groups = Some(rows);
        assert_eq!(screen.rows().len(), 3);
        for keys in ["by", "uy", "ay", "\n"] {
            assert_eq!(press(&mut screen, keys), None, "{key} {keys}");
        }
    }
    // All nine, in a circle.
    for _ in 0..9 {
        press(&mut screen, "\t");
    }
    assert_eq!(screen.pane, Pane::Paths);
}

fn press(screen: &mut Screen, keys: &str) -> Option<Command> {
    let mut order = None;
    for key in keys.chars() {
        let code = match key {
            '\n' => KeyCode::Enter,
            '\x1b' => KeyCode::Esc,
            '\t' => KeyCode::Tab,
            'v' => KeyCode::Down,
            letter => KeyCode::Char(letter),
        };
        order = screen.key(KeyEvent::new(code, KeyModifiers::NONE));
    }
    order
}

fn drawn(screen: &Screen, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, screen)).unwrap();
    let buffer = terminal.backend().buffer();
    let lines = buffer.content().chunks(usize::from(width).max(1));
    let lines = lines.map(|cells| {
        let line: String = cells.iter().map(|cell| cell.symbol()).collect();
        line.trim_end().to_owned() + "\n"
    });
    lines.collect()
}

/// CONTROL-3: the screens of docs/top.txt are what is drawn at 80 columns and 24 lines.
#[test]
fn the_documented_screens_are_what_is_drawn() {
    let mut clients = screen();
    let mut bans = screen();
    press(&mut bans, "6");
    let mut netblocks = screen();
    assert!(press(&mut netblocks, "2").is_some());
    netblocks.look.as_mut().unwrap().groups = Some(groups(By::Netblock));
    let mut paths = screen();
    assert!(press(&mut paths, "5").is_some());
    paths.look.as_mut().unwrap().groups = Some(some_paths());
    assert_eq!(press(&mut clients, "vb"), None);
    let sure = drawn(&clients, 80, 24);
    press(&mut clients, "n");
    clients.note.clear();
    let mut help = screen();
    press(&mut help, "?");
    let shown = [
        ("The clients:", drawn(&screen(), 80, 24)),
        ("The netblocks:", drawn(&netblocks, 80, 24)),
        ("The paths:", drawn(&paths, 80, 24)),
        ("The bans:", drawn(&bans, 80, 24)),
        ("Before a ban:", sure),
        ("Help:", drawn(&help, 80, 24)),
    ];
    let shown = shown.map(|(title, text)| format!("{title}\n\n{text}\n"));
    let head = "Screens of `weir top` (written by a test: WEIR_BLESS=1 cargo test -p weir top)\n\n";
    let shown = format!("{head}{}", shown.concat());
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/top.txt");
    if std::env::var_os("WEIR_BLESS").is_some() {
        std::fs::write(path, &shown).unwrap();
    }
    assert_eq!(std::fs::read_to_string(path).unwrap(), shown);
}

/// CRAWL-7: crawlers are listed by name and state, with passed and refused requests; no key acts on
/// them.
#[test]
fn crawlers_are_shown() {
    let mut screen = screen();
    assert_eq!(press(&mut screen, "9"), None);
    let shown = drawn(&screen, 80, 24);
    let lines: Vec<Vec<&str>> = (shown.lines())
        .map(|line| line.split_whitespace().collect())
        .collect();
    for row in [
        ["CRAWLER", "PURPOSE", "STATE", "PASSED", "REFUSED"],
        ["googlebot", "search", "verified", "512", "0"],
        ["googlebot", "search", "fake", "0", "77"],
    ] {
        assert!(lines.contains(&row.to_vec()), "{row:?} is not in {shown}");
    }
    for keys in ["\n", "b", "u", "a"] {
        assert_eq!(press(&mut screen, keys), None, "{keys}");
    }
    press(&mut screen, "/fake\n");
    assert_eq!(screen.rows().len(), 1);
}

/// CONTROL-3: at 60 columns the banned clients are still visible; the head shows the application
/// and the last minutes.
#[test]
fn bans_are_seen_on_a_narrow_terminal() {
    let narrow = drawn(&screen(), 60, 20);
    let heading = narrow.lines().find(|line| line.starts_with("CLIENT"));
    assert!(
        heading.is_some_and(|line| line.ends_with("BAN")),
        "{narrow}"
    );
    assert!(
        narrow.contains("41 min") && !narrow.contains("SEEN"),
        "{narrow}"
    );
    // What is cut says so.
    let first: String = narrow.lines().take(1).collect();
    assert!(first.ends_with("to 127.0.0.…"), "{narrow}");
    let tabs = narrow.lines().find(|line| line.starts_with("1 Clients"));
    assert!(tabs.is_some_and(|line| line.ends_with('…')), "{narrow}");
    let wide = drawn(&screen(), 100, 20);
    assert!(!wide.contains('…'), "{wide}");
    assert!(wide.contains("SEEN") && wide.contains("AS64496"), "{wide}");
    let told = "app p99 50 ms, 5xx 0.0 %   passed ▅▆▇██▇█   refused    ▁█▇▁";
    assert!(
        wide.lines()
            .any(|line| line.len() > 20 && line.starts_with("app p99 50 ms, 5xx 0.0 %")),
        "{wide}"
    );
    assert!(
        told.contains(&sparkline(&[0, 0, 0, 12, 640, 580, 3])),
        "{wide}"
    );
    let mut observed = screen();
    observed.look.as_mut().unwrap().status.mode = "observe".to_owned();
    assert!(drawn(&observed, 100, 20).contains("would refuse 1.9 %"));
}

/// FLEET-29: in a fleet, a line of the head shows how many instances live and whether all hold the
/// same, or since when and why the instance is alone.
#[test]
fn the_head_tells_of_the_fleet() {
    let told = |fleet: Value| {
        let mut screen = screen();
        screen.look.as_mut().unwrap().fleet = of(fleet);
        let text = drawn(&screen, 80, 20);
        let line = text.lines().find(|line| line.starts_with("fleet"));
        // Nothing of the lists gives way but their last line.
        assert!(text.contains("app p99") && text.contains("1 Clients"));
        line.map(str::to_owned)
    };
    assert_eq!(told(Value::Null), None);
    let mut fleet = json!({
        "fleet": "weir", "instance": "edge-1", "engine": "127.0.0.1:6379", "state": "live",
        "in_step": true, "waiting": 0, "round_trip_ms": 1, "digest": "0",
        "instances": [{"state": "live"}, {"state": "joining"}, {"state": "gone"}],
    });
    let line = "fleet weir: 2 of 3 instances live, in step";
    assert_eq!(told(fleet.clone()).as_deref(), Some(line));
    fleet["in_step"] = json!(false);
    fleet["waiting"] = json!(7);
    let line = "fleet weir: 2 of 3 instances live, not in step, 7 events wait";
    assert_eq!(told(fleet.clone()).as_deref(), Some(line));
    fleet["state"] = json!("alone");
    fleet["alone_seconds"] = json!(90);
    fleet["why"] = json!("no answer within 1 s");
    let line = "fleet weir: alone for 1 min 30 s: no answer within 1 s";
    assert_eq!(told(fleet).as_deref(), Some(line));
}

/// CONTROL-3: no size is too small for any screen, and no text of a client steers the terminal.
#[test]
fn no_size_is_too_small() {
    for keys in ["", "2", "5", "6", "7", "9", "?", "b", "6u", "/abc", "s"] {
        let mut screen = screen();
        press(&mut screen, keys);
        for width in [0, 1, 2, 5, 17, 39, 60, 79, 200] {
            for height in [0, 1, 3, 5, 8, 24] {
                drawn(&screen, width, height);
            }
        }
    }
    let mut screen = screen();
    screen.over = Over::Text("x".repeat(5000) + "\n\u{1b}[31mred\n");
    assert!(!drawn(&screen, 40, 10).contains('\u{1b}'));
    drawn(&Screen::default(), 80, 24);
}

/// CONTROL-3: the keys sort, search, explain, and ban or lift after a confirmation.
#[test]
fn keys_do_what_the_help_says() {
    let mut screen = screen();
    let by_bytes = Wanted {
        sort: Sort::Bytes,
        by: None,
        bans: false,
    };
    assert_eq!(press(&mut screen, "s"), Some(Command::Look(by_bytes)));
    assert_eq!(
        press(&mut screen, "\n"),
        Some(Command::Explain("203.0.113.7".to_owned()))
    );
    assert_eq!(press(&mut screen, "vbn"), None);
    assert_eq!(
        press(&mut screen, "by"),
        Some(Command::Ban("198.51.100.23".to_owned()))
    );
    assert_eq!(
        press(&mut screen, "vuy"),
        Some(Command::Lift("2001:db8:5:1::".to_owned()))
    );
    press(&mut screen, "/as64502\n");
    assert_eq!(screen.rows().len(), 1);
    assert_eq!(
        press(&mut screen, "\n"),
        Some(Command::Explain("192.0.2.81".to_owned()))
    );
    press(&mut screen, "\x1b");
    assert_eq!(screen.rows().len(), 4);
    // The newest ban is the first.
    assert_eq!(
        press(&mut screen, "6uy"),
        Some(Command::Lift("203.0.113.0/24".to_owned()))
    );
    assert_eq!(press(&mut screen, "by"), None);
    press(&mut screen, "/none\n");
    assert_eq!(press(&mut screen, "uy"), None);
    assert!(!screen.quits);
    press(&mut screen, "q");
    assert!(screen.quits);
}
