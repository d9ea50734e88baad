//! The request log: one line for each request, written by a thread of its own (LOG-1..3).
//!
//! Records arrive in batches over a bounded channel and become text here, many lines in one write.
//! The sender decides which requests are logged (`WAF_LOG_REQUESTS`), and what happens to a batch
//! if the channel is full. Alerts arrive as whole lines over a channel of their own, even if no
//! request is logged (ALERT-4).
//!
//! The thread polls the channel on a short tick and never waits on it: a waiting receiver would
//! cost each sender a lock and a wake-up on the request path. Emptied batches go back to the
//! workers.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crossbeam_channel::{Receiver, Sender, TryRecvError, bounded};
use weir_shared::record::Batch;
use weir_shared::reload::{Part, Take};
use weir_shared::settings::{LogFormat, Settings};

use crate::events::Events;
use crate::guarded;

mod combined;
mod line;

use line::{Form, number};

/// How often the channel is polled while it is idle.
const TICK: Duration = Duration::from_millis(20);
/// How often it is polled while lines come. So soon, a filled batch is still in the processor's
/// cache, and fewer batches circulate, which leaves more of the cache to the worker.
const BUSY_TICK: Duration = Duration::from_millis(5);
/// How often a failed write is tried again.
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
    /// The settings of a reload; a later one replaces them.
    next: Arc<Mutex<Option<Next>>>,
    thread: Thread,
    /// Disconnected when the thread has ended.
    ended: Receiver<()>,
}

/// How lines are written from now on.
struct Next {
    form: Form,
    format: LogFormat,
    target: Target,
}

enum Control {
    Reopen,
    Stop,
}

impl RequestLog {
    /// Opens the log and starts the writer. Emptied batches go to `spare`, for the workers to fill
    /// again. `lines` are alerts, each with its line break; with `WAF_LOG_REQUESTS=off` nothing
    /// else is written.
    ///
    /// # Errors
    /// One sentence, if `WAF_LOG_FILE` cannot be opened.
    pub fn start(
        settings: &Settings,
        records: Receiver<Batch>,
        spare: Sender<Batch>,
        lines: Receiver<Vec<u8>>,
        lost: Lost,
        events: Arc<Events>,
    ) -> Result<Self, String> {
        let target = Target::open(settings.log.file.clone())?;
        let (control, orders) = bounded(8);
        let (ending, ended) = bounded(0);
        let next = Arc::default();
        let writer = Writer {
            form: Form::new(settings),
            format: settings.log.format,
            records,
            spare,
            lines,
            orders,
            lost,
            lost_logged: 0,
            events,
            target,
            pending: Vec::with_capacity(CHUNK_BYTES + (CHUNK_BYTES >> 2)),
            written: 0,
            failing: false,
            busy: false,
            next: Arc::clone(&next),
            _ending: ending,
        };
        let thread = weir_shared::threads::spawn("weir-log", move || writer.run())
            .map_err(|error| format!("the thread of the request log cannot be started: {error}"))?
            .thread()
            .clone();
        Ok(Self {
            control,
            next,
            thread,
            ended,
        })
    }

    /// Opens `WAF_LOG_FILE` again, once all lines so far are written to the old file (SIGUSR1, for
    /// log rotation).
    pub fn reopen(&self) {
        // If the queue is full, reopens are waiting already: one more would change nothing.
        let _ = self.control.try_send(Control::Reopen);
        self.thread.unpark();
    }

    /// The log's part of a reload: opens the file again, even if no setting has changed.
    pub fn part(&self) -> Part {
        let (next, thread) = (Arc::clone(&self.next), self.thread.clone());
        Box::new(move |new| {
            let settings = &new.settings;
            let target = Target::open(settings.log.file.clone()).map_err(|error| vec![error])?;
            let (next, thread) = (Arc::clone(&next), thread.clone());
            let order = Next {
                form: Form::new(settings),
                format: settings.log.format,
                target,
            };
            Ok(Box::new(move || {
                *lock(&next) = Some(order);
                thread.unpark();
                Ok(())
            }) as Take)
        })
    }

    /// Writes what is in the channel and ends the thread. Waits at most 5 seconds for the reader of
    /// the log.
    pub fn stop(self) {
        let _ = self.control.send_timeout(Control::Stop, STOP_WAIT);
        self.thread.unpark();
        let _ = self.ended.recv_timeout(STOP_WAIT);
    }
}

fn lock(next: &Mutex<Option<Next>>) -> MutexGuard<'_, Option<Next>> {
    // Nothing panics while the lock is held.
    next.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The target of the lines.
struct Target {
    file: File,
    /// None is standard output.
    path: Option<PathBuf>,
}

impl Target {
    fn open(path: Option<PathBuf>) -> Result<Self, String> {
        let file = match &path {
            Some(path) => guarded::append(path, 0o640).map_err(|error| {
                format!(
                    "WAF_LOG_FILE {} cannot be opened: {error}; make it writable or unset WAF_LOG_FILE",
                    path.display()
                )
            })?,
            // A descriptor of its own: the standard library's handle would copy every line through
            // a line buffer.
            None => io::stdout()
                .as_fd()
                .try_clone_to_owned()
                .map(File::from)
                .map_err(|error| format!("standard output cannot be opened: {error}"))?,
        };
        Ok(Self { file, path })
    }
}

/// The thread.
struct Writer {
    form: Form,
    format: LogFormat,
    records: Receiver<Batch>,
    spare: Sender<Batch>,
    lines: Receiver<Vec<u8>>,
    orders: Receiver<Control>,
    lost: Lost,
    lost_logged: u64,
    /// The listeners of the event stream.
    events: Arc<Events>,
    target: Target,
    /// Lines not written yet; grows to a chunk and one batch.
    pending: Vec<u8>,
    /// Bytes of `pending` that are written.
    written: usize,
    failing: bool,
    /// True if lines came since the last poll.
    busy: bool,
    next: Arc<Mutex<Option<Next>>>,
    _ending: Sender<()>,
}

impl Writer {
    fn run(mut self) {
        loop {
            if self.orders.is_empty() && (self.failing || self.is_idle()) {
                // Not the channel's own wait, which yields several times before it sleeps.
                std::thread::park_timeout(self.wait());
            }
            let order = self.orders.try_recv();
            let next = lock(&self.next).take();
            self.drain();
            if let Some(next) = next {
                self.form = next.form;
                self.format = next.format;
                self.turn_to(next.target);
            }
            match order {
                Ok(Control::Reopen) => self.reopen(),
                Ok(Control::Stop) | Err(TryRecvError::Disconnected) => return,
                Err(TryRecvError::Empty) => {}
            }
        }
    }

    const fn wait(&self) -> Duration {
        match (self.failing, self.busy) {
            (true, _) => RETRY,
            (false, true) => BUSY_TICK,
            (false, false) => TICK,
        }
    }

    fn is_idle(&self) -> bool {
        self.records.is_empty() && self.lines.is_empty()
    }

    /// Writes what is in the channels now, and no more. In an overload that fills them as fast as
    /// they are emptied, rotation and the line about lost lines must still be done.
    fn drain(&mut self) {
        let waiting = self.lines.len() + self.records.len();
        self.busy = waiting > 0;
        for _ in 0..waiting {
            // Lines that cannot be written stay pending; the channels fill up, and the senders
            // count what does not fit.
            if self.pending.len() >= CHUNK_BYTES && !self.write() {
                return;
            }
            // Alerts first: they are few, and matter most in an overload.
            if let Ok(line) = self.lines.try_recv() {
                self.events.alert(&line);
                self.pending.extend_from_slice(&line);
            } else if let Ok(mut batch) = self.records.try_recv() {
                self.write_lines(&batch);
                batch.clear();
                // If enough spare batches are kept, this one is freed.
                let _ = self.spare.try_send(batch);
            }
        }
        self.note_losses();
        self.write();
    }

    /// Writes the lines of a batch. Listeners of events get JSON, whatever the format of the log.
    fn write_lines(&mut self, batch: &Batch) {
        self.events.refusals().take(batch);
        let from = self.pending.len();
        write_lines(&mut self.form, self.format, batch, &mut self.pending);
        let mut json = Vec::new();
        let lines = match self.format {
            LogFormat::Json => self.pending.get(from..).unwrap_or_default(),
            LogFormat::Combined => {
                if self.events.is_heard() {
                    self.form.lines(batch, &mut json);
                    self.form.left_out(batch, &mut json);
                }
                &json
            }
        };
        self.events.decisions(lines);
    }

    /// Writes one line with the number of lost records.
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
        match Target::open(Some(path)) {
            Ok(target) => self.turn_to(target),
            Err(error) => tracing::error!("{error}; the old file is written on"),
        }
    }

    /// Switches to a new target, once all lines so far are written to the old one.
    fn turn_to(&mut self, target: Target) {
        if !self.write() {
            // If the old file takes no more, a line that is partly written there is written whole
            // to the new one.
            let done = self.pending.get(..self.written).unwrap_or_default();
            self.written = done
                .iter()
                .rposition(|byte| *byte == b'\n')
                .map_or(0, |at| at + 1);
        }
        self.target = target;
        self.write();
    }
}

/// The lines of a batch in the format of `WAF_LOG_FORMAT`. Lines that are no requests are JSON in
/// both formats.
fn write_lines(form: &mut Form, format: LogFormat, batch: &Batch, out: &mut Vec<u8>) {
    match format {
        LogFormat::Json => form.lines(batch, out),
        LogFormat::Combined => combined::lines(batch, out),
    }
    form.left_out(batch, out);
}

/// Entry point for the fuzz targets: the lines of a batch.
#[cfg(fuzzing)]
pub fn lines(settings: &Settings, batch: &Batch) -> Vec<u8> {
    let mut out = Vec::new();
    write_lines(
        &mut Form::new(settings),
        settings.log.format,
        batch,
        &mut out,
    );
    out
}

#[cfg(test)]
mod tests;
