//! The canonical form (RFC 8785): the one way to write a value, over which it is signed (SCHEMA-6).
//!
//! The writing is serde_json_canonicalizer's. This file refuses the integers that it would round in
//! silence. Reading is [`crate::strict`]'s work; what was read there always has a canonical form.

use serde_json::Value;

use crate::strict::MAX_SAFE_INTEGER;

/// The canonical form of `value`, in UTF-8.
///
/// # Errors
/// [`CanonicalError::IntegerBeyondRange`] for an integer beyond ±(2^53 − 1): as a double (RFC 8785
/// §3.2.2.3) it would be another number.
pub fn to_vec(value: &Value) -> Result<Vec<u8>, CanonicalError> {
    check_integers(value)?;
    serde_json_canonicalizer::to_vec(value)
        .map_err(|error| CanonicalError::Write(error.to_string()))
}

/// [`to_vec`] as text.
///
/// # Errors
/// As [`to_vec`].
pub fn to_string(value: &Value) -> Result<String, CanonicalError> {
    check_integers(value)?;
    serde_json_canonicalizer::to_string(value)
        .map_err(|error| CanonicalError::Write(error.to_string()))
}

/// Why a value has no canonical form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CanonicalError {
    /// An integer that a double cannot hold.
    #[error("the integer {0} is beyond ±9007199254740991 and has no canonical form")]
    IntegerBeyondRange(serde_json::Number),
    /// The writer failed.
    #[error("the canonical form cannot be written: {0}")]
    Write(String),
}

fn check_integers(value: &Value) -> Result<(), CanonicalError> {
    match value {
        Value::Number(number) => {
            let size = number
                .as_u64()
                .or_else(|| number.as_i64().map(i64::unsigned_abs));
            if size.is_some_and(|size| size > MAX_SAFE_INTEGER) {
                return Err(CanonicalError::IntegerBeyondRange(number.clone()));
            }
            Ok(())
        }
        Value::Array(items) => items.iter().try_for_each(check_integers),
        Value::Object(members) => members.values().try_for_each(check_integers),
        Value::Null | Value::Bool(_) | Value::String(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// SCHEMA-6
    #[test]
    fn an_integer_that_a_double_cannot_hold_has_no_canonical_form() {
        for good in [
            json!(9_007_199_254_740_991_u64),
            json!(-9_007_199_254_740_991_i64),
            json!(1e20),
        ] {
            assert!(to_vec(&good).is_ok(), "{good}");
        }
        for bad in [
            json!(9_007_199_254_740_992_u64),
            json!(i64::MIN),
            json!(u64::MAX),
        ] {
            let inside = json!({ "a": [bad] });
            assert!(matches!(
                to_vec(&inside),
                Err(CanonicalError::IntegerBeyondRange(_))
            ));
            assert!(to_string(&inside).is_err());
        }
    }
}
