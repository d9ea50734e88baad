//! How a reload reaches the parts of the service (RELOAD-2, RELOAD-3): each part reads and checks
//! its own files; once all have succeeded, each applies them.

use std::sync::Arc;

use crate::settings::{Listed, Settings};

/// The values of a reload.
#[derive(Clone, Debug)]
pub struct Reloaded {
    /// The settings.
    pub settings: Arc<Settings>,
    /// The settings as they are written.
    pub listing: Arc<[Listed]>,
    /// The warnings.
    pub warnings: Arc<[String]>,
}

/// Applies what was checked. It cannot be refused, and waits for no disk; but the thread that
/// applies it may not do so in time: the error is one sentence about what stays as before, and
/// until when.
pub type Take = Box<dyn FnOnce() -> Result<(), String> + Send>;

/// A part of the service: checks the new settings, reads its files again, and changes nothing
/// before its [`Take`] is called. If it refuses the reload, each fault is one sentence.
pub type Part = Box<dyn Fn(&Reloaded) -> Result<Take, Vec<String>> + Send>;
