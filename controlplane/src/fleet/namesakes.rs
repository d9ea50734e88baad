//! Two live instances of one name (FLEET-23): the second one takes another name. An ended boot may
//! have left a beat as well, but that beat does not change: only a live instance's beat does.

use std::collections::BTreeMap;

use super::beat::Seen;
use super::stamp::Origin;

/// The name is free if no other beat of this name has changed for so long.
const FREE_NS: u64 = 3_000_000_000;

/// The other beats of this name.
#[derive(Default)]
pub(super) struct Namesakes {
    /// The time of each one's last beat, by the engine's clock.
    seen: BTreeMap<Origin, u64>,
    /// Since when they are watched, on the monotonic clock.
    since_ns: Option<u64>,
    /// Since when this instance owns the name, by the engine's clock.
    named_ms: Option<u64>,
    /// True if another instance owns the name.
    is_taken: bool,
}

impl Namesakes {
    /// Takes the beats, with the time of the engine and of the monotonic clock.
    pub(super) fn take(&mut self, me: &Origin, all: &[Seen], (time_ms, now_ns): (u64, u64)) {
        let others = all.iter().filter(|seen| {
            let origin = &seen.origin;
            origin.name() == me.name() && origin != me
        });
        let mut seen = BTreeMap::new();
        for other in others {
            let at_ms = time_ms.saturating_sub(other.age_ms);
            let before = self.seen.get(&other.origin);
            if before.is_some_and(|before| *before < at_ms) {
                // An instance that does not own the name yet comes after all that do.
                let named = |named_ms: Option<u64>| named_ms.unwrap_or(u64::MAX);
                let theirs = other.beat.as_ref().ok().and_then(|beat| beat.named_ms);
                let is_first = (named(theirs), &other.origin) < (named(self.named_ms), me);
                self.is_taken |= is_first;
                self.since_ns = Some(now_ns);
            }
            seen.insert(other.origin.clone(), at_ms);
        }
        self.seen = seen;
        let since_ns = *self.since_ns.get_or_insert(now_ns);
        let is_free = self.seen.is_empty() || now_ns.saturating_sub(since_ns) >= FREE_NS;
        if is_free && !self.is_taken {
            self.named_ms.get_or_insert(time_ms);
        }
    }

    /// Since when this instance owns the name; none if it does not own it yet.
    pub(super) fn named_ms(&self) -> Option<u64> {
        self.named_ms
    }

    /// The other origins of this name with beats in the engine: killed earlier boots, and live
    /// instances of the same name.
    pub(super) fn others(&self) -> Vec<Origin> {
        self.seen.keys().cloned().collect()
    }

    /// Whether another instance owns the name.
    pub(super) fn is_taken(&self) -> bool {
        self.is_taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::event::Rejected;

    const SECOND: u64 = 1_000_000_000;

    fn origin(nonce: u128) -> Origin {
        Origin::new("edge-1", nonce).unwrap()
    }

    /// Two of one name, each of which sees the other's last beat; true where the name is taken.
    fn beaten(of: &mut Namesakes, me: u128, others: &[(u128, u64, Option<u64>)], at: u64) -> bool {
        let seen = others.iter().map(|(nonce, at_ms, named_ms)| Seen {
            origin: origin(*nonce),
            age_ms: at * 1000 - at_ms,
            beat: Ok(crate::fleet::beat::tests::beat(*named_ms)),
        });
        let seen: Vec<Seen> = seen.collect();
        of.take(&origin(me), &seen, (at * 1000, at * SECOND));
        of.is_taken()
    }

    /// FLEET-23: of two live instances of one name the later one takes another name, even if its
    /// nonce is smaller; the first keeps its name, and so does an instance that finds only a
    /// stopped one's beat.
    #[test]
    fn the_second_of_a_name_takes_another() {
        let (mut first, mut second) = (Namesakes::default(), Namesakes::default());
        assert!(!beaten(&mut first, 7, &[], 1));
        assert_eq!(first.named_ms(), Some(1000));
        assert!(!beaten(&mut second, 3, &[(7, 1000, Some(1000))], 2));
        assert_eq!(second.named_ms(), None);
        assert!(!beaten(&mut first, 7, &[(3, 2000, None)], 2));
        assert!(beaten(&mut second, 3, &[(7, 2000, Some(1000))], 3));
        assert!(!beaten(&mut first, 7, &[(3, 3000, None)], 4));
        let mut restarted = Namesakes::default();
        for at in 2..5 {
            assert!(!beaten(&mut restarted, 9, &[(7, 1500, Some(1000))], at));
            assert_eq!(restarted.named_ms(), None);
        }
        assert!(!beaten(&mut restarted, 9, &[(7, 1500, Some(1000))], 5));
        assert_eq!(restarted.named_ms(), Some(5000));
    }

    /// FLEET-23: if neither was first, the smaller origin keeps the name; against an instance whose
    /// key differs, this one gives up the name.
    #[test]
    fn where_nobody_is_first_one_goes() {
        let (mut one, mut other) = (Namesakes::default(), Namesakes::default());
        for at in 1..3 {
            let (to_one, to_other) = ([(4, at * 1000, None)], [(3, at * 1000, None)]);
            let taken = (
                beaten(&mut one, 3, &to_one, at),
                beaten(&mut other, 4, &to_other, at),
            );
            assert_eq!(taken, (false, at == 2), "{at}");
        }
        let mut alone = Namesakes::default();
        for at in 1..9 {
            let seen = Seen {
                origin: origin(1),
                age_ms: 0,
                beat: Err(Rejected::Seal),
            };
            alone.take(&origin(2), &[seen], (at * 1000, at * SECOND));
        }
        assert!(alone.is_taken());
    }
}
