//! The netblocks that no entry of a feed may cover on this machine (FEED-5).

use std::net::IpAddr;

use weir_shared::netblock::NetSet;

use super::judge::Guard;

/// A guard for these trusted proxies, and for the current addresses of the machine.
pub(crate) fn guard(trusted: &NetSet) -> Guard {
    Guard::new(trusted.blocks().iter().copied(), addresses())
}

fn addresses() -> Vec<IpAddr> {
    match if_addrs::get_if_addrs() {
        Ok(interfaces) => interfaces.iter().map(if_addrs::Interface::ip).collect(),
        Err(error) => {
            tracing::warn!(
                "the addresses of this machine cannot be read: {error}; feeds may list them"
            );
            Vec::new()
        }
    }
}
