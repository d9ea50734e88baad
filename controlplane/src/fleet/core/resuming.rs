//! Resumes after a restart from the instance's place in the log (FLEET-23).

use super::{Core, Event, Item};
use crate::fleet::place::Point;

/// Items with a stamp of this much before the last one are sent again after a restart, because
/// notes come later than their ban and have no stamp of their own.
const SENT_AGAIN_MS: u64 = 60_000;

/// Items with a later stamp than this are sent after a restart; the argument is the last stamp at
/// the point.
fn sent_behind((ms, _): (u64, u16)) -> (u64, u16) {
    (ms.saturating_sub(SENT_AGAIN_MS), 0)
}

impl Core {
    /// Resumes from this point. Items that are newer than it are sent.
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

    /// The current point, if a restart could resume from it.
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

    /// How often an item was read that was made long before. An instance that resumes from an
    /// earlier point would not send it again. So such a point must be given up: the log with the
    /// item may be that of a failing master, and no other instance may have it (FLEET-15).
    pub fn late(&self) -> u64 {
        self.late
    }

    /// Notes an item that was read; `before` is the event known until then.
    pub(super) fn note_late(&mut self, item: &Item, before: Option<&Event>) {
        let behind = sent_behind(self.replica.last_stamp());
        let is_late = |event: &Event| !event.stamps().any(|stamp| stamp.time() > behind);
        let known = self.replica.event(item);
        let is_news = known.as_ref() != before;
        self.late += u64::from(is_news && known.as_ref().is_some_and(is_late));
    }
}
