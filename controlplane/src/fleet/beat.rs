//! The beat: what an instance reports about itself, each second.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use weir_shared::api::fleet::Instance;

use super::engine::Cursor;
use super::event::Rejected;
use super::stamp::Origin;
use crate::anomaly::shared::{MOST_TOTALS, Sums};

/// The most settings of a beat, and the longest name and value that are read.
const MAX_SETTINGS: usize = 128;
const MAX_TEXT: usize = 512;

/// The content of a beat. Unknown members are ignored (FLEET-31).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Beat {
    /// Its version.
    pub(super) version: String,
    /// The place up to which it has read the log, as `MS-COUNT`.
    pub(super) cursor: String,
    /// Whether it has read all of the log, and has no events to send.
    pub(super) in_step: bool,
    /// Events that it has to send.
    pub(super) waiting: u64,
    /// The digest of what it holds.
    pub(super) digest: String,
    /// Bans that it holds.
    pub(super) bans: u64,
    /// Whether it has dropped bans for lack of room: its digest cannot be compared then.
    pub(super) dropped: bool,
    /// How far its clock is ahead of the engine's.
    pub(super) clock_ms: i64,
    /// Since when it has its name, by the engine's clock; none while another instance may have the
    /// name (FLEET-23).
    #[serde(default)]
    pub(super) named_ms: Option<u64>,
    /// Settings that should be the same at all instances.
    #[serde(default)]
    pub(super) settings: BTreeMap<String, String>,
    /// Its counts of the scopes of anomalies that are near a threshold (FLEET-19).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) totals: Vec<(String, Sums)>,
}

/// A beat of an instance, as read from the engine.
pub(super) struct Seen {
    /// The instance.
    pub(super) origin: Origin,
    /// The age of the beat.
    pub(super) age_ms: u64,
    /// The beat, or why it cannot be read.
    pub(super) beat: Result<Beat, Rejected>,
}

impl Beat {
    /// Parses a beat.
    ///
    /// # Errors
    /// [`Rejected::Schema`], [`Rejected::Size`]
    pub(super) fn read(bytes: &[u8]) -> Result<Self, Rejected> {
        let beat: Self = serde_json::from_slice(bytes).map_err(|_| Rejected::Schema)?;
        let fits = |text: &String| text.len() <= MAX_TEXT;
        let texts = [&beat.version, &beat.cursor, &beat.digest];
        let settings = beat.settings.iter().flat_map(|(name, value)| [name, value]);
        let totals = beat.totals.iter().map(|(scope, _)| scope);
        let settings = settings.chain(totals);
        let is_long = beat.settings.len() > MAX_SETTINGS || beat.totals.len() > MOST_TOTALS;
        if is_long || !texts.into_iter().chain(settings).all(fits) {
            return Err(Rejected::Size);
        }
        Ok(beat)
    }

    /// The place up to which it has read the log.
    pub(super) fn cursor(&self) -> Cursor {
        self.cursor.parse().unwrap_or_default()
    }

    /// The instance in the form of the API.
    pub(super) fn told(&self) -> Instance {
        Instance {
            waiting: Some(self.waiting),
            clock_ms: Some(self.clock_ms),
            version: Some(self.version.clone()),
            bans: Some(self.bans),
            ..Instance::default()
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// FLEET-24: a beat is read up to 128 settings, the most totals that an instance sends, and
    /// texts of 512 bytes each.
    #[test]
    fn a_beat_is_bounded() {
        let read = |change: &dyn Fn(&mut Beat)| {
            let mut said = beat(None);
            change(&mut said);
            let bytes = serde_json::to_vec(&said).unwrap();
            Beat::read(&bytes).map(|read| assert_eq!(read, said))
        };
        let (fits, too_long) = ("x".repeat(512), "x".repeat(513));
        let settings = |count: usize| {
            let names = (0..count).map(|number| (number.to_string(), String::new()));
            names.collect::<BTreeMap<_, _>>()
        };
        let totals = |count| vec![(String::new(), Sums::default()); count];
        assert_eq!(read(&|beat| beat.settings = settings(128)), Ok(()));
        assert_eq!(read(&|beat| beat.totals = totals(MOST_TOTALS)), Ok(()));
        let refused = Err(Rejected::Size);
        assert_eq!(read(&|beat| beat.settings = settings(129)), refused);
        assert_eq!(read(&|beat| beat.totals = totals(MOST_TOTALS + 1)), refused);
        for (text, expected) in [(&fits, Ok(())), (&too_long, refused)] {
            let one = || BTreeMap::from([(text.clone(), String::new())]);
            let value = || BTreeMap::from([(String::new(), text.clone())]);
            let total = || vec![(text.clone(), Sums::default())];
            assert_eq!(read(&|beat| beat.version.clone_from(text)), expected);
            assert_eq!(read(&|beat| beat.cursor.clone_from(text)), expected);
            assert_eq!(read(&|beat| beat.digest.clone_from(text)), expected);
            assert_eq!(read(&|beat| beat.settings = one()), expected);
            assert_eq!(read(&|beat| beat.settings = value()), expected);
            assert_eq!(read(&|beat| beat.totals = total()), expected);
        }
    }

    /// What an instance says that has its name since then.
    pub(in crate::fleet) fn beat(named_ms: Option<u64>) -> Beat {
        Beat {
            version: String::new(),
            cursor: String::new(),
            in_step: true,
            waiting: 0,
            digest: String::new(),
            bans: 0,
            dropped: false,
            clock_ms: 0,
            named_ms,
            settings: BTreeMap::new(),
            totals: Vec::new(),
        }
    }
}
