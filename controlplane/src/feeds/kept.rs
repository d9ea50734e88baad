//! The thread's state of one feed, and what follows from a fetch (FEED-3, FEED-4, FEED-5).

use std::sync::Arc;

use weir_shared::netblock::Netblock;
use weir_shared::rules::Feed;
use weir_shared::units::Time;

use super::copy::{Copies, Copy, Head, digest};
use super::due::{Due, Random};
use super::fetch::{Failure, Fetched, Validators};
use super::judge::{Guard, bounded, judge, read};
use super::report::{NotAccepted, Outcome, Report};
use super::wanted::{FeedUrl, Wanted};
use crate::netblock_list::ListText;

/// How often an alert repeats that a version is still refused.
const DAY_MS: u64 = 86_400_000;
/// The most left-out entries that are named.
const MAX_NAMED: usize = 5;

/// A version that is offered to the rules.
pub(crate) struct Offered {
    /// The feed's URL: the name may belong to another feed by now.
    pub(crate) url: FeedUrl,
    pub(crate) feed: Arc<Feed>,
}

/// The connection of feeds to the rest of the service.
pub(super) trait Outside {
    /// The current time in milliseconds since 1970.
    fn now_ms(&self) -> u64;

    /// A random number from 0 to `most`, inclusive.
    fn random(&self, most: u64) -> u64;

    /// Offers a version to the rules. The error is the end of a sentence.
    fn offer(&self, offered: Offered) -> Result<(), String>;

    /// Raises `feed_error`.
    fn alert(&self, feed: &str, error: &str);

    /// The netblocks that no entry may cover now.
    fn guard(&self) -> Guard;
}

/// The state of one feed.
pub(super) struct Kept {
    pub(super) wanted: Wanted,
    report: Report,
    due: Due,
    /// The first line of the copy, if the copy has the version in force.
    head: Option<Head>,
    /// When the last alert about a refused version was raised; none while no version is refused.
    alerted_ms: Option<u64>,
    /// True if the refused version can be accepted.
    is_on_offer: bool,
    /// The digest of the version whose malformed lines were reported.
    told_skipped: Option<String>,
}

impl Kept {
    /// The state of a new feed, with the version in force.
    pub(super) fn new(
        wanted: Wanted,
        feed: Arc<Feed>,
        copies: &Copies,
        outside: &dyn Outside,
    ) -> Self {
        let now_ms = outside.now_ms();
        let feed = newer(&wanted, &feed, copies, outside).unwrap_or(feed);
        let head = copies.head(&wanted);
        let head = head.filter(|head| feed.taken_ms() == Some(head.taken.0));
        let confirmed_ms = feed.confirmed_ms();
        let due = Due::begin(wanted.every.0, confirmed_ms, now_ms, &mut |most| {
            outside.random(most)
        });
        let refused = copies.refused(&wanted);
        Self {
            report: Report {
                used: wanted.used,
                feed,
                checked: None,
                outcome: refused.as_ref().map(|_| Outcome::Refused),
                error: None,
                next: Time(due.next_ms()),
                fetches: [0; Outcome::ALL.len()],
            },
            is_on_offer: refused.is_some(),
            alerted_ms: refused.map(|copy| copy.head.confirmed.0.min(now_ms)),
            told_skipped: None,
            wanted,
            due,
            head,
        }
    }

    /// Whether this is the same feed by name and URL, regardless of `every` and of its use.
    pub(super) fn is(&self, wanted: &Wanted) -> bool {
        (&self.wanted.name, &self.wanted.url) == (&wanted.name, &wanted.url)
    }

    /// Applies an edit: another `every` or another use.
    pub(super) fn want(&mut self, wanted: Wanted, feed: Arc<Feed>, outside: &dyn Outside) {
        let now_ms = outside.now_ms();
        if wanted.every != self.wanted.every {
            let random: Random<'_> = &mut |most| outside.random(most);
            self.due.set_every(wanted.every.0, now_ms, random);
        }
        self.head = (self.head.take()).filter(|head| feed.taken_ms() == Some(head.taken.0));
        self.report.used = wanted.used;
        self.report.feed = feed;
        self.wanted = wanted;
        self.event(outside);
    }

    /// Notes a start, a reload or an edit.
    pub(super) fn event(&mut self, outside: &dyn Outside) {
        self.due.event(self.wanted.every.0, outside.now_ms());
        self.report.next = Time(self.due.next_ms());
    }

    /// Makes the feed due now, because an operator asked for it.
    pub(super) fn ask(&mut self, outside: &dyn Outside) {
        self.due.ask(outside.now_ms());
        self.report.next = Time(self.due.next_ms());
    }

    /// How long until the next action: a fetch, or the next alert about a refused version.
    pub(super) fn wait_ms(&self, now_ms: u64) -> u64 {
        self.tell_in_ms(now_ms).min(self.fetch_in_ms(now_ms))
    }

    /// How long until the next alert about a refused version.
    pub(super) fn tell_in_ms(&self, now_ms: u64) -> u64 {
        self.alerted_ms.map_or(u64::MAX, |at| {
            at.saturating_add(DAY_MS).saturating_sub(now_ms)
        })
    }

    /// When the feed is fetched next.
    pub(super) const fn next(&self) -> Time {
        self.report.next
    }

    /// How long until the feed is fetched.
    pub(super) fn fetch_in_ms(&self, now_ms: u64) -> u64 {
        self.due.wait_ms(self.wanted.every.0, now_ms)
    }

    /// The validators of the version in force.
    pub(super) fn validators(&self) -> Validators {
        self.head.as_ref().map(Validators::from).unwrap_or_default()
    }

    pub(super) fn report(&self) -> Report {
        self.report.clone()
    }

    /// Handles the result of a fetch.
    pub(super) fn settle(
        &mut self,
        fetched: Result<Fetched, Failure>,
        copies: &Copies,
        outside: &dyn Outside,
    ) {
        self.report.checked = Some(Time(outside.now_ms()));
        let (outcome, error) = match fetched {
            Ok(Fetched::Unchanged) => self.confirm(None, copies, outside),
            Ok(Fetched::Body(bytes, validators)) => self.judge(&bytes, validators, copies, outside),
            Err(failure) => self.fail(&failure, outside),
        };
        self.report.outcome = Some(outcome);
        self.report.error = error;
        self.report.next = Time(self.due.next_ms());
        if let Some(count) = self.report.fetches.get_mut(outcome as usize) {
            *count += 1;
        }
    }

    /// The version in force is still current; its validators may have changed.
    fn confirm(
        &mut self,
        validators: Option<Validators>,
        copies: &Copies,
        outside: &dyn Outside,
    ) -> (Outcome, Option<String>) {
        let (now_ms, name) = (outside.now_ms(), &self.wanted.name);
        self.report.feed.confirm(now_ms);
        if let Some(head) = &mut self.head {
            head.confirmed = Time(now_ms);
            if let Some(Validators {
                etag,
                last_modified,
            }) = validators
            {
                (head.etag, head.last_modified) = (etag, last_modified);
            }
            if let Err(error) = copies.confirm(name, head) {
                tracing::warn!(
                    feed = name,
                    "the copy of the feed cannot be written: {error}"
                );
            }
        }
        copies.forget_refused(name);
        self.alerted_ms = None;
        let random: Random<'_> = &mut |most| outside.random(most);
        self.due.confirm(self.wanted.every.0, now_ms, random);
        (Outcome::Unchanged, None)
    }

    fn fail(&mut self, failure: &Failure, outside: &dyn Outside) -> (Outcome, Option<String>) {
        let random: Random<'_> = &mut |most| outside.random(most);
        self.due.fail(failure.pause(), outside.now_ms(), random);
        tracing::warn!(
            feed = self.wanted.name,
            url = %self.wanted.url,
            "the feed cannot be fetched: {failure}; {}",
            self.what_holds()
        );
        (Outcome::Failed, Some(failure.to_string()))
    }

    /// Handles another version.
    fn judge(
        &mut self,
        bytes: &[u8],
        validators: Validators,
        copies: &Copies,
        outside: &dyn Outside,
    ) -> (Outcome, Option<String>) {
        let list = match read(bytes) {
            Ok(list) => list,
            Err(why) => return self.refuse(why, None, copies, outside),
        };
        let digest = digest(&list.netblocks);
        self.tell_skipped(&list, &digest);
        let netblocks = list.netblocks;
        let now = Time(outside.now_ms());
        let copy = Copy {
            head: Head {
                url: self.wanted.url.uri().to_string(),
                taken: now,
                confirmed: now,
                etag: validators.etag.clone(),
                last_modified: validators.last_modified.clone(),
                digest,
                entries: netblocks.len(),
            },
            netblocks,
        };
        let before = self.head.as_ref();
        if before.is_some_and(|head| head.digest == copy.head.digest) {
            return self.confirm(Some(validators), copies, outside);
        }
        let feed = match fit(&self.wanted.name, &copy, outside) {
            Ok(feed) => feed,
            Err(why) => return self.refuse(why, None, copies, outside),
        };
        if let Err(why) = self.like_the_one_before(&feed) {
            return self.refuse(why, Some(copy), copies, outside);
        }
        match self.take(feed, &copy, copies, outside) {
            Ok(()) => (Outcome::Taken, None),
            Err(why) => self.refuse(why, None, copies, outside),
        }
    }

    /// Reports malformed lines, once for each version.
    fn tell_skipped(&mut self, list: &ListText, digest: &str) {
        if list.skipped == 0 || self.told_skipped.as_deref() == Some(digest) {
            return;
        }
        tracing::warn!(
            feed = self.wanted.name,
            "lines of the feed skipped, as they are no netblocks: {}; the first: {:?}",
            list.skipped,
            list.first_skipped
        );
        self.told_skipped = Some(digest.to_owned());
    }

    /// Refuses a version. `copy` is kept if the version can still be accepted by an operator.
    fn refuse(
        &mut self,
        why: String,
        copy: Option<Copy>,
        copies: &Copies,
        outside: &dyn Outside,
    ) -> (Outcome, Option<String>) {
        let now_ms = outside.now_ms();
        self.is_on_offer = copy.is_some();
        let random: Random<'_> = &mut |most| outside.random(most);
        self.due.refuse(self.wanted.every.0, now_ms, random);
        self.report.error = Some(why.clone());
        if self.alerted_ms.is_none() {
            self.tell_refused(outside);
        }
        if let Some(copy) = copy {
            let alerted = Time(self.alerted_ms.unwrap_or(now_ms));
            copies.refuse(&self.wanted.name, copy, alerted);
        }
        (Outcome::Refused, Some(why))
    }

    /// Repeats the alert about a refused version, a day later.
    pub(super) fn tell_due(&mut self, copies: &Copies, outside: &dyn Outside) {
        let is_due = |at: u64| outside.now_ms() >= at.saturating_add(DAY_MS);
        if self.alerted_ms.is_some_and(is_due) {
            self.tell_refused(outside);
            // A start counts the next day from here.
            if let Some((copy, at)) = copies.refused(&self.wanted).zip(self.alerted_ms) {
                copies.refuse(&self.wanted.name, copy, Time(at));
            }
        }
    }

    fn tell_refused(&mut self, outside: &dyn Outside) {
        let name = &self.wanted.name;
        let why = self.report.error.as_deref();
        let why = why.unwrap_or("it was fetched before the start");
        let mut error = format!(
            "a version of the feed {name:?} is not taken: {why}; {}",
            self.what_holds()
        );
        if self.is_on_offer {
            error += &format!(", and `weir feeds accept {name}` takes it");
        }
        tracing::warn!(feed = name, "{error}");
        outside.alert(name, &error);
        self.alerted_ms = Some(outside.now_ms());
    }

    fn what_holds(&self) -> String {
        match self.report.feed.taken_ms() {
            Some(at) => {
                let entries = self.report.feed.list.len();
                format!("the {entries} entries of {} stay", Time(at))
            }
            None => "it is empty".to_owned(),
        }
    }

    /// Compares a version with the one in force, each without the entries that are left out.
    fn like_the_one_before(&self, feed: &Feed) -> Result<(), String> {
        if feed.list.is_empty() {
            return Err("it has no entry".to_owned());
        }
        let before = self.head.as_ref().map(|_| self.report.feed.list.len());
        judge(feed.list.len(), before.filter(|before| *before > 0))
    }

    /// Offers a version to the rules, and keeps it as the copy if they take it.
    fn take(
        &mut self,
        feed: Arc<Feed>,
        copy: &Copy,
        copies: &Copies,
        outside: &dyn Outside,
    ) -> Result<(), String> {
        let (name, every) = (self.wanted.name.clone(), self.wanted.every.0);
        outside.offer(Offered {
            url: self.wanted.url.clone(),
            feed: Arc::clone(&feed),
        })?;
        tracing::info!(
            feed = name,
            "a version of the feed is taken: {} entries",
            feed.list.len()
        );
        if let Err(error) = copies.write(&name, copy) {
            tracing::warn!(
                feed = name,
                "the copy of the feed cannot be written: {error}; a start uses the one before"
            );
        }
        copies.forget_refused(&name);
        self.report.feed = feed;
        self.head = Some(copy.head.clone());
        self.alerted_ms = None;
        let random: Random<'_> = &mut |most| outside.random(most);
        self.due.confirm(every, outside.now_ms(), random);
        Ok(())
    }

    /// Accepts the refused version, because an operator asked for it.
    pub(super) fn accept(
        &mut self,
        copies: &Copies,
        outside: &dyn Outside,
    ) -> Result<usize, NotAccepted> {
        let copy = copies.refused(&self.wanted);
        let mut copy = copy.ok_or(NotAccepted::Nothing)?;
        let now = Time(outside.now_ms());
        (copy.head.taken, copy.head.confirmed) = (now, now);
        fit(&self.wanted.name, &copy, outside)
            .and_then(|feed| self.take(feed, &copy, copies, outside))
            .map_err(NotAccepted::Unfit)?;
        self.report.outcome = Some(Outcome::Taken);
        self.report.error = None;
        self.report.next = Time(self.due.next_ms());
        Ok(self.report.feed.list.len())
    }

    /// Chooses again which entries to leave out, after a change of settings.
    pub(super) fn guard_anew(&mut self, copies: &Copies, outside: &dyn Outside) {
        let Some((head, copy)) = self.head.as_ref().zip(copies.read(&self.wanted)) else {
            return;
        };
        let (hold, left_out) = outside.guard().part(copy.netblocks);
        let held = &self.report.feed;
        if head.digest != copy.head.digest || held.list.netblocks().eq(hold.iter().copied()) {
            return;
        }
        tell_left_out(&self.wanted.name, &left_out);
        let (Time(taken_ms), confirmed_ms) = (head.taken, held.confirmed_ms().unwrap_or(0));
        let feed = Feed::new(&self.wanted.name, hold, taken_ms, confirmed_ms);
        let feed = Arc::new(feed);
        let offered = Offered {
            url: self.wanted.url.clone(),
            feed: Arc::clone(&feed),
        };
        match outside.offer(offered) {
            Ok(()) => self.report.feed = feed,
            Err(why) => tracing::warn!(
                feed = self.wanted.name,
                "what the settings leave out of the feed is not yet left out: {why}"
            ),
        }
    }
}

/// A version with the usable entries only.
fn fit(name: &str, copy: &Copy, outside: &dyn Outside) -> Result<Arc<Feed>, String> {
    let (Time(taken_ms), Time(confirmed_ms)) = (copy.head.taken, copy.head.confirmed);
    let (hold, left_out) = outside.guard().part(copy.netblocks.clone());
    tell_left_out(name, &left_out);
    if hold.is_empty() && !left_out.is_empty() {
        return Err("each of its entries covers too much".to_owned());
    }
    bounded(&hold)?;
    Ok(Arc::new(Feed::new(name, hold, taken_ms, confirmed_ms)))
}

/// The version of the copy, offered to the rules, if the old process has taken it after this
/// process read the rules (RESTART-4).
fn newer(
    wanted: &Wanted,
    feed: &Feed,
    copies: &Copies,
    outside: &dyn Outside,
) -> Option<Arc<Feed>> {
    let head = copies.head(wanted)?;
    if feed.taken_ms() >= Some(head.taken.0) {
        return None;
    }
    let copy = copies.read(wanted)?;
    let taken = fit(&wanted.name, &copy, outside).and_then(|feed| {
        let offered = Offered {
            url: wanted.url.clone(),
            feed: Arc::clone(&feed),
        };
        outside.offer(offered).map(|()| feed)
    });
    if let Err(why) = &taken {
        tracing::warn!(feed = wanted.name, "the feed stays as it is: {why}");
    }
    taken.ok()
}

impl From<&Head> for Validators {
    fn from(head: &Head) -> Self {
        Self {
            etag: head.etag.clone(),
            last_modified: head.last_modified.clone(),
        }
    }
}

pub(super) fn tell_left_out(name: &str, left_out: &[Netblock]) {
    if left_out.is_empty() {
        return;
    }
    let named = left_out.iter().take(MAX_NAMED).map(ToString::to_string);
    let named: Vec<String> = named.collect();
    tracing::warn!(
        feed = name,
        "entries of the feed left out, as they cover a trusted proxy, this machine, private addresses or too much: {}; they begin with {}",
        left_out.len(),
        named.join(", ")
    );
}

#[cfg(test)]
mod tests;
