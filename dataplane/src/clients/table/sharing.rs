//! What of the table is shared: by clients with each other, and with other instances.

use crossbeam_channel::{Receiver, bounded};
use weir_shared::ban::FleetNote;
use weir_shared::client::Client;
use weir_shared::clock::Now;
use weir_shared::event::Offence;
use weir_shared::netblock::PrefixLengths;
use weir_shared::rules::Sent;

use super::Table;
use crate::clients::entry::Entry;
use crate::clients::shared_counts::{SharedCounts, Sharing};

impl Table {
    /// From now on clients that count something are named there, for other instances are to know
    /// (FLEET-5).
    pub fn share_counts(&self) -> Receiver<Client> {
        let (changed, named) = bounded(self.capacity);
        let _ = self.fleet.set(changed);
        self.shared.share();
        named
    }

    /// Something of a client was counted that other instances are to know.
    #[inline]
    pub fn changed(&self, client: Client, entry: &mut Entry) {
        if let Some(fleet) = self.fleet.get() {
            entry.name_to(fleet, client);
        }
    }

    /// Who has counted how much of what a client broke; none where no other instance has. How many
    /// instances there are the control plane adds.
    pub fn fleet_note(&self, client: Client, offence: &Offence, now: Now) -> Option<FleetNote> {
        self.fleet.get()?;
        self.get(client, |entry| entry.fleet_note(offence, now))
            .flatten()
    }

    /// A client is dropped from the table: one that is known by now is remembered (SHARE-4).
    pub(super) fn remember(&self, client: Client, entry: &Entry, wall_ms: u64) {
        if !self.only_asks {
            self.known.remember(client, || entry.standing(), wall_ms);
        }
    }

    /// What clients count together.
    pub fn shared(&self) -> &SharedCounts {
        &self.shared
    }

    /// Hands every entry to `work`, shard by shard.
    pub fn each(&self, mut work: impl FnMut(Client, &mut Entry)) {
        for mut entry in self.map.iter_mut() {
            work(*entry.key(), entry.value_mut());
        }
    }

    /// What a request of a client, with these fields, is to the counts that clients share.
    pub fn sharing<'a>(
        &'a self,
        client: Client,
        prefixes: PrefixLengths,
        sent: &'a dyn Sent,
    ) -> Sharing<'a> {
        Sharing {
            counts: &self.shared,
            known: &self.known,
            client,
            prefixes,
            sent,
            only_asks: self.only_asks,
        }
    }
}
