//! A request at its end: counted, and told to the log. One that is refused for whom it comes from
//! (steps 4 to 6 of the ladder) ends here; nothing of it was counted before, and nothing of it
//! outlives its answer.

use std::borrow::Cow;
use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use weir_shared::clock::Now;
use weir_shared::event::Finished;
use weir_shared::lookup::{Lookup, Origin};
use weir_shared::netblock::Netblock;
use weir_shared::record::{Batch, Record};
use weir_shared::verdict::{Action, History, LimitHit};

use crate::clients::entry::Entry;
use crate::conn::Downstream;
use crate::http1::response::HeadText;
use crate::message::{Fields, Form, Head, is};
use crate::request::identity::Identity;
use crate::request::ladder::Decision;
use crate::request::outcome::{AtEnd, Outcome};
use crate::request::problem;
use crate::worker::Worker;

/// The parts of a response's head that are logged.
#[derive(Default)]
pub struct ResponseNote {
    /// None where the connection was closed unanswered.
    pub status: Option<StatusCode>,
    content_type: Option<HeaderValue>,
    cache_control: Option<HeaderValue>,
    location: Option<HeaderValue>,
}

impl ResponseNote {
    /// That of a response of ours with these fields.
    pub const fn of_ours(
        status: Option<StatusCode>,
        content_type: Option<HeaderValue>,
        cache_control: Option<HeaderValue>,
    ) -> Self {
        Self {
            status,
            content_type,
            cache_control,
            location: None,
        }
    }

    /// Copies the logged fields, each the first of its name. They are in the text, where there is
    /// one.
    pub fn note(&mut self, headers: &HeaderMap, text: Option<&HeadText>) {
        if let Some(text) = text {
            let value = |value: Option<&[u8]>| HeaderValue::from_bytes(value?).ok();
            [self.content_type, self.cache_control, self.location] = text.noted().map(value);
            return;
        }
        for (name, value) in headers {
            let noted = match name.as_str() {
                "content-type" => &mut self.content_type,
                "cache-control" => &mut self.cache_control,
                "location" => &mut self.location,
                _ => continue,
            };
            noted.get_or_insert_with(|| value.clone());
        }
    }
}

/// Microseconds that parts of a request took, as far as it came.
#[derive(Clone, Copy, Debug, Default)]
pub struct Durations {
    /// From the head to the end.
    pub total: u64,
    /// Waited for the client's lookup.
    pub lookup_wait: Option<u64>,
    /// Connecting upstream; none on a pooled connection.
    pub connect: Option<u64>,
    /// From the head to the first byte of the application's response.
    pub first_byte: Option<u64>,
}

/// A request that has ended.
pub struct Ended<'a, F> {
    /// When the head was read, milliseconds since 1970.
    pub started_ms: u64,
    /// As the client sent it.
    pub head: &'a Head<F>,
    /// The client.
    pub identity: &'a Identity,
    /// Its id.
    pub request_id: &'a HeaderValue,
    /// The ladder's decision.
    pub decision: &'a Decision,
    /// Whether it asked for a WebSocket.
    pub websocket: bool,
    /// The lookup of the client, as far as it was known at the end.
    pub lookup: Option<&'a Lookup>,
    /// The limit it exceeded.
    pub limit_hit: Option<LimitHit>,
    /// What the application said of the client.
    pub application: Option<&'a str>,
    /// The response.
    pub response: &'a ResponseNote,
    /// How it ended.
    pub outcome: &'a Outcome,
    /// Body or WebSocket bytes from the client.
    pub request_bytes: u64,
    /// Body or WebSocket bytes to the client.
    pub response_bytes: u64,
    /// The time that its parts took.
    pub durations: Durations,
}

impl<F: Form> Ended<'_, F> {
    /// Sends its record to the log. Those of clients that are refused without end are bounded
    /// (LOG-6).
    pub fn send(&self, worker: &Worker, now: Now) {
        let names = &worker.in_force.logged_headers;
        let fill = |batch: &mut Batch| self.record(names, batch);
        let action = self.outcome.action;
        if self.outcome.enforced && action.is_bounded_in_log() {
            let netblock = Netblock::of(self.identity.client, worker.rules.ban_prefixes);
            let within = (worker.accounting.log_refused_rate, now);
            let events = &worker.events;
            events.record_refused(names, (netblock, action), within, fill);
        } else {
            worker.events.record(names, fill);
        }
    }

    /// The record of the log, its texts kept in the batch.
    // long: a flat list of the record's members
    fn record(&self, logged_headers: &[HeaderName], batch: &mut Batch) -> Record {
        let fields = Noted::of(self.head);
        let logged_headers = logged_headers.iter().enumerate();
        let lookup = self.lookup;
        Record {
            at_ms: self.started_ms,
            request_id: batch.keep(Some(self.request_id)),
            client: self.identity.client,
            address: self.identity.address,
            group: self.decision.group,
            other_site: self.identity.other_site,
            forwarded_for: batch.keep(fields.forwarded_for.as_ref()),
            scheme: self.identity.scheme,
            method: batch.keep(Some(self.head.method.as_str())),
            host: batch.keep(self.head.host()),
            path: batch.keep(Some(self.head.path())),
            query: batch.keep(self.head.query()),
            version: self.head.version,
            user_agent: batch.keep(fields.user_agent),
            referer: batch.keep(fields.referer),
            content_type: batch.keep(fields.content_type),
            content_length: self.head.length.announced(),
            headers: batch.keep_headers(logged_headers.flat_map(|(name, field)| {
                let values = self.head.values_of(field);
                values.map(move |value| (name, value))
            })),
            has_authorization: fields.authorization.is_some(),
            has_cookie: fields.cookie.is_some(),
            websocket: self.websocket,
            status: self.response.status,
            response_content_type: batch.keep(self.response.content_type.as_ref()),
            cache_control: batch.keep(self.response.cache_control.as_ref()),
            location: batch.keep(self.response.location.as_ref()),
            action: self.outcome.action,
            enforced: self.outcome.enforced,
            ban: self.decision.ban(),
            limit_hit: self.limit_hit,
            rule: (self.decision.rule.as_ref())
                .map(|rule| (batch.keep(Some(&rule.name)), rule.kind)),
            shared: self.decision.shared,
            application: batch.keep(self.application),
            crawler: (self.decision.claims.claim.as_ref()).map(|claim| {
                let name = batch.keep(Some(&claim.crawler.rule.name));
                (name, claim.crawler.purpose, claim.state)
            }),
            list: (self.decision.list.as_ref())
                .map(|hit| (hit.netblock, batch.keep(Some(&hit.source.name)))),
            limit_percent: self.decision.limit_percent,
            bytes_percent: self.decision.bytes_percent,
            country: batch.keep(lookup.and_then(|known| known.country.as_ref())),
            asn: batch.keep(lookup.and_then(|known| known.asn.as_ref())),
            as_name: batch.keep(lookup.and_then(|known| known.as_name.as_ref())),
            counts: self.decision.counts,
            request_bytes: self.request_bytes,
            response_bytes: self.response_bytes,
            total_us: self.durations.total,
            lookup_wait_us: self.durations.lookup_wait,
            connect_us: self.durations.connect,
            first_byte_us: self.durations.first_byte,
        }
    }
}

/// Counts a request that has ended: metrics, rules, origins, what the anomaly counters are told.
/// `bytes` are those of the request and of the response.
pub fn count(
    worker: &Worker,
    (identity, decision): (&Identity, &Decision),
    outcome: &Outcome,
    total_us: u64,
    (request_bytes, response_bytes): (u64, u64),
    (origin, lookup): (Origin, Option<&Arc<Lookup>>),
) {
    if let Some(claim) = &decision.claims.claim {
        claim.count(outcome.action.is_refusal());
    }
    let list = decision.list.as_ref().map(|hit| &hit.source);
    for rule in list.into_iter().chain(&decision.rule) {
        rule.hit();
    }
    worker
        .counters
        .request(outcome.action, total_us, request_bytes, response_bytes);
    if worker.counts_origins {
        worker.events.origin(origin);
    }
    if worker.reports_finished {
        worker.events.finished(Finished {
            address: identity.address,
            lookup: lookup.cloned(),
            bytes: request_bytes.saturating_add(response_bytes),
        });
    }
}

/// The fields of a head that the log looks at, each the first of its name. One pass: a look for
/// each of them would cost as much as the rest of the record.
#[derive(Default)]
struct Noted<'a> {
    /// All its lines: a proxy may add a line of its own below that of the client (CLIENT-3).
    forwarded_for: Option<Cow<'a, [u8]>>,
    user_agent: Option<&'a [u8]>,
    referer: Option<&'a [u8]>,
    content_type: Option<&'a [u8]>,
    authorization: Option<&'a [u8]>,
    cookie: Option<&'a [u8]>,
}

impl<'a> Noted<'a> {
    fn of(head: &'a impl Fields) -> Self {
        let mut fields = Self::default();
        for (name, value) in head.fields() {
            let field = match name.len() {
                6 if is(name, b"cookie") => &mut fields.cookie,
                7 if is(name, b"referer") => &mut fields.referer,
                10 if is(name, b"user-agent") => &mut fields.user_agent,
                12 if is(name, b"content-type") => &mut fields.content_type,
                13 if is(name, b"authorization") => &mut fields.authorization,
                15 if is(name, b"x-forwarded-for") => {
                    fields.add_forwarded_for(value);
                    continue;
                }
                _ => continue,
            };
            field.get_or_insert(value);
        }
        fields
    }

    fn add_forwarded_for(&mut self, value: &'a [u8]) {
        match &mut self.forwarded_for {
            Some(lines) => {
                let lines = lines.to_mut();
                lines.extend_from_slice(b", ");
                lines.extend_from_slice(value);
            }
            None => self.forwarded_for = Some(Cow::Borrowed(value)),
        }
    }
}

/// A request that is refused for its client, and ends here.
pub struct Refused<'a, F> {
    /// The state that the requests of this thread share.
    pub worker: &'a Worker,
    /// The client's connection.
    pub downstream: &'a Downstream,
    /// Its head.
    pub head: &'a Head<F>,
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

impl<F: Form> Refused<'_, F> {
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
            (entry.origin(), lookup, entry.standing())
        };
        // A refusal admits no client to the table (LIMIT-9).
        let noted = worker.table.seen(identity.client, self.started, note);
        let (origin, lookup, standing) = noted.unwrap_or_default();
        if outcome.history == History::Refused {
            let after = self.decision.remembers_after;
            worker.note_known(identity.client, (false, standing), after, ended);
        }
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
            application: None,
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
