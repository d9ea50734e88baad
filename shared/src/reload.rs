//! How a reload reaches the parts of the service (RELOAD-2, RELOAD-3): each reads what is its own
//! and judges it; once all have found it sound, each takes it.

use std::sync::Arc;

use crate::settings::{Listed, Settings};

/// What holds once a reload is taken.
#[derive(Clone, Debug)]
pub struct Reloaded {
    /// The settings.
    pub settings: Arc<Settings>,
    /// The same as they were written.
    pub listing: Arc<[Listed]>,
    /// What was warned of.
    pub warnings: Arc<[String]>,
}

/// Takes what was judged. It cannot fail, and waits for no disk; but whoever is to take it may not
/// come to it in time: the error is one sentence about what goes on as before, and until when.
pub type Take = Box<dyn FnOnce() -> Result<(), String> + Send>;

/// A part of the service: judges what is to hold, reads its files again, and changes nothing before
/// its [`Take`] is called. Where it is refused, each fault is one sentence.
pub type Part = Box<dyn Fn(&Reloaded) -> Result<Take, Vec<String>> + Send>;
