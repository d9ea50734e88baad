//! Answers to an administrator's ban or lift that wait until the change is in force at the other
//! instances (FLEET-14), and until fleet.json holds it (FLEET-15).

use std::collections::VecDeque;

use crossbeam_channel::{Receiver, Select, Sender, bounded};
use serde_json::{Value, json};
use weir_shared::handover::Respond;

use super::engine::Cursor;
use crate::admin::bans::Pending;

/// How long an answer waits for the others, and for the disk.
const OTHERS_NS: u64 = 1_000_000_000;
const DISK_NS: u64 = 5_000_000_000;
/// The most answers that wait; a further one is sent without waiting.
const MAX_WAITING: usize = 256;

/// A change that bans.json holds.
struct Saved {
    respond: Respond,
    pending: Pending,
    persisted: bool,
    /// The change that fleet.json must hold.
    change: u64,
}

struct Wait {
    saved: Saved,
    begun_ns: u64,
    /// The batch with this change, once the engine took it.
    seq: Option<u64>,
}

/// How far the instance's events have come.
pub(super) struct Reach<'a> {
    pub(super) now_ns: u64,
    /// Whether the engine answers.
    pub(super) is_linked: bool,
    /// Whether it has not answered for a while: answers do not wait for it then.
    pub(super) is_alone: bool,
    /// The last batch that the engine took, once it has taken everything of this instance.
    pub(super) taken: Option<u64>,
    /// The newest own batch that was read back, and where it is in the log.
    pub(super) own: Option<(u64, Cursor)>,
    /// The name of this instance.
    pub(super) me: &'a str,
}

/// The waiting answers.
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
    /// Makes the answer wait for the others after it has waited for bans.json.
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

    /// Adds the channel of saved changes to the loop's select.
    pub(super) fn select<'a>(&'a self, select: &mut Select<'a>) {
        select.recv(&self.saved);
    }

    /// Whether an answer waits.
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Sends the answers that need not wait any longer. `reached` returns the instances that have
    /// read the log up to a place, and those that have not.
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
            // After a reconnect the engine may have lost what it took.
            let taken = wait.seq.or(reach.taken);
            wait.seq = taken.filter(|_| reach.is_linked);
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
    /// Where the change is in force, and whether that is everywhere.
    fn stand<'o>(
        &self,
        reach: &Reach<'o>,
        reached: &impl Fn(Cursor) -> (Vec<&'o str>, Vec<&'o str>),
    ) -> (Value, bool) {
        if !reach.is_linked {
            return (json!({ "queued": true }), reach.is_alone);
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

#[cfg(test)]
mod tests {
    use super::*;

    /// FLEET-14: while the instance introduces itself to an engine again, for example an emptied
    /// one, an answer waits for it within its second; without an engine it does not wait.
    #[test]
    fn an_answer_waits_while_the_engine_is_met_anew() {
        let ms = 1_000_000;
        let turn = |waits: &mut Waits, now_ms: u64, link: (bool, bool), taken: Option<u64>| {
            let place = Cursor { ms: 7, count: 0 };
            let reach = Reach {
                now_ns: now_ms * ms,
                is_linked: link.0,
                is_alone: link.1,
                taken,
                own: taken.map(|taken| (taken, place)),
                me: "edge-1",
            };
            waits.turn(&reach, |_| (vec!["edge-2"], Vec::new()), |_| true);
        };
        let follow = |waits: &Waits| {
            let mut pending = Pending::lifted(&[]);
            waits.follow(&mut pending, 0);
            let (told, answer) = bounded(1);
            let respond = Box::new(move |response| drop(told.send(response)));
            pending.answer_to(respond, true);
            answer
        };
        let mut waits = Waits::default();
        let fleet = |answer: &Receiver<_>| {
            let told = crate::testing::body(&answer.try_recv().ok()?);
            Some(told["fleet"].clone())
        };
        let answer = follow(&waits);
        turn(&mut waits, 0, (false, false), Some(9));
        turn(&mut waits, 400, (true, false), None);
        assert_eq!(fleet(&answer), None);
        turn(&mut waits, 500, (true, false), Some(1));
        let in_force = json!({"instances": 2, "in_force": ["edge-1", "edge-2"], "pending": []});
        assert_eq!(fleet(&answer), Some(in_force));
        let answer = follow(&waits);
        turn(&mut waits, 1000, (false, false), None);
        turn(&mut waits, 1999, (false, false), None);
        assert_eq!(fleet(&answer), None);
        turn(&mut waits, 2000, (false, false), None);
        let queued = json!({"queued": true});
        assert_eq!(fleet(&answer), Some(queued.clone()));
        let answer = follow(&waits);
        turn(&mut waits, 3000, (false, true), None);
        assert_eq!(fleet(&answer), Some(queued));
    }
}
