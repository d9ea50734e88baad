//! Which changes of the bans are in neither bans.json nor its journal, and where they go (STATE-1,
//! STATE-10). Pure: no files, and time is an argument.
//!
//! A change is written into the journal at once where somebody waits for it, otherwise within
//! `WAF_STATE_WRITE_DELAY`. The document follows, after a pause that grows with it. An edit closes
//! the journal until a document with it is on disk: a line that came behind an edit must not be
//! read as one before it.

use std::collections::BTreeMap;
use std::sync::Arc;

use weir_shared::ban::Ban;

use super::opening::JournalStart;
use crate::bans::document::BanKey;
use crate::bans::journal::BanLine;
use crate::bans::ledger::changes::LedgerChange;
use crate::state::Stand;

/// Between two documents of so many bans at most is one write delay: they are some 700 kB.
const FEW: usize = 1_000;
/// Between two larger ones, in write delays: five seconds with the default.
const DOCUMENT_DELAYS: u64 = 5;
/// With more bans than this the pause grows with them: what documents write in a second is bounded.
const MANY: usize = 10_000;
/// The most changes of one line. More of them, or a quarter of all bans, are cheaper as a document.
const MAX_LINE: usize = 4096;
/// So few are always a line.
const SMALL_LINE: usize = 64;

/// What is to be written, and where.
pub(super) struct Unsaved {
    /// `WAF_STATE_WRITE_DELAY`
    delay_ns: u64,
    /// What changed since the last line and the last document. At most the bans that are held and
    /// those that were forgotten since.
    changes: BTreeMap<BanKey, Option<Arc<Ban>>>,
    /// When they are due in the journal.
    line_due_ns: Option<u64>,
    /// When a document is due, but for the pause; none while the last one holds everything.
    document_due_ns: Option<u64>,
    /// When the last one was sent.
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

    /// The bans changed.
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

    /// Lines were lost, or may lack something: the next document holds everything, and no line is
    /// written until it is on disk.
    pub(super) fn close(&mut self, now_ns: u64) {
        self.closed = Some(self.documents + 1);
        self.document_due_ns = Some(now_ns);
    }

    /// The same, unless it is closed already.
    pub(super) fn close_once(&mut self, now_ns: u64) {
        if self.closed.is_none() {
            self.close(now_ns);
        }
    }

    /// The document that was just sent holds an edit.
    pub(super) fn close_behind(&mut self) {
        self.closed = self.closed.max(Some(self.documents));
    }

    /// Whether a document is due, where so many bans are held.
    pub(super) fn document_is_due(&self, held: usize, now_ns: u64) -> bool {
        // What opens the journal again does not wait for its turn.
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

    /// The document that holds what was noted so far, and the last one that is on disk.
    pub(super) fn documents(&self) -> (u64, u64) {
        let is_behind = self.document_due_ns.is_some() || !self.changes.is_empty();
        (self.documents + u64::from(is_behind), self.durable)
    }

    /// Whether changes are due in the journal.
    pub(super) fn line_is_due(&self, now_ns: u64) -> bool {
        self.closed.is_none() && self.line_due_ns.is_some_and(|due_ns| due_ns <= now_ns)
    }

    /// A line with all changes; none where they go into a document, as so many of `held` bans do.
    pub(super) fn take_line(&mut self, held: usize) -> Option<BanLine> {
        let count = self.changes.len();
        let is_large = count > MAX_LINE || (count > SMALL_LINE && count > held / 4);
        if self.closed.is_some() || is_large {
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

    /// A document with everything is sent: what it holds besides.
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

    /// The newest document on disk. Returns up to which line the journal may be emptied, where that
    /// is news.
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
