//! What every answer of the engine shows as well: that the engine works, and its time.

use weir_shared::clock::Now;

use super::part::Fleet;
use super::standing::Work;
use super::words::Said;

/// The resolution of the last answer's time in fleet.json.
const CONTACT_MS: u64 = 3_600_000;

impl Fleet {
    /// Notes which kinds of work this answer proves. Batches sent before a beat are answered before
    /// it, so a beat's answer with no batch under way shows that none is refused.
    pub(super) fn note_work(&mut self, said: &Said, now: Now) {
        let reading = self.reading;
        let is_read = |of: u64| (of == reading).then_some(Work::Read);
        let done = match said {
            Said::Chunk { reading, .. }
            | Said::SnapshotRead { reading, .. }
            | Said::Read { reading, .. }
            | Said::AtEnd { reading } => [is_read(*reading), None],
            Said::Appended { seq, last } => [(seq == last).then_some(Work::Append), None],
            Said::Beaten { .. } => {
                let takes_all = !self.core.is_under_way();
                [Some(Work::Beat), takes_all.then_some(Work::Append)]
            }
            Said::Open
            | Said::Welcome { .. }
            | Said::Claimed { .. }
            | Said::Policy(_)
            | Said::Away(_) => return,
        };
        for work in done.into_iter().flatten() {
            // Asks for the other instances again.
            self.hurries |= self.standing.has_done(work, now);
        }
    }

    /// Notes that the engine answers and works. fleet.json has the time to the hour.
    pub(super) fn note_contact(&mut self, time_ms: u64) {
        if !self.standing.works() {
            return;
        }
        self.core.note_contact(time_ms);
        let contact_ms = self.core.contact_ms().unwrap_or_default();
        if is_news(contact_ms, self.kept_contact_ms) {
            self.kept_contact_ms = contact_ms;
            self.core.note_change();
        }
    }

    /// How far this clock is ahead of the time by which bans are written.
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

/// Whether fleet.json needs a new time of the last answer.
fn is_news(contact_ms: u64, kept_ms: u64) -> bool {
    contact_ms.saturating_sub(kept_ms) >= CONTACT_MS
}

#[cfg(test)]
mod tests {
    use super::*;

    /// FLEET-17: fleet.json says to the hour when the engine last answered.
    #[test]
    fn a_contact_is_kept_to_the_hour() {
        const HOUR: u64 = 60 * 60 * 1000;
        let kept_ms = 1_795_276_800_000;
        for (contact_ms, news) in [
            (kept_ms + HOUR - 1, false),
            (kept_ms + HOUR, true),
            (kept_ms - HOUR, false),
        ] {
            assert_eq!(is_news(contact_ms, kept_ms), news, "{contact_ms}");
        }
    }
}
