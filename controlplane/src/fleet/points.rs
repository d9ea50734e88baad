//! Chooses the point from which a restart reads the log: never ahead of the instance's files
//! (FLEET-23). A point is written once bans.json holds everything known at it.

use super::place::Point;

/// The pause between two points, because each rewrites all of fleet.json.
const PAUSE_NS: u64 = 60_000_000_000;

/// The current and the next point.
#[derive(Default)]
pub(super) struct Points {
    held: Option<Point>,
    /// A point that waits for this document of bans.json.
    next: Option<(u64, Point)>,
    /// When the next point is looked for.
    due_ns: u64,
    /// How often an item was read that was made long before.
    late: u64,
}

impl Points {
    /// The point for fleet.json.
    pub(super) fn held(&self) -> Option<&Point> {
        self.held.as_ref()
    }

    /// Takes the current count of late items. If it has grown, earlier points are given up. True if
    /// fleet.json must be written without a point, before bans.json has what was read.
    pub(super) fn note_late(&mut self, late: u64) -> bool {
        if std::mem::replace(&mut self.late, late) == late {
            return false;
        }
        self.next = None;
        self.held.take().is_some()
    }

    /// Looks for a new point. True if fleet.json must be written for it.
    pub(super) fn turn(
        &mut self,
        point: impl FnOnce() -> Option<Point>,
        (of_now, on_disk): (u64, u64),
        now_ns: u64,
    ) -> bool {
        if let Some((_, point)) = self.next.take_if(|(document, _)| on_disk >= *document) {
            self.held = Some(point);
            return true;
        }
        if self.next.is_none() && now_ns >= self.due_ns {
            let found = point().filter(|point| Some(point) != self.held.as_ref());
            if let Some(point) = found {
                self.due_ns = now_ns.saturating_add(PAUSE_NS);
                self.next = Some((of_now, point));
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::engine::{Cursor, Logged};
    use crate::fleet::place::Place;
    use crate::fleet::stamp::Origin;

    fn point(count: u64) -> Point {
        Point {
            generation: String::new(),
            read: Place::of(&Logged {
                at: Cursor { ms: 7, count },
                origin: Origin::new("a", 1).unwrap(),
                seq: count,
                sealed: Vec::new(),
            }),
            last: (7, 0),
        }
    }

    /// FLEET-15, FLEET-23: after a read of something that a restart from a point would not send
    /// again, neither the point in fleet.json is kept nor the one that waits for bans.json; a point
    /// found later is kept.
    #[test]
    fn points_before_what_is_read_late_are_given_up() {
        let mut points = Points::default();
        assert!(!points.turn(|| Some(point(1)), (1, 0), PAUSE_NS));
        assert!(points.turn(|| None, (1, 1), PAUSE_NS));
        assert!(!points.turn(|| Some(point(2)), (2, 1), 2 * PAUSE_NS));
        assert!(!points.note_late(0));
        assert_eq!(points.held(), Some(&point(1)));
        assert!(points.note_late(1));
        assert!(!points.turn(|| None, (2, 2), 2 * PAUSE_NS));
        assert_eq!(points.held(), None);
        assert!(!points.note_late(1) && !points.note_late(2));
        assert!(!points.turn(|| Some(point(3)), (3, 2), 3 * PAUSE_NS));
        assert!(points.turn(|| None, (3, 3), 3 * PAUSE_NS));
        assert_eq!(points.held(), Some(&point(3)));
    }
}
