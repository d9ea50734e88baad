use proptest::prelude::*;

use super::*;
use crate::by_hyper::compare_plain;

fn kind(bytes: &str) -> &'static str {
    let mut fields = [const { MaybeUninit::uninit() }; MAX_FIELDS];
    match Plain::parse(bytes.as_bytes(), &mut fields) {
        Parsed::Whole(head, length) => {
            assert!(length <= bytes.len());
            if head.closes { "closes" } else { "plain" }
        }
        Parsed::Partial => "partial",
        Parsed::Unusual => "unusual",
    }
}

/// CONN-3: what is answered before hyper, and what is left to it.
#[test]
fn only_the_plain_request_is_answered_here() {
    let with = |fields: &str| format!("GET /a HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
    assert_eq!(kind(&with("")), "plain");
    assert_eq!(kind(&with("connection: Keep-Alive\r\nX: y\r\n")), "plain");
    assert_eq!(kind(&with("Connection: close\r\n")), "closes");
    assert_eq!(kind(&format!("{}GET", with(""))), "plain");
    assert_eq!(kind("POST /?a=b HTTP/1.1\r\nhost:\r\n\r\n"), "plain");
    for partial in ["", "\r\n", "GET", "GET /a HTTP/1.1\r\nHost: a\r\n"] {
        assert_eq!(kind(partial), "partial", "{partial:?}");
    }
    for fields in [
        "Content-Length: 0\r\n",
        "Transfer-Encoding: chunked\r\n",
        "Expect: 100-continue\r\n",
        "Connection: upgrade\r\nUpgrade: websocket\r\n",
        "Connection: close\r\nConnection: keep-alive\r\n",
        "Connection: x-own\r\n",
        "Trailer: a\r\n",
        "TE: trailers\r\n",
        "host: b\r\n",
        "a b: c\r\n",
        &"x: y\r\n".repeat(MAX_FIELDS),
    ] {
        assert_eq!(kind(&with(fields)), "unusual", "{fields:?}");
    }
    for head in [
        "GET /a HTTP/1.0\r\nHost: a\r\n\r\n",
        "GET /a HTTP/1.1\r\n\r\n",
        "GET /a HTTP/1.1\r\nHost: a/b\r\n\r\n",
        "GET http://a/ HTTP/1.1\r\nHost: a\r\n\r\n",
        "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
        "CONNECT /a HTTP/1.1\r\nHost: a\r\n\r\n",
        "get /a HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /a#b HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /{a} HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /\u{e9} HTTP/1.1\r\nHost: a\r\n\r\n",
        "nonsense\r\n\r\n",
    ] {
        assert_eq!(kind(head), "unusual", "{head:?}");
    }
}

/// What plain requests are made of, and what makes others of them.
fn target() -> impl Strategy<Value = String> {
    let ascii = prop::collection::vec((0x20u8..0x7f).prop_map(char::from), 0..12);
    let any = prop::collection::vec(any::<char>(), 0..4);
    let word = prop_oneof![
        Just("/a"),
        Just("?"),
        Just("%2e"),
        Just("//"),
        Just("http://a/")
    ];
    (word, prop_oneof![4 => ascii, 1 => any]).prop_map(|(word, rest)| {
        rest.into_iter()
            .fold(word.to_owned(), |all, one| all + &one.to_string())
    })
}

fn field() -> impl Strategy<Value = String> {
    let name = prop_oneof![
        Just("Connection"),
        Just("X-Any"),
        Just("te"),
        Just("HOST"),
        Just("Content-Length"),
        Just("Transfer-Encoding"),
        Just("Expect"),
        Just("Upgrade"),
        Just("x_under"),
        Just("a b"),
    ];
    let value = prop_oneof![
        Just("close".to_owned()),
        Just("keep-alive".to_owned()),
        Just("Close, x".to_owned()),
        Just("0".to_owned()),
        Just("chunked".to_owned()),
        Just("100-continue".to_owned()),
        "[ -~\t\u{80}-\u{ff}]{0,8}",
    ];
    let end = prop_oneof![8 => Just("\r\n"), 1 => Just("\n"), 1 => Just("\r\n "), 1 => Just("\r")];
    (
        name,
        prop_oneof![Just(":"), Just(": "), Just(" :")],
        value,
        end,
    )
        .prop_map(|(name, colon, value, end)| format!("{name}{colon}{value}{end}"))
}

fn head() -> impl Strategy<Value = String> {
    let verb = prop::sample::select(vec![
        "GET", "GET", "GET", "POST", "HEAD", "get", "CONNECT", "OPTIONS", "G\"T",
    ]);
    let version =
        prop_oneof![8 => Just("HTTP/1.1\r\n"), 1 => Just("HTTP/1.0\r\n"), 1 => Just("HTTP/1.1\n")];
    let host = prop_oneof![8 => Just("Host: a\r\n"), 1 => Just("Host: a/b\r\n"), 1 => Just("")];
    let fields = prop::collection::vec(field(), 0..4);
    (
        verb,
        target(),
        version,
        host,
        fields,
        prop_oneof![8 => Just("\r\n"), 1 => Just("\n")],
    )
        .prop_map(|(verb, target, version, host, fields, end)| {
            format!("{verb} {target} {version}{host}{}{end}", fields.concat())
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// CONN-3: what is answered before hyper is what hyper would have answered.
    #[test]
    fn a_plain_request_is_the_same_for_hyper(head in head()) {
        prop_assert_eq!(compare_plain(head.as_bytes()), Ok(()), "{:?}", head);
    }
}

/// CONN-3: each byte in a target, and each byte in a value of a field.
#[test]
fn each_byte_is_read_as_hyper_reads_it() {
    for byte in 0..=255 {
        for around in [
            ("GET /a", "b HTTP/1.1\r\nHost: a\r\n\r\n"),
            ("GET / HTTP/1.1\r\nHost: a\r\nX: a", "b\r\n\r\n"),
            ("GET / HTTP/1.1\r\nHost: a", "b\r\n\r\n"),
        ] {
            let head = [around.0.as_bytes(), &[byte], around.1.as_bytes()].concat();
            assert_eq!(compare_plain(&head), Ok(()), "{byte:#x} in {around:?}");
        }
    }
}
