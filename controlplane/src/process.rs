//! What operators ask of the process as a whole: the control plane hands it over.

use std::sync::Arc;

use weir_shared::settings::Change;

/// Called once with the answer. If it is dropped instead, the answer is 503.
pub type Reply<T> = Box<dyn FnOnce(T) + Send>;

/// One request.
pub enum ProcessCommand {
    /// `POST /v1/reload`: what changed, or every fault.
    Reload(Reply<Result<Report, Vec<String>>>),
    /// `POST /v1/upgrade`: the number of the process that takes over, or why none does.
    Upgrade(Reply<Result<u32, String>>),
}

/// Hands a request over; false if the process is behind. Never blocks.
pub type Asking = Arc<dyn Fn(ProcessCommand) -> bool + Send + Sync>;

/// A reload that was taken.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Every setting that has another value, also those that wait for a restart.
    pub changes: Vec<Change>,
    /// What was warned of.
    pub warnings: Vec<String>,
}
