//! Runs a reload on a thread of its own (RELOAD-4): a file whose read blocks holds up that thread,
//! and neither signals nor operators.
//!
//! A reload that is not checked within [`JUDGING`] is refused. Its thread notices that before it
//! applies anything. Until then the thread owns the [`Reloader`], and no other reload begins.
#![expect(
    clippy::disallowed_methods,
    reason = "the process itself, at the edge: no test turns its clock"
)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};
use weir_controlplane::guarded;
use weir_controlplane::process::{Reply, Report};
use weir_shared::settings::Settings;
use weir_shared::threads::{self, How};

use crate::fault;
use crate::reload::{Reloader, Turn, tell_faults};

/// How long a reload may read and check.
const JUDGING: Duration = Duration::from_secs(30);
/// How often the main thread looks whether a reload has ended, and one that was refused as too
/// slow.
const LOOK: Duration = Duration::from_millis(10);
const LATE_LOOK: Duration = Duration::from_secs(1);
/// The thread of a reload.
const THREAD: &str = "weir-reload";

/// The result of a reload: a report, or every fault.
pub type Outcome = Result<Report, Vec<String>>;
/// The reply to whoever asked for a reload; none for a signal.
pub type Asked = Option<Reply<Outcome>>;

/// The reloads of the service, one after the other.
pub struct Reloads {
    settings: Arc<Settings>,
    /// None while the thread of a reload owns it.
    reloader: Option<Reloader>,
    under_way: Option<UnderWay>,
    end: Sender<(Reloader, Outcome)>,
    ended: Receiver<(Reloader, Outcome)>,
}

/// A reload whose result was not reported yet.
struct UnderWay {
    turn: Arc<Turn>,
    asked: Asked,
    until: Instant,
}

impl Reloads {
    /// The reloads of a service that has just started.
    pub fn new(reloader: Reloader) -> Self {
        let (end, ended) = bounded(1);
        Self {
            settings: reloader.settings(),
            reloader: Some(reloader),
            under_way: None,
            end,
            ended,
        }
    }

    /// The settings in force.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Whether a reload is under way.
    pub const fn is_under_way(&self) -> bool {
        self.under_way.is_some()
    }

    /// When to call [`Reloads::outcome`] next.
    pub fn next_look(&self) -> Option<Instant> {
        let look = match (&self.under_way, &self.reloader) {
            (Some(_), _) => LOOK,
            (None, None) => LATE_LOOK,
            (None, Some(_)) => return None,
        };
        Some(Instant::now() + look)
    }

    /// Begins a reload. If that is not possible, gives `asked` back with the reason.
    pub fn begin(&mut self, asked: Asked) -> Result<(), (Asked, Outcome)> {
        let Some(reloader) = self.reloader.take() else {
            let why = format!("the reload before has not ended{}", reads());
            return Err((asked, refused(why)));
        };
        let turn = Arc::new(Turn::default());
        let (end, theirs) = (self.end.clone(), Arc::clone(&turn));
        let (give, given) = bounded(1);
        // Not a watched thread: its end must not stop the service.
        let thread = std::thread::Builder::new().name(THREAD.to_owned());
        let started = thread.spawn(move || {
            if let Ok(reloader) = given.recv() {
                run(reloader, &theirs, &end);
            }
        });
        if let Err(error) = started {
            self.reloader = Some(reloader);
            return Err((
                asked,
                refused(format!("the system refused a thread: {error}")),
            ));
        }
        // The thread runs and waits for the reloader, so the send succeeds.
        let _ = give.send(reloader);
        self.under_way = Some(UnderWay {
            turn,
            asked,
            until: Instant::now() + judging(),
        });
        Ok(())
    }

    /// The result of the reload under way, once it is known.
    pub fn outcome(&mut self) -> Option<(Asked, Outcome)> {
        if let Ok((reloader, outcome)) = self.ended.try_recv() {
            self.settings = reloader.settings();
            self.reloader = Some(reloader);
            if let Some(reload) = self.under_way.take() {
                return Some((reload.asked, outcome));
            }
            tracing::info!("the reload that took too long has ended, and has changed nothing");
        }
        let is_late =
            |reload: &mut UnderWay| Instant::now() >= reload.until && reload.turn.give_up();
        let reload = self.under_way.take_if(is_late)?;
        let why = format!("it took longer than {:?}{}", judging(), reads());
        Some((reload.asked, refused(why)))
    }
}

fn judging() -> Duration {
    JUDGING.min(fault::silence())
}

fn run(mut reloader: Reloader, turn: &Turn, end: &Sender<(Reloader, Outcome)>) {
    let reloaded = catch_unwind(AssertUnwindSafe(|| {
        let outcome = reloader.reload(turn);
        (reloader, outcome)
    }));
    match reloaded {
        // The queue has room: there is one reload at a time.
        Ok(ended) => drop(end.try_send(ended)),
        // Some parts may have taken the new settings, and others not.
        Err(_) => threads::tell(threads::Ended {
            name: THREAD.to_owned(),
            how: How::Panicked,
        }),
    }
}

fn refused(why: String) -> Outcome {
    let faults = vec![why];
    tell_faults(&faults);
    Err(faults)
}

/// A clause for the log that names the files still being read.
fn reads() -> String {
    let files = guarded::being_read();
    let files: Vec<String> = files
        .iter()
        .map(|file| file.display().to_string())
        .collect();
    match files.is_empty() {
        true => String::new(),
        false => format!(": it still waits for {}", files.join(", ")),
    }
}
