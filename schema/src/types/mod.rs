//! The messages as Rust types: one enum a family, told apart by `command`.
//!
//! The types hold what a schema says of members and their kinds; lengths and patterns they leave to
//! the catalog. So a value is read with [`read`], which asks the catalog first, and written with
//! [`write()`], which asks it afterwards. Signatures are verified on the value that was read, not
//! on these types.

#[macro_use]
mod shape;
pub mod c2s;
mod family;
pub mod s2c;
pub mod s2s;
mod shared;

pub use c2s::C2s;
pub use family::{Message, ReadError, read, write};
pub use s2c::S2c;
pub use s2s::S2s;
pub use shared::{Algorithm, ChannelKind, Envelope, Meta, Pubkey};
