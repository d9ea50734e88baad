//! A request that is refused for whom it comes from (steps 4 to 6 of the ladder). Nothing of it was
//! counted before, and nothing of it outlives its answer: it needs no [`super::Exchange`], and is
//! charged, counted and logged as one all the same.

use http::{HeaderValue, StatusCode};
use weir_shared::clock::Now;
use weir_shared::lookup::Lookup;
use weir_shared::verdict::{Action, History};

use super::count;
use super::record::{Durations, Ended, ResponseNote};
use crate::clients::entry::Entry;
use crate::downstream::Downstream;
use crate::head::Head;
use crate::identity::Identity;
use crate::ladder::Decision;
use crate::outcome::{AtEnd, Outcome};
use crate::problem;
use crate::worker::Worker;

/// Such a request.
pub struct Refused<'a, H> {
    /// The state that the requests of this thread share.
    pub worker: &'a Worker,
    /// The client's connection.
    pub downstream: &'a Downstream,
    /// Its head.
    pub head: &'a H,
    /// The client.
    pub identity: &'a Identity,
    /// Its id.
    pub request_id: HeaderValue,
    /// The ladder's decision.
    pub decision: Decision,
    /// When its head was read, and the ladder decided.
    pub started: Now,
    /// Whether it asked for a WebSocket.
    pub websocket: bool,
}

impl<H: Head> Refused<'_, H> {
    /// Ends it with `action`: history, counters, log record. `answer` is the status and the content
    /// type of the response, none where there is none.
    pub fn finish(
        &self,
        action: Action,
        answer: Option<(StatusCode, HeaderValue)>,
        response_bytes: u64,
    ) {
        let Self {
            worker, identity, ..
        } = self;
        let ended = worker.clock.now();
        let total_us = ended.mono_ns.saturating_sub(self.started.mono_ns) / 1000;
        let outcome = worker.accounting.outcome(&AtEnd {
            action,
            shadow_action: None,
            history: None,
            forwarded: false,
            counted: false,
            websocket: self.websocket,
            request_bytes: 0,
            response_bytes,
        });
        let watched = worker.counts_origins && worker.reports_finished;
        let wants_lookup = outcome.logged || watched;
        let note = |entry: &mut Entry| {
            entry.refused += u64::from(outcome.history == History::Refused);
            let lookup = entry.lookup.clone().filter(|_| wants_lookup);
            (entry.origin(), lookup)
        };
        // Who is not kept is not admitted by being refused (LIMIT-9).
        let noted = worker.table.seen(identity.client, self.started, note);
        let (origin, lookup) = noted.unwrap_or_default();
        let of_client = (origin, lookup.as_ref());
        let bytes = (0, response_bytes);
        let who = (*identity, &self.decision);
        count(worker, who, &outcome, total_us, bytes, of_client);
        if outcome.logged {
            self.log(
                &outcome,
                answer,
                total_us,
                response_bytes,
                lookup.as_deref(),
            );
        }
        self.downstream.end_request();
    }

    fn log(
        &self,
        outcome: &Outcome,
        answer: Option<(StatusCode, HeaderValue)>,
        total_us: u64,
        response_bytes: u64,
        lookup: Option<&Lookup>,
    ) {
        let (status, content_type) = answer.unzip();
        let cache_control = content_type.is_some().then_some(problem::NO_STORE);
        let ended = Ended {
            started_ms: self.started.wall_ms,
            head: self.head,
            identity: self.identity,
            request_id: &self.request_id,
            decision: &self.decision,
            websocket: self.websocket,
            lookup,
            limit_hit: None,
            response: &ResponseNote::of_ours(status, content_type, cache_control),
            outcome,
            request_bytes: 0,
            response_bytes,
            durations: Durations {
                total: total_us,
                ..Durations::default()
            },
        };
        ended.send(self.worker, self.started);
    }
}
