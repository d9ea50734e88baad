//! What lies at the name of a state file, and whether it may be believed. Pure: it is told what was
//! seen, and when.

use std::time::{Duration, Instant};

use super::stat::{Seen, Stat};
use super::watch::{SETTLE_ASIDE, SETTLE_BAD, Stillness};

/// What is known of the file on disk.
pub(super) struct OnDisk {
    /// As it was last read or written; none where there is no file.
    seen: Option<Seen>,
    form: Form,
    /// The file as it stands was reported as bad.
    bad: Option<Seen>,
    still: Stillness,
}

/// Whether the file is as a write of what was agreed on would leave it. If not, the next document
/// is written though no entry changed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// It was not compared yet: a hand may have left out what was completed, or an older version
    /// has written it.
    Unknown,
    AsWritten,
    Other,
}

/// What a look at the file says.
pub(super) enum Sight {
    /// It is the one that was last read or written.
    Known,
    /// There is none, for so long.
    Gone(Duration),
    /// It is no regular file, and has been for so long.
    NoFile(Duration),
    /// It was reported as bad, and stands as it was then. `settled` once it may be set aside.
    Bad { seen: Seen, settled: bool },
    /// It is neither, and has looked like this for so long.
    Changed(Stat, Duration),
}

impl OnDisk {
    /// A file as a start found it.
    pub(super) fn found(seen: Option<Seen>) -> Self {
        Self {
            seen,
            form: Form::Unknown,
            bad: None,
            still: Stillness::default(),
        }
    }

    /// Compares the file with what is known of it.
    pub(super) fn look(&mut self, stat: Option<Stat>, now: Instant) -> Sight {
        if self.seen.map_or(stat.is_none(), |seen| seen.stands(stat)) {
            self.still.settle();
            self.bad = None;
            return Sight::Known;
        }
        let still = self.still.of(stat, now);
        match (stat, self.bad) {
            (None, _) => Sight::Gone(still),
            (Some(stat), _) if !stat.is_file => Sight::NoFile(still),
            (Some(stat), Some(seen)) if seen.stat == stat => {
                let settled = still >= SETTLE_ASIDE;
                Sight::Bad { seen, settled }
            }
            (Some(stat), _) => Sight::Changed(stat, still),
        }
    }

    /// The file as it was last read or written.
    pub(super) const fn seen(&self) -> Option<&Seen> {
        self.seen.as_ref()
    }

    /// Whether the next look has to be soon, as a change may look like none.
    pub(super) fn is_racy(&self) -> bool {
        self.seen.is_some_and(|seen| seen.racy)
    }

    pub(super) const fn form(&self) -> Form {
        self.form
    }

    pub(super) const fn set_form(&mut self, form: Form) {
        self.form = form;
    }

    /// It was read, and holds the bytes that are known.
    pub(super) fn is_unchanged(&mut self, seen: Seen) -> bool {
        let is_same = self.seen.is_some_and(|known| known.hash == seen.hash);
        if is_same {
            self.seen = Some(seen);
            self.still.settle();
        }
        is_same
    }

    /// It does not fit. Whether it lies still enough to say so, and to be set aside.
    pub(super) fn refuse(&mut self, seen: Seen, still: Duration) -> Option<bool> {
        if still < SETTLE_BAD {
            return None;
        }
        self.bad = Some(seen);
        Some(still >= SETTLE_ASIDE)
    }

    /// This lies there now: it was written, or is an edit that was taken in.
    pub(super) fn stands(&mut self, seen: Option<Seen>, form: Form) {
        *self = Self {
            form,
            ..Self::found(seen)
        };
    }

    /// Nothing lies there any more, and it is to be written again.
    pub(super) fn lose(&mut self) {
        self.stands(None, Form::Other);
    }
}
