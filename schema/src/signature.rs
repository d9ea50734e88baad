//! Signing and verifying messages with Ed25519 (RFC 8032) (SCHEMA-7).
//!
//! What is signed is the canonical form of the message without `meta.sig`; `alg` and `kid` stay in
//! it. Which key belongs to whom is the caller's knowledge, and whether a good signature was seen
//! before is [`crate::replay`]'s question. Whether the message fits its schema is the catalog's.

use std::fmt;

use data_encoding::BASE64URL_NOPAD;
use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::canonical::{self, CanonicalError};
use crate::strict::{self, StrictError};

/// Members that `meta` has at most (message.schema.json).
const MAX_META: usize = 32;

/// A signature algorithm. There is one; a stored key says which it is for, a message never decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Algorithm {
    /// Ed25519 as in RFC 8032, verified strictly.
    #[default]
    #[serde(rename = "ed25519")]
    Ed25519,
}

impl Algorithm {
    /// Its name in `meta.alg` and in PUBKEY.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ed25519 => "ed25519",
        }
    }
}

/// What a message says of its own signature. Nothing of it is proven yet.
#[derive(Clone, Copy, Debug)]
pub struct Claim<'a> {
    /// The thumbprint of the key.
    pub kid: &'a str,
    /// Who is said to have sent it.
    pub from: &'a str,
}

/// A message whose signature is good: what the guard against repeated messages needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    /// The thumbprint of the key that signed.
    pub kid: String,
    /// The message's `id`.
    pub id: String,
    /// The message's `from`.
    pub from: String,
    /// The message's `ts`, RFC 3339.
    pub ts: String,
}

/// Verifies the signature of `message`.
///
/// `key_for` finds the stored key for a claim, or none. It must give a key only to the `from` it
/// belongs to: a good signature proves the key, and only this binding proves the sender.
///
/// # Errors
/// [`VerifyError`]; the message is then worth nothing.
pub fn verify<'k>(
    message: &Value,
    key_for: impl FnOnce(Claim<'_>) -> Option<&'k PublicKey>,
) -> Result<Verified, VerifyError> {
    let meta = message
        .get("meta")
        .and_then(Value::as_object)
        .ok_or(VerifyError::Unsigned)?;
    let sig = meta.get("sig").ok_or(VerifyError::Unsigned)?;
    let sig = sig.as_str().ok_or(VerifyError::Malformed)?;
    let text = |value: Option<&Value>, member| {
        value
            .and_then(Value::as_str)
            .map(str::to_owned)
            .ok_or(VerifyError::Missing(member))
    };
    let alg = text(meta.get("alg"), "meta.alg")?;
    let kid = text(meta.get("kid"), "meta.kid")?;
    let id = text(message.get("id"), "id")?;
    let ts = text(message.get("ts"), "ts")?;
    let from = text(message.get("from"), "from")?;

    let key = key_for(Claim {
        kid: &kid,
        from: &from,
    })
    .ok_or(VerifyError::UnknownKey)?;
    // The stored key is what counts; a message that says otherwise is refused before any
    // arithmetic.
    if alg != key.algorithm().name() || kid != key.kid() {
        return Err(VerifyError::OtherKey);
    }
    // Strict: no padding and no stray bits, so that a signature has one spelling.
    let sig = BASE64URL_NOPAD
        .decode(sig.as_bytes())
        .map_err(|_| VerifyError::Malformed)?;
    let sig = Signature::from_slice(&sig).map_err(|_| VerifyError::Malformed)?;
    let signed = signed_bytes(message)?;
    key.key
        .verify_strict(&signed, &sig)
        .map_err(|_| VerifyError::Wrong)?;
    Ok(Verified { kid, id, from, ts })
}

/// The bytes that a signature covers: the canonical form of `message` without `meta.sig`.
///
/// # Errors
/// [`CanonicalError`] if there is no canonical form.
pub fn signed_bytes(message: &Value) -> Result<Vec<u8>, CanonicalError> {
    let mut message = message.clone();
    if let Some(meta) = message.get_mut("meta").and_then(Value::as_object_mut) {
        meta.shift_remove("sig");
    }
    canonical::to_vec(&message)
}

/// A public key and its thumbprint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicKey {
    key: VerifyingKey,
    kid: String,
}

impl PublicKey {
    /// A key of 32 bytes (RFC 8032 §5.1.5).
    ///
    /// # Errors
    /// [`KeyError`] if they are no point of the curve, or one of small order, for which anybody can
    /// sign.
    pub fn from_bytes(bytes: &[u8; 32]) -> Result<Self, KeyError> {
        let key = VerifyingKey::from_bytes(bytes).map_err(|_| KeyError::Point)?;
        if key.is_weak() {
            return Err(KeyError::Point);
        }
        Ok(Self::new(key))
    }

    /// The `key` of a PUBKEY body: 43 characters of base64url.
    ///
    /// # Errors
    /// As [`PublicKey::from_bytes`], and [`KeyError::Text`] for what is not 32 bytes in base64url.
    pub fn from_base64url(text: &str) -> Result<Self, KeyError> {
        Self::from_bytes(&bytes32(text)?)
    }

    /// A JWK of an OKP key (RFC 8037 §2), public or private. Of its `kid` only the right one
    /// passes.
    ///
    /// # Errors
    /// [`KeyError`] with what is wrong.
    pub fn from_jwk(jwk: &Value) -> Result<Self, KeyError> {
        let member = |name| jwk.get(name).and_then(Value::as_str);
        if member("kty") != Some("OKP") || member("crv") != Some("Ed25519") {
            return Err(KeyError::Kind);
        }
        let key = Self::from_base64url(member("x").ok_or(KeyError::Text)?)?;
        match jwk.get("kid") {
            Some(kid) if *kid != key.kid => Err(KeyError::Kid),
            _ => Ok(key),
        }
    }

    fn new(key: VerifyingKey) -> Self {
        let x = BASE64URL_NOPAD.encode(key.as_bytes());
        // The members in this order and without space: RFC 7638 §3, RFC 8037 §2.
        let jwk = format!(r#"{{"crv":"Ed25519","kty":"OKP","x":"{x}"}}"#);
        Self {
            key,
            kid: BASE64URL_NOPAD.encode(&Sha256::digest(jwk)),
        }
    }

    /// The thumbprint (RFC 7638) of the key: 43 characters of base64url.
    #[must_use]
    pub fn kid(&self) -> &str {
        &self.kid
    }

    /// What the key is for.
    #[must_use]
    pub const fn algorithm(&self) -> Algorithm {
        Algorithm::Ed25519
    }

    /// The key as PUBKEY carries it.
    #[must_use]
    pub fn to_base64url(&self) -> String {
        BASE64URL_NOPAD.encode(self.key.as_bytes())
    }

    /// The key as a JWK, with its `kid`.
    #[must_use]
    pub fn to_jwk(&self) -> Value {
        json!({ "kty": "OKP", "crv": "Ed25519", "x": self.to_base64url(), "kid": self.kid })
    }

    /// Verifies a bare signature of 64 bytes, strictly. [`verify`] is what messages need.
    #[must_use]
    pub fn verifies(&self, bytes: &[u8], signature: &[u8]) -> bool {
        Signature::from_slice(signature)
            .is_ok_and(|signature| self.key.verify_strict(bytes, &signature).is_ok())
    }
}

/// A private key. It is never printed by `{:?}` and is wiped from memory when dropped.
pub struct SecretKey {
    key: SigningKey,
    public: PublicKey,
}

impl SecretKey {
    /// The key of a seed (RFC 8032 §5.1.5). The seed must be 32 bytes from the system's random
    /// source.
    #[must_use]
    pub fn from_seed(seed: &[u8; 32]) -> Self {
        let key = SigningKey::from_bytes(seed);
        let public = PublicKey::new(key.verifying_key());
        Self { key, public }
    }

    /// A private JWK (RFC 8037 §2).
    ///
    /// # Errors
    /// [`KeyError`]; also where `x` is not the public half of `d`.
    pub fn from_jwk(jwk: &Value) -> Result<Self, KeyError> {
        let public = PublicKey::from_jwk(jwk)?;
        let seed = jwk
            .get("d")
            .and_then(Value::as_str)
            .ok_or(KeyError::NoSecret)?;
        let secret = Self::from_seed(&bytes32(seed)?);
        if secret.public != public {
            return Err(KeyError::Halves);
        }
        Ok(secret)
    }

    /// The public half.
    #[must_use]
    pub const fn public(&self) -> &PublicKey {
        &self.public
    }

    /// The key as a private JWK. Keep it where only its owner reads.
    #[must_use]
    pub fn to_jwk(&self) -> Value {
        let mut jwk = self.public.to_jwk();
        if let Some(members) = jwk.as_object_mut() {
            members.insert(
                "d".to_owned(),
                BASE64URL_NOPAD.encode(self.key.as_bytes()).into(),
            );
        }
        jwk
    }

    /// `message` with `meta.alg`, `meta.kid` and `meta.sig`, whatever they were before.
    ///
    /// # Errors
    /// [`SignError`] where the message lacks what a signed one needs, `id`, `ts` and `from`, or
    /// where [`strict::parse`] would refuse it once it is signed.
    pub fn sign(&self, message: &Value) -> Result<Value, SignError> {
        let mut message = message.clone();
        let members = message.as_object_mut().ok_or(SignError::NoObject)?;
        for needed in ["id", "ts", "from"] {
            if !members.get(needed).is_some_and(Value::is_string) {
                return Err(SignError::Missing(needed));
            }
        }
        let meta = members.entry("meta").or_insert_with(|| json!({}));
        let meta = meta.as_object_mut().ok_or(SignError::Meta)?;
        meta.insert("alg".to_owned(), Algorithm::Ed25519.name().into());
        meta.insert("kid".to_owned(), self.public.kid().into());
        meta.shift_remove("sig");
        // `sig` is one more.
        let members = meta.len() + 1;
        if members > MAX_META {
            return Err(SignError::MetaTooLarge(members));
        }
        let sig = self.key.sign(&signed_bytes(&message)?);
        if let Some(meta) = message.get_mut("meta").and_then(Value::as_object_mut) {
            meta.insert(
                "sig".to_owned(),
                BASE64URL_NOPAD.encode(&sig.to_bytes()).into(),
            );
        }
        // As JSON without blanks: with them a receiver may still refuse it for its length.
        strict::parse(message.to_string().as_bytes())?;
        Ok(message)
    }

    /// A bare signature. [`SecretKey::sign`] is what messages need.
    #[must_use]
    pub fn sign_bytes(&self, bytes: &[u8]) -> [u8; 64] {
        self.key.sign(bytes).to_bytes()
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("SecretKey")
            .field("kid", &self.public.kid)
            .finish_non_exhaustive()
    }
}

fn bytes32(text: &str) -> Result<[u8; 32], KeyError> {
    let bytes = BASE64URL_NOPAD
        .decode(text.as_bytes())
        .map_err(|_| KeyError::Text)?;
    bytes.try_into().map_err(|_| KeyError::Text)
}

/// Why a key cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// Another kind of JWK.
    #[error("the key is no JWK with kty OKP and crv Ed25519")]
    Kind,
    /// Not 32 bytes in base64url.
    #[error("a key is 32 bytes in base64url without padding, 43 characters")]
    Text,
    /// No usable point of the curve.
    #[error("the bytes are no Ed25519 public key, or a weak one")]
    Point,
    /// The JWK's `kid` is not its thumbprint.
    #[error("the kid is not the RFC 7638 thumbprint of the key")]
    Kid,
    /// A public key where a private one is needed.
    #[error("the key has no private half (d)")]
    NoSecret,
    /// `x` does not belong to `d`.
    #[error("the public half of the key does not belong to the private half")]
    Halves,
}

/// Why a message was not signed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignError {
    /// No JSON object.
    #[error("a message is an object")]
    NoObject,
    /// A signed message needs this member.
    #[error("a signed message needs {0}, a string")]
    Missing(&'static str),
    /// `meta` is something else.
    #[error("meta is not an object")]
    Meta,
    /// Signed, `meta` would have more members than a message may.
    #[error("with the signature meta has {0} members, {MAX_META} are allowed")]
    MetaTooLarge(usize),
    /// Signed, the message would be one that the strict parser refuses: too long, too deep, or with
    /// a double such as 1e17, which is an integer beyond ±(2^53 − 1).
    #[error("no receiver would read the message with its signature: {0}")]
    Unreadable(#[from] StrictError),
    /// There is no canonical form.
    #[error(transparent)]
    Canonical(#[from] CanonicalError),
}

/// Why a signature does not count.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VerifyError {
    /// There is no `meta.sig`.
    #[error("the message is not signed")]
    Unsigned,
    /// A signed message needs this member.
    #[error("a signed message needs {0}, a string")]
    Missing(&'static str),
    /// The signature is not 64 bytes in base64url.
    #[error("the signature is not 64 bytes in base64url without padding")]
    Malformed,
    /// Nobody knows the key, or it is not the sender's.
    #[error("the key is not known for this sender")]
    UnknownKey,
    /// `alg` or `kid` are not those of the stored key.
    #[error("alg or kid are not those of the stored key")]
    OtherKey,
    /// The signature is not that of this message by this key.
    #[error("the signature is wrong")]
    Wrong,
    /// There is no canonical form.
    #[error(transparent)]
    Canonical(#[from] CanonicalError),
}
