//! The data plane: accepts, identifies, decides, forwards, counts.
//!
//! One worker is one thread with its own runtime, listener and upstream pool. Workers share the client table, the
//! counters and the snapshot that the control plane publishes; nothing else. Everything the data plane says goes out by
//! value over bounded channels, and it waits for nobody.
#![cfg_attr(
    test,
    allow(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing
    )
)]


pub mod clients;
mod clock;
mod connection;
pub mod counters;
mod events;
mod forgotten_proxy;
mod forward;
pub mod http1;
pub mod identity;
pub mod ladder;
mod reply;
mod request;
mod request_id;
mod socket;
mod worker;

/// A door for the fuzz targets.
#[cfg(fuzzing)]
pub mod fuzzing {
    pub use crate::forward::headers;
}

pub use events::Records;
pub use worker::{BindError, Bound, Counting, DataPlane, Parts, Stop};
