//! A strict reader of JSON: I-JSON (RFC 7493) within the limits of a chat message (SCHEMA-5).
//!
//! The reading itself is serde_json's. This file adds what serde_json lets pass and two receivers
//! could read differently: a member that comes twice (serde_json keeps the last, others the first),
//! integers that a double cannot hold, and texts too long or too deep. Lone surrogates serde_json
//! refuses itself. Noncharacters, which RFC 7493 §2.1 forbids too, are let through: no reader
//! changes them. Whether a value is a message at all is the catalog's question.

use std::{
    cell::{Cell, RefCell},
    fmt, io,
};

use serde::de::{self, DeserializeSeed, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// The largest integer that every receiver reads alike: 2^53 − 1 (RFC 7493 §2.2).
pub const MAX_SAFE_INTEGER: u64 = (1 << 53) - 1;

/// From here on the canonical form writes a number with an exponent (RFC 8785 §3.2.2.3).
const EXPONENT_FROM: f64 = 1e21;

/// How many characters of a member's name an error repeats.
const NAME_CHARS: usize = 64;

/// Reads one chat message: at most 65,536 bytes, at most 32 arrays and objects inside one another.
///
/// # Errors
/// [`StrictError`] with the first fault and its place.
pub fn parse(text: &[u8]) -> Result<Value, StrictError> {
    parse_within(text, Limits::MESSAGE)
}

/// Reads one JSON text within `limits`, as strictly as [`parse`].
///
/// A number is refused when it is an integer beyond ±(2^53 − 1): one written without fraction and
/// exponent, and one whose canonical form would be (`1e17`). What is accepted is therefore accepted
/// in its canonical form too. `1e30` stays a double.
///
/// # Errors
/// [`StrictError`] with the first fault and its place.
pub fn parse_within(text: &[u8], limits: Limits) -> Result<Value, StrictError> {
    if text.len() > limits.bytes {
        return Err(StrictError::at(
            text,
            limits.bytes + 1,
            Fault::TooLong {
                bytes: limits.bytes,
            },
        ));
    }
    // Once quickly. serde_json gives no place for a fault that a visitor finds, so any doubt leads
    // to a second reading that counts bytes; only faulty texts and huge doubles pay for it.
    let quick = Reading::new(text, limits, None);
    if let Ok(value) = read(serde_json::Deserializer::from_slice(text), &quick) {
        return Ok(value);
    }
    let consumed = Cell::new(0);
    let counting = Reading::new(text, limits, Some(&consumed));
    let source = Counting {
        rest: text,
        consumed: &consumed,
    };
    read(serde_json::Deserializer::from_reader(source), &counting).map_err(|error| {
        if let Some((offset, fault)) = counting.fault.take() {
            return StrictError::at(text, offset, fault);
        }
        // serde_json places some faults of a stream one byte later than those of a slice.
        StrictError::from_serde(&serde_json::from_slice::<Value>(text).err().unwrap_or(error))
    })
}

/// What a text may be at most.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of the whole text.
    pub bytes: usize,
    /// Arrays and objects inside one another; a lone scalar has depth 0. More than 127 is not read
    /// anyway.
    pub depth: usize,
}

impl Limits {
    /// Those of a chat message.
    pub const MESSAGE: Self = Self {
        bytes: 65_536,
        depth: 32,
    };
    /// None but serde_json's own depth of 127, for files of one's own.
    pub const NONE: Self = Self {
        bytes: usize::MAX,
        depth: usize::MAX,
    };
}

/// Why a text was refused, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{fault} at line {line} column {column}")]
pub struct StrictError {
    /// What is wrong.
    pub fault: Fault,
    /// The line, from 1.
    pub line: usize,
    /// The byte in the line, from 1, at which the fault was certain: the closing quote of a name
    /// that came before, the last digit of a number, the bracket that is one too deep. 0 where a
    /// line has no bytes yet.
    pub column: usize,
}

/// What can be wrong with a text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// A member's name comes twice in one object, after its escapes are resolved.
    #[error("the member {name:?} comes twice")]
    DuplicateMember {
        /// The name, cut after 64 characters.
        name: String,
    },
    /// An integer beyond ±(2^53 − 1).
    #[error("an integer beyond ±9007199254740991")]
    IntegerBeyondRange,
    /// `\uD800` without its other half.
    #[error("a lone surrogate")]
    LoneSurrogate,
    /// Too many arrays and objects inside one another.
    #[error("nested more than {depth} deep")]
    TooDeep {
        /// The limit.
        depth: usize,
    },
    /// Too many bytes.
    #[error("longer than {bytes} bytes")]
    TooLong {
        /// The limit.
        bytes: usize,
    },
    /// No JSON (RFC 8259). The sentence is serde_json's.
    #[error("{0}")]
    Syntax(String),
}

impl StrictError {
    /// A fault that was certain once `offset` bytes were read.
    fn at(text: &[u8], offset: usize, fault: Fault) -> Self {
        let before = text.get(..offset.saturating_sub(1)).unwrap_or(text);
        let line_start = before
            .iter()
            .rposition(|&byte| byte == b'\n')
            .map_or(0, |index| index + 1);
        Self {
            fault,
            line: 1 + before.iter().filter(|&&byte| byte == b'\n').count(),
            column: before.len() - line_start + 1,
        }
    }

    fn from_serde(error: &serde_json::Error) -> Self {
        let text = error.to_string();
        let sentence = text.split(" at line ").next().unwrap_or(&text);
        let fault = match sentence {
            // serde_json says the second only where a leading half is not followed by an escape.
            "lone leading surrogate in hex escape" | "unexpected end of hex escape" => {
                Fault::LoneSurrogate
            }
            other => Fault::Syntax(other.to_owned()),
        };
        Self {
            fault,
            line: error.line(),
            column: error.column(),
        }
    }
}

fn read<'de, R: serde_json::de::Read<'de>>(
    mut source: serde_json::Deserializer<R>,
    reading: &Reading<'_>,
) -> serde_json::Result<Value> {
    let value = Node { reading, depth: 0 }.deserialize(&mut source)?;
    source.end()?;
    Ok(value)
}

/// One reading of one text.
struct Reading<'a> {
    text: &'a [u8],
    limits: Limits,
    /// Bytes read so far, where somebody counts.
    consumed: Option<&'a Cell<usize>>,
    /// The fault that this file found, and how many bytes were read then.
    fault: RefCell<Option<(usize, Fault)>>,
}

impl<'a> Reading<'a> {
    fn new(text: &'a [u8], limits: Limits, consumed: Option<&'a Cell<usize>>) -> Self {
        Self {
            text,
            limits,
            consumed,
            fault: RefCell::new(None),
        }
    }

    /// Ends the reading. The text of the error is never seen; the fault is.
    fn refuse<E: de::Error>(&self, offset: usize, fault: Fault) -> E {
        self.fault.replace(Some((offset, fault)));
        E::custom("refused")
    }

    fn offset(&self) -> usize {
        self.consumed.map_or(0, Cell::get)
    }

    /// Bytes up to the end of the number that was just read: one more may have been looked at.
    fn number_end(&self) -> usize {
        let offset = self.offset();
        match offset.checked_sub(1).and_then(|last| self.text.get(last)) {
            Some(byte) if !byte.is_ascii_digit() => offset - 1,
            _ => offset,
        }
    }

    /// Whether the number that was just read was written without fraction and exponent. Without a
    /// count the answer is yes, which leads to a second reading.
    fn is_integer_literal(&self) -> bool {
        let read = self.text.get(..self.number_end()).unwrap_or_default();
        read.iter()
            .rev()
            .take_while(|byte| byte.is_ascii_digit() || b"+-.eE".contains(byte))
            .all(|byte| !b".eE".contains(byte))
    }
}

/// One value at some depth: the seed and the visitor of every level.
#[derive(Clone, Copy)]
struct Node<'a> {
    reading: &'a Reading<'a>,
    /// How many arrays and objects this value is in.
    depth: usize,
}

impl Node<'_> {
    fn descend<E: de::Error>(self) -> Result<Self, E> {
        let depth = self.reading.limits.depth;
        if self.depth >= depth {
            return Err(self
                .reading
                .refuse(self.reading.offset(), Fault::TooDeep { depth }));
        }
        Ok(Self {
            depth: self.depth + 1,
            ..self
        })
    }

    fn beyond_range<E: de::Error>(self) -> E {
        self.reading
            .refuse(self.reading.number_end(), Fault::IntegerBeyondRange)
    }
}

impl<'de> DeserializeSeed<'de> for Node<'_> {
    type Value = Value;

    fn deserialize<D: de::Deserializer<'de>>(self, source: D) -> Result<Value, D::Error> {
        source.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_> {
    type Value = Value;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Value, E> {
        if value > MAX_SAFE_INTEGER {
            return Err(self.beyond_range());
        }
        Ok(value.into())
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Value, E> {
        if value.unsigned_abs() > MAX_SAFE_INTEGER {
            return Err(self.beyond_range());
        }
        Ok(value.into())
    }

    #[expect(clippy::cast_precision_loss, reason = "2^53 − 1 is a double")]
    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Value, E> {
        let size = value.abs();
        // Every double of this size is a whole number.
        if size > MAX_SAFE_INTEGER as f64
            && (size < EXPONENT_FROM || self.reading.is_integer_literal())
        {
            return Err(self.beyond_range());
        }
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut source: A) -> Result<Value, A::Error> {
        let inner = self.descend()?;
        let mut items = Vec::new();
        while let Some(item) = source.next_element_seed(inner)? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut source: A) -> Result<Value, A::Error> {
        let inner = self.descend()?;
        let mut members = Map::new();
        while let Some(name) = source.next_key::<String>()? {
            if members.contains_key(&name) {
                let name = name.chars().take(NAME_CHARS).collect();
                let offset = self.reading.offset();
                return Err(self.reading.refuse(offset, Fault::DuplicateMember { name }));
            }
            let value = source.next_value_seed(inner)?;
            members.insert(name, value);
        }
        Ok(Value::Object(members))
    }
}

/// The text as a stream that counts what was taken from it.
struct Counting<'a> {
    rest: &'a [u8],
    consumed: &'a Cell<usize>,
}

impl io::Read for Counting<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = io::Read::read(&mut self.rest, buffer)?;
        self.consumed.set(self.consumed.get() + count);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> (Fault, usize, usize) {
        let error = parse(text.as_bytes()).expect_err(text);
        (error.fault, error.line, error.column)
    }

    fn twice(name: &str) -> Fault {
        Fault::DuplicateMember {
            name: name.to_owned(),
        }
    }

    /// SCHEMA-5
    #[test]
    fn a_member_that_comes_twice_is_refused_at_its_second_name() {
        assert_eq!(refused(r#"{"a":1,"a":2}"#), (twice("a"), 1, 10));
        assert_eq!(
            refused("{\"a\":1,\n  \"b\":2,\n  \"a\" : 3}"),
            (twice("a"), 3, 5)
        );
        assert_eq!(refused(r#"{"a":1,"\u0061":2}"#), (twice("a"), 1, 15));
        assert_eq!(refused(r#"[{"é":{"x":1,"x":1}}]"#), (twice("x"), 1, 17));
        assert_eq!(refused(r#"{"":0,"":0}"#), (twice(""), 1, 8));
        assert_eq!(
            parse(br#"{"a":{"a":1},"b":[{"a":1},{"a":1}]}"#).unwrap()["b"][1]["a"],
            1
        );
        let long = "n".repeat(500);
        let (fault, _, _) = refused(&format!(r#"{{"{long}":0,"{long}":0}}"#));
        assert_eq!(fault, twice(&"n".repeat(64)));
    }

    /// SCHEMA-5
    #[test]
    fn an_integer_beyond_2_53_minus_1_is_refused_at_its_last_digit() {
        for good in [
            "9007199254740991",
            "-9007199254740991",
            "9007199254740991.0",
            "9007199254740990.5",
            "1e15",
            "1E30",
            "-1e21",
            "1.7976931348623157e308",
            "333333333.33333329",
            "-0",
        ] {
            assert!(parse(good.as_bytes()).is_ok(), "{good}");
            assert!(parse(format!("[{good} ,0]").as_bytes()).is_ok(), "{good}");
        }
        for bad in [
            "9007199254740992",
            "-9007199254740992",
            "9007199254740993",
            "9223372036854775808",
            "-9223372036854775809",
            "18446744073709551615",
            "18446744073709551616",
            "100000000000000000000000000000",
            "9007199254740992.0",
            "1e17",
        ] {
            assert_eq!(
                refused(bad),
                (Fault::IntegerBeyondRange, 1, bad.len()),
                "{bad}"
            );
            for text in [
                format!("[{bad}]"),
                format!("[{bad} , 1]"),
                format!("[{bad},1e30]"),
            ] {
                assert_eq!(
                    refused(&text),
                    (Fault::IntegerBeyondRange, 1, bad.len() + 1),
                    "{text}"
                );
            }
            assert_eq!(
                refused(&format!("{{\n\"a\":[1,\n{bad}\n]}}")),
                (Fault::IntegerBeyondRange, 3, bad.len())
            );
        }
    }

    /// SCHEMA-5
    #[test]
    fn a_lone_surrogate_is_refused() {
        for bad in [
            r#""\ud800""#,
            r#""\udc00""#,
            r#""\ud800x""#,
            r#""\ud800\ud800""#,
            r#""\ud800\n""#,
            r#"{"\udead":1}"#,
        ] {
            let (fault, line, column) = refused(bad);
            assert_eq!((fault, line), (Fault::LoneSurrogate, 1), "{bad}");
            assert!((7..=14).contains(&column), "{bad}: {column}");
        }
        assert_eq!(parse(br#""\ud83c\udf0a""#).unwrap(), "\u{1f30a}");
    }

    /// SCHEMA-5
    #[test]
    fn what_is_nested_too_deep_is_refused_at_the_bracket() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(parse(nested(32).as_bytes()).is_ok());
        assert_eq!(refused(&nested(33)), (Fault::TooDeep { depth: 32 }, 1, 33));
        assert_eq!(
            refused(&nested(30_000)),
            (Fault::TooDeep { depth: 32 }, 1, 33)
        );
        let objects = format!("{}1{}", "{\"a\":".repeat(33), "}".repeat(33));
        assert_eq!(
            refused(&objects),
            (Fault::TooDeep { depth: 32 }, 1, 32 * 5 + 1)
        );
        let own = Limits {
            bytes: 10,
            depth: 0,
        };
        assert!(parse_within(b"1", own).is_ok());
        assert!(parse_within(b"[]", own).is_err());
        assert!(parse_within(nested(127).as_bytes(), Limits::NONE).is_ok());
        assert!(parse_within(nested(1_000_000).as_bytes(), Limits::NONE).is_err());
    }

    /// SCHEMA-5
    #[test]
    fn a_text_too_long_is_refused_at_the_first_byte_too_many() {
        let padded = |bytes: usize| format!("1{}", " ".repeat(bytes - 1));
        assert!(parse(padded(65_536).as_bytes()).is_ok());
        assert_eq!(
            refused(&padded(65_537)),
            (Fault::TooLong { bytes: 65_536 }, 1, 65_537)
        );
        assert_eq!(
            refused(&format!("1\n\n{}", " ".repeat(65_536))),
            (Fault::TooLong { bytes: 65_536 }, 3, 65_534)
        );
    }

    /// SCHEMA-5: what is no JSON at all keeps serde_json's sentence and place.
    #[test]
    fn other_faults_are_serde_jsons() {
        for bad in [
            "",
            " ",
            "{",
            "[1,]",
            "{\"a\" 1}",
            "nul",
            "01",
            "1 2",
            "\u{feff}1",
            "\"\u{1}\"",
            "\"\\x\"",
            "[1\n,\n}",
            "1e400",
            "NaN",
            "'a'",
        ] {
            let ours = parse(bad.as_bytes()).expect_err(bad);
            let theirs = serde_json::from_str::<Value>(bad).expect_err(bad);
            assert_eq!(
                (ours.line, ours.column),
                (theirs.line(), theirs.column()),
                "{bad:?}"
            );
            assert_eq!(ours.to_string(), theirs.to_string());
        }
        assert!(parse(b"\"\xff\"").is_err());
        assert!(parse(b"\"\xed\xa0\x80\"").is_err(), "a surrogate in UTF-8");
    }
}
