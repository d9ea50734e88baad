//! What the process asks of the control loop.

use std::sync::Arc;

use crossbeam_channel::Sender;
use weir_shared::reload::Reloaded;
use weir_shared::settings::Settings;

use crate::fleet::Ready;
use crate::giving::{Give, Written};

/// What is to be done.
pub(crate) enum LoopCommand {
    /// Whether these settings can be taken; a sentence where not. Where they can, whether this is
    /// an instance of a fleet now.
    Judge(Arc<Settings>, Sender<Result<bool, String>>),
    /// Take them, with the fleet that they name; told once they hold.
    Take(Reloaded, Option<Box<Ready>>, Sender<()>),
    /// Write every state file; told of each whether it is on disk.
    Save(Sender<Written>),
    /// Write them a last time, and give them away.
    Give(Give),
}
