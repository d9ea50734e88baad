//! The requests of one connection: hyper's server reads the same ones, each to the same byte, or
//! more for a named reason; and however the bytes are cut into reads, they say the same (CONN-15).
//!
//! The first byte says how many of the next ones choose the cuts.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_fuzz::server;

#[path = "../../../../dataplane/tests/http1/agreement.rs"]
mod agreement;
#[path = "../../../../dataplane/tests/http1/requests_read.rs"]
mod requests_read;

fuzz_target!(|input: &[u8]| {
    let Some((count, rest)) = input.split_first() else {
        return;
    };
    let Some((choice, bytes)) = rest.split_at_checked(usize::from(*count % 16)) else {
        return;
    };
    let found = agreement::compare(bytes);
    let cuts = weir_fuzz::cuts(choice, bytes.len());
    agreement::compare_cut(bytes, &cuts, &found);
    // That costs the square of the length: every so often, and where there are few.
    if *count < 16 && bytes.len() < 256 {
        let every_byte: Vec<usize> = (1..bytes.len()).collect();
        agreement::compare_cut(bytes, &every_byte, &found);
    }
});
