//! The events in the log of a fleet: entries, lifts and list records, several in one batch, as
//! JSON.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::entry::Entry;
use super::lift::LiftRecord;
use super::lists::ListRecord;
use super::stamp::Stamp;

/// The most events of one batch.
pub const MAX_EVENTS: usize = 256;
/// The most bytes of one batch, before it is sealed.
pub const MAX_BATCH: usize = 60 * 1024;

/// One change, as a value to join.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// A ban as it is now.
    Entry(Box<Entry>),
    /// A lift.
    Lift(LiftRecord),
    /// An entry of a list.
    List(ListRecord),
}

impl Event {
    /// All its stamps.
    pub fn stamps(&self) -> Box<dyn Iterator<Item = &Stamp> + '_> {
        match self {
            Self::Entry(entry) => Box::new(entry.stamps()),
            Self::Lift(lift) => Box::new([&lift.stamp].into_iter()),
            Self::List(record) => Box::new([&record.stamp].into_iter()),
        }
    }
}

/// Why data from the engine is rejected; also the label of the metric.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Rejected {
    /// It does not open with the fleet key.
    Seal,
    /// It has no known form.
    Schema,
    /// It is longer than anything that is sent.
    Size,
    /// Its stamp lies too far ahead.
    Clock,
}

impl Rejected {
    /// All reasons.
    pub const ALL: [Self; 4] = [Self::Seal, Self::Schema, Self::Size, Self::Clock];

    /// As written in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Seal => "seal",
            Self::Schema => "schema",
            Self::Size => "size",
            Self::Clock => "clock",
        }
    }
}

/// Parses a batch. An unknown event is an error in its place: the other events of the batch are
/// used all the same (FLEET-24, FLEET-31).
///
/// # Errors
/// [`Rejected`], where it is no batch at all.
pub fn read(bytes: &[u8]) -> Result<Vec<Result<Event, Rejected>>, Rejected> {
    if bytes.len() > MAX_BATCH {
        return Err(Rejected::Size);
    }
    let events: Vec<&RawValue> = serde_json::from_slice(bytes).map_err(|_| Rejected::Schema)?;
    if events.len() > MAX_EVENTS {
        return Err(Rejected::Size);
    }
    let event = |text: &RawValue| match serde_json::from_str(text.get()) {
        Ok(Event::Entry(entry)) if entry.check().is_err() => Err(Rejected::Schema),
        Ok(Event::List(record)) if !record.fits() => Err(Rejected::Schema),
        Ok(event) => Ok(event),
        Err(_) => Err(Rejected::Schema),
    };
    Ok(events.into_iter().map(event).collect())
}

/// Writes a batch: as many events as fit, at least one. Returns the bytes and the number of events.
pub fn write(events: impl Iterator<Item = Event>) -> (Vec<u8>, usize) {
    let (mut bytes, mut count) = (vec![b'['], 0);
    for event in events.take(MAX_EVENTS) {
        let Ok(text) = serde_json::to_vec(&event) else {
            count += 1;
            continue;
        };
        if bytes.len() + text.len() + 2 > MAX_BATCH && count > 0 {
            break;
        }
        if bytes.len() > 1 {
            bytes.push(b',');
        }
        bytes.extend(text);
        count += 1;
    }
    bytes.push(b']');
    (bytes, count)
}
