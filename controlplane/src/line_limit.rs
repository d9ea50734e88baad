//! Sixty lines of one kind a minute, then one with the number of the rest: a storm of bans or
//! alerts must not become a storm of lines.

/// The most lines of one kind in a minute; the rest of that minute is one line with the number.
const LINES_A_MINUTE: u64 = 60;

/// Counts the lines of one kind.
#[derive(Default)]
pub(crate) struct LineLimit {
    /// Minutes since 1970.
    minute: u64,
    /// Lines of this minute, written or not.
    lines: u64,
}

impl LineLimit {
    /// Whether one more line may be written now. Call [`LineLimit::turn`] first.
    pub(crate) fn allow(&mut self) -> bool {
        self.lines += 1;
        self.lines <= LINES_A_MINUTE
    }

    /// Begins a new minute when it is time, and returns how many lines the last one held back.
    pub(crate) fn turn(&mut self, now_ms: u64) -> Option<u64> {
        let minute = now_ms / 60_000;
        if minute == self.minute {
            return None;
        }
        let held_back = self.take_rest();
        *self = Self { minute, lines: 0 };
        held_back
    }

    /// How many lines this minute has held back so far, without waiting for its end.
    pub(crate) fn take_rest(&mut self) -> Option<u64> {
        let held_back = self.lines.checked_sub(LINES_A_MINUTE)?;
        self.lines = LINES_A_MINUTE;
        (held_back > 0).then_some(held_back)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ALERT-4: sixty lines a minute, then one with the number of the rest.
    #[test]
    fn a_storm_becomes_sixty_lines_and_a_number() {
        let mut lines = LineLimit::default();
        assert_eq!(lines.turn(60_000), None);
        assert_eq!((0..1000).filter(|_| lines.allow()).count(), 60);
        assert_eq!(lines.turn(119_999), None);
        assert_eq!(lines.turn(120_000), Some(940));
        assert!(lines.allow());
        assert_eq!(lines.turn(180_000), None);
        // At a stop the minute has no end; if the stop is given up, it has one.
        assert_eq!((0..70).filter(|_| lines.allow()).count(), 60);
        assert_eq!((lines.take_rest(), lines.take_rest()), (Some(10), None));
        assert!(!lines.allow());
        assert_eq!(lines.turn(240_000), Some(1));
    }
}
