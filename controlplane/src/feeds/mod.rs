//! Lists from elsewhere (FEED).
//!
//! Which feeds there are is said by rules.json (`wanted.rs`), which versions hold by the thread
//! that reads it (`rules/fed.rs`). The thread `weir-feeds` fetches (`thread.rs`, `fetch.rs`), when
//! it is time (`due.rs`), judges what came (`judge.rs`) and offers it to the rules; it alone writes
//! the copies (`copy.rs`). A decision stream of CrowdSec (FEED-7) is held decision by decision
//! (`decisions.rs`), and `stream.rs` is what the thread knows of it. `kept.rs` is what it knows of
//! another feed, `report.rs` what is told of either, `handle.rs` how others speak to it, `said.rs`
//! what lies between.

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
