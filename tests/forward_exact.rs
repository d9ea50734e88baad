//! Forwarding, made exact: what the application gets of targets, lengths, trailers and identity
//! fields, byte for byte.

use crate::support::application::{After, Application, Received};
use crate::support::raw_client::{self, Connection, Response, get};
use crate::support::weir::{ADMIN_TOKEN, Weir};

/// Nobody is a trusted proxy: every peer is a client.
const NO_PROXY: (&str, &str) = ("WAF_TRUSTED_PROXIES", "192.0.2.1");

/// A request that ends with trailer fields.
fn with_trailers(target: &str, headers: &str, trailers: &[(&str, &str)]) -> Vec<u8> {
    let names: Vec<_> = trailers.iter().map(|(name, _)| *name).collect();
    let fields: String = trailers
        .iter()
        .map(|(name, value)| format!("{name}: {value}\r\n"))
        .collect();
    format!(
        "POST {target} HTTP/1.1\r\nHost: a\r\n{headers}Trailer: {}\r\nTransfer-Encoding: chunked\r\n\r\n\
         5\r\nhello\r\n0\r\n{fields}\r\n",
        names.join(", ")
    )
    .into_bytes()
}

/// Names that would be removed or replaced as header fields, in both spellings.
const FORBIDDEN: [&str; 22] = [
    "X-Client-ASN",
    "X-Client-Country",
    "X-Forwarded-For",
    "X-Forwarded-Anything",
    "X_Forwarded_Host",
    "Forwarded",
    "X-Real-IP",
    "X-Request-ID",
    "x_request_id",
    "Connection",
    "Keep-Alive",
    "keep_alive",
    "Upgrade",
    "Proxy-Authorization",
    "proxy_authorization",
    "Authorization",
    "Cookie",
    "Content_Length",
    "Host",
    "CF-Connecting-IP",
    "CF_Connecting_IP",
    "X_Named",
];

/// FORWARD-1: a trailer field is passed on only where it would be as a header field.
#[test]
fn trailers_are_filtered_as_header_fields_are() {
    let application = Application::ok();
    for trusted in ["127.0.0.0/8", "192.0.2.1"] {
        let weir = Weir::start(
            &application,
            &[
                ("WAF_TRUSTED_PROXIES", trusted),
                ("WAF_CLIENT_IP_HEADER", "CF-Connecting-IP"),
            ],
        );
        let mut trailers: Vec<_> = FORBIDDEN.iter().map(|name| (*name, "forged")).collect();
        trailers.push(("X-Named", "nominated"));
        trailers.push(("X-Checksum", "5d41"));
        let target = format!("/trailers-{}", trusted.len());
        let bytes = with_trailers(&target, "Connection: X-Named\r\n", &trailers);
        assert_eq!(weir.send(&bytes).status, 200);
        let received = application.request(&target);
        assert_eq!(received.body, b"hello");
        assert_eq!(
            received.trailers,
            [("x-checksum".to_owned(), "5d41".to_owned())]
        );
    }
    assert!(application.faults().is_empty());
}

/// FORWARD-1: the same for the trailer fields of an answer.
#[test]
fn trailers_of_an_answer_are_filtered_too() {
    let application = Application::raw(
        b"HTTP/1.1 200 OK\r\nConnection: x-named\r\nTrailer: x-checksum, x-named, keep-alive, proxy-authenticate, \
          set_cookie, www-authenticate, x-client-asn, upgrade\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\
          x-checksum: 5d41\r\nx-named: 1\r\nkeep-alive: timeout=1\r\nproxy-authenticate: Basic\r\nset_cookie: a=b\r\n\
          www-authenticate: Basic\r\nx-client-asn: AS1\r\nupgrade: h2c\r\n\r\n",
        false,
    );
    let weir = Weir::start(&application, &[]);
    let answer = weir.send(&get("/", &[("TE", "trailers"), ("Connection", "TE")]));
    assert_eq!(answer.body, b"hello");
    assert_eq!(
        answer.trailers,
        [("x-checksum".to_owned(), "5d41".to_owned())]
    );
}

/// FORWARD-2: the header that names the client does not pass from an untrusted peer, in either
/// spelling.
#[test]
fn the_client_header_of_an_untrusted_peer_stays_here() {
    let application = Application::ok();
    let fields = [
        ("CF-Connecting-IP", "203.0.113.7"),
        ("cf_connecting_ip", "203.0.113.7"),
        ("CF_Connecting-IP", "203.0.113.7"),
        ("X-Own", "kept"),
    ];
    for named in ["CF-Connecting-IP", "CF_Connecting_IP"] {
        let header = ("WAF_CLIENT_IP_HEADER", named);
        let weir = Weir::start(&application, &[NO_PROXY, header]);
        assert_eq!(weir.send(&get(&format!("/{named}"), &fields)).status, 200);
        let received = application.request(&format!("/{named}"));
        assert_eq!(received.header("x-own"), Some("kept"));
        let left: Vec<_> = received
            .headers
            .iter()
            .filter(|(name, _)| name.replace('_', "-") == "cf-connecting-ip")
            .collect();
        assert!(left.is_empty(), "{named}: {left:?}");
    }
    let weir = Weir::start(
        &application,
        &[("WAF_CLIENT_IP_HEADER", "CF-Connecting-IP")],
    );
    let from_proxy = [("CF-Connecting-IP", "203.0.113.7")];
    assert_eq!(weir.send(&get("/trusted", &from_proxy)).status, 200);
    let received = application.request("/trusted");
    assert_eq!(received.header("cf-connecting-ip"), Some("203.0.113.7"));
}

/// FORWARD-8: fields in which CDNs name the client, and rewritten targets, do not come through from
/// an untrusted peer, whatever marks stand for their dashes; nor do such twins of the fields that
/// were protected before. A trusted peer's pass, and the list is a setting.
#[test]
fn fields_that_name_the_client_or_a_target_stay_here() {
    let names = [
        "CF-Connecting-IP",
        "True-Client-IP",
        "Client-IP",
        "Fastly-Client-IP",
        "X-Client-IP",
        "X-Original-URL",
        "X-Rewrite-URL",
    ];
    let twins = [
        "X.Forwarded.For",
        "X!Real!IP",
        "X~Forwarded_Host",
        "X|Request|ID",
        "Content.Length",
    ];
    let marked = |name: &str, mark: &str| name.replace('-', mark);
    let mut fields: Vec<(String, &str)> =
        vec![("X-Own".to_owned(), "1"), ("X-Client-IPs".to_owned(), "1")];
    for name in names {
        fields.extend(["-", "_", ".", "~"].map(|mark| (marked(name, mark), "1")));
    }
    let of_cdns = fields.len();
    fields.extend(twins.map(|name| (name.to_owned(), "1")));
    let fields: Vec<(&str, &str)> = fields
        .iter()
        .map(|(name, value)| (&**name, *value))
        .collect();
    let application = Application::ok();
    let came = |path: &str| -> Vec<String> {
        let headers = application.request(path).headers;
        let marked = headers.into_iter().filter(|(_, value)| value == "1");
        marked.map(|(name, _)| name.to_ascii_lowercase()).collect()
    };
    let weir = Weir::start(&application, &[NO_PROXY]);
    weir.send(&get("/untrusted", &fields)).expect(200);
    assert_eq!(came("/untrusted"), ["x-own", "x-client-ips"]);
    let with_body = raw_client::request("POST", "/posted", &fields, Some(b"body"));
    weir.send(&with_body).expect(200);
    assert_eq!(came("/posted"), ["x-own", "x-client-ips"]);

    let weir = Weir::start(&application, &[]);
    weir.send(&get("/trusted", &fields)).expect(200);
    assert_eq!(came("/trusted").len(), of_cdns);

    let setting = |value| ("WAF_STRIP_REQUEST_HEADERS", value);
    let weir = Weir::start(&application, &[NO_PROXY, setting("off")]);
    weir.send(&get("/off", &fields)).expect(200);
    assert_eq!(came("/off").len(), of_cdns);
    let weir = Weir::start(&application, &[NO_PROXY, setting("X-Own")]);
    weir.send(&get("/own", &fields)).expect(200);
    assert_eq!(came("/own").len(), of_cdns - 1);
}

/// FORWARD-8: ids do not tell how many requests came between them, not even those of the health
/// check, which nobody counts.
#[test]
fn request_ids_do_not_count() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[("WAF_WORKERS", "1")]);
    let ids: Vec<(String, u64)> = (0..20)
        .map(|_| {
            let answer = weir.get("/_waf/health", "203.0.113.7").expect(200);
            let id = answer.header("x-request-id").expect("an id").to_owned();
            let (worker, number) = id.split_once('-').expect("a dash");
            (
                worker.to_owned(),
                u64::from_str_radix(number, 16).expect("hex"),
            )
        })
        .collect();
    let steps: std::collections::HashSet<u64> = ids
        .windows(2)
        .map(|pair| pair[1].1.wrapping_sub(pair[0].1))
        .collect();
    assert!(ids.iter().all(|(worker, _)| *worker == ids[0].0));
    assert_eq!(steps.len(), 19, "{ids:?}");
}

/// FORWARD-2: what stands behind an element without `for` was written by somebody else (CLIENT-3).
#[test]
fn a_forwarded_element_without_for_ends_the_walk() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[("WAF_CLIENT_IP_HEADER", "Forwarded")]);
    let cases = [
        ("for=203.0.113.7, proto=https", "127.0.0.1"),
        ("for=203.0.113.7, by=127.0.0.2", "127.0.0.1"),
        ("for=203.0.113.7, x", "127.0.0.1"),
        ("for=203.0.113.7, ;;;", "127.0.0.1"),
        ("for=203.0.113.7, proto=https, for=127.0.0.3", "127.0.0.3"),
        ("for=203.0.113.7", "203.0.113.7"),
    ];
    for (index, (line, client)) in cases.into_iter().enumerate() {
        let path = format!("/{index}");
        assert_eq!(weir.send(&get(&path, &[("Forwarded", line)])).status, 200);
        assert_eq!(weir.line_of(&path)["address"], client, "{line}");
    }
}

/// FORWARD-2: an address behind NAT64 is the IPv4 address in it, in every place that reads one.
#[test]
fn nat64_is_the_ipv4_address_in_it() {
    let application = Application::ok();
    let deny = ("WAF_DENY_NETS", "64:ff9b::198.51.100.0/120");
    let forbidden = ("WAF_BAN_RESPONSE", "403");
    let weir = Weir::start(&application, &[deny, forbidden]);
    assert_eq!(weir.get("/nat64", "64:ff9b::203.0.113.7").status, 200);
    let line = weir.line_of("/nat64");
    assert_eq!(line["client"], "203.0.113.7");
    assert_eq!(line["address"], "203.0.113.7");
    assert_eq!(weir.get("/", "198.51.100.9").status, 403);
    assert_eq!(weir.get("/", "64:ff9b::198.51.100.9").status, 403);
    // The prefix next to it stands for nothing.
    assert_eq!(weir.get("/next", "64:ff9b:0:0:0:1::7").status, 200);
    assert_eq!(weir.line_of("/next")["client"], "64:ff9b::/64");
}

/// FORWARD-3: each form of a target has its methods, and what goes on is origin-form or `*`.
#[test]
fn targets_are_taken_in_the_form_of_their_method() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[]);
    let answered = |line: &str| {
        let bytes = format!("{line} HTTP/1.1\r\nHost: public.example\r\n\r\n").into_bytes();
        weir.send(&bytes).status
    };
    for refused in [
        "GET *",
        "POST *",
        "GET internal",
        "OPTIONS internal",
        "POST internal:80",
        "GET a:80",
        "GET javascript:alert(1)",
        "GET http://:80/x",
        "GET http://a\"b/",
    ] {
        assert_eq!(answered(refused), 400, "{refused}");
    }
    assert_eq!(answered("CONNECT internal:443"), 405);
    assert_eq!(answered("TRACE /"), 405);
    let passed = [
        ("OPTIONS *", "*", "public.example"),
        ("OPTIONS http://other.example", "*", "other.example"),
        ("OPTIONS http://other.example/", "/", "other.example"),
        ("OPTIONS http://other.example?q", "/?q", "other.example"),
        ("GET http://other.example", "/", "other.example"),
        (
            "GET http://u@other.example:81/x?y",
            "/x?y",
            "other.example:81",
        ),
    ];
    let before = application.requests().len();
    assert_eq!(before, 0, "nothing that was refused arrived");
    for (line, target, host) in passed {
        assert_eq!(answered(line), 200, "{line}");
        let received: Received = application.requests().pop().expect("a request");
        assert_eq!(received.target, target, "{line}");
        assert_eq!(received.header("host"), Some(host), "{line}");
    }
    assert!(application.faults().is_empty());
}

/// FORWARD-4: a length goes on in plain digits, so that nobody reads another number in it.
#[test]
fn a_length_goes_on_in_plain_digits() {
    let application = Application::echo();
    let weir = Weir::start(&application, &[]);
    for (length, body) in [("005", "hello"), ("00", ""), ("0", ""), ("5", "hello")] {
        let bytes =
            format!("POST /{length} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n{body}");
        let answer = weir.send(bytes.as_bytes());
        assert_eq!((answer.status, answer.text().as_str()), (200, body));
        let plain = body.len().to_string();
        let received = application.request(&format!("/{length}"));
        assert_eq!(received.header("content-length"), Some(plain.as_str()));
    }
}

/// FORWARD-4: a body of GET or HEAD arrives, with its framing.
#[test]
fn a_body_of_get_arrives() {
    let application = Application::start(|exchange| {
        exchange.read_body();
        exchange.answer(200, &[], b"");
        After::KeepAlive
    });
    let weir = Weir::start(&application, &[]);
    for method in ["GET", "HEAD", "OPTIONS", "DELETE"] {
        for (framing, body) in [
            ("Transfer-Encoding: chunked", "5\r\nhello\r\n0\r\n\r\n"),
            ("Content-Length: 5", "hello"),
        ] {
            let target = format!("/{method}-{}", framing.len());
            let bytes = format!("{method} {target} HTTP/1.1\r\nHost: a\r\n{framing}\r\n\r\n{body}");
            let mut connection = Connection::open(weir.address());
            connection.send(bytes.as_bytes());
            let answer = connection.try_response(method == "HEAD");
            assert_eq!(answer.expect("an answer").status, 200, "{target}");
            let received = application.request(&target);
            assert_eq!(received.body, b"hello", "{target}");
            assert_eq!(received.chunked, framing.contains("chunked"), "{target}");
            assert!(received.whole, "{target}");
        }
    }
    assert!(application.faults().is_empty());
}

/// FORWARD-4: what is announced too long for an endpoint of ours is refused before it is asked for.
#[test]
fn own_endpoints_refuse_a_long_body_at_once() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[]);
    for expect in ["", "Expect: 100-continue\r\n"] {
        let mut connection = Connection::open(weir.address());
        let head = format!(
            "POST /_waf/bans HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {ADMIN_TOKEN}\r\n{expect}\
             Content-Length: 70000\r\n\r\n"
        );
        connection.send(head.as_bytes());
        let answer: Response = connection.response();
        assert_eq!(answer.status, 413, "{answer:?}");
        assert!(answer.informational.is_empty(), "no 100 before it");
        assert!(connection.ends(), "the body is not waited for");
    }
}

/// CONN-9: `Connection` may name a thousand fields; only those that are there are removed.
#[test]
fn connection_removes_what_is_there() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[]);
    let mut names: Vec<_> = (0..2_000)
        .map(|index| format!("x-absent-{index}"))
        .collect();
    names.extend(std::iter::repeat_n("x-named".to_owned(), 200));
    names.push("a".to_owned());
    let nominated = names.join(",");
    let fields = [
        ("Connection", nominated.as_str()),
        ("X-Named", "1"),
        ("A", "1"),
        ("X-Kept", "1"),
    ];
    assert_eq!(weir.send(&get("/", &fields)).status, 200);
    let received = application.request("/");
    assert_eq!(received.header("x-kept"), Some("1"));
    for gone in ["x-named", "a", "connection"] {
        assert_eq!(received.header(gone), None, "{gone}");
    }
}

/// CONN-1: a head is at most 32 KiB.
#[test]
fn a_head_beyond_32_kib_is_refused() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[]);
    let with = |size: usize| {
        weir.send(&get("/", &[("X-Large", &"a".repeat(size))]))
            .status
    };
    assert_eq!(with(31 * 1024), 200);
    assert_eq!(with(33 * 1024), 431);
}

/// FORWARD-7: the application's answers are counted by class; ours are not.
#[test]
fn answers_of_the_application_are_counted_by_class() {
    let application = Application::start(|exchange| {
        exchange.read_body();
        let status = exchange.request.target.trim_start_matches('/').parse();
        exchange.answer(status.expect("a status"), &[], b"x");
        After::KeepAlive
    });
    let weir = Weir::start(&application, &[("WAF_DENY_NETS", "198.51.100.0/24")]);
    for target in ["/200", "/201", "/301", "/404", "/404", "/404", "/503"] {
        let expected: u16 = target[1..].parse().expect("a status");
        assert_eq!(weir.get(target, "203.0.113.7").status, expected);
    }
    assert_eq!(weir.get("/200", "198.51.100.1").status, 429);
    let count = |class: &str| weir.metric(&format!("waf_responses_total{{class=\"{class}\"}}"));
    for (class, expected) in [
        ("1xx", 0.0),
        ("2xx", 2.0),
        ("3xx", 1.0),
        ("4xx", 3.0),
        ("5xx", 1.0),
    ] {
        assert_eq!(count(class), Some(expected), "{class}");
    }
}
