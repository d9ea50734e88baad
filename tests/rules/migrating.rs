//! docs/migrating.md is true: every block of settings and of rules.json in it is run here (RULE-1
//! to RULE-5). A block without a case, and a case without a block, fail.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{send, statuses, waiting};
use crate::support::application::{After, Application};
use crate::support::raw_client::{Connection, get};
use crate::support::wait_until;
use crate::support::weir::{StateDir, Weir, state_dir};

const DOCUMENT: &str = include_str!("../../docs/migrating.md");

/// A block of the document: its language and its text.
type Block = (String, String);

/// The blocks behind a comment that names their test.
fn blocks() -> BTreeMap<String, Block> {
    let mut blocks = BTreeMap::new();
    let mut lines = DOCUMENT.lines();
    while let Some(line) = lines.next() {
        let Some(name) = line.strip_prefix("<!-- test: ") else {
            continue;
        };
        let name = name.strip_suffix(" -->").expect("the end of the comment");
        let language = lines.next().expect("a block").strip_prefix("```");
        let text: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
        let block = (language.expect("a block").to_owned(), text.join("\n"));
        assert!(
            blocks.insert(name.to_owned(), block).is_none(),
            "{name} is there twice"
        );
    }
    blocks
}

/// What a block is to do.
type Case = fn(&Block);

/// Every case with its name.
const CASES: [(&str, Case); 20] = [
    ("anubis", anubis),
    ("anubis-exempt", anubis_exempt),
    ("cloudflare", cloudflare),
    ("crowdsec", crowdsec),
    ("fail2ban-auth", fail2ban_auth),
    ("fail2ban-botsearch", fail2ban_botsearch),
    ("fail2ban-failregex", fail2ban_failregex),
    ("fail2ban-failregex-field", fail2ban_failregex_field),
    ("fail2ban-limit-req", fail2ban_limit_req),
    ("haproxy-bytes", haproxy_bytes),
    ("haproxy-errors", haproxy_errors),
    ("haproxy-office", haproxy_office),
    ("haproxy-rates", haproxy_rates),
    ("haproxy-shared", haproxy_shared),
    ("nginx-deny", nginx_deny),
    ("nginx-deny-403", nginx_deny_403),
    ("nginx-limit-conn", nginx_limit_conn),
    ("nginx-limit-req", nginx_limit_req),
    ("nginx-limit-req-all", nginx_limit_req_all),
    ("nginx-limit-req-location", nginx_limit_req_location),
];

/// RULE-1, RULE-2, RULE-3, RULE-4, RULE-5: each block does what the document says.
#[test]
fn every_block_does_what_it_says() {
    let blocks = blocks();
    let named: Vec<&str> = blocks.keys().map(String::as_str).collect();
    let cases: Vec<&str> = CASES.iter().map(|(name, _)| *name).collect();
    assert_eq!(named, cases);
    // Nothing that could be run stands in the document without being run.
    let runnable = DOCUMENT
        .lines()
        .filter(|line| ["```sh", "```json"].contains(line));
    assert_eq!(runnable.count(), blocks.len());
    for (name, case) in CASES {
        if let Some(block) = blocks.get(name) {
            eprintln!("{name}");
            case(block);
        }
    }
}

/// The service with a block, and its state directory. Clients have no limits but those of the
/// block.
fn with(block: &Block, application: &Application, lists: &[(&str, &str)]) -> (Weir, StateDir) {
    let (language, text) = block;
    let state = state_dir();
    for (name, list) in lists {
        std::fs::write(state.path().join(name), list).expect("writes the list");
    }
    let mut settings = vec![
        ("WAF_RATE_LIMIT_PER_MINUTE", "off"),
        ("WAF_RATE_LIMIT_PER_HOUR", "off"),
        ("WAF_RATE_LIMIT_PER_DAY", "off"),
    ];
    if language == "json" {
        std::fs::write(state.path().join("rules.json"), text).expect("writes rules.json");
    } else {
        settings.extend(
            text.lines()
                .map(|line| line.split_once('=').expect("a setting")),
        );
    }
    let weir = Weir::start_at(application.address(), &state, &settings);
    (weir, state)
}

/// The causes of the bans, once there are so many.
fn causes(weir: &Weir, count: usize) -> Vec<String> {
    wait_until(&format!("{count} bans"), || weir.bans().len() == count);
    let bans = weir.bans();
    bans.iter()
        .map(|ban| ban["cause"].as_str().expect("a cause").to_owned())
        .collect()
}

/// So many requests at once on one connection: how many were answered 200, and how long it took.
fn at_once(weir: &Weir, count: usize) -> (usize, u64) {
    let begun = std::time::Instant::now();
    let mut connection = Connection::open(weir.address());
    for _ in 0..count {
        connection.send(&get("/a", &[("X-Forwarded-For", "203.0.113.7")]));
    }
    let answers = (0..count).map(|_| connection.response().status);
    let passed = answers.filter(|status| *status == 200).count();
    (passed, begun.elapsed().as_secs())
}

fn nginx_limit_req(block: &Block) {
    let application = Application::ok();
    let (weir, _state) = with(block, &application, &[]);
    let (passed, seconds) = at_once(&weir, 60);
    assert!(
        (21..=21 + 10 * (seconds as usize + 1)).contains(&passed),
        "{passed} in {seconds} s"
    );
    assert_eq!(weir.bans(), Vec::<Value>::new());
}

fn nginx_limit_req_location(block: &Block) {
    let application = Application::ok();
    let (weir, _state) = with(block, &application, &[]);
    let all: Vec<u16> = (0..6)
        .map(|_| weir.get("/login", "203.0.113.7").status)
        .collect();
    assert_eq!(all, [200, 200, 200, 200, 200, 429]);
    weir.get("/other", "203.0.113.7").expect(200);
    assert_eq!(weir.bans(), Vec::<Value>::new());
}

fn nginx_limit_req_all(block: &Block) {
    let application = Application::ok();
    let (weir, _state) = with(block, &application, &[]);
    let mut connection = Connection::open(weir.address());
    let mut ask = |number: u32| {
        let client = format!("203.{}.{}.7", number / 250, number % 250);
        connection.send(&get("/search", &[("X-Forwarded-For", &client)]));
        connection.response().status
    };
    // A new minute may begin meanwhile.
    let passed = (0..1_300).filter(|number| ask(*number) == 200).count();
    assert!((600..=1_200).contains(&passed), "{passed}");
    weir.get("/other", "203.0.113.8").expect(200);
    assert_eq!(weir.bans(), Vec::<Value>::new());
}

fn nginx_limit_conn(block: &Block) {
    let (application, tell) = waiting();
    let (weir, _state) = with(block, &application, &[]);
    let mut slow = Vec::new();
    for number in 1..=8 {
        let mut connection = Connection::open(weir.address());
        connection.send(&get("/slow", &[("X-Forwarded-For", "203.0.113.7")]));
        wait_until("the request", || application.requests().len() == number);
        slow.push(connection);
    }
    weir.get("/ninth", "203.0.113.7").expect(429);
    weir.get("/other", "203.0.113.8").expect(200);
    drop(tell);
    for mut connection in slow {
        connection.response().expect(200);
    }
    wait_until("room", || weir.get("/after", "203.0.113.7").status == 200);
}

fn nginx_deny(block: &Block) {
    let application = Application::ok();
    let (weir, _state) = with(block, &application, &[("drop.txt", "203.0.113.0/24\n")]);
    weir.get("/a", "192.0.2.9").expect(200);
    weir.get("/a", "198.51.100.9").expect(429);
    weir.get("/a", "203.0.113.9").expect(429);
    weir.get("/a", "203.0.114.9").expect(200);
}

fn nginx_deny_403(block: &Block) {
    let application = Application::ok();
    let (weir, _state) = with(block, &application, &[]);
    weir.get("/a", "198.51.100.9").expect(403);
    weir.get("/a", "203.0.113.9").expect(200);
}

fn fail2ban_auth(block: &Block) {
    let application = statuses();
    let (weir, _state) = with(block, &application, &[]);
    for status in [401, 403, 401, 401, 401, 200, 401] {
        weir.get(&format!("/{status}"), "203.0.113.7")
            .expect(status);
    }
    assert_eq!(causes(&weir, 1), ["jail"]);
    weir.get("/200", "203.0.113.7").expect(429);
}

fn fail2ban_botsearch(block: &Block) {
    let application = statuses();
    let (weir, _state) = with(block, &application, &[]);
    weir.get("/phpmyadmin/index.php", "203.0.113.7").expect(429);
    for number in 0..31 {
        weir.get(&format!("/{number}/404"), "198.51.100.7")
            .expect(404);
    }
    assert_eq!(causes(&weir, 2), ["trap", "jail"]);
    weir.get("/200", "198.51.100.7").expect(429);
    weir.get("/200", "198.51.100.8").expect(200);
}

/// Says that a login failed, with 200.
fn failing() -> Application {
    Application::start(|exchange| {
        exchange.read_body();
        exchange.answer(200, &[("X-Waf", "count=login")], b"wrong");
        After::KeepAlive
    })
}

fn fail2ban_failregex(block: &Block) {
    let application = failing();
    let state = state_dir();
    std::fs::write(state.path().join("rules.json"), &block.1).expect("writes rules.json");
    let field = [("WAF_APPLICATION_FIELD", "X-Waf")];
    let weir = Weir::start_at(application.address(), &state, &field);
    for _ in 0..6 {
        let answer = weir.get("/login", "203.0.113.7").expect(200);
        assert_eq!(answer.header("x-waf"), None);
    }
    assert_eq!(causes(&weir, 1), ["jail"]);
    weir.get("/login", "203.0.113.7").expect(429);
}

fn fail2ban_failregex_field(block: &Block) {
    let application = failing();
    let (weir, _state) = with(block, &application, &[]);
    let answer = weir.get("/login", "203.0.113.7").expect(200);
    assert_eq!(answer.header("x-waf"), None);
}

fn fail2ban_limit_req(block: &Block) {
    let application = Application::ok();
    let (weir, _state) = with(block, &application, &[]);
    let mut count = 0;
    // A new minute may begin meanwhile: the one before still counts in part.
    while weir.get("/a", "203.0.113.7").status == 200 {
        count += 1;
        assert!(count <= 120, "nobody is banned");
    }
    assert!(count >= 60, "{count}");
    assert_eq!(causes(&weir, 1), ["rate_limit"]);
    weir.get("/a", "203.0.113.8").expect(429);
}

fn haproxy_rates(block: &Block) {
    let application = Application::ok();
    let (weir, _state) = with(block, &application, &[]);
    let (passed, seconds) = at_once(&weir, 150);
    assert!(
        (100..=100 + 10 * (seconds as usize + 1)).contains(&passed),
        "{passed} in {seconds} s"
    );
    assert_eq!(weir.bans(), Vec::<Value>::new());
}

fn haproxy_shared(block: &Block) {
    let application = Application::ok();
    let state = state_dir();
    std::fs::write(state.path().join("rules.json"), &block.1).expect("writes rules.json");
    let database = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/lite.mmdb");
    let settings = [
        ("WAF_LOOKUP_SOURCE", "file"),
        ("WAF_LOOKUP_DB_PATH", database),
    ];
    let weir = Weir::start_at(application.address(), &state, &settings);
    let mut connection = Connection::open(weir.address());
    let mut ask = |number: u32, key: &str| {
        let client = format!("203.0.{}.7", number % 250);
        let fields = [("X-Forwarded-For", client.as_str()), ("X-Api-Key", key)];
        connection.send(&get("/api", &fields));
        connection.response().status
    };
    let passed = (0..300).filter(|number| ask(*number, "one") == 200).count();
    assert!((120..=240).contains(&passed), "{passed}");
    assert_eq!(ask(0, "two"), 200);
}

fn haproxy_office(block: &Block) {
    let application = Application::ok();
    let (weir, _state) = with(block, &application, &[("office.lst", "192.0.2.0/24\n")]);
    weir.get("/admin/users", "192.0.2.9").expect(200);
    weir.get("/admin/users", "203.0.113.9").expect(403);
    weir.get("/a", "203.0.113.9").expect(200);
}

fn haproxy_errors(block: &Block) {
    let application = statuses();
    let (weir, _state) = with(block, &application, &[]);
    for number in 0..31 {
        let status = [400, 401, 403, 404, 405, 410][number % 6];
        weir.get(&format!("/{number}/{status}"), "203.0.113.7")
            .expect(status);
    }
    assert_eq!(causes(&weir, 1), ["jail"]);
}

fn haproxy_bytes(block: &Block) {
    let application = Application::start(|exchange| {
        exchange.read_body();
        exchange.answer(200, &[], &[b'x'; 60 << 10]);
        After::KeepAlive
    });
    let (weir, _state) = with(block, &application, &[]);
    weir.get("/one", "203.0.113.7").expect(200);
    // Its bytes are counted when its line is written, which is after the client has them.
    assert_eq!(weir.line_of("/one")["counts"]["day_bytes"], 60 << 10);
    weir.get("/two", "203.0.113.7").expect(200);
    let line = weir.line_of("/two");
    assert_eq!(line["counts"]["day_bytes"], 120 << 10);
    weir.get("/three", "203.0.113.7").expect(429);
    assert_eq!(weir.bans(), Vec::<Value>::new());
}

fn anubis(block: &Block) {
    let application = Application::ok();
    let (weir, _state) = with(block, &application, &[("googlebot.txt", "192.0.2.0/27\n")]);
    for _ in 0..25 {
        weir.get("/search", "192.0.2.9").expect(200);
    }
    weir.get("/.git/HEAD", "203.0.113.7").expect(429);
    let searches: Vec<u16> = (0..21)
        .map(|_| weir.get("/search?q=a", "198.51.100.7").status)
        .collect();
    assert!(
        searches[..20].iter().all(|status| *status == 200),
        "{searches:?}"
    );
    let mut causes = causes(&weir, if searches[20] == 429 { 2 } else { 1 });
    causes.retain(|cause| cause != "rule_limit");
    assert_eq!(causes, ["trap"]);
}

fn anubis_exempt(block: &Block) {
    let application = Application::ok();
    let (weir, _state) = with(block, &application, &[]);
    weir.get("/.well-known/security.txt", "203.0.113.7")
        .expect(200);
    assert!(
        weir.line_of("/.well-known/security.txt")
            .get("counts")
            .is_none()
    );
    weir.get("/a", "203.0.113.7").expect(200);
    assert!(weir.line_of("/a").get("counts").is_some());
}

fn cloudflare(block: &Block) {
    let application = Application::ok();
    let (weir, _state) = with(block, &application, &[]);
    weir.get("/search?facet=1", "203.0.113.7").expect(403);
    weir.get("/search?q=1", "203.0.113.7").expect(200);
    weir.get("/static/a?facet=1", "203.0.113.7").expect(200);
    let passed = (0..100)
        .filter(|_| weir.get("/api", "203.0.113.7").status == 200)
        .count();
    assert!((30..=60).contains(&passed), "{passed}");
    assert_eq!(weir.bans(), Vec::<Value>::new());
}

fn crowdsec(block: &Block) {
    let application = statuses();
    let (weir, _state) = with(
        block,
        &application,
        &[("blocklist.txt", "# community\n192.0.2.66\n")],
    );
    weir.get("/a", "192.0.2.66").expect(429);
    weir.get("/.aws/credentials", "203.0.1.7").expect(429);
    for _ in 0..6 {
        send(&weir, "POST", "/wp-login.php", "203.0.2.7", None);
    }
    for number in 0..11 {
        weir.get(&format!("/{number}/404"), "203.0.3.7").expect(404);
    }
    for number in 0..6 {
        weir.get(&format!("/{number}/401"), "203.0.4.7").expect(401);
    }
    let mut causes = causes(&weir, 4);
    causes.sort();
    assert_eq!(causes, ["jail", "jail", "rule_limit", "trap"]);
}
