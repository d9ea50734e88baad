//! Any bytes as clients.json.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| weir_fuzz::state("clients.json", &["clients"], bytes));
