//! Request ids, for the log, the application and whoever asks about a failure.

use std::cell::Cell;

use http::HeaderValue;

/// Makes request ids: unique over restarts and workers, without a random number a request.
pub struct RequestIds {
    prefix: String,
    counter: Cell<u64>,
}

impl RequestIds {
    /// Ids that no other worker makes.
    pub fn new() -> Self {
        use std::hash::{BuildHasher, Hasher};
        // The standard hasher's keys are random; hashing nothing shows 64 bits of them.
        let random = std::hash::RandomState::new().build_hasher().finish();
        Self {
            prefix: format!("{random:016x}-"),
            counter: Cell::new(0),
        }
    }

    /// The id that a trusted proxy gave, or the next one.
    pub fn given_or_next(&self, given: Option<&HeaderValue>) -> HeaderValue {
        given.cloned().unwrap_or_else(|| self.next())
    }

    /// The next id.
    pub fn next(&self) -> HeaderValue {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let count = self.counter.get().wrapping_add(1);
        self.counter.set(count);
        let mut id = Vec::with_capacity(self.prefix.len() + 12);
        id.extend_from_slice(self.prefix.as_bytes());
        id.extend(
            (0..12)
                .rev()
                .filter_map(|digit| DIGITS.get((count >> (4 * digit)) as usize & 15)),
        );
        // Hexadecimal digits and a dash are visible ASCII: the fallback is never taken.
        HeaderValue::from_maybe_shared(bytes::Bytes::from(id))
            .unwrap_or(HeaderValue::from_static("-"))
    }
}
