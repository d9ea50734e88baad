//! A chat message as a server takes it: parsed, judged, canonicalised, signed and verified. The
//! canonical form is the same message with the same verdict, and its signature holds for it alone
//! (SCHEMA-5..7).
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use weir_schema::signature::{SecretKey, verify};
use weir_schema::{Catalog, Family, canonical, strict};

static CATALOG: LazyLock<Catalog> =
    LazyLock::new(|| Catalog::new().expect("the built-in schemas compile"));
static KEY: LazyLock<SecretKey> = LazyLock::new(|| SecretKey::from_seed(&[7; 32]));

fuzz_target!(|bytes: &[u8]| {
    let Ok(message) = strict::parse(bytes) else {
        return;
    };
    let form = canonical::to_vec(&message).expect("what was accepted has a canonical form");
    let Ok(back) = strict::parse(&form) else {
        // Escapes may grow.
        assert!(form.len() > 65_536);
        return;
    };
    assert!(same(&message, &back), "{message} {back}");
    assert_eq!(canonical::to_vec(&back).expect("and has one itself"), form);

    let mut fits = false;
    for family in Family::ALL {
        let verdict = CATALOG.validate(family, &message);
        fits |= verdict.is_ok();
        assert_eq!(verdict.is_ok(), CATALOG.validate(family, &back).is_ok());
        for violation in verdict.err().into_iter().flatten() {
            assert!(!violation.sentence.is_empty());
            let place = violation.instance_path.as_str();
            let stands = message.pointer(place).is_some();
            assert!(stands || place == "/command", "{place}");
        }
    }
    if fits && let Ok(signed) = KEY.sign(&message) {
        let public = KEY.public();
        verify(&signed, |_| Some(public)).expect("a good signature");
        let mut other = back;
        other["id"] = Value::from("another");
        other["meta"] = signed["meta"].clone();
        assert!(other["id"] == signed["id"] || verify(&other, |_| Some(public)).is_err());
    }
});

/// Whether two values are the same, numbers as doubles (RFC 8785 §3.2.2.3) and members in any
/// order.
fn same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => one.as_f64() == other.as_f64(),
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| same(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            one.len() == other.len()
                && one
                    .iter()
                    .all(|(name, one)| other.get(name).is_some_and(|other| same(one, other)))
        }
        _ => one == other,
    }
}
