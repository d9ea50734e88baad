//! The file that a write displaced: somebody may still save into it.

use std::io;
use std::time::{Duration, Instant};

use super::disk::{Common, DiskFile};
use super::document::Document;
use super::stat;
use super::text;
use super::watch::{POLL, SETTLE, SETTLE_BAD, TICK};

impl<D: Document> DiskFile<D> {
    /// An editor may have opened the old file before it was replaced, and written to it since: that
    /// edit is not in the new file. It is taken in as what it is, an edit of an older copy.
    pub(super) fn check_displaced(&mut self, common: &Common, now: Instant) -> Duration {
        let Some(displaced) = &mut self.displaced else {
            return POLL;
        };
        let Ok(stat) = stat::stat_of(&displaced.file) else {
            self.displaced = None;
            return POLL;
        };
        if stat::unchanged(&displaced.file, &displaced.stat).unwrap_or(true) {
            if displaced.until <= now {
                self.displaced = None;
                return POLL;
            }
            return SETTLE;
        }
        let still = displaced.still.of(Some(stat), now);
        if still < SETTLE || self.edits.is_full() {
            return TICK;
        }
        let content = stat::content(&mut displaced.file).and_then(|(bytes, _)| {
            text::parse::<D>(&bytes).map_err(|fault| io::Error::other(fault.to_string()))
        });
        match content {
            Ok(content) => {
                let read = content.written.unwrap_or(displaced.written);
                self.take(common, content.entries, Some(read), Some(stat.uid));
                self.clean = false;
            }
            Err(_) if still < SETTLE_BAD => return TICK,
            Err(error) => tracing::error!(
                file = D::FILE,
                "an edit that was saved while the file was written is not taken: {error}"
            ),
        }
        self.displaced = None;
        TICK
    }
}
