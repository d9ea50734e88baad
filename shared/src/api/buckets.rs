//! The form of one window in state files and answers.

use crate::units::{Count, Time};
use crate::window::{Length, Window};
use serde::{Deserialize, Serialize};

/// The two buckets of a window.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Buckets {
    /// When the current one began.
    pub start: Time,
    /// The count of the current bucket.
    pub current: Count,
    /// The count of the previous bucket.
    pub previous: Count,
}

impl Buckets {
    /// The form of a window.
    pub fn of(window: &Window) -> Self {
        Self {
            start: Time(window.start_ms),
            current: Count(window.current),
            previous: Count(window.previous),
        }
    }

    /// The window. Buckets begin at multiples of their length (LIMIT-1), so an edited start is
    /// moved back to such a multiple.
    pub fn window(self, span: impl Length) -> Window {
        Window {
            start_ms: self.start.0 - self.start.0 % span.ms(),
            current: self.current.0,
            previous: self.previous.0,
        }
    }
}
