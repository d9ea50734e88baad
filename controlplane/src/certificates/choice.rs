//! Which certificate a client gets: the one for the name it asks for, else the first.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::chain::Chain;

/// The certificates by name.
pub(super) struct Choice {
    by_name: HashMap<String, Arc<CertifiedKey>>,
    first: Option<Arc<CertifiedKey>>,
}

impl Choice {
    /// Of two certificates for the same name, the first one of the setting is used.
    pub(super) fn of(chains: Vec<Chain>) -> Self {
        let first = chains.first().map(|chain| Arc::clone(&chain.key));
        let mut by_name = HashMap::new();
        for chain in chains {
            for name in chain.names {
                by_name
                    .entry(name)
                    .or_insert_with(|| Arc::clone(&chain.key));
            }
        }
        Self { by_name, first }
    }

    /// The certificate for a name: an exact name wins over a wildcard, which stands for one label
    /// (RFC 9525 §6.3).
    fn named(&self, name: &str) -> Option<&Arc<CertifiedKey>> {
        let name = name.to_ascii_lowercase();
        let exact = self.by_name.get(&name);
        exact.or_else(|| {
            let (_, above) = name.split_once('.')?;
            self.by_name.get(&format!("*.{above}"))
        })
    }
}

impl fmt::Debug for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.by_name.keys()).finish()
    }
}

impl ResolvesServerCert for Choice {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let named = hello.server_name().and_then(|name| self.named(name));
        named.or(self.first.as_ref()).cloned()
    }
}
