//! The names of queries that rules ask for (MATCH-1): whatever their number, each name of a request
//! is decoded and looked up once.

use std::collections::HashMap;

use crate::path::loosely;

/// The names of all rules, as they are compared, with the numbers of what they fulfil.
#[derive(Clone, Debug, Default)]
pub(super) struct Names {
    names: HashMap<Vec<u8>, Vec<u16>>,
    /// A bit for each length that one of them has; the last stands for all that are longer.
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

    /// Tells `found` what a query fulfils. Some applications read `;` as `&`.
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

    /// One name, as some application takes it: PHP without the blanks before it and up to a NUL;
    /// `facet[]` and `facet[0]` are called `facet` too.
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

/// A name as it is compared: ASP.NET reads it in any case, PHP with `_` for a dot, a blank or a
/// bracket that nothing closes.
fn folded(name: &[u8]) -> Vec<u8> {
    let letter = |byte: &u8| match byte {
        b'.' | b' ' | b'[' => b'_',
        byte => byte.to_ascii_lowercase(),
    };
    name.iter().map(letter).collect()
}
