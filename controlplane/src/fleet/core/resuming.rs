//! Going on after a restart from where the instance was in the log (FLEET-23).

use super::Core;
use crate::fleet::place::Point;

/// What has such a stamp, or a later one, is sent after a restart: notes of a ban come behind it,
/// and have none of their own.
const SENT_AGAIN_MS: u64 = 60_000;

impl Core {
    /// The same, which goes on from this point. What it knows beyond that is sent.
    #[must_use]
    pub fn from_point(mut self, point: Point) -> Self {
        let Ok(generation) = u128::from_str_radix(&point.generation, 16) else {
            return self;
        };
        let (ms, _) = point.last;
        let last = (ms.saturating_sub(SENT_AGAIN_MS), 0);
        for item in self.replica.later_than(last) {
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
}
