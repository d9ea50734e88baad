//! Two edits of one member, at two instances: the later one wins, and both are reported (FLEET-17).

use std::fmt;

use serde::Serialize;

use super::event::Event;
use super::replica::Replica;
use super::stamp::Stamp;

/// The most characters of a value that are reported.
const MAX_VALUE: usize = 100;

/// The edited member, and which edit wins.
#[derive(Clone, PartialEq, Debug)]
pub struct Conflict {
    what: String,
    holds: (String, Stamp),
    replaced: (String, Stamp),
}

impl Conflict {
    fn new(what: String, one: (String, &Stamp), other: (String, &Stamp)) -> Option<Self> {
        let name = |stamp: &Stamp| stamp.origin().map(|origin| origin.name().to_owned());
        let (first, second) = (name(one.1), name(other.1));
        if one.0 == other.0 || first.is_none() || second.is_none() || first == second {
            return None;
        }
        let owned = |(value, stamp): (String, &Stamp)| {
            (value.chars().take(MAX_VALUE).collect(), stamp.clone())
        };
        let (one, other) = (owned(one), owned(other));
        let (holds, replaced) = match one.1 > other.1 {
            true => (one, other),
            false => (other, one),
        };
        Some(Self {
            what,
            holds,
            replaced,
        })
    }

    /// The edits.
    pub fn stamps(&self) -> (&Stamp, &Stamp) {
        (&self.holds.1, &self.replaced.1)
    }
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |stamp: &Stamp| stamp.origin().map_or("", |of| of.name()).to_owned();
        let Self {
            what,
            holds,
            replaced,
        } = self;
        write!(
            f,
            "two edits of {what}: {} of {} holds, {} of {} does not",
            holds.0,
            name(&holds.1),
            replaced.0,
            name(&replaced.1)
        )
    }
}

/// The conflicts between an event and the known edits of the same members.
pub fn between(replica: &Replica, event: &Event) -> Vec<Conflict> {
    let mut found = Vec::new();
    match event {
        Event::Lift(_) => {}
        Event::List(said) => {
            if let Some(held) = replica.lists().record(said.key) {
                let what = format!("{} in {}", said.key.netblock, said.key.list.name());
                let one = (text(&held.entry), &held.stamp);
                found.extend(Conflict::new(what, one, (text(&said.entry), &said.stamp)));
            }
        }
        Event::Entry(said) => {
            let Some(held) = replica.entry(said.id) else {
                return found;
            };
            let netblock = said.id.netblock;
            for (name, (value, stamp)) in &said.members {
                if let Some((here, at)) = held.members.get(name) {
                    let what = format!("{name} of {netblock}");
                    let (one, other) = ((text(here), at), (text(value), stamp));
                    found.extend(Conflict::new(what, one, other));
                }
            }
            if let (Some((here, at)), Some((value, stamp))) = (&held.lifted, &said.lifted) {
                let what = format!("lifted of {netblock}");
                let (one, other) = ((text(here), at), (text(value), stamp));
                found.extend(Conflict::new(what, one, other));
            }
        }
    }
    found
}

fn text(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}
