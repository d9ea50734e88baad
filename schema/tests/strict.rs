//! The strict parser against serde_json: the same values, and refusals for the faults of I-JSON
//! alone.

use std::collections::HashSet;

use proptest::prelude::*;
use serde_json::Value;
use weir_schema::strict::{self, Fault, Limits};

/// A JSON text that knows its faults: a naive twin needs no parser.
#[derive(Clone, Debug)]
enum Doc {
    /// The text of a scalar, and whether it is an integer beyond the range or a lone surrogate.
    Scalar(String, bool),
    Array(Vec<Doc>),
    /// Spelling and meaning of each name.
    Object(Vec<((&'static str, &'static str), Doc)>),
}

impl Doc {
    fn write(&self, space: &str, out: &mut String) {
        match self {
            Self::Scalar(text, _) => out.push_str(text),
            Self::Array(items) => {
                out.push('[');
                for (index, item) in items.iter().enumerate() {
                    out.push_str(if index > 0 { "," } else { "" });
                    out.push_str(space);
                    item.write(space, out);
                }
                out.push_str(space);
                out.push(']');
            }
            Self::Object(members) => {
                out.push('{');
                for (index, ((name, _), value)) in members.iter().enumerate() {
                    out.push_str(if index > 0 { "," } else { "" });
                    out.push_str(space);
                    out.push_str(name);
                    out.push_str(space);
                    out.push(':');
                    value.write(space, out);
                }
                out.push('}');
            }
        }
    }

    fn depth(&self) -> usize {
        match self {
            Self::Scalar(..) => 0,
            Self::Array(items) => 1 + items.iter().map(Self::depth).max().unwrap_or(0),
            Self::Object(members) => {
                1 + members
                    .iter()
                    .map(|(_, value)| value.depth())
                    .max()
                    .unwrap_or(0)
            }
        }
    }

    /// Whether there is a fault other than depth.
    fn is_faulty(&self) -> bool {
        match self {
            Self::Scalar(_, faulty) => *faulty,
            Self::Array(items) => items.iter().any(Self::is_faulty),
            Self::Object(members) => {
                let names: HashSet<_> = members.iter().map(|((_, meaning), _)| meaning).collect();
                names.len() < members.len() || members.iter().any(|(_, value)| value.is_faulty())
            }
        }
    }
}

fn scalar() -> impl Strategy<Value = Doc> {
    let fixed = [
        ("null", false),
        ("true", false),
        ("false", false),
        ("-0", false),
        ("0", false),
        ("-0.0", false),
        ("9007199254740991", false),
        ("-9007199254740991", false),
        ("9007199254740991.0", false),
        ("9007199254740992", true),
        ("-9007199254740992", true),
        ("9007199254740992.0", true),
        ("9223372036854775807", true),
        ("-9223372036854775808", true),
        ("-9223372036854775809", true),
        ("18446744073709551615", true),
        ("18446744073709551616", true),
        ("1000000000000000000000", true),
        ("1e17", true),
        ("1e20", true),
        ("999999999999999900000.0", true),
        ("1E21", false),
        ("1e+300", false),
        ("-1.5e30", false),
        ("1e-400", false),
        ("0.1e1", false),
        (r#""\ud83d\ude00""#, false),
        (r#""\ud83d""#, true),
        (r#""\ude00""#, true),
        (r#""\ud83d\u0041""#, true),
        (r#""\ud83dx""#, true),
        (r#""\u0000\"\\\/\b\f\n\r\t""#, false),
        ("\"é\u{ffff}\u{1f600}\"", false),
    ];
    prop_oneof![
        4 => proptest::sample::select(fixed.to_vec()).prop_map(|(text, faulty)| Doc::Scalar(text.to_owned(), faulty)),
        2 => any::<i32>().prop_map(|number| Doc::Scalar(number.to_string(), false)),
        2 => any::<i64>().prop_map(|number| {
            Doc::Scalar(number.to_string(), number.unsigned_abs() > strict::MAX_SAFE_INTEGER)
        }),
        2 => any::<f64>().prop_filter("finite", |number| number.is_finite()).prop_map(|number| {
            let size = number.abs();
            Doc::Scalar(serde_json::json!(number).to_string(), size > 9_007_199_254_740_991.0 && size < 1e21)
        }),
        2 => any::<String>().prop_map(|text| Doc::Scalar(serde_json::json!(text).to_string(), false)),
    ]
}

/// Texts of which about half are faulty.
fn doc() -> impl Strategy<Value = Doc> {
    let names = vec![
        (r#""a""#, "a"),
        (r#""\u0061""#, "a"),
        (r#""b""#, "b"),
        (r#""""#, ""),
        (r#""A""#, "A"),
        (r#""\u00e9""#, "é"),
        (r#""é""#, "é"),
        (r#""e\u0301""#, "e\u{301}"),
        (r#""/""#, "/"),
        (r#""\/""#, "/"),
        (r#""c""#, "c"),
        (r#""d""#, "d"),
        (r#""e""#, "e"),
        (r#""f""#, "f"),
        (r#""g""#, "g"),
        (r#""h""#, "h"),
    ];
    scalar().prop_recursive(8, 24, 5, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..5).prop_map(Doc::Array),
            proptest::collection::vec((proptest::sample::select(names.clone()), inner), 0..4)
                .prop_map(Doc::Object),
        ]
    })
}

/// The text with some arrays around it, to meet the limit of depth.
fn text(doc: &Doc, around: usize, space: &str) -> String {
    let mut text = "[".repeat(around);
    doc.write(space, &mut text);
    text + &"]".repeat(around)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    /// SCHEMA-5: refused exactly where a fault was put in, else the value that serde_json reads.
    #[test]
    fn the_strict_parser_refuses_the_faults_of_i_json_and_nothing_else(
        doc in doc(),
        around in prop_oneof![3 => Just(0_usize), 1 => 22_usize..34],
        space in proptest::sample::select(vec!["", " ", "\n", "\r\n\t "]),
    ) {
        let text = text(&doc, around, space);
        let faulty = doc.is_faulty() || doc.depth() + around > 32;
        match strict::parse(text.as_bytes()) {
            Ok(value) => {
                prop_assert!(!faulty, "{}", text);
                prop_assert_eq!(&value, &serde_json::from_str::<Value>(&text).unwrap());
                // Equality of numbers forgets the sign of zero; the text does not.
                prop_assert_eq!(value.to_string(), serde_json::from_str::<Value>(&text).unwrap().to_string());
            }
            Err(error) => {
                prop_assert!(faulty, "{}: {}", text, error);
                prop_assert!(!matches!(error.fault, Fault::Syntax(_)), "{}: {}", text, error);
                let line = text.split('\n').nth(error.line - 1).unwrap();
                prop_assert!((1..=line.len()).contains(&error.column), "{}: {}", text, error);
            }
        }
    }

    /// SCHEMA-5: whatever the bytes, what is accepted is what serde_json reads, and what serde_json
    /// refuses is refused, in its words and at its place unless a fault of ours came first.
    #[test]
    fn the_strict_parser_never_accepts_more_than_serde_json(
        doc in doc(),
        edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3_u8), 1..4),
    ) {
        let mut bytes = text(&doc, 0, " ").into_bytes();
        for (place, byte, edit) in edits {
            if bytes.is_empty() {
                break;
            }
            let place = place.index(bytes.len());
            match edit {
                0 => bytes[place] = byte,
                1 => drop(bytes.remove(place)),
                _ => bytes.insert(place, byte),
            }
        }
        let ours = strict::parse_within(&bytes, Limits::NONE);
        let theirs = serde_json::from_slice::<Value>(&bytes);
        match (ours, theirs) {
            (Ok(ours), Ok(theirs)) => prop_assert_eq!(ours, theirs),
            (Ok(ours), Err(theirs)) => prop_assert!(false, "{} but {}", ours, theirs),
            (Err(ours), Ok(_)) => prop_assert!(!matches!(ours.fault, Fault::Syntax(_)), "{}", ours),
            (Err(ours), Err(theirs)) => if let Fault::Syntax(_) = ours.fault {
                prop_assert_eq!((ours.line, ours.column), (theirs.line(), theirs.column()));
                prop_assert_eq!(ours.to_string(), theirs.to_string());
            },
        }
    }
}
