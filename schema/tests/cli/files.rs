//! `list`, `show` and `export`.

use std::{collections::BTreeSet, fs, path::Path};

use serde_json::Value;
use tempfile::TempDir;
use weir_schema::{
    Catalog,
    bundle::{self, Form},
};

use super::{run, stderr, stdout};
use crate::support::{CATALOG, EXAMPLES, folder, proxy_names, schema_names, schema_path};

/// SCHEMA-8
#[test]
fn list_names_every_schema_and_show_prints_it() {
    let listed = run(&["list"], "");
    assert!(listed.status.success());
    let names: Vec<&str> = stdout(&listed)
        .lines()
        .map(|line| line.split_once('\t').unwrap().0)
        .collect();
    let expected: Vec<String> = schema_names().into_iter().chain(proxy_names()).collect();
    assert_eq!(names, expected);
    assert!(stdout(&listed).contains("proxy/bans\tbans.json\n"));
    assert!(stdout(&listed).contains("s2c/001\t001 RPL_WELCOME (S2C)\n"));
    let shown = run(&["show", "s2c/001"], "");
    assert_eq!(shown.stdout, fs::read(schema_path("s2c/001")).unwrap());
    let shown = run(&["show", "s2c/001", "--base", "https://chat.example"], "");
    assert!(
        stdout(&shown).contains("\"$id\": \"https://chat.example/schema/s2c/001.schema.json\"")
    );
    let shown = run(&["show", "proxy/bans"], "");
    assert_eq!(shown.stdout, fs::read(schema_path("proxy/bans")).unwrap());
    let shown = run(
        &["show", "proxy/bans", "--base", "https://chat.example"],
        "",
    );
    assert!(
        stdout(&shown).contains("\"$id\": \"https://chat.example/schema/proxy/bans.schema.json\"")
    );
    let unknown = run(&["show", "s2c/999"], "");
    assert_eq!(unknown.status.code(), Some(2));
    assert!(stderr(&unknown).contains("there is no schema \"s2c/999\""));
}

/// SCHEMA-8, SCHEMA-2
#[test]
fn export_writes_the_files_under_another_base() {
    let folder = TempDir::new().unwrap();
    let out = folder.path().to_str().unwrap();
    let output = run(
        &["export", "--base", "https://chat.example/", "--out", out],
        "",
    );
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stdout(&output).lines().count(), 41 + proxy_names().len());
    let catalog = Catalog::with_base("https://chat.example").unwrap();
    for name in catalog.names().chain(catalog.proxy_names()) {
        let file = folder.path().join(format!("schema/{name}.schema.json"));
        assert_eq!(
            fs::read_to_string(file).unwrap(),
            catalog.text(name).unwrap()
        );
    }
    let bad = run(&["export", "--base", "chat.example", "--out", out], "");
    assert_eq!(bad.status.code(), Some(2));
    assert!(
        stderr(&bad).contains("not an absolute URL"),
        "{}",
        stderr(&bad)
    );
}

/// SCHEMA-8, SCHEMA-4
#[test]
fn the_examples_are_listed_and_shown() {
    let listed = run(&["list", "--examples"], "");
    let lines: Vec<String> = EXAMPLES
        .iter()
        .map(|examples| {
            format!(
                "examples/{}\t{} valid, {} invalid",
                examples.schema,
                examples.valid.len(),
                examples.invalid.len()
            )
        })
        .collect();
    assert_eq!(stdout(&listed).lines().collect::<Vec<_>>(), lines);
    let shown = run(&["show", "examples/c2s/join"], "");
    assert_eq!(
        shown.stdout,
        fs::read(folder().join("examples/c2s/join.json")).unwrap()
    );
    let unknown = run(&["show", "examples/s2c/999"], "");
    assert_eq!(unknown.status.code(), Some(2));
    assert!(stderr(&unknown).contains("list --examples"));
}

/// SCHEMA-8, SCHEMA-2: what is printed is what is written, and what the crate makes.
#[test]
fn bundles_are_printed_and_written() {
    let target = TempDir::new().unwrap();
    let out = target.path().to_str().unwrap();
    let output = run(&["export", "--bundle", "--examples", "--out", out], "");
    assert!(output.status.success(), "{}", stderr(&output));
    let written: BTreeSet<&Path> = stdout(&output).lines().map(Path::new).collect();
    assert_eq!(written.len(), 41 + proxy_names().len() + 2 * 42 + 41);
    assert!(written.iter().all(|path| path.exists()));

    let read = |path: &str| fs::read_to_string(target.path().join(path)).unwrap();
    for (draft, form, whole, each) in [
        ("2020-12", Form::Draft202012, "schema/bundle", "bundled"),
        (
            "07",
            Form::Draft07,
            "schema/draft-07/bundle",
            "schema/draft-07",
        ),
    ] {
        let printed = run(&["export", "--bundle", "--draft", draft], "");
        assert!(printed.status.success(), "{}", stderr(&printed));
        assert_eq!(stdout(&printed), read(&format!("{whole}.schema.json")));
        let document: Value = serde_json::from_str(stdout(&printed)).unwrap();
        assert_eq!(document, bundle::all(&CATALOG, form));
        let shown = run(&["show", "s2s/relay", "--bundle", "--draft", draft], "");
        assert_eq!(
            stdout(&shown),
            read(&format!("{each}/s2s/relay.schema.json"))
        );
        let document: Value = serde_json::from_str(stdout(&shown)).unwrap();
        assert_eq!(Some(document), bundle::one(&CATALOG, "s2s/relay", form));
    }
    assert_eq!(
        read("examples/s2c/001.json"),
        fs::read_to_string(folder().join("examples/s2c/001.json")).unwrap()
    );
    for arguments in [
        &["export"][..],
        &["export", "--examples"],
        &["export", "--bundle", "--draft", "06"],
        &["show", "proxy/bans", "--bundle"],
        &["show", "s2c/001", "--draft", "07"],
    ] {
        let output = run(arguments, "");
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert_eq!(stdout(&output), "", "{arguments:?}");
    }
}
