//! A path: its normal form is the RFC's and stays as it is; no reading of a path that is forwarded
//! stands in `/_waf`, and no reading of an exempt one climbs out of its prefix (CHECK-1, section
//! 13, item 3).
#![no_main]

use std::borrow::Cow;

use libfuzzer_sys::fuzz_target;
use weir_shared::path::{is_exempt, is_own, normalise, own_path_exact};

fuzz_target!(|bytes: &[u8]| {
    let Ok(path) = std::str::from_utf8(bytes) else {
        return;
    };
    // A path ends there.
    if path.contains(['?', '#']) {
        return;
    }
    let normal = normalise(path);
    // A stray percent sign may make an escape of what is decoded behind it: `%%63f`.
    if !has_stray(bytes) {
        assert!(matches!(normalise(&normal), Cow::Borrowed(_)), "{normal}");
    }
    let exempt = is_exempt(path, &["/static".to_owned()]);
    if !path.starts_with('/') {
        assert_eq!(normal, path);
        assert!(!exempt);
        return;
    }
    assert_eq!(
        normal,
        String::from_utf8_lossy(&resolved(&decoded(bytes, is_unreserved)))
    );
    if own_path_exact(path) {
        assert!(is_own(path) && path.starts_with("/_waf/"));
    }

    let own = is_own(path);
    if !bytes.iter().any(|byte| b"%\\;?#\0".contains(byte)) {
        let mut readings = [0b100, 0b100 | CUTS].map(Reading::from).into_iter();
        assert_eq!(
            own,
            readings.any(|reading| reading.stands_in(bytes, b"_waf")),
            "{path}"
        );
    }
    // A target has none; what is decoded may be one.
    let has_blank = bytes.iter().any(|byte| matches!(byte, 0..=b' ' | 0x7f));
    for reading in (0..128).map(Reading::from) {
        if reading.cuts && has_blank {
            continue;
        }
        if !own {
            assert!(
                !reading.stands_in(bytes, b"_waf"),
                "{path} is own: {reading:?}"
            );
        }
        if exempt {
            assert!(!reading.climbs_out(bytes), "{path} climbs: {reading:?}");
        }
    }
});

/// The bit of [`Reading::cuts`].
const CUTS: u8 = 64;

/// One of the ways in which an application may read a path.
#[derive(Debug)]
struct Reading {
    backslash: bool,
    parameters: bool,
    merge: bool,
    /// How often it decodes; what is unreserved always.
    decodings: u8,
    /// Whether it resolves dot segments before each decoding too.
    early: bool,
    /// Whether it cuts blanks and dots at a segment's end; what is nothing else and has two dots is
    /// `..` to it.
    cuts: bool,
}

impl From<u8> for Reading {
    fn from(bits: u8) -> Self {
        Self {
            backslash: bits & 1 > 0,
            parameters: bits & 2 > 0,
            merge: bits & 4 > 0,
            decodings: (bits >> 3) % 3,
            early: bits & 32 > 0,
            cuts: bits & CUTS > 0,
        }
    }
}

impl Reading {
    /// Every segment that it enters on its way, with how deep it stands then.
    fn walk(&self, path: &[u8], mut entered: impl FnMut(&[Vec<u8>])) {
        let mut path = path.to_vec();
        if self.decodings == 0 {
            path = decoded(&path, is_unreserved);
        }
        for _ in 0..self.decodings {
            if self.early {
                path = resolved(&path);
            }
            path = decoded(&path, |_| true);
        }
        let mut stack: Vec<Vec<u8>> = Vec::new();
        let is_slash = |byte: &u8| *byte == b'/' || (self.backslash && *byte == b'\\');
        for segment in path.split(is_slash).skip(1) {
            let mut name = segment;
            if self.parameters {
                name = name
                    .split(|b| b";?#".contains(b))
                    .next()
                    .unwrap_or_default();
            }
            if self.cuts {
                let is_kept = |byte: &u8| !matches!(byte, b'.' | 0..=b' ' | 0x7f);
                let dots = || name.iter().filter(|byte| **byte == b'.').count();
                name = match name.iter().rposition(is_kept) {
                    Some(last) => &name[..=last],
                    None => &b".."[..dots().min(2)],
                };
            }
            match name {
                b"." => {}
                b"" if self.merge => {}
                b".." => drop(stack.pop()),
                _ => stack.push(name.to_ascii_lowercase()),
            }
            entered(&stack);
        }
    }

    fn stands_in(&self, path: &[u8], first: &[u8]) -> bool {
        let mut found = false;
        self.walk(path, |stack| {
            found |= stack.first().is_some_and(|segment| segment == first);
        });
        found
    }

    /// Whether it ends elsewhere than under `/static`.
    fn climbs_out(&self, path: &[u8]) -> bool {
        let mut end = Vec::new();
        self.walk(path, |stack| {
            end = stack.first().cloned().unwrap_or_default()
        });
        end != b"static"
    }
}

fn has_stray(path: &[u8]) -> bool {
    let mut parts = path.split(|byte| *byte == b'%').skip(1);
    parts.any(|after| {
        !after
            .get(..2)
            .is_some_and(|hex| hex.iter().all(u8::is_ascii_hexdigit))
    })
}

fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)
}

/// Decodes the escapes of these bytes; others are written in upper case.
fn decoded(path: &[u8], which: fn(u8) -> bool) -> Vec<u8> {
    let (mut at, mut text) = (0, Vec::new());
    while at < path.len() {
        let hex = path.get(at + 1..at + 3).filter(|_| path[at] == b'%');
        let code = hex
            .filter(|hex| hex.iter().all(u8::is_ascii_hexdigit))
            .and_then(|hex| std::str::from_utf8(hex).ok())
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match code {
            Some(code) if which(code) => text.push(code),
            Some(_) => text.extend(path[at..at + 3].to_ascii_uppercase()),
            None => text.push(path[at]),
        }
        at += if code.is_some() { 3 } else { 1 };
    }
    text
}

/// RFC 3986 §5.2.4 as its text has it, step by step.
fn resolved(path: &[u8]) -> Vec<u8> {
    let (mut input, mut output) = (path.to_vec(), Vec::new());
    let up = |output: &mut Vec<u8>| {
        output.truncate(output.iter().rposition(|byte| *byte == b'/').unwrap_or(0));
    };
    while !input.is_empty() {
        if input.starts_with(b"/./") {
            input.drain(..2);
        } else if input == b"/." {
            input = b"/".to_vec();
        } else if input.starts_with(b"/../") {
            input.drain(..3);
            up(&mut output);
        } else if input == b"/.." {
            input = b"/".to_vec();
            up(&mut output);
        } else {
            let next = input.iter().skip(1).position(|byte| *byte == b'/');
            let end = next.map_or(input.len(), |at| at + 1);
            output.extend(input.drain(..end));
        }
    }
    output
}
