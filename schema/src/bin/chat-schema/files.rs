//! `list`, `show` and `export`: the files of the crate, and bundles made from them.

use std::{fs, io::Write, path::Path};

use serde_json::Value;
use weir_schema::{
    Catalog, EXAMPLES,
    bundle::{self, Form},
};

use crate::failure::Failure;

/// Prints name, tab, title of every schema.
pub(crate) fn list(out: &mut impl Write) -> Result<(), Failure> {
    let catalog = Catalog::new()?;
    for name in catalog.names().chain(catalog.proxy_names()) {
        let schema = json_of(catalog.text(name).unwrap_or_default());
        let title = schema.get("title").and_then(Value::as_str);
        writeln!(out, "{name}\t{}", title.unwrap_or_default())?;
    }
    Ok(())
}

/// Prints name, tab, numbers of every file of examples.
pub(crate) fn list_examples(out: &mut impl Write) -> Result<(), Failure> {
    for (name, text) in EXAMPLES {
        let examples = json_of(text);
        let count = |member| {
            let list = examples.get(member).and_then(Value::as_array);
            list.map_or(0, Vec::len)
        };
        let (valid, invalid) = (count("valid"), count("invalid"));
        writeln!(out, "examples/{name}\t{valid} valid, {invalid} invalid")?;
    }
    Ok(())
}

/// Prints the file `name`, or its bundle in the form `bundled`.
pub(crate) fn show(
    name: &str,
    base: &str,
    bundled: Option<Form>,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let catalog = Catalog::with_base(base)?;
    if let Some(form) = bundled {
        let document = bundle::one(&catalog, name, form);
        let document = document.ok_or_else(|| Failure::NoBundle(name.to_owned()))?;
        return Ok(out.write_all(pretty(&document).as_bytes())?);
    }
    let text = if let Some(of) = name.strip_prefix("examples/") {
        let examples = EXAMPLES.iter().find(|(known, _)| *known == of);
        examples
            .map(|(_, text)| *text)
            .ok_or_else(|| Failure::NoExamples(name.to_owned()))?
    } else {
        let text = catalog.text(name);
        text.ok_or_else(|| Failure::NoSchema(name.to_owned()))?
    };
    Ok(out.write_all(text.as_bytes())?)
}

/// Prints the one document of all messages.
pub(crate) fn print_bundle(base: &str, form: Form, out: &mut impl Write) -> Result<(), Failure> {
    let document = bundle::all(&Catalog::with_base(base)?, form);
    Ok(out.write_all(pretty(&document).as_bytes())?)
}

/// Writes the files into `folder`, and prints the path of each.
pub(crate) fn export(
    base: &str,
    folder: &Path,
    bundles: bool,
    examples: bool,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let catalog = Catalog::with_base(base)?;
    let mut write = |name: &str, text: &str| {
        let path = folder.join(name);
        path.parent()
            .map_or(Ok(()), fs::create_dir_all)
            .and_then(|()| fs::write(&path, text))
            .map_err(|error| Failure::File(path.clone(), error))?;
        Ok::<(), Failure>(writeln!(out, "{}", path.display())?)
    };
    for name in catalog.names().chain(catalog.proxy_names()) {
        let text = catalog.text(name).unwrap_or_default();
        write(&format!("schema/{name}.schema.json"), text)?;
    }
    if bundles {
        for (form, whole, each) in [
            (Form::Draft202012, "schema/bundle", "bundled"),
            (Form::Draft07, "schema/draft-07/bundle", "schema/draft-07"),
        ] {
            let document = bundle::all(&catalog, form);
            write(&format!("{whole}.schema.json"), &pretty(&document))?;
            for name in catalog.names() {
                let document = bundle::one(&catalog, name, form).unwrap_or_default();
                write(&format!("{each}/{name}.schema.json"), &pretty(&document))?;
            }
        }
    }
    if examples {
        for (name, text) in EXAMPLES {
            write(&format!("examples/{name}.json"), text)?;
        }
    }
    Ok(())
}

fn json_of(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_default()
}

fn pretty(document: &Value) -> String {
    format!("{document:#}\n")
}
