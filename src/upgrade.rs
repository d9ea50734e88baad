//! From the wish for a hand-over until the other process may take over (RESTART-1).
//!
//! The state files are written twice while requests are served: before the other process is
//! started, so that it reads the newest, and once it is ready, so that next to nothing is left to
//! write when nobody accepts any more.
#![expect(
    clippy::disallowed_methods,
    reason = "the process itself, at the edge: no test turns its clock"
)]

use std::time::{Duration, Instant};

use weir_controlplane::process::Reply;
use weir_controlplane::{ControlHandle, Saving};

use crate::successor::{Progress, Successor};

/// How long a hand-over waits for a write: with a disk that hangs, it goes on without.
const SAVE_WAIT: Duration = Duration::from_secs(20);

/// Who asked for a hand-over, and waits for the answer.
type Asked = Option<Reply<Result<u32, String>>>;

/// A hand-over that has begun.
pub struct Upgrade {
    stage: Stage,
}

enum Stage {
    /// The state files are written.
    Saving(Write, Asked),
    /// The other process starts.
    Starting(Successor),
    /// It is ready, and the state files are written once more.
    SavingAgain(Write, Successor),
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
            until: Instant::now() + SAVE_WAIT,
        }
    }

    fn is_over(&self) -> bool {
        self.saving.is_over() || Instant::now() >= self.until
    }
}

/// What comes of a look at it.
pub enum Outcome {
    /// It goes on.
    Going(Upgrade),
    /// It has failed, and whoever asked for it is told.
    Failed,
    /// The other process may take over.
    Ready(Successor),
}

impl Upgrade {
    /// Begins with the state files.
    pub fn begin(control: &ControlHandle, asked: Asked) -> Self {
        Self {
            stage: Stage::Saving(Write::begin(control), asked),
        }
    }

    /// Goes on as far as it can without waiting. `start` starts the other process.
    pub fn step(
        self,
        control: &ControlHandle,
        start: impl FnOnce(Asked) -> Option<Successor>,
    ) -> Outcome {
        let stage = match self.stage {
            Stage::Saving(write, asked) if write.is_over() => match start(asked) {
                Some(successor) => Stage::Starting(successor),
                None => return Outcome::Failed,
            },
            stage @ Stage::Saving(..) => stage,
            Stage::Starting(mut successor) => match successor.progress() {
                Progress::Starting => Stage::Starting(successor),
                Progress::Ready => Stage::SavingAgain(Write::begin(control), successor),
                Progress::Failed(how) => return failed(&mut successor, how),
            },
            Stage::SavingAgain(write, mut successor) => match successor.progress() {
                Progress::Failed(how) => return failed(&mut successor, how),
                Progress::Starting | Progress::Ready if write.is_over() => {
                    successor.answer(Ok(successor.id()));
                    return Outcome::Ready(successor);
                }
                Progress::Starting | Progress::Ready => Stage::SavingAgain(write, successor),
            },
        };
        Outcome::Going(Self { stage })
    }

    /// The other process is not wanted any more.
    pub fn abandon(self) {
        match self.stage {
            Stage::Saving(..) => {}
            Stage::Starting(mut successor) | Stage::SavingAgain(_, mut successor) => {
                successor.abandon();
            }
        }
    }
}

fn failed(successor: &mut Successor, how: String) -> Outcome {
    tracing::error!("the new process is not ready, this one goes on: {how}");
    successor.answer(Err(how));
    Outcome::Failed
}
