//! What several targets share.

use std::net::IpAddr;
use std::sync::LazyLock;

use http::header::{CONTENT_LENGTH, HeaderName, HeaderValue, TRANSFER_ENCODING};
use http::request::Parts;
use http::{Request, Version};
#[cfg(feature = "files")]
use serde_json::Value;
use weir_shared::netblock::NetSet;

/// The networks that are trusted in every target.
pub fn trusted() -> &'static NetSet {
    static TRUSTED: LazyLock<NetSet> = LazyLock::new(|| {
        ["10.0.0.0/8", "fd00::/8"]
            .iter()
            .map(|text| text.parse().expect("a netblock"))
            .collect()
    });
    &TRUSTED
}

/// A peer, as a byte chooses it: half of them are trusted.
pub fn peer(choice: u8) -> IpAddr {
    let peers = ["198.51.100.1", "10.0.0.1", "2001:db8::1", "fd00::1"];
    peers[usize::from(choice) % peers.len()]
        .parse()
        .expect("an address")
}

/// A request's head as hyper hands it over; none where hyper would refuse it. The empty line at the end is added.
pub fn head(bytes: &[u8]) -> Option<Parts> {
    let text = [bytes, b"\r\n\r\n"].concat();
    let mut fields = [httparse::EMPTY_HEADER; 100];
    let mut read = httparse::Request::new(&mut fields);
    if !read.parse(&text).ok()?.is_complete() {
        return None;
    }
    let version = match read.version? {
        0 => Version::HTTP_10,
        _ => Version::HTTP_11,
    };
    let request = Request::builder()
        .method(read.method?)
        .uri(read.path?)
        .version(version);
    let (mut head, ()) = request.body(()).ok()?.into_parts();
    for field in read.headers {
        let name = HeaderName::from_bytes(field.name.as_bytes()).ok()?;
        let value = HeaderValue::from_bytes(field.value).ok()?;
        // One length, or none beside a transfer coding.
        if name == CONTENT_LENGTH {
            if !value.as_bytes().iter().all(u8::is_ascii_digit) {
                return None;
            }
            match head.headers.get(CONTENT_LENGTH) {
                Some(held) if *held == value => continue,
                Some(_) => return None,
                None => {}
            }
        }
        head.headers.append(name, value);
    }
    if head.headers.contains_key(TRANSFER_ENCODING) {
        head.headers.remove(CONTENT_LENGTH);
    }
    Some(head)
}

/// A state file: what is taken is written so that it is read back as it was, with as many entries; what is not is a
/// fault of one line that lies inside (STATE-5, STATE-6).
pub fn state(file: &str, lists: &[&str], bytes: &[u8]) {
    match weir_controlplane::fuzzing::reread(file, bytes) {
        Ok(written) => {
            let again = weir_controlplane::fuzzing::reread(file, &written);
            assert_eq!(again.as_ref(), Ok(&written), "{}", text(&written));
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

/// For the message of an assertion.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
