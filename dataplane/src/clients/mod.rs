//! The clients: which are kept (`table.rs`, `admission.rs`), what is kept of each (`entry.rs`),
//! what a lookup changes for one (`terms.rs`), and how its windows are charged (`limits.rs`).

mod admission;
mod bucket;
pub mod charging;
pub mod entry;
mod further;
mod limits;
pub mod table;
pub mod terms;
