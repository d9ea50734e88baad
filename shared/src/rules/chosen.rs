//! Some of the rules of one kind, as bits.

/// Some of the rules of one kind, in the order of the file.
#[derive(Debug)]
pub struct Chosen<'a, T> {
    pub(super) all: &'a [T],
    /// A bit for each of `all`.
    pub(super) chosen: u64,
}

impl<T> Clone for Chosen<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Chosen<'_, T> {}

impl<T> Default for Chosen<'_, T> {
    fn default() -> Self {
        Self {
            all: &[],
            chosen: 0,
        }
    }
}

impl<'a, T> Chosen<'a, T> {
    /// Those of `all` that are `left` and match.
    pub(super) fn of(all: &'a [T], left: u64, matches: impl Fn(&T) -> bool) -> Self {
        let chosen = choose(all, left, matches);
        Self { all, chosen }
    }

    /// Whether there is none.
    pub const fn is_empty(self) -> bool {
        self.chosen == 0
    }

    /// One after the other.
    pub fn iter(self) -> impl Iterator<Item = &'a T> {
        let is_chosen = move |index: &usize| self.chosen >> index & 1 == 1;
        let all = self.all.iter().enumerate();
        all.filter(move |(index, _)| is_chosen(index))
            .map(|(_, one)| one)
    }
}

/// The bits of those that are `left` and match.
pub(super) fn choose<T>(all: &[T], left: u64, matches: impl Fn(&T) -> bool) -> u64 {
    let mut chosen = 0;
    for (index, one) in all.iter().enumerate() {
        let is_chosen = left >> index & 1 == 1 && matches(one);
        chosen |= u64::from(is_chosen) << index;
    }
    chosen
}
