//! A request as the log is told of it: copied, because nothing of a request outlives it.

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use weir_shared::clock::Now;
use weir_shared::lookup::Lookup;
use weir_shared::netblock::Netblock;
use weir_shared::record::{Batch, Record};
use weir_shared::verdict::LimitHit;

use crate::head::{Fields, Head};
use crate::headers::number;
use crate::http1::response::HeadText;
use crate::identity::Identity;
use crate::ladder::Decision;
use crate::outcome::Outcome;
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
        match text {
            Some(text) => self.note_text(text),
            None => self.note_fields(headers),
        }
    }

    fn note_text(&mut self, text: &HeadText) {
        let value = |value: Option<&[u8]>| HeaderValue::from_bytes(value?).ok();
        let noted = text.noted().map(value);
        [self.content_type, self.cache_control, self.location] = noted;
    }

    fn note_fields(&mut self, headers: &HeaderMap) {
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
pub struct Ended<'a, H> {
    /// When the head was read, milliseconds since 1970.
    pub started_ms: u64,
    /// As the client sent it.
    pub head: &'a H,
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

impl<H: Head> Ended<'_, H> {
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
            forwarded_for: batch.keep(fields.forwarded_for),
            scheme: self.identity.scheme,
            method: batch.keep(Some(self.head.method())),
            // Also where the target names it: `headers::check_host`.
            host: batch.keep(fields.host),
            path: batch.keep(Some(self.head.path())),
            query: batch.keep(self.head.query()),
            version: self.head.version(),
            user_agent: batch.keep(fields.user_agent),
            referer: batch.keep(fields.referer),
            content_type: batch.keep(fields.content_type),
            content_length: fields.content_length.and_then(number),
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

/// The fields of a head that the log looks at, each the first of its name. One pass: nine looks
/// into the map would cost as much as the rest of the record.
#[derive(Default)]
struct Noted<'a> {
    forwarded_for: Option<&'a [u8]>,
    host: Option<&'a [u8]>,
    user_agent: Option<&'a [u8]>,
    referer: Option<&'a [u8]>,
    content_type: Option<&'a [u8]>,
    content_length: Option<&'a [u8]>,
    authorization: Option<&'a [u8]>,
    cookie: Option<&'a [u8]>,
}

impl<'a> Noted<'a> {
    fn of(head: &'a impl Fields) -> Self {
        let mut fields = Self::default();
        for (name, value) in head.fields() {
            // By length first: a name that is not in small letters is compared with one at most.
            let (field, expected) = match name.len() {
                4 => (&mut fields.host, "host"),
                6 => (&mut fields.cookie, "cookie"),
                7 => (&mut fields.referer, "referer"),
                10 => (&mut fields.user_agent, "user-agent"),
                12 => (&mut fields.content_type, "content-type"),
                13 => (&mut fields.authorization, "authorization"),
                14 => (&mut fields.content_length, "content-length"),
                15 => (&mut fields.forwarded_for, "x-forwarded-for"),
                _ => continue,
            };
            if name.eq_ignore_ascii_case(expected) {
                field.get_or_insert(value);
            }
        }
        fields
    }
}
