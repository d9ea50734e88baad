//! One request from its head until it is charged, counted and logged, however it ends.
//!
//! Whoever holds the exchange holds the duty to finish it. Every exit of a request ends in one
//! function here, which alone counts, charges bytes, keeps the client's history and writes the log
//! record. An exchange that is dropped unfinished is a client that went away.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use http::response::Parts;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use weir_shared::ban::{Cause, Scope};
use weir_shared::clock::Now;
use weir_shared::event::Offence;
use weir_shared::lookup::{Lookup, Origin};
use weir_shared::rules::{Fallen, Rule};
use weir_shared::settings::LogRequests;
use weir_shared::verdict::{Action, History, LimitHit};

use crate::clients::entry::{Entry, Exceeded};
use crate::clients::known::Standing;
use crate::conn::{Downstream, Ending};
use crate::http1::response::HeadText;
use crate::message::{Head, Own};
use crate::request::application::Said;
use crate::request::identity::{Identity, X_REQUEST_ID};
use crate::request::ladder::{Asked, Decision, Refusal};
use crate::request::outcome::{self, AtEnd, Outcome};
use crate::request::problem;
use crate::request::record::{Durations, Ended, ResponseNote, count};
use crate::worker::Worker;

/// A client whose lookup answered while the client itself had been dropped from the table, so that
/// the age of the answer is not known, is asked about again after this.
const ASK_SOON_NS: u64 = 1_000_000_000;

/// One request and its state so far.
pub struct Exchange {
    /// The state that the requests of this thread share.
    pub worker: Rc<Worker>,
    /// The client's connection.
    pub downstream: Rc<Downstream>,
    /// The head as the client sent it.
    pub head: Head<Own>,
    /// The client.
    pub identity: Identity,
    /// Its id, for the log, the application and problem documents.
    pub request_id: HeaderValue,
    /// The ladder's decision, the latest.
    pub decision: Decision,
    /// When its head was read.
    pub started: Now,
    /// When the ladder was asked last: later than the start where a lookup was waited for. Windows
    /// are charged at it.
    pub decided: Now,
    /// Whether it asked for a WebSocket.
    pub websocket: bool,
    /// The lookup of the client when the request ended, where the log or the counts by origin
    /// want it.
    lookup: Option<Arc<Lookup>>,
    /// Passed on to the application: its bytes are charged (LIMIT-5).
    pub forwarded: bool,
    /// In observe mode, the refusal that enforce mode would have made (CHECK-3).
    pub shadow_action: Option<Action>,
    /// The exceeded limit could not be reported: no ban follows it (LIMIT-6).
    pub ban_not_possible: bool,
    /// The entry in the client's history, where the action does not decide it.
    pub history: Option<History>,
    limit_hit: Option<LimitHit>,
    /// What the application said of the client in its answer (APP).
    pub said: Option<Box<Said>>,
    response: ResponseNote,
    /// Body or WebSocket bytes that came from the client, once the connection serves this request
    /// no longer.
    request_bytes: Cell<Option<u64>>,
    /// Body or WebSocket bytes that went to the client.
    pub response_bytes: u64,
    /// The time that its parts took.
    pub durations: Durations,
    finished: bool,
}

impl Exchange {
    /// An exchange whose head was read at `started`, when the ladder decided too.
    pub fn new(
        worker: &Rc<Worker>,
        downstream: &Rc<Downstream>,
        head: Head<Own>,
        identity: Identity,
        decision: Decision,
        started: Now,
        websocket: bool,
    ) -> Box<Self> {
        let request_id = worker
            .request_ids
            .given_or_next(identity.request_id.as_ref());
        Box::new(Self {
            worker: Rc::clone(worker),
            downstream: Rc::clone(downstream),
            head,
            identity,
            request_id,
            decision,
            started,
            decided: started,
            websocket,
            lookup: None,
            forwarded: false,
            shadow_action: None,
            ban_not_possible: false,
            history: None,
            limit_hit: None,
            said: None,
            response: ResponseNote::default(),
            request_bytes: Cell::new(None),
            response_bytes: 0,
            durations: Durations::default(),
            finished: false,
        })
    }

    /// Waits for the client's lookup, at most `WAF_LOOKUP_TIMEOUT`, and asks the ladder again
    /// (LOOKUP-3). Without an answer the client is unknown, and no further request waits for this
    /// lookup.
    pub async fn await_lookup(&mut self) {
        let worker = Rc::clone(&self.worker);
        let client = self.identity.client;
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let on_lookup = Box::new(move |lookup| {
            // The client may have gone; nobody is left to tell.
            let _ = sender.send(lookup);
        });
        let under_way = worker.look_up(client, Some(on_lookup));
        let answer = if under_way {
            let at_most = worker.in_force.settings.lookup.timeout;
            worker.clock.within(at_most, receiver).await
        } else {
            Some(Ok(None))
        };
        self.decided = worker.clock.now();
        let waited_ns = self.decided.mono_ns.saturating_sub(self.started.mono_ns);
        self.durations.lookup_wait = under_way.then_some(waited_ns / 1000);
        match answer {
            // A client that was dropped while it waited has its answer all the same.
            Some(Ok(Some(lookup))) => worker.table.update(client, self.decided, |entry| {
                if entry.lookup.is_none() {
                    let soon_ns = self.decided.mono_ns.saturating_add(ASK_SOON_NS);
                    entry.attach(lookup, soon_ns);
                }
            }),
            Some(Ok(None) | Err(_)) => {}
            None => {
                worker.table.get(client, Entry::stop_waiting);
            }
        }
        let asked = Asked::of(&self.head, &self.identity, false);
        self.decision = worker.decide(&asked, self.decided);
    }

    /// Counts and reports the limit or the trap that a refusal names, if it names one.
    pub fn report(&mut self, refusal: &Refusal) {
        match refusal {
            Refusal::RateLimited { exceeded, ban } => self.limit_exceeded(exceeded, ban.is_some()),
            Refusal::Trapped {
                bans: Some(scope),
                first: true,
                ban,
            } => {
                let offence = outcome::trapped(self.decision.rule.as_ref(), *scope);
                self.offend(offence, ban.is_some());
            }
            Refusal::Trapped { .. } => self.fall(self.decision.rule.as_ref()),
            Refusal::DeniedNet
            | Refusal::DeniedCountry
            | Refusal::DeniedAsn
            | Refusal::DeniedRule(_)
            | Refusal::Banned(_)
            | Refusal::BodyTooLarge => {}
        }
    }

    /// A verified crawler fell into a trap or a jail: nobody is banned, an alert tells of it
    /// (CRAWL-4).
    pub fn fall(&self, rule: Option<&Arc<Rule>>) {
        if let Some((crawler, rule)) = self.decision.claims.verified().zip(rule) {
            crawler.counts.fall(|| Fallen {
                rule: Arc::clone(rule),
                client: self.identity.client,
            });
        }
    }

    /// Counts an exceeded limit; the first since the client's last reset is reported.
    fn limit_exceeded(&mut self, exceeded: &Exceeded, can_ban: bool) {
        self.limit_hit = Some(exceeded.limit);
        self.worker.counters.limit_hit(exceeded.limit);
        if exceeded.first {
            let decision = &self.decision;
            let percents = [decision.limit_percent, decision.bytes_percent];
            let offence = outcome::offence(exceeded, percents, decision.rule.as_ref());
            self.offend(offence, can_ban);
        }
    }

    /// Reports an offence to the control plane, if a ban can follow (LIMIT-6).
    pub fn offend(&mut self, offence: Option<Offence>, can_ban: bool) {
        let (at_ms, client) = (self.decided.wall_ms, self.identity.client);
        let (head, request_id) = (&self.head, &self.request_id);
        let worker = &self.worker;
        let reported = can_ban
            && offence.is_some_and(|offence| {
                let mut report = outcome::report(offence, at_ms, client, head, request_id);
                report.fleet = worker
                    .table
                    .fleet_note(client, &report.offence, self.decided);
                worker.events.report(report)
            });
        if !reported {
            self.ban_not_possible = true;
            (worker.table).update(client, self.decided, Entry::release);
        }
    }

    /// Adds the `RateLimit` fields of the client (LIMIT-8).
    pub fn add_rate_limit_fields(&self, headers: &mut HeaderMap) {
        let worker = &self.worker;
        let now_ms = self.decided.wall_ms;
        let of_entry = |entry: &mut Entry| {
            let limits = entry.limits(&worker.rules.terms);
            let counts = self.decision.counts;
            (limits, counts.unwrap_or_else(|| entry.counts(now_ms)))
        };
        let client = self.identity.client;
        let (limits, counts) = worker.table.update(client, self.decided, of_entry);
        problem::add_fields(headers, &limits, &counts, self.limit_hit, now_ms);
    }

    /// The size of a body that ends the request: none in observe mode, and none for a request that
    /// the ladder let past its limits.
    pub fn body_limit(&self) -> Option<u64> {
        let worker = &self.worker;
        let applies = !worker.accounting.observe && self.decision.counted;
        worker.accounting.max_body_size.filter(|_| applies)
    }

    /// Notes the head of the response for the log, if a request that ends with `action` is logged.
    pub fn note_response(&mut self, head: &Parts, text: Option<&HeadText>, action: Action) {
        let accounting = &self.worker.accounting;
        self.response.status = Some(head.status);
        // In observe mode a body that is still on its way may yet prove too large, and be logged
        // for that.
        let undecided = accounting.observe && accounting.log_requests != LogRequests::Off;
        if undecided || accounting.logs(action) {
            self.response.note(&head.headers, text);
        }
    }

    /// Finishes with a response of ours, which names the request (TELL-1). The connection closes
    /// behind it where a part of the body is left unread.
    pub fn respond(
        mut self: Box<Self>,
        mut response: Response<Bytes>,
        action: Action,
        left_unread: bool,
    ) -> Response<Bytes> {
        if left_unread {
            self.downstream.upload().set_unread(true);
            problem::close(&mut response);
        }
        let (mut head, body) = response.into_parts();
        head.headers.insert(X_REQUEST_ID, self.request_id.clone());
        self.note_response(&head, None, action);
        // The body of an answer to HEAD is not sent.
        if self.head.method != Method::HEAD {
            self.response_bytes = body.len() as u64;
        }
        self.finish(action);
        Response::from_parts(head, body)
    }

    /// The response has ended, though its last bytes may wait to be written: the connection is the
    /// next request's.
    pub fn release_connection(&self) {
        if self.request_bytes.get().is_none() {
            self.request_bytes
                .set(Some(self.downstream.upload().bytes()));
            self.downstream.end_request();
        }
    }

    fn request_bytes(&self) -> u64 {
        let held = self.request_bytes.get();
        held.unwrap_or_else(|| self.downstream.upload().bytes())
    }

    /// Finishes: history, bytes, counters, log record.
    pub fn finish(mut self: Box<Self>, action: Action) {
        self.finish_once(action);
    }

    fn finish_once(&mut self, action: Action) {
        if std::mem::replace(&mut self.finished, true) {
            return;
        }
        let action = self.unless_too_slow(action);
        let ended = self.worker.clock.now();
        self.durations.total = ended.mono_ns.saturating_sub(self.started.mono_ns) / 1000;
        let outcome = self.worker.accounting.outcome(&AtEnd {
            action,
            shadow_action: self.shadow_action,
            history: self.history,
            forwarded: self.forwarded,
            counted: self.decision.counted,
            websocket: self.websocket,
            request_bytes: self.request_bytes(),
            response_bytes: self.response_bytes,
        });
        let origin = self.charge(&outcome, ended);
        let bytes = (self.request_bytes(), self.response_bytes);
        let total_us = self.durations.total;
        let of_client = (origin, self.lookup.as_ref());
        let who = (&self.identity, &self.decision);
        count(&self.worker, who, &outcome, total_us, bytes, of_client);
        if outcome.logged {
            self.log(&outcome, ended);
        }
        self.release_connection();
    }

    /// The action of a request that ends so: a client that was cut for its pace did not go away by
    /// itself (CONN-7). One that was cut is answered 408, if nothing of an answer was written.
    fn unless_too_slow(&mut self, action: Action) -> Action {
        let ending = self.downstream.ending();
        let is_too_slow = matches!(ending, Ending::TooSlow | Ending::Displaced);
        let is_cut = is_too_slow || ending == Ending::BodyTimeout;
        if action != Action::ClientAborted || !is_cut {
            return action;
        }
        if !self.downstream.is_answering() {
            self.response.status = Some(StatusCode::REQUEST_TIMEOUT);
        }
        match is_too_slow {
            true => Action::TooSlow,
            false => action,
        }
    }

    // long: one visit to the client's entry, and what follows from it
    /// Adds the request to its client: history and bytes. Takes from the client what the log and
    /// the counters want.
    fn charge(&mut self, outcome: &Outcome, ended: Now) -> Origin {
        let Self {
            worker,
            decision,
            lookup,
            identity,
            ..
        } = self;
        let watched = worker.counts_origins && worker.reports_finished;
        let wants_lookup = outcome.logged || watched;
        let admits = !(outcome.enforced && decision.admits_nobody());
        let came_ms = self.started.wall_ms;
        // In observe mode, where it matters: what enforce mode would have refused.
        let after = decision.remembers_after;
        let would_be_refused = !outcome.enforced && after.is_some();
        let mut standing = Standing::default();
        let counts = &mut decision.counts;
        let mut origin = Origin::default();
        let work = |entry: &mut Entry| {
            origin = entry.origin();
            if wants_lookup {
                lookup.clone_from(&entry.lookup);
            }
            match outcome.history {
                History::Passed => entry.note_passed(came_ms, would_be_refused),
                History::Refused => entry.refused += 1,
                History::Neither => {}
            }
            if decision.under_way {
                entry.end_request();
            }
            standing = entry.standing();
            let exceeded = outcome.charged_bytes.and_then(|bytes| {
                let rules = &worker.rules;
                let (limits, wall_ms) = (entry.limits(&rules.terms), ended.wall_ms);
                let other_site = identity.other_site;
                let is_crawler = decision.claims.verified().is_some();
                let charging = rules.charging.of_client(is_crawler);
                worker.table.changed(identity.client, entry);
                charging.charge_bytes(entry, &limits, wall_ms, bytes, other_site)
            });
            if let Some(counts) = counts.as_mut().filter(|_| outcome.charged_bytes.is_some()) {
                // The requests as the ladder saw them, the bytes with those of this request (LOG).
                // Where it has none, a ban that followed it may have reset them already.
                counts.bytes = entry.byte_counts(ended.wall_ms);
            }
            exceeded
        };
        let exceeded = if decision.counted {
            worker.table.update(identity.client, ended, work)
        } else if !admits {
            // A refusal admits no client to the table (LIMIT-9).
            let seen = worker.table.seen(identity.client, self.decided, work);
            seen.flatten()
        } else {
            worker.table.touch(identity.client, self.decided, work)
        };
        if outcome.history != History::Neither {
            let passed = outcome.history == History::Passed && outcome.enforced;
            (self.worker).note_known(self.identity.client, (passed, standing), after, ended);
        }
        if let Some(exceeded) = exceeded {
            let who = self.identity.who();
            let can_ban = (self.worker).can_ban(who, Cause::ByteLimit, Scope::Netblock);
            self.limit_exceeded(&exceeded, can_ban);
        }
        origin
    }

    fn log(&self, outcome: &Outcome, now: Now) {
        let ended = Ended {
            started_ms: self.started.wall_ms,
            head: &self.head,
            identity: &self.identity,
            request_id: &self.request_id,
            decision: &self.decision,
            websocket: self.websocket,
            lookup: self.lookup.as_deref(),
            limit_hit: self.limit_hit,
            application: self.said.as_deref().map(Said::text),
            response: &self.response,
            outcome,
            request_bytes: self.request_bytes(),
            response_bytes: self.response_bytes,
            durations: self.durations,
        };
        ended.send(&self.worker, now);
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        // Dropped while it is worked on: its client went away, or a bug unwinds (then 500 was
        // sent).
        if self.finished {
            return;
        }
        self.downstream.note_cut(self.request_id.clone());
        if std::thread::panicking() {
            self.response.status = Some(StatusCode::INTERNAL_SERVER_ERROR);
            self.finish_once(Action::UpstreamError);
        } else {
            self.finish_once(Action::ClientAborted);
        }
    }
}
