//! What the targets of files share.

use serde_json::Value;

/// A state file: what is taken is written so that it is read back as it was, with as many entries;
/// what is not is a fault of one line that lies inside (STATE-5, STATE-6).
pub fn state(file: &str, lists: &[&str], bytes: &[u8]) {
    match weir_controlplane::fuzzing::reread(file, bytes) {
        Ok(written) => {
            let again = weir_controlplane::fuzzing::reread(file, &written);
            assert_eq!(
                again.as_ref(),
                Ok(&written),
                "{}",
                String::from_utf8_lossy(&written)
            );
            let [before, after]: [Value; 2] = [bytes, &written]
                .map(|bytes| serde_json::from_slice(bytes).expect("what is taken is JSON"));
            assert_eq!(names(&before), names(&after));
            for list in lists {
                let entries = |value: &Value| value[list].as_array().map(Vec::len);
                assert_eq!(entries(&before), entries(&after), "{list}");
            }
        }
        Err(fault) => is_fault(&fault, bytes),
    }
}

/// The members of an object, in their order.
fn names(value: &Value) -> Vec<&String> {
    let members = value.as_object();
    members.expect("an object").keys().collect()
}

/// `line 2, column 13, at "/bans": trailing characters`
pub fn is_fault(fault: &str, bytes: &[u8]) {
    let number = |rest: &str, before: &str| {
        let rest = rest.strip_prefix(before).expect(before);
        let end = rest
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(rest.len());
        let (digits, rest) = rest.split_at(end);
        (digits.parse::<usize>().expect("a number"), rest.to_owned())
    };
    let (line, rest) = number(fault, "line ");
    let (column, rest) = number(&rest, ", column ");
    let lines: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').collect();
    assert!(line <= lines.len(), "{fault}");
    if let Some(line) = line.checked_sub(1).and_then(|line| lines.get(line)) {
        assert!(column <= line.len() + 1, "{fault}");
    }
    let rest = rest.strip_prefix(", at \"").expect("a pointer");
    assert!(rest.starts_with(['/', '"']), "{fault}");
    assert!(!fault.contains('\n'), "{fault:?} is one line");
    assert!(fault.len() < 4000, "a fault is short");
}
