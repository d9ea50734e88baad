//! The process log: what the service says about itself, one JSON object a line on standard error.
//! Requests and alerts have a log of their own.

use std::io::stderr;

use tracing::Level;

/// Starts it. `level` is a checked `WAF_LOG_LEVEL`.
pub fn start(level: &str) {
    let level: Level = level.parse().unwrap_or(Level::INFO);
    let log = tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_target(false)
        .with_current_span(false)
        .with_span_list(false)
        .with_max_level(level)
        .with_writer(stderr)
        .finish();
    // A log that is set already (there is one start a process) stays.
    let _ = tracing::subscriber::set_global_default(log);
}
