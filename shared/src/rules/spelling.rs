//! Spellings of a path that applications may read as the path of a rule (RULE-7).
//!
//! Applications read paths in many ways: decoded once, twice or not at all, with `\` for `/`,
//! without the part after a `;`, without blanks and dots at a segment's end, in any case, with and
//! without `..` resolved. A rule that restricts must hold for all of these readings. This file
//! splits a path into segments under them; `paths.rs` has the tree of the rules' paths.

use std::borrow::Cow;

use crate::path::{is_cut, loosely};

/// Whether paths are compared with regard to case.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Case {
    /// Case is ignored.
    #[default]
    Folded,
    /// `"exact_case":true`
    Exact,
}

/// Bytes that every reading takes literally.
#[expect(clippy::indexing_slicing, reason = "a byte below 127")]
const PLAIN: [bool; 256] = {
    let mut plain = [false; 256];
    let mut byte = 0x21;
    while byte < 0x7f {
        let is_special = matches!(byte, b'%' | b'\\' | b';' | b'?' | b'#' | b'A'..=b'Z');
        plain[byte as usize] = !is_special;
        byte += 1;
    }
    plain
};

/// Whether every reading of the path is the same: small letters, nothing to decode or to cut, no
/// empty segment but the last, and none that ends with a dot.
pub(super) fn is_plain(path: &str) -> bool {
    let mut before = 0;
    for &byte in path.as_bytes() {
        let is_plain = PLAIN.get(usize::from(byte)).copied().unwrap_or(false);
        if !is_plain || (byte == b'/' && matches!(before, b'/' | b'.')) {
            return false;
        }
        before = byte;
    }
    before != b'.'
}

/// The segments of a rule's path in their form in the tree: decoded twice, `..` resolved.
pub(super) fn of_rule(path: &str, case: Case) -> Vec<Box<[u8]>> {
    let mut kept: Vec<Box<[u8]>> = Vec::new();
    let mut text = Vec::new();
    let bytes = loosely(path.as_bytes()).map(|(byte, _)| byte);
    for byte in bytes.chain(std::iter::once(b'/')) {
        if !matches!(byte, b'/' | b'\\') {
            text.push(byte);
            continue;
        }
        match text.as_slice() {
            b"" | b"." => {}
            b".." => drop(kept.pop()),
            text => kept.push(folded(stem(text).unwrap_or(text), case).into()),
        }
        text.clear();
    }
    kept
}

/// A segment without blanks and dots at its end; none if nothing is left.
pub(super) fn stem(text: &[u8]) -> Option<&[u8]> {
    let last = text.iter().rposition(|byte| !is_cut(*byte))?;
    text.get(..=last)
}

/// The text in small letters, unless case counts. In text that is not UTF-8 only ASCII letters are
/// changed.
pub(super) fn folded(text: &[u8], case: Case) -> Cow<'_, [u8]> {
    let is_small = |byte: &u8| byte.is_ascii() && !byte.is_ascii_uppercase();
    if case == Case::Exact || text.iter().all(is_small) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(match std::str::from_utf8(text) {
        // Letter by letter, because the result must not depend on the following letter.
        Ok(text) => (text.chars().flat_map(char::to_lowercase))
            .collect::<String>()
            .into_bytes(),
        Err(_) => text.to_ascii_lowercase(),
    })
}

/// One segment of a request's path, split as finely as any reading does.
#[derive(Debug, Default)]
pub(super) struct Segment {
    text: Vec<u8>,
    /// The position of its parameters, at a `;`.
    parameters: Option<usize>,
    /// Where the path ends for applications that decode before they split: at a `?`, a `#` or a
    /// NUL.
    end: Option<usize>,
    /// True if parameters of an earlier segment may extend over it: applications that split at
    /// literal slashes read all of `a;%2fb` as one segment.
    pub(super) may_be_skipped: bool,
}

/// A reading of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reading<'a> {
    /// As a name.
    Name(&'a [u8]),
    /// As empty: nothing, or a dot.
    Nothing,
    /// As `..`.
    Parent,
}

impl Segment {
    /// Every reading of it.
    pub(super) fn readings(&self) -> impl Iterator<Item = Reading<'_>> {
        let before = |at: Option<usize>| at.and_then(|at| self.text.get(..at));
        let texts = [
            Some(self.text.as_slice()),
            before(self.parameters),
            before(self.end),
        ];
        texts
            .into_iter()
            .flatten()
            .flat_map(|text| {
                let Some(stem) = stem(text) else {
                    let dots = text.iter().filter(|byte| **byte == b'.').count();
                    let is_parent = dots > 1;
                    let is_name = !matches!(text, b"" | b"." | b"..");
                    let of_dots = if is_parent {
                        Reading::Parent
                    } else {
                        Reading::Nothing
                    };
                    return [Some(of_dots), is_name.then_some(Reading::Name(text))];
                };
                [Some(Reading::Name(stem)), None]
            })
            .flatten()
    }

    /// Whether the path may end here.
    pub(super) const fn may_end(&self) -> bool {
        self.end.is_some()
    }

    fn push(&mut self, byte: u8) {
        let at = self.text.len();
        match byte {
            b';' => self.parameters = self.parameters.or(Some(at)),
            b'?' | b'#' | 0 => self.end = self.end.or(Some(at)),
            _ => {}
        }
        self.text.push(byte);
    }

    /// Starts the next segment, after a literal or an encoded slash.
    fn begin(&mut self, literal: bool) {
        self.may_be_skipped = !literal && (self.may_be_skipped || self.parameters.is_some());
        self.text.clear();
        self.parameters = None;
        self.end = None;
    }
}

/// Passes each segment of a path to `see`, in order.
pub(super) fn each_segment(path: &str, mut see: impl FnMut(&Segment)) {
    let mut segment = Segment {
        text: Vec::with_capacity(path.len()),
        ..Segment::default()
    };
    for (byte, literal) in loosely(path.as_bytes()) {
        match byte {
            b'/' | b'\\' => {
                see(&segment);
                segment.begin(literal && byte == b'/');
            }
            _ => segment.push(byte),
        }
    }
    see(&segment);
}
