//! A request's head, and who its client is (CLIENT-1..4): a peer nobody trusts is its own client,
//! and what a client writes in front of the chain of its proxies changes nothing.
#![no_main]

use http::header::FORWARDED;
use http::{HeaderMap, HeaderName, HeaderValue};
use libfuzzer_sys::fuzz_target;
use weir_dataplane::fuzzing::ForgottenProxy;
use weir_dataplane::identity::{
    Identity, X_FORWARDED_FOR, X_FORWARDED_PROTO, X_REQUEST_ID, identify,
};
use weir_dataplane::message::Known;
use weir_shared::client::{Client, fold};

fuzz_target!(|bytes: &[u8]| {
    let Some((choice, text)) = bytes.split_first() else {
        return;
    };
    let Some(head) = weir_fuzz::head(text) else {
        return;
    };
    let (peer, trusted) = (weir_fuzz::peer(*choice), weir_fuzz::trusted());
    let is_trusted = trusted.contains(peer);
    let header = match choice / 4 % 3 {
        0 => X_FORWARDED_FOR,
        1 => FORWARDED,
        _ => HeaderName::from_static("cf-connecting-ip"),
    };
    let (sender, settings) = weir_fuzz::sender(peer, is_trusted, &header);
    let seen = Known::of(&head.headers);
    let found = identify(sender, &settings, &head.headers, seen);

    assert_eq!(found.is_proxy, is_trusted && found.address == peer);
    assert_eq!(found.other_site, seen.other_site);
    assert_eq!(found.client, Client::of(found.address));
    assert_eq!(found.address, fold(found.address));
    if !is_trusted {
        let alone = Identity {
            other_site: seen.other_site,
            ..Identity::of_peer(sender)
        };
        assert_eq!(found, alone);
        for line in head.headers.get_all("x-forwarded-for") {
            ForgottenProxy::default().note(peer, line.as_bytes(), 0);
        }
        return;
    }
    if found.scheme == "https" {
        assert!(head.headers.contains_key(X_FORWARDED_PROTO));
    }
    if let Some(id) = &found.request_id {
        assert_eq!(head.headers.get(X_REQUEST_ID), Some(id));
        assert!(id.as_bytes().iter().all(u8::is_ascii_graphic));
    }
    if found.address != peer {
        assert!(head.headers.contains_key(&header));
    }
    // A chain that is trusted to its end goes on in what stands in front of it.
    if !trusted.contains(found.address) {
        for forged in [
            "203.0.113.66",
            "for=203.0.113.66",
            "\"",
            "for=\"a, ",
            "\u{e9}",
        ] {
            let mut headers = HeaderMap::new();
            let value = HeaderValue::from_bytes(forged.as_bytes()).expect("a value");
            headers.append(&header, value);
            for (name, value) in &head.headers {
                headers.append(name, value.clone());
            }
            let again = identify(sender, &settings, &headers, Known::of(&headers));
            assert_eq!(again.address, found.address, "{forged}");
        }
    }
});
