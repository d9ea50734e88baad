//! The parameters of a link: the engine's address, credentials, and certificates.

use std::path::PathBuf;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use weir_shared::settings::{EnginePlace, is_loopback};

use crate::fleet::engine::Fault;
use crate::outgoing::trusting;

/// The parameters of a link.
#[derive(Clone, PartialEq, Eq)]
pub struct Access {
    /// The engine's address.
    pub place: EnginePlace,
    /// The name of the fleet.
    pub fleet: String,
    /// The engine's user.
    pub user: Option<String>,
    /// The password of that user.
    pub password: Option<String>,
    /// Root certificates (PEM) for the engine's certificate; without them those of the system.
    pub roots: Option<Vec<u8>>,
    /// The client certificate for the engine, and its key (PEM).
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
    /// Allows an unencrypted connection over a network.
    pub insecure: bool,
}

/// Where a connection goes.
#[derive(Clone)]
pub(super) enum Place {
    /// A host, a port, and whether it is TLS.
    Tcp(String, u16, bool),
    Unix(PathBuf),
}

impl Access {
    /// For tests: an engine on this port.
    #[cfg(test)]
    pub(super) fn to(port: u16) -> Self {
        Self {
            place: format!("valkey://127.0.0.1:{port}").parse().unwrap(),
            fleet: "test".to_owned(),
            user: None,
            password: None,
            roots: None,
            identity: None,
            insecure: false,
        }
    }

    /// Whether the certificates can be read.
    ///
    /// # Errors
    /// [`Fault`]
    pub fn check(&self) -> Result<(), Fault> {
        match &self.place {
            EnginePlace::Sentinels { tls: true, .. }
            | EnginePlace::Cluster { tls: true, .. }
            | EnginePlace::Tcp { tls: true, .. } => self.tls().map(drop),
            EnginePlace::Sentinels { .. }
            | EnginePlace::Cluster { .. }
            | EnginePlace::Tcp { .. }
            | EnginePlace::Unix(_) => Ok(()),
        }
    }

    /// An address that a Sentinel or a cluster node names. It must not make passwords go over a
    /// network unencrypted.
    pub(super) fn told(&self, host: String, port: u16, tls: bool) -> Result<Place, Fault> {
        if !tls && !self.insecure && !is_loopback(&host) {
            return Err(Fault(format!(
                "it names {host}:{port}, which is neither loopback nor asked over TLS"
            )));
        }
        Ok(Place::Tcp(host, port, tls))
    }

    /// The TLS configuration: trusted roots and the client certificate.
    pub(super) fn tls(&self) -> Result<ClientConfig, Fault> {
        let wrong = |error: &dyn std::error::Error| Fault(error.to_string());
        let mut roots = RootCertStore::empty();
        match &self.roots {
            Some(pem) => {
                for certificate in certificates(pem)? {
                    roots.add(certificate).map_err(|error| wrong(&error))?;
                }
            }
            // An unreadable certificate among the system's many is ignored.
            None => drop(
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs),
            ),
        }
        if roots.is_empty() {
            return Err(Fault("there is no certificate to trust".to_owned()));
        }
        let config = trusting(roots).map_err(|error| wrong(&error))?;
        let Some((chain, key)) = &self.identity else {
            return Ok(config.with_no_client_auth());
        };
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| wrong(&error))?;
        config
            .with_client_auth_cert(certificates(chain)?, key)
            .map_err(|error| wrong(&error))
    }
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, Fault> {
    CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|error| Fault(error.to_string()))
}
