//! The bounds on connections, across workers: `WAF_MAX_CONNECTIONS` and
//! `WAF_MAX_CONNECTIONS_PER_CLIENT`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ahash::RandomState;
use dashmap::DashMap;
use weir_shared::client::Client;
use weir_shared::settings::ConnectionSettings;
use weir_shared::totals::ConnectionError;

use crate::counters::Counters;

/// The bounds on connections, across workers. Touched at accept and close only.
pub struct ConnectionLimits {
    open: AtomicUsize,
    by_client: DashMap<Client, usize, RandomState>,
    max: usize,
    max_per_client: usize,
}

impl ConnectionLimits {
    /// Limits under which nothing is open yet.
    pub fn new(settings: &ConnectionSettings) -> Self {
        Self {
            open: AtomicUsize::new(0),
            by_client: DashMap::default(),
            max: settings.max,
            max_per_client: settings.max_per_client,
        }
    }

    /// Takes a slot, and counts the connection. The bound of one client is not for trusted proxies:
    /// they have no `client`.
    pub fn enter(
        self: &Arc<Self>,
        client: Option<Client>,
        counters: &Arc<Counters>,
    ) -> Result<ConnectionSlot, ConnectionError> {
        // Relaxed: the number alone decides, no other memory hangs on it.
        if self.open.fetch_add(1, Ordering::Relaxed) >= self.max {
            self.open.fetch_sub(1, Ordering::Relaxed);
            return Err(ConnectionError::TooMany);
        }
        if let Some(client) = client {
            let mut count = self.by_client.entry(client).or_insert(0);
            if *count >= self.max_per_client {
                self.open.fetch_sub(1, Ordering::Relaxed);
                return Err(ConnectionError::TooManyClient);
            }
            *count += 1;
        }
        counters.connection_opened();
        Ok(ConnectionSlot {
            limits: Arc::clone(self),
            client,
            counters: Arc::clone(counters),
        })
    }
}

/// A slot among the connections, given back when dropped: also by a panic.
pub struct ConnectionSlot {
    limits: Arc<ConnectionLimits>,
    client: Option<Client>,
    counters: Arc<Counters>,
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.counters.connection_closed();
        self.limits.open.fetch_sub(1, Ordering::Relaxed);
        if let Some(client) = self.client {
            let by_client = &self.limits.by_client;
            if let Some(mut count) = by_client.get_mut(&client) {
                *count = count.saturating_sub(1);
            }
            by_client.remove_if(&client, |_, count| *count == 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_shared::totals::Totals;

    fn limits(max: usize, max_per_client: usize) -> Arc<ConnectionLimits> {
        Arc::new(ConnectionLimits::new(&ConnectionSettings {
            max,
            max_per_client,
        }))
    }

    fn open(counters: &Counters) -> u64 {
        let mut totals = Totals::default();
        counters.fold_into(&mut totals);
        totals.connections
    }

    /// CONN: both bounds hold, a trusted proxy has the first alone, and what is closed can be
    /// opened again.
    #[test]
    fn a_slot_is_given_back() {
        let (limits, counters) = (limits(3, 1), Arc::default());
        let [one, two] = [1, 2].map(|last| Some(Client::V4(last)));
        let first = limits.enter(one, &counters).unwrap();
        let refused = |client| limits.enter(client, &counters).err().unwrap();
        assert_eq!(refused(one), ConnectionError::TooManyClient);
        let proxies = [None, None].map(|proxy| limits.enter(proxy, &counters).unwrap());
        assert_eq!(refused(two), ConnectionError::TooMany);
        assert_eq!(open(&counters), 3);
        drop(first);
        let second = limits.enter(one, &counters).unwrap();
        drop((second, proxies));
        assert_eq!(open(&counters), 0);
        assert!(limits.by_client.is_empty());
    }

    /// METRIC: a panic in whatever holds the slot leaves no connection counted that is gone.
    #[test]
    fn a_panic_gives_the_slot_back() {
        let (limits, counters) = (limits(1, 1), Arc::default());
        let slot = limits.enter(None, &counters).unwrap();
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _held = slot;
            panic!("a bug");
        }));
        assert!(outcome.is_err());
        assert_eq!(open(&counters), 0);
        assert!(limits.enter(None, &counters).is_ok());
    }
}
