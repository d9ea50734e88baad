//! Any bytes as an answer of CrowdSec's decision stream: what is read is read again from its copy,
//! what is deleted is not there, and an error is short and quotes nothing (FEED-7).
#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use weir_controlplane::fuzzing::decisions;

fuzz_target!(|bytes: &[u8]| {
    match decisions(bytes) {
        Ok((lines, again)) => {
            assert_eq!(again.as_ref(), Some(&lines));
            let Ok(value) = serde_json::from_slice::<Value>(bytes) else {
                return;
            };
            let items = |name: &str| value[name].as_array().cloned().unwrap_or_default();
            let ids = |name: &str| -> Vec<i64> {
                let items = items(name);
                items
                    .iter()
                    .filter_map(|item| item["id"].as_i64())
                    .collect()
            };
            let (new, deleted) = (ids("new"), ids("deleted"));
            for line in lines.lines() {
                let id = line.split(' ').next().and_then(|id| id.parse().ok());
                let id: i64 = id.expect("a line begins with its id");
                assert!(new.contains(&id) && !deleted.contains(&id), "{line}");
            }
        }
        Err(why) => assert!(why.len() < 150, "{why}"),
    }
});
