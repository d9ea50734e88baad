//! Where the service listens, and what is spoken there (EDGE).

mod listen;
mod proxy_protocol;
mod tls;
