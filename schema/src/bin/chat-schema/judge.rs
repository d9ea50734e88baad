//! `validate` and `canon`.

use std::{io::Write, path::Path};

use serde_json::Value;
use weir_schema::{
    Catalog, CatalogError, Family, Schema, Violation, canonical, signature,
    strict::{self, Limits},
};

use crate::{
    arguments::By,
    failure::Failure,
    lines::{for_each_line, whole},
    report::Reporter,
};

/// Judges each line of `file` by what `by` names.
pub(crate) fn validate<W: Write>(
    by: &By,
    file: Option<&Path>,
    reports: &mut Reporter<'_, W>,
) -> Result<(), Failure> {
    let catalog = Catalog::new()?;
    let own;
    let mut limits = Limits::MESSAGE;
    let judge = match (by.schema.as_deref(), by.family) {
        (None, Some(family)) => Judge::Family(&catalog, family),
        (Some(name), _) if name.starts_with("proxy/") => {
            own = proxy_schema(&catalog, name)?;
            limits.depth = Limits::NONE.depth;
            Judge::Schema(&own)
        }
        (name, _) => {
            let name = name.unwrap_or("message");
            let schema = catalog.schema(name);
            Judge::Schema(schema.ok_or_else(|| Failure::NoSchema(name.to_owned()))?)
        }
    };
    for_each_line(file, |number, text| {
        match strict::parse_within(text, limits) {
            Err(error) => reports.unreadable(number, &error),
            Ok(message) => match judge.validate(&message) {
                Ok(()) => reports.valid(number),
                Err(violations) => reports.violations(number, &violations),
            },
        }
    })
}

/// By what a line is judged.
enum Judge<'a> {
    /// By the schema of its command.
    Family(&'a Catalog, Family),
    Schema(&'a Schema),
}

impl Judge<'_> {
    fn validate(&self, message: &Value) -> Result<(), Vec<Violation>> {
        match self {
            Self::Family(catalog, family) => catalog.validate(*family, message),
            Self::Schema(schema) => schema.validate(message),
        }
    }
}

fn proxy_schema(catalog: &Catalog, name: &str) -> Result<Schema, Failure> {
    let text = catalog.text(name);
    let text = text.ok_or_else(|| Failure::NoSchema(name.to_owned()))?;
    let document = serde_json::from_str(text).map_err(|error| CatalogError::Document {
        name: name.to_owned(),
        reason: error.to_string(),
    })?;
    Ok(Schema::compile(&document, &[])?)
}

/// Prints the canonical form of each line of `file`, and a report where there is none.
pub(crate) fn canon_lines<W: Write>(
    without_sig: bool,
    file: Option<&Path>,
    reports: &mut Reporter<'_, W>,
) -> Result<(), Failure> {
    for_each_line(file, |number, text| match strict::parse(text) {
        Err(error) => reports.unreadable(number, &error),
        Ok(value) => match canon(&value, without_sig) {
            Ok(bytes) => {
                reports.out.write_all(&bytes)?;
                Ok(writeln!(reports.out)?)
            }
            Err(error) => reports.error(number, &error),
        },
    })
}

/// Prints the canonical form of the whole of `file`, which may be of several lines. Gives the
/// sentence where there is none.
pub(crate) fn canon_whole(
    without_sig: bool,
    file: Option<&Path>,
    out: &mut impl Write,
) -> Result<Result<(), String>, Failure> {
    let text = whole(file)?;
    let form = strict::parse(&text)
        .map_err(|error| error.to_string())
        .and_then(|value| canon(&value, without_sig));
    Ok(match form {
        Ok(bytes) => {
            out.write_all(&bytes)?;
            Ok(())
        }
        Err(error) => Err(error),
    })
}

fn canon(value: &Value, without_sig: bool) -> Result<Vec<u8>, String> {
    let form = if without_sig {
        signature::signed_bytes(value)
    } else {
        canonical::to_vec(value)
    };
    form.map_err(|error| error.to_string())
}
