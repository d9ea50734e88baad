//! The counts of each minute of the last 24 hours, for graphs (CONTROL-11). Once a minute the
//! control loop folds the existing counters; it costs a request nothing.
//!
//! A minute has 112 bytes, all of them some 160 KB. A stop and a hand-over write them to
//! `history.json`, and the next start reads them; neither waits longer than a second for the disk.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crossbeam_channel::{Receiver, bounded};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use weir_shared::api::history::History as Columns;
use weir_shared::api::in_order::InOrder;
use weir_shared::clock::Now;
use weir_shared::handover::OwnResponse;
use weir_shared::totals::{DURATION_BOUNDS_US, Histogram, RESPONSE_CLASSES, Totals};
use weir_shared::verdict::{Action, History as Verdict};

use crate::admin::problem::json as json_answer;
use crate::beside::{self, UnderWay, Writing};
use crate::guarded;

/// Minutes that are kept.
pub(crate) const KEPT: usize = 24 * 60;
/// Not one of the state files: nobody edits it, and without it only graphs are lost.
const FILE: &str = "history.json";
/// The most that is read of it.
const MAX_BYTES: u64 = 2 << 20;
/// How long a stop or a hand-over waits for the disk.
const PATIENCE: Duration = Duration::from_secs(1);
const MINUTE_MS: u64 = 60_000;

/// What was counted in one minute.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Minute {
    /// Minutes since 1970.
    at: u32,
    requests: [u32; Action::ALL.len()],
    responses: [u32; RESPONSE_CLASSES.len()],
    /// Percentiles of the application's answer times, in microseconds; 0 means no answer, and the
    /// largest number one above all bounds.
    p50_us: u32,
    p99_us: u32,
    bans_active: u32,
    bans_made: u32,
    request_bytes: u64,
    response_bytes: u64,
}

/// The file.
#[derive(Serialize, Deserialize)]
struct Written {
    version: u32,
    /// The order of the counts: another version of the program may have another one.
    actions: Vec<String>,
    minutes: Vec<Minute>,
}

/// The counts since the start, at one time.
#[derive(Clone, Copy, Default)]
pub(crate) struct Counted {
    pub(crate) totals: Totals,
    pub(crate) bans_active: usize,
    pub(crate) bans_made: u64,
}

/// The minutes, oldest first.
pub(crate) struct History {
    minutes: VecDeque<Minute>,
    /// The current minute, and the counts when it began.
    open: (u32, Counted),
    /// The minutes of the previous process, once they are read.
    before: Option<Receiver<Vec<Minute>>>,
    /// The last write.
    writing: Option<Writing>,
    path: PathBuf,
}

impl History {
    /// Starts the history, and has the file read by a thread of its own, because it may hang with
    /// its mount.
    pub(crate) fn start(state_dir: &Path, now: Now) -> Self {
        let path = state_dir.join(FILE);
        let (found, before) = bounded(1);
        let from = path.clone();
        let thread = std::thread::Builder::new().name("weir-history".to_owned());
        // Without this thread only the earlier minutes are missing.
        let _ = thread.spawn(move || found.send(read(&from)));
        Self {
            minutes: VecDeque::new(),
            open: (minute_of(now), Counted::default()),
            before: Some(before),
            writing: None,
            path,
        }
    }

    /// Closes the minute that is over.
    pub(crate) fn turn(&mut self, now: Now, counted: impl FnOnce() -> Counted) {
        self.take_before();
        let minute = minute_of(now);
        let (open, then) = self.open;
        if open == minute {
            return;
        }
        let counted = counted();
        // After a clock was set back, minutes in the future are dropped.
        while self.minutes.back().is_some_and(|last| last.at >= minute) {
            self.minutes.pop_back();
        }
        if open < minute {
            add(&mut self.minutes, between(open, &then, &counted));
        }
        self.open = (minute, counted);
        self.forget(minute);
    }

    fn forget(&mut self, minute: u32) {
        let oldest = minute.saturating_sub(KEPT as u32);
        while self.minutes.front().is_some_and(|first| first.at < oldest) {
            self.minutes.pop_front();
        }
    }

    fn take_before(&mut self) {
        let Some(found) = &self.before else {
            return;
        };
        match found.try_recv() {
            Ok(before) => {
                let first = self.minutes.front().map_or(self.open.0, |first| first.at);
                // The last of these minutes may also be the first of this process.
                let is_before = |minute: &Minute| minute.at <= first;
                let own = std::mem::take(&mut self.minutes);
                self.minutes = before.into_iter().filter(is_before).collect();
                for minute in own {
                    add(&mut self.minutes, minute);
                }
                self.before = None;
            }
            Err(crossbeam_channel::TryRecvError::Empty) => {}
            Err(crossbeam_channel::TryRecvError::Disconnected) => self.before = None,
        }
    }

    /// The last minutes, including the current one.
    pub(crate) fn last(&self, most: usize, now: Now, counted: &Counted) -> Last {
        let (open, then) = &self.open;
        let open = between(*open, then, counted);
        let mut rows = self.minutes.clone();
        add(&mut rows, open);
        let from = rows.len().saturating_sub(most);
        Last {
            minutes: rows.into_iter().skip(from).collect(),
            now_ms: now.wall_ms,
        }
    }

    /// Writes the kept minutes for the next process.
    ///
    /// # Errors
    /// A write is still under way: it may replace the file at any later time. A write that failed
    /// is in the log alone.
    pub(crate) fn keep(&mut self, now: Now, counted: &Counted) -> Result<(), UnderWay> {
        self.take_before();
        // There is one write at a time.
        let is_under_way = |writing: &Writing| writing.ended(Duration::ZERO).is_none();
        if self.writing.as_ref().is_some_and(is_under_way) {
            return Err(UnderWay(FILE));
        }
        // A file that was not read yet is not overwritten.
        if self.before.is_some() {
            return Ok(());
        }
        let minutes = self.last(KEPT, now, counted).minutes;
        let path = self.path.clone();
        let begun = Writing::begin("weir-history", move || write(&path, minutes));
        let ended = match begun {
            Ok(writing) => self.writing.insert(writing).ended(PATIENCE),
            Err(error) => Some(Err(error)),
        };
        let is_under_way = ended.is_none();
        if let Err(error) = ended.unwrap_or_else(|| Err(beside::late())) {
            let file = self.path.display();
            tracing::warn!(%file, %error, "what was counted a minute is not kept");
        }
        match is_under_way {
            true => Err(UnderWay(FILE)),
            false => Ok(()),
        }
    }
}

/// Minutes, to be written as an answer on another thread.
pub(crate) struct Last {
    minutes: Vec<Minute>,
    now_ms: u64,
}

/// Appends a minute; counts of two processes in the same minute are summed.
fn add(minutes: &mut VecDeque<Minute>, minute: Minute) {
    match minutes.back_mut() {
        Some(last) if last.at == minute.at => *last = last.and(minute),
        _ => minutes.push_back(minute),
    }
}

impl Minute {
    /// Adds the next process's counts of the same minute. Of two percentiles the larger is kept.
    fn and(mut self, other: Self) -> Self {
        for (count, more) in self.requests.iter_mut().zip(other.requests) {
            *count = count.saturating_add(more);
        }
        for (count, more) in self.responses.iter_mut().zip(other.responses) {
            *count = count.saturating_add(more);
        }
        Self {
            p50_us: self.p50_us.max(other.p50_us),
            p99_us: self.p99_us.max(other.p99_us),
            bans_active: other.bans_active,
            bans_made: self.bans_made.saturating_add(other.bans_made),
            request_bytes: self.request_bytes.saturating_add(other.request_bytes),
            response_bytes: self.response_bytes.saturating_add(other.response_bytes),
            ..self
        }
    }
}

fn minute_of(now: Now) -> u32 {
    u32::try_from(now.wall_ms / MINUTE_MS).unwrap_or(u32::MAX)
}

fn narrow(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn between(at: u32, then: &Counted, now: &Counted) -> Minute {
    fn each<const N: usize>(now: [u64; N], then: [u64; N]) -> [u32; N] {
        let mut then = then.into_iter();
        now.map(|count| narrow(count.saturating_sub(then.next().unwrap_or(0))))
    }
    let (old, new) = (&then.totals, &now.totals);
    let mut took = Histogram::default();
    let (before, after) = (&old.upstream_duration, &new.upstream_duration);
    let pairs = after.buckets.iter().zip(before.buckets);
    for (bucket, (after, before)) in took.buckets.iter_mut().zip(pairs) {
        *bucket = after.saturating_sub(before);
    }
    let bound = |percent| quantile_us(&took, percent).map_or(0, narrow);
    Minute {
        at,
        requests: each(new.requests, old.requests),
        responses: each(new.responses, old.responses),
        p50_us: bound(50),
        p99_us: bound(99),
        bans_active: narrow(now.bans_active as u64),
        bans_made: narrow(now.bans_made.saturating_sub(then.bans_made)),
        request_bytes: new.request_bytes.saturating_sub(old.request_bytes),
        response_bytes: new.response_bytes.saturating_sub(old.response_bytes),
    }
}

/// The percentile as a bound of the histogram; none without answers, the largest number if it is
/// above all bounds.
pub(crate) fn quantile_us(histogram: &Histogram, percent: u64) -> Option<u64> {
    let count: u64 = histogram.buckets.iter().sum();
    let mut seen = 0;
    for (bound_us, bucket) in DURATION_BOUNDS_US.into_iter().zip(histogram.buckets) {
        seen += bucket;
        if count > 0 && seen.saturating_mul(100) >= count.saturating_mul(percent) {
            return Some(bound_us);
        }
    }
    (count > 0).then_some(u64::MAX)
}

fn read(path: &Path) -> Vec<Minute> {
    let bytes = match guarded::read(path, MAX_BYTES) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Vec::new(),
        Err(error) => {
            let file = path.display();
            tracing::warn!(%file, %error, "what was counted a minute cannot be read");
            return Vec::new();
        }
    };
    let names = Action::ALL.map(|action| action.name().to_owned());
    let written: Option<Written> = serde_json::from_slice(&bytes).ok();
    let written = written.filter(|written| written.version == 1 && written.actions == names);
    let mut minutes = written.map_or_else(Vec::new, |written| written.minutes);
    minutes.sort_by_key(|minute| minute.at);
    minutes.dedup_by_key(|minute| minute.at);
    minutes
}

fn write(path: &Path, minutes: Vec<Minute>) -> io::Result<()> {
    let written = Written {
        version: 1,
        actions: Action::ALL.map(|action| action.name().to_owned()).into(),
        minutes,
    };
    beside::replace(path, |out| Ok(serde_json::to_writer(out, &written)?))
}

/// `GET /v1/history`: a list for each thing that is counted, all of one length. `null` is a bound
/// of no answer.
pub(crate) fn answer(last: &Last) -> OwnResponse {
    json_answer(StatusCode::OK, &columns(last))
}

fn columns(last: &Last) -> Columns {
    let minutes = &last.minutes;
    let column = |of: &dyn Fn(&Minute) -> u64| minutes.iter().map(of).collect::<Vec<u64>>();
    let seconds = |of: &dyn Fn(&Minute) -> u32| {
        let bound = |minute: &Minute| match of(minute) {
            0 => None,
            // Above the last bound: no exact value is known.
            u32::MAX => Some(60.0),
            bound => Some(f64::from(bound) / 1e6),
        };
        minutes.iter().map(bound).collect()
    };
    let of = |verdict: Verdict| {
        column(&|minute| {
            let counts = Action::ALL.into_iter().zip(minute.requests);
            let of = counts.filter(|(action, _)| action.history() == verdict);
            of.map(|(_, count)| u64::from(count)).sum()
        })
    };
    let named = |names: &[&'static str], of: &dyn Fn(&Minute) -> Vec<u32>| {
        let columns = names.iter().enumerate().map(|(index, name)| {
            let count = |minute: &Minute| of(minute).get(index).copied().map_or(0, u64::from);
            (*name, column(&count))
        });
        let some = columns.filter(|(_, column)| column.iter().any(|count| *count > 0));
        some.collect::<InOrder<_>>()
    };
    Columns {
        step_seconds: 60,
        now: last.now_ms / 1000,
        times: column(&|minute| u64::from(minute.at) * 60),
        requests: column(&|minute| minute.requests.iter().copied().map(u64::from).sum()),
        passed: of(Verdict::Passed),
        refused: of(Verdict::Refused),
        actions: named(&Action::ALL.map(Action::name), &|minute| {
            minute.requests.to_vec()
        }),
        responses: named(&RESPONSE_CLASSES, &|minute| minute.responses.to_vec()),
        p50_seconds: seconds(&|minute| minute.p50_us),
        p99_seconds: seconds(&|minute| minute.p99_us),
        bans_active: column(&|minute| u64::from(minute.bans_active)),
        bans_made: column(&|minute| u64::from(minute.bans_made)),
        request_bytes: column(&|minute| minute.request_bytes),
        response_bytes: column(&|minute| minute.response_bytes),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn at(seconds: u64) -> Now {
        Now {
            wall_ms: seconds * 1000,
            mono_ns: seconds * 1_000_000_000,
        }
    }

    fn counted(passed: u64, banned: u64) -> Counted {
        let mut totals = Totals::default();
        totals.requests[Action::Passed.index()] = passed;
        totals.requests[Action::Banned.index()] = banned;
        totals.upstream_duration.buckets[1] = passed;
        Counted {
            totals,
            bans_active: 2,
            bans_made: banned / 10,
        }
    }

    fn nothing(dir: &Path, seconds: u64) -> History {
        let mut history = History::start(dir, at(seconds));
        // The file is not there: its thread has said so once it has ended.
        while history.before.is_some() {
            history.take_before();
        }
        history
    }

    /// CONTROL-11: each minute has the counts of its requests; the current minute is shown with its
    /// counts so far.
    #[test]
    fn a_minute_has_what_came_in_it() {
        let dir = tempfile::tempdir().unwrap();
        let mut history = nothing(dir.path(), 600);
        history.turn(at(659), || panic!("the minute is not over"));
        history.turn(at(660), || counted(8, 20));
        let told = columns(&history.last(KEPT, at(670), &counted(9, 20)));
        assert_eq!(told.times, [600, 660]);
        assert_eq!(told.passed, [8, 1]);
        assert_eq!(told.refused, [20, 0]);
        assert_eq!(told.actions.get("passed"), Some(&vec![8, 1]));
        assert_eq!(told.actions.get("banned"), Some(&vec![20, 0]));
        assert_eq!(told.bans_made, [2, 0]);
        assert_eq!(told.p99_seconds, [Some(0.001); 2]);
        let one = columns(&history.last(1, at(670), &counted(9, 20)));
        assert_eq!(one.times, [660]);
    }

    /// CONTROL-11: 24 hours are kept and no more, in at most 200 KB; after a clock was set back
    /// nothing of a future time remains.
    #[test]
    fn a_day_is_kept() {
        assert!(size_of::<Minute>() * KEPT < 200_000);
        let dir = tempfile::tempdir().unwrap();
        let mut history = nothing(dir.path(), 0);
        for minute in 0..=2000 {
            history.turn(at(minute * 60), || counted(minute, 0));
        }
        assert_eq!(history.minutes.len(), KEPT);
        history.turn(at(1000 * 60), || counted(2000, 0));
        assert!(history.minutes.iter().all(|minute| minute.at < 1000));
        history.turn(at(1001 * 60), || counted(2007, 0));
        let last = history
            .minutes
            .back()
            .map(|last| (last.at, last.requests[0]));
        assert_eq!(last, Some((1000, 7)));
    }

    /// CONTROL-11: the next process has the kept minutes of this one, before its own; an invalid
    /// file counts as none.
    #[test]
    fn the_next_process_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let mut history = nothing(dir.path(), 600);
        history.turn(at(660), || counted(7, 0));
        let _ = history.keep(at(661), &counted(8, 0));
        // A disk that takes longer than a stop waits for it is written to all the same.
        while !dir.path().join(FILE).exists() {
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        let mut next = History::start(dir.path(), at(720));
        while next.before.is_some() {
            next.take_before();
        }
        let told = columns(&next.last(KEPT, at(721), &counted(1, 0)));
        assert_eq!(told.times, [600, 660, 720]);
        assert_eq!(told.passed, [7, 1, 1]);
        fs::write(dir.path().join(FILE), "{").unwrap();
        assert!(read(&dir.path().join(FILE)).is_empty());
    }

    /// CONTROL-11: a stop right after the start loses no kept minute: an unread file stays as it
    /// is, a read one is continued.
    #[test]
    fn a_stop_behind_a_start_keeps_what_was_kept() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(FILE);
        let mut history = nothing(dir.path(), 600);
        history.turn(at(660), || counted(7, 0));
        let _ = history.keep(at(661), &counted(8, 0));
        while !file.exists() {
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        let (kept, before) = (fs::read(&file).unwrap(), read(&file));
        let (found, waits) = bounded(1);
        let mut next = nothing(&dir.path().join("none"), 720);
        next.path.clone_from(&file);
        next.before = Some(waits);
        next.keep(at(721), &counted(1, 0)).unwrap();
        assert_eq!(fs::read(&file).unwrap(), kept);
        found.send(before).unwrap();
        let _ = next.keep(at(721), &counted(1, 0));
        assert!(next.before.is_none());
        assert_eq!(next.minutes.len(), 2);
    }
}
