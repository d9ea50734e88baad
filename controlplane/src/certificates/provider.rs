//! The cryptography under TLS: one provider for certificates, handshakes and tickets.

use std::sync::{Arc, LazyLock};

use rustls::crypto::{CryptoProvider, ring};
use rustls::server::ProducesTickets;

/// The provider, made once.
pub(super) fn shared() -> Arc<CryptoProvider> {
    static PROVIDER: LazyLock<Arc<CryptoProvider>> =
        LazyLock::new(|| Arc::new(ring::default_provider()));
    Arc::clone(&PROVIDER)
}

/// The ticketer. Its keys change every six hours and are in memory only.
///
/// # Errors
/// The system gives no random bytes.
pub(super) fn ticketer() -> Result<Arc<dyn ProducesTickets>, rustls::Error> {
    ring::Ticketer::new()
}
