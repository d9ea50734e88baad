//! The thread's state of a decision stream of CrowdSec: when the LAPI is asked, and what follows
//! from an answer (FEED-7).

use std::path::Path;
use std::sync::Arc;

use http::{HeaderValue, StatusCode};
use weir_shared::rules::{Feed, MAX_NETBLOCKS};
use weir_shared::units::Time;

use super::copy::{Copies, Head};
use super::decisions::{Answer, Decisions, Listed, parse};
use super::fetch::Failure;
use super::kept::{Offered, Outside, tell_left_out};
use super::report::{Outcome, Report};
use super::wanted::{CrowdSec, Wanted};
use crate::guarded;

/// How often the LAPI is asked for changes, and the least time between two versions that differ by
/// ended decisions.
const EVERY_MS: u64 = 10_000;
/// The longest pause after a failure.
const MAX_PAUSE_MS: u64 = 60_000;
/// The pause after an answer that refuses the key, or that cannot be used.
const REFUSED_PAUSE_MS: u64 = 300_000;
/// An alert is raised after so long without an answer.
const PATIENCE_MS: u64 = 600_000;
/// The least time between two writes of the copy, in milliseconds for each decision: some 30 KB a
/// second. A small copy is written at every answer that changes decisions. At a stop it is written
/// in any case.
const COPY_MS: u64 = 3;
/// The longest time between two such writes.
const MAX_COPY_MS: u64 = 300_000;
/// The longest key.
const MAX_KEY_BYTES: u64 = 4096;

/// Reads the key file into a header value. The error is a sentence, and quotes nothing of the key.
pub(crate) fn key(path: &Path) -> Result<HeaderValue, String> {
    let place = path.display();
    let bytes = guarded::read(path, MAX_KEY_BYTES)
        .map_err(|error| format!("the key file {place} cannot be read ({error})"))?;
    let text = bytes.trim_ascii();
    if text.is_empty() || !text.iter().all(u8::is_ascii_graphic) {
        return Err(format!(
            "the key file {place} has no key: expected one line of ASCII characters without spaces"
        ));
    }
    let mut key = HeaderValue::from_bytes(text)
        .map_err(|_| format!("the key file {place} has no key that can be sent"))?;
    key.set_sensitive(true);
    Ok(key)
}

/// The state of one stream.
pub(super) struct Stream {
    pub(super) wanted: Wanted,
    pub(super) crowdsec: CrowdSec,
    report: Report,
    held: Decisions,
    /// When the next decision ends.
    ends_ms: Option<u64>,
    /// True if the last answer was applied: the next one has only the changes since.
    begun: bool,
    next_ms: u64,
    /// The pause after the last failure; 0 after an answer.
    pause_ms: u64,
    /// Since when no answer came.
    failing_since_ms: Option<u64>,
    /// An alert about missing or unusable answers was raised.
    alerted: bool,
    /// The subjects of the version in force; none if a new version must be made.
    offered: Option<Listed>,
    offered_ms: u64,
    /// When the copy was last written.
    copied_ms: u64,
    changed: bool,
}

impl Stream {
    /// The state of a new stream, with the version in force.
    pub(super) fn new(
        (wanted, crowdsec): (Wanted, CrowdSec),
        feed: Arc<Feed>,
        copies: &Copies,
        outside: &dyn Outside,
    ) -> Self {
        let now_ms = outside.now_ms();
        let (head, held) = copies.read_decisions(&wanted).unzip();
        let held = held.unwrap_or_default();
        // The old process of a hand-over has written the copy after this process read the rules.
        let is_newer = head.is_some_and(|head| feed.taken_ms() < Some(head.taken.0));
        let mut stream = Self {
            report: Report {
                used: wanted.used,
                feed,
                checked: None,
                outcome: None,
                error: None,
                next: Time(now_ms),
                fetches: [0; Outcome::ALL.len()],
            },
            wanted,
            crowdsec,
            ends_ms: held.next_end_ms(),
            held,
            begun: false,
            next_ms: now_ms,
            pause_ms: 0,
            failing_since_ms: None,
            alerted: false,
            offered: None,
            offered_ms: 0,
            copied_ms: 0,
            changed: false,
        };
        if is_newer {
            stream.held.end(now_ms);
            stream.offer_again(outside);
        }
        stream
    }

    /// Whether this is the same stream, whatever its key.
    pub(super) fn is(&self, wanted: &Wanted) -> bool {
        let other = wanted.crowdsec.as_ref().map(|crowdsec| crowdsec.other);
        (&self.wanted.name, &self.wanted.url) == (&wanted.name, &wanted.url)
            && other == Some(self.crowdsec.other)
    }

    /// Applies an edit, such as another key.
    pub(super) fn want(
        &mut self,
        (wanted, crowdsec): (Wanted, CrowdSec),
        feed: Arc<Feed>,
        outside: &dyn Outside,
    ) {
        if !Arc::ptr_eq(&feed, &self.report.feed) {
            self.offered = None;
        }
        self.report.feed = feed;
        (self.wanted, self.crowdsec) = (wanted, crowdsec);
        self.event(outside);
    }

    /// After a reload or an edit: the LAPI is asked now.
    pub(super) fn event(&mut self, outside: &dyn Outside) {
        self.next_in(0, outside);
    }

    /// An operator asked for it: the LAPI is asked now, for everything.
    pub(super) fn ask(&mut self, outside: &dyn Outside) {
        self.begun = false;
        self.next_in(0, outside);
    }

    /// Asks for everything next time, because changes went to another process or were lost.
    pub(super) const fn begin_anew(&mut self) {
        self.begun = false;
    }

    /// Chooses again which entries to leave out, after a change of settings.
    pub(super) fn guard_anew(&mut self, outside: &dyn Outside) {
        if self.offered.take().is_some() {
            self.offer_again(outside);
        }
    }

    /// Offers the current decisions to the rules again.
    fn offer_again(&mut self, outside: &dyn Outside) {
        if let Err(why) = self.offer(outside) {
            self.offered = None;
            tracing::warn!(feed = self.wanted.name, "the feed stays as it is: {why}");
        }
    }

    fn next_in(&mut self, pause_ms: u64, outside: &dyn Outside) {
        self.next_ms = outside.now_ms().saturating_add(pause_ms);
        self.report.next = Time(self.next_ms);
    }

    /// How long until the LAPI is asked. A clock that was set back does not make this longer.
    pub(super) fn fetch_in_ms(&self, now_ms: u64) -> u64 {
        match self.next_ms.saturating_sub(now_ms) {
            wait_ms if wait_ms > REFUSED_PAUSE_MS => 0,
            wait_ms => wait_ms,
        }
    }

    /// How long until the next action.
    pub(super) fn wait_ms(&self, now_ms: u64) -> u64 {
        self.ends_in_ms(now_ms).min(self.fetch_in_ms(now_ms))
    }

    /// How long until ended decisions must be removed.
    pub(super) fn ends_in_ms(&self, now_ms: u64) -> u64 {
        self.ends_ms.map_or(u64::MAX, |ends_ms| {
            ends_ms
                .max(self.offered_ms.saturating_add(EVERY_MS))
                .saturating_sub(now_ms)
        })
    }

    /// When the LAPI is asked next.
    pub(super) const fn next(&self) -> Time {
        self.report.next
    }

    /// Whether the next request asks for everything.
    pub(super) const fn is_start(&self) -> bool {
        !self.begun
    }

    pub(super) fn report(&self) -> Report {
        self.report.clone()
    }

    /// Removes ended decisions, whether the LAPI answers or not.
    pub(super) fn end_due(&mut self, outside: &dyn Outside) {
        let now_ms = outside.now_ms();
        let is_over = self.ends_ms.is_some_and(|ends_ms| ends_ms <= now_ms);
        if !is_over || now_ms < self.offered_ms.saturating_add(EVERY_MS) {
            return;
        }
        self.held.end(now_ms);
        self.changed = true;
        self.offer_again(outside);
    }

    /// Handles the result of a request to the LAPI. `start` means that it asked for everything.
    pub(super) fn settle(
        &mut self,
        fetched: Result<Vec<u8>, Failure>,
        is_start: bool,
        copies: &Copies,
        outside: &dyn Outside,
    ) {
        self.report.checked = Some(Time(outside.now_ms()));
        let answer = fetched
            .map_err(|failure| {
                let refused = matches!(
                    failure,
                    Failure::Status {
                        status: StatusCode::FORBIDDEN | StatusCode::UNAUTHORIZED,
                        ..
                    }
                );
                (failure.to_string(), refused, failure.pause())
            })
            .and_then(|bytes| parse(&bytes).map_err(|why| (why, false, None)));
        let (outcome, error) = match answer {
            Ok(answer) => self.take_in(&answer, is_start, copies, outside),
            Err((why, true, _)) => {
                let why = format!("{why}: the key of {} is not accepted", self.key_place());
                self.refuse(Outcome::Failed, why, outside)
            }
            Err((why, false, asked)) => {
                let asked_ms = asked.map_or(0, |asked| {
                    u64::try_from(asked.as_millis()).unwrap_or(u64::MAX)
                });
                self.fail(why, asked_ms.min(REFUSED_PAUSE_MS), outside)
            }
        };
        self.count(outcome, error);
    }

    /// Handles a request that could not be sent.
    pub(super) fn not_asked(&mut self, why: String, outside: &dyn Outside) {
        self.report.checked = Some(Time(outside.now_ms()));
        let (outcome, error) = self.refuse(Outcome::Failed, why, outside);
        self.count(outcome, error);
    }

    fn count(&mut self, outcome: Outcome, error: Option<String>) {
        self.report.outcome = Some(outcome);
        self.report.error = error;
        if let Some(count) = self.report.fetches.get_mut(outcome as usize) {
            *count += 1;
        }
    }

    fn key_place(&self) -> String {
        self.crowdsec.key_file.display().to_string()
    }

    // long: one answer, from its text to its report
    fn take_in(
        &mut self,
        answer: &Answer,
        is_start: bool,
        copies: &Copies,
        outside: &dyn Outside,
    ) -> (Outcome, Option<String>) {
        let now_ms = outside.now_ms();
        if let Some(first) = &answer.first_skipped {
            tracing::warn!(
                feed = self.wanted.name,
                "decisions skipped, as their scope, value or duration is not known: {}; the first: {first}",
                answer.skipped
            );
        }
        let before = is_start.then(|| std::mem::take(&mut self.held));
        let undo = self.held.apply(answer, self.crowdsec.other, now_ms);
        let have_ended = self.ends_ms.is_some_and(|ends_ms| ends_ms <= now_ms);
        if have_ended {
            self.held.end(now_ms);
        }
        let is_same = match &before {
            Some(before) => self.held == *before,
            None => undo.is_empty() && !have_ended,
        };
        self.changed |= !is_same;
        let count = self.held.len();
        let taken = match count > MAX_NETBLOCKS {
            // The usual case, every ten seconds: nothing has changed.
            false if is_same && self.offered.is_some() => Ok(false),
            true => Err(format!(
                "it has {count} decisions, and {MAX_NETBLOCKS} are the most of all lists together"
            )),
            false => self.offer(outside),
        };
        let is_new = match taken {
            Ok(is_new) => is_new,
            Err(why) => {
                // Decisions in force can still be deleted.
                match before {
                    Some(before) => self.held = before,
                    None => self.held.undo(undo),
                }
                self.held.delete(answer);
                self.held.end(now_ms);
                let _ = self.offer(outside);
                return self.refuse(Outcome::Refused, why, outside);
            }
        };
        if self.failing_since_ms.take().is_some() {
            tracing::info!(feed = self.wanted.name, "the decision stream answers again");
        }
        self.begun |= is_start;
        (self.pause_ms, self.alerted) = (0, false);
        self.next_in(EVERY_MS, outside);
        self.report.feed.confirm(now_ms);
        let pause_ms = COPY_MS.saturating_mul(count as u64).min(MAX_COPY_MS);
        if is_start || now_ms >= self.copied_ms.saturating_add(pause_ms) {
            self.keep(copies, now_ms);
        }
        match is_new {
            true => (Outcome::Taken, None),
            false => (Outcome::Unchanged, None),
        }
    }

    /// Offers a version to the rules if the subjects have changed.
    fn offer(&mut self, outside: &dyn Outside) -> Result<bool, String> {
        let now_ms = outside.now_ms();
        self.ends_ms = self.held.next_end_ms();
        let listed = self.held.listed();
        if self.offered.as_ref() == Some(&listed) {
            return Ok(false);
        }
        self.offered_ms = now_ms;
        let name = &self.wanted.name;
        let confirmed_ms = self.report.feed.confirmed_ms().unwrap_or(now_ms);
        let (feed, left_out) = listed
            .clone()
            .feed(name, &outside.guard(), now_ms, confirmed_ms)?;
        let feed = Arc::new(feed);
        outside.offer(Offered {
            url: self.wanted.url.clone(),
            feed: Arc::clone(&feed),
        })?;
        let is_left_out = |listed: &Listed| {
            let is_there = |one| listed.netblocks.binary_search(one).is_ok();
            left_out.iter().all(is_there)
        };
        if !self.offered.as_ref().is_some_and(is_left_out) {
            tell_left_out(name, &left_out);
        }
        if self.offered.is_none() {
            tracing::info!(
                feed = name,
                "the decision stream is taken: {} entries",
                feed.entries()
            );
        }
        self.report.feed = feed;
        self.offered = Some(listed);
        Ok(true)
    }

    /// Writes the copy if decisions have changed since the last write.
    pub(super) fn keep(&mut self, copies: &Copies, now_ms: u64) {
        if !self.changed {
            return;
        }
        let head = Head {
            url: self.wanted.url.uri().to_string(),
            taken: Time(self.report.feed.taken_ms().unwrap_or(now_ms)),
            confirmed: Time(now_ms),
            etag: None,
            last_modified: None,
            digest: String::new(),
            entries: self.held.len(),
        };
        self.copied_ms = now_ms;
        match copies.write_decisions(&self.wanted.name, &head, &self.held) {
            Ok(()) => self.changed = false,
            Err(error) => tracing::warn!(
                feed = self.wanted.name,
                "the copy of the feed cannot be written: {error}; a start uses the one before"
            ),
        }
    }

    /// Handles a missing or partial answer. The LAPI does not repeat its changes, so the next
    /// request asks for everything.
    fn fail(
        &mut self,
        why: String,
        asked_ms: u64,
        outside: &dyn Outside,
    ) -> (Outcome, Option<String>) {
        let now_ms = outside.now_ms();
        self.begun = false;
        let is_first = self.failing_since_ms.is_none();
        let since_ms = *self.failing_since_ms.get_or_insert(now_ms);
        self.pause_ms = match self.pause_ms {
            0 => EVERY_MS,
            pause_ms => pause_ms.saturating_mul(2).min(MAX_PAUSE_MS),
        };
        self.next_in(self.pause_ms.max(asked_ms), outside);
        let name = &self.wanted.name;
        let told = format!(
            "the decision stream {name:?} of {} cannot be read: {why}; its {} entries hold until they end",
            self.wanted.url,
            self.report.feed.entries()
        );
        if is_first {
            tracing::warn!(feed = name, "{told}");
        }
        if !self.alerted && now_ms >= since_ms.saturating_add(PATIENCE_MS) {
            tracing::warn!(feed = name, "{told}; nothing came for 10 min");
            outside.alert(name, &told);
            self.alerted = true;
        }
        (Outcome::Failed, Some(why))
    }

    /// Handles an answer that asking again will not mend: an alert is raised at once.
    fn refuse(
        &mut self,
        outcome: Outcome,
        why: String,
        outside: &dyn Outside,
    ) -> (Outcome, Option<String>) {
        self.begun = false;
        self.failing_since_ms.get_or_insert(outside.now_ms());
        self.next_in(REFUSED_PAUSE_MS, outside);
        if !self.alerted {
            let name = &self.wanted.name;
            let told = format!(
                "the decision stream {name:?} is not taken: {why}; its {} entries hold until they end",
                self.report.feed.entries()
            );
            tracing::warn!(feed = name, "{told}");
            outside.alert(name, &told);
            self.alerted = true;
        }
        (outcome, Some(why))
    }
}

#[cfg(test)]
mod tests;
