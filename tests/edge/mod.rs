//! Where the service listens, and what is spoken there (EDGE).

mod listen;
mod proxy_protocol;
mod tls;
mod tls_clients;
mod tls_hostile;
