//! Unique starts of bans: no two bans of one netblock and one origin start in the same millisecond.
//!
//! A document may have many entries of one netblock and one start. Each gets the next free
//! millisecond. Milliseconds that one search found taken are skipped by the next search.

use std::collections::HashMap;

use weir_shared::ban_origin::BanOrigin;
use weir_shared::netblock::Netblock;

/// The bans of one netblock and one origin have distinct starts.
pub(super) type Whose = (Netblock, BanOrigin);

/// The starts that are taken while a document is read.
#[derive(Default)]
pub(super) struct Starts {
    /// For each taken start, a later one at which the search continues. These form a forest whose
    /// roots are free (a union-find); each search shortens the paths that it went.
    taken: HashMap<(Whose, u64), u64>,
    /// For tests: how many starts were looked at.
    #[cfg(test)]
    tries: usize,
}

impl Starts {
    pub(super) fn with_capacity(capacity: usize) -> Self {
        Self {
            taken: HashMap::with_capacity(capacity),
            #[cfg(test)]
            tries: 0,
        }
    }

    /// Takes this start, unless it is taken. Entries with a start of their own must come first: a
    /// search counts starts of held bans as taken.
    pub(super) fn take(&mut self, whose: Whose, at_ms: u64) -> bool {
        let next = self.taken.len();
        self.taken
            .entry((whose, at_ms))
            .or_insert_with(|| at_ms + 1);
        self.taken.len() > next
    }

    pub(super) fn is_taken(&self, whose: Whose, at_ms: u64) -> bool {
        self.taken.contains_key(&(whose, at_ms))
    }

    /// Takes the first free start from `from_ms` on that `is_held` does not reject. Held starts
    /// must not change until the document is read.
    pub(super) fn take_free(
        &mut self,
        whose: Whose,
        from_ms: u64,
        is_held: impl Fn(u64) -> bool,
    ) -> u64 {
        let at_ms = self.first_free(whose, from_ms, is_held);
        self.take(whose, at_ms);
        at_ms
    }

    /// Finds the same start without taking it.
    pub(super) fn first_free(
        &mut self,
        whose: Whose,
        from_ms: u64,
        is_held: impl Fn(u64) -> bool,
    ) -> u64 {
        let mut passed = Vec::new();
        let mut at_ms = from_ms;
        loop {
            #[cfg(test)]
            {
                self.tries += 1;
            }
            let next = match self.taken.get(&(whose, at_ms)) {
                Some(next) => *next,
                None if is_held(at_ms) => at_ms + 1,
                None => break,
            };
            passed.push(at_ms);
            at_ms = next;
        }
        for start in passed {
            self.taken.insert((whose, start), at_ms);
        }
        at_ms
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;
    use weir_shared::ban_origin::DecidedBy;

    use super::*;

    fn whose(number: u8) -> Whose {
        let netblock = format!("10.0.{number}.0/24").parse().unwrap();
        (netblock, BanOrigin::here(DecidedBy::File))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]

        /// BAN-4, CONTROL-9: the search finds the same start as one that tries millisecond by
        /// millisecond, whichever starts are in use.
        #[test]
        fn starts_are_those_of_a_naive_search(
            held in prop::collection::hash_set((0..3_u8, 0..30_u64), 0..20),
            own in prop::collection::vec((0..3_u8, 0..30_u64), 0..20),
            asked in prop::collection::vec((0..3_u8, 0..30_u64), 0..40),
        ) {
            let mut starts = Starts::default();
            let mut taken = HashSet::new();
            for (net, at_ms) in own {
                prop_assert_eq!(starts.is_taken(whose(net), at_ms), taken.contains(&(net, at_ms)));
                prop_assert_eq!(starts.take(whose(net), at_ms), taken.insert((net, at_ms)));
            }
            for (net, from_ms) in asked {
                let mut at_ms = from_ms;
                while taken.contains(&(net, at_ms)) || held.contains(&(net, at_ms)) {
                    at_ms += 1;
                }
                taken.insert((net, at_ms));
                let is_held = |at_ms| held.contains(&(net, at_ms));
                prop_assert_eq!(starts.take_free(whose(net), from_ms, is_held), at_ms);
            }
        }
    }

    /// ALIVE-7: many entries of one netblock cost a few tries each, whether they have one start,
    /// many starts that are all in use, or meet as many held bans.
    #[test]
    fn a_start_costs_a_few_tries() {
        const MANY: u64 = 60_000;
        let one = whose(0);
        let tries = |from: &dyn Fn(u64) -> u64, held: u64| {
            let mut starts = Starts::default();
            for at_ms in 0..MANY {
                starts.take(one, from(at_ms));
            }
            for number in 0..MANY {
                starts.take_free(one, from(number), |at_ms| at_ms < held);
            }
            starts.tries as u64
        };
        for (case, tries) in [
            ("one start", tries(&|_| 7, 0)),
            ("each start twice", tries(&|number| number, 0)),
            ("from the last", tries(&|number| MANY - number, 0)),
            ("every other", tries(&|number| 2 * number, 0)),
            ("before held ones", tries(&|_| 7, MANY)),
        ] {
            assert!(tries <= 8 * MANY, "{case}: {tries}");
        }
    }
}
