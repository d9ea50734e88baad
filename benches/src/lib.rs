//! Benchmarks of weir, and what they share. The programs are `src/bin/bench` and `src/bin/soak`;
//! measurements of single parts belong into `benches/`.
#![cfg_attr(
    test,
    allow(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing
    )
)]

pub mod ask;
pub mod beside;
pub mod config;
pub mod load;
pub mod message;
pub mod meter;
pub mod paced;
pub mod program;
pub mod state;
pub mod statistics;
pub mod tls;
