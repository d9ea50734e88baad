//! The chat messages as JSON Schemas, and what a program needs to trust one: strict parsing,
//! judging, the canonical form, signatures, and a guard against repeated messages.
//!
//! Nothing here opens a socket, reads a clock or keeps state of its own; those belong to the
//! caller. The proxy shares nothing with the chat protocol but [`Schema`], which compiles any
//! document.
#![cfg_attr(
    test,
    allow(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing,
        reason = "a test may fail by panicking"
    )
)]

pub mod bundle;
pub mod canonical;
pub mod catalog;
mod documents;
pub mod pubkey;
pub mod replay;
pub mod signature;
pub mod strict;
pub mod types;

pub use catalog::{Catalog, CatalogError, Family, Schema, Violation};
pub use documents::{BASE, EXAMPLES};

/// The Rust of the README is compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
