//! Turns written values into checked settings: each value is read by its row, then the combinations
//! are checked.
//!
//! Reads no files, and asks the system only for the number of cores. Whether the address can be
//! bound, the directory written and the token file read is found out later, by the code that uses
//! them.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::PathBuf;

use super::cross_checks::CrossChecks;
use super::file::SettingsFile;
use super::listing::{self, Listed};
use super::row::Setting;
use super::table::{Settings, all};
use super::written::Written;

/// Checked settings, with warnings.
#[derive(Debug)]
pub struct Loaded {
    /// The settings.
    pub settings: Settings,
    /// One sentence each.
    pub warnings: Vec<String>,
    /// Every setting as it was written, for people.
    pub listing: Vec<Listed>,
    /// The written values.
    pub(super) written: Written,
}

/// Settings with faults, which prevent a start.
#[derive(Debug)]
pub struct Refused {
    /// Every fault, one sentence each (SETTING-1): those of single settings first.
    pub problems: Vec<String>,
    /// The warnings as well: a misspelt name is often the cause of a fault.
    pub warnings: Vec<String>,
}

/// Reads the settings from `(name, value)` pairs, as the environment gives them. Names without
/// `WAF_` are ignored, except `STATE_DIRECTORY`, the default of `WAF_STATE_DIR`. An empty value
/// counts as unset.
///
/// # Errors
/// Every problem at once.
pub fn load(variables: impl IntoIterator<Item = (String, String)>) -> Result<Loaded, Refused> {
    load_with(variables, None)
}

/// Loads the settings with the settings file, over which the environment wins (RELOAD-1).
///
/// # Errors
/// Every problem at once.
pub fn load_with(
    environment: impl IntoIterator<Item = (String, String)>,
    file: Option<&SettingsFile>,
) -> Result<Loaded, Refused> {
    let (written, warnings) = Written::of(environment, file);
    judge(written, warnings)
}

/// Checks the written values.
///
/// # Errors
/// Every problem at once.
pub(super) fn judge(written: Written, mut warnings: Vec<String>) -> Result<Loaded, Refused> {
    let values = written.values();
    let mut settings = Settings::unset(state_dir(values));
    let mut problems = Vec::new();
    let mut malformed = Vec::new();
    let mut told = unknown_names(values);
    for setting in all() {
        let value = match written.get(&setting.name) {
            Some(value) => value,
            None if setting.default.is_empty() => continue,
            None => setting.default,
        };
        let mut remarks = Vec::new();
        if let Err(faults) = setting.read(&mut settings, value, &mut remarks) {
            malformed.push(setting.name.as_str());
            let faults = faults.0.iter();
            problems.extend(faults.map(|predicate| problem(setting, value, predicate)));
        }
        let named = |remark| format!("{} {remark}", setting.name);
        told.extend(remarks.into_iter().map(named));
    }
    let together = CrossChecks {
        written: values,
        malformed: &malformed,
    };
    problems.extend(together.problems(&settings));
    told.extend(together.warnings(&settings));
    warnings.extend(told.into_iter().map(|sentence| written.placed(sentence)));
    if problems.is_empty() {
        let listing = listing::of(&written, &settings);
        Ok(Loaded {
            settings,
            warnings,
            listing,
            written,
        })
    } else {
        let problems = problems.into_iter();
        let problems = problems.map(|sentence| written.placed(sentence)).collect();
        Err(Refused { problems, warnings })
    }
}

/// systemd may give several directories, separated by colons; the first is ours.
fn state_dir(written: &BTreeMap<String, String>) -> PathBuf {
    let given = written.get("STATE_DIRECTORY");
    let first = given.and_then(|list| list.split(':').find(|path| !path.is_empty()));
    PathBuf::from(first.unwrap_or("./state"))
}

fn problem(setting: &Setting<Settings>, value: &str, predicate: &str) -> String {
    let Setting { name, expected, .. } = setting;
    match setting.shown(value) {
        None => format!("{name} (its value is not shown) {predicate}: expected {expected}"),
        Some(shown) => format!("{name}={shown:?} {predicate}: expected {expected}"),
    }
}

/// One warning for each unknown name that looks like a setting: it begins with `WAF_` or `WEIR_`,
/// or is a setting in small letters. Its value is not shown, because it may be a token under a
/// misspelt name.
fn unknown_names(written: &BTreeMap<String, String>) -> Vec<String> {
    written
        .keys()
        .filter(|name| all().all(|known| known.name != **name))
        .map(|name| (name, meant(name)))
        .filter(|(name, meant)| meant.is_some() || name.starts_with("WAF_"))
        .map(|(name, meant)| {
            format!(
                "{}: unknown setting, ignored{}",
                name.escape_debug(),
                meant.map_or(String::new(), |meant| format!("; did you mean {meant}?"))
            )
        })
        .collect()
}

fn distance(known: &str, unknown: &str) -> usize {
    strsim::osa_distance(known, unknown)
}

/// How many letters of an unknown name's words, after `WAF_`, match words of a known one:
/// `WAF_RATELIMIT` suggests `WAF_RATE_LIMIT_PER_MINUTE` rather than `WAF_ON_LIMIT`.
fn words_shared(known: &str, unknown: &str) -> usize {
    let words = |name: &str| name.trim_start_matches("WAF_").replace('_', "");
    let (known, unknown) = (words(known), words(unknown));
    let same = known
        .bytes()
        .zip(unknown.bytes())
        .take_while(|(one, other)| one == other);
    let same = same.count();
    // A beginning of two letters is none.
    if same * 2 > unknown.len() { same } else { 0 }
}

/// The setting with the name nearest to an unknown one. A name without `WAF_` counts only if the
/// rest is the exact name of a setting.
fn meant(unknown: &str) -> Option<&'static str> {
    if unknown.starts_with("WAF_") {
        return all()
            .map(|known| known.name.as_str())
            .max_by_key(|known| {
                (
                    words_shared(known, unknown),
                    Reverse(distance(known, unknown)),
                )
            })
            .filter(|known| words_shared(known, unknown) > 0 || distance(known, unknown) <= 3);
    }
    let capitals = unknown.to_ascii_uppercase();
    let tail = capitals
        .strip_prefix("WEIR_")
        .or_else(|| capitals.strip_prefix("WAF_"))?;
    all()
        .map(|known| known.name.as_str())
        .find(|known| known.strip_prefix("WAF_") == Some(tail))
}
