//! How large a record of TLS is that carries an answer.

/// Content of a record at most, bytes. RFC 8446 §5.1 allows 16 KiB; this much is 16 KiB with all
/// that encryption puts around it, 29 bytes at most, and needs no larger piece of memory (CONN-1).
pub const CONTENT: usize = 16 * 1024 - 32;
/// The same as `max_fragment_size` of rustls counts it: with the header of a record.
pub const FRAGMENT: usize = CONTENT + 5;
