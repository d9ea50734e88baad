//! The documents of `/v1/`, as the service writes them and commands read them (CONTROL-2). The
//! OpenAPI file describes them, and a test compares the two.
//!
//! A command may read answers of a service of another version: members that may be missing have a
//! default, and unknown ones are ignored.

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
