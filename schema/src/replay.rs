//! The guard against repeated messages: a signed message counts once, and only near its own time
//! (SCHEMA-7).
//!
//! The clock and the store are the caller's: time is an argument, and the store may be this file's
//! or a table that several servers share. Ask only after the signature was verified, or anybody
//! could use up the ids of others.

use std::collections::{BTreeSet, HashMap};

use jiff::civil::DateTime;
use sha2::{Digest, Sha256};

use crate::{pubkey, signature::Verified};

/// How far a message's `ts` may lie from the clock, either way, in milliseconds.
pub const WINDOW_MILLISECONDS: i64 = 300_000;

const EPOCH: DateTime = DateTime::constant(1970, 1, 1, 0, 0, 0, 0);

/// Admits `message` at `now`, once.
///
/// `now` is wall-clock milliseconds since 1970, by the clock of the one who asks.
///
/// # Errors
/// [`ReplayError`]; the message must then have no effect.
pub fn admit(store: &mut impl Store, message: &Verified, now: i64) -> Result<(), ReplayError> {
    let ts = pubkey::time_of(&message.ts).ok_or(ReplayError::NoTime)?;
    let ts =
        i64::try_from(ts.duration_since(EPOCH).as_millis()).map_err(|_| ReplayError::NoTime)?;
    // Saturating: a caller's clock may be anything, and the end of time is never near.
    let (oldest, newest) = (
        now.saturating_sub(WINDOW_MILLISECONDS),
        now.saturating_add(WINDOW_MILLISECONDS),
    );
    if ts < oldest {
        return Err(ReplayError::TooOld);
    }
    if ts > newest {
        return Err(ReplayError::TooNew);
    }
    match store.remember(&message.kid, &message.id, ts, oldest) {
        Remembered::New => Ok(()),
        Remembered::Known => Err(ReplayError::Repeated),
        Remembered::Forgotten => Err(ReplayError::TooOld),
        Remembered::Full => Err(ReplayError::Full),
    }
}

/// Where admitted messages are remembered.
pub trait Store {
    /// Remembers the message `id` signed by `kid` at `ts`, in milliseconds since 1970.
    ///
    /// Messages older than `oldest` may be forgotten, for the guard refuses them by their time. The
    /// clock can go back, though: what was forgotten must then be [`Remembered::Forgotten`], not
    /// new. Asking and remembering must be one step where several ask at once.
    fn remember(&mut self, kid: &str, id: &str, ts: i64, oldest: i64) -> Remembered;
}

/// What a store says of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remembered {
    /// Not seen before; it is remembered from now on.
    New,
    /// Seen before.
    Known,
    /// As old as messages that were forgotten: it may have been seen.
    Forgotten,
    /// Not seen before, and there is no room to remember it.
    Full,
}

/// Why a message is not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    /// `ts` is no time of RFC 3339 in UTC.
    #[error("ts is not a time in UTC")]
    NoTime,
    /// More than 300 s before the clock, or so old that it may have been forgotten.
    #[error("the message is more than 300 s old")]
    TooOld,
    /// More than 300 s after the clock.
    #[error("the message is more than 300 s ahead of the clock")]
    TooNew,
    /// The same key signed a message of the same id before.
    #[error("the message came before")]
    Repeated,
    /// The store is full. To admit would be to admit it twice.
    #[error("too many messages to remember")]
    Full,
}

/// A store in memory, bounded.
///
/// A message takes about 120 bytes until it is 300 s old. It is kept as a hash, so that neither a
/// long `id` nor many senders make it larger. Who shares a store shares its room: a sender whose
/// rate nobody bounds can fill it, and the messages of all others are refused until its own are
/// old.
#[derive(Debug)]
pub struct MemoryStore {
    /// Bounded by `most`.
    seen: HashMap<[u8; 32], i64>,
    /// The same by time, oldest first.
    by_time: BTreeSet<(i64, [u8; 32])>,
    most: usize,
    /// The newest `ts` that was ever forgotten. Up to it the store cannot say what is new.
    forgotten_to: Option<i64>,
}

impl MemoryStore {
    /// A store for at most `most` messages: 600 s of the heaviest traffic, both halves of the
    /// window.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self {
            seen: HashMap::new(),
            by_time: BTreeSet::new(),
            most,
            forgotten_to: None,
        }
    }

    /// How many messages are remembered.
    #[must_use]
    pub fn len(&self) -> usize {
        self.seen.len()
    }

    /// Whether none is remembered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.seen.is_empty()
    }

    fn forget_before(&mut self, oldest: i64) {
        while let Some(&(ts, key)) = self.by_time.first() {
            if ts >= oldest {
                break;
            }
            self.by_time.remove(&(ts, key));
            self.seen.remove(&key);
            self.forgotten_to = self.forgotten_to.max(Some(ts));
        }
    }
}

impl Store for MemoryStore {
    fn remember(&mut self, kid: &str, id: &str, ts: i64, oldest: i64) -> Remembered {
        self.forget_before(oldest);
        let key = key(kid, id);
        if self.seen.contains_key(&key) {
            return Remembered::Known;
        }
        if self.forgotten_to.is_some_and(|forgotten| ts <= forgotten) {
            return Remembered::Forgotten;
        }
        if self.seen.len() >= self.most {
            return Remembered::Full;
        }
        self.seen.insert(key, ts);
        self.by_time.insert((ts, key));
        Remembered::New
    }
}

/// One hash for both names. The length keeps `("a", "bc")` from `("ab", "c")`.
fn key(kid: &str, id: &str) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(kid.len().to_le_bytes());
    hash.update(kid);
    hash.update(id);
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOON: &str = "2026-03-01T12:00:00Z";
    const NOON_MS: i64 = 1_772_366_400_000;

    fn message(kid: &str, id: &str, ts: &str) -> Verified {
        Verified {
            kid: kid.to_owned(),
            id: id.to_owned(),
            from: "alice".to_owned(),
            ts: ts.to_owned(),
        }
    }

    /// SCHEMA-7
    #[test]
    fn a_message_counts_once() {
        let mut store = MemoryStore::new(10);
        let first = message("k", "1", NOON);
        assert_eq!(admit(&mut store, &first, NOON_MS), Ok(()));
        for now in [NOON_MS, NOON_MS + 300_000, NOON_MS - 300_000] {
            assert_eq!(admit(&mut store, &first, now), Err(ReplayError::Repeated));
        }
        assert_eq!(admit(&mut store, &message("k", "2", NOON), NOON_MS), Ok(()));
        assert_eq!(
            admit(&mut store, &message("j", "1", NOON), NOON_MS),
            Ok(()),
            "another key's id"
        );
    }

    /// SCHEMA-7: the window is 300 s each way, both ends included.
    #[test]
    fn a_message_counts_only_near_its_time() {
        for (now, verdict) in [
            (NOON_MS + 300_000, Ok(())),
            (NOON_MS + 300_001, Err(ReplayError::TooOld)),
            (NOON_MS - 300_000, Ok(())),
            (NOON_MS - 300_001, Err(ReplayError::TooNew)),
            (i64::MAX, Err(ReplayError::TooOld)),
            (i64::MIN, Err(ReplayError::TooNew)),
        ] {
            let mut store = MemoryStore::new(10);
            assert_eq!(
                admit(&mut store, &message("k", "1", NOON), now),
                verdict,
                "{now}"
            );
        }
        // As the schema takes them: up to the end of 9999, which no time stamp of jiff reaches, and
        // in UTC alone.
        for (ts, verdict) in [
            ("9999-12-31T23:59:59.999999999Z", ReplayError::TooNew),
            ("1970-01-01T00:00:00Z", ReplayError::TooOld),
            ("2026-03-01T13:00:00+01:00", ReplayError::NoTime),
            ("noon", ReplayError::NoTime),
        ] {
            let mut store = MemoryStore::new(10);
            assert_eq!(
                admit(&mut store, &message("k", "1", ts), NOON_MS),
                Err(verdict),
                "{ts}"
            );
            assert!(store.is_empty());
        }
    }

    /// SCHEMA-7: to make room by forgetting would admit a message twice.
    #[test]
    fn a_full_store_refuses_and_recovers() {
        let mut store = MemoryStore::new(2);
        for id in ["1", "2"] {
            assert_eq!(admit(&mut store, &message("k", id, NOON), NOON_MS), Ok(()));
        }
        assert_eq!(
            admit(&mut store, &message("k", "3", NOON), NOON_MS),
            Err(ReplayError::Full)
        );
        assert_eq!(
            admit(&mut store, &message("k", "1", NOON), NOON_MS),
            Err(ReplayError::Repeated)
        );
        let later = message("k", "3", "2026-03-01T12:05:01Z");
        assert_eq!(admit(&mut store, &later, NOON_MS + 301_000), Ok(()));
        assert_eq!(store.len(), 1);
    }

    /// SCHEMA-7: a clock that is set back does not bring old messages back.
    #[test]
    fn a_clock_that_goes_back_admits_nothing_twice() {
        let mut store = MemoryStore::new(10);
        let first = message("k", "1", NOON);
        assert_eq!(admit(&mut store, &first, NOON_MS), Ok(()));
        let later = message("k", "2", "2026-03-01T13:00:00Z");
        assert_eq!(admit(&mut store, &later, NOON_MS + 3_600_000), Ok(()));
        assert_eq!(store.len(), 1, "the first is forgotten");
        assert_eq!(admit(&mut store, &first, NOON_MS), Err(ReplayError::TooOld));
        let other = message("k", "3", "2026-03-01T12:00:00.001Z");
        assert_eq!(
            admit(&mut store, &other, NOON_MS),
            Ok(()),
            "newer than all that was forgotten"
        );
    }
}
