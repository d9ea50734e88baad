//! The behaviour tests: the real binary over real sockets, one file a behaviour.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod harness;
mod identity;
mod ladder;
mod support;
