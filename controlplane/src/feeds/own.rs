//! What no entry of a feed may cover on this machine, under these settings (FEED-5).

use std::net::IpAddr;

use weir_shared::netblock::NetSet;

use super::judge::Guard;

/// Of these trusted proxies, and of the addresses that the machine has now.
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
