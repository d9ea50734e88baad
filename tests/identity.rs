//! Who the client is (CLIENT), seen in the request log and in what reaches the application.

use serde_json::json;

use crate::support::application::Application;
use crate::support::moved::Moved;
use crate::support::raw_client::{Connection, get};
use crate::support::weir::{METRICS_TOKEN, Weir, state_dir};
use crate::support::{transport, wait_until};

/// The client and the address that the log gives a request with these field lines.
#[track_caller]
fn identified(weir: &Weir, path: &str, headers: &[(&str, &str)]) -> (String, String) {
    weir.send(&get(path, headers));
    let line = weir.line_of(path);
    let text = |member: &str| line[member].as_str().unwrap_or_default().to_owned();
    (text("client"), text("address"))
}

/// CLIENT-1: one IPv4 address is a client however it is written.
#[test]
fn a_mapped_address_is_the_ipv4_client() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[("WAF_RATE_LIMIT_PER_MINUTE", "2")]);
    weir.get("/a", "::ffff:203.0.113.7").expect(200);
    weir.get("/b", "203.0.113.7").expect(200);
    weir.get("/c", "::ffff:cb00:7107").expect(429);
    assert_eq!(weir.line_of("/a")["client"], "203.0.113.7");
}

/// CLIENT-1: one IPv6 /64 is one client, and the next /64 another.
#[test]
fn a_64_is_one_client() {
    let application = Application::ok();
    let weir = Weir::start(
        &application,
        &[
            ("WAF_RATE_LIMIT_PER_MINUTE", "2"),
            ("WAF_BAN_IPV6_PREFIX", "64"),
        ],
    );
    weir.get("/a", "2001:db8:1:2::1").expect(200);
    weir.get("/b", "2001:db8:1:2:ffff::2").expect(200);
    weir.get("/c", "2001:db8:1:2::3").expect(429);
    weir.get("/d", "2001:db8:1:3::1").expect(200);
    let line = weir.line_of("/b");
    assert_eq!(line["client"], "2001:db8:1:2::/64");
    assert_eq!(line["address"], "2001:db8:1:2:ffff::2");
    assert_eq!(line["netblock"], "2001:db8:1:2::/64");
}

/// CLIENT-2: an untrusted peer is the client, whatever it says.
#[test]
fn nobody_is_trusted_by_default() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[("WAF_TRUSTED_PROXIES", "")]);
    for header in [
        "X-Forwarded-For",
        "Forwarded",
        "X-Real-IP",
        "True-Client-IP",
    ] {
        let mut connection = Connection::open_from(weir.address(), "127.0.1.5");
        let path = format!("/{header}");
        connection.send(&get(&path, &[(header, "203.0.113.7")]));
        connection.response().expect(200);
        assert_eq!(weir.line_of(&path)["client"], "127.0.1.5", "{header}");
    }
}

/// CLIENT-3: right to left over trusted addresses; what is no address ends the walk.
#[test]
fn forwarded_for_is_read_from_right_to_left() {
    let application = Application::ok();
    let weir = Weir::start(
        &application,
        &[("WAF_TRUSTED_PROXIES", "127.0.0.0/8, 10.0.0.0/8")],
    );
    let cases: &[(&[&str], &str, &str)] = &[
        (&["203.0.113.7"], "203.0.113.7", "203.0.113.7"),
        (&["198.51.100.1, 203.0.113.7"], "203.0.113.7", "203.0.113.7"),
        (
            &["198.51.100.1,203.0.113.7,10.0.0.1"],
            "203.0.113.7",
            "203.0.113.7",
        ),
        (
            &["198.51.100.1", "203.0.113.7, 10.0.0.1", "10.0.0.2"],
            "203.0.113.7",
            "203.0.113.7",
        ),
        (&["10.0.0.9, 10.0.0.1"], "10.0.0.9", "10.0.0.9"),
        (&["203.0.113.7, unknown, 10.0.0.1"], "10.0.0.1", "10.0.0.1"),
        (&["nonsense"], "127.0.0.1", "127.0.0.1"),
        (&[""], "127.0.0.1", "127.0.0.1"),
        (&[], "127.0.0.1", "127.0.0.1"),
        (&["203.0.113.7:4711"], "203.0.113.7", "203.0.113.7"),
        (
            &["[2001:db8:1:2::9]:443"],
            "2001:db8:1:2::/64",
            "2001:db8:1:2::9",
        ),
        (
            &["[2001:db8:1:2::9]"],
            "2001:db8:1:2::/64",
            "2001:db8:1:2::9",
        ),
        (&["2001:db8:1:2::9"], "2001:db8:1:2::/64", "2001:db8:1:2::9"),
        (&["fe80::1%eth0"], "fe80::/64", "fe80::1"),
        (&["::ffff:203.0.113.7"], "203.0.113.7", "203.0.113.7"),
        (&["[::ffff:203.0.113.7]:80"], "203.0.113.7", "203.0.113.7"),
        (
            &["203.0.113.7, ::ffff:10.0.0.1"],
            "203.0.113.7",
            "203.0.113.7",
        ),
        (&["203.0.113.7, 203.0.113.8x"], "127.0.0.1", "127.0.0.1"),
        (&["0x7f.1, 10.0.0.3"], "10.0.0.3", "10.0.0.3"),
    ];
    for (number, (lines, client, address)) in cases.iter().enumerate() {
        let headers: Vec<_> = lines
            .iter()
            .map(|line| ("X-Forwarded-For", *line))
            .collect();
        let path = format!("/case-{number}");
        assert_eq!(
            identified(&weir, &path, &headers),
            ((*client).to_owned(), (*address).to_owned()),
            "{lines:?}"
        );
    }
}

/// CLIENT-3: at most 64 entries are read; the last of them stands.
#[test]
fn no_more_than_64_entries_are_read() {
    let application = Application::ok();
    let weir = Weir::start(
        &application,
        &[("WAF_TRUSTED_PROXIES", "127.0.0.0/8, 10.0.0.0/8")],
    );
    let chain = |count: usize| {
        let trusted: Vec<_> = (1..=count).rev().map(|n| format!("10.0.0.{n}")).collect();
        format!("203.0.113.7, {}", trusted.join(", "))
    };
    let client =
        |path: &str, count: usize| identified(&weir, path, &[("X-Forwarded-For", &chain(count))]).0;
    assert_eq!(client("/63-trusted", 63), "203.0.113.7");
    assert_eq!(client("/64-trusted", 64), "10.0.0.64");
    assert_eq!(client("/100-trusted", 100), "10.0.0.64");
}

/// CLIENT-8: of a number of proxies the peer is the nearest, whoever it is, and the client is the
/// entry of this number from the end, whatever stands before it; where there are fewer the peer is
/// the client. A client whose own address is that of a proxy can name nobody else.
#[test]
fn proxies_can_be_counted() {
    let rules = r#"{"version":1,"traps":[{"name":"scanner","paths":["/.env"]}]}"#;
    for (hops, chain, client) in [
        ("1", "192.0.2.66, 203.0.113.7", "203.0.113.7"),
        ("2", "192.0.2.66, 203.0.113.7, 10.0.0.2", "203.0.113.7"),
        ("3", "203.0.113.7, 10.0.0.2", "127.0.1.5"),
        ("2", "203.0.113.7, nonsense, 10.0.0.2", "127.0.1.5"),
        ("2", "203.0.113.7", "127.0.1.5"),
        ("1", "203.0.113.7, 10.0.0.5", "10.0.0.5"),
    ] {
        let (application, state) = (Application::ok(), state_dir());
        std::fs::write(state.path().join("rules.json"), rules).expect("writes");
        let settings = [("WAF_TRUSTED_PROXIES", ""), ("WAF_TRUSTED_HOPS", hops)];
        let weir = Weir::start_at(application.address(), &state, &settings);
        let mut peer = Connection::open_from(weir.address(), "127.0.1.5");
        peer.send(&get("/counted", &[("X-Forwarded-For", chain)]));
        peer.response().expect(200);
        assert_eq!(
            weir.line_of("/counted")["client"],
            client,
            "{hops}: {chain}"
        );
        // Its own deeds are the client's, alone; those of the proxy ban nobody.
        peer.send(&get("/.env", &[("X-Forwarded-For", chain)]));
        peer.response().expect(429);
        let bans = || weir.control("GET", "/v1/bans", None).expect(200).json()["bans"].clone();
        if client == "127.0.1.5" {
            peer.send(&get("/again", &[("X-Forwarded-For", chain)]));
            peer.response().expect(200);
            assert_eq!(bans(), serde_json::json!([]), "{hops}: {chain}");
        } else {
            wait_until("the ban", || {
                bans()[0]["netblock"] == format!("{client}/32")
            });
        }
        let seen = application.request("/counted");
        let expected = format!("{chain}, 127.0.1.5");
        assert_eq!(seen.header("x-forwarded-for"), Some(&*expected));
    }
    let both = [
        ("WAF_TRUSTED_PROXIES", "10.0.0.0/8"),
        ("WAF_TRUSTED_HOPS", "1"),
    ];
    let refused = Weir::refuse(&state_dir(), &both);
    assert_eq!(refused.code, Some(78));
    assert!(
        refused
            .stderr
            .contains("WAF_TRUSTED_HOPS=\"1\" is set and WAF_TRUSTED_PROXIES"),
        "{}",
        refused.stderr
    );
}

/// CLIENT-3, ALIVE-5: where proxies are known by wide nets, a client whose own address lies in them
/// is believed on whom it names: what `weir check` warns of. Without naming anybody it is banned by
/// its own deeds, alone.
#[test]
fn a_client_in_the_nets_of_a_cdn() {
    let state = state_dir();
    let rules = r#"{"version":1,"traps":[{"name":"scanner","paths":["/.env"]}]}"#;
    std::fs::write(state.path().join("rules.json"), rules).expect("writes");
    let application = Application::ok();
    let settings = [("WAF_TRUSTED_PROXIES", "127.0.0.0/8,10.0.0.0/8")];
    let weir = Weir::start_at(application.address(), &state, &settings);
    weir.get("/named", "192.0.2.66, 10.0.0.5").expect(200);
    assert_eq!(weir.line_of("/named")["client"], "192.0.2.66");
    weir.get("/.env", "10.0.0.5").expect(429);
    wait_until("the ban", || weir.bans().len() == 1);
    assert_eq!(weir.bans()[0]["netblock"], "10.0.0.5/32");
    weir.get("/", "10.0.0.5").expect(429);
    weir.get("/", "10.0.0.6").expect(200);
}

/// CLIENT-4: `Forwarded` of RFC 7239.
#[test]
fn the_client_can_come_from_forwarded() {
    let application = Application::ok();
    let weir = Weir::start(
        &application,
        &[
            ("WAF_TRUSTED_PROXIES", "127.0.0.0/8, 10.0.0.0/8"),
            ("WAF_CLIENT_IP_HEADER", "Forwarded"),
        ],
    );
    for (number, (line, client)) in [
        ("for=203.0.113.7", "203.0.113.7"),
        ("For=\"203.0.113.7:4711\"", "203.0.113.7"),
        (
            "for=\"[2001:db8:1:2::9]:4711\";proto=https",
            "2001:db8:1:2::/64",
        ),
        (
            "for=198.51.100.1, for=203.0.113.7;by=10.0.0.1, for=10.0.0.2",
            "203.0.113.7",
        ),
        ("proto=https;for=203.0.113.7;host=\"a,b;c\"", "203.0.113.7"),
        ("for=203.0.113.7, for=unknown", "127.0.0.1"),
        ("for=203.0.113.7, for=_hidden, for=10.0.0.3", "10.0.0.3"),
    ]
    .into_iter()
    .enumerate()
    {
        let path = format!("/case-{number}");
        // The usual field is not the one that was named, so it decides nothing.
        let headers = [("Forwarded", line), ("X-Forwarded-For", "192.0.2.99")];
        assert_eq!(identified(&weir, &path, &headers).0, client, "{line}");
    }
}

/// CLIENT-4: a CDN's field with a single value.
#[test]
fn the_client_can_come_from_a_field_of_choice() {
    let application = Application::ok();
    let weir = Weir::start(
        &application,
        &[("WAF_CLIENT_IP_HEADER", "CF-Connecting-IP")],
    );
    let headers = [
        ("CF-Connecting-IP", "203.0.113.7"),
        ("X-Forwarded-For", "192.0.2.99"),
    ];
    assert_eq!(identified(&weir, "/cdn", &headers).0, "203.0.113.7");
}

/// CLIENT-5: what an untrusted peer says of itself is replaced; the application sees the proxy's
/// own words.
#[test]
fn an_untrusted_peers_claims_are_replaced() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[("WAF_TRUSTED_PROXIES", "")]);
    let mut connection = Connection::open_from(weir.address(), "127.0.1.5");
    connection.send(&get(
        "/claims",
        &[
            ("X-Forwarded-For", "203.0.113.7"),
            ("X-Forwarded-Proto", "https"),
            ("X-Forwarded-Host", "evil.example"),
            ("X-Forwarded-Port", "443"),
            ("X-Forwarded-Prefix", "/admin"),
            ("Forwarded", "for=203.0.113.7;proto=https"),
            ("X-Real-IP", "203.0.113.7"),
            ("X-Request-ID", "claimed"),
            ("X-Client-ASN", "AS64496"),
            ("X-Client-Country", "DE"),
            ("X_Forwarded_For", "203.0.113.7"),
            ("X_Client_ASN", "AS64496"),
            ("X_Client-Country", "DE"),
            ("X_Real_IP", "203.0.113.7"),
        ],
    ));
    connection.response().expect(200);
    let seen = application.request("/claims");
    assert_eq!(seen.header("x-forwarded-for"), Some("127.0.1.5"));
    assert_eq!(seen.header("x-forwarded-proto"), Some(transport::scheme()));
    assert_eq!(seen.header("x-forwarded-host"), Some("example.org"));
    let id = seen.header("x-request-id").expect("an id");
    assert_ne!(id, "claimed");
    assert_eq!(weir.line_of("/claims")["request_id"], id);
    for (name, value) in &seen.headers {
        let canonical = name.replace('_', "-");
        let ours = [
            "x-forwarded-for",
            "x-forwarded-proto",
            "x-forwarded-host",
            "x-request-id",
        ];
        let claim = canonical.starts_with("x-forwarded")
            || canonical.starts_with("x-client-")
            || canonical == "forwarded";
        assert!(!claim || ours.contains(&name.as_str()), "{name}: {value}");
        assert!(!value.contains("203.0.113.7"), "{name}: {value}");
    }
}

/// CLIENT-5: a trusted proxy's chain, scheme and id go on; a client's lookup headers do not,
/// whoever passes them on.
#[test]
fn a_trusted_proxys_words_are_kept() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[]);
    weir.send(&get(
        "/kept",
        &[
            ("X-Forwarded-For", "198.51.100.1, 203.0.113.7"),
            ("X-Forwarded-Proto", "https"),
            ("X-Forwarded-Host", "shop.example"),
            ("X-Request-ID", "id-from-the-edge"),
            ("X-Client-ASN", "AS64496"),
            ("X-Client-Country", "DE"),
        ],
    ));
    let seen = application.request("/kept");
    assert_eq!(
        seen.header("x-forwarded-for"),
        Some("198.51.100.1, 203.0.113.7, 127.0.0.1")
    );
    assert_eq!(seen.header("x-forwarded-proto"), Some("https"));
    assert_eq!(seen.header("x-forwarded-host"), Some("shop.example"));
    assert_eq!(seen.header("x-request-id"), Some("id-from-the-edge"));
    assert_eq!(seen.header("x-client-asn"), None);
    assert_eq!(seen.header("x-client-country"), None);
    let line = weir.line_of("/kept");
    assert_eq!(line["request_id"], "id-from-the-edge");
    assert_eq!(line["scheme"], "https");
    assert_eq!(line["forwarded_for"], "198.51.100.1, 203.0.113.7");
}

/// CLIENT-6: no client can have the proxy's own fields stripped by naming them in `Connection`.
#[test]
fn connection_cannot_strip_our_own_fields() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[("WAF_TRUSTED_PROXIES", "")]);
    weir.send(&get(
        "/nominated",
        &[
            (
                "Connection",
                "X-Forwarded-For, X-Forwarded-Proto, X-Forwarded-Host, X-Request-ID, Host, X-Drop",
            ),
            ("Connection", "x-drop-too"),
            ("X-Drop", "1"),
            ("X-Drop-Too", "1"),
            ("X-Stay", "1"),
        ],
    ));
    let seen = application.request("/nominated");
    assert_eq!(seen.header("x-forwarded-for"), Some("127.0.0.1"));
    assert_eq!(seen.header("x-forwarded-proto"), Some(transport::scheme()));
    assert_eq!(seen.header("x-forwarded-host"), Some("example.org"));
    assert!(seen.header("x-request-id").is_some());
    assert_eq!(seen.header("host"), Some("example.org"));
    assert_eq!(seen.header("x-drop"), None);
    assert_eq!(seen.header("x-drop-too"), None);
    assert_eq!(seen.header("x-stay"), Some("1"));
}

/// CLIENT-7: 100 forwarded clients from one untrusted peer are one warning, and not a second within
/// the hour.
#[test]
fn a_forgotten_trusted_proxy_is_pointed_out_once() {
    let application = Application::ok();
    let moved = Moved::start(
        &application,
        &json!({"version": 1}),
        &[("WAF_TRUSTED_PROXIES", "")],
    );
    let weir = &moved.weir;
    let warnings = || {
        weir.process_log()
            .into_iter()
            .filter(|line| {
                line["level"] == "WARN" && line.to_string().contains("WAF_TRUSTED_PROXIES")
            })
            .count()
    };
    let before = warnings();
    let mut connection = Connection::open_from(weir.address(), "127.0.1.5");
    let mut ask = |from: usize, to: usize| {
        for n in from..to {
            let forwarded = format!("203.0.{}.{}", n / 250, n % 250 + 1);
            connection.send(&get("/many", &[("X-Forwarded-For", &forwarded)]));
            connection.response().expect(200);
        }
    };
    ask(0, 90);
    weir.lines_of("/many", 90);
    assert_eq!(warnings(), before, "too early");
    ask(90, 400);
    let warning = weir.wait_for_process_log(&["WARN", "WAF_TRUSTED_PROXIES"]);
    assert!(warning.to_string().contains("127.0.1.5"), "{warning}");
    weir.lines_of("/many", 400);
    assert_eq!(warnings(), before + 1);
}

/// ALIVE-5: the limits hold for a trusted proxy that asks for itself, but no ban covers it: those
/// behind it are served.
#[test]
fn a_trusted_proxy_is_not_banned() {
    let application = Application::ok();
    let weir = Weir::start(&application, &[("WAF_RATE_LIMIT_PER_HOUR", "2")]);
    for (path, status) in [("/1", 200), ("/2", 200), ("/3", 429), ("/4", 429)] {
        let answer = weir.send(&get(path, &[])).expect(status);
        assert_eq!(answer.header("retry-after").is_some(), status == 429);
    }
    assert_eq!(weir.line_of("/4")["action"], "rate_limited");
    weir.get("/5", "127.0.0.9").expect(200);
    weir.get("/6", "203.0.113.7").expect(200);
    assert_eq!(weir.bans().len(), 0);
}

/// ALIVE-5, CLIENT-7: a load balancer that is missing in `WAF_TRUSTED_PROXIES` is warned of and not
/// banned: 429 over the limit, so that those behind it are served again once it fits.
#[test]
fn a_forgotten_proxy_is_not_banned() {
    let application = Application::ok();
    let settings = [
        ("WAF_TRUSTED_PROXIES", ""),
        ("WAF_ALLOW_NETS", "127.0.2.0/24"),
        ("WAF_RATE_LIMIT_PER_HOUR", "130"),
    ];
    // All of it within one minute.
    let moved = Moved::start(&application, &json!({"version": 1}), &settings);
    let weir = &moved.weir;
    let mut balancer = Connection::open_from(weir.address(), "127.0.1.5");
    for number in 0..140 {
        let client = format!("203.0.113.{number}");
        balancer.send(&get("/a", &[("X-Forwarded-For", &client)]));
        let expected = if number < 130 { 200 } else { 429 };
        balancer.response().expect(expected);
    }
    weir.wait_for_process_log(&["WARN", "WAF_TRUSTED_PROXIES", "127.0.1.5"]);
    let mut own = Connection::open_from(weir.address(), "127.0.2.1");
    own.send(&get(
        "/_waf/metrics",
        &[("Authorization", &format!("Bearer {METRICS_TOKEN}"))],
    ));
    let page = own.response().expect(200).text();
    for sample in [
        "waf_untrusted_forwarders 1",
        "waf_bans_total{cause=\"rate_limit\"} 0",
    ] {
        assert!(page.contains(sample), "{sample}: {page}");
    }
}
