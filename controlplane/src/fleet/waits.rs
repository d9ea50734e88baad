//! Answers to an admin's ban or lift that wait until it is in force at the others (FLEET-14), and
//! until fleet.json holds it (FLEET-15).

use std::collections::VecDeque;

use crossbeam_channel::{Receiver, Select, Sender, bounded};
use serde_json::{Value, json};
use weir_shared::handover::Respond;

use super::engine::Cursor;
use crate::admin::bans::Pending;

/// How long an answer waits for the others, and for the disk.
const OTHERS_NS: u64 = 1_000_000_000;
const DISK_NS: u64 = 5_000_000_000;
/// The most answers that wait; one more waits for nobody.
const MAX_WAITING: usize = 256;

/// A change that is on disk as far as bans.json goes.
struct Saved {
    respond: Respond,
    pending: Pending,
    persisted: bool,
    /// The change of fleet.json that it needs.
    change: u64,
}

struct Wait {
    saved: Saved,
    begun_ns: u64,
    /// The batch that holds it, once it was taken.
    seq: Option<u64>,
}

/// How far the instance is.
pub(super) struct Reach<'a> {
    pub(super) now_ns: u64,
    /// Whether the engine answers.
    pub(super) is_linked: bool,
    /// Whether everything of this instance was taken, and the last batch that was.
    pub(super) taken: Option<u64>,
    /// The newest own batch that was read back, and where it is in the log.
    pub(super) own: Option<(u64, Cursor)>,
    /// The name of this instance.
    pub(super) me: &'a str,
}

/// Those that wait.
pub(super) struct Waits {
    told: Sender<Saved>,
    saved: Receiver<Saved>,
    waiting: VecDeque<Wait>,
}

impl Default for Waits {
    fn default() -> Self {
        let (told, saved) = bounded(MAX_WAITING);
        Self {
            told,
            saved,
            waiting: VecDeque::new(),
        }
    }
}

impl Waits {
    /// The answer waits for the others once it has waited for bans.json.
    pub(super) fn follow(&self, pending: &mut Pending, change: u64) {
        let told = self.told.clone();
        pending.then(move |respond, pending, persisted| {
            let saved = Saved {
                respond,
                pending,
                persisted,
                change,
            };
            if let Err(full) = told.try_send(saved) {
                let Saved {
                    respond, pending, ..
                } = full.into_inner();
                respond(pending.answer(persisted));
            }
        });
    }

    /// What the loop wakes for.
    pub(super) fn select<'a>(&'a self, select: &mut Select<'a>) {
        select.recv(&self.saved);
    }

    /// Whether somebody waits for others.
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Answers those that have waited enough. `reached` tells who has taken in the log up to a
    /// place, and who has not.
    pub(super) fn turn<'o>(
        &mut self,
        reach: &Reach<'o>,
        reached: impl Fn(Cursor) -> (Vec<&'o str>, Vec<&'o str>),
        is_kept: impl Fn(u64) -> bool,
    ) {
        while let Ok(saved) = self.saved.try_recv() {
            let wait = Wait {
                saved,
                begun_ns: reach.now_ns,
                seq: None,
            };
            self.waiting.push_back(wait);
        }
        let mut still = VecDeque::new();
        let mut room = MAX_WAITING;
        while let Some(mut wait) = self.waiting.pop_front() {
            wait.seq = wait.seq.or(reach.taken);
            let waited_ns = reach.now_ns.saturating_sub(wait.begun_ns);
            let (fleet, is_there) = wait.stand(reach, &reached);
            let is_kept = is_kept(wait.saved.change);
            let enough = is_there || waited_ns >= OTHERS_NS || room == 0;
            if enough && (is_kept || waited_ns >= DISK_NS || room == 0) {
                let Saved {
                    respond,
                    mut pending,
                    persisted,
                    ..
                } = wait.saved;
                pending.insert("fleet", fleet);
                respond(pending.answer(persisted && is_kept));
            } else {
                room -= 1;
                still.push_back(wait);
            }
        }
        self.waiting = still;
    }
}

impl Wait {
    /// Where it is in force, and whether that is everywhere.
    fn stand<'o>(
        &self,
        reach: &Reach<'o>,
        reached: &impl Fn(Cursor) -> (Vec<&'o str>, Vec<&'o str>),
    ) -> (Value, bool) {
        if !reach.is_linked {
            return (json!({ "queued": true }), true);
        }
        let place = match (self.seq, reach.own) {
            // Nothing of this instance was ever sent.
            (Some(0), _) => Some(Cursor::default()),
            (Some(seq), Some((own, place))) if own >= seq => Some(place),
            _ => None,
        };
        let last = Cursor {
            ms: u64::MAX,
            count: u64::MAX,
        };
        let (mut there, pending) = reached(place.unwrap_or(last));
        there.insert(0, reach.me);
        let is_there = place.is_some() && pending.is_empty();
        let fleet = json!({
            "instances": there.len() + pending.len(),
            "in_force": there,
            "pending": pending,
        });
        (fleet, is_there)
    }
}
