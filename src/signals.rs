//! What the main thread waits for: signals, operators' requests to the process, and threads that
//! end unexpectedly (ALIVE-2, ALIVE-3).
#![expect(
    clippy::disallowed_methods,
    reason = "the process itself, at the edge: no test turns its clock"
)]

use std::io;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use rustix::process::Signal as Number;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use weir_controlplane::process::{Asking, ProcessCommand, Reply, Report};
use weir_shared::threads::{self, Ended};

/// A second signal to stop within this time is the same one: `timeout` and some supervisors send it
/// to the process and to its group.
const SAME_STOP: Duration = Duration::from_secs(1);
/// How long [`Signals::says_stop`] waits for a signal that was sent already.
const AT_ONCE: Duration = Duration::from_millis(1);
/// Ends of threads that may wait; there are fewer threads.
const MAX_ENDS: usize = 64;
/// Requests of operators that may wait; one more is 503.
const MAX_ORDERS: usize = 4;

/// Signals that would end the process by default and have no use here: they are logged and ignored.
/// SIGPIPE is not among them: it is ignored without a log line, because every write to a closed
/// pipe raises one. SIGXFSZ is raised by a write past a file-size limit; ignored, that write fails
/// like one to a full disk (STATE-7).
const IGNORED: [(&str, Number); 8] = [
    ("SIGALRM", Number::ALARM),
    ("SIGVTALRM", Number::VTALARM),
    ("SIGPROF", Number::PROF),
    ("SIGIO", Number::IO),
    ("SIGSTKFLT", Number::STKFLT),
    ("SIGPWR", Number::POWER),
    ("SIGXFSZ", Number::XFSZ),
    ("SIGXCPU", Number::XCPU),
];

/// The real-time signals of Linux that the C library leaves to programs (it reserves 32 and 33).
/// None of them has a meaning here: a sender mistakes the service for another program.
const REAL_TIME: RangeInclusive<i32> = 34..=64;

/// What happened.
pub enum Event {
    /// SIGTERM, SIGINT or SIGQUIT: the signals that stop nginx.
    Stop,
    /// A second stop signal, more than a second after the first.
    StopNow,
    /// SIGHUP, or an operator's request, with the reply that the operator waits for.
    Reload(Option<Reply<Result<Report, Vec<String>>>>),
    /// SIGUSR1.
    Reopen,
    /// SIGUSR2, or an operator's request, with the reply that the operator waits for.
    HandOver(Option<Reply<Result<u32, String>>>),
    /// A thread has ended.
    ThreadEnded(Ended),
}

/// The event sources of the main thread.
pub struct Signals {
    runtime: tokio::runtime::Runtime,
    streams: Streams,
    order: mpsc::Sender<ProcessCommand>,
    stop_at: Option<Instant>,
}

struct Streams {
    terminate: Signal,
    interrupt: Signal,
    quit: Signal,
    hangup: Signal,
    reopen: Signal,
    hand_over: Signal,
    ignored: Vec<(String, Signal)>,
    ends: mpsc::Receiver<Ended>,
    orders: mpsc::Receiver<ProcessCommand>,
}

enum Heard {
    Stop,
    Ignored(String),
    Event(Event),
}

impl Signals {
    /// Installs the handlers. From here on no signal is lost, and none ends the process by
    /// accident.
    ///
    /// # Errors
    /// The system refused a handler.
    pub fn new() -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()?;
        let (ended, ends) = mpsc::channel(MAX_ENDS);
        threads::watch(move |end| {
            // A full queue loses nothing: one ended thread is enough to stop the process.
            let _ = ended.try_send(end);
        });
        let (order, orders) = mpsc::channel(MAX_ORDERS);
        let entered = runtime.enter();
        let ignored = IGNORED.map(|(name, number)| {
            let stream = signal(SignalKind::from_raw(number.as_raw()));
            stream.map(|stream| (name.to_owned(), stream))
        });
        // musl reserves the first of these signals as well, and refuses a handler for it.
        let real_time = REAL_TIME.filter_map(|number| {
            let stream = signal(SignalKind::from_raw(number)).ok()?;
            Some(Ok((format!("real-time signal {number}"), stream)))
        });
        let streams = Streams {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            quit: signal(SignalKind::quit())?,
            hangup: signal(SignalKind::hangup())?,
            reopen: signal(SignalKind::user_defined1())?,
            hand_over: signal(SignalKind::user_defined2())?,
            ignored: (ignored.into_iter().chain(real_time)).collect::<io::Result<_>>()?,
            ends,
            orders,
        };
        drop(entered);
        Ok(Self {
            runtime,
            streams,
            order,
            stop_at: None,
        })
    }

    /// The queue for operators' requests to the process: reload and hand-over.
    pub fn asking(&self) -> Asking {
        let order = self.order.clone();
        Arc::new(move |asked| order.try_send(asked).is_ok())
    }

    /// Waits for what happens next.
    pub fn next(&mut self) -> Event {
        loop {
            let streams = &mut self.streams;
            let heard = self
                .runtime
                .block_on(std::future::poll_fn(|cx| streams.poll(cx)));
            if let Some(event) = self.judge(heard) {
                return event;
            }
        }
    }

    /// Waits for what happens next, until `deadline` at most.
    pub fn next_until(&mut self, deadline: Instant) -> Option<Event> {
        loop {
            let streams = &mut self.streams;
            let next = std::future::poll_fn(|cx| streams.poll(cx));
            let heard = self
                .runtime
                .block_on(async { tokio::time::timeout_at(deadline.into(), next).await })
                .ok()?;
            if let Some(event) = self.judge(heard) {
                return Some(event);
            }
        }
    }

    /// Whether a stop signal has been received already. Other signals stay queued.
    pub fn says_stop(&mut self) -> bool {
        let streams = &mut self.streams;
        let stop = std::future::poll_fn(|cx| streams.poll_stop(cx));
        // Not zero: the runtime delivers a signal only in a turn of its event loop.
        let heard = (self.runtime).block_on(async { tokio::time::timeout(AT_ONCE, stop).await });
        heard.is_ok()
    }

    fn judge(&mut self, heard: Heard) -> Option<Event> {
        match heard {
            Heard::Stop => match self.stop_at {
                None => {
                    self.stop_at = Some(Instant::now());
                    Some(Event::Stop)
                }
                Some(first) => (first.elapsed() >= SAME_STOP).then_some(Event::StopNow),
            },
            Heard::Ignored(name) => {
                tracing::warn!("{name} was received and is ignored");
                None
            }
            Heard::Event(event) => Some(event),
        }
    }
}

impl Streams {
    fn poll_stop(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let stops = [&mut self.terminate, &mut self.interrupt, &mut self.quit];
        let mut stops = stops.into_iter();
        match stops.any(|stream| stream.poll_recv(cx).is_ready()) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Heard> {
        if let Poll::Ready(Some(end)) = self.ends.poll_recv(cx) {
            return Poll::Ready(Heard::Event(Event::ThreadEnded(end)));
        }
        if self.poll_stop(cx).is_ready() {
            return Poll::Ready(Heard::Stop);
        }
        if self.hangup.poll_recv(cx).is_ready() {
            return Poll::Ready(Heard::Event(Event::Reload(None)));
        }
        if self.reopen.poll_recv(cx).is_ready() {
            return Poll::Ready(Heard::Event(Event::Reopen));
        }
        if self.hand_over.poll_recv(cx).is_ready() {
            return Poll::Ready(Heard::Event(Event::HandOver(None)));
        }
        if let Poll::Ready(Some(order)) = self.orders.poll_recv(cx) {
            return Poll::Ready(Heard::Event(match order {
                ProcessCommand::Reload(reply) => Event::Reload(Some(reply)),
                ProcessCommand::Upgrade(reply) => Event::HandOver(Some(reply)),
            }));
        }
        for (name, stream) in &mut self.ignored {
            if stream.poll_recv(cx).is_ready() {
                return Poll::Ready(Heard::Ignored(name.clone()));
            }
        }
        Poll::Pending
    }
}
