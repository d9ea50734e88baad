//! A journal without a disk: the test plays the thread.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde::de::DeserializeOwned;

use super::file::{self, Found};
use super::{Journal, Line, Saved, Shared};
use crate::faults::Faults;

/// The thread's side.
pub(crate) struct TestJournal<E, K>(Arc<Shared<E, K>>);

impl<E, K> TestJournal<E, K> {
    pub(crate) fn pair() -> (Self, Journal<E, K>) {
        let (journal, _) = Journal::without_thread(Faults::default());
        (Self(Arc::clone(&journal.shared)), journal)
    }

    /// The lines that wait, with those who wait for them.
    pub(crate) fn take(&self) -> Vec<(Line<E, K>, Vec<Saved>)> {
        let mut queue = self.0.queue();
        queue.waiting = 0;
        std::mem::take(&mut queue.lines)
    }

    /// Up to which line the file may be emptied.
    pub(crate) fn held(&self) -> Option<u64> {
        self.0.queue().held
    }

    /// Lines were lost.
    pub(crate) fn lose(&self) {
        self.0.has_lost.store(true, Ordering::Release);
    }

    /// The file has so many bytes.
    pub(crate) fn grow(&self, bytes: u64) {
        self.0.bytes.store(bytes, Ordering::Relaxed);
    }
}

/// The lines after a number, in these bytes.
pub(crate) fn lines<E: DeserializeOwned, K: DeserializeOwned>(
    bytes: &[u8],
    after: u64,
) -> Found<E, K> {
    file::lines(bytes, after).0
}
