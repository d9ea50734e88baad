//! A request's head on its way to the application, and the same fields on the way back: what is of
//! one hop, forged or a twin never arrives, ours arrives once, and everything else arrives as it
//! was (CLIENT-4..6, RFC 9110 §7.6.1).
#![no_main]

use std::collections::HashSet;
use std::mem::MaybeUninit;

use http::header::{CONTENT_LENGTH, HOST, HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING};
use libfuzzer_sys::fuzz_target;
use weir_dataplane::fuzzing::headers::{
    ProxyFields, Stripped, asks_for_websocket, nominated_by_client, to_downstream, to_upstream,
};
use weir_dataplane::http1::MAX_FIELDS;
use weir_dataplane::http1::request::parse;
use weir_dataplane::message::{Fields, Form, Head};

const HOP_BY_HOP: [&str; 8] = [
    "connection",
    "keep-alive",
    "proxy-connection",
    "proxy-authenticate",
    "proxy-authorization",
    "te",
    "transfer-encoding",
    "upgrade",
];
/// Never from the client, trusted or not.
const ALWAYS_OURS: [&str; 3] = ["x-client-asn", "x-client-country", "x-request-id"];
const PROTECTED: [&str; 4] = ["host", "content-length", "transfer-encoding", "connection"];

fuzz_target!(|bytes: &[u8]| {
    let Some((choice, text)) = bytes.split_first() else {
        return;
    };
    let text = [text, b"\r\n\r\n"].concat();
    let mut space = [const { MaybeUninit::uninit() }; MAX_FIELDS];
    let Ok(Some((read, _))) = parse(&text, &mut space) else {
        return;
    };
    let before = said(&read);
    let head = read.into_own().expect("a head is not too large");
    assert_eq!(said(&head), before);
    let peer = weir_fuzz::peer(*choice);
    let trusted = weir_fuzz::trusted().contains(peer);
    let websocket = asks_for_websocket(&head);
    let (peer, id, upstream) = (
        HeaderValue::try_from(peer.to_string()).expect("an address"),
        HeaderValue::from_static("id-1"),
        HeaderValue::from_static("upstream:80"),
    );
    let stripped = Stripped::new(&[HeaderName::from_static("x-forwarded-for")]);
    let ours = ProxyFields {
        peer: &peer,
        trusted,
        stripped: &stripped,
        scheme: "http",
        request_id: &id,
        upstream_host: &upstream,
    };
    let client = &map(&head);
    let mut sent = HeaderMap::new();
    to_upstream(
        &head,
        &nominated_by_client(&head),
        &ours,
        websocket,
        |name, value| {
            let name = HeaderName::try_from(name).expect("a name of the client's, or ours");
            sent.append(
                name,
                HeaderValue::from_bytes(value).expect("so is its value"),
            );
        },
    );

    let target = head.target();
    if head.method != http::Method::CONNECT {
        assert!(target.starts_with('/') || target == "*", "{target}");
    }
    // Who frames the body says how; the message is for one host.
    assert!(!sent.contains_key(CONTENT_LENGTH));
    assert!(!sent.contains_key(TRANSFER_ENCODING));
    let host = client.get(HOST).unwrap_or(&upstream);
    assert_eq!(all(&sent, "host"), [host]);
    assert!(
        !host
            .as_bytes()
            .iter()
            .any(|byte| b" \t/@?#\\".contains(byte))
    );

    // Ours.
    let nominated = nominated(client);
    assert_eq!(all(&sent, "x-request-id"), [&id]);
    let forwarded_for = all(&sent, "x-forwarded-for");
    assert_eq!(forwarded_for.len(), 1);
    assert!(forwarded_for[0].as_bytes().ends_with(peer.as_bytes()));
    if !trusted {
        assert_eq!(forwarded_for, [&peer]);
        assert_eq!(all(&sent, "x-forwarded-proto"), ["http"]);
        let hosts: Vec<_> = client.get_all(HOST).iter().collect();
        assert_eq!(all(&sent, "x-forwarded-host"), hosts);
    } else {
        let mut chain = all(client, "x-forwarded-for");
        chain.push(&peer);
        let chain: Vec<&[u8]> = chain.into_iter().map(HeaderValue::as_bytes).collect();
        assert_eq!(forwarded_for[0].as_bytes(), chain.join(b", ".as_slice()));
        for (name, default) in [("x-forwarded-proto", "http"), ("x-forwarded-host", "")] {
            let said = all(client, name);
            if said.is_empty() || nominated.contains(name) {
                assert!(default.is_empty() || all(&sent, name) == [default]);
            } else {
                assert_eq!(all(&sent, name), said);
            }
        }
    }
    assert_eq!(asks(&sent), asked(client, websocket));

    // Everything else: it arrives as it was, or not at all.
    let ours: HashSet<&str> = [
        "host",
        "x-forwarded-for",
        "x-forwarded-proto",
        "x-forwarded-host",
        "content-length",
    ]
    .into_iter()
    .chain(ALWAYS_OURS)
    .chain(HOP_BY_HOP)
    .collect();
    for name in client.keys().chain(sent.keys()).map(HeaderName::as_str) {
        if ours.contains(name) {
            continue;
        }
        // Whatever is no letter and no digit may be read as a dash (FORWARD-8).
        let dashed = name.replace(|c: char| !c.is_ascii_alphanumeric(), "-");
        let forwarding = dashed.starts_with("x-forwarded")
            || ["forwarded", "x-real-ip"].contains(&dashed.as_str());
        let twin = dashed != name
            && (forwarding
                || PROTECTED.contains(&dashed.as_str())
                || ALWAYS_OURS.contains(&dashed.as_str()));
        let gone = twin
            || (forwarding && !trusted)
            || name == "expect"
            || (nominated.contains(name) && name != "content-length");
        if gone {
            assert!(!sent.contains_key(name), "{name}");
        } else {
            assert_eq!(all(&sent, name), all(client, name), "{name}");
        }
    }
    assert!(!sent.contains_key("x-client-asn") && !sent.contains_key("x-client-country"));

    // The way back.
    let mut back = client.clone();
    to_downstream(&mut back, false);
    for name in client.keys().map(HeaderName::as_str) {
        let kept = ["host", "content-length"].contains(&name);
        if HOP_BY_HOP.contains(&name) || (nominated.contains(name) && !kept) {
            assert!(!back.contains_key(name), "{name}");
        } else {
            assert_eq!(all(&back, name), all(client, name), "{name}");
        }
    }
});

/// What a head says besides its fields.
fn said(head: &Head<impl Form>) -> (http::Method, String, Option<Vec<u8>>) {
    let host = head.host().map(<[u8]>::to_vec);
    (head.method.clone(), head.target().to_owned(), host)
}

/// The fields of a head as a map.
fn map(head: &impl Fields) -> HeaderMap {
    let field = |(name, value): (&str, &[u8])| {
        let name = HeaderName::try_from(name).expect("a name");
        (name, HeaderValue::from_bytes(value).expect("a value"))
    };
    let mut map = HeaderMap::new();
    for (name, value) in head.fields().map(field) {
        map.append(name, value);
    }
    map
}

fn all<'a>(headers: &'a HeaderMap, name: &str) -> Vec<&'a HeaderValue> {
    headers.get_all(name).iter().collect()
}

/// The fields of one hop that are sent: ours, and only these.
fn asks(sent: &HeaderMap) -> Vec<(&str, Vec<&[u8]>)> {
    HOP_BY_HOP
        .into_iter()
        .filter(|name| sent.contains_key(*name))
        .map(|name| (name, all(sent, name).iter().map(|v| v.as_bytes()).collect()))
        .collect()
}

/// What they should be.
fn asked(client: &HeaderMap, websocket: bool) -> Vec<(&'static str, Vec<&'static [u8]>)> {
    let trailers = tokens(client, "te").any(|token| token == "trailers");
    if websocket {
        vec![
            ("connection", vec![b"upgrade"]),
            ("upgrade", vec![b"websocket"]),
        ]
    } else if trailers {
        vec![("connection", vec![b"te"]), ("te", vec![b"trailers"])]
    } else {
        Vec::new()
    }
}

fn nominated(headers: &HeaderMap) -> HashSet<String> {
    tokens(headers, "connection")
        .filter(|token| !["keep-alive", "close"].contains(&token.as_str()))
        .collect()
}

fn tokens<'a>(headers: &'a HeaderMap, name: &str) -> impl Iterator<Item = String> + 'a {
    headers
        .get_all(name)
        .iter()
        .flat_map(|line| line.as_bytes().split(|byte| *byte == b','))
        .map(|token| weir_fuzz::text(token.trim_ascii()).to_ascii_lowercase())
}
