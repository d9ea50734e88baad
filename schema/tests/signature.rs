//! Signatures: the RFC's vectors, the bytes that are signed, and everything that must break one.

use data_encoding::{BASE64URL_NOPAD, HEXLOWER};
use proptest::prelude::*;
use serde_json::{Value, json};
use weir_schema::{
    Family,
    signature::{
        Algorithm, KeyError, PublicKey, SecretKey, SignError, VerifyError, signed_bytes, verify,
    },
    strict,
};

use crate::support::{CATALOG, EXAMPLES};

fn seed(hex: &str) -> [u8; 32] {
    HEXLOWER.decode(hex.as_bytes()).unwrap().try_into().unwrap()
}

fn alice() -> SecretKey {
    SecretKey::from_seed(&[1; 32])
}

fn mallory() -> SecretKey {
    SecretKey::from_seed(&[2; 32])
}

fn message() -> Value {
    json!({
        "command": "PRIVMSG", "from": "alice", "to": "#weir", "body": ["Good morning.", "", "1.0"],
        "id": "0f8fad5b-d9cb-469f-a165-70867728950e", "ts": "2026-03-01T12:00:00Z",
        "meta": { "lang": "en", "trace": { "hops": [1, 2.5, null, true] } },
    })
}

/// Asks with the binding that the caller owes: each key belongs to one sender.
fn judge(message: &Value) -> Result<(), VerifyError> {
    let (alice, mallory) = (alice(), mallory());
    let known = [("alice", alice.public()), ("mallory", mallory.public())];
    let verified = verify(message, |claim| {
        let known = known
            .iter()
            .find(|(from, key)| *from == claim.from && key.kid() == claim.kid);
        known.map(|(_, key)| *key)
    })?;
    assert_eq!(message["from"], verified.from);
    assert_eq!(message["id"], verified.id);
    assert_eq!(message["ts"], verified.ts);
    assert_eq!(message["meta"]["kid"], verified.kid);
    Ok(())
}

/// SCHEMA-7: RFC 8032 §7.1, the tests 1, 2, 3 and SHA(abc).
#[test]
fn keys_and_signatures_are_those_of_rfc_8032() {
    for (secret, public, bytes, signature) in [
        (
            "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
            "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
            "",
            "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46b\
             d25bf5f0595bbe24655141438e7a100b",
        ),
        (
            "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
            "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
            "72",
            "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c\
             387b2eaeb4302aeeb00d291612bb0c00",
        ),
        (
            "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
            "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
            "af82",
            "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc659\
             4a7c15e9716ed28dc027beceea1ec40a",
        ),
        (
            "833fe62409237b9d62ec77587520911e9a759cec1d19755b7da901b96dca3d42",
            "ec172b93ad5e563bf4932c70e1245034c35467ef2efd4d64ebf819683467e2bf",
            "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a2192992a274fc1a836ba3c23a3feebbd\
             454d4423643ce80e2a9ac94fa54ca49f",
            "dc2a4459e7369633a52b1bf277839a00201009a3efbf3ecb69bea2186c26b58909351fc9ac90b3ecfdfbc7c66431e030\
             3dca179c138ac17ad9bef1177331a704",
        ),
    ] {
        let key = SecretKey::from_seed(&seed(secret));
        assert_eq!(key.public(), &PublicKey::from_bytes(&seed(public)).unwrap());
        let bytes = HEXLOWER.decode(bytes.as_bytes()).unwrap();
        assert_eq!(HEXLOWER.encode(&key.sign_bytes(&bytes)), signature);
        let mut signature = HEXLOWER.decode(signature.as_bytes()).unwrap();
        assert!(key.public().verifies(&bytes, &signature));
        signature[0] ^= 1;
        assert!(!key.public().verifies(&bytes, &signature));
    }
}

/// SCHEMA-7: RFC 8037, appendix A.1 to A.3.
#[test]
fn a_kid_is_the_thumbprint_of_rfc_7638() {
    let jwk = json!({
        "kty": "OKP", "crv": "Ed25519",
        "d": "nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A",
        "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo",
    });
    let key = SecretKey::from_jwk(&jwk).unwrap();
    assert_eq!(
        key.public().kid(),
        "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k"
    );
    assert_eq!(key.public().algorithm(), Algorithm::Ed25519);
    assert_eq!(
        SecretKey::from_jwk(&key.to_jwk()).unwrap().public(),
        key.public()
    );
    assert_eq!(
        PublicKey::from_jwk(&key.public().to_jwk()).unwrap(),
        *key.public()
    );
    assert_eq!(
        PublicKey::from_base64url(jwk["x"].as_str().unwrap()).unwrap(),
        *key.public()
    );
    assert!(!format!("{key:?}").contains("nWGx"));
}

/// SCHEMA-7
#[test]
fn a_key_that_is_none_is_refused() {
    let jwk = alice().to_jwk();
    let with = |member: &str, value: Value| {
        let mut jwk = jwk.clone();
        jwk[member] = value;
        SecretKey::from_jwk(&jwk).map(drop)
    };
    assert_eq!(with("kty", json!("RSA")), Err(KeyError::Kind));
    assert_eq!(with("crv", json!("X25519")), Err(KeyError::Kind));
    assert_eq!(with("x", json!("AQ")), Err(KeyError::Text));
    assert_eq!(with("x", json!(5)), Err(KeyError::Text));
    assert_eq!(with("d", json!("AQ")), Err(KeyError::Text));
    assert_eq!(with("d", json!(null)), Err(KeyError::NoSecret));
    assert_eq!(
        with("d", mallory().to_jwk()["d"].clone()),
        Err(KeyError::Halves)
    );
    assert_eq!(
        with("kid", json!(mallory().public().kid())),
        Err(KeyError::Kid)
    );
    assert_eq!(with("kid", json!(5)), Err(KeyError::Kid));
    let padded = format!("{}=", alice().public().to_base64url());
    assert_eq!(PublicKey::from_base64url(&padded), Err(KeyError::Text));
    let mut one = [0; 32];
    one[0] = 1;
    assert_eq!(
        PublicKey::from_bytes(&one),
        Err(KeyError::Point),
        "of small order"
    );
    assert_eq!(
        PublicKey::from_bytes(&[0; 32]),
        Err(KeyError::Point),
        "of small order"
    );
    one[0] = 2;
    assert_eq!(
        PublicKey::from_bytes(&one),
        Err(KeyError::Point),
        "not on the curve"
    );
}

/// SCHEMA-7
#[test]
fn what_is_signed_is_the_canonical_form_without_the_signature() {
    let message = json!({
        "ts": "2026-03-01T12:00:00Z", "id": "0f8fad5b-d9cb-469f-a165-70867728950e", "from": "alice",
        "command": "QUIT", "meta": { "z": 1.0 },
    });
    let signed = alice().sign(&message).unwrap();
    let kid = alice().public().kid().to_owned();
    let expected = format!(
        "{{\"command\":\"QUIT\",\"from\":\"alice\",\"id\":\"0f8fad5b-d9cb-469f-a165-70867728950e\",\
         \"meta\":{{\"alg\":\"ed25519\",\"kid\":\"{kid}\",\"z\":1}},\"ts\":\"2026-03-01T12:00:00Z\"}}"
    );
    assert_eq!(
        String::from_utf8(signed_bytes(&signed).unwrap()).unwrap(),
        expected
    );
    let sig = signed["meta"]["sig"].as_str().unwrap();
    assert_eq!(sig.len(), 86);
    let bytes = BASE64URL_NOPAD.decode(sig.as_bytes()).unwrap();
    assert!(alice().public().verifies(expected.as_bytes(), &bytes));
}

/// SCHEMA-7
#[test]
fn a_signed_message_verifies_whatever_the_order_of_its_members() {
    let signed = alice().sign(&message()).unwrap();
    assert_eq!(judge(&signed), Ok(()));
    assert_eq!(CATALOG.validate(Family::C2s, &signed), Ok(()));
    let mut text = signed.to_string();
    assert_eq!(judge(&serde_json::from_str(&text).unwrap()), Ok(()));
    let reversed: serde_json::Map<_, _> = signed
        .as_object()
        .unwrap()
        .clone()
        .into_iter()
        .rev()
        .collect();
    text = serde_json::to_string_pretty(&reversed).unwrap();
    assert_eq!(judge(&serde_json::from_str(&text).unwrap()), Ok(()));
    assert_eq!(
        alice().sign(&signed).unwrap(),
        signed,
        "signed again it is the same"
    );
}

/// SCHEMA-7
#[test]
fn every_example_can_be_signed_and_verified_and_still_fits_its_schema() {
    let key = alice();
    for examples in EXAMPLES.iter() {
        for example in &examples.valid {
            let mut message = example.message.clone();
            message["from"] = "irc.weir.example".into();
            message["id"] = "0f8fad5b-d9cb-469f-a165-70867728950e".into();
            message["ts"] = "2026-03-01T12:00:00Z".into();
            // The envelope's example of 32 members of meta has no room for three more.
            if message["meta"]
                .as_object()
                .is_some_and(|meta| meta.len() > 29)
            {
                continue;
            }
            if message["meta"].is_null() {
                message.as_object_mut().unwrap().shift_remove("meta");
            }
            let signed = key.sign(&message).unwrap();
            let schema = CATALOG.schema(&examples.schema).unwrap();
            assert_eq!(
                schema.validate(&signed),
                Ok(()),
                "{}: {}",
                examples.schema,
                example.why
            );
            assert!(verify(&signed, |_| Some(key.public())).is_ok());
        }
    }
}

/// SCHEMA-7
#[test]
fn a_message_without_what_a_signature_needs_is_not_signed() {
    for member in ["id", "ts", "from"] {
        let mut message = message();
        message.as_object_mut().unwrap().shift_remove(member);
        assert_eq!(alice().sign(&message), Err(SignError::Missing(member)));
        message[member] = 5.into();
        assert_eq!(alice().sign(&message), Err(SignError::Missing(member)));
    }
    assert_eq!(alice().sign(&json!([])), Err(SignError::NoObject));
    let mut odd = message();
    odd["meta"] = json!([]);
    assert_eq!(alice().sign(&odd), Err(SignError::Meta));
    odd["meta"] = json!({ "n": u64::MAX });
    assert!(matches!(alice().sign(&odd), Err(SignError::Canonical(_))));
}

/// SCHEMA-7: what would be larger than receivers take is not signed. At the bound it is, and is
/// read.
#[test]
fn what_is_too_large_with_its_signature_is_not_signed() {
    let with_meta = |members: usize| {
        let mut message = message();
        let members = (0..members).map(|number| (format!("m{number}"), json!(number)));
        message["meta"] = members.collect::<serde_json::Map<_, _>>().into();
        alice().sign(&message)
    };
    assert_eq!(
        with_meta(29).unwrap()["meta"].as_object().unwrap().len(),
        32
    );
    assert_eq!(with_meta(30), Err(SignError::MetaTooLarge(33)));

    let with_text = |length: usize| {
        let mut message = message();
        message["body"] = "x".repeat(length).into();
        alice().sign(&message)
    };
    let empty = with_text(0).unwrap().to_string().len();
    let largest = with_text(65_536 - empty).unwrap().to_string();
    assert_eq!(largest.len(), 65_536);
    assert!(strict::parse(largest.as_bytes()).is_ok());
    let refused = |signed: Result<Value, SignError>| signed.unwrap_err().to_string();
    let too_long = refused(with_text(65_537 - empty));
    assert!(too_long.contains("longer than 65536 bytes"), "{too_long}");

    // The message is the first level.
    let with_levels = |levels: usize| {
        let mut message = message();
        message["body"] = (1..levels).fold(json!(1), |inner, _| json!([inner]));
        alice().sign(&message)
    };
    let deepest = with_levels(32).unwrap().to_string();
    assert!(strict::parse(deepest.as_bytes()).is_ok());
    let too_deep = refused(with_levels(33));
    assert!(too_deep.contains("nested more than 32 deep"), "{too_deep}");
}

/// SCHEMA-7, SCHEMA-5: a double that is an integer beyond ±(2^53 − 1) is refused by every receiver.
#[test]
fn what_no_receiver_reads_is_not_signed() {
    let with_number = |number: f64| {
        let mut message = message();
        message["meta"] = json!({ "n": number });
        alice().sign(&message)
    };
    for number in [1e17, 9_007_199_254_740_992.0] {
        let refused = with_number(number).unwrap_err().to_string();
        assert!(refused.contains("an integer beyond"), "{refused}");
    }
    for number in [9_007_199_254_740_991.0, 1e21, -0.0] {
        let signed = with_number(number).unwrap().to_string();
        assert!(strict::parse(signed.as_bytes()).is_ok(), "{signed}");
    }
}

/// Every pointer into `value`, the value itself first.
fn pointers(value: &Value, at: &str, out: &mut Vec<String>) {
    out.push(at.to_owned());
    match value {
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                pointers(item, &format!("{at}/{index}"), out);
            }
        }
        Value::Object(members) => {
            for (name, member) in members {
                pointers(member, &format!("{at}/{name}"), out);
            }
        }
        _ => {}
    }
}

/// Every message that differs from `message` in one place: a value changed, taken away, added or
/// renamed.
fn tampered(message: &Value) -> Vec<(String, Value)> {
    let mut places = Vec::new();
    pointers(message, "", &mut places);
    let mut out = Vec::new();
    for place in places {
        let mut push = |what: &str, change: &dyn Fn(&mut Value)| {
            let mut other = message.clone();
            change(other.pointer_mut(&place).unwrap());
            if other != *message {
                out.push((format!("{what} {place:?}"), other));
            }
        };
        push("null at", &|value| *value = Value::Null);
        push("empty at", &|value| *value = "".into());
        push("more at", &|value| match value {
            Value::Null => *value = false.into(),
            Value::Bool(yes) => *yes = !*yes,
            Value::Number(number) => *value = (number.as_f64().unwrap() + 1.0).into(),
            Value::String(text) => text.push('A'),
            Value::Array(items) => items.push(Value::Null),
            Value::Object(members) => drop(members.insert("new".to_owned(), Value::Null)),
        });
        push("case at", &|value| {
            if let Value::String(text) = value {
                *text = text.to_uppercase();
            }
        });
        push("order at", &|value| {
            if let Value::Array(items) = value {
                items.reverse();
            }
        });
        if let Some((parent, last)) = place.rsplit_once('/') {
            let mut other = message.clone();
            match other.pointer_mut(parent).unwrap() {
                Value::Object(members) => {
                    let value = members.shift_remove(last).unwrap();
                    out.push((format!("no {place:?}"), other.clone()));
                    other.pointer_mut(parent).unwrap()[format!("{last}x")] = value;
                    out.push((format!("another name for {place:?}"), other));
                }
                Value::Array(items) => {
                    items.remove(last.parse().unwrap());
                    out.push((format!("no {place:?}"), other));
                }
                _ => unreachable!("a parent has children"),
            }
        }
    }
    out
}

/// SCHEMA-7
#[test]
fn tampering_with_any_single_member_is_found() {
    let signed = alice().sign(&message()).unwrap();
    assert_eq!(judge(&signed), Ok(()));
    let tampered = tampered(&signed);
    assert!(tampered.len() > 90, "{}", tampered.len());
    for (what, message) in tampered {
        assert!(judge(&message).is_err(), "{what}: {message}");
    }
}

/// SCHEMA-7: the last of 86 characters has four bits to spare; only one spelling counts.
#[test]
fn a_signature_has_one_spelling() {
    let signed = alice().sign(&message()).unwrap();
    let sig = signed["meta"]["sig"].as_str().unwrap().to_owned();
    let alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut other = signed.clone();
    for place in 0..sig.len() {
        for letter in alphabet
            .chars()
            .filter(|letter| !sig[place..].starts_with(*letter))
        {
            other["meta"]["sig"] = format!("{}{letter}{}", &sig[..place], &sig[place + 1..]).into();
            assert!(judge(&other).is_err());
        }
    }
    for odd in [
        format!("{sig}=="),
        format!("{sig}\n"),
        format!(" {sig}"),
        sig.replace(['-', '_'], "+") + "+",
    ] {
        other["meta"]["sig"] = odd.into();
        assert_eq!(judge(&other), Err(VerifyError::Malformed));
    }
    // S + L: the same signature with another scalar, which RFC 8032 §5.1.7 refuses.
    let order: [u8; 32] = seed("edd3f55c1a631258d69cf7a2def9de1400000000000000000000000000000010");
    let mut bytes = BASE64URL_NOPAD.decode(sig.as_bytes()).unwrap();
    let mut carry = 0_u16;
    for (byte, add) in bytes[32..].iter_mut().zip(order) {
        carry += u16::from(*byte) + u16::from(add);
        *byte = carry.to_le_bytes()[0];
        carry >>= 8;
    }
    other["meta"]["sig"] = BASE64URL_NOPAD.encode(&bytes).into();
    assert_eq!(judge(&other), Err(VerifyError::Wrong));
}

/// SCHEMA-7: `verify_strict`. R is the neutral point and S fits it, so that the plain equation of
/// RFC 8032 holds; a signer can make such a signature without committing to anything.
#[test]
fn a_signature_with_a_point_of_small_order_is_refused() {
    let sig = "0100000000000000000000000000000000000000000000000000000000000000\
               e882a3514905626a61281501ea1cd2e3911c78bfc24198addae938c2fa0e4e03";
    let sig = HEXLOWER.decode(sig.as_bytes()).unwrap();
    assert!(!alice().public().verifies(b"weir", &sig));
}

/// SCHEMA-7
#[test]
fn alg_and_kid_cannot_be_swapped() {
    let (alice, mallory) = (alice(), mallory());
    let signed = alice.sign(&message()).unwrap();
    for alg in [
        "none",
        "",
        "Ed25519",
        "EdDSA",
        "ES256",
        "HS256",
        "ed25519ph",
    ] {
        let mut other = signed.clone();
        other["meta"]["alg"] = alg.into();
        assert_eq!(judge(&other), Err(VerifyError::OtherKey), "{alg:?}");
        // Even if whoever looks the key up takes no care.
        assert!(verify(&other, |_| Some(alice.public())).is_err());
    }
    let mut other = signed.clone();
    other["meta"]["kid"] = mallory.public().kid().into();
    assert_eq!(
        judge(&other),
        Err(VerifyError::UnknownKey),
        "it is not alice's"
    );
    assert_eq!(
        verify(&other, |_| Some(alice.public())),
        Err(VerifyError::OtherKey)
    );
    assert_eq!(
        verify(&other, |_| Some(mallory.public())),
        Err(VerifyError::Wrong)
    );
    // Mallory signs in alice's name, with her own key and under alice's kid.
    let forged = mallory.sign(&message()).unwrap();
    assert_eq!(judge(&forged), Err(VerifyError::UnknownKey));
    let mut forged = forged;
    forged["meta"]["kid"] = alice.public().kid().into();
    assert_eq!(judge(&forged), Err(VerifyError::Wrong));
    // The signed bytes say alg and kid: with either changed they are others.
    for member in ["alg", "kid"] {
        let mut other = signed.clone();
        other["meta"][member] = "x".into();
        assert_ne!(
            signed_bytes(&other).unwrap(),
            signed_bytes(&signed).unwrap()
        );
    }
}

/// SCHEMA-7
#[test]
fn a_message_without_a_signature_is_unsigned() {
    assert_eq!(judge(&message()), Err(VerifyError::Unsigned));
    assert_eq!(
        judge(&json!({ "command": "QUIT" })),
        Err(VerifyError::Unsigned)
    );
    assert_eq!(judge(&json!("QUIT")), Err(VerifyError::Unsigned));
    for (member, path) in [("alg", "meta.alg"), ("kid", "meta.kid")] {
        let mut signed = alice().sign(&message()).unwrap();
        signed["meta"].as_object_mut().unwrap().shift_remove(member);
        assert_eq!(judge(&signed), Err(VerifyError::Missing(path)));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// SCHEMA-7: any body, any change.
    #[test]
    fn tampering_is_found_in_any_message(
        lines in proptest::collection::vec(".{0,40}", 1..4),
        number in any::<f64>().prop_filter("finite and not so large that one more is the same", |n| n.abs() < 1e15),
        key in any::<[u8; 32]>(),
    ) {
        let key = SecretKey::from_seed(&key);
        let mut message = message();
        message["body"] = json!(lines);
        message["meta"] = json!({ "n": number });
        let signed = key.sign(&message).unwrap();
        prop_assert!(verify(&signed, |_| Some(key.public())).is_ok());
        for (what, other) in tampered(&signed) {
            prop_assert!(verify(&other, |_| Some(key.public())).is_err(), "{}: {}", what, other);
        }
    }
}
