//! Feeds: lists that are fetched from other servers (FEED).
//!
//! rules.json names the feeds (`wanted.rs`); the thread that reads it decides which versions are in
//! force (`rules/fed.rs`). The thread `weir-feeds` (`thread.rs`) fetches a feed (`fetch.rs`) when
//! it is due (`due.rs`), checks the result (`judge.rs`) and offers it to the rules. Only this
//! thread writes the copies (`copy.rs`). `kept.rs` is its state of a list; `stream.rs` its state of
//! a decision stream of CrowdSec (FEED-7), whose decisions are in `decisions.rs`. `report.rs` has
//! the reports on both, `handle.rs` the handle for the rest of the service, `said.rs` the data
//! between the handle and the thread.

pub(crate) mod copy;
#[cfg(not(fuzzing))]
pub(crate) mod decisions;
#[cfg(fuzzing)]
pub mod decisions;
mod due;
pub(crate) mod facts;
mod fetch;
pub(crate) mod handle;
pub(crate) mod judge;
pub(crate) mod kept;
mod location;
pub(crate) mod own;
pub(crate) mod report;
mod resolve;
pub(crate) mod said;
pub(crate) mod stream;
mod thread;
pub(crate) mod wanted;
