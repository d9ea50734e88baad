//! The other instances of a fleet by their beats, and whether they hold the same (FLEET-16,
//! FLEET-21).

use std::collections::{BTreeMap, BTreeSet};

use weir_shared::api::fleet::{Differing, Instance};

use super::beat::{Beat, Seen};
use super::claims;
use super::counting::MOST_OFF_MS;
use super::engine::Cursor;
use super::event::Rejected;
use super::stamp::Origin;
use crate::anomaly::shared::Elsewhere;

/// An instance without a beat for so long is gone.
const GONE_MS: u64 = 10_000;
/// An instance that is gone for so long is no longer listed.
const FORGOTTEN_MS: u64 = 600_000;
/// Two instances may differ for so long, because changes are under way.
const PATIENCE_NS: u64 = 5_000_000_000;

/// This instance's values to compare with the others.
pub(super) struct Mine<'a> {
    pub(super) me: &'a Origin,
    pub(super) beat: &'a Beat,
    pub(super) now_ns: u64,
}

/// An instance.
struct Other {
    age_ms: u64,
    beat: Result<Beat, Rejected>,
    /// Since when it holds something else than this instance.
    differs_since_ns: Option<u64>,
}

/// The other instances, by name.
#[derive(Default)]
pub(super) struct Others(BTreeMap<String, Other>);

impl Others {
    /// Takes the beats. Of several boots of one name the last one seen counts.
    pub(super) fn take(&mut self, seen: Vec<Seen>, mine: &Mine<'_>) {
        let mut before = std::mem::take(&mut self.0);
        for Seen {
            origin,
            age_ms,
            beat,
        } in seen
        {
            let name = origin.name().to_owned();
            let known = self.0.get(&name);
            if name == mine.me.name()
                || age_ms > FORGOTTEN_MS
                || known.is_some_and(|known| known.age_ms <= age_ms)
            {
                continue;
            }
            let same = beat.as_ref().is_ok_and(|beat| {
                beat.in_step
                    && (beat.digest == mine.beat.digest || beat.dropped || mine.beat.dropped)
            });
            let since = before
                .remove(&name)
                .and_then(|other| other.differs_since_ns);
            let differs_since_ns = (!same).then_some(since.unwrap_or(mine.now_ns));
            self.0.insert(
                name,
                Other {
                    age_ms,
                    beat,
                    differs_since_ns,
                },
            );
        }
    }

    /// Whether an instance of this name is known.
    pub(super) fn knows(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Removes all instances.
    pub(super) fn forget(&mut self) {
        self.0.clear();
    }

    /// The sums of anomaly counts of the live instances in this mode.
    pub(super) fn totals(&self, mode: &str) -> Elsewhere {
        let mut sums = Elsewhere::default();
        let live = self.0.values().filter(|other| other.age_ms <= GONE_MS);
        for beat in live.filter_map(|other| other.beat.as_ref().ok()) {
            let there = beat.settings.get("WAF_MODE").map_or("", String::as_str);
            if there != mode || beat.clock_ms.unsigned_abs() > MOST_OFF_MS {
                continue;
            }
            for (text, more) in &beat.totals {
                let Some(scope) = claims::scope(text) else {
                    continue;
                };
                let held = sums.entry(scope).or_insert([0; 4]);
                for (sum, more) in held.iter_mut().zip(more) {
                    *sum = sum.saturating_add(*more);
                }
            }
        }
        sums
    }

    /// The number of live instances without this one.
    pub(super) fn live(&self) -> usize {
        self.0
            .values()
            .filter(|other| other.age_ms <= GONE_MS)
            .count()
    }

    /// The live instances that have read the log up to this place, and those that have not.
    pub(super) fn reached(&self, place: Cursor) -> (Vec<&str>, Vec<&str>) {
        let live = self.0.iter().filter(|(_, other)| other.age_ms <= GONE_MS);
        let reached =
            |other: &Other| (other.beat.as_ref()).is_ok_and(|beat| beat.cursor() >= place);
        let mut found = (Vec::new(), Vec::new());
        for (name, other) in live {
            let list = if reached(other) {
                &mut found.0
            } else {
                &mut found.1
            };
            list.push(name.as_str());
        }
        found
    }

    /// Whether all instances hold the same. It is false with an instance that is gone, because its
    /// state is unknown.
    pub(super) fn are_in_step(&self, now_ns: u64) -> bool {
        self.0.values().all(|other| {
            other.age_ms <= GONE_MS
                && other.beat.is_ok()
                && differs_ns(other, now_ns).is_none_or(|ns| ns < PATIENCE_NS)
        })
    }

    /// An instance that has held something else for at least so long.
    pub(super) fn differing(&self, least_ns: u64, now_ns: u64) -> Option<&str> {
        let differs = |other: &Other| differs_ns(other, now_ns).is_some_and(|ns| ns >= least_ns);
        let mut live = self.0.iter().filter(|(_, other)| other.age_ms <= GONE_MS);
        let found = live.find(|(_, other)| differs(other));
        found.map(|(name, _)| name.as_str())
    }

    /// How many settings differ at other instances.
    pub(super) fn settings_differ(&self, mine: &Beat) -> usize {
        self.0
            .values()
            .map(|other| differing(other, mine).len())
            .sum()
    }

    /// The settings that differ, each with both values, as log text.
    pub(super) fn differing_settings(&self, mine: &Beat) -> BTreeSet<String> {
        let of = |(instance, other)| {
            let differing = differing(other, mine).into_iter();
            differing.map(move |(name, here, there)| {
                format!("{name} is {here:?} here, {there:?} at {instance}")
            })
        };
        self.0.iter().flat_map(of).collect()
    }

    /// The instances in the form of the API.
    pub(super) fn told(&self, mine: &Beat, now_ns: u64) -> Vec<Instance> {
        let told = |(name, other): (&String, &Other)| {
            let state = match &other.beat {
                _ if other.age_ms > GONE_MS => "gone",
                Err(Rejected::Seal) => "other_key",
                Err(_) => "unknown",
                Ok(beat) if beat.in_step => "live",
                Ok(_) => "joining",
            };
            let differing = differing(other, mine).into_iter();
            let settings = differing.map(|(name, here, there)| Differing {
                name: name.to_owned(),
                here: here.to_owned(),
                there: there.to_owned(),
            });
            let in_step =
                other.beat.is_ok() && differs_ns(other, now_ns).is_none_or(|ns| ns < PATIENCE_NS);
            Instance {
                name: name.clone(),
                state: state.to_owned(),
                lag_ms: other.age_ms,
                in_step: in_step && other.age_ms <= GONE_MS,
                settings: settings.collect(),
                ..other.beat.as_ref().map(Beat::told).unwrap_or_default()
            }
        };
        self.0.iter().map(told).collect()
    }
}

fn differs_ns(other: &Other, now_ns: u64) -> Option<u64> {
    other
        .differs_since_ns
        .map(|since| now_ns.saturating_sub(since))
}

/// The settings that differ: name, here, there.
fn differing<'a>(other: &'a Other, mine: &'a Beat) -> Vec<(&'a str, &'a str, &'a str)> {
    let Ok(beat) = &other.beat else {
        return Vec::new();
    };
    let differs = |(name, here): (&'a String, &'a String)| {
        let there = beat.settings.get(name)?;
        (there != here).then_some((name.as_str(), here.as_str(), there.as_str()))
    };
    mine.settings.iter().filter_map(differs).collect()
}
