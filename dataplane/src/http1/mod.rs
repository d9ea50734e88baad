//! HTTP/1.1 as bytes: heads of requests and of answers read, bodies of both taken out of their
//! framing, heads and bodies written.
//!
//! `server` and `answer` talk to a client. Nothing else here knows a socket, a runtime or a
//! time-out; whoever moves the bytes calls it.
//!
//! It is strict: bytes that two readers could take for two different messages are an error, and the
//! connection that they came over is not used again. Everything is bounded, and no result depends
//! on how the bytes were split into reads.

pub mod answer;
pub mod body;
pub mod malformed;
pub mod request;
pub mod request_head;
pub mod response;
pub mod server;
