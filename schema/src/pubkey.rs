//! Keys as PUBKEY announces them: the key, when it ends, and which key it replaces (SCHEMA-7).
//!
//! Whether to believe an announcement is the caller's decision; `PROTOCOL.md` names the choices.
//! This file refuses the announcements that contradict themselves.

use jiff::civil::DateTime;
use serde_json::{Map, Value, json};

use crate::signature::{Algorithm, KeyError, PublicKey};

/// A key, and what its owner said of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announced {
    /// The key.
    pub key: PublicKey,
    /// When it ends, RFC 3339; never, where absent.
    pub not_after: Option<String>,
    /// The `kid` of the key that it replaces.
    pub replaces: Option<String>,
}

impl Announced {
    /// Reads a PUBKEY message.
    ///
    /// # Errors
    /// [`AnnounceError`]; [`AnnounceError::NotPubkey`] where the command is another.
    pub fn from_message(message: &Value) -> Result<Self, AnnounceError> {
        if message.get("command").and_then(Value::as_str) != Some("PUBKEY") {
            return Err(AnnounceError::NotPubkey);
        }
        Self::from_body(message.get("body").unwrap_or(&Value::Null))
    }

    /// Reads the body of a PUBKEY message. Of `kid` only the key's own thumbprint passes.
    ///
    /// # Errors
    /// [`AnnounceError`] with what is wrong.
    pub fn from_body(body: &Value) -> Result<Self, AnnounceError> {
        let text = |member| match body.get(member) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.as_str())),
            Some(_) => Err(AnnounceError::NoText(member)),
        };
        if text("alg")? != Some(Algorithm::Ed25519.name()) {
            return Err(AnnounceError::Algorithm);
        }
        let key = text("key")?.ok_or(AnnounceError::NoText("key"))?;
        let key = PublicKey::from_base64url(key)?;
        if text("kid")?.is_some_and(|kid| kid != key.kid()) {
            return Err(KeyError::Kid.into());
        }
        let not_after = text("not_after")?;
        if not_after.is_some_and(|time| time_of(time).is_none()) {
            return Err(AnnounceError::NotAfter);
        }
        let replaces = text("replaces")?;
        if replaces == Some(key.kid()) {
            return Err(AnnounceError::ReplacesItself);
        }
        Ok(Self {
            not_after: not_after.map(str::to_owned),
            replaces: replaces.map(str::to_owned),
            key,
        })
    }

    /// The body of the PUBKEY message that announces this.
    #[must_use]
    pub fn to_body(&self) -> Value {
        let mut body = Map::new();
        let mut put = |name: &str, value: &str| body.insert(name.to_owned(), json!(value));
        put("alg", self.key.algorithm().name());
        put("key", &self.key.to_base64url());
        put("kid", self.key.kid());
        if let Some(not_after) = &self.not_after {
            put("not_after", not_after);
        }
        if let Some(replaces) = &self.replaces {
            put("replaces", replaces);
        }
        Value::Object(body)
    }

    /// Whether the key still counts at `at`, RFC 3339: not later than `not_after`. Ask with the
    /// `ts` of the message that it signed, and where messages are fresh, that is near the clock.
    ///
    /// What is no time never counts.
    #[must_use]
    pub fn counts_at(&self, at: &str) -> bool {
        let Some(at) = time_of(at) else {
            return false;
        };
        self.not_after
            .as_deref()
            .is_none_or(|end| time_of(end).is_some_and(|end| at <= end))
    }
}

impl From<PublicKey> for Announced {
    /// A key of which nothing more is known.
    fn from(key: PublicKey) -> Self {
        Self {
            key,
            not_after: None,
            replaces: None,
        }
    }
}

/// A time in UTC. As a civil one: what the schema takes up to the end of 9999, a time stamp of jiff
/// does not reach.
pub(crate) fn time_of(text: &str) -> Option<DateTime> {
    let civil = text.strip_suffix('Z')?;
    civil.contains('T').then(|| civil.parse().ok()).flatten()
}

/// Why an announcement is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnnounceError {
    /// Another message.
    #[error("the message is no PUBKEY")]
    NotPubkey,
    /// Another algorithm, or none.
    #[error("the algorithm is not ed25519")]
    Algorithm,
    /// A member is absent or no string.
    #[error("{0} is not a string")]
    NoText(&'static str),
    /// `not_after` is no time.
    #[error("not_after is not a time")]
    NotAfter,
    /// `replaces` is the key's own `kid`.
    #[error("the key replaces itself")]
    ReplacesItself,
    /// The key or its `kid` is wrong.
    #[error(transparent)]
    Key(#[from] KeyError),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signature::SecretKey;

    fn body() -> Value {
        Announced {
            key: SecretKey::from_seed(&[7; 32]).public().clone(),
            not_after: Some("2027-01-01T00:00:00Z".to_owned()),
            replaces: Some("A".repeat(43)),
        }
        .to_body()
    }

    /// SCHEMA-7
    #[test]
    fn an_announcement_is_read_as_it_was_written() {
        let message = json!({ "command": "PUBKEY", "body": body() });
        let announced = Announced::from_message(&message).unwrap();
        assert_eq!(announced.to_body(), body());
        let bare = json!({ "alg": "ed25519", "key": announced.key.to_base64url() });
        let bare = Announced::from_body(&bare).unwrap();
        assert_eq!(bare, Announced::from(announced.key));
    }

    /// SCHEMA-7: a kid that is not the key's would let one key pass for another.
    #[test]
    fn an_announcement_that_contradicts_itself_is_refused() {
        let kid = body()["kid"].clone();
        for (member, value, error) in [
            (
                "kid",
                json!("A".repeat(43)),
                AnnounceError::Key(KeyError::Kid),
            ),
            ("alg", json!("none"), AnnounceError::Algorithm),
            (
                "key",
                json!("B".repeat(43)),
                AnnounceError::Key(KeyError::Text),
            ),
            ("key", json!(1), AnnounceError::NoText("key")),
            ("not_after", json!("tomorrow"), AnnounceError::NotAfter),
            ("replaces", kid, AnnounceError::ReplacesItself),
        ] {
            let mut body = body();
            body[member] = value;
            assert_eq!(Announced::from_body(&body), Err(error), "{member}");
        }
        let other = json!({ "command": "QUIT", "body": body() });
        assert_eq!(
            Announced::from_message(&other),
            Err(AnnounceError::NotPubkey)
        );
    }

    /// SCHEMA-7: up to and with its last moment.
    #[test]
    fn a_key_counts_until_it_ends() {
        let announced = Announced::from_body(&body()).unwrap();
        for (at, counts) in [
            ("2026-12-31T23:59:59Z", true),
            ("2027-01-01T00:00:00Z", true),
            ("2027-01-01T00:00:00.001Z", false),
            ("2026-01-01", false),
            ("2026-01-01T00:00:00+01:00", false),
            ("noon", false),
        ] {
            assert_eq!(announced.counts_at(at), counts, "{at}");
        }
        let endless = Announced::from(announced.key);
        assert!(endless.counts_at("9999-12-31T23:59:59Z"));
    }
}
