//! Request ids, for the log, the application and whoever asks about a failure.

use std::cell::Cell;

use http::HeaderValue;

/// Digits that tell workers and restarts apart.
const PREFIX: usize = 16;
/// Those, a dash, and the digits that count.
const LENGTH: usize = PREFIX + 1 + 12;

/// Makes request ids: unique over restarts and workers, without a random number a request.
pub struct RequestIds {
    /// The last id that was given.
    last: Cell<[u8; LENGTH]>,
}

impl RequestIds {
    /// Ids that no other worker makes.
    pub fn new() -> Self {
        use std::hash::{BuildHasher, Hasher};
        // The standard hasher's keys are random; hashing nothing shows 64 bits of them.
        let random = std::hash::RandomState::new().build_hasher().finish();
        let mut last = [b'0'; LENGTH];
        for (place, digit) in last.iter_mut().zip(format!("{random:016x}-").bytes()) {
            *place = digit;
        }
        Self {
            last: Cell::new(last),
        }
    }

    /// The id that a trusted proxy gave, or the next one.
    pub fn given_or_next(&self, given: Option<&HeaderValue>) -> HeaderValue {
        given.cloned().unwrap_or_else(|| self.next())
    }

    /// The next id: the last one, counted up in hexadecimal digits.
    pub fn next(&self) -> HeaderValue {
        let mut id = self.last.get();
        for digit in id.iter_mut().skip(PREFIX + 1).rev() {
            *digit = match *digit {
                b'9' => b'a',
                b'f' => b'0',
                digit => digit + 1,
            };
            if *digit != b'0' {
                break;
            }
        }
        self.last.set(id);
        // Hexadecimal digits and a dash are visible ASCII: the fallback is never taken.
        HeaderValue::from_bytes(&id).unwrap_or(HeaderValue::from_static("-"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ids count up, over each digit, and are of one worker by their prefix.
    #[test]
    fn ids_count_up() {
        let ids = RequestIds::new();
        let first = ids.next();
        let prefix = first
            .to_str()
            .unwrap()
            .strip_suffix("-000000000001")
            .unwrap();
        assert_eq!(prefix.len(), PREFIX);
        for count in 2..70_000 {
            assert_eq!(ids.next(), format!("{prefix}-{count:012x}"));
        }
        assert_ne!(RequestIds::new().next(), first);
    }
}
