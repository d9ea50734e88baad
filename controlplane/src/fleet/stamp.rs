//! Stamps: they decide which of two changes is the later one, whatever the clocks of the instances
//! say (FLEET-16).
//!
//! A stamp is a time of a hybrid logical clock and the origin that made it. The clock never goes
//! back, and a stamp that an instance makes is later than every stamp it has seen.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use weir_shared::ban_origin::is_instance_name;

/// How far a stamp of another instance may be ahead of this clock.
pub const MAX_AHEAD_MS: u64 = 60_000;
/// The last millisecond that a stamp can hold.
const LAST_MS: u64 = (1 << 48) - 1;
/// Characters of a boot nonce: 128 bits in hexadecimal.
const NONCE: usize = 32;

/// One boot of an instance: `NAME@NONCE` (FLEET-23).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Origin(Arc<str>);

impl Origin {
    /// The origin of the boot with this nonce of the instance with this name. None if the name is
    /// not allowed.
    pub fn new(name: &str, nonce: u128) -> Option<Self> {
        is_instance_name(name).then(|| Self(format!("{name}@{nonce:032x}").into()))
    }

    /// The name of the instance.
    pub fn name(&self) -> &str {
        self.0.split_once('@').map_or("", |(name, _)| name)
    }

    /// `NAME@NONCE`.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Origin {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        text.split_once('@')
            .filter(|(name, nonce)| {
                is_instance_name(name) && nonce.len() == NONCE && nonce.bytes().all(hex)
            })
            .map(|_| Self(text.into()))
            .ok_or_else(|| format!("{text:?} is no origin: expected NAME@NONCE"))
    }
}

impl Serialize for Origin {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Origin {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}

/// When something was changed, and where.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Stamp {
    ms: u64,
    count: u16,
    /// None for a stamp made from the time in a file: it is the same at every instance.
    origin: Option<Origin>,
}

impl Stamp {
    /// The stamp of a change at this time by an unknown origin.
    pub fn of_time(ms: u64) -> Self {
        Self {
            ms: ms.min(LAST_MS),
            count: 0,
            origin: None,
        }
    }

    /// Its time in milliseconds.
    pub fn ms(&self) -> u64 {
        self.ms
    }

    /// Its time, and its number within the millisecond.
    pub fn time(&self) -> (u64, u16) {
        (self.ms, self.count)
    }

    /// Who made it.
    pub fn origin(&self) -> Option<&Origin> {
        self.origin.as_ref()
    }
}

impl Serialize for Stamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (self.ms, self.count, &self.origin).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Stamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (ms, count, origin) = Deserialize::deserialize(deserializer)?;
        match ms {
            0..=LAST_MS => Ok(Self { ms, count, origin }),
            _ => Err(D::Error::custom("a stamp beyond 48 bits")),
        }
    }
}

/// Makes stamps.
#[derive(Clone, Debug)]
pub struct StampClock {
    origin: Origin,
    last: (u64, u16),
}

impl StampClock {
    /// A clock of this origin that has seen nothing.
    pub fn new(origin: Origin) -> Self {
        Self {
            origin,
            last: (0, 0),
        }
    }

    /// The clock of another boot, which has seen what this one has.
    #[must_use]
    pub fn restarted(&self, origin: Origin) -> Self {
        Self {
            origin,
            last: self.last,
        }
    }

    /// The last stamp made or seen: its time, and its number within the millisecond.
    pub fn last(&self) -> (u64, u16) {
        self.last
    }

    /// The origin of its stamps.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// The next stamp: later than all that were made or seen.
    pub fn next(&mut self, now_ms: u64) -> Stamp {
        let (ms, count) = self.last;
        self.last = if now_ms > ms {
            (now_ms.min(LAST_MS), 0)
        } else {
            count
                .checked_add(1)
                .map_or((ms.saturating_add(1).min(LAST_MS), 0), |count| (ms, count))
        };
        let (ms, count) = self.last;
        Stamp {
            ms,
            count,
            origin: Some(self.origin.clone()),
        }
    }

    /// The stamp of a ban that started at `ms`: the one that follows from its time alone, if that
    /// is later than all stamps made or seen, and not in the future. So a restarted instance needs
    /// only the file of its bans.
    pub fn at(&mut self, ms: u64, now_ms: u64) -> Stamp {
        if (ms, 0) > self.last && ms <= now_ms.min(LAST_MS) {
            self.last = (ms, 0);
            return Stamp::of_time(ms);
        }
        self.next(now_ms)
    }

    /// Notes a stamp of another instance. False if it is too far ahead to be accepted.
    pub fn see(&mut self, stamp: &Stamp, now_ms: u64) -> bool {
        if stamp.ms > now_ms.saturating_add(MAX_AHEAD_MS) {
            return false;
        }
        self.last = self.last.max((stamp.ms, stamp.count));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(name: &str) -> Origin {
        Origin::new(name, 7).unwrap()
    }

    /// FLEET-16: a new stamp is later than all that were made or seen, even if the clock goes back;
    /// a stamp too far ahead is refused.
    #[test]
    fn stamps_never_go_back() {
        let mut clock = StampClock::new(origin("a"));
        let first = clock.next(5000);
        let second = clock.next(4000);
        assert!(first < second);
        let ahead = StampClock::new(origin("b")).next(5000 + MAX_AHEAD_MS);
        assert!(clock.see(&ahead, 5000));
        assert!(ahead < clock.next(5000));
        let beyond = StampClock::new(origin("b")).next(5001 + MAX_AHEAD_MS);
        assert!(!clock.see(&beyond, 5000));
        assert!(clock.next(5000) < beyond);
        let mut full = StampClock::new(origin("a"));
        full.last = (9, u16::MAX);
        assert_eq!(full.next(9).ms(), 10);
    }

    /// FLEET-24: an origin and a stamp from elsewhere are read strictly.
    #[test]
    fn origins_and_stamps_are_read_strictly() {
        let whole = origin("edge-1");
        assert_eq!(whole.as_str().parse::<Origin>().unwrap(), whole);
        assert_eq!(whole.name(), "edge-1");
        let nonce = "0".repeat(32);
        for wrong in [
            "",
            "edge-1",
            "Edge@1",
            "a@7",
            &format!("{{a}}@{nonce}"),
            &format!("@{nonce}"),
        ] {
            assert!(wrong.parse::<Origin>().is_err(), "{wrong}");
        }
        let stamp = StampClock::new(whole).next(5);
        let text = serde_json::to_string(&stamp).unwrap();
        assert_eq!(serde_json::from_str::<Stamp>(&text).unwrap(), stamp);
        assert!(serde_json::from_str::<Stamp>("[281474976710656,0,null]").is_err());
        assert!(serde_json::from_str::<Stamp>("[1,65536,null]").is_err());
    }
}
