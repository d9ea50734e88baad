//! What a lookup tells about a client: its country and its AS.

use serde::{Deserialize, Serialize};

/// The answer of a lookup. A client without a country is unknown, whatever its AS number (LOOKUP-4).
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Lookup {
    /// ISO 3166-1 alpha-2 code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub country: Option<String>,
    /// `AS<number>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asn: Option<String>,
    /// The name of the AS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub as_name: Option<String>,
}
