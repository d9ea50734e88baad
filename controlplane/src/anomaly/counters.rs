//! The counters, at most 20,000; the least recently seen is dropped first (ALERT-1).
//!
//! The order is exact at constant cost: the slots of one list are linked in the order of last
//! sight, and a map finds them by scope. The parent module counts and compares.

use std::collections::HashMap;

use ahash::RandomState;
use weir_shared::window::Window;

use super::scope::Scope;

/// The most counters that are kept. Not a setting.
pub(crate) const MAX_COUNTERS: usize = 20_000;

/// The end of the chain.
const NONE: usize = usize::MAX;

/// The counts of one scope.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counter {
    /// The windows, in the order of [`super::scope::Measure::ALL`].
    pub windows: [Window; 4],
}

struct Slot {
    scope: Scope,
    counter: Counter,
    older: usize,
    newer: usize,
}

/// Counters by scope.
pub(crate) struct Counters {
    places: HashMap<Scope, usize, RandomState>,
    slots: Vec<Slot>,
    /// Slots that [`Counters::remove`] freed.
    free: Vec<usize>,
    oldest: usize,
    newest: usize,
    capacity: usize,
}

impl Default for Counters {
    fn default() -> Self {
        Self::with_capacity(MAX_COUNTERS)
    }
}

impl Counters {
    fn with_capacity(capacity: usize) -> Self {
        Self {
            places: HashMap::default(),
            slots: Vec::new(),
            free: Vec::new(),
            oldest: NONE,
            newest: NONE,
            capacity,
        }
    }

    /// The counter of a scope, which becomes the one seen last. If there is no room for a new one,
    /// it replaces the one seen longest ago.
    #[expect(
        clippy::indexing_slicing,
        reason = "a place is the index of a slot, and slots are never taken out of their list"
    )]
    pub(crate) fn seen(&mut self, scope: Scope) -> &mut Counter {
        let place = match self.places.get(&scope).copied() {
            Some(place) if place == self.newest => return &mut self.slots[place].counter,
            Some(place) => {
                self.unlink(place);
                place
            }
            None => {
                let place = self.room();
                self.places.insert(scope, place);
                let slot = Slot {
                    scope,
                    counter: Counter::default(),
                    older: NONE,
                    newer: NONE,
                };
                if place == self.slots.len() {
                    self.slots.push(slot);
                } else {
                    self.slots[place] = slot;
                }
                place
            }
        };
        self.link(place);
        &mut self.slots[place].counter
    }

    /// The counter of a scope, if there is one. This does not change the order.
    pub(crate) fn get(&self, scope: Scope) -> Option<Counter> {
        let slot = self.slots.get(*self.places.get(&scope)?)?;
        Some(slot.counter)
    }

    /// Inserts or replaces a counter, as the one seen last.
    pub(crate) fn put(&mut self, scope: Scope, counter: Counter) {
        *self.seen(scope) = counter;
    }

    /// Removes a scope.
    pub(crate) fn remove(&mut self, scope: Scope) {
        if let Some(place) = self.places.remove(&scope) {
            self.unlink(place);
            self.free.push(place);
        }
    }

    /// Every counter, by last sight, the oldest first.
    pub(crate) fn rows(&self) -> Vec<(Scope, Counter)> {
        let mut rows = Vec::with_capacity(self.places.len());
        let mut place = self.oldest;
        while let Some(slot) = self.slots.get(place) {
            rows.push((slot.scope, slot.counter));
            place = slot.newer;
        }
        rows
    }

    /// A free slot; drops the counter seen longest ago if there is none.
    fn room(&mut self) -> usize {
        if self.places.len() >= self.capacity
            && let Some(slot) = self.slots.get(self.oldest)
        {
            let (scope, place) = (slot.scope, self.oldest);
            self.unlink(place);
            self.places.remove(&scope);
            return place;
        }
        self.free.pop().unwrap_or(self.slots.len())
    }

    fn unlink(&mut self, place: usize) {
        let Some(&Slot { older, newer, .. }) = self.slots.get(place) else {
            return;
        };
        match self.slots.get_mut(older) {
            Some(slot) => slot.newer = newer,
            None => self.oldest = newer,
        }
        match self.slots.get_mut(newer) {
            Some(slot) => slot.older = older,
            None => self.newest = older,
        }
    }

    fn link(&mut self, place: usize) {
        let newest = std::mem::replace(&mut self.newest, place);
        if let Some(slot) = self.slots.get_mut(place) {
            slot.older = newest;
            slot.newer = NONE;
        }
        match self.slots.get_mut(newest) {
            Some(slot) => slot.newer = place,
            None => self.oldest = place,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// ALERT-1: after any sequence of sights and removals the counters, their order and their
        /// counts are those of a twin that searches a list.
        #[test]
        fn the_bound_agrees_with_its_naive_twin(steps in prop::collection::vec((0u32..30, 0u8..8), 1..400), capacity in 1usize..20) {
            let mut counters = Counters::with_capacity(capacity);
            let mut twin: Vec<(Scope, u64)> = Vec::new();
            for (number, kind) in steps {
                let scope = Scope::Asn(number);
                let held = twin.iter().position(|(held, _)| *held == scope).map(|at| twin.remove(at));
                if kind == 0 {
                    counters.remove(scope);
                } else {
                    counters.seen(scope).windows[0].current += 1;
                    if held.is_none() && twin.len() == capacity {
                        twin.remove(0);
                    }
                    twin.push((scope, held.map_or(0, |(_, count)| count) + 1));
                }
                let rows: Vec<_> = counters.rows().into_iter().map(|(scope, counter)| (scope, counter.windows[0].current)).collect();
                prop_assert_eq!(&rows, &twin);
                prop_assert!(counters.slots.len() <= capacity);
            }
        }
    }

    /// ALERT-1: there are never more than 20,000 counters.
    #[test]
    fn a_flood_of_scopes_stays_bounded() {
        let mut counters = Counters::default();
        for number in 0..100_000 {
            counters.seen(Scope::Asn(number));
        }
        let rows = counters.rows();
        assert_eq!(rows.len(), MAX_COUNTERS);
        assert_eq!(rows[0].0, Scope::Asn(80_000));
        assert_eq!(counters.slots.len(), MAX_COUNTERS);
    }
}
