//! What the documentation says of settings, alerts and files is what the program has (CONTROL-3).

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use weir_shared::settings::{SettingsFile, Taken, all, load_with};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The pages, and what is shipped with settings in it.
fn pages() -> Vec<(PathBuf, String)> {
    let mut files = vec![root().join("README.md"), root().join("SECURITY.md")];
    for folder in [
        "docs",
        "controlplane/deploy",
        "controlplane/deploy/kubernetes",
    ] {
        let entries = fs::read_dir(root().join(folder)).expect("a folder");
        let paths = entries.map(|entry| entry.expect("an entry").path());
        let is_text = |path: &PathBuf| {
            let ending = path.extension().and_then(|ending| ending.to_str());
            path.is_file() && ending.is_none_or(|ending| ending != "png")
        };
        files.extend(paths.filter(is_text));
    }
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).expect("a text");
        (path, text)
    };
    files.into_iter().map(read).collect()
}

/// Names of settings in a text. What is cut by a brace or a wildcard stands for several.
fn names(text: &str) -> impl Iterator<Item = (&str, bool)> {
    let starts = text.match_indices("WAF_").map(|(at, _)| &text[at..]);
    starts.map(|rest| {
        let is_end = |c: char| !(c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_');
        let end = rest.find(is_end).unwrap_or(rest.len());
        let follows = rest[end..].starts_with(['{', '*', '…']);
        (&rest[..end], follows || rest[..end].ends_with('_'))
    })
}

/// RELOAD-1: what a page shows of settings is taken as it is printed: no comment stands behind a
/// value, and the settings file of the README has no fault.
#[test]
fn settings_are_taken_as_they_are_printed() {
    let is_setting = |line: &str| line.starts_with("WAF_") && line.contains('=');
    for (path, text) in pages() {
        let mut lines = text.lines();
        let commented = lines.find(|line| is_setting(line) && line.contains(" #"));
        assert_eq!(commented, None, "{}", path.display());
    }
    let readme = fs::read_to_string(root().join("README.md")).expect("the README");
    let mut blocks = readme.split("```sh\n").skip(1);
    let block = blocks.find(|block| block.contains("\nWAF_UPSTREAM="));
    let block = block.and_then(|block| block.split("```").next());
    let text = block.expect("a settings file").as_bytes();
    let file = SettingsFile::parse(Path::new("weir.env"), text).expect("a settings file");
    let loaded = load_with([], Some(&file)).expect("settings");
    assert_eq!(loaded.warnings, [""; 0]);
    assert!(loaded.settings.observe);
}

/// CONTROL-3: every setting that a page names is one.
#[test]
fn pages_name_settings_that_there_are() {
    let mut unknown = Vec::new();
    for (path, text) in pages() {
        for (name, is_family) in names(&text) {
            let is_known = |known: &str| match is_family {
                true => known.starts_with(name),
                false => known == name,
            };
            if !all().any(|setting| is_known(&setting.name)) {
                unknown.push(format!("{}: {name}", path.display()));
            }
        }
    }
    assert!(unknown.is_empty(), "{unknown:#?}");
}

/// TELL-1: a page that says how a denied client is answered names the setting of denials.
#[test]
fn denials_are_answered_as_their_own_setting_says() {
    for (path, text) in pages() {
        for line in text.lines() {
            let is_denial = ["WAF_DENY_NETS", "WAF_DENY_COUNTRIES"]
                .iter()
                .any(|name| line.contains(name));
            if is_denial && line.contains("_RESPONSE") {
                assert!(
                    line.contains("WAF_DENY_RESPONSE"),
                    "{}: {line}",
                    path.display()
                );
            }
        }
    }
}

/// EDGE-2: reports about what weir ends itself are wanted: TLS, and what is past it.
#[test]
fn reports_about_tls_are_in_scope() {
    let text = fs::read_to_string(root().join("SECURITY.md")).expect("the page");
    let (wanted, rest) = text.split_once("## Out of scope").expect("both parts");
    let (_, wanted) = wanted.split_once("## In scope").expect("what is in scope");
    assert!(wanted.contains("\n- TLS: ") && wanted.contains("HTTP/2"));
    let (unwanted, _) = rest.split_once("\n## ").expect("another part");
    assert!(!unwanted.contains("TLS;") && !unwanted.contains("- TLS"));
}

/// RELOAD-2: no page asks for a restart where a reload is enough.
#[test]
fn pages_ask_for_a_restart_only_where_one_is_needed() {
    for (path, text) in pages() {
        for line in text.lines() {
            let asks = ["needs a restart", "and restart", "then restart"];
            if !asks.iter().any(|words| line.contains(words)) {
                continue;
            }
            for (name, _) in names(line) {
                let setting = all().find(|setting| setting.name == name);
                let taken = setting.and_then(|setting| setting.taken);
                assert_ne!(taken, Some(Taken::Live), "{}: {line}", path.display());
            }
        }
    }
}

/// ALERT-1: the page of alerts has every kind that there is, and no other.
#[test]
fn every_kind_of_alert_is_described() {
    let schema = fs::read_to_string(root().join("schema/proxy/alerts.schema.json")).expect("it");
    let schema: Value = serde_json::from_str(&schema).expect("JSON");
    let mut kinds = Vec::new();
    collect(&schema, &mut kinds);
    kinds.sort();
    kinds.dedup();
    assert!(kinds.len() > 5, "{kinds:?}");
    let page = fs::read_to_string(root().join("docs/alerts.md")).expect("it");
    let table = page.split("| `kind` |").nth(1).expect("a table");
    let table = table.split("\n\n").next().expect("its rows");
    let mut told: Vec<&str> = table
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
        .collect();
    told.sort_unstable();
    assert_eq!(told, kinds);
}

/// The values of every `"kind"` that a schema fixes.
fn collect(value: &Value, kinds: &mut Vec<String>) {
    if let Some(kind) = value.pointer("/properties/kind") {
        kinds.extend(kind["const"].as_str().map(str::to_owned));
        let several = kind["examples"].as_array().into_iter().flatten();
        kinds.extend(several.filter_map(Value::as_str).map(str::to_owned));
    }
    match value {
        Value::Object(members) => members.values().for_each(|value| collect(value, kinds)),
        Value::Array(items) => items.iter().for_each(|value| collect(value, kinds)),
        _ => {}
    }
}

/// CONTROL-3: links between the pages lead somewhere, to a file and to a heading of it.
#[test]
fn links_lead_somewhere() {
    let mut dead = Vec::new();
    for (path, text) in pages() {
        if path.extension().is_none_or(|ending| ending != "md") {
            continue;
        }
        for link in text
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next())
        {
            if link.contains("://") || link.contains(' ') || link.starts_with("mailto:") {
                continue;
            }
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = match file {
                "" => path.clone(),
                file => path.parent().expect("a folder").join(file),
            };
            let is_there = target.exists()
                && (heading.is_empty()
                    || fs::read_to_string(&target).is_ok_and(|text| has_heading(&text, heading)));
            if !is_there {
                dead.push(format!("{}: {link}", path.display()));
            }
        }
    }
    assert!(dead.is_empty(), "{dead:#?}");
}

fn has_heading(text: &str, wanted: &str) -> bool {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let mut anchors = headings.map(|line| {
        let words = line.trim_start_matches('#').trim().to_lowercase();
        let kept = words
            .chars()
            .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.collect::<String>().replace(' ', "-")
    });
    anchors.any(|anchor| anchor == wanted)
}
