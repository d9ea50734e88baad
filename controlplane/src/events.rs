//! The event stream: lines of the request log and alerts, for listeners over the control socket
//! (CONTROL-2).
//!
//! The thread of the request log passes each line here. Every listener gets all alerts, and the
//! first [`DECISIONS_A_SECOND`] requests of each second. A listener that is too slow loses lines.
//! Once a second each listener gets the number of lines left out and lost.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use crate::bans::feed::Feed;
use crate::refusals::Refusals;

/// The most listeners at the same time.
const MAX_LISTENERS: usize = 8;
/// Lines that may wait for one listener.
const QUEUE: usize = 1024;
/// The most requests that a listener gets in one second.
pub const DECISIONS_A_SECOND: u32 = 100;

/// Distributes lines to the listeners.
#[derive(Default)]
pub struct Events {
    /// Whether anybody listens. If not, the thread of the log takes no lock.
    heard: AtomicBool,
    /// At most [`MAX_LISTENERS`].
    listeners: Mutex<Vec<Listener>>,
    /// Lines lost by all listeners so far.
    lost: AtomicU64,
    /// The last refusals, for later questions.
    refusals: Refusals,
    /// Changes of the bans.
    bans: Arc<Feed>,
}

struct Listener {
    lines: Sender<Bytes>,
    /// How many further requests it may get in this second.
    rest: u32,
    /// Requests beyond that, since the last note.
    left_out: u64,
    /// Lines that found no room, since the last note.
    lost: u64,
}

/// The error that no further listener is allowed.
#[derive(Debug)]
pub(crate) struct TooMany {
    /// The most listeners.
    pub(crate) most: usize,
}

impl Events {
    /// Adds a listener.
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
        // Relaxed: one line more or less at the beginning does not matter.
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

    /// Distributes an alert, with its line break.
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

    /// Distributes requests, each with its line break.
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

    /// After each second: tells each listener how many lines it missed.
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
        // Nothing panics while the lock is held; even then the list would be whole.
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

    /// A line about missed lines, if there were any.
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

    /// CONTROL-2: every listener gets all alerts, a bounded number of requests a second, and the
    /// number of the requests left out.
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

    /// CONTROL-2: a listener that is too slow loses lines, which are counted; nothing waits for it.
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

    /// CONTROL-2: the number of listeners is bounded; one that leaves makes room.
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
