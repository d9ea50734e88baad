//! The process log: what the service says about itself, one JSON object a line on standard error.
//! Requests and alerts have a log of their own.
//!
//! Logging never blocks (ALIVE-1). A line goes into a bounded queue that a thread of its own writes
//! out. If the queue is full because nobody reads standard error, the line is dropped and counted.
//! A repeated message is written once a second, with the number of those held back.
#![expect(
    clippy::disallowed_methods,
    reason = "the log of the process itself, at the edge: whoever logs has no clock"
)]

use std::collections::HashMap;
use std::fmt::{self, Write as _};
use std::fs::File;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crossbeam_channel::{Receiver, Sender, bounded};
use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Context, Filter, SubscriberExt};
use weir_shared::reload::{Part, Take};
use weir_shared::threads;
use weir_shared::units::Time;

/// Lines that may wait for the writer. At some 200 bytes a line this is less than a megabyte.
const MAX_LINES: usize = 4096;
/// The most messages that are remembered to find repeats. Further messages are written each time.
const MAX_REPEATS: usize = 256;
/// How often a message that repeats is written.
const ONCE_IN: Duration = Duration::from_secs(1);
/// How long an end waits for standard error to take what is queued.
const FLUSH_WAIT: Duration = Duration::from_secs(1);

/// Lines dropped since the start.
static LOST: AtomicU64 = AtomicU64::new(0);

/// `WAF_LOG_LEVEL`; a reload may change it.
static LEVEL: RwLock<Level> = RwLock::new(Level::INFO);

fn level() -> Level {
    // Nothing panics while the lock is held.
    *LEVEL.read().unwrap_or_else(PoisonError::into_inner)
}

/// `new` is a checked `WAF_LOG_LEVEL`.
fn set_level(new: &str) {
    let new = new.parse().unwrap_or(Level::INFO);
    *LEVEL.write().unwrap_or_else(PoisonError::into_inner) = new;
}

/// The process log's part of a reload.
pub fn part() -> Part {
    Box::new(|new| {
        let level = new.settings.log.level;
        Ok(Box::new(move || {
            set_level(level);
            // `tracing` caches for each call site whether its level is logged: the cache is
            // dropped.
            tracing::callsite::rebuild_interest_cache();
            Ok(())
        }) as Take)
    })
}

/// Lines of the process log that were lost because nobody read standard error.
pub fn lines_lost() -> u64 {
    // Relaxed: a number for the metrics, which orders nothing else.
    LOST.load(Ordering::Relaxed)
}

/// The running log.
pub struct ProcessLog {
    stop: Sender<()>,
    ended: Receiver<()>,
}

/// Starts it. `level` is a checked `WAF_LOG_LEVEL`.
///
/// # Errors
/// The system refused a thread or a descriptor.
pub fn start(level: &str) -> io::Result<ProcessLog> {
    let (queue, lines) = bounded(MAX_LINES);
    let (stop, stopped) = bounded(1);
    let (ending, ended) = bounded(0);
    let repeats = Arc::new(Repeats::default());
    let writer = LogWriter {
        lines,
        stopped,
        repeats: Arc::clone(&repeats),
        // A descriptor of its own: a write that blocks must not hold the standard library's lock on
        // standard error.
        target: File::from(io::stderr().as_fd().try_clone_to_owned()?),
        is_journal: is_journal(),
        lost_told: 0,
        _ending: ending,
    };
    threads::spawn("weir-process-log", move || writer.run())?;
    let format = tracing_subscriber::fmt::layer()
        .json()
        .flatten_event(true)
        .with_target(false)
        .with_current_span(false)
        .with_span_list(false)
        .with_writer(Queue(queue))
        .with_filter(Unrepeated { repeats });
    set_level(level);
    let log = tracing_subscriber::registry().with(format);
    // An error would mean that a log is set already; there is only one start in a process.
    let _ = tracing::subscriber::set_global_default(log);
    // The standard library's hook would write to standard error itself, and block.
    std::panic::set_hook(Box::new(|panic| {
        let location = panic.location().map(ToString::to_string);
        let thread = std::thread::current().name().map(str::to_owned);
        tracing::error!(
            thread,
            location,
            "panicked: {}",
            panic.payload_as_str().unwrap_or("no message")
        );
    }));
    Ok(ProcessLog { stop, ended })
}

impl ProcessLog {
    /// Writes the queued lines. Waits at most a second for the reader of standard error.
    pub fn finish(self) {
        let _ = self.stop.try_send(());
        let _ = self.ended.recv_timeout(FLUSH_WAIT);
    }
}

/// Takes formatted lines into the queue.
struct Queue(Sender<Vec<u8>>);

impl<'a> MakeWriter<'a> for Queue {
    type Writer = &'a Queue;

    fn make_writer(&'a self) -> &'a Queue {
        self
    }
}

impl Write for &Queue {
    /// Takes one whole line: tracing formats an event first, and writes it by one call.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.0.try_send(line.to_vec()).is_err() {
            LOST.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The thread that writes the lines. It may block on standard error.
struct LogWriter {
    lines: Receiver<Vec<u8>>,
    stopped: Receiver<()>,
    repeats: Arc<Repeats>,
    target: File,
    /// True if standard error is systemd's journal, which reads a priority before each line.
    is_journal: bool,
    /// Dropped lines that were reported already.
    lost_told: u64,
    /// Dropped when the thread ends: [`ProcessLog::finish`] notices that.
    _ending: Sender<()>,
}

impl LogWriter {
    fn run(mut self) {
        let mut next_look = Instant::now() + ONCE_IN;
        loop {
            let wait = next_look.saturating_duration_since(Instant::now());
            crossbeam_channel::select! {
                recv(self.lines) -> line => match line {
                    Ok(line) => self.write(&line),
                    Err(_) => return,
                },
                recv(self.stopped) -> _ => break,
                default(wait) => {}
            }
            if Instant::now() >= next_look {
                self.tell_repeats(ONCE_IN);
                next_look = Instant::now() + ONCE_IN;
            }
        }
        while let Ok(line) = self.lines.try_recv() {
            self.write(&line);
        }
        self.tell_repeats(Duration::ZERO);
    }

    fn write(&mut self, line: &[u8]) {
        let prefixed;
        let line = match self.is_journal {
            true => {
                prefixed = [priority(line), line].concat();
                &prefixed
            }
            false => line,
        };
        // A closed standard error has no reader: the line is dropped.
        if self.target.write_all(line).is_err() {
            LOST.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let lost = lines_lost();
        if lost > self.lost_told && self.lines.is_empty() {
            let mut line = Map::new();
            line.insert(
                "message".to_owned(),
                "lines of this log were lost: standard error is not read fast enough".into(),
            );
            line.insert("lost".to_owned(), (lost - self.lost_told).into());
            self.lost_told = lost;
            let _ = self.target.write_all(&render(Level::WARN, &line));
        }
    }

    fn tell_repeats(&mut self, after: Duration) {
        for (level, fields) in self.repeats.take_due(after) {
            self.write(&render(level, &fields));
        }
    }
}

/// Whether standard error is what `JOURNAL_STREAM` names, device and inode (systemd.exec(5)).
fn is_journal() -> bool {
    let named = std::env::var("JOURNAL_STREAM").unwrap_or_default();
    let stream = rustix::fs::fstat(io::stderr());
    stream.is_ok_and(|stream| named == format!("{}:{}", stream.st_dev, stream.st_ino))
}

/// The priority of a line by its level, as in sd-daemon(3), so that `journalctl -p warning` works.
/// systemd removes it again (`SyslogLevelPrefix=`).
fn priority(line: &[u8]) -> &'static [u8] {
    const LEVEL: &[u8] = b"\"level\":\"";
    let level = line.windows(LEVEL.len()).position(|part| part == LEVEL);
    match level.and_then(|at| line.get(at + LEVEL.len())) {
        Some(b'E') => b"<3>",
        Some(b'W') => b"<4>",
        Some(b'D' | b'T') => b"<7>",
        _ => b"<6>",
    }
}

/// A line as the formatter above writes them.
fn render(level: Level, fields: &Map<String, Value>) -> Vec<u8> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now_ms = now.map_or(0, |now| u64::try_from(now.as_millis()).unwrap_or(0));
    let mut line = Map::new();
    line.insert("timestamp".to_owned(), Time(now_ms).to_string().into());
    line.insert("level".to_owned(), level.as_str().into());
    line.extend(fields.clone());
    let mut text = Value::Object(line).to_string().into_bytes();
    text.push(b'\n');
    text
}

/// Lets an event through unless the same one was written within the last second.
struct Unrepeated {
    repeats: Arc<Repeats>,
}

impl<S: Subscriber> Filter<S> for Unrepeated {
    fn enabled(&self, metadata: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        *metadata.level() <= level()
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        self.repeats.is_new(event, Instant::now())
    }

    fn max_level_hint(&self) -> Option<tracing::level_filters::LevelFilter> {
        Some(level().into())
    }
}

/// The messages written lately, by the hash of call site and fields: at most [`MAX_REPEATS`].
#[derive(Default)]
struct Repeats {
    hash: RandomState,
    seen: Mutex<HashMap<u64, Repeat>>,
}

struct Repeat {
    /// When the message was last written.
    written: Instant,
    /// How many times it came since.
    held_back: u64,
    level: Level,
    fields: Map<String, Value>,
}

impl Repeats {
    /// Whether the event must be written. A repeat is counted instead.
    fn is_new(&self, event: &Event<'_>, now: Instant) -> bool {
        let mut hash = HashFields(self.hash.build_hasher());
        std::ptr::hash(event.metadata(), &mut hash.0);
        event.record(&mut hash);
        let key = hash.0.finish();
        let mut seen = self.seen();
        if let Some(repeat) = seen.get_mut(&key) {
            repeat.held_back += 1;
            return false;
        }
        if seen.len() < MAX_REPEATS {
            let mut fields = CollectFields(Map::new());
            event.record(&mut fields);
            seen.insert(
                key,
                Repeat {
                    written: now,
                    held_back: 0,
                    level: *event.metadata().level(),
                    fields: fields.0,
                },
            );
        }
        true
    }

    /// Removes the messages that were written at least `after` ago, and returns those that came
    /// again since, with their number, to be written now.
    fn take_due(&self, after: Duration) -> Vec<(Level, Map<String, Value>)> {
        let now = Instant::now();
        let mut due = Vec::new();
        self.seen().retain(|_, repeat| {
            if now.duration_since(repeat.written) < after {
                return true;
            }
            if repeat.held_back == 0 {
                return false;
            }
            let mut fields = repeat.fields.clone();
            fields.insert("repeated".to_owned(), repeat.held_back.into());
            due.push((repeat.level, fields));
            repeat.written = now;
            repeat.held_back = 0;
            true
        });
        due
    }

    fn seen(&self) -> MutexGuard<'_, HashMap<u64, Repeat>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Hashes the fields of an event without an allocation.
struct HashFields<H>(H);

impl<H: Hasher> Visit for HashFields<H> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.write(field.name().as_bytes());
        // Hashing cannot fail. A value whose formatting fails is hashed as far as it was formatted.
        let _ = write!(self, "{value:?}");
        self.0.write_u8(0xff);
    }
}

impl<H: Hasher> fmt::Write for HashFields<H> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}

/// The fields of an event as JSON.
struct CollectFields(Map<String, Value>);

impl Visit for CollectFields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0
            .insert(field.name().to_owned(), format!("{value:?}").into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.0.insert(field.name().to_owned(), value.into());
    }
}
