//! The form of one window in state files and answers.

use crate::units::{Count, Time};
use crate::window::{Length, Window};
use serde::{Deserialize, Serialize};

/// The two buckets of a window.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Buckets {
    /// When the current one began.
    pub start: Time,
    /// What it has counted.
    pub current: Count,
    /// What the one before has counted.
    pub previous: Count,
}

impl Buckets {
    /// As it is written.
    pub fn of(window: &Window) -> Self {
        Self {
            start: Time(window.start_ms),
            current: Count(window.current),
            previous: Count(window.previous),
        }
    }

    /// Buckets begin at multiples of their length (LIMIT-1); a start written by hand is moved to
    /// the one before it.
    pub fn window(self, span: impl Length) -> Window {
        Window {
            start_ms: self.start.0 - self.start.0 % span.ms(),
            current: self.current.0,
            previous: self.previous.0,
        }
    }
}
