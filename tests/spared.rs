//! Whom the bans that weir makes by itself cover: never a proxy that others stand behind, and
//! always who did it (ALIVE-5).

use serde_json::{Value, json};

use crate::support::application::{After, Application};
use crate::support::moved::Moved;
use crate::support::raw_client::{Connection, Response, get};
use crate::support::wait_until;
use crate::support::weir::{StateDir, Weir, state_dir};

/// Answers 401 below /login, 200 elsewhere.
fn application() -> Application {
    Application::start(|exchange| {
        exchange.read_body();
        let login = exchange.request.target.starts_with("/login");
        exchange.answer(if login { 401 } else { 200 }, &[], b"");
        After::KeepAlive
    })
}

const RULES: &str = r#"{"version":1,
    "limits":[{"name":"api","path":"/api","per_day":3}],
    "traps":[{"name":"scanner","paths":["/.env"]},{"name":"wide","paths":["/.git"],"ban":"netblock"}],
    "jails":[{"name":"auth","path":"/login","statuses":[401],"per_day":10}]}"#;

/// From the beginning of a minute on: the service counts who forwards for many by the minute.
#[track_caller]
fn start_at_a_minute(application: &Application, settings: &[(&str, &str)]) -> Moved {
    let rules = serde_json::from_str(RULES).expect("JSON");
    Moved::start(application, &rules, settings)
}

#[track_caller]
fn start(application: &Application, settings: &[(&str, &str)]) -> (Weir, StateDir) {
    let state = state_dir();
    std::fs::write(state.path().join("rules.json"), RULES).expect("writes rules.json");
    let weir = Weir::start_at(application.address(), &state, settings);
    (weir, state)
}

/// A request of a peer, on a connection of its own.
#[track_caller]
fn ask(weir: &Weir, peer: &str, path: &str, fields: &[(&str, &str)]) -> Response {
    let mut connection = Connection::open_from(weir.address(), peer);
    connection.send(&get(path, fields));
    connection.response()
}

/// The bans over the control socket: no address of the tests is allowed.
#[track_caller]
fn bans(weir: &Weir) -> Vec<Value> {
    let answer = weir.control("GET", "/v1/bans", None).expect(200).json();
    answer["bans"].as_array().expect("a list").clone()
}

#[track_caller]
fn banned(weir: &Weir, count: usize) -> Vec<(String, String)> {
    wait_until("the bans", || bans(weir).len() >= count);
    let text = |ban: &Value, name: &str| ban[name].as_str().expect("a text").to_owned();
    let of = |ban: &Value| (text(ban, "netblock"), text(ban, "cause"));
    let mut all: Vec<_> = bans(weir).iter().map(of).collect();
    all.sort();
    all
}

fn pairs(of: &[(&str, &str)]) -> Vec<(String, String)> {
    let owned = |(one, other): &(&str, &str)| ((*one).to_owned(), (*other).to_owned());
    of.iter().map(owned).collect()
}

/// Looks like a forgotten proxy: 100 invented clients.
#[track_caller]
fn forward_for_many(weir: &Weir, peer: &str) {
    let mut connection = Connection::open_from(weir.address(), peer);
    for number in 0..100 {
        let client = format!("203.0.113.{number}");
        connection.send(&get("/many", &[("X-Forwarded-For", &client)]));
        connection.response().expect(200);
    }
    weir.wait_for_process_log(&["WARN", "WAF_TRUSTED_PROXIES", peer]);
}

/// ALIVE-5, CLIENT-7: who writes many clients into his own field is spared neither by jails nor by
/// traps; he is banned alone, and so is his neighbour.
#[test]
fn invented_clients_save_nobody_from_jails_and_traps() {
    let application = application();
    let moved = start_at_a_minute(&application, &[("WAF_TRUSTED_PROXIES", "")]);
    let weir = &moved.weir;
    // Control: eleven wrong logins, without the field.
    for _ in 0..11 {
        ask(weir, "127.0.2.5", "/login", &[]).expect(401);
    }
    assert_eq!(banned(weir, 1), pairs(&[("127.0.2.5/32", "jail")]));
    ask(weir, "127.0.2.5", "/", &[]).expect(429);

    for peer in ["127.0.1.5", "127.0.1.6", "127.0.1.7"] {
        forward_for_many(weir, peer);
    }
    // The ban follows the answer that is one too many within moments. No more are asked then: who
    // is banned opens few connections.
    let is_refused = |_| ask(weir, "127.0.1.5", "/login", &[]).status == 429;
    assert!((0..50).any(is_refused), "nothing stops the guesses");
    ask(weir, "127.0.1.6", "/.env", &[]).expect(429);
    ask(weir, "127.0.1.7", "/.git", &[]).expect(429);
    let expected = [
        ("127.0.1.5/32", "jail"),
        ("127.0.1.6/32", "trap"),
        ("127.0.1.7/32", "trap"),
        ("127.0.2.5/32", "jail"),
    ];
    assert_eq!(banned(weir, 4), pairs(&expected));
    for peer in ["127.0.1.5", "127.0.1.6", "127.0.1.7"] {
        ask(weir, peer, "/", &[]).expect(429);
    }
    ask(weir, "127.0.1.8", "/", &[]).expect(200);
}

/// Whether an answer says when a limit of a day will fit again: hours from now, whatever the time.
/// A ban would end in one.
fn until_it_fits(answer: &Response) -> bool {
    let seconds = answer.header("retry-after").map(str::parse::<u32>);
    seconds.is_some_and(|seconds| seconds.expect("a number") > 4 * 3600)
}

/// ALIVE-5, CLIENT-7: a peer that forwards for many is not banned for the sum of what it forwards:
/// requests, those of a rule, and bytes. It is refused until they fit. Its neighbours are banned,
/// each alone.
#[test]
fn limits_refuse_who_forwards_for_many() {
    let application = Application::start(|exchange| {
        exchange.read_body();
        let large = exchange.request.target.starts_with("/large");
        exchange.answer(200, &[], if large { &[b'x'; 5000] } else { b"" });
        After::KeepAlive
    });
    let settings = [
        ("WAF_TRUSTED_PROXIES", ""),
        ("WAF_RATE_LIMIT_PER_DAY", "110"),
        ("WAF_BYTES_LIMIT_PER_DAY", "4000"),
    ];
    let (weir, _state) = start(&application, &settings);
    let (balancer, neighbour) = ("127.0.1.5", "127.0.1.6");
    forward_for_many(&weir, balancer);
    for status in [200, 200, 200, 429] {
        let answer = ask(&weir, balancer, "/api", &[]).expect(status);
        assert_eq!(until_it_fits(&answer), status == 429, "{answer:?}");
    }
    ask(&weir, balancer, "/large", &[]).expect(200);
    weir.line_of("/large");
    let answer = ask(&weir, balancer, "/after-large", &[]).expect(429);
    assert!(until_it_fits(&answer), "{answer:?}");
    assert_eq!(weir.line_of("/after-large")["limit_hit"], "day_bytes");
    for _ in 0..10 {
        ask(&weir, balancer, "/", &[]).expect(429);
    }
    assert_eq!(bans(&weir), Vec::<Value>::new());

    for status in [200, 200, 200, 429] {
        ask(&weir, neighbour, "/api", &[]).expect(status);
    }
    assert_eq!(banned(&weir, 1), pairs(&[("127.0.1.6/32", "rule_limit")]));
    ask(&weir, neighbour, "/", &[]).expect(429);
    ask(&weir, "127.0.1.7", "/", &[]).expect(200);
}

/// ALIVE-5: a client whose own address lies in a trusted net is banned by its own deeds, alone; so
/// is one whose netblock holds a proxy. Those who come through the proxies are served.
#[test]
fn a_client_in_a_trusted_net_is_banned_alone() {
    let application = application();
    let settings = [("WAF_TRUSTED_PROXIES", "127.0.0.0/8,10.0.0.0/8,198.51.100.1")];
    let (weir, _state) = start(&application, &settings);
    let named = |client: &'static str| [("X-Forwarded-For", client)];
    let edge = "127.0.0.9";
    ask(&weir, edge, "/.env", &named("10.0.0.5")).expect(429);
    ask(&weir, edge, "/.git", &named("198.51.100.7")).expect(429);
    for _ in 0..4 {
        ask(&weir, edge, "/api", &named("198.51.100.8"));
    }
    let expected = [
        ("10.0.0.5/32", "trap"),
        ("198.51.100.7/32", "trap"),
        ("198.51.100.8/32", "rule_limit"),
    ];
    assert_eq!(banned(&weir, 3), pairs(&expected));
    for client in ["10.0.0.5", "198.51.100.7", "198.51.100.8"] {
        ask(&weir, edge, "/", &[("X-Forwarded-For", client)]).expect(429);
    }
    for client in ["10.0.0.6", "198.51.100.1", "198.51.100.9"] {
        ask(&weir, edge, "/", &[("X-Forwarded-For", client)]).expect(200);
    }
    // Through the banned one as a proxy too.
    ask(&weir, edge, "/", &named("203.0.113.9, 10.0.0.5")).expect(200);
}

/// ALIVE-5, CONN-3: no automatic ban stops a proxy, whoever earned it by naming the proxy's
/// address: who comes through it is served, and so are its own requests, such as health checks. It
/// is refused where it breaks a limit itself. An administrator's ban holds.
#[test]
fn an_automatic_ban_never_stops_a_proxy() {
    let application = application();
    let (weir, _state) = start(&application, &[("WAF_TRUSTED_PROXIES", "127.0.0.0/8")]);
    let (one, other) = ("127.0.0.9", "127.0.0.10");
    // Somebody behind the one names the other.
    ask(&weir, one, "/.env", &[("X-Forwarded-For", other)]).expect(429);
    assert_eq!(banned(&weir, 1), pairs(&[("127.0.0.10/32", "trap")]));
    ask(&weir, one, "/", &[("X-Forwarded-For", other)]).expect(429);
    let mut held: Vec<Connection> = (0..12)
        .map(|_| Connection::open_from(weir.address(), other))
        .collect();
    for connection in &mut held {
        connection.send(&get("/health", &[]));
        connection.response().expect(200);
        connection.send(&get("/", &[("X-Forwarded-For", "203.0.113.9")]));
        connection.response().expect(200);
    }
    // By its own deeds: refused, and not banned.
    for _ in 0..3 {
        ask(&weir, one, "/.env", &[]).expect(429);
    }
    for status in [200, 200, 200, 429, 429] {
        ask(&weir, one, "/api", &[]).expect(status);
    }
    for _ in 0..11 {
        ask(&weir, one, "/login", &[]).expect(401);
    }
    // A jail that cannot ban refuses what it would count.
    ask(&weir, one, "/login", &[]).expect(429);
    ask(&weir, one, "/", &[]).expect(200);
    assert_eq!(banned(&weir, 1).len(), 1);
    let body = json!({"netblock": "127.0.0.9/32", "duration": "1h", "reason": "x", "force": true});
    let admin = weir.control("POST", "/v1/bans", Some(&body.to_string()));
    admin.expect(201);
    ask(&weir, one, "/", &[]).expect(429);
    ask(&weir, one, "/", &[("X-Forwarded-For", "203.0.113.9")]).expect(200);
}
