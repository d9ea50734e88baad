//! Lists from elsewhere (FEED).

use std::path::Path;

pub(crate) mod decisions;
mod fetched;
mod kept;
pub(crate) mod publisher;

/// Saves a file as most editors do: a new one in the place of the old one.
#[track_caller]
pub(crate) fn save(directory: &Path, name: &str, text: &str) {
    let new = directory.join(format!(".{name}.new"));
    std::fs::write(&new, text).expect("writes");
    std::fs::rename(new, directory.join(name)).expect("renames");
}
