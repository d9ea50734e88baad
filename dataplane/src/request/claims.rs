//! Who says that it is a crawler, and what is proven of it when its request is judged (CRAWL-2).

use std::net::IpAddr;
use std::sync::Arc;

use weir_shared::clock::Now;
use weir_shared::rules::{Claim, Crawler, Evidence, Matched};

use crate::clients::entry::Entry;

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
