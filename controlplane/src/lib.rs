//! The control plane: bans, lookups, anomalies and alerts, state files, admin and metrics answers, the request log.
//!
//! It never stands in the way of a request: events come in over channels, snapshots go out behind arc-swap.
#![cfg_attr(
    test,
    allow(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing
    )
)]

mod admin;
mod alert;
mod anomaly;
mod bans;
mod control_loop;
mod json;
pub mod lookup;
mod metrics;
pub mod request_log;
pub mod state;
#[cfg(test)]
mod testing;
mod top;

pub use control_loop::{Control, ControlError, ControlHandle, Feeds, Wiring};
