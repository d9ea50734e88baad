//! What the process asks of the control loop.

use std::sync::Arc;

use crossbeam_channel::Sender;
use weir_shared::reload::Reloaded;
use weir_shared::settings::Settings;

/// One of the two steps of a reload.
pub(crate) enum Order {
    /// Whether these settings can be taken; a sentence where not.
    Judge(Arc<Settings>, Sender<Result<(), String>>),
    /// Take them; told once they hold.
    Take(Reloaded, Sender<()>),
}
