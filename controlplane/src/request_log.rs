//! The request log: one JSON object a line for each request, written by a thread of its own (LOG-1..3).
//!
//! Records arrive in batches over a bounded channel and are turned into text here, many lines a write. Which requests
//! are logged (`WAF_LOG_REQUESTS`) and what happens to a batch that finds the channel full are the sender's business.
//!
//! The thread looks into the channel on a short tick and never parks on it: a parked receiver costs each sender a lock
//! and a wake-up on the request path. JSON is written by hand, member by member, because the order is fixed, nearly every
//! value needs no escape, and this is the most repeated work of the control plane.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError, bounded};
use http::header::{
    AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, COOKIE, HOST, PROXY_AUTHORIZATION, REFERER,
    SET_COOKIE, USER_AGENT,
};
use http::{HeaderMap, HeaderName, HeaderValue, Version};
use ipnet::IpNet;
use weir_shared::client::Client;
use weir_shared::netblock::{Netblock, PrefixLengths};
use weir_shared::record::{Batch, Record};
use weir_shared::settings::{LogRequests, Settings};
use weir_shared::units::Time;
use weir_shared::verdict::LimitKind;

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
    /// None with `WAF_LOG_REQUESTS=off`.
    running: Option<Running>,
}

struct Running {
    control: Sender<Control>,
    /// Disconnected when the thread has ended.
    ended: Receiver<()>,
}

enum Control {
    Reopen,
    Stop,
}

impl RequestLog {
    /// Opens the log and starts the writer; with `WAF_LOG_REQUESTS=off` there is neither.
    ///
    /// # Errors
    /// One sentence, if `WAF_LOG_FILE` cannot be opened.
    pub fn start(
        settings: &Settings,
        records: Receiver<Batch>,
        lost: Lost,
    ) -> Result<Self, String> {
        if settings.log_requests == LogRequests::Off {
            return Ok(Self { running: None });
        }
        let target = Target::open(settings.log_file.clone())?;
        let (control, orders) = bounded(8);
        let (ending, ended) = bounded(0);
        let writer = Writer {
            form: Form::new(settings),
            records,
            orders,
            lost,
            lost_logged: 0,
            target,
            pending: Vec::with_capacity(CHUNK_BYTES + (CHUNK_BYTES >> 2)),
            written: 0,
            failing: false,
            _ending: ending,
        };
        std::thread::Builder::new()
            .name("weir-log".to_owned())
            .spawn(move || writer.run())
            .map_err(|error| format!("the thread of the request log cannot be started: {error}"))?;
        Ok(Self {
            running: Some(Running { control, ended }),
        })
    }

    /// Opens `WAF_LOG_FILE` again, after what came so far is written to the old one (SIGUSR1, for log rotation).
    pub fn reopen(&self) {
        if let Some(running) = &self.running {
            // Full: as many are waiting already, one more would change nothing.
            let _ = running.control.try_send(Control::Reopen);
        }
    }

    /// Writes what is in the channel and ends the thread. A reader that does not read is waited for 5 seconds.
    pub fn stop(self) {
        if let Some(running) = self.running {
            let _ = running.control.send_timeout(Control::Stop, STOP_WAIT);
            let _ = running.ended.recv_timeout(STOP_WAIT);
        }
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
            let wait = if self.failing { RETRY } else { TICK };
            let order = self.orders.recv_timeout(wait);
            let open = self.drain();
            match order {
                Ok(Control::Reopen) => self.reopen(),
                Ok(Control::Stop) | Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {}
            }
            if !open {
                return;
            }
        }
    }

    /// Writes all that is in the channel; false once no sender is left.
    fn drain(&mut self) -> bool {
        loop {
            // What cannot be written stays; the channel fills, and what does not fit into it is counted by its sender.
            if self.pending.len() >= CHUNK_BYTES && !self.write() {
                return true;
            }
            match self.records.try_recv() {
                Ok(batch) => {
                    for record in &batch {
                        self.form.line(record, &mut self.pending);
                    }
                }
                Err(end) => {
                    self.note_losses();
                    self.write();
                    return end != TryRecvError::Disconnected;
                }
            }
        }
    }

    /// One line that tells how many are missing.
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

/// Turns records into lines.
struct Form {
    /// `,"instance":"…"`, escaped once.
    instance: Vec<u8>,
    /// Those that may be logged, with `"name":` escaped once.
    headers: Vec<(HeaderName, Vec<u8>)>,
    prefixes: PrefixLengths,
    stamp: Stamp,
}

impl Form {
    fn new(settings: &Settings) -> Self {
        let mut instance = Vec::new();
        if let Some(name) = &settings.instance_name {
            text_member(b",\"instance\":\"", name.as_bytes(), &mut instance);
        }
        let headers = settings
            .log_request_headers
            .iter()
            // Never, whatever the setting says (LOG-1); the start warned about it.
            .filter(|name| ![AUTHORIZATION, PROXY_AUTHORIZATION, COOKIE, SET_COOKIE].contains(name))
            .map(|name| {
                let mut member = vec![b'"'];
                text(name.as_str().as_bytes(), &mut member);
                member.extend_from_slice(b"\":\"");
                (name.clone(), member)
            })
            .collect();
        Self {
            instance,
            headers,
            prefixes: settings.ban_prefixes,
            stamp: Stamp::default(),
        }
    }

    /// One line, always: whatever bytes are in the record, no line break gets through unescaped (LOG-2).
    fn line(&mut self, record: &Record, out: &mut Vec<u8>) {
        let head = &record.head;
        out.extend_from_slice(b"{\"time\":\"");
        self.stamp.write(record.at_ms, out);
        out.extend_from_slice(b"\",\"event\":\"request\"");
        out.extend_from_slice(&self.instance);
        text_member(b",\"request_id\":\"", record.request_id.as_bytes(), out);
        out.extend_from_slice(b",\"client\":\"");
        client(record.client, out);
        out.extend_from_slice(b"\",\"address\":\"");
        address(record.address, out);
        out.extend_from_slice(b"\",\"netblock\":\"");
        netblock(Netblock::of(record.client, self.prefixes), out);
        out.extend_from_slice(b"\",\"client_group\":\"");
        out.extend_from_slice(record.group.name().as_bytes());
        out.push(b'"');
        value_member(b",\"forwarded_for\":\"", record.forwarded_for.as_ref(), out);
        out.extend_from_slice(b",\"scheme\":\"");
        out.extend_from_slice(record.scheme.as_bytes());
        out.push(b'"');
        text_member(b",\"method\":\"", head.method.as_str().as_bytes(), out);
        if let Some(host) = head.headers.get(HOST) {
            text_member(b",\"host\":\"", host.as_bytes(), out);
        } else if let Some(authority) = head.uri.authority() {
            // Without the user information: it is a credential.
            let host = authority.as_str();
            let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
            text_member(b",\"host\":\"", host.as_bytes(), out);
        }
        text_member(b",\"path\":\"", head.uri.path().as_bytes(), out);
        if let Some(query) = head.uri.query() {
            text_member(b",\"query\":\"", query.as_bytes(), out);
        }
        out.extend_from_slice(match head.version {
            Version::HTTP_10 => b",\"protocol\":\"HTTP/1.0\"".as_slice(),
            Version::HTTP_2 => b",\"protocol\":\"HTTP/2.0\"",
            _ => b",\"protocol\":\"HTTP/1.1\"",
        });
        value_member(b",\"user_agent\":\"", head.headers.get(USER_AGENT), out);
        value_member(b",\"referer\":\"", head.headers.get(REFERER), out);
        value_member(b",\"content_type\":\"", head.headers.get(CONTENT_TYPE), out);
        if let Some(length) = content_length(&head.headers) {
            out.extend_from_slice(b",\"content_length\":");
            number(length, out);
        }
        self.named_headers(&head.headers, out);
        flag_member(
            b",\"has_authorization\":",
            head.headers.contains_key(AUTHORIZATION),
            out,
        );
        flag_member(b",\"has_cookie\":", head.headers.contains_key(COOKIE), out);
        flag_member(b",\"websocket\":", record.websocket, out);
        if let Some(status) = record.status {
            out.extend_from_slice(b",\"status\":");
            out.extend_from_slice(status.as_str().as_bytes());
        }
        value_member(
            b",\"response_content_type\":\"",
            record.response_content_type.as_ref(),
            out,
        );
        value_member(b",\"cache_control\":\"", record.cache_control.as_ref(), out);
        value_member(b",\"location\":\"", record.location.as_ref(), out);
        out.extend_from_slice(b",\"action\":\"");
        out.extend_from_slice(record.action.name().as_bytes());
        out.push(b'"');
        flag_member(b",\"enforced\":", record.enforced, out);
        if let Some(limit) = record.limit_hit {
            text_member(b",\"limit_hit\":\"", limit.name().as_bytes(), out);
        }
        percent_member(
            b",\"limit_percent\":{\"percent\":",
            record.limit_percent,
            out,
        );
        percent_member(
            b",\"bytes_percent\":{\"percent\":",
            record.bytes_percent,
            out,
        );
        if let Some(lookup) = &record.lookup {
            for (member, known) in [
                (b",\"country\":\"".as_slice(), &lookup.country),
                (b",\"asn\":\"", &lookup.asn),
                (b",\"as_name\":\"", &lookup.as_name),
            ] {
                if let Some(known) = known {
                    text_member(member, known.as_bytes(), out);
                }
            }
        }
        if let Some(counts) = &record.counts {
            out.extend_from_slice(b",\"counts\":");
            let mut before = b'{';
            for (kind, count) in LimitKind::ALL.into_iter().zip(counts) {
                out.push(before);
                before = b',';
                out.push(b'"');
                out.extend_from_slice(kind.name().as_bytes());
                out.extend_from_slice(b"\":");
                number(*count, out);
            }
            out.push(b'}');
        }
        out.extend_from_slice(b",\"bytes\":{\"request\":");
        number(record.request_bytes, out);
        out.extend_from_slice(b",\"response\":");
        number(record.response_bytes, out);
        out.extend_from_slice(b"},\"timings\":{\"total\":");
        milliseconds(record.total_us, out);
        for (member, time) in [
            (b",\"lookup_wait\":".as_slice(), record.lookup_wait_us),
            (b",\"connect\":", record.connect_us),
            (b",\"first_byte\":", record.first_byte_us),
        ] {
            if let Some(time) = time {
                out.extend_from_slice(member);
                milliseconds(time, out);
            }
        }
        out.extend_from_slice(b"}}\n");
    }

    /// `headers`: those of `WAF_LOG_REQUEST_HEADERS` that the request has; several of one name are joined.
    fn named_headers(&self, headers: &HeaderMap, out: &mut Vec<u8>) {
        let mut first = true;
        for (name, member) in &self.headers {
            let mut values = headers.get_all(name).iter();
            let Some(value) = values.next() else {
                continue;
            };
            out.extend_from_slice(if first { b",\"headers\":{" } else { b"," });
            first = false;
            out.extend_from_slice(member);
            text(value.as_bytes(), out);
            for value in values {
                out.extend_from_slice(b", ");
                text(value.as_bytes(), out);
            }
            out.push(b'"');
        }
        if !first {
            out.push(b'}');
        }
    }
}

/// RFC 3339 in UTC with milliseconds; the calendar is asked once a second.
#[derive(Default)]
struct Stamp {
    second: u64,
    /// `2026-11-21T16:00:00`; empty before the first use.
    text: Vec<u8>,
}

impl Stamp {
    fn write(&mut self, at_ms: u64, out: &mut Vec<u8>) {
        let second = at_ms / 1000;
        if self.second != second || self.text.is_empty() {
            self.second = second;
            self.text = Time(second * 1000).to_string().into_bytes();
            if self.text.last() == Some(&b'Z') {
                self.text.pop();
            }
        }
        out.extend_from_slice(&self.text);
        out.push(b'.');
        decimals(at_ms % 1000, out);
        out.push(b'Z');
    }
}

/// Three digits.
fn decimals(thousandths: u64, out: &mut Vec<u8>) {
    for scale in [100, 10, 1] {
        out.push(digit(thousandths / scale));
    }
}

fn digit(value: u64) -> u8 {
    b'0' + u8::try_from(value % 10).unwrap_or(0)
}

fn number(value: impl itoa::Integer, out: &mut Vec<u8>) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

/// Microseconds as milliseconds with up to three decimals.
fn milliseconds(microseconds: u64, out: &mut Vec<u8>) {
    number(microseconds / 1000, out);
    let rest = microseconds % 1000;
    if rest != 0 {
        out.push(b'.');
        decimals(rest, out);
        while out.last() == Some(&b'0') {
            out.pop();
        }
    }
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

/// Four times in every line: by hand a fifth of the formatter's time.
fn dotted(address: Ipv4Addr, out: &mut Vec<u8>) {
    let [a, b, c, d] = address.octets();
    number(a, out);
    for octet in [b, c, d] {
        out.push(b'.');
        number(octet, out);
    }
}

fn netblock(netblock: Netblock, out: &mut Vec<u8>) {
    let net: IpNet = netblock.net();
    address(net.addr(), out);
    out.push(b'/');
    number(net.prefix_len(), out);
}

fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// `member` ends with the opening quote.
fn text_member(member: &[u8], value: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(member);
    text(value, out);
    out.push(b'"');
}

fn value_member(member: &[u8], value: Option<&HeaderValue>, out: &mut Vec<u8>) {
    if let Some(value) = value {
        text_member(member, value.as_bytes(), out);
    }
}

fn flag_member(member: &[u8], value: bool, out: &mut Vec<u8>) {
    out.extend_from_slice(member);
    out.extend_from_slice(if value { b"true" } else { b"false" });
}

fn percent_member(member: &[u8], percent: Option<(u8, &'static str)>, out: &mut Vec<u8>) {
    if let Some((percent, setting)) = percent {
        out.extend_from_slice(member);
        number(percent, out);
        text_member(b",\"setting\":\"", setting.as_bytes(), out);
        out.push(b'}');
    }
}

/// The inside of a JSON string. Bytes that are not UTF-8 become U+FFFD; control characters are escaped, DEL and the C1
/// range too, because a log ends up on a terminal.
fn text(value: &[u8], out: &mut Vec<u8>) {
    let plain = |byte: &u8| (0x20..0x7f).contains(byte) && *byte != b'"' && *byte != b'\\';
    // No early exit: the compiler turns this into a few vector instructions.
    if value.iter().fold(true, |all, byte| all & plain(byte)) {
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
