//! The wiring: settings, channels, threads, shutdown. The only place where both planes are named.
//!
//! ```text
//!   clients ──► weir-worker-0 ─┐  breaks (bounded)           ┌─► weir-control ──► weir-state ──► the four state files
//!   clients ──► weir-worker-1 ─┼─ finished (bounded batches) ─┘    │        │
//!                  ▲           │                                   │ alert lines (bounded)
//!                  │           └─ records (bounded batches, emptied ones come back) ──► weir-log ──► stdout
//!                  └──────────────── snapshots (arc-swap) ──────────────────┘
//!   workers ask about new clients ──► weir-lookup (bounded queue) or files in memory ──► client table
//! ```

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use crossbeam_channel::bounded;
use tokio::signal::unix::{Signal, SignalKind, signal};
use weir_controlplane::lookup::Lookups;
use weir_controlplane::request_log::RequestLog;
use weir_controlplane::{Control, ControlHandle, Feeds, StateFiles, Wiring};
use weir_dataplane::clients::table::Table;
use weir_dataplane::clients::terms::LookupRules;
use weir_dataplane::{Bound, Counting, DataPlane, Parts, Records, Stop};
use weir_shared::clock::Clock;
use weir_shared::record::logged_headers;
use weir_shared::settings::{LogRequests, Settings};
use weir_shared::snapshot::Snapshot;
use weir_shared::table::ClientTable;

/// Breaks that may wait for the control plane. More at once are answered 429 and counted (LIMIT-6).
const MAX_BREAKS: usize = 4096;
/// Batches of log records that may wait for the writer; a worker sends at most 64 records in one.
const MAX_BATCHES: usize = 1024;
/// Emptied batches that are kept for each worker's next records: what a busy worker fills between
/// two looks of the writer.
const SPARE_BATCHES: usize = 32;
/// Batches of finished requests that may wait for the control plane; a worker sends at most 256
/// requests in one.
const MAX_FINISHED: usize = 256;
/// Alert lines that may wait for the writer: what all kinds may have in a few minutes.
const MAX_LINES: usize = 1024;
/// How often a stop looks whether the workers have ended.
const STOP_LOOK: Duration = Duration::from_millis(20);
/// What the system sends when a file would grow past the process's limit; this number wherever the
/// service runs.
const SIGXFSZ: i32 = 25;

/// Why the service did not start, or did not end well.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Something an operator must mend: exit status 78.
    #[error("{0}")]
    Unfit(String),
    /// The system refused threads or signals.
    #[error("the system refused a thread or a signal handler: {0}")]
    System(#[from] io::Error),
    /// A thread of ours ended in a panic.
    #[error("a thread ended in a panic; its message is above")]
    Panicked,
}

/// What to print once requests are served.
pub enum Announce {
    /// The line `listening` of the process log alone.
    Nothing,
    /// More, given the address.
    With(Box<dyn FnOnce(SocketAddr)>),
}

/// Serves until SIGTERM or SIGINT, then drains. SIGHUP reads the token file again and reopens the
/// log, SIGUSR1 reopens the log.
///
/// # Errors [`StartError`]; nothing was served then.
pub fn serve(settings: Settings, announce: Announce) -> Result<(), StartError> {
    let settings = Arc::new(settings);
    let clock = Clock::system();
    let unfit = |error: &dyn std::fmt::Display| StartError::Unfit(error.to_string());

    outlive_file_size_limits()?;
    // Everything that can refuse the start comes before the first thread that serves.
    let bound = Bound::new(settings.listen, settings.workers).map_err(|error| unfit(&error))?;
    let address = bound.address();
    let (files, mut start) =
        StateFiles::open(&settings.state.dir, clock.clone()).map_err(|error| unfit(&error))?;

    let snapshots = Arc::new(ArcSwap::from_pointee(Snapshot::default()));
    let table = Arc::new(Table::new(LookupRules::of(&settings)));
    let clients: Arc<dyn ClientTable> = Arc::clone(&table) as _;
    let kept = std::mem::take(&mut start.lookups);
    let lookups =
        Lookups::start(&settings, &clock, &clients, kept).map_err(|error| unfit(&error))?;
    let ask = lookups.asking();
    let counting = Counting::of(&bound, Arc::clone(&table));
    let (breaks_up, breaks) = bounded(MAX_BREAKS);
    let (finished_up, finished) = bounded(MAX_FINISHED);
    let (lines_up, lines) = bounded(MAX_LINES);
    let (control, handle) = Control::new(Wiring {
        settings: Arc::clone(&settings),
        clock: clock.clone(),
        snapshots: Arc::clone(&snapshots),
        table: clients,
        breaks,
        totals: {
            let counting = counting.clone();
            Arc::new(move || counting.totals())
        },
        files,
        start,
        lookups,
        feeds: Feeds {
            finished,
            origins: {
                let counting = counting.clone();
                Arc::new(move || counting.take_origins())
            },
            lines: lines_up,
        },
        version: env!("CARGO_PKG_VERSION"),
    })
    .map_err(|error| unfit(&error))?;

    // The log runs also where no request is logged: alerts are lines of it.
    let (records_up, records) = bounded(MAX_BATCHES);
    let (spare_back, spare) = bounded(SPARE_BATCHES * settings.workers);
    let log = {
        let counting = counting.clone();
        let lost = Arc::new(move || counting.totals().records_dropped);
        RequestLog::start(&settings, records, spare_back, lines, lost).map_err(StartError::Unfit)?
    };

    let control_thread = std::thread::Builder::new()
        .name("weir-control".to_owned())
        .spawn(move || control.run())?;
    let plane = DataPlane::start(
        bound,
        Parts {
            settings: Arc::clone(&settings),
            clock,
            table,
            snapshots,
            breaks: breaks_up,
            records: (settings.log.requests != LogRequests::Off).then(|| Records {
                batches: records_up,
                emptied: spare,
                headers: logged_headers(&settings.log.request_headers).into(),
            }),
            finished: settings.anomalies.is_on().then_some(finished_up),
            handover: handle.handover(),
            ask,
        },
    )?;

    let signals = Signals::new()?;
    tracing::info!(
        %address,
        upstream = %format_args!("{}:{}", settings.upstream.host, settings.upstream.port),
        mode = if settings.observe { "observe" } else { "enforce" },
        workers = settings.workers,
        version = env!("CARGO_PKG_VERSION"),
        "listening"
    );
    if let Announce::With(print) = announce {
        print(address);
    }

    signals.wait_for_stop(&handle, &log);
    let workers_ended = drain(plane, &signals, settings.timeouts.shutdown);
    // The data plane has ended: what it counted is final, and the last write of the state files
    // holds all of it.
    handle.stop();
    let control_ended = control_thread.join().is_ok();
    log.stop();
    if workers_ended && control_ended {
        Ok(())
    } else {
        Err(StartError::Panicked)
    }
}

/// A write past a file-size limit is to fail as on a full disk (STATE-7): without a handler the
/// signal that comes with it would end the process.
fn outlive_file_size_limits() -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()?;
    let _entered = runtime.enter();
    // The handler stays for the life of the process; nobody needs to hear of the signal.
    signal(SignalKind::from_raw(SIGXFSZ)).map(drop)
}

/// Closes the listeners, lets running answers end, and cuts what is left after the time-out or a
/// second signal.
#[expect(
    clippy::disallowed_methods,
    reason = "a time-out of the process itself, at the edge"
)]
fn drain(plane: DataPlane, signals: &Signals, timeout: Duration) -> bool {
    tracing::info!(timeout_seconds = timeout.as_secs_f64(), "draining");
    plane.stop(Stop::Drain);
    let deadline = Instant::now() + timeout;
    while !plane.is_finished() {
        if Instant::now() >= deadline || signals.stop_again(STOP_LOOK) {
            tracing::warn!("ending the connections that are left");
            plane.stop(Stop::Abort);
            break;
        }
    }
    plane.join()
}

/// The signals, received on the main thread.
struct Signals {
    runtime: tokio::runtime::Runtime,
    inner: std::cell::RefCell<Streams>,
}

struct Streams {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    reopen: Signal,
}

/// What a signal asks for.
enum Asked {
    Stop,
    Reload,
    Reopen,
}

impl Streams {
    async fn next(&mut self) -> Asked {
        std::future::poll_fn(|cx| {
            use std::task::Poll;
            if self.terminate.poll_recv(cx).is_ready() || self.interrupt.poll_recv(cx).is_ready() {
                return Poll::Ready(Asked::Stop);
            }
            if self.hangup.poll_recv(cx).is_ready() {
                return Poll::Ready(Asked::Reload);
            }
            self.reopen.poll_recv(cx).map(|_| Asked::Reopen)
        })
        .await
    }
}

impl Signals {
    fn new() -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()?;
        let inner = {
            let _entered = runtime.enter();
            Streams {
                terminate: signal(SignalKind::terminate())?,
                interrupt: signal(SignalKind::interrupt())?,
                hangup: signal(SignalKind::hangup())?,
                reopen: signal(SignalKind::user_defined1())?,
            }
        };
        Ok(Self {
            runtime,
            inner: std::cell::RefCell::new(inner),
        })
    }

    fn wait_for_stop(&self, control: &ControlHandle, log: &RequestLog) {
        loop {
            match self.runtime.block_on(self.inner.borrow_mut().next()) {
                Asked::Stop => return,
                Asked::Reload => {
                    control.reload_tokens();
                    log.reopen();
                }
                Asked::Reopen => log.reopen(),
            }
        }
    }

    /// Whether a second signal to stop came within `wait`.
    fn stop_again(&self, wait: Duration) -> bool {
        let mut streams = self.inner.borrow_mut();
        self.runtime.block_on(async {
            matches!(
                tokio::time::timeout(wait, streams.next()).await,
                Ok(Asked::Stop)
            )
        })
    }
}
