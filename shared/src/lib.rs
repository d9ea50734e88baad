//! The types that the two planes and the commands share.
//!
//! No sockets and no files: values, pure arithmetic, and the few traits and function types by which
//! the data plane and the control plane call each other without depending on each other.
#![cfg_attr(
    test,
    allow(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing
    )
)]

// The words that both planes and the commands use.
pub mod api;
pub mod ban;
pub mod ban_origin;
pub mod client;
pub mod clock;
pub mod escalation;
pub mod fleet;
pub mod lookup;
pub mod netblock;
pub mod origin;
pub mod path;
pub mod proof;
pub mod pulse;
pub mod refusal_page;
pub mod rules;
pub mod settings;
pub mod spans;
pub mod threads;
pub mod tls_record;
pub mod units;
pub mod verdict;
pub mod window;

// What goes between the planes: up, down, and there and back.
pub mod event;
pub mod explain;
pub mod handover;
pub mod health;
pub mod record;
pub mod reload;
pub mod snapshot;
pub mod spared;
pub mod table;
pub mod totals;
