//! Any bytes as lookups.json.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| weir_fuzz::state("lookups.json", &["lookups"], bytes));
