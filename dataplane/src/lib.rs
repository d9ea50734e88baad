//! The data plane: accepts connections, identifies clients, decides, forwards, counts.
//!
//! One worker is one thread with its own runtime, listener and upstream pool. Workers share the
//! client table, the counters and the snapshot that the control plane publishes; nothing else.
//! Everything the data plane reports goes out by value over bounded channels, and it waits for
//! nobody.
//!
//! A folder for each noun; each uses only those below it, but for what `worker::mod` shares:
//!
//! - `worker`: one thread. `threads` starts and stops them, `listeners` are theirs, `accept` takes
//!   connections within `limits`. `mod` is what its requests share, under one set of settings:
//!   `clock`, `counters`, `events`, `request_id`.
//! - `conn`: one client connection, below HTTP.
//! - `http1::server`: its way from accept to close, and its requests, one after the other.
//!   `http2`: each stream is a request.
//! - `request`: one request, top to bottom. `identity` says who the client is, `ladder` decides,
//!   `refuse` answers, `exchange` holds it until it is charged, counted and logged.
//! - `relay`: there and back between client and application. `upstream`: the application.
//! - `clients`: the client table.
//! - `message`: heads and fields, of no version of HTTP and of no socket. The rest of `http1`:
//!   HTTP/1.1 as bytes.
//! - `explain` and `replay`: the ladder on a request that is not made, and on those of a log.
//! - `world`: for tests alone, one connection in a box.

#![cfg_attr(
    test,
    allow(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing,
        clippy::disallowed_methods
    )
)]

pub mod clients;
mod conn;
mod explain;
pub mod http1;
mod http2;
pub mod message;
mod relay;
pub mod replay;
mod request;
mod upstream;
mod worker;
#[cfg(any(test, fuzzing))]
mod world;

/// The functions that the fuzz targets call.
#[cfg(fuzzing)]
pub mod fuzzing {
    pub use crate::request::application;
    pub use crate::request::identity::ForgottenProxy;
    pub mod http2 {
        pub use crate::http2::flood::{Budget, Fault, PREFACE, Scanner};
    }
    pub mod clients {
        pub use crate::clients::known::{KnownClients, Standing};
        pub use crate::clients::shared_counts::{SharedCounts, Sharing};
    }
    pub mod world {
        pub use crate::world::{History, Room};
    }
    pub mod tls {
        pub use crate::conn::tls::{Advanced, Session};
    }
    pub mod proxy_protocol {
        pub use crate::conn::proxy_protocol::{Parsed, parse};
    }
    pub mod headers {
        pub use crate::message::fields::{
            ProxyFields, Stripped, asks_for_websocket, nominated_by_client, to_downstream,
            to_upstream,
        };
    }
}

pub use conn::buffers::MAX_OPEN as PIPES_PER_WORKER;
pub use conn::proxy_protocol::MAX_UNNAMED as UNNAMED_PER_WORKER;
pub use explain::explaining;
pub use request::{identity, ladder};
pub use upstream::bound::UpstreamBound;
pub use worker::events::{Records, RefusedLines};
pub use worker::listeners::{BindError, Bound, Listening, Passed, SocketFile, can_be_bound};
pub use worker::threads::{Counting, DataPlane};
pub use worker::{InForce, Parts, Stop};
