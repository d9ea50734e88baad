//! Records as lines. JSON is written by hand, member by member: the order is fixed, nearly no value
//! needs an escape, and this is the most frequent work of the control plane. `combined.rs` has the
//! other form.

use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use http::{HeaderName, Version};
use ipnet::IpNet;
use weir_shared::client::Client;
use weir_shared::netblock::{Netblock, PrefixLengths};
use weir_shared::record::{Batch, Headers, Record, Text, disturbs, logged_headers};
use weir_shared::settings::Settings;
use weir_shared::units::Time;
use weir_shared::verdict::{AppliedPercent, Counts, Group, LimitHit};

use crate::anomaly::watch::Watches;

/// `"name":"` for each header field.
fn members(names: &[HeaderName]) -> Vec<Vec<u8>> {
    let member = |name: &HeaderName| {
        let mut member = vec![b'"'];
        escaped(name.as_str().as_bytes(), &mut member);
        member.extend_from_slice(b"\":\"");
        member
    };
    names.iter().map(member).collect()
}

/// Turns records into lines.
pub(super) struct Form {
    /// `,"instance":"…"`, escaped once.
    instance: Vec<u8>,
    /// The header fields that the batches hold; none before the first batch with fields.
    names: Option<Arc<[HeaderName]>>,
    /// `"name":"` of these fields, escaped once, in the same order.
    headers: Vec<Vec<u8>>,
    prefixes: PrefixLengths,
    watches: Watches,
    pub(super) stamp: Stamp,
}

impl Form {
    pub(super) fn new(settings: &Settings) -> Self {
        let mut instance = Vec::new();
        if let Some(name) = &settings.log.instance_name {
            instance.extend_from_slice(b",\"instance\":\"");
            escaped(name.as_bytes(), &mut instance);
            instance.push(b'"');
        }
        Self {
            instance,
            names: None,
            headers: members(&logged_headers(&settings.log.request_headers)),
            prefixes: settings.bans.prefixes,
            watches: Watches::new(&settings.anomalies.watch_nets),
            stamp: Stamp::default(),
        }
    }

    /// One line for each record, always: whatever bytes are in it, no line break gets through
    /// unescaped (LOG-2).
    pub(super) fn lines(&mut self, batch: &Batch, out: &mut Vec<u8>) {
        self.take_names(batch.names());
        for (record, texts, truncated) in batch.records() {
            // True for nearly every batch; one check of all texts costs a fraction of checking
            // each.
            let plain = is_plain(texts);
            self.line(record, truncated, &mut Line { batch, plain, out });
        }
    }

    /// One line for each count of requests without lines of their own (LOG-6).
    pub(super) fn left_out(&mut self, batch: &Batch, out: &mut Vec<u8>) {
        for left_out in batch.left_out() {
            out.extend_from_slice(b"{\"time\":\"");
            self.stamp.write(left_out.at_ms, out);
            out.extend_from_slice(b"\",\"event\":\"requests_left_out\"");
            out.extend_from_slice(&self.instance);
            if let Some(of) = left_out.netblock {
                out.extend_from_slice(b",\"netblock\":\"");
                netblock(of, out);
                out.push(b'"');
            }
            out.extend_from_slice(b",\"action\":\"");
            out.extend_from_slice(left_out.action.name().as_bytes());
            out.extend_from_slice(b"\",\"count\":");
            number(left_out.count, out);
            out.extend_from_slice(b"}\n");
        }
    }

    /// Takes the header fields of a batch: a reload may have changed which are logged.
    fn take_names(&mut self, names: Option<&Arc<[HeaderName]>>) {
        let is_held = |names: &&Arc<[HeaderName]>| {
            let held = self.names.as_ref();
            held.is_some_and(|held| Arc::ptr_eq(held, names))
        };
        if let Some(names) = names.filter(|names| !is_held(names)) {
            self.headers = members(names);
            self.names = Some(Arc::clone(names));
        }
    }

    // long: a flat list of members
    fn line(&mut self, record: &Record, truncated: bool, line: &mut Line) {
        line.raw(b"{\"time\":\"");
        self.stamp.write(record.at_ms, line.out);
        line.raw(b"\",\"event\":\"request\"");
        line.raw(&self.instance);
        line.text(b",\"request_id\":\"", record.request_id);
        line.raw(b",\"client\":\"");
        client(record.client, line.out);
        line.raw(b"\",\"address\":\"");
        address(record.address, line.out);
        line.raw(b"\",\"netblock\":\"");
        netblock(Netblock::of(record.client, self.prefixes), line.out);
        line.raw(b"\",\"client_group\":\"");
        match self.watch_of(record) {
            // A name or a netblock as the settings read them: nothing in it needs an escape.
            Some(name) => {
                line.raw(b"watch:");
                line.raw(name.as_bytes());
            }
            None => line.raw(record.group.name().as_bytes()),
        }
        line.raw(b"\"");
        line.text(b",\"forwarded_for\":\"", record.forwarded_for);
        line.name(b",\"scheme\":\"", record.scheme);
        line.text(b",\"method\":\"", record.method);
        line.text(b",\"host\":\"", record.host);
        line.text(b",\"path\":\"", record.path);
        line.text(b",\"query\":\"", record.query);
        line.raw(match record.version {
            Version::HTTP_10 => b",\"protocol\":\"HTTP/1.0\"",
            Version::HTTP_2 => b",\"protocol\":\"HTTP/2.0\"",
            _ => b",\"protocol\":\"HTTP/1.1\"",
        });
        line.text(b",\"user_agent\":\"", record.user_agent);
        line.text(b",\"referer\":\"", record.referer);
        line.text(b",\"content_type\":\"", record.content_type);
        if let Some(length) = record.content_length {
            line.number(b",\"content_length\":", length);
        }
        self.headers(record.headers, line);
        line.flag(b",\"has_authorization\":", record.has_authorization);
        line.flag(b",\"has_cookie\":", record.has_cookie);
        line.flag(b",\"websocket\":", record.websocket);
        if record.other_site {
            line.raw(b",\"other_site\":true");
        }
        if let Some(status) = record.status {
            line.number(b",\"status\":", status.as_u16().into());
        }
        line.text(
            b",\"response_content_type\":\"",
            record.response_content_type,
        );
        line.text(b",\"cache_control\":\"", record.cache_control);
        line.text(b",\"location\":\"", record.location);
        if truncated {
            line.raw(b",\"truncated\":true");
        }
        line.name(b",\"action\":\"", record.action.name());
        line.flag(b",\"enforced\":", record.enforced);
        if let Some(ban) = record.ban {
            line.raw(b",\"ban\":{\"netblock\":\"");
            netblock(ban.netblock, line.out);
            line.name(b"\",\"cause\":\"", ban.cause.name());
            // A Vec takes every write.
            drop(write!(line.out, ",\"ban_expires\":\"{}\"}}", ban.expires));
        }
        if let Some(limit) = record.limit_hit {
            match (limit, record.rule) {
                (LimitHit::Rule(_), Some((name, _))) => line.text(b",\"limit_hit\":\"", name),
                _ => line.name(b",\"limit_hit\":\"", limit.name()),
            }
        }
        if let Some((name, kind)) = record.rule {
            line.text(b",\"rule\":{\"name\":\"", name);
            line.name(b",\"kind\":\"", kind.name());
            line.raw(b"}");
        }
        if let Some(key) = record.shared {
            // Words, netblocks, numbers and hashes: nothing in them needs an escape.
            let per = key.per();
            drop(write!(
                line.out,
                ",\"shared\":{{\"per\":\"{per}\",\"key\":\"{key}\"}}"
            ));
        }
        line.text(b",\"application\":\"", record.application);
        if let Some((name, purpose, state)) = record.crawler {
            line.text(b",\"crawler\":{\"name\":\"", name);
            line.name(b",\"purpose\":\"", purpose.name());
            line.name(b",\"state\":\"", state.name());
            line.raw(b"}");
        }
        if let Some((member, source)) = record.list {
            line.raw(b",\"list\":{\"netblock\":\"");
            netblock(member, line.out);
            line.raw(b"\"");
            line.text(b",\"source\":\"", source);
            line.raw(b"}");
        }
        line.percent(b",\"limit_percent\":{\"percent\":", record.limit_percent);
        line.percent(b",\"bytes_percent\":{\"percent\":", record.bytes_percent);
        line.text(b",\"country\":\"", record.country);
        line.text(b",\"asn\":\"", record.asn);
        line.text(b",\"as_name\":\"", record.as_name);
        if let Some(Counts { requests, bytes }) = record.counts {
            line.number(b",\"counts\":{\"minute\":", requests.minute);
            line.number(b",\"hour\":", requests.hour);
            line.number(b",\"day\":", requests.day);
            line.number(b",\"minute_bytes\":", bytes.minute);
            line.number(b",\"hour_bytes\":", bytes.hour);
            line.number(b",\"day_bytes\":", bytes.day);
            line.raw(b"}");
        }
        line.number(b",\"bytes\":{\"request\":", record.request_bytes);
        line.number(b",\"response\":", record.response_bytes);
        line.time(b"},\"timings\":{\"total\":", Some(record.total_us));
        line.time(b",\"lookup_wait\":", record.lookup_wait_us);
        line.time(b",\"connect\":", record.connect_us);
        line.time(b",\"first_byte\":", record.first_byte_us);
        line.raw(b"}}\n");
    }

    /// The watched netblock that names a client's group; the allow and deny lists decide what
    /// happens to a request, so they come first.
    fn watch_of(&self, record: &Record) -> Option<&str> {
        match record.group {
            Group::Default if !self.watches.is_empty() => self.watches.name(record.address),
            Group::Default | Group::Allow | Group::Deny => None,
        }
    }

    /// `headers`: those of `WAF_LOG_REQUEST_HEADERS` that the request has; several of one name are
    /// joined.
    fn headers(&self, headers: Headers, line: &mut Line) {
        let mut before = None;
        for (name, value) in line.batch.headers(headers) {
            if before == Some(name) {
                line.raw(b", ");
            } else {
                line.raw(match before {
                    None => b",\"headers\":{",
                    Some(_) => b"\",",
                });
                line.raw(self.headers.get(*name).map_or(b"", Vec::as_slice));
            }
            line.inside(line.batch.text(*value).unwrap_or_default());
            before = Some(name);
        }
        if before.is_some() {
            line.raw(b"\"}");
        }
    }
}

/// A line that is being written, member by member. Constant names of members include their comma,
/// and for texts the opening quote.
struct Line<'a> {
    batch: &'a Batch,
    /// No text of the record needs an escape.
    plain: bool,
    out: &'a mut Vec<u8>,
}

impl Line<'_> {
    #[inline(always)]
    fn raw(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    /// Writes a member with a text from outside; nothing if there is no text.
    fn text(&mut self, member: &[u8], text: Text) {
        if let Some(bytes) = self.batch.text(text) {
            self.raw(member);
            self.inside(bytes);
            self.raw(b"\"");
        }
    }

    /// Writes the inside of a text from outside.
    fn inside(&mut self, bytes: &[u8]) {
        if self.plain {
            self.raw(bytes);
        } else {
            escaped(bytes, self.out);
        }
    }

    /// Writes a member with a name of this program, which needs no escape.
    fn name(&mut self, member: &[u8], name: &str) {
        self.raw(member);
        self.raw(name.as_bytes());
        self.raw(b"\"");
    }

    fn number(&mut self, member: &[u8], value: u64) {
        self.raw(member);
        number(value, self.out);
    }

    fn flag(&mut self, member: &[u8], value: bool) {
        self.raw(member);
        self.raw(if value { b"true" } else { b"false" });
    }

    fn percent(&mut self, member: &[u8], percent: Option<AppliedPercent>) {
        if let Some(AppliedPercent { percent, setting }) = percent {
            self.number(member, percent.into());
            self.name(b",\"setting\":\"", setting.name());
            self.raw(b"}");
        }
    }

    fn time(&mut self, member: &[u8], microseconds: Option<u64>) {
        if let Some(microseconds) = microseconds {
            self.raw(member);
            milliseconds(microseconds, self.out);
        }
    }
}

/// Times in RFC 3339, UTC, with milliseconds. The date is computed once a second.
#[derive(Default)]
pub(super) struct Stamp {
    at_ms: u64,
    /// `2026-11-21T16:00:00.007Z`; empty before the first use.
    text: Vec<u8>,
}

impl Stamp {
    pub(super) fn write(&mut self, at_ms: u64, out: &mut Vec<u8>) {
        if self.at_ms != at_ms || self.text.is_empty() {
            self.set(at_ms);
        }
        out.extend_from_slice(&self.text);
    }

    fn set(&mut self, at_ms: u64) {
        let second = at_ms / 1000;
        let seconds = self.text.len().saturating_sub(b".007Z".len());
        if self.at_ms / 1000 == second && seconds > 0 {
            self.text.truncate(seconds);
        } else {
            self.text = Time(second * 1000).to_string().into_bytes();
            if self.text.last() == Some(&b'Z') {
                self.text.pop();
            }
        }
        self.at_ms = at_ms;
        self.text.extend_from_slice(&decimals(at_ms % 1000));
        self.text.push(b'Z');
    }
}

/// A point and three digits.
fn decimals(thousandths: u64) -> [u8; 4] {
    let digit = |value: u64| b'0' + (value % 10) as u8;
    [
        b'.',
        digit(thousandths / 100),
        digit(thousandths / 10),
        digit(thousandths),
    ]
}

/// The digits of every octet, left-aligned, and their number.
const OCTETS: [([u8; 3], usize); 256] = octets();

#[expect(clippy::indexing_slicing, reason = "runs when it is compiled")]
const fn octets() -> [([u8; 3], usize); 256] {
    let mut table = [([b'0'; 3], 1); 256];
    let mut octet: u8 = 0;
    loop {
        let [hundreds, tens, ones] = [octet / 100, octet / 10 % 10, octet % 10];
        table[octet as usize] = match octet {
            0..10 => ([b'0' + ones, 0, 0], 1),
            10..100 => ([b'0' + tens, b'0' + ones, 0], 2),
            100.. => ([b'0' + hundreds, b'0' + tens, b'0' + ones], 3),
        };
        if octet == u8::MAX {
            return table;
        }
        octet += 1;
    }
}

/// Copies three bytes and truncates: a copy of constant length needs no call.
fn octet(value: u8, out: &mut Vec<u8>) {
    if let Some((digits, count)) = OCTETS.get(usize::from(value)) {
        out.extend_from_slice(digits);
        out.truncate(out.len() - digits.len() + count);
    }
}

pub(super) fn number(value: u64, out: &mut Vec<u8>) {
    match u8::try_from(value) {
        // Most numbers of a line are this small.
        Ok(small) => octet(small, out),
        Err(_) => out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes()),
    }
}

/// Microseconds as milliseconds with up to three decimals.
pub(super) fn milliseconds(microseconds: u64, out: &mut Vec<u8>) {
    number(microseconds / 1000, out);
    let rest = microseconds % 1000;
    let zeros = match rest {
        0 => return,
        _ if rest.is_multiple_of(100) => 2,
        _ if rest.is_multiple_of(10) => 1,
        _ => 0,
    };
    out.extend_from_slice(&decimals(rest));
    out.truncate(out.len() - zeros);
}

fn client(client: Client, out: &mut Vec<u8>) {
    address(client.first_address(), out);
    if matches!(client, Client::V6(_)) {
        out.extend_from_slice(b"/64");
    }
}

pub(super) fn address(address: IpAddr, out: &mut Vec<u8>) {
    match address {
        IpAddr::V4(v4) => dotted(v4, out),
        // A Vec takes every write.
        IpAddr::V6(v6) => drop(write!(out, "{v6}")),
    }
}

/// Written by hand, because every line has three addresses.
fn dotted(address: Ipv4Addr, out: &mut Vec<u8>) {
    let [a, b, c, d] = address.octets();
    octet(a, out);
    for next in [b, c, d] {
        out.push(b'.');
        octet(next, out);
    }
}

fn netblock(netblock: Netblock, out: &mut Vec<u8>) {
    let net: IpNet = netblock.net();
    address(net.addr(), out);
    out.push(b'/');
    octet(net.prefix_len(), out);
}

/// Whether no byte needs an escape, and all are ASCII.
fn is_plain(bytes: &[u8]) -> bool {
    let plain = |byte: &u8| (0x20..0x7f).contains(byte) && *byte != b'"' && *byte != b'\\';
    // No early exit, so that the compiler can use vector instructions.
    bytes.iter().fold(true, |all, byte| all & plain(byte))
}

/// The inside of a JSON string. Bytes that are not UTF-8 become U+FFFD; control characters are
/// escaped, DEL and the C1 range too, because a log ends up on a terminal.
pub(super) fn escaped(value: &[u8], out: &mut Vec<u8>) {
    if is_plain(value) {
        out.extend_from_slice(value);
        return;
    }
    for chunk in value.utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                '"' => out.extend_from_slice(b"\\\""),
                '\\' => out.extend_from_slice(b"\\\\"),
                '\n' => out.extend_from_slice(b"\\n"),
                '\r' => out.extend_from_slice(b"\\r"),
                '\t' => out.extend_from_slice(b"\\t"),
                _ if disturbs(character) => {
                    // A Vec takes every write.
                    drop(write!(out, "\\u{:04x}", u32::from(character)));
                }
                _ => out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        if !chunk.invalid().is_empty() {
            out.extend_from_slice("\u{fffd}".as_bytes());
        }
    }
}
