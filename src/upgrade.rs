//! A hand-over on the side of the old process, from the request until the new one serves
//! (RESTART-1, RESTART-4).
//!
//! Until then this process gives up nothing for good: if a step of either process fails, the new
//! one is killed, and this one goes on with everything. The state files are written twice while
//! requests are served and bans are made, so that almost nothing is left for the last write, during
//! which bans wait.
#![expect(
    clippy::disallowed_methods,
    reason = "the process itself, at the edge: no test turns its clock"
)]

use std::time::{Duration, Instant};

use weir_controlplane::{ControlHandle, Giving, Saving};

use crate::fault::{self, Step};
use crate::successor::{Asked, Progress, Successor};

/// How long a write may take; a slower one fails the hand-over.
const SAVE_WAIT: Duration = Duration::from_secs(20);
/// How long a hand-over may take in all: less than an operator's command waits for the answer.
const WHOLE: Duration = Duration::from_secs(140);

/// A hand-over that has begun.
pub struct Upgrade {
    stage: Stage,
    until: Instant,
}

enum Stage {
    /// The state files are written.
    Saving(Write, Asked),
    /// The new process starts.
    Starting(Successor),
    /// The new process is ready, and the state files are written once more.
    SavingAgain(Write, Successor),
    /// The state files are written a last time, and given away.
    Giving(Giving, Successor),
    /// The new process has the state.
    TakingOver(Giving, Successor),
}

/// A write of the state files.
struct Write {
    saving: Saving,
    until: Instant,
}

impl Write {
    fn begin(control: &ControlHandle) -> Self {
        Self {
            saving: control.save(),
            until: Instant::now() + save_wait(),
        }
    }

    /// The result of the write; none while it is under way.
    fn outcome(&mut self) -> Option<Result<(), String>> {
        let outcome = self.saving.outcome().or_else(|| {
            let is_late = Instant::now() >= self.until;
            is_late.then(|| Err(format!("it took longer than {:?}", save_wait())))
        });
        outcome.map(|written| written.map_err(not_written))
    }
}

fn save_wait() -> Duration {
    SAVE_WAIT.min(fault::silence())
}

fn not_written(why: String) -> String {
    format!("the state was not written: {why}")
}

/// The result of one step of a hand-over.
pub enum Outcome {
    /// The hand-over goes on.
    Going(Upgrade),
    /// The hand-over has failed, and whoever asked for it was told.
    Failed,
    /// The new process serves.
    Taken(Taken),
}

/// A completed hand-over: the new process is the service.
pub struct Taken {
    pub successor: Successor,
    /// The state that was given away.
    pub giving: Giving,
}

/// A step that failed.
struct Failed {
    why: String,
    /// The new process; before it is started, the reply to whoever asked.
    successor: Result<Successor, Asked>,
    /// Set if the state was given away, or was about to be.
    giving: Option<Giving>,
}

impl Upgrade {
    /// Begins a hand-over with a write of the state files.
    pub fn begin(control: &ControlHandle, asked: Asked) -> Self {
        Self {
            stage: Stage::Saving(Write::begin(control), asked),
            until: Instant::now() + WHOLE,
        }
    }

    /// Whether the new process is started. It has read its settings then, and would not notice a
    /// reload.
    pub const fn is_started(&self) -> bool {
        !matches!(self.stage, Stage::Saving(..))
    }

    /// Goes on as far as possible without blocking. `start` starts the new process.
    pub fn step(
        self,
        control: &ControlHandle,
        start: impl FnOnce() -> Result<Successor, String>,
    ) -> Outcome {
        let until = self.until;
        let stepped = match self.stage {
            Stage::Saving(write, asked) => saving(write, asked, start),
            Stage::Starting(successor) => starting(successor, control),
            Stage::SavingAgain(write, successor) => saving_again(write, successor, control),
            Stage::Giving(giving, successor) => giving_away(giving, successor),
            Stage::TakingOver(giving, mut successor) => match successor.progress(false) {
                Progress::Serving => return Outcome::Taken(Taken { successor, giving }),
                Progress::Going => Ok(Stage::TakingOver(giving, successor)),
                Progress::Ready => Err(Failed::of(out_of_turn(), successor, Some(giving))),
                Progress::Failed(why) => Err(Failed::of(why, successor, Some(giving))),
            },
        };
        match stepped {
            Ok(stage) if Instant::now() < until => Outcome::Going(Self { stage, until }),
            Ok(stage) => {
                let why = format!("it took longer than {} s", WHOLE.as_secs());
                stage.fail(why).end()
            }
            Err(failed) => failed.end(),
        }
    }

    /// Gives the hand-over up because this process stops: kills the new process, and keeps the
    /// state.
    pub fn abandon(self) {
        let Failed {
            why,
            successor,
            giving,
        } = *self.stage.fail("this process stops".to_owned());
        let asked = successor.and_then(|it| it.end(false));
        drop(giving);
        if let Err(Some(reply)) = asked {
            reply(Err(why));
        }
    }
}

impl Stage {
    fn fail(self, why: String) -> Box<Failed> {
        match self {
            Self::Saving(_, asked) => Failed::unstarted(why, asked),
            Self::Starting(successor) | Self::SavingAgain(_, successor) => {
                Failed::of(why, successor, None)
            }
            Self::Giving(giving, successor) | Self::TakingOver(giving, successor) => {
                Failed::of(why, successor, Some(giving))
            }
        }
    }
}

impl Failed {
    fn of(why: String, successor: Successor, giving: Option<Giving>) -> Box<Self> {
        Box::new(Self {
            why,
            successor: Ok(successor),
            giving,
        })
    }

    fn unstarted(why: String, asked: Asked) -> Box<Self> {
        Box::new(Self {
            why,
            successor: Err(asked),
            giving: None,
        })
    }

    /// Kills the new process, then takes the state back.
    fn end(self) -> Outcome {
        let Self {
            why,
            successor,
            giving,
        } = self;
        let may_serve = giving.is_some();
        let asked = match (successor.and_then(|it| it.end(may_serve)), giving) {
            // The new process came to serve in the last moment.
            (Ok(successor), Some(giving)) => return Outcome::Taken(Taken { successor, giving }),
            (Ok(_), None) => None,
            (Err(asked), giving) => {
                drop(giving);
                asked
            }
        };
        tracing::error!("the new process does not take over, this one goes on: {why}");
        if let Some(reply) = asked {
            reply(Err(why));
        }
        Outcome::Failed
    }
}

fn out_of_turn() -> String {
    "it is ready out of turn".to_owned()
}

/// Waits for the first write; then starts the new process.
fn saving(
    mut write: Write,
    asked: Asked,
    start: impl FnOnce() -> Result<Successor, String>,
) -> Result<Stage, Box<Failed>> {
    let outcome = match write.outcome() {
        None => return Ok(Stage::Saving(write, asked)),
        Some(outcome) => outcome,
    };
    let started = (fault::at(Step::Save).and(outcome))
        .and_then(|()| fault::at(Step::Start))
        .and_then(|()| start());
    match started {
        Ok(successor) => Ok(Stage::Starting(successor.asked_by(asked))),
        Err(why) => Err(Failed::unstarted(why, asked)),
    }
}

/// Waits until the new process is ready; then writes the state again.
fn starting(mut successor: Successor, control: &ControlHandle) -> Result<Stage, Box<Failed>> {
    match successor.progress(false) {
        Progress::Going => Ok(Stage::Starting(successor)),
        Progress::Ready => Ok(Stage::SavingAgain(Write::begin(control), successor)),
        Progress::Serving => Err(Failed::of(out_of_turn(), successor, None)),
        Progress::Failed(why) => Err(Failed::of(why, successor, None)),
    }
}

/// Waits for the second write; then gives the state away.
fn saving_again(
    mut write: Write,
    mut successor: Successor,
    control: &ControlHandle,
) -> Result<Stage, Box<Failed>> {
    if let Progress::Failed(why) = successor.progress(true) {
        return Err(Failed::of(why, successor, None));
    }
    let Some(outcome) = write.outcome() else {
        return Ok(Stage::SavingAgain(write, successor));
    };
    let written = fault::at(Step::SaveAgain).and(outcome);
    match written.and_then(|()| fault::at(Step::Give)) {
        Ok(()) => Ok(Stage::Giving(control.give(), successor)),
        Err(why) => Err(Failed::of(why, successor, None)),
    }
}

/// Waits for the last write; then gives the new process the lock.
fn giving_away(giving: Giving, mut successor: Successor) -> Result<Stage, Box<Failed>> {
    if let Progress::Failed(why) = successor.progress(true) {
        return Err(Failed::of(why, successor, Some(giving)));
    }
    let Some(given) = giving.outcome() else {
        return Ok(Stage::Giving(giving, successor));
    };
    let told = given.map_err(not_written).and_then(|lock| {
        fault::at(Step::Go)?;
        let gone = |error| format!("it has ended: {error}");
        successor.give(&lock).map_err(gone)
    });
    match told {
        Ok(()) => Ok(Stage::TakingOver(giving, successor)),
        Err(why) => Err(Failed::of(why, successor, Some(giving))),
    }
}
