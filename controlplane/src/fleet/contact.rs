//! What an answer of the engine says beside what it was asked for: that it is there, and its time.

use weir_shared::clock::Now;

use super::part::Fleet;

/// How exactly fleet.json says when the engine last answered.
const CONTACT_MS: u64 = 3_600_000;

impl Fleet {
    /// The engine has answered. fleet.json says so to the hour.
    pub(super) fn note_contact(&mut self, time_ms: u64) {
        self.core.note_contact(time_ms);
        let contact_ms = self.core.contact_ms().unwrap_or_default();
        if contact_ms.saturating_sub(self.kept_contact_ms) >= CONTACT_MS {
            self.kept_contact_ms = contact_ms;
            self.core.note_change();
        }
    }

    /// How far the own clock is ahead of that by which bans are written.
    pub(crate) fn ahead_ms(&self) -> i64 {
        self.clocks.applied_ms()
    }

    /// The time of the fleet: that of the engine.
    pub(super) fn fleet_ms(&self, now: Now) -> u64 {
        now.wall_ms.saturating_add_signed(-self.clock_ms)
    }

    pub(super) fn note_clock(&mut self, time_ms: u64, round_trip_ns: u64, now: Now) {
        self.round_trip_ns = round_trip_ns;
        let middle_ms = now.wall_ms.saturating_sub(round_trip_ns / 2_000_000);
        let ahead = i128::from(middle_ms) - i128::from(time_ms);
        self.clock_ms = i64::try_from(ahead).unwrap_or(0);
        self.clocks.note(self.clock_ms);
        if let Some(sharing) = &self.sharing {
            sharing.note_clock(self.clock_ms);
        }
    }
}
