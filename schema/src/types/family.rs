//! Between values and types, with the catalog asked on the way.

use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{
    Catalog, Family, Violation,
    types::{c2s::C2s, s2c::S2c, s2s::S2s},
};

/// A family of messages: [`C2s`], [`S2c`] and [`S2s`].
pub trait Message: DeserializeOwned + Serialize {
    /// Between whom the messages travel.
    const FAMILY: Family;
}

impl Message for C2s {
    const FAMILY: Family = Family::C2s;
}

impl Message for S2c {
    const FAMILY: Family = Family::S2c;
}

impl Message for S2s {
    const FAMILY: Family = Family::S2s;
}

/// Judges `value` by the schema of its command, and reads it.
///
/// # Errors
/// [`ReadError::Violations`] where it does not fit.
pub fn read<M: Message>(catalog: &Catalog, value: &Value) -> Result<M, ReadError> {
    catalog
        .validate(M::FAMILY, value)
        .map_err(ReadError::Violations)?;
    M::deserialize(value).map_err(|error| ReadError::Type(error.to_string()))
}

/// The value of `message`, judged by its schema: what was put into the types may be too long, or
/// odd.
///
/// # Errors
/// As [`read`].
pub fn write<M: Message>(catalog: &Catalog, message: &M) -> Result<Value, ReadError> {
    let value =
        serde_json::to_value(message).map_err(|error| ReadError::Type(error.to_string()))?;
    catalog
        .validate(M::FAMILY, &value)
        .map_err(ReadError::Violations)?;
    Ok(value)
}

/// Why a message was not read or not written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// It does not fit its schema.
    #[error("{}", sentence(.0))]
    Violations(Vec<Violation>),
    /// It fits its schema and not its type. The types are tested against the schemas, so none is to
    /// be expected.
    #[error("the message does not fit its type: {0}")]
    Type(String),
}

fn sentence(violations: &[Violation]) -> String {
    let first = violations.first().map(ToString::to_string);
    first.unwrap_or_else(|| "the message does not fit its schema".to_owned())
}
