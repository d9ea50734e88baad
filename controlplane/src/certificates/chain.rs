//! One certificate with its chain and its key, read from two PEM files and checked.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::guarded;

/// The validity of a certificate.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Validity {
    /// Its first name, or its file.
    pub name: String,
    /// When it begins, milliseconds since 1970.
    pub begins_ms: u64,
    /// When it ends, milliseconds since 1970.
    pub ends_ms: u64,
}

/// The most bytes of a file.
const MAX_BYTES: u64 = 1024 * 1024;

/// Why a certificate cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("WAF_TLS_CERT, WAF_TLS_KEY: {file} {fault}")]
pub struct CertificateError {
    /// The file.
    pub file: String,
    fault: String,
}

impl CertificateError {
    pub(super) fn of(file: &Path, fault: String) -> Self {
        let file = file.display().to_string();
        Self { file, fault }
    }
}

/// A certificate that can be used.
pub(super) struct Chain {
    pub(super) key: Arc<CertifiedKey>,
    /// The names it is for, in small letters; a wildcard as it is written.
    pub(super) names: Vec<String>,
    pub(super) validity: Validity,
}

impl Chain {
    /// Reads and checks a pair of files.
    ///
    /// # Errors
    /// [`CertificateError`] names the file.
    pub(super) fn read(cert: &Path, key: &Path) -> Result<Self, CertificateError> {
        let failed = |fault: String| CertificateError::of(cert, fault);
        let pem = bytes(cert)?;
        let chain: Result<Vec<CertificateDer<'static>>, _> =
            CertificateDer::pem_slice_iter(&pem).collect();
        let chain = chain.map_err(|error| failed(format!("is not PEM: {error}")))?;
        let Some(leaf) = chain.first() else {
            return Err(failed("holds no certificate; expected PEM".to_owned()));
        };
        let (names, [begins_ms, ends_ms]) = names_and_validity(leaf).map_err(failed)?;
        let name = names.first().cloned();
        let validity = Validity {
            name: name.unwrap_or_else(|| cert.display().to_string()),
            begins_ms,
            ends_ms,
        };
        let secret = PrivateKeyDer::from_pem_slice(&bytes(key)?).map_err(|error| {
            CertificateError::of(key, format!("holds no private key in PEM: {error}"))
        })?;
        let certified = CertifiedKey::from_der(chain, secret, &super::provider::shared());
        let certified = certified.map_err(|error| {
            CertificateError::of(
                key,
                format!("is not the key of {}: {error}", cert.display()),
            )
        })?;
        Ok(Self {
            key: Arc::new(certified),
            names,
            validity,
        })
    }
}

fn bytes(path: &Path) -> Result<Vec<u8>, CertificateError> {
    guarded::read(path, MAX_BYTES)
        .map_err(|error| CertificateError::of(path, format!("cannot be read: {error}")))
}

/// The DNS names of a certificate, and when it begins and ends.
fn names_and_validity(leaf: &CertificateDer<'_>) -> Result<(Vec<String>, [u64; 2]), String> {
    let (_, certificate) = X509Certificate::from_der(leaf)
        .map_err(|error| format!("holds no certificate of X.509: {error}"))?;
    let mut names = Vec::new();
    let alternatives = certificate.subject_alternative_name();
    if let Ok(Some(alternatives)) = alternatives {
        for name in &alternatives.value.general_names {
            if let GeneralName::DNSName(name) = name {
                names.push(name.to_ascii_lowercase());
            }
        }
    }
    let validity = certificate.validity();
    let both = [validity.not_before, validity.not_after].map(|time| {
        let seconds = u64::try_from(time.timestamp()).unwrap_or(0);
        seconds.saturating_mul(1000)
    });
    Ok((names, both))
}
