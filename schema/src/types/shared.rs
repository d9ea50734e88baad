//! Types that messages of several families have.

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

pub use crate::signature::Algorithm;

/// About a message. Members that no schema names are kept in `other`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Meta {
    /// The signature algorithm.
    #[serde(
        default,
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    pub alg: Option<Algorithm>,
    /// The RFC 7638 thumbprint of the key.
    #[serde(
        default,
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    pub kid: Option<String>,
    /// The signature, 64 bytes in base64url.
    #[serde(
        default,
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    pub sig: Option<String>,
    /// Everything else.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// The body of PUBKEY. [`crate::pubkey::Announced`] checks what it says.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pubkey {
    /// The algorithm of the key.
    pub alg: Algorithm,
    /// The key, 32 bytes in base64url.
    pub key: String,
    /// Its RFC 7638 thumbprint.
    #[serde(
        default,
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    pub kid: Option<String>,
    /// When it ends, RFC 3339.
    #[serde(
        default,
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    pub not_after: Option<String>,
    /// The `kid` of the key that it replaces.
    #[serde(
        default,
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    pub replaces: Option<String>,
}

/// The kind of a channel, as 353 says it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChannelKind {
    /// Anybody may see it.
    #[default]
    #[serde(rename = "=")]
    Public,
    /// Its name is shown to its members alone.
    #[serde(rename = "*")]
    Private,
    /// Nothing of it is shown to others.
    #[serde(rename = "@")]
    Secret,
}

/// Any message, as the envelope alone has it: what RELAY passes on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Envelope {
    /// The command or the numeric code.
    pub command: String,
    /// Who sends.
    #[serde(
        default,
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    pub from: Option<String>,
    /// Whom it is for.
    #[serde(
        default,
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    pub to: Option<String>,
    /// Middle parameters.
    #[serde(
        default,
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    pub params: Option<Vec<String>>,
    /// An array or an object.
    #[serde(
        default,
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    pub body: Option<Value>,
    /// Names this message.
    #[serde(
        default,
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    pub id: Option<String>,
    /// When it was made.
    #[serde(
        default,
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    pub ts: Option<String>,
    /// About it.
    #[serde(
        default,
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    pub meta: Option<Meta>,
}

/// Reads a member that is there: for serde alone, `null` would be a member that is absent.
pub(crate) fn present<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    source: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(source).map(Some)
}

/// Reads a whole number, also where it is written as `1.0`: in JSON Schema both are integers.
pub(crate) fn whole<'de, T: TryFrom<u64>, D: Deserializer<'de>>(source: D) -> Result<T, D::Error> {
    let number = f64::deserialize(source)?;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "compared with what was read: a cast that changes it is found"
    )]
    let whole = (number as u64 as f64 == number).then_some(number as u64);
    whole
        .and_then(|whole| T::try_from(whole).ok())
        .ok_or_else(|| serde::de::Error::custom("a whole number in range is expected"))
}
