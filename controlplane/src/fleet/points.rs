//! From where the log is read after a restart: never ahead of what the files of the instance hold
//! (FLEET-23). A point is written once bans.json holds what was known at it.

use super::place::Point;

/// Between two points: fleet.json is written whole.
const PAUSE_NS: u64 = 60_000_000_000;

/// Points.
#[derive(Default)]
pub(super) struct Points {
    held: Option<Point>,
    /// One that waits for this document of the bans.
    next: Option<(u64, Point)>,
    /// When the next one is looked for.
    due_ns: u64,
}

impl Points {
    /// What fleet.json may say.
    pub(super) fn held(&self) -> Option<&Point> {
        self.held.as_ref()
    }

    /// Looks for one. True if fleet.json is to be written for another.
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
