//! Shared by all HTTP clients of the control plane: trusted TLS roots (Mozilla's, and those of a
//! file), `Retry-After`, and errors with their causes.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use http::header::RETRY_AFTER;
use rustls::client::WantsClientCert;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, ConfigBuilder, RootCertStore};

use crate::guarded;

/// The most bytes of a file of root certificates.
const MAX_CA_BYTES: u64 = 4 << 20;

/// Why the trusted roots cannot be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RootsError {
    /// The file of additional roots.
    #[error("{path:?} cannot be used: {fault}")]
    CaFile {
        /// Its path.
        path: String,
        /// What is wrong.
        fault: String,
    },
    /// The TLS library refused its own defaults.
    #[error("TLS cannot be set up: {0}")]
    Tls(String),
}

/// A TLS configuration that trusts Mozilla's roots, and those of a file.
pub(crate) fn tls(ca_file: Option<&Path>) -> Result<ClientConfig, RootsError> {
    let mut roots = RootCertStore::empty();
    roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    if let Some(path) = ca_file {
        let wrong = |fault: String| RootsError::CaFile {
            path: path.display().to_string(),
            fault,
        };
        let pem = guarded::read(path, MAX_CA_BYTES).map_err(|error| wrong(error.to_string()))?;
        let before = roots.len();
        for certificate in CertificateDer::pem_slice_iter(&pem) {
            let certificate = certificate.map_err(|error| wrong(error.to_string()))?;
            roots
                .add(certificate)
                .map_err(|error| wrong(error.to_string()))?;
        }
        if roots.len() == before {
            return Err(wrong("it holds no PEM certificate".to_owned()));
        }
    }
    trusting(roots)
        .map_err(|error| RootsError::Tls(error.to_string()))
        .map(|config| config.with_no_client_auth())
}

/// A TLS configuration that trusts these roots. It names its cryptography provider: with two in one
/// build, automatic selection would panic at run time.
pub(crate) fn trusting(
    roots: RootCertStore,
) -> Result<ConfigBuilder<ClientConfig, WantsClientCert>, rustls::Error> {
    ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map(|builder| builder.with_root_certificates(roots))
}

/// An error with its causes: hyper's own says only that it is one.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

/// `Retry-After` in seconds or as a date (RFC 9110 §10.2.3).
pub(crate) fn retry_after(headers: &HeaderMap, now_ms: u64) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let seconds = if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        text.parse().unwrap_or(u64::MAX)
    } else {
        let date = jiff::fmt::rfc2822::parse(text).ok()?;
        let date_ms = u64::try_from(date.timestamp().as_millisecond()).ok()?;
        date_ms.saturating_sub(now_ms).div_ceil(1000)
    };
    Some(Duration::from_secs(seconds))
}
