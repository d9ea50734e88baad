//! Plain requests are answered without hyper, all others by it. Neither client nor application can
//! tell which.

use crate::support::application::{After, Application};
use crate::support::raw_client::{Connection, Response, get, request};
use crate::support::weir::Weir;

/// Makes a request one for hyper, and changes nothing else.
const FOR_HYPER: &str = "Connection: x-none\r\n";

/// Answers of an application, and whether it closes behind them.
const ANSWERS: [(&[u8], bool); 16] = [
    (b"HTTP/1.1 200 OK\r\nServer: a\r\nContent-Type: text/plain\r\nContent-Length: 3\r\n\r\nabc", false),
    (b"HTTP/1.1 200 OK\r\nDate: Mon, 23 Nov 2026 00:00:00 GMT\r\ncontent-length: 003\r\n\r\nabc", false),
    (b"HTTP/1.1 200 Fine\r\nSet-Cookie: a=1\r\nX: y\r\nSet-Cookie: b=2\r\nContent-Length: 0\r\n\r\n", false),
    (b"HTTP/1.1 404 \r\nContent-Length: 1\r\nLocation: /b\r\n\r\na", false),
    (b"HTTP/1.1 299 \r\nContent-Length: 1\r\n\r\na", false),
    (b"HTTP/1.1 204 No Content\r\nX: y\r\n\r\n", false),
    (b"HTTP/1.1 304 Not Modified\r\nETag: \"a\"\r\nContent-Length: 30\r\n\r\n", false),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n", false),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: x\r\n\r\n3\r\nabc\r\n0\r\nx: y\r\n\r\n", false),
    (b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nabcdef", true),
    (b"HTTP/1.0 200 OK\r\nX: y\r\n\r\nabcdef", true),
    (b"HTTP/1.1 200 OK\r\nConnection: x-own, keep-alive\r\nX-Own: 1\r\nContent-Length: 1\r\n\r\na", false),
    (
        b"HTTP/1.1 200 OK\r\nKeep-Alive: timeout=5\r\nProxy-Authenticate: Basic\r\nUpgrade: h2c\r\nContent-Length: 1\r\n\r\na",
        false,
    ),
    (b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na", false),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nabcde", true),
    (b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n", true),
];

/// The interim responses and the final one.
fn ask(weir: &Weir, method: &str, target: &str, fields: &str) -> Vec<Response> {
    let mut connection = Connection::open(weir.address());
    let head = format!("{method} {target} HTTP/1.1\r\nHost: a.example\r\n{fields}\r\n");
    connection.send(head.as_bytes());
    let response = connection.try_response(method == "HEAD").unwrap();
    let mut all = response.informational.clone();
    all.push(response);
    all
}

/// What a response says: its fields in no order, without those that differ from one to the next.
fn told(response: &Response) -> (u16, Vec<(String, String)>, Vec<u8>) {
    let is_own = |name: &str, value: &str| {
        // hyper leaves it out of the answer to HEAD.
        let is_of_head = name == "trailer" && response.body.is_empty();
        is_of_head
            || name == "x-request-id"
            || (name == "date" && !value.starts_with("Mon, 23 Nov 2026 00:00:00"))
    };
    let mut fields = response.headers.clone();
    fields.retain(|(name, value)| !is_own(&name.to_ascii_lowercase(), value));
    fields.sort();
    // A problem document has the id of its request.
    let is_ours = response.status == 502;
    let body = if is_ours {
        Vec::new()
    } else {
        response.body.clone()
    };
    (response.status, fields, body)
}

/// FORWARD-1, FORWARD-4, FORWARD-6: what comes back of a plain request is what hyper writes, and
/// what the application is sent is the same.
#[test]
fn a_plain_request_is_answered_as_every_other() {
    let fields = "User-Agent: probe\r\nX-Forwarded-For: 203.0.113.7\r\nX_Forwarded_Host: b\r\nCookie: a\r\n\
                  Cookie: b\r\nX-Client-ASN: AS1\r\nAccept: */*\r\n";
    for (answer, close) in ANSWERS {
        let application = Application::raw(answer, close);
        let weir = Weir::start(&application, &[]);
        for method in ["GET", "HEAD", "DELETE"] {
            let of = |kind: &str, more: &str| {
                let target = format!("/{kind}-{method}?a=b%20c");
                let responses = ask(&weir, method, &target, &format!("{fields}{more}"));
                let sent = application.request(&target);
                let mut sent_fields = sent.headers.clone();
                sent_fields.retain(|(name, _)| name != "x-request-id");
                sent_fields.sort();
                (responses.iter().map(told).collect::<Vec<_>>(), sent_fields)
            };
            let shown = String::from_utf8_lossy(answer);
            assert_eq!(of("plain", ""), of("other", FOR_HYPER), "{method}: {shown}");
        }
    }
}

/// FORWARD-4: requests that follow each other on one connection are answered in their order,
/// whoever answers them, and each has its own body.
#[test]
fn plain_and_other_requests_follow_each_other() {
    let application = Application::start(|exchange| {
        exchange.read_body();
        let target = exchange.request.target.clone();
        exchange.answer(200, &[], target.as_bytes());
        After::KeepAlive
    });
    let weir = Weir::start(&application, &[]);
    let other = format!("GET /other HTTP/1.1\r\nHost: a\r\n{FOR_HYPER}\r\n");
    let orders: [[&str; 6]; 3] = [
        ["/1", "/2", "/post", "/3", "/other", "/4"],
        ["/post", "/1", "/other", "/post", "/2", "/3"],
        ["/other", "/post", "/1", "/1", "/post", "/other"],
    ];
    for order in orders {
        for at_once in [true, false] {
            let mut connection = Connection::open(weir.address());
            let mut pending = Vec::new();
            for target in order {
                pending.extend(match target {
                    "/post" => request("POST", target, &[], Some(b"body")),
                    "/other" => other.clone().into_bytes(),
                    plain => get(plain, &[]),
                });
                if !at_once {
                    connection.send(&std::mem::take(&mut pending));
                    assert_eq!(connection.response().expect(200).text(), target);
                }
            }
            if at_once {
                connection.send(&pending);
                for target in order {
                    assert_eq!(connection.response().expect(200).text(), target);
                }
            }
        }
    }
}

/// CONN-5: a plain request that asks to close the connection is the last one.
#[test]
fn a_plain_request_can_close() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[]);
    let mut connection = Connection::open(weir.address());
    connection.send(&get("/kept", &[]));
    assert_eq!(connection.response().expect(200).header("connection"), None);
    connection.send(&get("/last", &[("Connection", "close")]));
    let last = connection.response().expect(200);
    assert_eq!(last.header("connection"), Some("close"));
    assert!(connection.ends());
}
