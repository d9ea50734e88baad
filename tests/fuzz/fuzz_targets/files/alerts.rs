//! Any bytes as alerts.json.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| weir_fuzz::state(
    "alerts.json",
    &["counters", "cooldowns", "alerts"],
    bytes
));
