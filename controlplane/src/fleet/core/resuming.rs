//! Going on after a restart from where the instance was in the log (FLEET-23).

use super::{Core, Event, Item};
use crate::fleet::place::Point;

/// What has such a stamp, or a later one, is sent after a restart: notes of a ban come behind it,
/// and have none of their own.
const SENT_AGAIN_MS: u64 = 60_000;

/// What is later than this is sent after a restart, where this was the last stamp at the point.
fn sent_behind((ms, _): (u64, u16)) -> (u64, u16) {
    (ms.saturating_sub(SENT_AGAIN_MS), 0)
}

impl Core {
    /// The same, which goes on from this point. What it knows beyond that is sent.
    #[must_use]
    pub fn from_point(mut self, point: Point) -> Self {
        let Ok(generation) = u128::from_str_radix(&point.generation, 16) else {
            return self;
        };
        for item in self.replica.later_than(sent_behind(point.last)) {
            self.send(item);
        }
        self.generation = Some(generation);
        self.cursor = point.read.at;
        self.read = Some(point.read);
        self
    }

    /// Where it is, if it could go on from there.
    pub fn point(&self) -> Option<Point> {
        let read = self.read.clone()?;
        let is_whole = self.is_in_step() && self.own == self.acked;
        let generation = self.generation.filter(|_| is_whole)?;
        Some(Point {
            generation: format!("{generation:032x}"),
            read,
            last: self.replica.last_stamp(),
        })
    }

    /// How often something was read that was made long before. Whoever goes on from a point that
    /// was found earlier does not send it, so that such a point is to be given up: the log that has
    /// it may be that of a master that goes, and nobody else may have it (FLEET-15).
    pub fn late(&self) -> u64 {
        self.late
    }

    /// This was read; `before` is what was known of it until then.
    pub(super) fn note_late(&mut self, item: &Item, before: Option<&Event>) {
        let behind = sent_behind(self.replica.last_stamp());
        let is_late = |event: &Event| !event.stamps().any(|stamp| stamp.time() > behind);
        let known = self.replica.event(item);
        let is_news = known.as_ref() != before;
        self.late += u64::from(is_news && known.as_ref().is_some_and(is_late));
    }
}
