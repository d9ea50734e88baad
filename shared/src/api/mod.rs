//! The documents of `/v1/`, as the service writes them and commands read them (CONTROL-2). The
//! OpenAPI file describes them, and a test compares the two.
//!
//! A command reads what a service of another version writes: members that may be missing there have
//! a default, and further ones are left out.

pub mod bans;
pub mod buckets;
pub mod clients;
pub mod explain;
pub mod groups;
pub mod in_order;
pub mod process;
pub mod settings;
pub mod status;
