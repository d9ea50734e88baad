//! The canonical form: the RFC's own vectors, and what must hold of every value.

use proptest::prelude::*;
use serde_json::{Map, Value, json};
use weir_schema::{canonical, strict};

use crate::support::EXAMPLES;

/// RFC 8785, appendix B: the bits of a double and how it is written.
const NUMBERS: [(u64, &str); 24] = [
    (0x0000_0000_0000_0000, "0"),
    (0x8000_0000_0000_0000, "0"),
    (0x0000_0000_0000_0001, "5e-324"),
    (0x8000_0000_0000_0001, "-5e-324"),
    (0x7fef_ffff_ffff_ffff, "1.7976931348623157e+308"),
    (0xffef_ffff_ffff_ffff, "-1.7976931348623157e+308"),
    (0x4340_0000_0000_0000, "9007199254740992"),
    (0xc340_0000_0000_0000, "-9007199254740992"),
    (0x4430_0000_0000_0000, "295147905179352830000"),
    (0x44b5_2d02_c7e1_4af5, "9.999999999999997e+22"),
    (0x44b5_2d02_c7e1_4af6, "1e+23"),
    (0x44b5_2d02_c7e1_4af7, "1.0000000000000001e+23"),
    (0x444b_1ae4_d6e2_ef4e, "999999999999999700000"),
    (0x444b_1ae4_d6e2_ef4f, "999999999999999900000"),
    (0x444b_1ae4_d6e2_ef50, "1e+21"),
    (0x3eb0_c6f7_a0b5_ed8c, "9.999999999999997e-7"),
    (0x3eb0_c6f7_a0b5_ed8d, "0.000001"),
    (0x41b3_de43_5555_5553, "333333333.3333332"),
    (0x41b3_de43_5555_5554, "333333333.33333325"),
    (0x41b3_de43_5555_5555, "333333333.3333333"),
    (0x41b3_de43_5555_5556, "333333333.3333334"),
    (0x41b3_de43_5555_5557, "333333333.33333343"),
    (0xbecb_f647_612f_3696, "-0.0000033333333333333333"),
    (0x4314_3ff3_c1cb_0959, "1424953923781206.2"),
];

/// SCHEMA-6
#[test]
fn numbers_are_written_as_in_appendix_b_of_rfc_8785() {
    for (bits, expected) in NUMBERS {
        let number = json!(f64::from_bits(bits));
        assert_eq!(
            canonical::to_string(&number).unwrap(),
            expected,
            "{bits:016x}"
        );
    }
}

/// SCHEMA-6: RFC 8785 §3.2.2, the sample.
#[test]
fn the_sample_of_rfc_8785_is_written_as_there() {
    let text = r#"{
  "numbers": [333333333.33333329, 1E30, 4.50,
              2e-3, 0.000000000000000000000000001],
  "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
  "literals": [null, true, false]
}"#;
    let expected = "{\"literals\":[null,true,false],\"numbers\":[333333333.3333333,1e+30,4.5,0.002,1e-27],\
                    \"string\":\"€$\\u000f\\nA'B\\\"\\\\\\\\\\\"/\"}";
    let value = strict::parse(text.as_bytes()).unwrap();
    assert_eq!(canonical::to_string(&value).unwrap(), expected);
    assert_eq!(canonical::to_vec(&value).unwrap(), expected.as_bytes());
}

/// SCHEMA-6: RFC 8785 §3.2.3, by UTF-16 code units: the emoji comes before the Hebrew letter.
#[test]
fn members_are_sorted_as_in_rfc_8785() {
    let text = r#"{
  "\u20ac": "Euro Sign",
  "\r": "Carriage Return",
  "\ufb33": "Hebrew Letter Dalet With Dagesh",
  "1": "One",
  "\ud83d\ude00": "Emoji: Grinning Face",
  "\u0080": "Control",
  "\u00f6": "Latin Small Letter O With Diaeresis"
}"#;
    let form = canonical::to_string(&strict::parse(text.as_bytes()).unwrap()).unwrap();
    let sorted: Map<String, Value> = serde_json::from_str(&form).unwrap();
    let order: Vec<&str> = sorted.values().filter_map(Value::as_str).collect();
    assert_eq!(
        order,
        [
            "Carriage Return",
            "One",
            "Control",
            "Latin Small Letter O With Diaeresis",
            "Euro Sign",
            "Emoji: Grinning Face",
            "Hebrew Letter Dalet With Dagesh"
        ]
    );
}

/// SCHEMA-6
#[test]
fn the_canonical_form_of_every_example_is_the_same_message() {
    for examples in EXAMPLES.iter() {
        for example in &examples.valid {
            let form = canonical::to_vec(&example.message).unwrap();
            assert_eq!(strict::parse(&form).unwrap(), example.message);
        }
    }
}

/// Any value that the strict parser may give.
fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-9_007_199_254_740_991_i64..=9_007_199_254_740_991).prop_map(Value::from),
        any::<f64>()
            .prop_filter("what the parser accepts", |number| {
                let size = number.abs();
                size <= 9_007_199_254_740_991.0 || (1e21..=f64::MAX).contains(&size)
            })
            .prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 40, 6, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            proptest::collection::hash_map(any::<String>(), inner, 0..6)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

/// The same value with the members of each object the other way round.
fn reversed(value: &Value) -> Value {
    match value {
        Value::Array(items) => items.iter().map(reversed).collect(),
        Value::Object(members) => Value::Object(
            members
                .iter()
                .rev()
                .map(|(name, value)| (name.clone(), reversed(value)))
                .collect(),
        ),
        other => other.clone(),
    }
}

/// Equality in the sense of JSON: 1 and 1.0 are one number, and members have no order.
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
                    .all(|(name, value)| other.get(name).is_some_and(|other| same(value, other)))
        }
        (one, other) => one == other,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// SCHEMA-6
    #[test]
    fn the_canonical_form_is_idempotent_and_parses_back(value in value()) {
        let form = canonical::to_vec(&value).unwrap();
        let back = strict::parse(&form).unwrap();
        prop_assert!(same(&back, &value), "{} became {}", value, back);
        prop_assert_eq!(canonical::to_vec(&back).unwrap(), form);
    }

    /// SCHEMA-6
    #[test]
    fn the_canonical_form_does_not_depend_on_the_order_of_members(value in value()) {
        prop_assert_eq!(canonical::to_vec(&reversed(&value)).unwrap(), canonical::to_vec(&value).unwrap());
    }

    /// SCHEMA-6: nor on the way in which the text was written.
    #[test]
    fn the_canonical_form_does_not_depend_on_space_and_escapes(value in value()) {
        let pretty = serde_json::to_string_pretty(&value).unwrap();
        let escaped: String = value.to_string().chars().fold(String::new(), |mut out, letter| {
            if letter.is_ascii() {
                out.push(letter);
            } else {
                for unit in letter.encode_utf16(&mut [0; 2]) {
                    out.push_str(&format!("\\u{unit:04X}"));
                }
            }
            out
        });
        let form = canonical::to_vec(&value).unwrap();
        for text in [pretty, escaped] {
            prop_assert_eq!(canonical::to_vec(&strict::parse(text.as_bytes()).unwrap()).unwrap(), &form[..]);
        }
    }
}
