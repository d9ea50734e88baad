//! Tracks changes of bans that are neither in bans.json nor in its journal, and decides where they
//! are written (STATE-1, STATE-10). Pure: no files, and time is an argument.
//!
//! A change is written to the journal at once if an answer waits for it, otherwise within
//! `WAF_STATE_WRITE_DELAY`. The document follows, after a pause that grows with its size. An edit
//! closes the journal until a document with the edit is on disk: a line after an edit must not be
//! read as one before it.

use std::collections::BTreeMap;
use std::sync::Arc;

use weir_shared::ban::Ban;

use super::opening::JournalStart;
use crate::bans::document::BanKey;
use crate::bans::journal::BanLine;
use crate::bans::ledger::changes::LedgerChange;
use crate::state::Stand;
use crate::state::journal::LAST_NUMBER;

/// With at most so many bans, the pause between two documents is one write delay: they have some
/// 700 kB.
const FEW: usize = 1_000;
/// The pause between two larger documents, in write delays: five seconds with the default.
const DOCUMENT_DELAYS: u64 = 5;
/// With more bans than this the pause grows with their number, so that the bytes written per second
/// are bounded.
const MANY: usize = 10_000;
/// The most changes of one line. More of them, or a quarter of all bans, are cheaper as a document.
const MAX_LINE: usize = 4096;
/// So few changes are always written as a line.
const SMALL_LINE: usize = 64;
/// The last line that is written. Only a file that somebody else wrote has such a number: documents
/// hold every change from then on.
const LAST_LINE: u64 = LAST_NUMBER / 2;

/// Changes that must be written, and where.
pub(super) struct Unsaved {
    /// `WAF_STATE_WRITE_DELAY`
    delay_ns: u64,
    /// The changes since the last line and the last document. At most the held bans, and those
    /// removed since.
    changes: BTreeMap<BanKey, Option<Arc<Ban>>>,
    /// When these changes are due in the journal.
    line_due_ns: Option<u64>,
    /// When a document is due, apart from the pause; none while the last one has everything.
    document_due_ns: Option<u64>,
    /// When the last document was sent.
    sent_ns: Option<u64>,
    /// The last line that was sent.
    number: u64,
    /// The last document that was sent.
    documents: u64,
    /// The last document that is on disk.
    durable: u64,
    /// The document that must be on disk before a line is written again.
    closed: Option<u64>,
}

impl Unsaved {
    pub(super) fn new(start: JournalStart, delay_ns: u64, now_ns: u64) -> Self {
        Self {
            delay_ns,
            changes: BTreeMap::new(),
            line_due_ns: None,
            document_due_ns: start.is_stale.then_some(now_ns),
            sent_ns: None,
            number: start.number,
            documents: 0,
            durable: 0,
            closed: (!start.is_open).then_some(1),
        }
    }

    pub(super) fn set_delay(&mut self, delay_ns: u64) {
        self.delay_ns = delay_ns;
    }

    /// Notes changes of bans.
    pub(super) fn note(&mut self, changes: Vec<LedgerChange>, now_ns: u64) {
        if changes.is_empty() {
            return;
        }
        self.changes
            .extend(changes.into_iter().map(|change| (change.key, change.ban)));
        let due_ns = now_ns.saturating_add(self.delay_ns);
        self.line_due_ns.get_or_insert(due_ns);
        self.document_due_ns.get_or_insert(due_ns);
    }

    /// Closes the journal, because lines were lost or may be incomplete: no line is written until
    /// the next document, which has everything, is on disk.
    pub(super) fn close(&mut self, now_ns: u64) {
        self.closed = Some(self.documents + 1);
        self.document_due_ns = Some(now_ns);
    }

    /// Closes the journal, unless it is closed already.
    pub(super) fn close_once(&mut self, now_ns: u64) {
        if self.closed.is_none() {
            self.close(now_ns);
        }
    }

    /// Closes the journal until the document that was just sent, which has an edit, is on disk.
    pub(super) fn close_behind(&mut self) {
        self.closed = self.closed.max(Some(self.documents));
    }

    /// Whether a document is due; `held` is the number of bans.
    pub(super) fn document_is_due(&self, held: usize, now_ns: u64) -> bool {
        // A document that opens the journal again does not wait for the pause.
        let is_urgent = self.closed.is_some_and(|closed| closed > self.documents);
        let crowd = u64::try_from(held.div_ceil(MANY).max(1)).unwrap_or(u64::MAX);
        let delays = match held {
            0..=FEW => 1,
            _ => DOCUMENT_DELAYS.saturating_mul(crowd),
        };
        let pause_ns = self.delay_ns.saturating_mul(delays);
        let not_before = match self.sent_ns {
            Some(sent_ns) if !is_urgent => sent_ns.saturating_add(pause_ns),
            Some(_) | None => 0,
        };
        self.document_due_ns
            .is_some_and(|due_ns| due_ns.max(not_before) <= now_ns)
    }

    /// The number of the document that will have all changes so far, and that of the last one on
    /// disk.
    pub(super) fn documents(&self) -> (u64, u64) {
        let is_behind = self.document_due_ns.is_some() || !self.changes.is_empty();
        (self.documents + u64::from(is_behind), self.durable)
    }

    /// Whether changes are due in the journal.
    pub(super) fn line_is_due(&self, now_ns: u64) -> bool {
        self.closed.is_none() && self.line_due_ns.is_some_and(|due_ns| due_ns <= now_ns)
    }

    /// A line with all changes; none if they are so many of the `held` bans that a document is
    /// cheaper, or if no number is left.
    pub(super) fn take_line(&mut self, held: usize) -> Option<BanLine> {
        let count = self.changes.len();
        let is_large = count > MAX_LINE || (count > SMALL_LINE && count > held / 4);
        if self.closed.is_some() || is_large || self.number >= LAST_LINE {
            return None;
        }
        self.number += 1;
        self.line_due_ns = None;
        let (mut put, mut remove) = (Vec::new(), Vec::new());
        for (key, ban) in std::mem::take(&mut self.changes) {
            match ban {
                Some(ban) => put.push(ban),
                None => remove.push(key),
            }
        }
        Some(BanLine {
            number: self.number,
            put,
            remove,
        })
    }

    /// Notes that a document with everything is sent; returns the journal position it contains.
    pub(super) fn send_document(&mut self, now_ns: u64) -> Stand {
        self.changes.clear();
        self.line_due_ns = None;
        self.document_due_ns = None;
        self.sent_ns = Some(now_ns);
        self.documents += 1;
        Stand {
            document: self.documents,
            journal: self.number,
        }
    }

    /// Takes the newest document on disk. Returns the line up to which the journal may be emptied,
    /// if that is new.
    pub(super) fn is_durable(&mut self, stand: Stand) -> Option<u64> {
        if stand.document <= self.durable {
            return None;
        }
        self.durable = stand.document;
        if self.closed.is_some_and(|closed| closed <= stand.document) {
            self.closed = None;
        }
        Some(stand.journal)
    }
}

#[cfg(test)]
mod tests;
