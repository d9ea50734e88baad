//! Strict JSON: a repeated member is a fault, while serde_json alone would silently keep the last
//! one. Also finds the place of a value in a text.

use std::fmt;

use serde::de::{DeserializeSeed, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_json::map::{Entry, Map};
use serde_path_to_error::{Deserializer as Tracked, Path, Segment, Track};
use weir_schema::Violation;

/// A value without repeated members at any level.
pub(crate) struct Strict(pub(crate) Value);

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(StrictVisitor).map(Self)
    }
}

struct StrictVisitor;

impl<'de> Visitor<'de> for StrictVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(Strict(item)) = list.next_element()? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut members = Map::new();
        while let Some(name) = map.next_key::<String>()? {
            match members.entry(name) {
                Entry::Vacant(place) => {
                    let Strict(value) = map.next_value()?;
                    place.insert(value);
                }
                Entry::Occupied(held) => map.next_value_seed(Twice(held.key()))?,
            }
        }
        Ok(Value::Object(members))
    }
}

/// Refuses the value of a repeated member, so that the error points at it.
pub(crate) struct Twice<'a>(pub(crate) &'a str);

impl<'de> DeserializeSeed<'de> for Twice<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        let message = format!("duplicate member \"{}\"", self.0);
        deserializer.deserialize_any(Refuse(&message))
    }
}

/// Reads a whole value and fails inside of it, because serde_json notes the place there.
struct Refuse<'a>(&'a str);

impl Refuse<'_> {
    fn here<E: serde::de::Error>(self) -> Result<(), E> {
        Err(E::custom(self.0))
    }
}

impl<'de> Visitor<'de> for Refuse<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<(), E> {
        self.here()
    }

    fn visit_bool<E: serde::de::Error>(self, _: bool) -> Result<(), E> {
        self.here()
    }

    fn visit_u64<E: serde::de::Error>(self, _: u64) -> Result<(), E> {
        self.here()
    }

    fn visit_i64<E: serde::de::Error>(self, _: i64) -> Result<(), E> {
        self.here()
    }

    fn visit_f64<E: serde::de::Error>(self, _: f64) -> Result<(), E> {
        self.here()
    }

    fn visit_str<E: serde::de::Error>(self, _: &str) -> Result<(), E> {
        self.here()
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        self.here()
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        self.here()
    }
}

/// Why a text or a value was refused, and the place.
pub(crate) struct Refused {
    /// JSON Pointer (RFC 6901); empty for the whole.
    pub(crate) pointer: String,
    pub(crate) error: serde_json::Error,
}

/// Reads `text` with `seed`, and returns the place of the fault.
///
/// Following the path costs an allocation for each member: this is for a second reading, after a
/// refusal.
pub(crate) fn explain<'de, S: DeserializeSeed<'de>>(
    seed: S,
    text: &'de [u8],
) -> Result<S::Value, Refused> {
    let mut json = serde_json::Deserializer::from_slice(text);
    let mut track = Track::new();
    let read = seed.deserialize(Tracked::new(&mut json, &mut track));
    let pointer = match &read {
        Ok(_) => String::new(),
        Err(_) => pointer(&track.path()),
    };
    read.and_then(|value| json.end().map(|()| value))
        .map_err(|error| Refused { pointer, error })
}

/// The sentence of an error, without its place.
pub(crate) fn sentence(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    text.strip_suffix(&place).unwrap_or(&text).to_owned()
}

/// The sentence about a missing required member.
pub(crate) fn missing(fault: &Violation) -> Option<String> {
    let (name, _) = (fault.sentence.strip_prefix('"')?).split_once("\" is a required property")?;
    (fault.keyword == "required").then(|| format!("expected a member {name:?}"))
}

/// RFC 6901 §3
pub(crate) fn pointer(path: &Path) -> String {
    let mut pointer = String::new();
    for segment in path.iter() {
        match segment {
            Segment::Seq { index } => pointer.push_str(&format!("/{index}")),
            Segment::Map { key } | Segment::Enum { variant: key } => {
                pointer.push_str(&member(key));
            }
            Segment::Unknown => {}
        }
    }
    pointer
}

/// A member's part of a pointer.
pub(crate) fn member(name: &str) -> String {
    format!("/{}", name.replace('~', "~0").replace('/', "~1"))
}

/// Line and column of the end of what `pointer` names in `text`.
pub(crate) fn place(text: &[u8], pointer: &str) -> (usize, usize) {
    let mut json = serde_json::Deserializer::from_slice(text);
    let found = Find(pointer).deserialize(&mut json);
    found.map_or_else(|error| (error.line(), error.column()), |()| (1, 0))
}

/// Follows a pointer and fails at its end, so that the error has the place.
struct Find<'a>(&'a str);

impl Find<'_> {
    /// The rest of the pointer, if its first part is `name`.
    fn below(&self, name: &str) -> Option<Self> {
        let rest = self.0.strip_prefix(&member(name))?;
        (rest.is_empty() || rest.starts_with('/')).then_some(Self(rest))
    }
}

impl<'de> DeserializeSeed<'de> for Find<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        if self.0.is_empty() {
            return deserializer.deserialize_any(Refuse("here"));
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Find<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("what the pointer names")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key::<String>()? {
            match self.below(&name) {
                Some(below) => map.next_value_seed(below)?,
                None => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Err(A::Error::custom("not there"))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let mut index = 0_usize;
        loop {
            let found = match self.below(&index.to_string()) {
                Some(below) => list.next_element_seed(below)?,
                None => list.next_element::<IgnoredAny>()?.map(drop),
            };
            if found.is_none() {
                return Err(A::Error::custom("not there"));
            }
            index += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// STATE-5: a pointer leads to the end of the value it names, even with escaped names.
    #[test]
    fn a_pointer_has_a_place() {
        let text = b"{\"a/b\": {\"~\": [1,\n 22, {\"x\": null}]},\n\"c\": 7}";
        for (pointer, place_of) in [
            ("", (3, 7)),
            ("/a~1b", (2, 18)),
            ("/a~1b/~0/0", (1, 16)),
            ("/a~1b/~0/1", (2, 3)),
            ("/a~1b/~0/2/x", (2, 15)),
            ("/c", (3, 6)),
        ] {
            assert_eq!(place(text, pointer), place_of, "{pointer}");
        }
    }

    /// STATE-5: a repeated member is refused at its second value, at every level; the same name in
    /// two objects is no fault.
    #[test]
    fn a_member_that_comes_twice_is_refused() {
        let read = |text: &'static str| {
            explain(std::marker::PhantomData::<Strict>, text.as_bytes())
                .map(|Strict(value)| value)
                .map_err(|refused| {
                    (
                        refused.pointer,
                        sentence(&refused.error),
                        refused.error.column(),
                    )
                })
        };
        let twice = |pointer: &str, name: &str, column| {
            Err((
                pointer.to_owned(),
                format!("duplicate member \"{name}\""),
                column,
            ))
        };
        assert_eq!(read(r#"{"a":1,"a":2}"#), twice("/a", "a", 12));
        assert_eq!(
            read(r#"[0,{"b":{"a":1,"\u0061":2}}]"#),
            twice("/1/b/a", "a", 25)
        );
        let sound =
            r#"{"a":{"a":[null,true,-1,1.5,18446744073709551615,"x"]},"b":[{"a":1},{"a":1}]}"#;
        assert_eq!(
            read(sound),
            Ok(json!({"a":{"a":[null,true,-1,1.5,u64::MAX,"x"]},"b":[{"a":1},{"a":1}]}))
        );
    }
}
