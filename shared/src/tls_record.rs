//! The size of TLS records that carry an answer.

/// The most bytes of content of a record. RFC 8446 §5.1 allows 16 KiB; with this size the encrypted
/// record, which has at most 29 bytes more, fits into 16 KiB and needs no larger piece of memory
/// (CONN-1).
pub const CONTENT: usize = 16 * 1024 - 32;
/// The same in the count of rustls's `max_fragment_size`, which includes the record header.
pub const FRAGMENT: usize = CONTENT + 5;
