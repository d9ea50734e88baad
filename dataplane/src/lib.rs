//! The data plane: accepts, identifies, decides, forwards, counts.
//!
//! One worker is one thread with its own runtime, listener and upstream pool. Workers share the
//! client table, the counters and the snapshot that the control plane publishes; nothing else.
//! Everything the data plane says goes out by value over bounded channels, and it waits for nobody.
#![cfg_attr(
    test,
    allow(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing
    )
)]

mod accept;
mod bind;
pub mod clients;
mod clock;
mod connection;
mod connection_limits;
mod counters;
mod downstream;
mod events;
mod exchange;
mod forgotten_proxy;
mod forward;
mod headers;
pub mod http1;
pub mod identity;
pub mod ladder;
mod outcome;
mod own;
mod plane;
mod problem;
mod rate_limit;
mod refuse;
mod request;
mod request_id;
mod trailers;
mod upstream;
mod worker;

/// The functions that the fuzz targets call.
#[cfg(fuzzing)]
pub mod fuzzing {
    pub use crate::headers;
}

pub use bind::{BindError, Bound};
pub use events::Records;
pub use plane::{Counting, DataPlane};
pub use worker::{Parts, Stop};
