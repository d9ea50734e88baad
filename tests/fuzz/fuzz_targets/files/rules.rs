//! Any bytes as rules.json: what is taken is JSON, says the same where it is written anew, and
//! holds at every moment; what is not is a fault of one line that lies inside (RULE-1 to RULE-4).
#![no_main]

use std::cell::RefCell;

use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use weir_controlplane::fuzzing::Rules;

/// 2026-11-21T16:00:00Z, and the last moment that there is.
const MOMENTS: [u64; 3] = [0, 1_795_276_800_000, u64::MAX];

thread_local! {
    static RULES: RefCell<Rules> = RefCell::new(Rules::new());
}

fuzz_target!(|bytes: &[u8]| {
    RULES.with_borrow_mut(|rules| {
        for now_ms in MOMENTS {
            match rules.read(bytes, now_ms) {
                Ok(names) => {
                    let value: Value =
                        serde_json::from_slice(bytes).expect("what is taken is JSON");
                    assert_eq!(value["version"].as_f64(), Some(1.0));
                    let again = serde_json::to_vec_pretty(&value).expect("JSON is written");
                    assert_eq!(
                        rules.read(&again, now_ms),
                        Ok(names),
                        "{}",
                        weir_fuzz::text(&again)
                    );
                }
                Err(fault) => weir_fuzz::is_fault(&fault, bytes),
            }
        }
    });
});
