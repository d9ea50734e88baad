//! The guard against repeated messages beside a naive twin that forgets nothing.

use std::collections::HashSet;

use proptest::prelude::*;
use weir_schema::{
    replay::{self, MemoryStore, ReplayError},
    signature::Verified,
};

/// Milliseconds since 1970 at noon of 1 March 2026.
const NOON: i64 = 1_772_366_400_000;

fn message(kid: u8, id: u8, ts: i64) -> Verified {
    Verified {
        kid: format!("k{kid}"),
        id: format!("i{id}"),
        from: "alice".to_owned(),
        ts: jiff::Timestamp::from_millisecond(ts).unwrap().to_string(),
    }
}

/// Remembers every message for ever.
#[derive(Default)]
struct Naive(HashSet<(String, String)>);

impl Naive {
    fn admits(&mut self, message: &Verified, ts: i64, now: i64) -> bool {
        (now - ts).abs() <= 300_000 && self.0.insert((message.kid.clone(), message.id.clone()))
    }
}

/// Key, id, how far `ts` is from the clock, and how far the clock goes before the next.
fn events(step: std::ops::Range<i64>) -> impl Strategy<Value = Vec<(u8, u8, i64, i64)>> {
    let event = (0..3_u8, 0..40_u8, -310_000..310_000_i64, step);
    proptest::collection::vec(event, 1..200)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// SCHEMA-7: with a clock that goes forward the two never differ, though one forgets. An id is
    /// used again only with the same time, as a repeated message is.
    #[test]
    fn the_guard_admits_what_its_naive_twin_admits(events in events(0..20_000)) {
        let (mut store, mut naive) = (MemoryStore::new(1000), Naive::default());
        let mut times = std::collections::HashMap::new();
        let mut now = NOON;
        for (kid, id, offset, step) in events {
            let ts = *times.entry((kid, id)).or_insert(now + offset);
            let message = message(kid, id, ts);
            let admitted = replay::admit(&mut store, &message, now).is_ok();
            prop_assert_eq!(admitted, naive.admits(&message, ts, now));
            now += step;
        }
    }

    /// SCHEMA-7: with a clock that jumps either way nothing is admitted twice.
    #[test]
    fn nothing_is_admitted_twice_whatever_the_clock_does(events in events(-2_000_000..2_000_000)) {
        let mut store = MemoryStore::new(1000);
        let mut times = std::collections::HashMap::new();
        let mut admitted = HashSet::new();
        let mut now = NOON;
        for (kid, id, offset, step) in events {
            let ts = *times.entry((kid, id)).or_insert(now + offset);
            if replay::admit(&mut store, &message(kid, id, ts), now).is_ok() {
                prop_assert!(admitted.insert((kid, id)));
                prop_assert!((now - ts).abs() <= 300_000);
            }
            now += step;
        }
    }

    /// SCHEMA-7: a full store admits less, never twice, and never holds more.
    #[test]
    fn a_small_store_stays_small(events in events(0..20_000), most in 0..20_usize) {
        let (mut store, mut naive) = (MemoryStore::new(most), Naive::default());
        let mut times = std::collections::HashMap::new();
        let mut now = NOON;
        for (kid, id, offset, step) in events {
            let ts = *times.entry((kid, id)).or_insert(now + offset);
            let message = message(kid, id, ts);
            let full = store.len() >= most;
            match replay::admit(&mut store, &message, now) {
                Ok(()) => prop_assert!(naive.admits(&message, ts, now)),
                Err(ReplayError::Full) => prop_assert!(full),
                Err(_) => {}
            }
            prop_assert!(store.len() <= most);
            now += step;
        }
    }
}
