//! The documents of `/v1/`, as the service writes them and commands read them (CONTROL-2). The
//! OpenAPI file describes them, and a test compares the two.
//!
//! A command reads what a service of another version writes: members that may be missing there have
//! a default, and further ones are left out. A member that every version writes has none: without
//! it the answer is that of another program.

pub mod alerts;
pub mod bans;
pub mod buckets;
pub mod clients;
pub mod explain;
pub mod feeds;
pub mod fleet;
pub mod groups;
pub mod history;
pub mod in_order;
pub mod lists;
pub mod process;
pub mod settings;
pub mod status;
