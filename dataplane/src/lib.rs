//! The data plane: accepts connections, identifies clients, decides, forwards, counts.
//!
//! One worker is one thread with its own runtime, listener and upstream pool. Workers share the
//! client table, the counters and the snapshot that the control plane publishes; nothing else.
//! Everything the data plane reports goes out by value over bounded channels, and it waits for
//! nobody.
//!
//! The files in the order in which a request meets them; each uses only files below it:
//!
//! - `plane`: the threads are started, stopped and joined. `bind`: their listeners.
//! - `listener`: one of them, as a worker accepts from it.
//! - `proxy_protocol`: what a proxy says of a connection before its first byte.
//! - `accept`: one worker's loop: it accepts, ticks and drains. `connection_limits`: how many.
//! - `connection`: one client connection, its time-outs and its end.
//! - `ticking`: its heartbeat.
//! - `linger`: its end, where an answer is not to be lost by it.
//! - `handshake`, `handshakes`: those of TLS. `foreign`: bytes of other protocols.
//! - `http2`: a connection that speaks HTTP/2, each stream of which is a request.
//! - `refused_peer`: the same for a peer that is refused whatever it asks for.
//! - `without_hyper`: a connection whose requests are plain, as most are. `plain`: which are.
//! - `request`: one request, top to bottom. `identity` and `forgotten_proxy`: who the client is.
//! - `refuse`, `own`, `to_https`, `forward`: the ways in which a request is answered.
//! - `exchange`: one request until it is charged, counted and logged. `outcome`: the pure part.
//! - `worker`: what the requests of one thread share.
//! - `ladder`: every check, in order, pure. `refusal`: what it refuses for. `clients`: the client
//!   table.
//! - `explain` and `replay`: the ladder on a request that is not made, and on those of a log.
//! - `upstream`: a request is sent to the application, and sent again where that is safe.
//! - `downstream`: the client's socket, its deadlines, the state of its upload. `client_body`: the
//!   body of a request, over whichever HTTP it comes.
//! - `pipe`: bodies that go from socket to socket inside the system. `together`: bytes that go
//!   with what follows them.
//! - `head`: a head as those read it who only look. `seen`: which fields it has.
//! - `request_head`: the head of a request that is answered, of whichever kind.
//! - `headers`, `trailers`, `problem`, `negotiation`, `rate_limit`, `events`, `counters`,
//!   `request_id`, `clock`: what the others are made of.
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

mod accept;
mod bind;
#[cfg(any(test, fuzzing))]
mod by_hyper;
mod client_body;
pub mod clients;
mod clock;
mod connection;
mod connection_limits;
mod counters;
mod downstream;
mod events;
mod exchange;
mod explain;
mod foreign;
mod forgotten_proxy;
mod forward;
mod give_back;
mod handshake;
mod handshakes;
pub mod head;
mod headers;
pub mod http1;
mod http2;
pub mod identity;
mod in_force;
mod keepalive;
pub mod ladder;
mod linger;
mod listener;
mod negotiation;
mod outcome;
mod own;
mod pipe;
mod plain;
mod plane;
mod problem;
mod proxy_protocol;
mod rate_limit;
mod refusal;
mod refuse;
mod refused_lines;
mod refused_peer;
mod refused_rate;
pub mod replay;
mod request;
mod request_head;
mod request_id;
pub mod seen;
mod ticking;
mod to_https;
mod together;
mod trailers;
mod unnamed;
mod upstream;
mod without_hyper;
mod worker;

/// The functions that the fuzz targets call.
#[cfg(fuzzing)]
pub mod fuzzing {
    pub use crate::forgotten_proxy::ForgottenProxy;
    pub use crate::head::{Fields, Head};
    pub mod by_hyper {
        pub use crate::by_hyper::{Connection, Message, Through, compare_plain, read};
    }
    pub mod http2 {
        pub use crate::http2::flood::{Budget, Fault, PREFACE, Scanner};
    }
    pub mod plain {
        pub use crate::plain::{MAX_FIELDS, Parsed, Plain, PlainHead};
    }
    pub mod tls {
        pub use crate::downstream::tls::{Advanced, Session};
    }
    pub mod proxy_protocol {
        pub use crate::proxy_protocol::{Parsed, parse};
    }
    pub mod headers {
        pub use crate::headers::{
            ProxyFields, Stripped, asks_for_websocket, check_framing, check_host, check_target,
            nominated_by_client, origin_form, to_downstream, to_upstream,
        };
    }
}

pub use bind::{BindError, Bound, Listening, Passed, SocketFile, can_be_bound};
pub use events::Records;
pub use explain::explaining;
pub use in_force::InForce;
pub use pipe::MAX_OPEN as PIPES_PER_WORKER;
pub use plane::{Counting, DataPlane};
pub use refused_lines::RefusedLines;
pub use unnamed::MAX_UNNAMED as UNNAMED_PER_WORKER;
pub use worker::{Parts, Stop};
