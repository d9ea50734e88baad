//! Checks and reads the response of a lookup service (LOOKUP-1, LOOKUP-3, LOOKUP-4). Pure. A
//! response that is no answer is a failure and is never kept. An answer without a country is an
//! answer: the client is unknown.

use std::borrow::Cow;

use serde_json::Value;
use weir_shared::lookup::{AsNumber, Country, Lookup};

/// The most characters of an AS's name that are kept.
const MAX_NAME: usize = 128;
/// The most bytes of the name, because a ban's notes contain it (TELL-3).
const MAX_NAME_BYTES: usize = 256;

/// The words that services write for an unknown value.
const NOTHING: [&str; 4] = ["", "nil", "null", "-"];

/// The places of the members in the answer: JSON Pointers (RFC 6901).
#[derive(Clone, Debug)]
pub(super) struct Pointers {
    pub(super) country: String,
    pub(super) asn: String,
    pub(super) as_name: String,
}

/// The reason why a body is no answer.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum NoAnswer {
    #[error("the answer is not JSON")]
    NotJson,
    #[error("the answer has no member where WAF_LOOKUP_JSON_COUNTRY, _ASN and _AS_NAME point to")]
    NoMember,
    #[error("the country in the answer is not a two-letter code")]
    Country,
    #[error("the AS number in the answer is not one")]
    AsNumber,
    #[error("the name of the AS in the answer is not a text")]
    AsName,
}

/// Reads the body of an answer.
pub(super) fn judge(body: &[u8], pointers: &Pointers) -> Result<Lookup, NoAnswer> {
    let answer: Value = serde_json::from_slice(body).map_err(|_| NoAnswer::NotJson)?;
    let at = |pointer: &str| answer.pointer(pointer);
    let members = [
        at(&pointers.country),
        at(&pointers.asn),
        at(&pointers.as_name),
    ];
    // A service that says `{"error": …}` with status 200 has not answered.
    if members.iter().all(Option::is_none) {
        return Err(NoAnswer::NoMember);
    }
    let [country, asn, as_name] = members.map(|member| member.filter(|value| !is_nothing(value)));
    let country = match country {
        None => None,
        Some(value) => {
            let code = value.as_str().and_then(|text| text.trim().parse().ok());
            Some(code.ok_or(NoAnswer::Country)?)
        }
    };
    let (number, name_behind_number) = match asn {
        None => (None, None),
        Some(value) => as_number(value)?,
    };
    let as_name = match as_name {
        None => name_behind_number,
        Some(value) => Some(value.as_str().ok_or(NoAnswer::AsName)?),
    };
    Ok(lookup(country, number, as_name))
}

/// An answer in the form that files, log and headers write.
pub(super) fn lookup(
    country: Option<Country>,
    number: Option<AsNumber>,
    as_name: Option<&str>,
) -> Lookup {
    // The name of an unknown AS is a word such as "Unknown": it is dropped.
    let as_name = as_name
        .filter(|_| number.is_some())
        .map(tidy)
        .filter(|name| !name.is_empty());
    Lookup {
        country: country.map(|country| country.to_string()),
        asn: number.map(|number| number.to_string()),
        as_name,
    }
}

/// A name on one line, cut to its bounds.
fn tidy(name: &str) -> String {
    let name = if name.contains(char::is_control) {
        Cow::Owned(name.chars().filter(|c| !c.is_control()).collect())
    } else {
        Cow::Borrowed(name)
    };
    let name = name.trim();
    let end = name.char_indices().nth(MAX_NAME).map(|(end, _)| end);
    let end = name.floor_char_boundary(end.unwrap_or(name.len()).min(MAX_NAME_BYTES));
    name.get(..end).unwrap_or_default().to_owned()
}

fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => NOTHING.contains(&text.trim()),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => false,
    }
}

fn as_number(value: &Value) -> Result<(Option<AsNumber>, Option<&str>), NoAnswer> {
    match value {
        Value::String(text) => AsNumber::parse_named(text).map_err(|_| NoAnswer::AsNumber),
        value => {
            let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
            Ok((AsNumber::new(number.ok_or(NoAnswer::AsNumber)?), None))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str) -> Result<[Option<String>; 3], NoAnswer> {
        let pointers = Pointers {
            country: "/country_code".to_owned(),
            asn: "/asn".to_owned(),
            as_name: "/organization_name".to_owned(),
        };
        judge(body.as_bytes(), &pointers).map(|found| [found.country, found.asn, found.as_name])
    }

    fn known(country: &str, asn: &str, name: &str) -> Result<[Option<String>; 3], NoAnswer> {
        Ok([country, asn, name].map(|text| (!text.is_empty()).then(|| text.to_owned())))
    }

    /// LOOKUP-1, LOOKUP-4: an answer of geojs, the forms of AS numbers, 64512, `nil` and no
    /// country.
    #[test]
    fn answers_are_read_in_every_form() {
        let geojs = r#"{"country_code3":"USA","country":"United States","continent_code":"NA","city":"nil","region":"nil",
            "latitude":"37.751","longitude":"-97.822","accuracy":1000,"timezone":"America\/Chicago",
            "organization":"AS15169 Google LLC","asn":15169,"ip":"8.8.8.8","area_code":"0",
            "organization_name":"Google LLC","country_code":"US"}"#;
        assert_eq!(read(geojs), known("US", "AS15169", "Google LLC"));
        for (body, expected) in [
            (
                r#"{"country_code":"de","asn":"15169"}"#,
                known("DE", "AS15169", ""),
            ),
            (
                r#"{"country_code":"DE","asn":"AS15169 Google"}"#,
                known("DE", "AS15169", "Google"),
            ),
            (
                r#"{"country_code":"DE","asn":"AS1 A","organization_name":"B"}"#,
                known("DE", "AS1", "B"),
            ),
            (
                r#"{"asn":64512,"organization_name":"Unknown"}"#,
                known("", "", ""),
            ),
            (
                r#"{"country_code":"DE","asn":"AS64512","organization_name":"Unknown"}"#,
                known("DE", "", ""),
            ),
            (r#"{"country_code":"nil","asn":7}"#, known("", "AS7", "")),
            (
                r#"{"country_code":null,"asn":null,"organization_name":null}"#,
                known("", "", ""),
            ),
            (
                r#"{"country_code":"","asn":"nil","organization_name":"-"}"#,
                known("", "", ""),
            ),
            (
                r#"{"country_code":"DE","asn":7,"organization_name":"a\nb\u001b"}"#,
                known("DE", "AS7", "ab"),
            ),
        ] {
            assert_eq!(read(body), expected, "{body}");
        }
    }

    /// LOOKUP-3: an invalid answer is distinguished from an answer without a country.
    #[test]
    fn what_is_no_answer_is_a_failure() {
        for (body, fault) in [
            ("", NoAnswer::NotJson),
            ("nil", NoAnswer::NotJson),
            ("<html>", NoAnswer::NotJson),
            (r#"{"country_code":"DE""#, NoAnswer::NotJson),
            ("null", NoAnswer::NoMember),
            ("[]", NoAnswer::NoMember),
            ("\"DE\"", NoAnswer::NoMember),
            (r#"{"error":"rate limited"}"#, NoAnswer::NoMember),
            (r#"{"country_code":"Germany"}"#, NoAnswer::Country),
            (r#"{"country_code":7}"#, NoAnswer::Country),
            (r#"{"country_code":["DE"]}"#, NoAnswer::Country),
            (r#"{"country_code":"DE","asn":-1}"#, NoAnswer::AsNumber),
            (r#"{"country_code":"DE","asn":1.5}"#, NoAnswer::AsNumber),
            (
                r#"{"country_code":"DE","asn":4294967296}"#,
                NoAnswer::AsNumber,
            ),
            (
                r#"{"country_code":"DE","asn":"Google"}"#,
                NoAnswer::AsNumber,
            ),
            (
                r#"{"country_code":"DE","asn":7,"organization_name":{}}"#,
                NoAnswer::AsName,
            ),
        ] {
            assert_eq!(read(body), Err(fault), "{body}");
        }
    }

    /// LOOKUP-1: the members of another service's answer are found by the pointers of the settings.
    #[test]
    fn pointers_reach_into_the_answer() {
        let pointers = Pointers {
            country: "/data/0/geo/cc".to_owned(),
            asn: "/data/0/a~1s".to_owned(),
            as_name: "/none".to_owned(),
        };
        let found = judge(
            br#"{"data":[{"geo":{"cc":"AT"},"a/s":"AS9 X"}]}"#,
            &pointers,
        )
        .unwrap();
        assert_eq!(
            (
                found.country.as_deref(),
                found.asn.as_deref(),
                found.as_name.as_deref()
            ),
            (Some("AT"), Some("AS9"), Some("X"))
        );
    }
}
