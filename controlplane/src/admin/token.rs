//! The tokens: reading them, and a comparison that leaks nothing about them (ADMIN-1).
//!
//! Only the SHA-256 digests are kept and compared, in constant time, so that the time of an answer
//! shows neither the length of a token nor the position of the first wrong byte.

use std::path::{Path, PathBuf};

use arc_swap::ArcSwapOption;
use http::HeaderValue;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use weir_shared::handover::OwnRequest;
use weir_shared::settings::{EndpointSettings, Secret, TokenSource};

use crate::guarded;

use super::problem::Problem;

/// The most bytes of a token file that are read: a wrong path must not fill the memory.
const MAX_FILE_BYTES: u64 = 4096;

/// The digest of a token.
#[derive(Clone, Copy)]
pub(crate) struct Token([u8; 32]);

/// Admits a request with the right token. Without a token set, the endpoint does not exist
/// (ADMIN-1).
pub(super) fn allow(token: &ArcSwapOption<Token>, request: &OwnRequest) -> Result<(), Problem> {
    match &*token.load() {
        None => Err(Problem::NotFound),
        Some(token) if token.is_in(request.authorization.as_ref()) => Ok(()),
        Some(_) => Err(Problem::Unauthorized),
    }
}

/// A token file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The file cannot be read.
    #[error("{setting}: {path} cannot be read: {source}")]
    Read {
        /// Which setting names it.
        setting: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The content is no token.
    #[error(
        "{setting}: {path} must hold one token of visible ASCII characters without blanks, at most 4096 bytes"
    )]
    Unusable {
        /// Which setting names it.
        setting: &'static str,
        /// The file.
        path: PathBuf,
    },
}

/// Every token file that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}", self.sentences().join("; "))]
pub struct TokenErrors(Vec<TokenError>);

impl TokenErrors {
    /// One sentence each.
    pub(crate) fn sentences(&self) -> Vec<String> {
        self.0.iter().map(ToString::to_string).collect()
    }
}

impl Token {
    /// The token of a setting.
    pub(crate) fn of(secret: &Secret) -> Self {
        Self::digest(secret.bytes())
    }

    /// Whether the `Authorization` field carries this token. The scheme is compared without regard
    /// to case (RFC 9110 §11.1).
    pub(crate) fn is_in(&self, authorization: Option<&HeaderValue>) -> bool {
        let Some(given) = authorization.and_then(|field| bearer(field.as_bytes())) else {
            return false;
        };
        Self::digest(given).0.ct_eq(&self.0).into()
    }

    fn digest(token: &[u8]) -> Self {
        Self(Sha256::digest(token).into())
    }
}

/// The tokens of the settings and their files; none where neither setting is set.
pub(crate) struct Tokens {
    pub(crate) metrics: Option<Token>,
    pub(crate) admin: Option<Token>,
    /// The read token of the admin listener.
    pub(crate) read: Option<Token>,
}

impl Tokens {
    /// Reads all tokens.
    ///
    /// # Errors
    /// Each token file that cannot be used.
    pub(crate) fn read(endpoints: &EndpointSettings) -> Result<Self, TokenErrors> {
        let metrics = token("WAF_METRICS_TOKEN_FILE", &endpoints.metrics_token);
        let admin = token("WAF_ADMIN_TOKEN_FILE", &endpoints.admin_token);
        let read = token("WAF_ADMIN_READ_TOKEN_FILE", &endpoints.read_token);
        match (metrics, admin, read) {
            (Ok(metrics), Ok(admin), Ok(read)) => Ok(Self {
                metrics,
                admin,
                read,
            }),
            (metrics, admin, read) => {
                let faults = [metrics.err(), admin.err(), read.err()];
                Err(TokenErrors(faults.into_iter().flatten().collect()))
            }
        }
    }
}

fn token(setting: &'static str, source: &TokenSource) -> Result<Option<Token>, TokenError> {
    Ok(match source {
        TokenSource::Unset => None,
        TokenSource::Value(secret) => Some(Token::of(secret)),
        TokenSource::File(path) => Some(read(setting, path)?),
    })
}

fn read(setting: &'static str, path: &Path) -> Result<Token, TokenError> {
    let failed = |source| TokenError::Read {
        setting,
        path: path.to_owned(),
        source,
    };
    let bytes = guarded::read(path, MAX_FILE_BYTES).map_err(failed)?;
    let token = bytes.trim_ascii();
    if token.is_empty() || !token.iter().all(u8::is_ascii_graphic) {
        return Err(TokenError::Unusable {
            setting,
            path: path.to_owned(),
        });
    }
    Ok(Token::digest(token))
}

/// The token after `Bearer` and its blanks.
fn bearer(field: &[u8]) -> Option<&[u8]> {
    let (scheme, rest) = field.split_at_checked(b"Bearer".len())?;
    let token = rest.trim_ascii();
    (scheme.eq_ignore_ascii_case(b"Bearer") && rest.first() == Some(&b' ') && !token.is_empty())
        .then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn carries(token: &str, field: &'static str) -> bool {
        let token = Token::of(&Secret::new(token.to_owned()));
        token.is_in(Some(&HeaderValue::from_static(field)))
    }

    /// ADMIN-1: the bearer scheme matches in any case, the token only exactly.
    #[test]
    fn only_the_whole_token_is_right() {
        for right in ["Bearer secret", "bearer secret", "BEARER   secret "] {
            assert!(carries("secret", right), "{right:?}");
        }
        for wrong in [
            "secret",
            "Bearer",
            "Bearer ",
            "Bearersecret",
            "Bearer secre",
            "Bearer secrets",
            "Bearer Secret",
            "Bearer secret secret",
            "Basic secret",
            "",
        ] {
            assert!(!carries("secret", wrong), "{wrong:?}");
        }
        assert!(!Token::of(&Secret::new("secret".to_owned())).is_in(None));
    }

    /// ADMIN-1, METRIC-3: the allowed content of a token file; the error about an unusable file
    /// names its setting.
    #[test]
    fn a_token_file_holds_one_token() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        let mut endpoints = EndpointSettings {
            metrics_token: TokenSource::File(path.clone()),
            admin_token: TokenSource::File(path.clone()),
            ..EndpointSettings::default()
        };
        let faults = |endpoints: &EndpointSettings| -> Vec<String> {
            Tokens::read(endpoints).err().unwrap().sentences()
        };
        let both = |endpoints: &EndpointSettings, sentence: &str| {
            let told = faults(endpoints);
            assert_eq!(told.len(), 2, "{told:?}");
            for (fault, name) in told
                .iter()
                .zip(["WAF_METRICS_TOKEN_FILE", "WAF_ADMIN_TOKEN_FILE"])
            {
                let expected = format!("{name}: {} {sentence}", path.display());
                assert!(fault.starts_with(&expected), "{fault}");
            }
        };
        both(&endpoints, "cannot be read");
        for unusable in ["", "\n", "two words", "zwölf"] {
            std::fs::write(&path, unusable).unwrap();
            both(&endpoints, "must hold one token");
        }
        std::fs::write(&path, "x".repeat(5000)).unwrap();
        both(&endpoints, "cannot be read: it is larger than 4 KiB");
        std::fs::write(&path, "first\n").unwrap();
        let field = HeaderValue::from_static("Bearer first");
        let tokens = Tokens::read(&endpoints).unwrap_or_else(|faults| panic!("{faults:?}"));
        for token in [tokens.metrics, tokens.admin] {
            assert!(token.unwrap().is_in(Some(&field)));
        }
        endpoints.admin_token = TokenSource::Unset;
        let tokens = Tokens::read(&endpoints).unwrap_or_else(|faults| panic!("{faults:?}"));
        assert!(tokens.admin.is_none());
    }
}
