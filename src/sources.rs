//! Where the settings of this process come from: its environment, and the settings file that it
//! names (RELOAD-1). The environment does not change while it runs; the file is read anew each
//! time.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use weir_shared::settings::{Loaded, MAX_FILE_BYTES, Refused, SettingsFile, load_with};

/// The setting that names the file.
const NAME: &str = "WAF_SETTINGS_FILE";

/// `--settings`
static FILE: OnceLock<PathBuf> = OnceLock::new();

/// Notes `--settings FILE`, which stands above `WAF_SETTINGS_FILE`.
pub fn set_file(file: Option<PathBuf>) {
    if let Some(file) = file {
        // There is one command line.
        let _ = FILE.set(file);
    }
}

/// The environment and the place of the file.
#[derive(Clone)]
pub struct Sources {
    environment: Vec<(String, String)>,
    file: Option<PathBuf>,
}

impl Sources {
    /// Those of this process.
    pub fn of_process() -> Self {
        Self::of(environment())
    }

    /// With this environment.
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

    /// Reads the file, if there is one, and judges everything.
    ///
    /// # Errors
    /// Every problem at once.
    pub fn load(&self) -> Result<Loaded, Refused> {
        let file = self.read()?;
        load_with(self.environment.iter().cloned(), file.as_ref())
    }

    /// Only what these names are set to, for commands that need few of the settings.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn some(&self, names: &[&str]) -> Result<Vec<(String, String)>, Refused> {
        let file = self.read()?;
        let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        let of_file = file.iter().flat_map(SettingsFile::variables).map(owned);
        let mut found: Vec<(String, String)> = Vec::new();
        // The environment last: it wins.
        for (name, value) in of_file.chain(self.environment.iter().cloned()) {
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
        let text = bytes(path)
            .map_err(|error| refused(vec![format!("{NAME}: {} {error}", path.display())]))?;
        SettingsFile::parse(path, &text).map(Some).map_err(refused)
    }
}

fn bytes(path: &Path) -> Result<Vec<u8>, String> {
    let mut text = Vec::new();
    File::open(path)
        .and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_end(&mut text))
        .map_err(|error| format!("cannot be read: {error}"))?;
    if text.len() as u64 > MAX_FILE_BYTES {
        return Err(format!(
            "is too large: expected at most {MAX_FILE_BYTES} bytes"
        ));
    }
    Ok(text)
}

/// The environment; names and values that are not UTF-8 are shown with replacement characters, and
/// then judged.
pub fn environment() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os().map(|(name, value)| {
        (
            name.to_string_lossy().into_owned(),
            value.to_string_lossy().into_owned(),
        )
    })
}
