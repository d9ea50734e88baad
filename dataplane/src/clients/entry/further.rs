//! What few clients have: since when their requests pass, and how many (SHARE-4); and what is known
//! of those that say that they are crawlers (CRAWL).

use std::net::IpAddr;

use weir_shared::proof::{NamesAnswer, Suffixes};

use super::Entry;
use crate::clients::known::Standing;
use crate::clients::terms::KnownNames;

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

impl Entry {
    /// The names of an address of the client, as far as they are known.
    pub fn names(&self, address: IpAddr, suffixes: &Suffixes, mono_ns: u64) -> Option<&[Box<str>]> {
        let known = self.further.as_ref()?.names.as_ref()?;
        known
            .names()
            .filter(|_| known.holds(address, suffixes, mono_ns))
    }

    /// Whether the names of an address are to be asked for now (CRAWL-3). The caller that is told
    /// so asks; nobody else is.
    pub fn begins_names(&mut self, address: IpAddr, suffixes: &Suffixes, mono_ns: u64) -> bool {
        let known = &mut self.further().names;
        let is_due = !(known.as_ref()).is_some_and(|of| of.holds(address, suffixes, mono_ns));
        if is_due {
            *known = Some(Box::new(KnownNames::asked(address, suffixes, mono_ns)));
        }
        is_due
    }

    /// Attaches what is known of the names of an address.
    pub fn set_names(&mut self, address: IpAddr, answer: NamesAnswer) {
        self.further().names = Some(Box::new(KnownNames::new(address, answer)));
    }

    /// Notes that the client is a verified crawler; true if that is news of this hour (CRAWL-4).
    pub fn notes_crawler(&mut self, mono_ns: u64) -> bool {
        let noted = &mut self.further().noted;
        noted.get_or_insert_default().anew(mono_ns)
    }
}
