//! The form of one window in clients.json and alerts.json.

use serde::{Deserialize, Serialize};
use weir_shared::units::{Count, Time};
use weir_shared::window::{Length, Window};

/// The two buckets of a window.
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
pub(crate) struct Buckets {
    start: Time,
    current: Count,
    previous: Count,
}

impl Buckets {
    /// As it is written.
    pub(crate) fn of(window: &Window) -> Self {
        Self {
            start: Time(window.start_ms),
            current: Count(window.current),
            previous: Count(window.previous),
        }
    }

    /// Buckets begin at multiples of their length (LIMIT-1); a start written by hand is moved to
    /// the one before it.
    pub(crate) fn window(self, span: impl Length) -> Window {
        Window {
            start_ms: self.start.0 - self.start.0 % span.ms(),
            current: self.current.0,
            previous: self.previous.0,
        }
    }
}
