//! Requests of operators to the process as a whole, which the control plane passes on.

use std::sync::Arc;

use weir_shared::settings::Change;

/// Called once with the answer. If it is dropped instead, the answer is 503.
pub type Reply<T> = Box<dyn FnOnce(T) + Send>;

/// One request.
pub enum ProcessCommand {
    /// `POST /v1/reload`: what changed, or every fault.
    Reload(Reply<Result<Report, Vec<String>>>),
    /// `POST /v1/upgrade`: the id of the process that takes over, or why none does.
    Upgrade(Reply<Result<u32, String>>),
}

/// Passes a request on; false if too many wait. Never blocks.
pub type Asking = Arc<dyn Fn(ProcessCommand) -> bool + Send + Sync>;

/// A reload that was taken.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Every changed setting, including those that need a restart.
    pub changes: Vec<Change>,
    /// The warnings.
    pub warnings: Vec<String>,
}
