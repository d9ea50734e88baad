//! The batches of counts, their order, and what to do if the engine has lost some (FLEET-6). Pure:
//! no socket, no clock, no thread.
//!
//! A batch has a number, and the engine takes only the one after the last: so none counts twice. A
//! batch whose fate is unknown is sent again unchanged.

use std::collections::VecDeque;
use std::time::Duration;

use weir_shared::fleet::{Report, Sum, span_at};
use weir_shared::window::Window;

/// The most sums of a batch.
pub const MAX_DELTAS: usize = 500;
/// How long a taken batch is kept, because the engine may lose it in a failover.
const RING_NS: u64 = 30_000_000_000;
/// The largest count that is sent.
const MAX_COUNT: u64 = (1 << 48) - 1;
/// Bytes of a sum before its windows.
const SUM_HEAD: usize = 16;
const DELTA_HEAD: usize = 11;
const WINDOW: usize = 12;

/// An addition to one sum.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Delta {
    /// The name of the sum, which says nothing to the engine.
    pub name: [u8; 12],
    /// What is added.
    pub bytes: Vec<u8>,
    /// How long it is kept.
    pub keep: Duration,
}

/// A batch of additions.
#[derive(Clone, PartialEq, Debug)]
pub struct Batch {
    /// Its number.
    pub seq: u64,
    /// What was counted.
    pub reports: Vec<Report>,
    /// The same in the engine's form.
    pub deltas: Vec<Delta>,
    /// When it was made, on the monotonic clock.
    made_ns: u64,
}

/// What the engine answers.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Merged {
    /// Eight hexadecimal digits, which change if the engine's counts were lost.
    pub generation: String,
    /// The number of the last batch of this instance that it has.
    pub last: u64,
    /// The sums, if the engine took the batch or had it already.
    pub sums: Vec<Vec<u8>>,
}

/// The consequence of an answer.
#[derive(Clone, PartialEq, Debug)]
pub enum Outcome {
    /// The batch was taken: the sum of each report, if it can be read.
    Taken(Vec<(Report, Option<Sum>)>),
    /// The engine has the lost batch again: its sums are not used.
    Again,
    /// The engine has lost batches: they are sent again.
    Behind,
    /// The engine has lost everything.
    Lost,
    /// Older counts have come back, with an unknown part of what this instance had sent: nothing is
    /// sent a second time.
    Returned,
}

/// The batches of one instance.
#[derive(Clone, Debug, Default)]
pub struct Batches {
    generation: String,
    /// The last number that the engine has taken.
    taken: u64,
    under_way: Option<Batch>,
    /// The batches that were taken lately.
    ring: VecDeque<Batch>,
    /// How many of the last batches of the ring must be sent again.
    again: usize,
}

impl Batches {
    /// The generation to tell the engine.
    pub fn generation(&self) -> &str {
        &self.generation
    }

    /// Batches that are kept for a failover.
    pub fn kept(&self) -> usize {
        self.ring.len()
    }

    /// Whether a batch must be sent before new ones.
    pub fn is_behind(&self) -> bool {
        self.under_way.is_some() || self.again > 0
    }

    /// Makes a batch of these reports. No batch may be under way.
    pub fn send(&mut self, reports: Vec<Report>, name: impl Fn(&Report) -> [u8; 12], now_ns: u64) {
        let delta = |report: &Report| Delta {
            name: name(report),
            bytes: packed(report),
            keep: report.keep,
        };
        self.under_way = Some(Batch {
            seq: self.taken + 1,
            deltas: reports.iter().map(delta).collect(),
            reports,
            made_ns: now_ns,
        });
    }

    /// The batch to send now; without one the engine is asked for the generation only.
    pub fn next(&self) -> Option<&Batch> {
        if self.again > 0 {
            return self.ring.get(self.ring.len().checked_sub(self.again)?);
        }
        self.under_way.as_ref()
    }

    /// Takes the engine's answer to what was sent.
    pub fn answered(&mut self, merged: Merged, now_ns: u64) -> Outcome {
        if merged.generation != self.generation {
            // The counts of the batch under way are reported anew.
            let is_first = self.generation.is_empty();
            self.generation = merged.generation;
            self.taken = merged.last;
            self.under_way = None;
            self.clear();
            return match merged.last {
                _ if is_first => Outcome::Behind,
                0 => Outcome::Lost,
                _ => Outcome::Returned,
            };
        }
        let sent = self.next().map(|batch| batch.seq);
        if sent != Some(merged.last) {
            return self.is_at(merged.last);
        }
        if self.again > 0 {
            self.again -= 1;
            return Outcome::Again;
        }
        let Some(batch) = self.under_way.take() else {
            return Outcome::Again;
        };
        self.taken = batch.seq;
        let mut sums = merged.sums.into_iter();
        let told = batch.reports.iter().map(|report| {
            let sum = sums.next().and_then(|sum| unpacked(&sum, report));
            (report.clone(), sum)
        });
        let told = told.collect();
        self.ring.push_back(batch);
        let is_old = |batch: &mut Batch| now_ns.saturating_sub(batch.made_ns) > RING_NS;
        while self.ring.pop_front_if(is_old).is_some() {}
        Outcome::Taken(told)
    }

    fn clear(&mut self) {
        self.ring.clear();
        self.again = 0;
    }

    /// The engine's last batch is another one than expected.
    fn is_at(&mut self, last: u64) -> Outcome {
        // The batch under way was not taken; its counts are reported anew.
        self.under_way = None;
        if last == self.taken {
            self.again = 0;
            return Outcome::Behind;
        }
        self.again = self.ring.iter().filter(|batch| batch.seq > last).count();
        let next = self.ring.len().checked_sub(self.again);
        let follows = next
            .and_then(|next| self.ring.get(next))
            .is_some_and(|batch| batch.seq == last + 1);
        if !follows {
            // The engine lost more than the ring keeps, or its state is unknown.
            self.clear();
            self.taken = last;
            return Outcome::Returned;
        }
        Outcome::Behind
    }
}

/// A report in the engine's form: epoch, minute, whether the client is known, and the two buckets
/// of each window.
fn packed(report: &Report) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(DELTA_HEAD + report.windows.len() * WINDOW);
    let latest_ms = report.windows.iter().map(|window| window.start_ms).max();
    let minute = latest_ms.unwrap_or_default() / 60_000;
    put(&mut bytes, report.epoch_ms, 6);
    put(&mut bytes, minute, 4);
    put(&mut bytes, report.known.into(), 1);
    for window in &report.windows {
        put(&mut bytes, window.current, 6);
        put(&mut bytes, window.previous, 6);
    }
    bytes
}

fn put(bytes: &mut Vec<u8>, number: u64, length: usize) {
    let number = number.min(MAX_COUNT).to_be_bytes();
    bytes.extend(number.into_iter().skip(8 - length));
}

/// Parses the sum of a report's windows; none if the engine's value does not fit.
fn unpacked(bytes: &[u8], report: &Report) -> Option<Sum> {
    if bytes.len() != SUM_HEAD + report.windows.len() * WINDOW {
        return None;
    }
    let (_, rest) = bytes.split_at_checked(5)?;
    let (epoch_ms, rest) = number(rest, 6)?;
    let (minute, rest) = number(rest, 4)?;
    let (known, mut rest) = number(rest, 1)?;
    let mut windows = Vec::with_capacity(report.windows.len());
    for place in 0..report.windows.len() {
        let (current, after) = number(rest, 6)?;
        let (previous, after) = number(after, 6)?;
        rest = after;
        let (length, at_ms) = (span_at(place).ms(), minute * 60_000);
        windows.push(Window {
            start_ms: at_ms - at_ms % length,
            current,
            previous,
        });
    }
    Some(Sum {
        epoch_ms,
        known: known > 0,
        windows,
    })
}

fn number(bytes: &[u8], length: usize) -> Option<(u64, &[u8])> {
    let (number, rest) = bytes.split_at_checked(length)?;
    let number = number.iter().fold(0, |of, byte| of << 8 | u64::from(*byte));
    Some((number, rest))
}

#[cfg(test)]
pub(super) mod tests;
