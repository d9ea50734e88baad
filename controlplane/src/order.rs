//! Requests of the process to the control loop.

use std::sync::Arc;

use crossbeam_channel::Sender;
use weir_shared::reload::Reloaded;
use weir_shared::settings::Settings;

use crate::fleet::Ready;
use crate::giving::{Give, Written};

/// A request.
pub(crate) enum LoopCommand {
    /// Check whether these settings can be applied: replies with a sentence if not, otherwise with
    /// whether this is an instance of a fleet now.
    Judge(Arc<Settings>, Sender<Result<bool, String>>),
    /// Apply them, with their fleet; replies once they are in force.
    Take(Reloaded, Option<Box<Ready>>, Sender<()>),
    /// Write every state file; replies for each whether it is on disk.
    Save(Sender<Written>),
    /// Write every state file a last time, and give them away.
    Give(Give),
}
