//! The catalog: every message schema, compiled once, and the question whether a message fits
//! (SCHEMA-1, SCHEMA-2).
//!
//! It judges values. Turning bytes into a value, with the faults that only bytes can have, is
//! [`crate::strict`]'s work. [`Schema::compile`] takes any other document as well, so that a
//! program that has schemas of its own needs no second validator.

use std::{borrow::Cow, collections::HashMap, fmt, str::FromStr, sync::Arc};

use jsonschema::{Draft, PatternOptions, Registry, Validator};
use serde::Serialize;
use serde_json::Value;

use crate::documents::{BASE, ENVELOPE, PROXY, PROXY_BASE, TEXTS};

/// Longest sentence of a [`Violation`], in bytes. Messages come from outside and a member's name
/// can be as long as a message; a report must not grow with it.
const SENTENCE_BYTES: usize = 400;

/// Most [`Violation`]s that the catalog tells of one message. A message can have a fault in each of
/// tens of thousands of places, and a report of them all would be a hundred times its size.
pub const MOST_VIOLATIONS: usize = 100;

/// Every schema of the chat protocol under one base URL. Built once and shared; judging takes
/// `&self`.
pub struct Catalog {
    base: String,
    /// The text of each message schema as it stands under `base`, in the order of [`TEXTS`].
    texts: Vec<(&'static str, Cow<'static, str>)>,
    /// The same of the proxy's own documents, which are not compiled.
    proxy: Vec<(&'static str, Cow<'static, str>)>,
    schemas: HashMap<&'static str, Schema>,
}

impl Catalog {
    /// The catalog as the files have it, under [`BASE`].
    ///
    /// # Errors
    /// As [`Catalog::with_base`]. The files are tested, so none is to be expected.
    pub fn new() -> Result<Self, CatalogError> {
        Self::with_base(BASE)
    }

    /// The catalog with `base` in the place of [`BASE`]: the prefix of each `$id` changes and
    /// nothing else (SCHEMA-2). A trailing slash of `base` makes no difference. Nothing is fetched
    /// from there.
    ///
    /// # Errors
    /// [`CatalogError::Base`] unless `base` is an absolute URI (RFC 3986 §4.3) with an authority,
    /// without query and empty segments, in its normal form (§6.2.2): no capitals in the host.
    pub fn with_base(base: &str) -> Result<Self, CatalogError> {
        let base = checked_base(base)?;
        let rebased = |texts: &[(&'static str, &'static str)], old| -> Vec<_> {
            let each = texts.iter();
            each.map(|&(name, text)| (name, rebase(text, old, &base)))
                .collect()
        };
        let texts = rebased(TEXTS, BASE);
        // Where the messages stay under their base, the proxy's documents stay under theirs.
        let proxy = rebased(PROXY, if base == BASE { BASE } else { PROXY_BASE });
        let mut documents = Vec::with_capacity(texts.len());
        for (name, text) in &texts {
            let document = serde_json::from_str(text).map_err(|error| CatalogError::Document {
                name: (*name).to_owned(),
                reason: error.to_string(),
            })?;
            documents.push(document);
        }
        let library = Arc::new(Library::new(documents)?);
        let registry = library.registry()?;
        let mut schemas = HashMap::with_capacity(texts.len());
        for ((name, _), document) in texts.iter().zip(&library.documents) {
            let schema = Schema::build(document, &registry, &library, MOST_VIOLATIONS)?;
            schemas.insert(*name, schema);
        }
        Ok(Self {
            base,
            texts,
            proxy,
            schemas,
        })
    }

    /// The base URL, without a trailing slash.
    #[must_use]
    pub fn base(&self) -> &str {
        &self.base
    }

    /// The names of all message schemas: `message`, then `<family>/<name>` in a fixed order.
    pub fn names(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.texts.iter().map(|(name, _)| *name)
    }

    /// The names of the schemas of the proxy's own documents, `proxy/<name>`. The chat has no part
    /// in them; only [`Catalog::text`] knows them.
    pub fn proxy_names(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.proxy.iter().map(|(name, _)| *name)
    }

    /// The text of the file `name` under this catalog's base.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&str> {
        self.texts
            .iter()
            .chain(&self.proxy)
            .find(|(known, _)| *known == name)
            .map(|(_, text)| text.as_ref())
    }

    /// The compiled schema `name`, such as `message` or `s2c/001`.
    #[must_use]
    pub fn schema(&self, name: &str) -> Option<&Schema> {
        self.schemas.get(name)
    }

    /// Judges `message` by the schema that its family and its command name.
    ///
    /// A command that the family does not have is a violation at `/command`. Where there is no
    /// usable command, the violations are those of the envelope.
    ///
    /// # Errors
    /// Every [`Violation`] found, at least one and at most [`MOST_VIOLATIONS`].
    pub fn validate(&self, family: Family, message: &Value) -> Result<(), Vec<Violation>> {
        let command = message.get("command").and_then(Value::as_str);
        if let Some(schema) = command.and_then(|command| self.message_schema(family, command)) {
            return schema.validate(message);
        }
        let mut violations = match self.schemas.get(ENVELOPE) {
            Some(envelope) => envelope.validate(message).err().unwrap_or_default(),
            None => Vec::new(),
        };
        if violations.is_empty() {
            violations.push(Violation {
                instance_path: "/command".to_owned(),
                schema_location: format!(
                    "{}/schema/{ENVELOPE}.schema.json#/properties/command",
                    self.base
                ),
                keyword: "enum".to_owned(),
                sentence: format!("The family {family} has no such command."),
            });
        }
        Err(violations)
    }

    /// The schema of `command` in `family`. Commands are upper case, files are not.
    fn message_schema(&self, family: Family, command: &str) -> Option<&Schema> {
        if command.bytes().any(|byte| byte.is_ascii_lowercase()) {
            return None;
        }
        let name = format!("{family}/{}", command.to_ascii_lowercase());
        self.schemas.get(name.as_str())
    }
}

impl fmt::Debug for Catalog {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Catalog")
            .field("base", &self.base)
            .field("schemas", &self.schemas.len())
            .finish()
    }
}

/// Between whom a message travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// Client to server.
    C2s,
    /// Server to client.
    S2c,
    /// Server to server.
    S2s,
}

impl Family {
    /// All families, in the order of the index.
    pub const ALL: [Self; 3] = [Self::C2s, Self::S2c, Self::S2s];

    /// The family's name, which is its folder: `c2s`, `s2c` or `s2s`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::C2s => "c2s",
            Self::S2c => "s2c",
            Self::S2s => "s2s",
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

impl FromStr for Family {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|family| family.name().eq_ignore_ascii_case(name))
            .ok_or_else(|| "a family is c2s, s2c or s2s".to_owned())
    }
}

/// One compiled schema.
pub struct Schema {
    validator: Validator,
    library: Arc<Library>,
    /// Most violations that are told of one value.
    most: usize,
}

impl Schema {
    /// Compiles any JSON Schema of draft 2020-12. A `$ref` reaches into `document` itself and into
    /// `others`, each of which needs an absolute `$id`; nothing is ever fetched. `format` is
    /// checked, not only noted. Patterns run in linear time; look-around and back references are
    /// refused.
    ///
    /// # Errors
    /// [`CatalogError::Document`] with what is wrong: no valid schema by the meta-schema, a `$ref`
    /// that leads nowhere, a pattern that is none.
    pub fn compile(document: &Value, others: &[Value]) -> Result<Self, CatalogError> {
        let documents = std::iter::once(document).chain(others).cloned().collect();
        let library = Arc::new(Library::new(documents)?);
        let registry = library.registry()?;
        Self::build(document, &registry, &library, usize::MAX)
    }

    /// The same for the text of a document that stands alone.
    ///
    /// # Errors
    /// As [`Schema::compile`], and where the text is no JSON.
    pub fn parse(text: &str) -> Result<Self, CatalogError> {
        let document = serde_json::from_str(text).map_err(|error| CatalogError::Document {
            name: "the text".to_owned(),
            reason: error.to_string(),
        })?;
        Self::compile(&document, &[])
    }

    fn build(
        document: &Value,
        registry: &Registry<'_>,
        library: &Arc<Library>,
        most: usize,
    ) -> Result<Self, CatalogError> {
        let validator = jsonschema::options()
            .with_draft(Draft::Draft202012)
            .with_registry(registry)
            .offline()
            .should_validate_formats(true)
            .should_ignore_unknown_formats(false)
            .with_pattern_options(PatternOptions::regex())
            .build(document)
            .map_err(|error| CatalogError::Document {
                name: Library::id(document).unwrap_or("without $id").to_owned(),
                reason: format!("{}: {error}", error.instance_path()),
            })?;
        Ok(Self {
            validator,
            library: Arc::clone(library),
            most,
        })
    }

    /// Judges `value`.
    ///
    /// # Errors
    /// Every [`Violation`] found, at least one, in the order in which the schema was walked; by a
    /// schema of the catalog at most [`MOST_VIOLATIONS`].
    pub fn validate(&self, value: &Value) -> Result<(), Vec<Violation>> {
        // The plain verdict allocates nothing; most messages are valid.
        if self.validator.is_valid(value) {
            return Ok(());
        }
        Err(self
            .validator
            .iter_errors(value)
            .take(self.most)
            .map(|error| self.violation(&error))
            .collect())
    }

    fn violation(&self, error: &jsonschema::ValidationError<'_>) -> Violation {
        let schema_location = error.absolute_keyword_location().map_or_else(
            || error.schema_path().as_str().to_owned(),
            ToString::to_string,
        );
        // The validator reports `dependentRequired` as `required`; the location knows better.
        let keyword = if error.schema_path().as_str().contains("/dependentRequired") {
            "dependentRequired"
        } else {
            error.kind().keyword()
        };
        // Masked: the value may be a secret, and is as long as its sender likes.
        let mut sentence = capitalised(&error.masked_with("the value").to_string());
        if let Some(Value::Array(allowed)) = self.library.at(&schema_location)
            && keyword == "enum"
        {
            // The validator names two of them, and how many there are.
            let allowed: Vec<String> = allowed.iter().map(ToString::to_string).collect();
            sentence = format!("The value is not one of {}.", allowed.join(", "));
        }
        if let Some(description) = self.library.description(&schema_location) {
            // The words say it; the validator would quote the pattern or the keyword.
            if matches!(keyword, "pattern" | "not" | "anyOf" | "oneOf" | "contains") {
                "The value does not fit.".clone_into(&mut sentence);
            }
            sentence.push_str(" Expected: ");
            sentence.push_str(description);
        }
        Violation {
            instance_path: error.instance_path().as_str().to_owned(),
            schema_location,
            keyword: keyword.to_owned(),
            sentence: shortened(sentence),
        }
    }
}

impl fmt::Debug for Schema {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Schema").finish_non_exhaustive()
    }
}

/// One place where a value does not fit its schema.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// Where in the value: a JSON Pointer (RFC 6901), empty for the whole.
    pub instance_path: String,
    /// Which keyword of which schema: an absolute URI with a JSON Pointer as its fragment.
    pub schema_location: String,
    /// The keyword that failed, such as `required`.
    pub keyword: String,
    /// What is wrong, for people. It never repeats the offending value; it may name members. At
    /// most 400 bytes.
    pub sentence: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.instance_path.is_empty() {
            write!(out, "the whole: {}", self.sentence)
        } else {
            write!(out, "{}: {}", self.instance_path, self.sentence)
        }
    }
}

/// Why there is no catalog or no schema.
#[derive(Debug, thiserror::Error)]
pub enum CatalogError {
    /// The base URL is not one.
    #[error(
        "the base {base:?} is not an absolute URL in normal form without query and fragment, such as {BASE}: {reason}"
    )]
    Base {
        /// What was given.
        base: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A document is no schema.
    #[error("the schema {name} cannot be used: {reason}")]
    Document {
        /// The document's `$id` or name.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
}

/// The documents that may refer to one another, kept for their descriptions.
struct Library {
    documents: Vec<Value>,
    /// Which document an `$id` names.
    by_id: HashMap<String, usize>,
}

impl Library {
    fn new(documents: Vec<Value>) -> Result<Self, CatalogError> {
        let mut by_id = HashMap::with_capacity(documents.len());
        for (index, document) in documents.iter().enumerate() {
            let Some(id) = Self::id(document) else {
                continue;
            };
            if by_id.insert(id.to_owned(), index).is_some() {
                return Err(CatalogError::Document {
                    name: id.to_owned(),
                    reason: "two documents have this $id".to_owned(),
                });
            }
        }
        Ok(Self { documents, by_id })
    }

    fn id(document: &Value) -> Option<&str> {
        document.get("$id").and_then(Value::as_str)
    }

    fn registry(&self) -> Result<Registry<'_>, CatalogError> {
        let pairs = self
            .documents
            .iter()
            .filter_map(|document| Self::id(document).map(|id| (id, document)));
        Registry::new()
            .draft(Draft::Draft202012)
            .extend(pairs)
            .and_then(jsonschema::RegistryBuilder::prepare)
            .map_err(|error| CatalogError::Document {
                name: "among several".to_owned(),
                reason: error.to_string(),
            })
    }

    /// The description of the subschema whose keyword stands at `location`.
    fn description(&self, location: &str) -> Option<&str> {
        let (parent, _) = location.rsplit_once('/')?;
        if parent.ends_with('#') {
            return None; // the document's own description says too much for one violation
        }
        self.at(parent)?.get("description")?.as_str()
    }

    /// What stands at `location`.
    fn at(&self, location: &str) -> Option<&Value> {
        let (id, pointer) = location.split_once('#')?;
        let document = self.documents.get(*self.by_id.get(id)?)?;
        document.pointer(&pointer.replace("%24", "$"))
    }
}

fn checked_base(base: &str) -> Result<String, CatalogError> {
    let error = |reason: &str| CatalogError::Base {
        base: base.to_owned(),
        reason: reason.to_owned(),
    };
    // Judged without the slashes at the end: of `https://` only a scheme is left.
    let trimmed = base.trim_end_matches('/');
    let uri = jsonschema::Uri::parse(trimmed).map_err(|reason| error(&reason.to_string()))?;
    if uri.query().is_some() || uri.fragment().is_some() {
        return Err(error("it has a query or a fragment"));
    }
    if uri.authority().is_none() {
        return Err(error("it has no host"));
    }
    // Validators write an address in its normal form (RFC 3986 §6.2.2) before they look it up,
    // some only that of a `$ref`, which then finds no `$id` that is written otherwise.
    let normal = uri.normalize();
    if normal != trimmed {
        return Err(error(&format!("its normal form is {normal}")));
    }
    // Some resolve `..` to another folder behind such a segment.
    if uri.path().as_str().contains("//") {
        return Err(error("its path has an empty segment"));
    }
    Ok(trimmed.to_owned())
}

/// `text` with the base `old` of its `$id` replaced. As text, so that everything else stays byte
/// for byte.
fn rebase(text: &'static str, old: &str, base: &str) -> Cow<'static, str> {
    if base == old {
        return Cow::Borrowed(text);
    }
    let old = format!("\"$id\": \"{old}/");
    let new = format!("\"$id\": \"{base}/");
    Cow::Owned(text.replacen(&old, &new, 1))
}

fn capitalised(sentence: &str) -> String {
    let mut letters = sentence.chars();
    let mut out: String = letters
        .next()
        .map(|first| first.to_uppercase().to_string())
        .unwrap_or_default();
    out.push_str(letters.as_str());
    if !out.ends_with('.') {
        out.push('.');
    }
    out
}

fn shortened(mut sentence: String) -> String {
    if sentence.len() > SENTENCE_BYTES {
        let mut end = SENTENCE_BYTES - '…'.len_utf8();
        while !sentence.is_char_boundary(end) {
            end -= 1;
        }
        sentence.truncate(end);
        sentence.push('…');
    }
    sentence
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// SCHEMA-2
    #[test]
    fn a_base_is_an_absolute_url_without_query_and_fragment() {
        for bad in [
            "",
            "weir",
            "/a",
            "https://a b/",
            "https://a/?q",
            "https://a/#f",
            "urn:x",
            "https://a/\"",
            "https://",
            "https:///",
            "https://a/./b",
            "https://a/b/../",
        ] {
            assert!(
                matches!(Catalog::with_base(bad), Err(CatalogError::Base { .. })),
                "{bad:?}"
            );
        }
        let catalog = Catalog::with_base("https://chat.example/v1/").unwrap();
        assert_eq!(catalog.base(), "https://chat.example/v1");
    }

    /// SCHEMA-2: a further document may refer to others, and only to those that were given.
    #[test]
    fn further_documents_are_compiled_by_the_same_means() {
        let other = json!({ "$id": "https://a.example/other", "type": "integer" });
        let document =
            json!({ "$id": "https://a.example/one", "properties": { "n": { "$ref": "other" } } });
        let schema = Schema::compile(&document, std::slice::from_ref(&other)).unwrap();
        assert!(schema.validate(&json!({ "n": 1 })).is_ok());
        let violations = schema.validate(&json!({ "n": "x" })).unwrap_err();
        assert_eq!(violations[0].instance_path, "/n");
        assert_eq!(
            violations[0].schema_location,
            "https://a.example/other#/type"
        );
        let nameless = Schema::compile(&json!({ "type": "integer" }), &[]).unwrap();
        assert!(nameless.validate(&json!(1)).is_ok());
        assert_eq!(
            nameless.validate(&json!("x")).unwrap_err()[0].keyword,
            "type"
        );
        assert!(Schema::compile(&document, &[]).is_err());
        assert!(Schema::compile(&json!({ "type": "strin" }), &[]).is_err());
        assert!(Schema::compile(&json!({ "pattern": "a(?=b)" }), &[]).is_err());
        assert!(Schema::compile(&json!({ "format": "colour" }), &[]).is_err());
        assert!(Schema::compile(&other, std::slice::from_ref(&other)).is_err());
    }

    /// SCHEMA-1: what is reported neither repeats the value nor grows with it.
    #[test]
    fn a_sentence_is_short_and_keeps_the_value_to_itself() {
        let catalog = Catalog::new().unwrap();
        let secret = "s3cret word ".repeat(100);
        let message = json!({ "command": "QUIT", "from": secret, "é".repeat(5000): 1 });
        let violations = catalog.validate(Family::C2s, &message).unwrap_err();
        for violation in &violations {
            assert!(violation.sentence.len() <= SENTENCE_BYTES, "{violation}");
            assert!(!violation.sentence.contains("s3cret"), "{violation}");
        }
        let from = violations.iter().find(|v| v.keyword == "not").unwrap();
        assert_eq!(from.instance_path, "/from");
        assert!(from.sentence.contains("without space, comma"), "{from}");
    }

    /// SCHEMA-1: a sentence says what is allowed, in words.
    #[test]
    fn a_sentence_says_what_is_allowed() {
        let catalog = Catalog::new().unwrap();
        for (family, message, path, sentence) in [
            (
                Family::C2s,
                json!({ "command": "PRIVMSG", "to": "#weir", "body": [""] }),
                "/body",
                "The value does not fit. Expected: Lines of which at least one is not empty.",
            ),
            (
                Family::S2s,
                json!({
                    "command": "RELAY", "from": "a.example",
                    "body": { "message": { "command": "RELAY" } },
                }),
                "/body/message/command",
                "The value does not fit. Expected: Any command but RELAY.",
            ),
            (
                Family::C2s,
                json!({
                    "command": "QUIT", "from": "alice", "ts": "2026-03-01T12:00:00Z",
                    "meta": { "alg": "ed25519", "kid": "A".repeat(43), "sig": "A".repeat(86) },
                }),
                "",
                "\"id\" is a required property. Expected: A message with meta.sig has id, ts and from.",
            ),
            (
                Family::S2c,
                json!({ "command": "322", "to": "alice", "params": ["#weir", "01"] }),
                "/params/1",
                "The value does not fit. Expected: How many are in the channel: decimal digits \
                 without a zero in front, at most 999999999.",
            ),
        ] {
            let violations = catalog.validate(family, &message).unwrap_err();
            assert_eq!(violations.len(), 1, "{violations:#?}");
            assert_eq!(violations[0].instance_path, path);
            assert_eq!(violations[0].sentence, sentence);
        }
    }

    /// SCHEMA-1: a report does not grow with the faults of a message. A schema of one's own tells
    /// all.
    #[test]
    fn the_violations_of_one_message_are_bounded() {
        let catalog = Catalog::new().unwrap();
        let message = json!({
            "command": "SYNC", "from": "a.example", "to": "b.example",
            "body": { "part": 1, "last": true, "users": vec![json!({}); 20_000] },
        });
        for violations in [
            catalog.validate(Family::S2s, &message),
            catalog.schema("s2s/sync").unwrap().validate(&message),
            catalog.schema("message").unwrap().validate(&json!({
                "command": "X", "params": vec![""; 20_000],
            })),
        ] {
            assert_eq!(violations.unwrap_err().len(), MOST_VIOLATIONS);
        }
        let own = Schema::compile(&json!({ "items": { "type": "string" } }), &[]).unwrap();
        let violations = own.validate(&json!(vec![1; 500])).unwrap_err();
        assert_eq!(violations.len(), 500);
    }

    /// SCHEMA-1: a command in lower case is not another spelling of the command.
    #[test]
    fn an_unknown_command_is_a_violation_at_the_command() {
        let catalog = Catalog::new().unwrap();
        for (family, command) in [
            (Family::C2s, "RELAY"),
            (Family::S2s, "001"),
            (Family::C2s, "X"),
        ] {
            let violations = catalog
                .validate(family, &json!({ "command": command }))
                .unwrap_err();
            assert_eq!(violations.len(), 1);
            assert_eq!(violations[0].instance_path, "/command");
            assert_eq!(violations[0].keyword, "enum");
        }
        for (message, path, keyword) in [
            (json!({ "command": "quit" }), "/command", "pattern"),
            (json!({ "command": "../message" }), "/command", "pattern"),
            (json!({ "command": 1 }), "/command", "type"),
            (json!({}), "", "required"),
            (json!("QUIT"), "", "type"),
        ] {
            let violations = catalog.validate(Family::C2s, &message).unwrap_err();
            assert_eq!(violations[0].instance_path, path);
            assert_eq!(violations[0].keyword, keyword);
        }
    }
}
