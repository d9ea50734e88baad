//! The literals of all rules as one automaton (MATCH-2): each line of a field is read once,
//! whatever the number of literals.

use std::collections::HashMap;

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};
use http::HeaderName;
use http::header::USER_AGENT;

use super::names::Names;
use super::sent::{Asking, Told};

/// The most literals in all, those of files included.
pub const MAX_LITERALS: usize = 10_000;
/// The bytes of the shortest literal: "ai" would match `mail`.
pub const MIN_LITERAL: usize = 3;
/// The bytes of the longest literal.
pub const MAX_LITERAL: usize = 256;
/// The most bytes of a line that are searched.
const LOOKED_AT: usize = 1024;

/// The number of a condition: that a line of a field contains one of a set of literals.
pub(super) type Condition = u16;

/// Words of [`Found`]: as many bits as there can be conditions, three and eight more for each of 16
/// limits, 16 jails, 64 denials and 64 exempt entries, and one of each of 64 crawlers.
const WORDS: usize = ((16 + 16 + 64 + 64) * 11usize + 64).div_ceil(64);

/// The conditions that a request fulfils.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found([u64; WORDS]);

impl Found {
    pub(super) fn has(&self, condition: Condition) -> bool {
        let word = self.0.get(usize::from(condition / 64));
        word.is_some_and(|word| word >> (condition % 64) & 1 == 1)
    }

    fn add(&mut self, condition: Condition) {
        if let Some(word) = self.0.get_mut(usize::from(condition / 64)) {
            *word |= 1 << (condition % 64);
        }
    }
}

/// Literals with their conditions, before they are compiled.
#[derive(Debug, Default)]
pub(super) struct Gathering {
    fields: Vec<HeaderName>,
    /// By literal in small letters: fields and conditions.
    literals: HashMap<Vec<u8>, Vec<(usize, Condition)>>,
    names: Names,
    conditions: Condition,
}

impl Gathering {
    /// A condition: one of these literals is in a line of this field, in any case.
    pub(super) fn add<'a>(
        &mut self,
        field: &HeaderName,
        literals: impl Iterator<Item = &'a str>,
    ) -> Condition {
        let condition = self.conditions;
        self.conditions = condition.saturating_add(1);
        let at = self.fields.iter().position(|held| held == field);
        let at = at.unwrap_or_else(|| {
            self.fields.push(field.clone());
            self.fields.len() - 1
        });
        for literal in literals {
            let literal = literal.to_ascii_lowercase().into_bytes();
            self.literals
                .entry(literal)
                .or_default()
                .push((at, condition));
        }
        condition
    }

    /// A condition: one of these names is in the query.
    pub(super) fn add_names(&mut self, names: &[String]) -> Condition {
        let condition = self.conditions;
        self.conditions = condition.saturating_add(1);
        for name in names {
            self.names.add(name, condition);
        }
        condition
    }

    pub(super) fn compile(self) -> Literals {
        let names = self.names;
        let mut literals: Vec<_> = self.literals.into_iter().collect();
        literals.sort_unstable();
        let (literals, of): (Vec<_>, Vec<_>) = literals.into_iter().unzip();
        if literals.is_empty() {
            return Literals {
                names,
                ..Literals::default()
            };
        }
        let automaton = AhoCorasick::builder()
            .match_kind(MatchKind::Standard)
            .ascii_case_insensitive(true)
            .kind(Some(AhoCorasickKind::ContiguousNFA))
            .build(literals);
        // It fails beyond 2^31 states; the bounds above are far below.
        let automaton = automaton.ok();
        Literals {
            automaton,
            of,
            fields: self.fields,
            names,
        }
    }
}

/// The automaton.
#[derive(Clone, Debug, Default)]
pub(super) struct Literals {
    automaton: Option<AhoCorasick>,
    /// For each literal: the fields it is searched in, and the conditions it fulfils there.
    of: Vec<Vec<(usize, Condition)>>,
    fields: Vec<HeaderName>,
    names: Names,
}

impl Literals {
    /// The conditions that the query of a request fulfils.
    #[inline(never)]
    pub(super) fn find_names(&self, asking: &Asking<'_>) -> Found {
        let mut found = Found([0; WORDS]);
        if let Told::Known(Some(query)) = asking.sent.query_sent() {
            self.names
                .find(query, &mut |condition| found.add(condition));
        }
        found
    }

    /// The conditions that a request fulfils.
    #[inline(never)]
    pub(super) fn find(&self, asking: &Asking<'_>) -> Found {
        let mut found = Found([0; WORDS]);
        let Some(automaton) = &self.automaton else {
            return found;
        };
        for (at, field) in self.fields.iter().enumerate() {
            let mut look = |line: &[u8]| {
                let line = line.get(..LOOKED_AT).unwrap_or(line);
                for hit in automaton.find_overlapping_iter(line) {
                    let of = self.of.get(hit.pattern().as_usize());
                    for (field, condition) in of.into_iter().flatten() {
                        if *field == at {
                            found.add(*condition);
                        }
                    }
                }
            };
            // A client cannot hide its `User-Agent` by another spelling of the field's name.
            if *field == USER_AGENT {
                asking.sent.each_line(field, &mut look);
            } else {
                asking.sent.each_spelling(field, &mut look);
            }
        }
        found
    }
}
