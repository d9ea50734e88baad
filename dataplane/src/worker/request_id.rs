//! Request ids, for the log, the application and whoever asks about a failure.
//!
//! An id is 16 digits of the worker and 12 of the request. The latter are a permutation of how many
//! ids the worker has given, under keys that nobody else knows: no two are the same, and nobody who
//! sees some can tell how many requests came between them (FORWARD-8).

use std::cell::Cell;

use http::HeaderValue;

/// Digits that tell workers and restarts apart.
const PREFIX: usize = 16;
/// Those, a dash, and the digits of the request.
const LENGTH: usize = PREFIX + 1 + 12;
/// Bits of half a number of 12 digits.
const HALF: u32 = 24;
const HALF_MASK: u64 = (1 << HALF) - 1;
/// Rounds of the permutation: with four a Feistel network tells nothing if its rounds do not
/// (Luby and Rackoff); theirs are cheap ones, so there are two more.
const ROUNDS: usize = 6;

/// Makes request ids: unique over restarts and workers, without a random number a request.
pub struct RequestIds {
    /// An id of this worker, its last digits to be written.
    form: [u8; LENGTH],
    /// Ids given.
    count: Cell<u64>,
    keys: [(u64, u64); ROUNDS],
}

impl RequestIds {
    /// Ids that no other worker makes.
    pub fn new() -> Self {
        use std::hash::BuildHasher;
        // The standard hasher's keys are random, and its hashes tell nothing of them.
        let random = std::hash::RandomState::new();
        let mut form = [b'0'; LENGTH];
        let prefix = random.hash_one(0u64);
        for (place, digit) in form.iter_mut().zip(format!("{prefix:016x}-").bytes()) {
            *place = digit;
        }
        let mut keys = [(0, 0); ROUNDS];
        for (number, (add, multiply)) in (1u64..).step_by(2).zip(&mut keys) {
            *add = random.hash_one(number);
            *multiply = random.hash_one(number + 1) | 1;
        }
        Self {
            form,
            count: Cell::new(0),
            keys,
        }
    }

    /// The id that a trusted proxy gave, or the next one.
    pub fn given_or_next(&self, given: Option<&HeaderValue>) -> HeaderValue {
        given.cloned().unwrap_or_else(|| self.next())
    }

    /// The next id.
    pub fn next(&self) -> HeaderValue {
        // After 2^48 ids, which take thousands of years, they begin anew.
        let count = self.count.get().wrapping_add(1);
        self.count.set(count);
        let mut id = self.form;
        let number = self.permuted(count);
        for (place, digit) in id.iter_mut().skip(PREFIX + 1).zip((0..12).rev()) {
            let digit = (number >> (4 * digit) & 15) as u8;
            *place = if digit < 10 {
                b'0' + digit
            } else {
                b'a' - 10 + digit
            };
        }
        // Hexadecimal digits and a dash are visible ASCII: the fallback is never taken.
        HeaderValue::from_bytes(&id).unwrap_or(HeaderValue::from_static("-"))
    }

    /// Another number of 48 bits for each.
    fn permuted(&self, number: u64) -> u64 {
        let (mut left, mut right) = (number >> HALF & HALF_MASK, number & HALF_MASK);
        for (add, multiply) in self.keys {
            let mixed = right.wrapping_add(add).wrapping_mul(multiply) >> (64 - HALF);
            (left, right) = (right, left ^ mixed);
        }
        left << HALF | right
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn number(id: &HeaderValue) -> (String, u64) {
        let (prefix, digits) = id.to_str().unwrap().split_once('-').unwrap();
        assert_eq!((prefix.len(), digits.len()), (PREFIX, 12));
        (prefix.to_owned(), u64::from_str_radix(digits, 16).unwrap())
    }

    /// Ids are of one worker by their prefix, and no two of them are the same.
    #[test]
    fn ids_are_unique() {
        let ids = RequestIds::new();
        let (prefix, _) = number(&ids.next());
        let mut seen = HashSet::new();
        for _ in 0..70_000 {
            let (same, number) = number(&ids.next());
            assert_eq!(same, prefix);
            assert!(seen.insert(number));
        }
        assert_ne!(number(&RequestIds::new().next()).0, prefix);
    }

    /// FORWARD-8: ids tell nothing of how many lie between them: each number is another, its
    /// neighbours differ from it by nothing that repeats, and half of the bits turn.
    #[test]
    fn ids_tell_nothing_of_counts() {
        let ids = RequestIds::new();
        let numbers: Vec<u64> = (0..4096).map(|_| number(&ids.next()).1).collect();
        let apart = |by: usize| -> HashSet<u64> {
            let pairs = numbers.iter().zip(numbers.iter().skip(by));
            pairs
                .map(|(one, other)| other.wrapping_sub(*one) & ((1 << 48) - 1))
                .collect()
        };
        for by in [1, 2, 16, 256] {
            assert_eq!(apart(by).len(), 4096 - by);
        }
        let pairs = numbers.iter().zip(numbers.iter().skip(1));
        let turned: u32 = pairs.map(|(one, other)| (one ^ other).count_ones()).sum();
        assert!((23 * 4095..25 * 4095).contains(&turned), "{turned}");
        // Other keys, other numbers.
        let other = number(&RequestIds::new().next()).1;
        assert_ne!(other, numbers[0]);
    }

    /// Every number has another one: the permutation can be turned back.
    #[test]
    fn the_permutation_loses_nothing() {
        let ids = RequestIds::new();
        for number in [0, 1, 2, 0x00ff_ffff, 0x0100_0000, 0xffff_ffff_ffff] {
            let permuted = ids.permuted(number);
            let (mut left, mut right) = (permuted >> HALF, permuted & HALF_MASK);
            for (add, multiply) in ids.keys.into_iter().rev() {
                let mixed = left.wrapping_add(add).wrapping_mul(multiply) >> (64 - HALF);
                (left, right) = (right ^ mixed, left);
            }
            assert_eq!(left << HALF | right, number);
        }
    }
}
