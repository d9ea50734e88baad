//! HTTP/1.1 as bytes: heads and bodies of answers read, heads and bodies of requests written;
//! and where the head of a request ends.
//!
//! Nothing here knows a socket, a runtime or a time-out; whoever moves the bytes calls it. It is
//! strict: bytes that two readers could take for two different messages are an error, and the
//! connection that they came over is not used again. Everything is bounded, and no result depends
//! on how the bytes were split into reads.

pub mod body;
mod fields;
pub mod head_end;
pub mod malformed;
pub mod request;
pub mod response;
