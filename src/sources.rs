//! Where the settings of this process come from: its environment, and the settings file that it
//! names (RELOAD-1). The environment does not change while the process runs; the file is read again
//! at each load.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use weir_controlplane::guarded;
use weir_shared::settings::{Loaded, MAX_FILE_BYTES, Refused, SettingsFile, load_with};

/// The setting that names the settings file.
const NAME: &str = "WAF_SETTINGS_FILE";

/// `--settings`
static FILE: OnceLock<PathBuf> = OnceLock::new();

/// Notes `--settings FILE`. It replaces `WAF_SETTINGS_FILE`, and its lines win over the
/// environment, because it was named for this very command.
pub fn set_file(file: Option<PathBuf>) {
    if let Some(file) = file {
        // Set once only: there is one command line.
        let _ = FILE.set(file);
    }
}

/// `--settings FILE`, as it was given.
pub fn named_file() -> Option<&'static Path> {
    FILE.get().map(PathBuf::as_path)
}

/// The environment, and the path of the settings file.
#[derive(Clone)]
pub struct Sources {
    environment: Vec<(String, String)>,
    file: Option<PathBuf>,
}

impl Sources {
    /// The sources of this process.
    pub fn of_process() -> Self {
        Self::of(environment())
    }

    /// Sources with this environment.
    pub fn of(environment: impl IntoIterator<Item = (String, String)>) -> Self {
        let mut environment: Vec<(String, String)> = environment.into_iter().collect();
        if let Some(file) = FILE.get() {
            environment.retain(|(name, _)| name != NAME);
            environment.push((NAME.to_owned(), file.to_string_lossy().into_owned()));
        }
        let mut named = environment.iter().filter(|(name, _)| name == NAME);
        let file = named.next().map(|(_, file)| file.trim());
        Self {
            file: file.filter(|file| !file.is_empty()).map(PathBuf::from),
            environment,
        }
    }

    /// Reads the settings file, if there is one, and checks all settings.
    ///
    /// # Errors
    /// Every problem at once.
    pub fn load(&self) -> Result<Loaded, Refused> {
        let file = self.read()?;
        load_with(self.environment.iter().cloned(), file.as_ref())
    }

    /// The values of these settings only, for commands that need few of them.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn some(&self, names: &[&str]) -> Result<Vec<(String, String)>, Refused> {
        let file = self.read()?;
        let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        let of_file = file.iter().flat_map(SettingsFile::variables).map(owned);
        let mut found: Vec<(String, String)> = Vec::new();
        let of_environment = self.environment.iter().cloned();
        // In ascending order: the last one wins.
        let mut both: Vec<(String, String)> = of_file.chain(of_environment).collect();
        if file.as_ref().is_some_and(|file| file.wins) {
            let of_file = file.iter().flat_map(SettingsFile::variables).map(owned);
            both.extend(of_file);
        }
        for (name, value) in both {
            if names.contains(&name.as_str()) && !value.trim().is_empty() {
                found.retain(|(held, _)| *held != name);
                found.push((name, value));
            }
        }
        Ok(found)
    }

    fn read(&self) -> Result<Option<SettingsFile>, Refused> {
        let refused = |problems| Refused {
            problems,
            warnings: Vec::new(),
        };
        let Some(path) = &self.file else {
            return Ok(None);
        };
        let text = guarded::read(path, MAX_FILE_BYTES).map_err(|error| {
            let named = if FILE.get().is_some() {
                "--settings"
            } else {
                NAME
            };
            let sentence = format!("{named}: {} cannot be read: {error}", path.display());
            refused(vec![sentence])
        })?;
        let mut file = SettingsFile::parse(path, &text).map_err(refused)?;
        file.wins = FILE.get().is_some();
        Ok(Some(file))
    }
}

/// The environment. Names and values that are not UTF-8 get replacement characters, and are then
/// checked like others.
pub fn environment() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os().map(|(name, value)| {
        (
            name.to_string_lossy().into_owned(),
            value.to_string_lossy().into_owned(),
        )
    })
}
