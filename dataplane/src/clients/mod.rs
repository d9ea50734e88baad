//! The per-client buckets: who is kept (`table.rs`), what is charged (`limits.rs`), what a lookup
//! changes (`terms.rs`).

pub mod limits;
pub mod table;
pub mod terms;
