//! Bans: the ledger that holds them, and how they reach the data plane.
//!
//! How long a ban lasts is pure arithmetic and lies in [`weir_shared::escalation`], because both planes ask it.

pub(crate) mod document;
mod drop_order;
pub(crate) mod ledger;
pub(crate) mod publish;
