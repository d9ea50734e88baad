//! Benchmarks of weir, and what they share. The whole proxy beside its peers is `src/bin/peers`,
//! weir without and with each of its own features `src/bin/overhead`; measurements of single parts
//! belong into `benches/`.
#![cfg_attr(
    test,
    allow(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing
    )
)]

pub mod config;
pub mod load;
pub mod meter;
pub mod paced;
pub mod program;
pub mod state;
pub mod statistics;
pub mod tls;
