//! The behaviour tests: the real binary over real sockets, one file a behaviour.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod admin;
mod bans;
mod harness;
mod identity;
mod ladder;
mod limits;
mod observe;
mod state;
mod support;
