//! Several instances of weir that act as one (FLEET).
//!
//! The pure part: `stamp.rs` (which change is the later one), `entry.rs` and `lift.rs` (a ban and a
//! lift that are joined), `lists.rs` (entries of lists), `event.rs` (how they are written),
//! `replica.rs` and `outcome.rs` (what one instance knows, and what its ledger is to hold),
//! `conflict.rs` (two edits of one member), `filing.rs` (lists.json), `core.rs` (what it sends and
//! reads). `engine.rs` is what is asked of the engine. `simulator/` has fleets in one thread, with
//! an engine that fails in every way, and checks after each history that nothing was lost and all
//! are alike.
//!
//! The service's part: `ready.rs` (key and certificates), `starting.rs`, `part.rs` (what the
//! control loop does in each turn), `standing.rs` and `contact.rs` (whether the engine answers, and
//! its time), `thread.rs` (the thread that speaks with it), `again.rs` (over one connection after
//! the other), `words.rs` (what loop and thread say to each other), `kept.rs` (fleet.json),
//! `points.rs` (from where the log is read after a restart), `names.rs` (bans as the fleet names
//! them), `namesakes.rs` (two instances of one name), `changing.rs` (a beginning anew, while it
//! runs), `beat.rs`, `others.rs` and `same.rs` (the other instances), `waits.rs` (answers that wait
//! for them), `view.rs` and `facts.rs` (what is told), `counts.rs`, `counting.rs`, `sharing.rs` and
//! `counted.rs` (what is counted of clients, and the thread that shares it), `lists_file.rs` and
//! `keeping_lists.rs` (lists.json), `aside.rs` and `setting_aside.rs` (what only an instance holds
//! that was away for long), `anomalies.rs` and `claims.rs` (anomalies, and who tells them),
//! `eviction.rs` (the engine's policy), `clocks.rs` (a clock that is off), `going.rs` (a stop). A
//! build without the feature `fleet` has `absent.rs` instead.

// With the feature for its test alone.
#[cfg(any(test, not(feature = "fleet")))]
#[cfg_attr(feature = "fleet", expect(dead_code))]
mod absent;
#[cfg(feature = "fleet")]
mod again;
#[cfg(feature = "fleet")]
mod anomalies;
#[cfg(feature = "fleet")]
mod aside;
#[cfg(feature = "fleet")]
mod beat;
#[cfg(feature = "fleet")]
mod changing;
#[cfg(feature = "fleet")]
mod claims;
#[cfg(feature = "fleet")]
mod clocks;
pub mod conflict;
#[cfg(feature = "fleet")]
mod contact;
pub mod core;
#[cfg(feature = "fleet")]
mod counted;
#[cfg(feature = "fleet")]
mod counting;
pub mod counts;
mod digest;
pub mod engine;
pub mod entry;
pub mod event;
#[cfg(feature = "fleet")]
mod eviction;
pub(crate) mod facts;
#[cfg(any(test, feature = "fleet"))]
mod filing;
#[cfg(feature = "fleet")]
mod going;
#[cfg(feature = "fleet")]
mod keeping_lists;
#[cfg(feature = "fleet")]
mod kept;
pub mod lift;
#[cfg(feature = "fleet")]
pub mod link;
mod lists;
#[cfg(feature = "fleet")]
mod lists_file;
#[cfg(feature = "fleet")]
mod names;
#[cfg(feature = "fleet")]
mod namesakes;
#[cfg(feature = "fleet")]
mod others;
mod outcome;
#[cfg(feature = "fleet")]
mod part;
pub mod place;
#[cfg(feature = "fleet")]
mod points;
#[cfg(feature = "fleet")]
mod reading;
#[cfg(feature = "fleet")]
mod ready;
#[cfg(feature = "fleet")]
mod refused;
pub mod replica;
#[cfg(feature = "fleet")]
mod same;
#[cfg(feature = "fleet")]
pub mod seal;
#[cfg(feature = "fleet")]
mod setting_aside;
#[cfg(feature = "fleet")]
mod sharing;
#[cfg(test)]
mod simulator;
pub mod stamp;
#[cfg(feature = "fleet")]
mod standing;
#[cfg(feature = "fleet")]
mod starting;
#[cfg(feature = "fleet")]
mod thread;
#[cfg(feature = "fleet")]
mod view;
#[cfg(feature = "fleet")]
mod waits;
#[cfg(feature = "fleet")]
mod words;

#[cfg(not(feature = "fleet"))]
pub use absent::Ready;
#[cfg(not(feature = "fleet"))]
pub(crate) use absent::{AtStart, Fleet, Settled, held_lists};
#[cfg(feature = "fleet")]
pub(crate) use claims::Settled;
#[cfg(feature = "fleet")]
pub(crate) use kept::held_lists;
#[cfg(feature = "fleet")]
pub(crate) use part::Fleet;
#[cfg(feature = "fleet")]
pub use ready::Ready;
#[cfg(feature = "fleet")]
pub(crate) use starting::AtStart;
