//! What happens, as it happens: lines of the request log and alerts, for those who listen over the
//! control socket (CONTROL-2).
//!
//! The thread of the request log offers each line once it is written as text. Alerts go to every
//! listener; of the requests, each gets the first [`DECISIONS_A_SECOND`] of a second. A listener
//! that does not keep up loses lines. How many were left out and lost is told once a second.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use crate::bans::feed::Feed;
use crate::refusals::Refusals;

/// Those who may listen at the same time.
const MAX_LISTENERS: usize = 8;
/// Lines that may wait for one listener.
const QUEUE: usize = 1024;
/// Requests that a listener is told of in one second.
pub const DECISIONS_A_SECOND: u32 = 100;

/// Takes lines in and hands them to those who listen.
#[derive(Default)]
pub struct Events {
    /// Whether anybody listens: without it the thread of the log takes no lock.
    heard: AtomicBool,
    /// At most [`MAX_LISTENERS`].
    listeners: Mutex<Vec<Listener>>,
    /// Lines lost by all listeners so far.
    lost: AtomicU64,
    /// The last refusals, for those who ask later.
    refusals: Refusals,
    /// Changes of the bans.
    bans: Arc<Feed>,
}

struct Listener {
    lines: Sender<Bytes>,
    /// Requests that it may still be told of in this second.
    rest: u32,
    /// Requests beyond that, since the last note.
    left_out: u64,
    /// Lines that found no room, since the last note.
    lost: u64,
}

/// As many listen as may.
#[derive(Debug)]
pub(crate) struct TooMany {
    /// How many that is.
    pub(crate) most: usize,
}

impl Events {
    /// Begins to listen.
    ///
    /// # Errors
    /// [`TooMany`]
    pub(crate) fn listen(&self) -> Result<Receiver<Bytes>, TooMany> {
        let mut listeners = self.listeners();
        listeners.retain(|listener| !listener.lines.is_closed());
        if listeners.len() >= MAX_LISTENERS {
            return Err(TooMany {
                most: MAX_LISTENERS,
            });
        }
        let (lines, receiver) = channel(QUEUE);
        listeners.push(Listener {
            lines,
            rest: DECISIONS_A_SECOND,
            left_out: 0,
            lost: 0,
        });
        // Relaxed: a line more or less at the beginning matters to nobody.
        self.heard.store(true, Ordering::Relaxed);
        Ok(receiver)
    }

    /// Changes of the bans.
    pub(crate) const fn bans(&self) -> &Arc<Feed> {
        &self.bans
    }

    /// The last refusals.
    pub(crate) const fn refusals(&self) -> &Refusals {
        &self.refusals
    }

    /// An alert, with its line break.
    pub(crate) fn alert(&self, line: &[u8]) {
        if self.heard.load(Ordering::Relaxed) {
            let line = Bytes::copy_from_slice(line);
            for listener in self.listeners().iter_mut() {
                listener.send(&line);
            }
        }
    }

    /// Whether anybody listens.
    pub(crate) fn is_heard(&self) -> bool {
        self.heard.load(Ordering::Relaxed)
    }

    /// Requests, each with its line break.
    pub(crate) fn decisions(&self, lines: &[u8]) {
        if !self.heard.load(Ordering::Relaxed) {
            return;
        }
        let mut listeners = self.listeners();
        for line in lines.split_inclusive(|byte| *byte == b'\n') {
            let mut copy = None;
            for listener in listeners.iter_mut() {
                if listener.rest == 0 {
                    listener.left_out += 1;
                    continue;
                }
                listener.rest -= 1;
                listener.send(copy.get_or_insert_with(|| Bytes::copy_from_slice(line)));
            }
        }
    }

    /// A second is over: tells each listener what it missed.
    pub(crate) fn turn(&self) {
        if !self.heard.load(Ordering::Relaxed) {
            return;
        }
        let mut listeners = self.listeners();
        listeners.retain_mut(|listener| {
            listener.note();
            !listener.lines.is_closed()
        });
        let lost: u64 = listeners.iter_mut().map(Listener::take_lost).sum();
        self.lost.fetch_add(lost, Ordering::Relaxed);
        if listeners.is_empty() {
            self.heard.store(false, Ordering::Relaxed);
        }
    }

    /// Lines that listeners lost, up to the last second.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    fn listeners(&self) -> std::sync::MutexGuard<'_, Vec<Listener>> {
        // Nothing in here panics; should it, the list is whole all the same.
        self.listeners
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Listener {
    fn send(&mut self, line: &Bytes) {
        if self.lines.try_send(line.clone()).is_err() {
            self.lost += 1;
        }
    }

    /// One line about what was missed, where anything was.
    fn note(&mut self) {
        self.rest = DECISIONS_A_SECOND;
        let (left_out, lost) = (self.left_out, self.lost);
        if left_out == 0 && lost == 0 {
            return;
        }
        let line =
            format!("{{\"event\":\"left_out\",\"requests\":{left_out},\"lines_lost\":{lost}}}\n");
        if self.lines.try_send(line.into()).is_ok() {
            self.left_out = 0;
        }
    }

    fn take_lost(&mut self) -> u64 {
        std::mem::take(&mut self.lost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(receiver: &mut Receiver<Bytes>) -> Vec<String> {
        std::iter::from_fn(|| receiver.try_recv().ok())
            .map(|line| String::from_utf8(line.to_vec()).unwrap())
            .collect()
    }

    /// CONTROL-2: alerts go to everybody, requests so many a second, and what was left out is told.
    #[test]
    fn requests_are_sampled_and_alerts_are_not() {
        let events = Events::default();
        events.decisions(b"nobody listens\n");
        let mut listener = events.listen().unwrap();
        let requests = b"r\n".repeat(103);
        events.decisions(&requests);
        events.alert(b"a\n");
        let lines = heard(&mut listener);
        assert_eq!(lines.len(), 101);
        assert_eq!(lines[100], "a\n");
        events.turn();
        let note = "{\"event\":\"left_out\",\"requests\":3,\"lines_lost\":0}\n";
        assert_eq!(heard(&mut listener), [note]);
        events.turn();
        events.decisions(b"r\n");
        assert_eq!(heard(&mut listener), ["r\n"]);
    }

    /// CONTROL-2: who does not keep up loses lines, which are counted; nobody waits for them.
    #[test]
    fn a_slow_listener_loses_lines() {
        let events = Events::default();
        let mut slow = events.listen().unwrap();
        for _ in 0..QUEUE + 5 {
            events.alert(b"a\n");
        }
        events.turn();
        assert_eq!(events.lost(), 5);
        assert_eq!(heard(&mut slow).len(), QUEUE);
        drop(slow);
        events.turn();
        events.alert(b"a\n");
        events.turn();
        assert_eq!(events.lost(), 5);
    }

    /// CONTROL-2: those who listen are bounded; one who goes makes room.
    #[test]
    fn listeners_are_bounded() {
        let events = Events::default();
        let mut all: Vec<_> = (0..MAX_LISTENERS)
            .map(|_| events.listen().unwrap())
            .collect();
        assert!(events.listen().is_err());
        all.pop();
        assert!(events.listen().is_ok());
    }
}
