//! One feed as the thread `weir-feeds` knows it, and what follows from a fetch (FEED-3, FEED-4,
//! FEED-5).

use std::sync::Arc;

use weir_shared::netblock::Netblock;
use weir_shared::rules::Feed;
use weir_shared::units::Time;

use super::copy::{Copies, Copy, Head, digest};
use super::due::{Due, Random};
use super::fetch::{Failure, Fetched, Validators};
use super::judge::{Guard, bounded, judge, read};
use super::wanted::{FeedUrl, Use, Wanted};

/// How often it is told that a version is still not taken.
const DAY_MS: u64 = 86_400_000;
/// Entries that are named where some are left out.
const MAX_NAMED: usize = 5;

/// How a fetch ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// Its version holds.
    Taken,
    /// The version that holds is the current one.
    Unchanged,
    /// Its version is not taken (FEED-5).
    Refused,
    /// Nothing whole came.
    Failed,
}

impl Outcome {
    /// All of them, in the order of the metrics.
    pub(crate) const ALL: [Self; 4] = [Self::Taken, Self::Unchanged, Self::Refused, Self::Failed];

    /// As answers and metrics have it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Taken => "taken",
            Self::Unchanged => "unchanged",
            Self::Refused => "refused",
            Self::Failed => "failed",
        }
    }
}

/// What is told of a feed (FEED-8).
#[derive(Clone, Debug)]
pub(crate) struct Report {
    pub(crate) used: Option<Use>,
    /// The version that holds.
    pub(crate) feed: Arc<Feed>,
    /// When it was asked for last.
    pub(crate) checked: Option<Time>,
    pub(crate) outcome: Option<Outcome>,
    /// Why it was not taken, or nothing came.
    pub(crate) error: Option<String>,
    pub(crate) next: Time,
    /// By [`Outcome::ALL`].
    pub(crate) fetches: [u64; Outcome::ALL.len()],
}

/// A version that the rules may take.
pub(crate) struct Offered {
    /// The feed's URL: under the same name there may be another feed by now.
    pub(crate) url: FeedUrl,
    pub(crate) feed: Arc<Feed>,
}

/// What one feed's fetches have to do with the rest of the service.
pub(super) trait Outside {
    /// The time, milliseconds since 1970.
    fn now_ms(&self) -> u64;

    /// A number from 0 up to this one, at random.
    fn random(&self, most: u64) -> u64;

    /// Has the rules take a version. An error is the end of a sentence.
    fn offer(&self, offered: Offered) -> Result<(), String>;

    /// Raises `feed_error`.
    fn alert(&self, feed: &str, error: &str);

    /// What no entry may cover now.
    fn guard(&self) -> Guard;
}

/// One feed.
pub(super) struct Kept {
    pub(super) wanted: Wanted,
    report: Report,
    due: Due,
    /// The first line of the copy, where that is what holds.
    head: Option<Head>,
    /// When it was told that a version is not taken; none while one is taken.
    alerted_ms: Option<u64>,
}

impl Kept {
    /// A feed that was not known before, with the version that holds.
    pub(super) fn new(
        wanted: Wanted,
        feed: Arc<Feed>,
        copies: &Copies,
        outside: &dyn Outside,
    ) -> Self {
        let now_ms = outside.now_ms();
        let head = copies.head(&wanted);
        let head = head.filter(|head| feed.taken_ms() == Some(head.taken.0));
        let confirmed_ms = feed.confirmed_ms();
        let due = Due::begin(wanted.every.0, confirmed_ms, now_ms, &mut |most| {
            outside.random(most)
        });
        let refused = copies.refused(&wanted).is_some();
        Self {
            report: Report {
                used: wanted.used,
                feed,
                checked: None,
                outcome: refused.then_some(Outcome::Refused),
                error: None,
                next: Time(due.next_ms()),
                fetches: [0; Outcome::ALL.len()],
            },
            alerted_ms: refused.then_some(now_ms),
            wanted,
            due,
            head,
        }
    }

    /// Whether it is this feed, however often it is fetched and whatever it is for.
    pub(super) fn is(&self, wanted: &Wanted) -> bool {
        (&self.wanted.name, &self.wanted.url) == (&wanted.name, &wanted.url)
    }

    /// An edit: it may be fetched at other times, or be for something else.
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

    /// A start, a reload or an edit.
    pub(super) fn event(&mut self, outside: &dyn Outside) {
        self.due.event(self.wanted.every.0, outside.now_ms());
        self.report.next = Time(self.due.next_ms());
    }

    /// An operator wants it now.
    pub(super) fn ask(&mut self, outside: &dyn Outside) {
        self.due.ask(outside.now_ms());
        self.report.next = Time(self.due.next_ms());
    }

    /// How long until there is something to do: a fetch, or to tell again that a version is not
    /// taken.
    pub(super) fn wait_ms(&self, now_ms: u64) -> u64 {
        self.tell_in_ms(now_ms).min(self.fetch_in_ms(now_ms))
    }

    /// How long until it is told again that a version is not taken.
    pub(super) fn tell_in_ms(&self, now_ms: u64) -> u64 {
        self.alerted_ms.map_or(u64::MAX, |at| {
            at.saturating_add(DAY_MS).saturating_sub(now_ms)
        })
    }

    /// When it is fetched next.
    pub(super) const fn next(&self) -> Time {
        self.report.next
    }

    /// How long until it is fetched.
    pub(super) fn fetch_in_ms(&self, now_ms: u64) -> u64 {
        self.due.wait_ms(self.wanted.every.0, now_ms)
    }

    /// What the publisher calls the version by that holds.
    pub(super) fn validators(&self) -> Validators {
        self.head.as_ref().map(Validators::from).unwrap_or_default()
    }

    pub(super) fn report(&self) -> Report {
        self.report.clone()
    }

    /// A fetch has ended.
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

    /// The version that holds is the current one; it may be called by other validators.
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

    /// Another version came.
    fn judge(
        &mut self,
        bytes: &[u8],
        validators: Validators,
        copies: &Copies,
        outside: &dyn Outside,
    ) -> (Outcome, Option<String>) {
        let netblocks = match read(bytes) {
            Ok(netblocks) => netblocks,
            Err(why) => return self.refuse(why, None, copies, outside),
        };
        let now = Time(outside.now_ms());
        let copy = Copy {
            head: Head {
                url: self.wanted.url.uri().to_string(),
                taken: now,
                confirmed: now,
                etag: validators.etag.clone(),
                last_modified: validators.last_modified.clone(),
                digest: digest(&netblocks),
                entries: netblocks.len(),
            },
            netblocks,
        };
        let before = self.head.as_ref();
        if before.is_some_and(|head| head.digest == copy.head.digest) {
            return self.confirm(Some(validators), copies, outside);
        }
        let taken = self
            .fit(&copy, outside)
            .and_then(|feed| self.like_the_one_before(&feed).map(|()| feed))
            .and_then(|feed| self.take(feed, &copy, copies, outside));
        match taken {
            Ok(()) => (Outcome::Taken, None),
            Err(why) => self.refuse(why, Some(&copy), copies, outside),
        }
    }

    /// A version is not taken.
    fn refuse(
        &mut self,
        why: String,
        copy: Option<&Copy>,
        copies: &Copies,
        outside: &dyn Outside,
    ) -> (Outcome, Option<String>) {
        let (now_ms, name) = (outside.now_ms(), &self.wanted.name);
        if let Some(copy) = copy.filter(|copy| !copy.netblocks.is_empty())
            && let Err(error) = copies.refuse(name, copy)
        {
            tracing::warn!(
                feed = name,
                "the version that is not taken cannot be kept: {error}"
            );
        }
        let random: Random<'_> = &mut |most| outside.random(most);
        self.due.refuse(self.wanted.every.0, now_ms, random);
        self.report.error = Some(why.clone());
        if self.alerted_ms.is_none() {
            self.tell_refused(outside);
        }
        (Outcome::Refused, Some(why))
    }

    /// Tells again, a day later, that a version is not taken.
    pub(super) fn tell_due(&mut self, outside: &dyn Outside) {
        let is_due = |at: u64| outside.now_ms() >= at.saturating_add(DAY_MS);
        if self.alerted_ms.is_some_and(is_due) {
            self.tell_refused(outside);
        }
    }

    fn tell_refused(&mut self, outside: &dyn Outside) {
        let name = &self.wanted.name;
        let why = self.report.error.as_deref();
        let why = why.unwrap_or("it was fetched before the start");
        let error = format!(
            "a version of the feed {name:?} is not taken: {why}; {}, and `weir feeds accept {name}` takes it",
            self.what_holds()
        );
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

    /// A version with the entries that may hold.
    fn fit(&self, copy: &Copy, outside: &dyn Outside) -> Result<Arc<Feed>, String> {
        let (name, Time(now_ms)) = (&self.wanted.name, copy.head.taken);
        if copy.netblocks.is_empty() {
            return Err("it has no entry".to_owned());
        }
        let (hold, left_out) = outside.guard().part(copy.netblocks.clone());
        tell_left_out(name, &left_out);
        if hold.is_empty() {
            return Err("each of its entries covers too much".to_owned());
        }
        bounded(&hold)?;
        Ok(Arc::new(Feed::new(name, hold, now_ms, now_ms)))
    }

    /// Compares a version with the one in force, each without the entries that are left out.
    fn like_the_one_before(&self, feed: &Feed) -> Result<(), String> {
        let before = self.head.as_ref().map(|_| self.report.feed.list.len());
        judge(feed.list.len(), before.filter(|before| *before > 0))
    }

    /// Has the rules take a version, and keeps it.
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

    /// Takes the version that was not taken: an operator wants it.
    pub(super) fn accept(
        &mut self,
        copies: &Copies,
        outside: &dyn Outside,
    ) -> Result<usize, NotAccepted> {
        let copy = copies.refused(&self.wanted);
        let mut copy = copy.ok_or(NotAccepted::Nothing)?;
        let now = Time(outside.now_ms());
        (copy.head.taken, copy.head.confirmed) = (now, now);
        self.fit(&copy, outside)
            .and_then(|feed| self.take(feed, &copy, copies, outside))
            .map_err(NotAccepted::Unfit)?;
        self.report.outcome = Some(Outcome::Taken);
        self.report.error = None;
        self.report.next = Time(self.due.next_ms());
        Ok(self.report.feed.list.len())
    }

    /// Leaves out anew what may not hold, after other settings.
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

impl From<&Head> for Validators {
    fn from(head: &Head) -> Self {
        Self {
            etag: head.etag.clone(),
            last_modified: head.last_modified.clone(),
        }
    }
}

/// Why no version is accepted.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum NotAccepted {
    /// There is no such feed.
    #[error("no feed has this name")]
    Unknown,
    /// There is no version that was not taken.
    #[error("there is no version of it that was not taken")]
    Nothing,
    /// It cannot be taken even so.
    #[error("it cannot be taken: {0}")]
    Unfit(String),
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
