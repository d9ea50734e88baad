//! The file that a write displaced: somebody may still save into it.

use std::fs::File;
use std::io;
use std::time::{Duration, Instant};

use weir_shared::units::Time;

use super::document::Document;
use super::stat::{self, Stat};
use super::text::{self, Content};
use super::watch::{LINGER, SETTLE, SETTLE_BAD, Stillness, TICK};

/// A file that was replaced, still open: an editor may have opened it before, and write to it
/// after.
pub(super) struct Displaced {
    file: File,
    stat: Stat,
    /// The moment that its content is of, for an edit that does not say.
    pub(super) written: Time,
    still: Stillness,
    until: Instant,
}

/// What a look at it says.
pub(super) enum Later<D: Document> {
    /// To look again after this time.
    Wait(Duration),
    /// Nobody saves into it any more.
    Over,
    /// What somebody saved into it, whole; and whose it is.
    Saved(Content<D>, u32),
    /// It does not fit, and lies still.
    Bad(io::Error),
}

impl Displaced {
    /// The file, which was of this moment; none where it cannot be looked at.
    pub(super) fn new(file: File, written: Time, now: Instant) -> Option<Self> {
        let stat = stat::stat_of(&file).ok()?;
        Some(Self {
            file,
            stat,
            written,
            still: Stillness::default(),
            until: now + LINGER,
        })
    }

    /// Looks at it. While the owner cannot be told, an edit waits in it.
    pub(super) fn look<D: Document>(&mut self, now: Instant, is_full: bool) -> Later<D> {
        let Ok(stat) = stat::stat_of(&self.file) else {
            return Later::Over;
        };
        if stat.same_content(&self.stat) {
            return if self.until <= now {
                Later::Over
            } else {
                Later::Wait(SETTLE)
            };
        }
        let still = self.still.of(Some(stat), now);
        if still < SETTLE || is_full {
            return Later::Wait(TICK);
        }
        let content = stat::content(&mut self.file).and_then(|(bytes, _)| {
            text::parse::<D>(&bytes).map_err(|fault| io::Error::other(fault.to_string()))
        });
        match content {
            Ok(content) => Later::Saved(content, stat.uid),
            Err(_) if still < SETTLE_BAD => Later::Wait(TICK),
            Err(error) => Later::Bad(error),
        }
    }
}
