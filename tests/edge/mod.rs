//! Where the service listens, and what is spoken there (EDGE).

mod h2;
mod h2_cases;
mod h2_clients;
mod h2_connections;
mod h2_floods;
mod h2_memory;
mod listen;
mod proxy_protocol;
mod tls;
mod tls_clients;
mod tls_hostile;
