//! What few clients have: since when their requests pass, and how many (SHARE-4); who says that it
//! is a crawler, and what is proven of it when its request is judged (CRAWL-2).

use std::net::IpAddr;
use std::sync::Arc;

use weir_shared::clock::Now;
use weir_shared::proof::{NamesAnswer, Suffixes};
use weir_shared::rules::{Claim, Crawler, Evidence, Matched};

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

/// What a request claims, and what follows from that besides.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Claims {
    /// The crawler that it says it is; none where it says nothing.
    pub claim: Option<Claim>,
    /// The names of its address are to be asked for: this request alone was told so (CRAWL-3).
    pub asks: bool,
    /// The client is a verified crawler, and was not noted as one within the last hour (CRAWL-4).
    pub notes: bool,
}

impl Claims {
    /// Nothing is claimed.
    pub const NONE: Self = Self {
        claim: None,
        asks: false,
        notes: false,
    };

    /// What a request of this client claims.
    #[inline]
    pub fn of(entry: &mut Entry, matched: &Matched<'_>, address: IpAddr, now: Now) -> Self {
        if !matched.has_claims() {
            return Self::NONE;
        }
        let suffixes = matched.asks_names();
        let asks = suffixes.is_some_and(|suffixes| {
            // The question is asked once; the answer is looked at each time.
            entry.begins_names(address, suffixes, now.mono_ns)
        });
        let names = suffixes.and_then(|suffixes| entry.names(address, suffixes, now.mono_ns));
        let claim = matched.claim(Evidence {
            address,
            names,
            now_ms: now.wall_ms,
        });
        let is_verified = claim.as_ref().is_some_and(|one| one.verified().is_some());
        Self {
            claim,
            asks,
            notes: is_verified && entry.notes_crawler(now.mono_ns),
        }
    }

    /// The crawler that the client is.
    pub fn verified(&self) -> Option<&Arc<Crawler>> {
        self.claim.as_ref()?.verified()
    }
}
