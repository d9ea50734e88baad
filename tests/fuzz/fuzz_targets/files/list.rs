//! Any bytes as a list of netblocks: text, JSON or JSON lines. What is read of JSON is what a walk
//! over its values finds; what is read is read again from a text; a fault is one line that lies
//! inside (FEED-2).
#![no_main]

use std::net::IpAddr;

use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use weir_controlplane::fuzzing::list;
use weir_shared::netblock::Netblock;

fuzz_target!(|bytes: &[u8]| {
    match list(bytes) {
        Ok((netblocks, skipped)) => {
            let lines: Vec<String> = netblocks.iter().map(ToString::to_string).collect();
            let again = list(lines.join("\n").as_bytes()).expect("a text is read");
            assert_eq!(again, (netblocks.clone(), 0));
            if let Some(values) = json(bytes) {
                assert_eq!(skipped, 0);
                let mut texts = Vec::new();
                values.iter().for_each(|value| walk(value, &mut texts));
                // Of a member that comes twice a walk sees the last.
                for text in texts {
                    let found = covered(&text, &netblocks);
                    assert!(found != Some(false), "{text}");
                }
            }
        }
        Err(fault) => {
            assert!(json(bytes).is_none(), "{fault}");
            weir_fuzz::is_fault(&fault, bytes);
        }
    }
});

/// The values of a document, or of lines; none where it is a text or has a fault.
fn json(bytes: &[u8]) -> Option<Vec<Value>> {
    let text = std::str::from_utf8(bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes)).ok()?;
    if !text.trim_ascii_start().starts_with(['{', '[', '"']) {
        return None;
    }
    if let Ok(value) = serde_json::from_str(text) {
        return Some(vec![value]);
    }
    let lines = text
        .split('\n')
        .filter(|line| !line.trim_ascii().is_empty());
    lines.map(|line| serde_json::from_str(line).ok()).collect()
}

fn walk(value: &Value, texts: &mut Vec<String>) {
    match value {
        Value::String(text) => texts.push(text.clone()),
        Value::Array(items) => items.iter().for_each(|item| walk(item, texts)),
        Value::Object(members) => members.values().for_each(|value| walk(value, texts)),
        _ => {}
    }
}

/// Whether the netblocks cover both ends of what a text stands for; none where it is no netblock.
fn covered(text: &str, netblocks: &[Netblock]) -> Option<bool> {
    let is_in = |address: IpAddr| netblocks.iter().any(|netblock| netblock.contains(address));
    let text = text.trim_ascii();
    if let Ok(netblock) = text.parse::<Netblock>() {
        return Some(netblocks.contains(&netblock));
    }
    let (first, last) = text.split_once('-')?;
    let [first, last] = [first, last].map(|end| end.trim_ascii().parse::<IpAddr>().ok());
    let (first, last) = (first?.to_canonical(), last?.to_canonical());
    let fits = first.is_ipv4() == last.is_ipv4() && first <= last;
    fits.then(|| is_in(first) && is_in(last))
}
