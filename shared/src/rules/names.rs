//! The names of query parameters that rules ask for (MATCH-1): each name of a request is decoded
//! and looked up once, whatever the number of rules.

use std::collections::HashMap;

use crate::path::loosely;

/// The names of all rules in their compared form, with the conditions they fulfil.
#[derive(Clone, Debug, Default)]
pub(super) struct Names {
    names: HashMap<Vec<u8>, Vec<u16>>,
    /// A bit for each length of a name; the last bit stands for all longer ones.
    lengths: u128,
}

/// The bit of a length.
fn bit(length: usize) -> u128 {
    1 << length.min(127)
}

impl Names {
    /// One that fulfils a condition.
    pub(super) fn add(&mut self, name: &str, condition: u16) {
        let name = folded(name.as_bytes());
        self.lengths |= bit(name.len());
        self.names.entry(name).or_default().push(condition);
    }

    /// Passes the conditions that a query fulfils to `found`. Some applications read `;` as `&`.
    pub(super) fn find(&self, query: &str, found: &mut impl FnMut(u16)) {
        for pair in query.split(['&', ';']) {
            let written = pair.split('=').next().unwrap_or_default();
            if !written.bytes().any(|byte| matches!(byte, b'%' | b'+')) {
                self.read(written.as_bytes(), found);
                continue;
            }
            let letter = |(byte, literal)| match byte {
                b'+' if literal => b' ',
                byte => byte,
            };
            // Decoded as forms are, or twice.
            let decoded: Vec<u8> = loosely(written.as_bytes()).map(letter).collect();
            self.read(&decoded, found);
        }
    }

    /// Looks one name up in each form that some application reads: PHP drops leading blanks and
    /// everything from a NUL on; `facet[]` and `facet[0]` are also `facet`.
    fn read(&self, written: &[u8], found: &mut impl FnMut(u16)) {
        let is_blank = |byte: &&u8| matches!(**byte, b'\t'..=b'\r' | b' ');
        let begin = written.iter().take_while(is_blank).count();
        let name = written.get(begin..).unwrap_or_default();
        let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
        let stem = name.split(|byte| *byte == b'[').next().unwrap_or_default();
        self.look_up(name, found);
        if stem.len() < name.len() {
            self.look_up(stem, found);
        }
    }

    fn look_up(&self, name: &[u8], found: &mut impl FnMut(u16)) {
        if self.lengths & bit(name.len()) == 0 {
            return;
        }
        for condition in self.names.get(&folded(name)).into_iter().flatten() {
            found(*condition);
        }
    }
}

/// A name in its compared form: ASP.NET ignores case, and PHP replaces a dot, a blank or an
/// unclosed bracket by `_`.
fn folded(name: &[u8]) -> Vec<u8> {
    let letter = |byte: &u8| match byte {
        b'.' | b' ' | b'[' => b'_',
        byte => byte.to_ascii_lowercase(),
    };
    name.iter().map(letter).collect()
}
