//! The request log: one JSON object a line for each request, written by a thread of its own (LOG-1..3).
//!
//! Records arrive in batches over a bounded channel and are turned into text here, many lines a write. Which requests
//! are logged (`WAF_LOG_REQUESTS`) and what happens to a batch that finds the channel full are the sender's business.
//! Alerts arrive as whole lines over a channel of their own, also where no request is logged (ALERT-4).
//!
//! The thread looks into the channel on a short tick and never waits on it: a waiting receiver costs each sender a lock and
//! a wake-up on the request path. Emptied batches go back to the workers. JSON is written by hand, member by member,
//! because the order is fixed, nearly every value needs no escape, and this is the most repeated work of the control plane.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::Thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crossbeam_channel::{Receiver, Sender, TryRecvError, bounded};
use http::Version;
use ipnet::IpNet;
use weir_shared::client::Client;
use weir_shared::netblock::{Netblock, PrefixLengths};
use weir_shared::record::{Batch, Headers, Record, Text, logged_headers};
use weir_shared::settings::Settings;
use weir_shared::units::Time;
use weir_shared::verdict::{AppliedPercent, Counts, Group};

use crate::anomaly::watch::Watches;

/// How often the channel is looked into.
const TICK: Duration = Duration::from_millis(20);
/// How often a write is tried again that failed.
const RETRY: Duration = Duration::from_secs(1);
/// Lines are gathered up to this size before a write.
const CHUNK_BYTES: usize = 64 << 10;
/// A stop waits no longer than this for a reader that does not read.
const STOP_WAIT: Duration = Duration::from_secs(5);

/// The number of records that were lost to a full channel so far.
pub type Lost = Arc<dyn Fn() -> u64 + Send + Sync>;

/// The handle to the writer's thread.
pub struct RequestLog {
    control: Sender<Control>,
    thread: Thread,
    /// Disconnected when the thread has ended.
    ended: Receiver<()>,
}

enum Control {
    Reopen,
    Stop,
}

impl RequestLog {
    /// Opens the log and starts the writer. Emptied batches go to `spare`, for the workers to fill again. `lines` are
    /// alerts, each with its line break; with `WAF_LOG_REQUESTS=off` nothing else is written.
    ///
    /// # Errors
    /// One sentence, if `WAF_LOG_FILE` cannot be opened.
    pub fn start(
        settings: &Settings,
        records: Receiver<Batch>,
        spare: Sender<Batch>,
        lines: Receiver<Vec<u8>>,
        lost: Lost,
    ) -> Result<Self, String> {
        let target = Target::open(settings.log.file.clone())?;
        let (control, orders) = bounded(8);
        let (ending, ended) = bounded(0);
        let writer = Writer {
            form: Form::new(settings),
            records,
            spare,
            lines,
            orders,
            lost,
            lost_logged: 0,
            target,
            pending: Vec::with_capacity(CHUNK_BYTES + (CHUNK_BYTES >> 2)),
            written: 0,
            failing: false,
            _ending: ending,
        };
        let thread = weir_shared::threads::spawn("weir-log", move || writer.run())
            .map_err(|error| format!("the thread of the request log cannot be started: {error}"))?
            .thread()
            .clone();
        Ok(Self {
            control,
            thread,
            ended,
        })
    }

    /// Opens `WAF_LOG_FILE` again, after what came so far is written to the old one (SIGUSR1, for log rotation).
    pub fn reopen(&self) {
        // Full: as many are waiting already, one more would change nothing.
        let _ = self.control.try_send(Control::Reopen);
        self.thread.unpark();
    }

    /// Writes what is in the channel and ends the thread. A reader that does not read is waited for 5 seconds.
    pub fn stop(self) {
        let _ = self.control.send_timeout(Control::Stop, STOP_WAIT);
        self.thread.unpark();
        let _ = self.ended.recv_timeout(STOP_WAIT);
    }
}

/// Where lines go.
struct Target {
    file: File,
    /// None is standard output.
    path: Option<PathBuf>,
}

impl Target {
    fn open(path: Option<PathBuf>) -> Result<Self, String> {
        let file = match &path {
            Some(path) => append(path).map_err(|error| {
                format!(
                    "WAF_LOG_FILE {} cannot be opened: {error}; make it writable or unset WAF_LOG_FILE",
                    path.display()
                )
            })?,
            // Its own descriptor: the standard library's would copy every line through a line buffer.
            None => io::stdout()
                .as_fd()
                .try_clone_to_owned()
                .map(File::from)
                .map_err(|error| format!("standard output cannot be opened: {error}"))?,
        };
        Ok(Self { file, path })
    }
}

fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o640)
        .open(path)
}

/// The thread.
struct Writer {
    form: Form,
    records: Receiver<Batch>,
    spare: Sender<Batch>,
    lines: Receiver<Vec<u8>>,
    orders: Receiver<Control>,
    lost: Lost,
    lost_logged: u64,
    target: Target,
    /// Lines not written yet; grows to a chunk and one batch.
    pending: Vec<u8>,
    /// Bytes of `pending` that are written.
    written: usize,
    failing: bool,
    _ending: Sender<()>,
}

impl Writer {
    fn run(mut self) {
        loop {
            if self.orders.is_empty() && (self.failing || self.is_idle()) {
                // Not the channel's own wait: it gives way to other threads several times before it sleeps.
                std::thread::park_timeout(if self.failing { RETRY } else { TICK });
            }
            let order = self.orders.try_recv();
            self.drain();
            match order {
                Ok(Control::Reopen) => self.reopen(),
                Ok(Control::Stop) | Err(TryRecvError::Disconnected) => return,
                Err(TryRecvError::Empty) => {}
            }
        }
    }

    fn is_idle(&self) -> bool {
        self.records.is_empty() && self.lines.is_empty()
    }

    /// Writes what waits in the channels at this moment, and no more: in an overload that fills them as fast as they are
    /// emptied, rotation and the line about lost lines must still come.
    fn drain(&mut self) {
        for _ in 0..self.lines.len() + self.records.len() {
            // What cannot be written stays; the channels fill, and what does not fit into them is counted by its sender.
            if self.pending.len() >= CHUNK_BYTES && !self.write() {
                return;
            }
            // Alerts first: they are few, and matter most when there are many records.
            if let Ok(line) = self.lines.try_recv() {
                self.pending.extend_from_slice(&line);
            } else if let Ok(mut batch) = self.records.try_recv() {
                self.form.lines(&batch, &mut self.pending);
                batch.clear();
                // Enough are kept already: this one is freed.
                let _ = self.spare.try_send(batch);
            }
        }
        self.note_losses();
        self.write();
    }

    /// One line that tells how many are missing.
    #[expect(
        clippy::disallowed_methods,
        reason = "the time of one line of the log, at the edge"
    )]
    fn note_losses(&mut self) {
        let lost = (self.lost)();
        if let Some(count) = lost.checked_sub(self.lost_logged).filter(|n| *n > 0) {
            self.lost_logged = lost;
            let now_ms = SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |since| {
                    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
                });
            let out = &mut self.pending;
            out.extend_from_slice(b"{\"time\":\"");
            self.form.stamp.write(now_ms, out);
            out.extend_from_slice(b"\",\"event\":\"log_lines_dropped\",\"count\":");
            number(count, out);
            out.extend_from_slice(b"}\n");
        }
    }

    /// Writes the pending lines; false if some are left.
    fn write(&mut self) -> bool {
        while let Some(rest) = self.pending.get(self.written..).filter(|r| !r.is_empty()) {
            match self.target.file.write(rest) {
                Ok(0) => break,
                Ok(count) => self.written += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    if !self.failing {
                        tracing::error!(
                            "the request log cannot be written: {error}; it is tried again every second, and lines that find no room are counted"
                        );
                    }
                    self.failing = true;
                    return false;
                }
            }
        }
        if self.failing {
            tracing::info!("the request log is written again");
        }
        self.failing = false;
        self.pending.clear();
        self.written = 0;
        true
    }

    fn reopen(&mut self) {
        let Some(path) = self.target.path.clone() else {
            return;
        };
        if !self.write() {
            // The old file takes no more: a line it has only a part of goes whole to the new one.
            let done = self.pending.get(..self.written).unwrap_or_default();
            self.written = done
                .iter()
                .rposition(|byte| *byte == b'\n')
                .map_or(0, |at| at + 1);
        }
        match Target::open(Some(path)) {
            Ok(target) => {
                self.target = target;
                self.write();
            }
            Err(error) => tracing::error!("{error}; the old file is written on"),
        }
    }
}

/// A door for the fuzz targets: the lines of a batch.
#[cfg(fuzzing)]
pub fn lines(settings: &Settings, batch: &Batch) -> Vec<u8> {
    let mut out = Vec::new();
    Form::new(settings).lines(batch, &mut out);
    out
}

/// Turns records into lines.
struct Form {
    /// `,"instance":"…"`, escaped once.
    instance: Vec<u8>,
    /// `"name":"` of those that may be logged, escaped once; in the order of [`logged_headers`].
    headers: Vec<Vec<u8>>,
    prefixes: PrefixLengths,
    watches: Watches,
    stamp: Stamp,
}

impl Form {
    fn new(settings: &Settings) -> Self {
        let mut instance = Vec::new();
        if let Some(name) = &settings.log.instance_name {
            instance.extend_from_slice(b",\"instance\":\"");
            escaped(name.as_bytes(), &mut instance);
            instance.push(b'"');
        }
        let headers = logged_headers(&settings.log.request_headers)
            .into_iter()
            .map(|name| {
                let mut member = vec![b'"'];
                escaped(name.as_str().as_bytes(), &mut member);
                member.extend_from_slice(b"\":\"");
                member
            })
            .collect();
        Self {
            instance,
            headers,
            prefixes: settings.bans.prefixes,
            watches: Watches::new(&settings.anomalies.watch_nets),
            stamp: Stamp::default(),
        }
    }

    /// One line for each record, always: whatever bytes are in it, no line break gets through unescaped (LOG-2).
    fn lines(&mut self, batch: &Batch, out: &mut Vec<u8>) {
        for (record, texts) in batch.records() {
            // Nearly always; one look at all texts costs a fraction of a look at each.
            let plain = is_plain(texts);
            self.line(record, &mut Line { batch, plain, out });
        }
    }

    fn line(&mut self, record: &Record, line: &mut Line) {
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
        if let Some(status) = record.status {
            line.number(b",\"status\":", status.as_u16().into());
        }
        line.text(
            b",\"response_content_type\":\"",
            record.response_content_type,
        );
        line.text(b",\"cache_control\":\"", record.cache_control);
        line.text(b",\"location\":\"", record.location);
        line.name(b",\"action\":\"", record.action.name());
        line.flag(b",\"enforced\":", record.enforced);
        if let Some(limit) = record.limit_hit {
            line.name(b",\"limit_hit\":\"", limit.name());
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

    /// The watched netblock that names a client's group; the allow and deny lists decide what happens to a request, so
    /// they come first.
    fn watch_of(&self, record: &Record) -> Option<&str> {
        match record.group {
            Group::Default if !self.watches.is_empty() => self.watches.name(record.address),
            Group::Default | Group::Allow | Group::Deny => None,
        }
    }

    /// `headers`: those of `WAF_LOG_REQUEST_HEADERS` that the request has; several of one name are joined.
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

/// A line that is written, member by member. Names of members come with their comma, and texts with their opening quote.
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

    /// A text from outside; nothing where there is none.
    fn text(&mut self, member: &[u8], text: Text) {
        if let Some(bytes) = self.batch.text(text) {
            self.raw(member);
            self.inside(bytes);
            self.raw(b"\"");
        }
    }

    /// The inside of a text from outside.
    fn inside(&mut self, bytes: &[u8]) {
        if self.plain {
            self.raw(bytes);
        } else {
            escaped(bytes, self.out);
        }
    }

    /// A name of ours: nothing in it needs an escape.
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
            self.name(b",\"setting\":\"", setting);
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

/// RFC 3339 in UTC with milliseconds; the calendar is asked once a second.
#[derive(Default)]
struct Stamp {
    at_ms: u64,
    /// `2026-11-21T16:00:00.007Z`; empty before the first use.
    text: Vec<u8>,
}

impl Stamp {
    fn write(&mut self, at_ms: u64, out: &mut Vec<u8>) {
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

/// The digits of every octet, to the left, and how many they are.
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

/// Three bytes and a cut: a copy whose length is known when it is compiled needs no call.
fn octet(value: u8, out: &mut Vec<u8>) {
    if let Some((digits, count)) = OCTETS.get(usize::from(value)) {
        out.extend_from_slice(digits);
        out.truncate(out.len() - digits.len() + count);
    }
}

fn number(value: u64, out: &mut Vec<u8>) {
    match u8::try_from(value) {
        // Most numbers of a line are this small.
        Ok(small) => octet(small, out),
        Err(_) => out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes()),
    }
}

/// Microseconds as milliseconds with up to three decimals.
fn milliseconds(microseconds: u64, out: &mut Vec<u8>) {
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

fn address(address: IpAddr, out: &mut Vec<u8>) {
    match address {
        IpAddr::V4(v4) => dotted(v4, out),
        // A Vec takes every write.
        IpAddr::V6(v6) => drop(write!(out, "{v6}")),
    }
}

/// By hand: three times in every line.
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
    // No early exit: the compiler turns this into a few vector instructions.
    bytes.iter().fold(true, |all, byte| all & plain(byte))
}

/// The inside of a JSON string. Bytes that are not UTF-8 become U+FFFD; control characters are escaped, DEL and the C1
/// range too, because a log ends up on a terminal.
fn escaped(value: &[u8], out: &mut Vec<u8>) {
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
                // Line and paragraph separators are line breaks to some readers.
                '\u{2028}' | '\u{2029}' => {
                    // A Vec takes every write.
                    drop(write!(out, "\\u{:04x}", u32::from(character)));
                }
                _ if character.is_control() => {
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Instant;

    use crossbeam_channel::never;
    use http::{HeaderName, HeaderValue, StatusCode};
    use proptest::prelude::*;
    use serde_json::{Value, json};
    use weir_shared::settings::{LogRequests, WatchNet};
    use weir_shared::verdict::{Action, LimitKind};

    use super::*;

    fn settings(log_file: Option<PathBuf>) -> Settings {
        let mut settings = Settings::default();
        settings.log.instance_name = Some("edge-1".to_owned());
        settings.log.file = log_file;
        settings.log.request_headers = ["x-tag", "authorization", "cookie", "set-cookie", "x-tag"]
            .map(HeaderName::from_static)
            .to_vec();
        settings
    }

    /// A request with nothing known beyond what every request has.
    fn bare(batch: &mut Batch, path: &str) -> Record {
        Record {
            at_ms: 1_795_276_800_007,
            request_id: batch.keep(Some("r1")),
            client: "203.0.113.7".parse().unwrap(),
            address: "203.0.113.7".parse().unwrap(),
            group: Group::Default,
            forwarded_for: Text::NONE,
            scheme: "http",
            method: batch.keep(Some("GET")),
            host: Text::NONE,
            path: batch.keep(Some(path)),
            query: Text::NONE,
            version: Version::HTTP_11,
            user_agent: Text::NONE,
            referer: Text::NONE,
            content_type: Text::NONE,
            content_length: None,
            headers: batch.keep_headers(std::iter::empty()),
            has_authorization: false,
            has_cookie: false,
            websocket: false,
            status: None,
            response_content_type: Text::NONE,
            cache_control: Text::NONE,
            location: Text::NONE,
            action: Action::Passed,
            enforced: true,
            limit_hit: None,
            limit_percent: None,
            bytes_percent: None,
            country: Text::NONE,
            asn: Text::NONE,
            as_name: Text::NONE,
            counts: None,
            request_bytes: 0,
            response_bytes: 0,
            total_us: 1000,
            lookup_wait_us: None,
            connect_us: None,
            first_byte_us: None,
        }
    }

    fn full(batch: &mut Batch) -> Record {
        let tags = ["one", "two"].map(HeaderValue::from_static);
        Record {
            client: "2001:db8:1:2::/64".parse().unwrap(),
            address: "2001:db8:1:2::9".parse().unwrap(),
            group: Group::Allow,
            forwarded_for: batch.keep(Some("192.0.2.1, 192.0.2.2")),
            scheme: "https",
            method: batch.keep(Some("POST")),
            host: batch.keep(Some("example.org")),
            query: batch.keep(Some("c=d")),
            user_agent: batch.keep(Some("x\"y")),
            referer: batch.keep(Some("http://r/")),
            content_type: batch.keep(Some("text/plain")),
            content_length: Some(12),
            headers: batch.keep_headers(tags.iter().map(|value| (0, value))),
            has_authorization: true,
            has_cookie: true,
            status: Some(StatusCode::TOO_MANY_REQUESTS),
            response_content_type: batch.keep(Some("text/html")),
            cache_control: batch.keep(Some("no-store")),
            location: batch.keep(Some("/next")),
            action: Action::RateLimited,
            enforced: false,
            limit_hit: Some(LimitKind::HourBytes),
            limit_percent: Some(AppliedPercent {
                percent: 50,
                setting: "WAF_ASN_LIMIT_PERCENT",
            }),
            bytes_percent: Some(AppliedPercent {
                percent: 20,
                setting: "WAF_ASN_BYTES_PERCENT",
            }),
            country: batch.keep(Some("DE")),
            asn: batch.keep(Some("AS64496")),
            as_name: batch.keep(Some("Example")),
            counts: Some(Counts {
                requests: [1, 22, 333].into(),
                bytes: [4444, 255, 256].into(),
            }),
            request_bytes: 12,
            response_bytes: 34,
            total_us: 1_234,
            lookup_wait_us: Some(10),
            connect_us: Some(500),
            first_byte_us: Some(12_000),
            ..bare(batch, "/a%20b")
        }
    }

    /// Batches as the workers send them.
    fn batch(count: usize, path: &str) -> Batch {
        let mut batch = Batch::default();
        for _ in 0..count {
            batch.add(|batch| bare(batch, path));
        }
        batch
    }

    fn line(fill: impl FnOnce(&mut Batch) -> Record) -> String {
        let (mut batch, mut out) = (Batch::default(), Vec::new());
        batch.add(fill);
        Form::new(&settings(None)).lines(&batch, &mut out);
        String::from_utf8(out).unwrap()
    }

    /// LOG: every member in its order and under its name.
    #[test]
    fn a_line_has_every_member_in_its_order() {
        let expected = concat!(
            r#"{"time":"2026-11-21T16:00:00.007Z","event":"request","instance":"edge-1","request_id":"r1","#,
            r#""client":"2001:db8:1:2::/64","address":"2001:db8:1:2::9","netblock":"2001:db8:1::/56","client_group":"allow","#,
            r#""forwarded_for":"192.0.2.1, 192.0.2.2","scheme":"https","method":"POST","host":"example.org","#,
            r#""path":"/a%20b","query":"c=d","protocol":"HTTP/1.1","user_agent":"x\"y","referer":"http://r/","#,
            r#""content_type":"text/plain","content_length":12,"headers":{"x-tag":"one, two"},"#,
            r#""has_authorization":true,"has_cookie":true,"websocket":false,"status":429,"#,
            r#""response_content_type":"text/html","cache_control":"no-store","location":"/next","#,
            r#""action":"rate_limited","enforced":false,"limit_hit":"hour_bytes","#,
            r#""limit_percent":{"percent":50,"setting":"WAF_ASN_LIMIT_PERCENT"},"#,
            r#""bytes_percent":{"percent":20,"setting":"WAF_ASN_BYTES_PERCENT"},"#,
            r#""country":"DE","asn":"AS64496","as_name":"Example","#,
            r#""counts":{"minute":1,"hour":22,"day":333,"minute_bytes":4444,"hour_bytes":255,"day_bytes":256},"#,
            r#""bytes":{"request":12,"response":34},"#,
            r#""timings":{"total":1.234,"lookup_wait":0.01,"connect":0.5,"first_byte":12}}"#,
            "\n"
        );
        assert_eq!(line(full), expected);
        let counts = &serde_json::from_str::<Value>(&line(full)).unwrap()["counts"];
        let names: Vec<_> = counts.as_object().unwrap().keys().collect();
        assert_eq!(names, LimitKind::ALL.map(LimitKind::name));
    }

    /// LOG: what is not known is absent.
    #[test]
    fn what_is_unknown_is_absent() {
        let read: Value = serde_json::from_str(&line(|batch| bare(batch, "/"))).unwrap();
        assert_eq!(
            read,
            json!({"time":"2026-11-21T16:00:00.007Z","event":"request","instance":"edge-1","request_id":"r1",
                "client":"203.0.113.7","address":"203.0.113.7","netblock":"203.0.113.0/24","client_group":"default",
                "scheme":"http","method":"GET","path":"/","protocol":"HTTP/1.1",
                "has_authorization":false,"has_cookie":false,"websocket":false,"action":"passed","enforced":true,
                "bytes":{"request":0,"response":0},"timings":{"total":1}})
        );
    }

    proptest! {
            /// LOG-2: one line of valid JSON whatever bytes a client sends, and the readable ones arrive as they were.
            #[test]
            fn hostile_bytes_stay_in_one_line(raw in prop::collection::vec(any::<u8>(), 0..80), unicode in "\\PC{0,20}[\u{80}-\u{9f}\u{2028}\"\\\\]?") {
                for bytes in [raw.as_slice(), unicode.as_bytes()] {
                    let mut inside = Vec::new();
                    escaped(bytes, &mut inside);
                    let inside = String::from_utf8(inside).unwrap();
    let breaks = inside.chars().any(|c| c.is_control() || c == '\u{2028}' || c == '\u{2029}');
                    prop_assert!(!breaks);
                    let read: String = serde_json::from_str(&format!("\"{inside}\"")).unwrap();
                    prop_assert_eq!(read, String::from_utf8_lossy(bytes).into_owned());
                    let value = HeaderValue::from_bytes(bytes).unwrap_or(HeaderValue::from_static("a"));
                    let line = line(|batch| {
                        let text = batch.keep(Some(bytes));
                        let headers = batch.keep_headers([(0, &value)].into_iter());
                        Record {
                            request_id: text, forwarded_for: text, method: text, host: text, path: text, query: text,
                            user_agent: text, referer: text, content_type: text, headers, location: text,
                            ..bare(batch, "/")
                        }
                    });
                    prop_assert_eq!(line.matches('\n').count(), 1);
                    prop_assert!(line.ends_with('\n'));
                    let read: Value = serde_json::from_str(&line).unwrap();
                    prop_assert_eq!(read["user_agent"].as_str(), Some(&*String::from_utf8_lossy(bytes)));
                }
            }

            /// LOG: numbers and addresses are written as the standard library would.
            #[test]
            fn numbers_agree_with_the_standard_library(value in any::<u64>(), shift in 0u32..64, octets in any::<[u8; 4]>()) {
                let value = value >> shift;
                let mut out = Vec::new();
                number(value, &mut out);
                prop_assert_eq!(std::str::from_utf8(&out).unwrap(), value.to_string());
                out.clear();
                // Those that a float holds exactly.
                let value = value >> 14;
                milliseconds(value, &mut out);
                let read: f64 = std::str::from_utf8(&out).unwrap().parse().unwrap();
                prop_assert_eq!(read, value as f64 / 1000.0);
                prop_assert!(!out.contains(&b'.') || out.last() != Some(&b'0'));
                out.clear();
                address(octets.into(), &mut out);
                prop_assert_eq!(std::str::from_utf8(&out).unwrap(), Ipv4Addr::from(octets).to_string());
            }

            /// LOG: the second that is kept gives the same text as asking the calendar each time.
            #[test]
            fn the_stamp_agrees_with_the_calendar(times in prop::collection::vec(1_795_276_800_000u64..1_795_276_803_000, 1..20)) {
                let mut stamp = Stamp::default();
                for at in times {
                    let mut out = Vec::new();
                    stamp.write(at, &mut out);
                    let text = String::from_utf8(out).unwrap();
                    prop_assert_eq!(text.parse::<Time>(), Ok(Time(at)));
                    prop_assert_eq!(text.len(), "2026-11-21T16:00:00.000Z".len());
                }
            }
        }

    /// Nobody takes emptied batches.
    fn spares() -> Sender<Batch> {
        bounded(1).0
    }

    fn none_lost() -> Lost {
        Arc::new(|| 0)
    }

    fn lines(path: &Path) -> Vec<Value> {
        fs::read_to_string(path)
            .unwrap_or_default()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    fn until(what: &str, mut done: impl FnMut() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !done() {
            assert!(Instant::now() < deadline, "{what}");
            std::thread::yield_now();
        }
    }

    /// LOG: the file is opened again without a line lost or doubled; what was sent before is in the old one.
    #[test]
    fn a_rotated_log_loses_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (path, old) = (dir.path().join("log"), dir.path().join("log.1"));
        let (send, receive) = bounded(10_000);
        let log = RequestLog::start(
            &settings(Some(path.clone())),
            receive,
            spares(),
            never(),
            none_lost(),
        )
        .unwrap();
        for _ in 0..500 {
            send.send(batch(1, "/before")).unwrap();
        }
        fs::rename(&path, &old).unwrap();
        log.reopen();
        until("the file is there again", || path.exists());
        for _ in 0..500 {
            send.send(batch(2, "/after")).unwrap();
        }
        log.stop();
        assert_eq!(lines(&old).len(), 500);
        assert_eq!(lines(&path).len(), 1000);
        assert!(lines(&path).iter().all(|line| line["path"] == "/after"));
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o007, 0);
    }

    /// LOG: a turn ends though the channel is filled as fast as it is emptied, so that an order to open the file again and
    /// the line about lost lines come through an overload.
    #[test]
    fn a_turn_ends_in_an_overload() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let (send, lines_in) = bounded(64);
        let mut writer = Writer {
            form: Form::new(&settings(None)),
            records: never(),
            spare: spares(),
            lines: lines_in,
            orders: never(),
            lost: none_lost(),
            lost_logged: 0,
            target: Target::open(Some(path.clone())).unwrap(),
            pending: Vec::new(),
            written: 0,
            failing: false,
            _ending: bounded(0).0,
        };
        std::thread::scope(|scope| {
            for _ in 0..3 {
                let send = send.clone();
                // Without a receiver the senders end.
                scope.spawn(move || {
                    while !matches!(
                        send.try_send(b"{}\n".to_vec()),
                        Err(crossbeam_channel::TrySendError::Disconnected(_))
                    ) {}
                });
            }
            until("the channel is full", || send.is_full());
            writer.drain();
            drop(writer);
            assert_eq!(lines(&path).len(), 64);
        });
    }

    /// LOG: a batch comes back empty once its lines are written, for its worker to fill again.
    #[test]
    fn emptied_batches_come_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let (send, receive) = bounded(8);
        let (back, spare) = bounded(8);
        let settings = settings(Some(path.clone()));
        let log = RequestLog::start(&settings, receive, back, never(), none_lost()).unwrap();
        send.send(batch(3, "/")).unwrap();
        log.stop();
        assert!(spare.try_recv().unwrap().is_empty());
        assert_eq!(lines(&path).len(), 3);
    }

    /// LOG: lines that were lost are counted in the log, each loss once.
    #[test]
    fn losses_are_logged_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let (send, receive) = bounded(8);
        let lost = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&lost);
        let log = RequestLog::start(
            &settings(Some(path.clone())),
            receive,
            spares(),
            never(),
            Arc::new(move || counter.load(Ordering::Relaxed)),
        )
        .unwrap();
        lost.store(3, Ordering::Relaxed);
        until("the loss is logged", || lines(&path).len() == 1);
        lost.store(5, Ordering::Relaxed);
        send.send(batch(1, "/")).unwrap();
        log.stop();
        let lost: Vec<_> = lines(&path)
            .iter()
            .filter(|line| line["event"] == "log_lines_dropped")
            .map(|line| line["count"].as_u64().unwrap())
            .collect();
        assert_eq!(lost, [3, 2]);
    }

    /// LOG: a reader that stalls blocks neither the sender nor the stop; what it takes later are whole lines.
    #[test]
    fn a_stalled_reader_blocks_nobody() {
        let (mut reader, writer) = io::pipe().unwrap();
        let (send, receive) = bounded(4);
        let (control, orders) = bounded(8);
        let (ending, ended) = bounded(0);
        let thread = Writer {
            form: Form::new(&settings(None)),
            records: receive,
            spare: spares(),
            lines: never(),
            orders,
            lost: none_lost(),
            lost_logged: 0,
            target: Target {
                file: File::from(std::os::fd::OwnedFd::from(writer)),
                path: None,
            },
            pending: Vec::new(),
            written: 0,
            failing: false,
            _ending: ending,
        };
        let thread = std::thread::spawn(move || thread.run()).thread().clone();
        let log = RequestLog {
            control,
            thread,
            ended,
        };
        let mut refused = 0;
        // Far more than a pipe, a chunk and the channel hold; each send returns at once.
        until("the channel is full", || {
            if send.try_send(batch(200, "/")).is_err() {
                refused += 1;
            }
            refused > 1000
        });
        drop(send);
        let taken = std::thread::spawn(move || {
            let mut all = String::new();
            io::Read::read_to_string(&mut reader, &mut all).unwrap();
            all
        });
        log.stop();
        let all = taken.join().unwrap();
        assert_eq!(all.lines().count() % 200, 0);
        for line in all.lines() {
            serde_json::from_str::<Value>(line).unwrap();
        }
    }

    /// ALERT-4: alerts are whole lines among the requests, and come also where no request is logged.
    #[test]
    fn alerts_are_lines_of_the_log() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut settings = settings(Some(path.clone()));
        settings.log.requests = LogRequests::Off;
        let (send, lines_in) = bounded(4);
        let log = RequestLog::start(&settings, never(), spares(), lines_in, none_lost()).unwrap();
        send.send(b"{\"event\":\"alert\"}\n".to_vec()).unwrap();
        until("the alert is written", || lines(&path).len() == 1);
        send.send(b"{\"event\":\"alert\"}\n".to_vec()).unwrap();
        drop(send);
        log.stop();
        assert_eq!(lines(&path), vec![json!({"event":"alert"}); 2]);
    }

    /// ALERT-3: a watched client is marked in `client_group`, by the narrowest netblock; the lists come first.
    #[test]
    fn a_watched_client_is_marked() {
        let mut settings = settings(None);
        settings.anomalies.watch_nets = [("office", "203.0.113.0/24"), ("desk", "203.0.113.7/32")]
            .map(|(name, netblock)| WatchNet {
                name: name.to_owned(),
                netblock: netblock.parse().unwrap(),
            })
            .to_vec();
        let mut form = Form::new(&settings);
        for (address, group, expected) in [
            ("203.0.113.8", Group::Default, "watch:office"),
            ("203.0.113.7", Group::Default, "watch:desk"),
            ("203.0.113.7", Group::Allow, "allow"),
            ("203.0.113.7", Group::Deny, "deny"),
            ("203.0.114.7", Group::Default, "default"),
        ] {
            let (mut batch, mut out) = (Batch::default(), Vec::new());
            batch.add(|batch| Record {
                address: address.parse().unwrap(),
                group,
                ..bare(batch, "/")
            });
            form.lines(&batch, &mut out);
            let line: Value = serde_json::from_slice(&out).unwrap();
            assert_eq!(line["client_group"], expected, "{address}");
        }
    }

    /// SETTING-1: a log file that cannot be opened stops the start with a sentence that names it.
    #[test]
    fn a_log_file_that_cannot_be_opened_stops_the_start() {
        let (_send, receive) = bounded(1);
        let error = RequestLog::start(
            &settings(Some("/dev/null/log".into())),
            receive,
            spares(),
            never(),
            none_lost(),
        )
        .err()
        .unwrap();
        assert!(
            error.starts_with("WAF_LOG_FILE /dev/null/log cannot be opened: "),
            "{error}"
        );
    }

    #[test]
    #[ignore = "a measurement: run with --release --nocapture"]
    fn time_of_a_line() {
        let mut form = Form::new(&settings(None));
        let mut out = Vec::with_capacity(1 << 20);
        let mut one = Batch::default();
        one.add(full);
        for (name, batch) in [("bare", batch(1, "/a/b")), ("full", one)] {
            let start = Instant::now();
            for _ in 0..500_000 {
                if out.len() > CHUNK_BYTES {
                    out.clear();
                }
                form.lines(std::hint::black_box(&batch), &mut out);
            }
            eprintln!("{name}: {} ns a line", start.elapsed().as_nanos() / 500_000);
        }
    }
}
