//! The values set in the environment and in the settings file, before they are checked.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use super::file::{SettingsFile, place};

/// Names the settings file; inside the file it would have no effect.
const FILE_NAME: &str = "WAF_SETTINGS_FILE";

/// Where the value of a setting comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// The setting is not set.
    Default,
    /// A variable of the environment.
    Environment,
    /// A line of the settings file.
    File,
    /// An argument of the program: `--settings`.
    CommandLine,
}

impl Origin {
    /// The word in answers.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Environment => "environment",
            Self::File => "file",
            Self::CommandLine => "command line",
        }
    }
}

/// The text of each set name, and its source. The texts include tokens, so the `Debug` form shows
/// none.
#[derive(Clone, Default)]
pub struct Written {
    values: BTreeMap<String, String>,
    /// The line numbers of values from the file.
    lines: BTreeMap<String, usize>,
    file: Option<PathBuf>,
    /// Whether the command line names the file.
    is_file_named: bool,
}

impl fmt::Debug for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.values.keys()).finish()
    }
}

impl Written {
    /// Merges the environment and the file, and returns warnings as well. An empty value counts as
    /// unset.
    pub(super) fn of(
        environment: impl IntoIterator<Item = (String, String)>,
        file: Option<&SettingsFile>,
    ) -> (Self, Vec<String>) {
        let values = environment.into_iter();
        let values = values.map(|(name, value)| (name, value.trim().to_owned()));
        let mut written = Self {
            values: values.filter(|(_, value)| !value.is_empty()).collect(),
            ..Self::default()
        };
        let mut warnings = Vec::new();
        let Some(file) = file else {
            return (written, warnings);
        };
        warnings.extend(file.warnings.iter().cloned());
        let mut of_file = BTreeMap::new();
        for one in &file.assignments {
            let value = one.value.trim();
            if value.is_empty() {
                of_file.remove(&one.name);
            } else {
                of_file.insert(one.name.clone(), (value.to_owned(), one.line));
            }
        }
        for (name, (value, line)) in of_file {
            let at = place(&file.path, line);
            if [" #", "\t#"].iter().any(|begin| value.contains(begin)) {
                warnings.push(format!(
                    "{name} is all of {value:?} ({at}): a comment needs a line of its own"
                ));
            }
            if name == FILE_NAME {
                warnings.push(format!("{name} is ignored in the file itself ({at})"));
                continue;
            }
            let in_environment = written.values.contains_key(&name);
            if in_environment && !file.wins {
                warnings.push(format!(
                    "{name} is set in the environment, which counts, and in {at}"
                ));
                continue;
            }
            if in_environment {
                warnings.push(format!(
                    "{name} is set in {at}, which counts, and in the environment"
                ));
            }
            written.values.insert(name.clone(), value);
            written.lines.insert(name, line);
        }
        written.file = Some(file.path.clone());
        written.is_file_named = file.wins;
        (written, warnings)
    }

    /// Everything that is set, by name.
    pub(super) const fn values(&self) -> &BTreeMap<String, String> {
        &self.values
    }

    /// The value of a name.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }

    /// The source of a name's value.
    pub(super) fn origin(&self, name: &str) -> Origin {
        if name == FILE_NAME && self.is_file_named {
            Origin::CommandLine
        } else if self.lines.contains_key(name) {
            Origin::File
        } else if self.values.contains_key(name) {
            Origin::Environment
        } else {
            Origin::Default
        }
    }

    /// Adds the place in the file to a sentence that begins with a setting's name.
    pub(super) fn placed(&self, sentence: String) -> String {
        let ours = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let name = sentence.split(|c| !ours(c)).next().unwrap_or_default();
        match (&self.file, self.lines.get(name)) {
            (Some(file), Some(line)) => format!("{sentence} ({})", place(file, *line)),
            _ => sentence,
        }
    }

    /// Takes the value of this name from `other`.
    pub(super) fn take_from(&mut self, other: &Self, name: &str) {
        match other.values.get(name) {
            Some(value) => self.values.insert(name.to_owned(), value.clone()),
            None => self.values.remove(name),
        };
        match other.lines.get(name) {
            Some(line) => self.lines.insert(name.to_owned(), *line),
            None => self.lines.remove(name),
        };
    }
}
