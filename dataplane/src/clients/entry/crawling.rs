//! What is kept of a client that says that it is a crawler (CRAWL).

use std::net::IpAddr;

use weir_shared::proof::{NamesAnswer, Suffixes};

use super::Entry;
use crate::clients::names::KnownNames;

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
