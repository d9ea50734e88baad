//! Any bytes as the body of `POST /_waf/bans`: what is taken says what is to be banned, why and for
//! how long, and each fault points at something that stands in the body or is missing from it
//! (ADMIN-2).
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use weir_controlplane::fuzzing::Bodies;
use weir_shared::netblock::Netblock;

static BODIES: LazyLock<Bodies> = LazyLock::new(|| Bodies::new(weir_fuzz::trusted().clone()));

fuzz_target!(|bytes: &[u8]| {
    let body = serde_json::from_slice::<Value>(bytes);
    match BODIES.read(bytes) {
        Ok(netblock) => {
            let body = body.expect("what is taken is JSON");
            let netblock: Netblock = netblock.parse().expect("a netblock");
            let reason = body["reason"].as_str().expect("a reason");
            assert!((1..=500).contains(&reason.chars().count()));
            assert!(body["duration"].is_string());
            assert!(body["client"].is_string() != body["netblock"].is_string());
            if body["force"] != true {
                assert!(netblock.net().prefix_len() > 0);
                let trusted = weir_fuzz::trusted();
                for proxy in trusted.blocks() {
                    assert!(!netblock.covers(*proxy), "{netblock}");
                }
            }
        }
        // 400
        Err(None) => assert!(body.is_err()),
        // 422
        Err(Some(faults)) => {
            let body = body.expect("what does not fit is JSON all the same");
            assert!(!faults.is_empty());
            for (pointer, detail) in faults {
                assert!(!detail.is_empty());
                // Of members that are given twice serde_json knows the last alone.
                let stands =
                    body.pointer(&pointer).is_some() || detail.contains("duplicate member");
                let parent = pointer.rsplit_once('/').map(|(parent, _)| parent);
                let missing = parent.is_some_and(|parent| body.pointer(parent).is_some());
                assert!(stands || missing, "{pointer}: {detail}");
            }
        }
    }
});
