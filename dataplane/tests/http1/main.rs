//! The HTTP/1.1 codec by itself: a table of answers, every way to split each of them, and hyper's
//! client beside it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod answers;
mod oracle;
mod requests;
