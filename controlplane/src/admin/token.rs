//! The tokens: where they come from, and the comparison that tells nothing about them (ADMIN-1).
//!
//! Only the SHA-256 digests are kept and compared, in constant time, so that neither the length of
//! a token nor the place of the first wrong byte shows in the time an answer takes.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use http::HeaderValue;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use weir_shared::settings::{AdminToken, Secret};

/// The most bytes of a token file that are read: a path that names something else must not fill the
/// memory.
const MAX_FILE_BYTES: u64 = 4096;

/// The digest of a token.
#[derive(Clone, Copy)]
pub(crate) struct Token([u8; 32]);

/// A token file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// It cannot be read.
    #[error("WAF_ADMIN_TOKEN_FILE: {path} cannot be read: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It holds nothing that could be a token.
    #[error(
        "WAF_ADMIN_TOKEN_FILE: {path} must hold one token of visible ASCII characters without blanks, at most 4096 bytes"
    )]
    Unusable {
        /// The file.
        path: PathBuf,
    },
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

/// The admin token of the settings; its file is read. None is set in none of them.
///
/// # Errors
/// The token file cannot be used.
pub(crate) fn admin_token(setting: &AdminToken) -> Result<Option<Token>, TokenError> {
    Ok(match setting {
        AdminToken::Unset => None,
        AdminToken::Value(secret) => Some(Token::of(secret)),
        AdminToken::File(path) => Some(read(path)?),
    })
}

fn read(path: &Path) -> Result<Token, TokenError> {
    let failed = |source| TokenError::Read {
        path: path.to_owned(),
        source,
    };
    let mut bytes = Vec::new();
    File::open(path)
        .map_err(failed)?
        .take(MAX_FILE_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    let token = bytes.trim_ascii();
    if token.is_empty()
        || bytes.len() as u64 > MAX_FILE_BYTES
        || !token.iter().all(u8::is_ascii_graphic)
    {
        return Err(TokenError::Unusable {
            path: path.to_owned(),
        });
    }
    Ok(Token::digest(token))
}

/// What follows `Bearer` and its blanks.
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

    /// ADMIN-1: the bearer scheme in any case, the token to the letter.
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

    /// ADMIN-1: what a token file may hold; a file that cannot be used is told.
    #[test]
    fn a_token_file_holds_one_token() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        let read = || admin_token(&AdminToken::File(path.clone()));
        let missing = read().err().unwrap().to_string();
        assert!(
            missing.starts_with("WAF_ADMIN_TOKEN_FILE: ") && missing.contains("cannot be read"),
            "{missing}"
        );
        for unusable in ["", "\n", "two words", "zwölf", &"x".repeat(5000)] {
            std::fs::write(&path, unusable).unwrap();
            let error = read().err().unwrap().to_string();
            assert!(error.contains("must hold one token"), "{error}");
        }
        std::fs::write(&path, "first\n").unwrap();
        let field = HeaderValue::from_static("Bearer first");
        assert!(read().unwrap().unwrap().is_in(Some(&field)));
        assert!(admin_token(&AdminToken::Unset).unwrap().is_none());
    }
}
