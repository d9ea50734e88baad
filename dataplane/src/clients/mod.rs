//! The clients: which are kept (`table.rs`, `admission.rs`), what is kept of each (`entry.rs`),
//! what a lookup changes for one (`terms.rs`), its windows (`limits.rs`), how a request and its
//! answer are charged (`charging.rs`), what clients count together (`shared_counts.rs`), which of
//! them are known (`known.rs`), and what other instances are told (`fleet.rs`).

pub mod admission;
pub mod charging;
pub mod entry;
pub mod fleet;
pub mod in_fleet;
pub mod known;
pub mod limits;
pub mod shared_counts;
pub mod table;
pub mod terms;
