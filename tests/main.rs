//! The behaviour tests: the real binary over real sockets, one file a behaviour.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods
)]

mod admin;
mod alerts;
mod alive;
mod bans;
mod blocking_files;
mod combinations;
mod commands;
mod connections;
mod control;
mod crawlers;
mod dashboard;
mod demo;
mod docs;
mod drain;
mod durability;
mod edge;
mod faulty_application;
mod feeds;
mod fleet;
mod forward_exact;
mod forwarding;
mod framing;
mod full_files;
mod handover;
mod handover_faults;
mod hangs;
mod harness;
mod hostile_files;
mod identity;
mod imports;
mod journal;
mod ladder;
mod large_bodies;
mod large_edits;
mod limits;
mod list_changes;
mod log;
mod lookup;
mod metrics;
mod nginx_application;
mod not_weir;
mod observe;
mod operator;
mod overload;
mod packages;
mod pipelines;
mod prometheus;
mod refusals;
mod refused_peer;
mod reload;
mod replay;
mod root_commands;
mod rules;
mod schemas;
mod settings_start;
mod slots;
mod slow_clients;
mod spared;
mod state;
mod support;
mod systemd;
mod top;
mod upload_and_reply;
mod upstream_name;
mod websocket;
mod without_hyper;
