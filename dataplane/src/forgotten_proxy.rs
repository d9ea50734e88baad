//! A load balancer that is missing in `WAF_TRUSTED_PROXIES` (CLIENT-7).

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use weir_shared::client::Client;
use weir_shared::spared::Spared;

use crate::identity::last_address;

/// Notices a forgotten `WAF_TRUSTED_PROXIES`: one untrusted peer that forwards for many clients
/// (CLIENT-7).
#[derive(Default)]
pub struct ForgottenProxy {
    /// Told of each such peer: the service does not ban it by itself (ALIVE-5).
    spared: Arc<Spared>,
    /// Only requests of untrusted peers that carry `X-Forwarded-For` come here; a contended lock
    /// skips the look.
    peers: Mutex<HashMap<IpAddr, Forwarding>>,
}

/// The clients that one untrusted peer forwarded for within a minute.
struct Forwarding {
    minute: u64,
    clients: HashSet<Client>,
    warned_ms: Option<u64>,
}

/// "Many": distinct forwarded clients from one untrusted peer within a minute.
const MANY_CLIENTS: usize = 100;
/// Peers watched at most.
const MAX_PEERS: usize = 64;
const MINUTE_MS: u64 = 60_000;
const HOUR_MS: u64 = 3_600_000;

impl ForgottenProxy {
    /// Tells `spared` of the peers that it notices.
    pub fn new(spared: Arc<Spared>) -> Self {
        Self {
            spared,
            peers: Mutex::default(),
        }
    }

    /// Notes the last line of `X-Forwarded-For` that an untrusted peer sent; warns where it is due.
    pub fn note(&self, peer: IpAddr, line: &[u8], wall_ms: u64) {
        if self.is_due_with(peer, line, wall_ms) {
            warn(peer);
        }
    }

    fn is_due_with(&self, peer: IpAddr, line: &[u8], wall_ms: u64) -> bool {
        last_address(line).is_some_and(|nearest| self.is_due(peer, nearest, wall_ms))
    }

    fn is_due(&self, peer: IpAddr, nearest: IpAddr, wall_ms: u64) -> bool {
        let client = Client::of(nearest);
        let Ok(mut peers) = self.peers.try_lock() else {
            return false;
        };
        let minute = wall_ms / MINUTE_MS;
        if peers.len() >= MAX_PEERS && !peers.contains_key(&peer) {
            peers.retain(|_, forwarding| {
                forwarding.minute == minute
                    || forwarding
                        .warned_ms
                        .is_some_and(|at| wall_ms.saturating_sub(at) < HOUR_MS)
            });
            if peers.len() >= MAX_PEERS {
                return false;
            }
        }
        let forwarding = peers.entry(peer).or_insert_with(|| Forwarding {
            minute,
            clients: HashSet::new(),
            warned_ms: None,
        });
        if forwarding.minute != minute {
            forwarding.minute = minute;
            forwarding.clients.clear();
        }
        if forwarding.clients.len() < MANY_CLIENTS
            && forwarding.clients.insert(client)
            && forwarding.clients.len() == MANY_CLIENTS
        {
            // In each minute anew, so that no gap is left between two warnings.
            self.spared.spare(peer, wall_ms);
        }
        let due = forwarding.clients.len() >= MANY_CLIENTS
            && forwarding
                .warned_ms
                .is_none_or(|at| wall_ms.saturating_sub(at) >= HOUR_MS);
        if due {
            forwarding.warned_ms = Some(wall_ms);
        }
        due
    }
}

/// Tells the operator.
fn warn(peer: IpAddr) {
    tracing::warn!(
        %peer,
        "this peer forwards for many clients but is not in WAF_TRUSTED_PROXIES: limits and bans \
         are charged to the peer itself; if it is a load balancer of yours, add it to \
         WAF_TRUSTED_PROXIES"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CLIENT-7: a hundred forwarded clients of one untrusted peer within a minute warn, once an
    /// hour.
    #[test]
    fn a_forgotten_proxy_is_noticed_once_an_hour() {
        let spared = Arc::new(Spared::default());
        let noticed = ForgottenProxy::new(Arc::clone(&spared));
        let peer = "198.51.100.1".parse().unwrap();
        let send = |last: u32, at| {
            let chain = format!("203.0.{}.{}", last / 256, last % 256);
            noticed.is_due_with(peer, chain.as_bytes(), at)
        };
        let start = 1_795_276_800_000;
        assert_eq!((0..99).filter(|last| send(*last, start)).count(), 0);
        assert!(!send(98, start), "the same client again is no further one");
        assert_eq!(spared.forwarder_count(), 0);
        assert!(send(99, start));
        assert_eq!(spared.forwarder_count(), 1, "ALIVE-5");
        assert!(!send(100, start));
        assert_eq!(
            (0..200)
                .filter(|last| send(*last, start + MINUTE_MS))
                .count(),
            0,
            "not twice an hour"
        );
        assert_eq!(
            (0..200).filter(|last| send(*last, start + HOUR_MS)).count(),
            1
        );
    }
}
