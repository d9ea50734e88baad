//! The application's answer: read as hyper's client reads it, or refused for a listed reason, and
//! the same however the bytes are split into reads.
#![no_main]

use http::Method;
use libfuzzer_sys::fuzz_target;

#[path = "../../../../dataplane/tests/http1/oracle.rs"]
mod oracle;

fuzz_target!(|bytes: &[u8]| {
    let [choice, cut, answer @ ..] = bytes else {
        return;
    };
    let method =
        [Method::GET, Method::HEAD, Method::POST, Method::CONNECT][usize::from(choice & 3)].clone();
    let closed = choice & 4 != 0;
    oracle::compare(answer, &method, closed);
    if answer.is_empty() {
        return;
    }
    let whole = oracle::ours(answer, &[], &method, closed);
    let cut = usize::from(*cut) % answer.len();
    let every_byte: Vec<usize> = (1..answer.len()).collect();
    for cuts in [vec![cut], every_byte] {
        oracle::compare_split(answer, &cuts, &method, closed, &whole);
    }
});
