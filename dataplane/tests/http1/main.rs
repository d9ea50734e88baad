//! The HTTP/1.1 codec by itself: tables of answers and of requests, every way to cut them,
//! and hyper beside it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod agreement;
mod answers;
mod oracle;
mod requests;
mod requests_in;
mod requests_read;
mod server;
