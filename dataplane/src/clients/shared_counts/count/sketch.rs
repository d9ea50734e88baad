//! About how many different clients there were: a HyperLogLog of 64 registers (Flajolet and others,
//! 2007), 64 bytes, within some 15 %. For people: no decision depends on it.

/// Registers; their number is chosen by the lowest six bits of a hash.
const REGISTERS: usize = 64;

/// The clients of the last one or two windows.
#[derive(Clone, Copy)]
pub(super) struct Sketch {
    registers: [u8; REGISTERS],
    /// The window in which the first of them came.
    since: u64,
}

impl Default for Sketch {
    fn default() -> Self {
        Self {
            registers: [0; REGISTERS],
            since: 0,
        }
    }
}

impl Sketch {
    /// One came, in the window of this number.
    pub(super) fn add(&mut self, hash: u64, window: u64) {
        if window.abs_diff(self.since) > 1 {
            *self = Self {
                since: window,
                ..Self::default()
            };
        }
        let (register, rest) = (hash % REGISTERS as u64, hash / REGISTERS as u64);
        // The rest has 58 bits.
        let rank = u8::try_from(rest.trailing_zeros().min(58) + 1).unwrap_or(u8::MAX);
        let register = usize::try_from(register).unwrap_or_default();
        if let Some(held) = self.registers.get_mut(register) {
            *held = rank.max(*held);
        }
    }

    /// How many.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an estimate of something from 0 to about 2^64"
    )]
    pub(super) fn estimate(&self) -> u64 {
        let registers = REGISTERS as f64;
        let sum: f64 = (self.registers.iter())
            .map(|rank| 0.5_f64.powi(i32::from(*rank)))
            .sum();
        let estimate = 0.709 * registers * registers / sum;
        let empty = self.registers.iter().filter(|rank| **rank == 0).count() as f64;
        let estimate = if estimate <= 2.5 * registers && empty > 0.0 {
            registers * (registers / empty).ln()
        } else {
            estimate
        };
        estimate.round() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SHARE-8: about as many as there were, each once, from none to a hundred thousand; those of
    /// long ago are forgotten.
    #[test]
    fn about_as_many_as_there_were() {
        let hasher = ahash::RandomState::with_seeds(1, 2, 3, 4);
        let mut sketch = Sketch::default();
        assert_eq!(sketch.estimate(), 0);
        let mut added = 0u64;
        for count in [1u64, 10, 100, 1_000, 10_000, 100_000] {
            for client in added..count {
                sketch.add(hasher.hash_one(client), 7);
                sketch.add(hasher.hash_one(client), 8);
            }
            added = count;
            let found = sketch.estimate();
            assert!(found.abs_diff(count) * 3 <= count, "{found} of {count}");
        }
        sketch.add(hasher.hash_one(1u64), 9);
        assert_eq!(sketch.estimate(), 1);
    }
}
