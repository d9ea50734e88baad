//! A peer that is refused whatever it asks for is answered before hyper (CONN-3), and so is a
//! trusted proxy that names such clients time after time. Nobody can tell: the answers, the log
//! lines, the counts are those of every other connection.

use serde_json::{Value, json};

use crate::support::application::Application;
use crate::support::raw_client::{Connection, Ended, Response, find, get, request};
use crate::support::wait_until;
use crate::support::weir::Weir;

/// The peer that is banned.
const PEER: &str = "127.0.0.2";
/// Where the test itself asks from.
const SELF: &str = "127.0.0.1";
const UNTRUSTED: (&str, &str) = ("WAF_TRUSTED_PROXIES", "");
const ALLOWED: (&str, &str) = ("WAF_ALLOW_NETS", SELF);
/// So that hyper answers it and what comes in the same segment.
const UNUSUAL: &[u8] = b"GET /unusual HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n";

#[track_caller]
fn start(application: &Application, settings: &[(&str, &str)]) -> Weir {
    let ban = |netblock: &str| json!({"netblock": netblock, "ban_expires": "2099-01-01T00:00:00Z"});
    let bans = json!([ban(PEER), ban("127.0.5.0/24")]);
    let settings = [
        &[UNTRUSTED, ALLOWED, ("WAF_BAN_IPV4_PREFIX", "32")],
        settings,
    ]
    .concat();
    Weir::start_with_bans(application, &bans, &settings)
}

fn open(weir: &Weir) -> Connection {
    Connection::open_from(weir.address(), PEER)
}

/// What an answer is, but for its id and its times.
fn said(answer: Result<Response, Ended>) -> Value {
    let Ok(answer) = answer else {
        return json!("no answer");
    };
    let id = answer.header("x-request-id").unwrap_or("none").to_owned();
    let fields: Vec<_> = answer
        .headers
        .iter()
        .map(|(name, value)| match name.as_str() {
            "date" | "x-request-id" | "retry-after" => format!("{name}: "),
            _ => format!("{name}: {value}"),
        })
        .collect();
    json!({"status": answer.status, "fields": fields, "body": answer.text().replace(&id, "ID")})
}

/// A log line, but for its id and its times.
fn logged(mut line: Value) -> Value {
    for member in ["time", "request_id", "timings"] {
        line.as_object_mut().expect("an object").remove(member);
    }
    line
}

/// The requests, each with its target replaced by one of its own.
const CORPUS: [&str; 22] = [
    "GET T HTTP/1.1\r\nHost: example.org\r\n\r\n",
    "HEAD T HTTP/1.1\r\nHost: example.org\r\n\r\n",
    "DELETE T?a=b&c=%20?d HTTP/1.1\r\nhost: example.org:80\r\nCONNECTION: Keep-Alive\r\n\r\n",
    "GET T HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    "HEAD T HTTP/1.1\r\nHost: a\r\nConnection: Close\r\n\r\n",
    "GET T HTTP/1.1\r\nHost: a\r\nAccept: text/html\r\nAccept: */*;q=0.5\r\n\r\n",
    "GET T HTTP/1.1\r\nHost: a\r\nAccept: application/json\r\nX-Request-ID: mine\r\n\r\n",
    "GET T HTTP/1.1\r\nHost:\r\nUser-Agent:  a b \r\nREFERER: http://r/\r\nUser-Agent: second\r\n\r\n",
    "GET T HTTP/1.1\r\nHost: a\r\nCookie: a=b\r\nAuthorization: Basic eA==\r\nContent-Type: x/y\r\n\r\n",
    "GET T HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 192.0.2.1\r\nx-forwarded-for: 192.0.2.2\r\n\r\n",
    "GET T HTTP/1.1\r\nHost: a\r\nX-Tag: one\r\nAccept-Language: \u{e9}\r\nx-tag: two\r\n\r\n",
    "POST T HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody",
    "POST T HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
    "POST T HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n",
    "GET T HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    "GET T HTTP/1.0\r\n\r\n",
    "GET http://example.org T HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET http://example.orgT HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET T HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "GET T HTTP/1.1\r\n\r\n",
    "GET /_waf/health HTTP/1.1\r\nHost: a\r\n\r\n",
    "TRACE T HTTP/1.1\r\nHost: a\r\nConnection: x-own\r\n\r\n",
];

/// CONN-3, TELL-1: what is answered before hyper is answered and logged as by it, for every shape
/// of a request.
#[test]
fn nobody_can_tell_who_answers() {
    let application = Application::ok();
    let weir = start(
        &application,
        &[("WAF_LOG_REQUEST_HEADERS", "X-Tag, Accept-Language")],
    );
    for (number, shape) in CORPUS.iter().enumerate() {
        let path = format!("/case/{number}");
        let bytes = shape_of(shape, &path);
        let to_head = shape.starts_with("HEAD");
        // One of its own for each: eight connections are all that a banned netblock may have.
        let open = || Connection::open_from(weir.address(), &format!("127.0.5.{}", number + 1));
        let mut direct = open();
        direct.send(&bytes);
        let before = said(direct.try_response(to_head));
        let mut ordinary = open();
        ordinary.send(&[UNUSUAL, &bytes].concat());
        ordinary.response().expect(429);
        let after = said(ordinary.try_response(to_head));
        assert_eq!(before, after, "{shape}");
        let is_logged = before["status"] == 429;
        if is_logged {
            let lines = weir.lines_of(&path, 2);
            assert_eq!(lines[0]["action"], "banned", "{shape}");
            assert_eq!(
                logged(lines[0].clone()),
                logged(lines[1].clone()),
                "{shape}"
            );
        }
    }
    assert!(application.requests().is_empty());
}

/// The bytes of a shape.
fn shape_of(shape: &str, path: &str) -> Vec<u8> {
    let (method, rest) = shape.split_once(' ').expect("a method");
    let (target, rest) = rest.split_once(" HTTP").expect("a version");
    format!("{method} {} HTTP{rest}", target.replace('T', path)).into_bytes()
}

/// More than what a trusted proxy has to be refused in a row before hyper is left.
const MANY: usize = 40;

/// What only a trusted proxy is believed, besides the field that names the client.
const SAID_BY_A_PROXY: [&str; 6] = [
    "GET T HTTP/1.1\r\nHost: a\r\nX-Forwarded-Proto: https\r\n\r\n",
    "GET T HTTP/1.1\r\nHost: a\r\nx-forwarded-proto: ftp\r\nX-Forwarded-Proto: https\r\n\r\n",
    "GET T HTTP/1.1\r\nHost: a\r\nX-REQUEST-ID: \"of-the-proxy\"\r\nX-Request-Id: b\r\n\r\n",
    "GET T HTTP/1.1\r\nHost: a\r\nX-Request-ID: no id\r\n\r\n",
    "GET T HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 192.0.2.1, x\r\nVia: 1.1 a\r\n\r\n",
    "GET T HTTP/1.1\r\nHost: a\r\nForwarded: for=192.0.2.1;proto=https\r\n\r\n",
];

/// The same request, with a field that names this client behind all others.
fn naming(client: &str, bytes: &[u8]) -> Vec<u8> {
    let end = find(bytes, b"\r\n\r\n").expect("the end of a head");
    let field = format!("\r\nX-Forwarded-For: {client}");
    [&bytes[..end], field.as_bytes(), &bytes[end..]].concat()
}

/// CLIENT-3, CONN-3, TELL-1: a trusted proxy that named banned clients time after time is answered
/// and logged as one that named the first, for every shape of a request.
#[test]
fn nobody_can_tell_who_answers_a_proxy() {
    let application = Application::ok();
    let weir = start(
        &application,
        &[
            ("WAF_TRUSTED_PROXIES", PEER),
            ("WAF_LOG_REQUEST_HEADERS", "X-Tag, Accept-Language, Via"),
        ],
    );
    for (number, shape) in CORPUS.iter().chain(&SAID_BY_A_PROXY).enumerate() {
        let path = format!("/case/{number}");
        let bytes = naming("127.0.5.77, 127.0.5.9", &shape_of(shape, &path));
        let to_head = shape.starts_with("HEAD");
        let mut fresh = open(&weir);
        fresh.send(&bytes);
        let before = said(fresh.try_response(to_head));
        let mut known = open(&weir);
        for _ in 0..MANY {
            known.send(&naming("127.0.5.8", &get("/before", &[])));
            known.response().expect(429);
        }
        known.send(&bytes);
        let after = said(known.try_response(to_head));
        assert_eq!(before, after, "{shape}");
        let is_logged = before["status"] == 429;
        if is_logged {
            let lines = weir.lines_of(&path, 2);
            assert_eq!(lines[0]["action"], "banned", "{shape}");
            assert_eq!(lines[0]["client"], "127.0.5.9", "{shape}");
            assert_eq!(
                logged(lines[0].clone()),
                logged(lines[1].clone()),
                "{shape}"
            );
        }
    }
    assert!(application.requests().is_empty());
}

/// CLIENT-3, CONN-3: on one connection of a trusted proxy each client gets what is its own, however
/// refusals and answers of the application follow each other, and whether they come in one segment.
#[test]
fn a_proxy_is_answered_for_each_client_it_names() {
    let application = Application::ok();
    let weir = start(&application, &[("WAF_TRUSTED_PROXIES", PEER)]);
    let refused = |at: usize| naming("127.0.5.9", &get(&format!("/{at}"), &[]));
    let let_in = |at: usize| naming("127.0.6.9", &get(&format!("/{at}"), &[]));
    let large = |at: usize| {
        naming(
            "127.0.5.9",
            &request("POST", &format!("/{at}"), &[], Some(b"body")),
        )
    };
    let runs = [(MANY, 2), (1, 1), (MANY, 1), (3, 3), (MANY, 0)];
    let mut wanted = Vec::new();
    for (refusals, answers) in runs {
        for _ in 0..refusals {
            wanted.push((refused(wanted.len()), 429));
        }
        wanted.push((large(wanted.len()), 429));
        for _ in 0..answers {
            wanted.push((let_in(wanted.len()), 200));
        }
    }
    let mut one_by_one = open(&weir);
    for (bytes, status) in &wanted {
        one_by_one.send(bytes);
        one_by_one.response().expect(*status);
    }
    // The first of them are read before hyper, the others in one segment behind them.
    let segment: Vec<u8> = wanted.iter().flat_map(|(bytes, _)| bytes.clone()).collect();
    one_by_one.send(&segment);
    for (at, (_, status)) in wanted.iter().enumerate() {
        let answer = one_by_one.response().expect(*status);
        let lines = weir.lines_of(&format!("/{at}"), 2);
        // The application's answers name no id.
        if *status == 429 {
            assert_eq!(
                lines[1]["request_id"].as_str(),
                answer.header("x-request-id"),
                "{at}"
            );
        }
    }
    assert!(!one_by_one.has_leftovers());
    let series = "waf_requests_total{action=\"banned\",mode=\"enforce\"}";
    let refusals = wanted.iter().filter(|(_, status)| *status == 429).count();
    assert_eq!(weir.metric(series), Some(2.0 * refusals as f64));
    assert_eq!(application.requests().len(), 2 * (wanted.len() - refusals));
}

/// CONN-3: requests in one segment and requests in pieces are each answered once, in order.
#[test]
fn pieces_and_pipelines_are_answered() {
    let application = Application::ok();
    let weir = start(&application, &[]);
    let mut connection = open(&weir);
    let requests: Vec<u8> = (0..20)
        .flat_map(|number| get(&format!("/pipelined/{number}"), &[]))
        .collect();
    connection.send(&requests);
    for number in 0..20 {
        let answer = connection.response().expect(429);
        let line = weir.line_of(&format!("/pipelined/{number}"));
        assert_eq!(
            Some(line["request_id"].as_str().expect("an id")),
            answer.header("x-request-id")
        );
    }
    for byte in get("/in/pieces", &[]) {
        connection.send(&[byte]);
    }
    connection.response().expect(429);
    // One behind the other, the second not whole.
    let (two, rest) = (get("/half", &[]), get("/whole", &[]));
    connection.send(&[&rest, &two[..20]].concat());
    connection.response().expect(429);
    connection.send(&two[20..]);
    connection.response().expect(429);
    assert_eq!(weir.lines_of("/half", 1).len(), 1);
    assert!(!connection.has_leftovers());
}

/// CONN-1, CONN-8, CONN-10: a head that never ends is 408, one that is too large 431, or 414 where
/// its target is, what is none 400, and each is counted.
#[test]
fn what_is_no_request_is_told_as_elsewhere() {
    let application = Application::ok();
    let weir = start(&application, &[("WAF_HEADER_TIMEOUT", "2s")]);
    let long = format!("GET /{} HTTP/1.1\r\nHost: a\r\n", "a".repeat(40_000));
    let fields = format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n", "a".repeat(40_000));
    let mut counts = std::collections::HashMap::new();
    for (bytes, status, kind) in [
        (&b"GET /a HTTP/1.1\r\nHo"[..], 408, "head_timeout"),
        (long.as_bytes(), 414, "head_too_large"),
        (fields.as_bytes(), 431, "head_too_large"),
        (b"\x16\x03\x01\r\n\r\n", 400, "bad_request"),
    ] {
        let mut connection = open(&weir);
        connection.send_what_is_taken(bytes);
        connection.response().expect(status);
        let series = format!("waf_connection_errors_total{{kind=\"{kind}\"}}");
        let count = counts.entry(kind).or_insert(0.0);
        *count += 1.0;
        wait_until(kind, || weir.metric(&series) == Some(*count));
    }
    // One on which nothing was sent is closed silently.
    assert!(open(&weir).ends());
}

/// BAN-7, CONN-3: a ban that is lifted is noticed on a connection that stands, and so is one that
/// is made; both go on with the same connection.
#[test]
fn a_connection_outlives_a_ban() {
    let application = Application::ok();
    let weir = start(&application, &[]);
    let mut connection = open(&weir);
    let mut ask = |path: &str, status: u16| {
        connection.send(&get(path, &[]));
        connection.response().expect(status)
    };
    ask("/refused", 429);
    ask("/refused", 429);
    weir.admin("DELETE", &format!("/_waf/bans/{PEER}"), None)
        .expect(200);
    assert_eq!(ask("/let-in", 200).text(), "hello /let-in");
    ask("/again", 200);
    weir.ban("netblock", PEER, "1h");
    for _ in 0..3 {
        ask("/banned", 429);
    }
    weir.admin("DELETE", &format!("/_waf/bans/{PEER}"), None)
        .expect(200);
    // In pieces, on the way from one to the other.
    connection.send(b"GET /pieces HTTP/1.1\r\nHo");
    connection.send(b"st: a\r\n\r\n");
    assert_eq!(connection.response().expect(200).text(), "hello /pieces");
}

/// METRIC, CHECK-4, LIMIT-9: requests, bytes, history and connections are counted.
#[test]
fn everything_is_counted() {
    let application = Application::ok();
    let weir = start(&application, &[("WAF_DENY_NETS", "127.0.0.3")]);
    let mut connection = open(&weir);
    let mut bytes = 0;
    for _ in 0..3 {
        connection.send(&get("/counted", &[]));
        bytes += connection.response().expect(429).body.len();
    }
    connection.send(&request("HEAD", "/counted", &[], None));
    connection.response_to_head().expect(429);
    let mut denied = Connection::open_from(weir.address(), "127.0.0.3");
    denied.send(&get("/denied", &[]));
    bytes += denied.response().expect(429).body.len();
    let series =
        |action: &str| format!("waf_requests_total{{action=\"{action}\",mode=\"enforce\"}}");
    assert_eq!(weir.metric(&series("banned")), Some(4.0));
    assert_eq!(weir.metric(&series("denied_net")), Some(1.0));
    // LIMIT-9: who is kept has a history; who is refused alone is not kept for it.
    let client = |address: &str| {
        let target = format!("/_waf/clients/{address}");
        weir.admin("GET", &target, None).expect(200).json()["client"].clone()
    };
    assert_eq!(client(PEER), Value::Null);
    let mut kept = Connection::open_from(weir.address(), "127.0.0.4");
    kept.send(&get("/passed", &[]));
    kept.response().expect(200);
    weir.ban("client", "127.0.0.4", "1h");
    let mut kept = Connection::open_from(weir.address(), "127.0.0.4");
    for _ in 0..3 {
        kept.send(&get("/kept", &[]));
        kept.response().expect(429);
    }
    let kept = client("127.0.0.4");
    assert_eq!((&kept["refused"], &kept["passed"]), (&json!(3), &json!(1)));
    let lines = weir.lines_of("/counted", 4);
    let logged: u64 = lines
        .iter()
        .map(|line| line["bytes"]["response"].as_u64().expect("bytes"))
        .sum();
    let denied = weir.line_of("/denied")["bytes"]["response"]
        .as_u64()
        .expect("bytes");
    assert_eq!(logged + denied, bytes as u64);
}

/// BAN-6: `drop` closes unanswered, with a line for the request.
#[test]
fn a_drop_closes_unanswered() {
    let application = Application::ok();
    let weir = start(&application, &[("WAF_BAN_RESPONSE", "drop")]);
    let mut connection = open(&weir);
    connection.send(&[get("/dropped", &[]), get("/behind", &[])].concat());
    assert!(connection.ends());
    assert_eq!(weir.line_of("/dropped").get("status"), None);
}

/// CONN-1: a client that asks on and on and reads nothing is read from no further than its answers
/// are taken.
#[test]
fn answers_that_nobody_reads_do_not_pile_up() {
    let application = Application::ok();
    let weir = start(
        &application,
        &[("WAF_SEND_TIMEOUT", "5m"), ("WAF_MIN_RATE", "off")],
    );
    let mut connection = open(&weir);
    let requests = get("/unread", &[]).repeat(1000);
    // 43 KB each time: buffers of the system hold a few MB each way.
    let sent = (0..500)
        .take_while(|_| connection.send_within(&requests, std::time::Duration::from_secs(2)));
    let sent = sent.count();
    assert!(
        sent < 400,
        "{sent} times {} bytes were read",
        requests.len()
    );
}

/// ALIVE-3: a stop ends such a connection at once where it is idle, and one with half a head within
/// `WAF_SHUTDOWN_TIMEOUT`, as it does every other.
#[test]
fn a_stop_ends_the_connection() {
    let application = Application::ok();
    let mut weir = start(&application, &[("WAF_HEADER_TIMEOUT", "5m")]);
    let (mut idle, mut used) = (open(&weir), open(&weir));
    for connection in [&mut idle, &mut used] {
        connection.send(&get("/a", &[]));
        connection.response().expect(429);
    }
    used.send(b"GET /b HTTP/1.1\r\nHo");
    used.wait_until_read();
    weir.signal("TERM");
    assert!(idle.ends());
    assert!(used.ends());
    assert!(weir.wait().success());
}
