//! Sentences about what the schema of rules.json allows at a faulty value, in the style of the
//! other faults. A validator names keywords; the author of the file needs to know what to write.

use std::sync::LazyLock;

use serde_json::Value;
use weir_schema::Violation;

pub(super) const SCHEMA: &str = include_str!("../../../../schema/proxy/rules.schema.json");
/// The schema of lists.json, whose faults use the same sentences.
pub(in crate::rules) const LISTS_SCHEMA: &str =
    include_str!("../../../../schema/proxy/lists.schema.json");

/// The beginnings of serde's own messages, which name Rust types.
const RAW: [&str; 7] = [
    "missing field",
    "invalid type",
    "invalid value",
    "invalid length",
    "unknown variant",
    "unknown field",
    "duplicate field",
];

static RULES: LazyLock<Value> = LazyLock::new(|| serde_json::from_str(SCHEMA).unwrap_or_default());
static LISTS: LazyLock<Value> =
    LazyLock::new(|| serde_json::from_str(LISTS_SCHEMA).unwrap_or_default());

/// Whether a message comes from this program's readers, not from serde.
pub(super) fn is_ours(why: &str) -> bool {
    !RAW.iter().any(|raw| why.starts_with(raw))
}

/// The sentence about a text that is no JSON.
pub(super) fn syntax(why: String) -> String {
    match &*why {
        why if why.starts_with("EOF while parsing") => {
            "the text ends too early: expected all of a JSON object".to_owned()
        }
        "expected value" => "expected a JSON value".to_owned(),
        _ => why,
    }
}

/// The members that the object of an unknown member may have.
pub(super) fn members(fault: &Violation) -> Vec<&'static str> {
    let place = Place::of(fault);
    place.as_ref().map(Place::members).unwrap_or_default()
}

/// What is allowed at a faulty value; none if the schema's own message is better.
pub(super) fn allowed(fault: &Violation) -> Option<String> {
    let place = Place::of(fault)?;
    if let Some(words) = place.words(&fault.keyword) {
        return Some(format!("expected {words}"));
    }
    let words = match &*fault.keyword {
        "type" => match place.value.as_str()? {
            "integer" => place.whole_number(),
            "string" => "a text".to_owned(),
            "array" => "a list".to_owned(),
            "object" => "an object".to_owned(),
            "boolean" => "true or false".to_owned(),
            _ => return None,
        },
        "minimum" | "maximum" => place.whole_number(),
        "minItems" | "maxItems" => place.between("minItems", "maxItems", "entries"),
        "minLength" | "maxLength" => place.between("minLength", "maxLength", "characters"),
        "enum" => any_of(place.value.as_array()?.iter().map(ToString::to_string)),
        "minProperties" => format!("at least one of {}", all_of(&place.members())),
        "anyOf" => format!("at least one of {}", all_of(&place.required()?)),
        "oneOf" => format!(
            "{}, and no more than one",
            any_of(place.required()?.iter().map(|name| format!("{name:?}")))
        ),
        _ => return None,
    };
    Some(format!("expected {words}"))
}

/// A keyword of the schema.
struct Place<'f> {
    /// Its pointer in the schema.
    pointer: &'f str,
    /// The value of the keyword.
    value: &'static Value,
    /// The schema that contains it.
    around: &'static Value,
}

impl<'f> Place<'f> {
    fn of(fault: &'f Violation) -> Option<Self> {
        let (document, pointer) = fault.schema_location.split_once('#')?;
        let schema = match document.ends_with("lists.schema.json") {
            true => &*LISTS,
            false => &*RULES,
        };
        let (around, _) = pointer.rsplit_once('/')?;
        Some(Self {
            pointer,
            value: schema.pointer(pointer)?,
            around: schema.pointer(around)?,
        })
    }

    /// Sentences for places that no keyword describes well.
    fn words(&self, keyword: &str) -> Option<&'static str> {
        if keyword.starts_with("max") {
            return None;
        }
        let is = |end: &str| self.pointer.ends_with(&format!("/{end}/{keyword}"));
        let words = [
            ("$defs/ruleName", "1 to 32 small letters, digits, _ and -"),
            (
                "$defs/path",
                "a path that begins with / and has no blank, ?, # or \\",
            ),
            ("$defs/end", "RFC 3339 such as 2026-11-21T16:00:00Z"),
            (
                "per",
                r#""client", "netblock", "asn", "country", "all" or {"field": NAME}"#,
            ),
            (
                "query",
                r#""present", "absent" or a list of 1 to 64 names of 1 to 256 characters"#,
            ),
            ("answer", r#"a status from 400 to 599, or "drop""#),
            ("crawler", "a word or a list of 1 to 64 words"),
            ("verify", r#"the name of a feed, or {"dns": [NAME]}"#),
            ("spare_known", "a duration such as 10m, or off"),
            ("methods/items", "a method such as GET"),
            ("user_agent/items", "a text of 3 to 256 bytes"),
            ("has", "a text of 3 to 256 bytes"),
            (
                "countries/items",
                r#"two letters, such as "DE", or "unknown""#,
            ),
            ("asns/items", r#"a text such as "AS64496", or "unknown""#),
        ];
        let found = words.into_iter().find(|(end, _)| is(end));
        found.map(|(_, words)| words)
    }

    /// The members of the schema around it.
    fn members(&self) -> Vec<&'static str> {
        let members = self.around.get("properties").and_then(Value::as_object);
        let names = members.into_iter().flat_map(|members| members.keys());
        names.map(String::as_str).collect()
    }

    /// The one member that each of its alternatives requires; none if the alternatives have another
    /// form.
    fn required(&self) -> Option<Vec<&'static str>> {
        let alternatives = self.value.as_array()?.iter();
        let of = |one: &'static Value| one.get("required")?.get(0)?.as_str();
        alternatives.map(of).collect()
    }

    fn whole_number(&self) -> String {
        let bound = |keyword: &str| self.around.get(keyword).and_then(Value::as_u64);
        match (bound("minimum"), bound("maximum")) {
            (Some(least), Some(u64::MAX)) => format!("a whole number from {least}"),
            (Some(least), Some(most)) => format!("a whole number from {least} to {most}"),
            (Some(least), None) => format!("a whole number from {least}"),
            _ => "a whole number".to_owned(),
        }
    }

    fn between(&self, least: &str, most: &str, of: &str) -> String {
        let bound = |keyword: &str| self.around.get(keyword).and_then(Value::as_u64);
        match (bound(least), bound(most)) {
            (Some(least), Some(most)) => format!("{least} to {most} {of}"),
            (Some(least), None) => format!("at least {least} {of}"),
            (None, Some(most)) => format!("at most {most} {of}"),
            (None, None) => of.to_owned(),
        }
    }
}

/// `a, b or c`
fn any_of(words: impl Iterator<Item = String>) -> String {
    listed(words.collect(), "or")
}

/// `"a", "b" and "c"`
pub(super) fn all_of(names: &[&str]) -> String {
    listed(
        names.iter().map(|name| format!("{name:?}")).collect(),
        "and",
    )
}

fn listed(mut words: Vec<String>, joined: &str) -> String {
    let last = words.pop().unwrap_or_default();
    match words.is_empty() {
        true => last,
        false => format!("{} {joined} {last}", words.join(", ")),
    }
}
