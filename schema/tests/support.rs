//! What several tests need: the files of this crate and the examples, read from their folders and
//! not from the program, so that a file that was forgotten shows.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::LazyLock,
};

use serde_json::{Value, json};
use weir_schema::Catalog;

/// The catalog, which takes a moment to build without optimisation.
pub(crate) static CATALOG: LazyLock<Catalog> = LazyLock::new(|| Catalog::new().unwrap());

/// Every example of every schema.
pub(crate) static EXAMPLES: LazyLock<Vec<Examples>> = LazyLock::new(|| {
    schema_names()
        .into_iter()
        .map(|name| Examples::read(&name))
        .collect()
});

pub(crate) fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// `message`, then `<family>/<name>` by name, as the folders have them.
pub(crate) fn schema_names() -> Vec<String> {
    let mut names = vec!["message".to_owned()];
    for family in ["c2s", "s2c", "s2s"] {
        names.extend(names_in(family));
    }
    names
}

/// `proxy/<name>` by name.
pub(crate) fn proxy_names() -> Vec<String> {
    names_in("proxy")
}

fn names_in(family: &str) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder().join(family))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        // The description of the operator's requests is beside the schemas, and is none.
        .filter(|file| (family, file.as_str()) != ("proxy", "openapi.json"))
        .map(|file| {
            let name = file.strip_suffix(".schema.json");
            format!(
                "{family}/{}",
                name.unwrap_or_else(|| panic!("what is {file}?"))
            )
        })
        .collect();
    names.sort();
    names
}

pub(crate) fn schema_path(name: &str) -> PathBuf {
    folder().join(format!("{name}.schema.json"))
}

pub(crate) fn read_json(path: &Path) -> Value {
    let text = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    // Strictly: a member twice in one of our own files would hide one of the two.
    weir_schema::strict::parse_within(&text, weir_schema::strict::Limits::NONE)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub(crate) struct Examples {
    pub(crate) schema: String,
    pub(crate) valid: Vec<Valid>,
    pub(crate) invalid: Vec<Invalid>,
}

pub(crate) struct Valid {
    pub(crate) why: String,
    pub(crate) message: Value,
}

pub(crate) struct Invalid {
    pub(crate) why: String,
    /// The one place that is wrong.
    pub(crate) path: String,
    /// The keyword that must find it.
    pub(crate) keyword: String,
    pub(crate) message: Value,
}

impl Examples {
    fn read(name: &str) -> Self {
        let file = read_json(&folder().join(format!("examples/{name}.json")));
        let text = |value: &Value, member: &str| value[member].as_str().unwrap().to_owned();
        assert_eq!(file["schema"], *name);
        Self {
            schema: name.to_owned(),
            valid: file["valid"]
                .as_array()
                .unwrap()
                .iter()
                .map(|example| Valid {
                    why: text(example, "why"),
                    message: example["message"].clone(),
                })
                .collect(),
            invalid: file["invalid"]
                .as_array()
                .unwrap()
                .iter()
                .map(|example| Invalid {
                    why: text(example, "why"),
                    path: text(example, "path"),
                    keyword: text(example, "keyword"),
                    message: example["message"].clone(),
                })
                .collect(),
        }
    }
}

/// Messages that differ from `message` in one place: each of the first places of every list and
/// every member holds another value. The choice is the same in each run.
pub(crate) fn mutants(message: &Value) -> Vec<Value> {
    let others = [
        json!(null),
        json!(true),
        json!(1),
        json!(1.0),
        json!(2.5),
        json!(65_535),
        json!(1e300),
        json!(""),
        json!("*"),
        json!("#weir"),
        json!("bob"),
        json!("@"),
        json!("ed25519"),
        json!([]),
        json!([""]),
        json!(["bob"]),
        json!(["a", "b"]),
        json!({}),
        json!({ "a": [null, 1.5] }),
    ];
    let mut places = Vec::new();
    walk(message, String::new(), &mut places);
    let mut mutants = Vec::new();
    for place in &places {
        for other in &others {
            let mut mutant = message.clone();
            *mutant.pointer_mut(place).unwrap() = other.clone();
            mutants.push(mutant);
        }
    }
    mutants
}

/// The pointers of the first places in `value`, itself not among them.
fn walk(value: &Value, at: String, places: &mut Vec<String>) {
    match value {
        Value::Object(members) => {
            for (name, value) in members {
                places.push(format!(
                    "{at}/{}",
                    name.replace('~', "~0").replace('/', "~1")
                ));
                walk(value, places.last().unwrap().clone(), places);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate().take(2) {
                places.push(format!("{at}/{index}"));
                walk(item, places.last().unwrap().clone(), places);
            }
        }
        _ => {}
    }
}
