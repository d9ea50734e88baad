//! Since when requests of a client pass, and how many (SHARE-4).

use super::Entry;
use crate::clients::known::Standing;

impl Entry {
    /// A request that came at this time passed. Where `would_be_refused`, enforce mode would not
    /// have let it (SHARE-4).
    pub fn note_passed(&mut self, at_ms: u64, would_be_refused: bool) {
        if would_be_refused {
            self.further().would_be_refused += 1;
        } else if self.standing().passed == 0 && self.first_seen_ms != at_ms {
            self.further().first_passed_ms = Some(at_ms);
        }
        self.passed += 1;
    }

    /// What its history says of it (SHARE-4).
    pub fn standing(&self) -> Standing {
        let further = self.further.as_ref();
        let would_be_refused = further.map_or(0, |further| further.would_be_refused);
        let passed = self.passed.saturating_sub(would_be_refused);
        let first_passed_ms = further.and_then(|further| further.first_passed_ms);
        Standing {
            since_ms: (passed > 0).then(|| first_passed_ms.unwrap_or(self.first_seen_ms)),
            passed,
            refused: self.refused.saturating_add(would_be_refused),
        }
    }

    /// When the first of its requests passed, where that was not the first of all.
    pub fn first_passed_ms(&self) -> Option<u64> {
        self.further.as_ref()?.first_passed_ms
    }

    /// Puts that in, in place of what is held.
    pub fn set_first_passed(&mut self, at_ms: Option<u64>) {
        if at_ms.is_some() || self.further.is_some() {
            self.further().first_passed_ms = at_ms;
        }
    }
}
