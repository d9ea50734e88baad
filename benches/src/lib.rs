//! Benchmarks of weir, and what they share. The programs are `src/bin/bench` and `src/bin/soak`;
//! measurements of single parts belong into `benches/`.

pub mod ask;
pub mod beside;
pub mod config;
pub mod load;
pub mod message;
pub mod meter;
pub mod program;
pub mod state;
pub mod statistics;
pub mod tls;
