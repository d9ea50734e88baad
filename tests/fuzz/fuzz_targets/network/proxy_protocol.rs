//! The header of the PROXY protocol: whatever the bytes, it is judged without a panic, and what was
//! judged stays so when more follows (EDGE-4).
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_dataplane::fuzzing::proxy_protocol::{Parsed, parse};

fuzz_target!(|bytes: &[u8]| {
    let parsed = parse(bytes);
    let more = [bytes, b"GET / HTTP/1.1\r\n"].concat();
    match parsed {
        Parsed::Partial => assert!(bytes.len() < 16 + 4096),
        Parsed::Header { length, .. } => {
            assert!(length <= bytes.len());
            assert_eq!(parse(&more), parsed);
        }
        Parsed::Malformed => assert_eq!(parse(&more), parsed),
    }
});
