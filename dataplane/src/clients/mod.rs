//! The per-client buckets: who is kept (`table.rs`), what is charged (`limits.rs`).

pub mod limits;
pub mod table;
