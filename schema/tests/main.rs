//! All tests that need more than one module: the schema files, their examples, and the crate seen
//! from outside. Tests of one module alone stand in it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may fail by panicking"
)]

mod bundle;
mod canonical;
mod cli;
mod examples;
mod files;
mod generated;
mod mutation;
mod replay;
mod signature;
mod strict;
mod support;
mod types;
mod vectors;
