//! The file of `WAF_REFUSAL_PAGE` (TELL-1): read at the start, and again on each change. A faulty
//! one stops the start; later the last good one stays in use.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use weir_shared::refusal_page::{MAX_BYTES, RefusalPage};

use crate::file_watch::FileWatch;

const EXPECTED: &str = "expected a text in UTF-8 of at most 32 KiB";

/// Why the file is no page.
#[derive(Debug, thiserror::Error)]
#[error("WAF_REFUSAL_PAGE {file} {fault}; {EXPECTED}")]
pub struct PageError {
    file: String,
    fault: String,
}

/// The page of the file, which is watched for as long as the process lives; the page that is built
/// in without one.
///
/// # Errors
/// [`PageError`] where the file cannot be used, or the system refuses a thread.
pub fn open(file: Option<&Path>) -> Result<Arc<ArcSwap<RefusalPage>>, PageError> {
    let Some(file) = file else {
        return Ok(Arc::default());
    };
    // Before it is read: a change right after that must not be missed.
    let watch = FileWatch::start(&[file.to_owned()], "the refusal page");
    let page = Arc::new(ArcSwap::from_pointee(read(file)?));
    start(file.to_owned(), Arc::clone(&page), watch)
        .map_err(|error| PageError::of(file, format!("cannot be watched: {error}")))?;
    Ok(page)
}

fn start(file: PathBuf, page: Arc<ArcSwap<RefusalPage>>, mut watch: FileWatch) -> io::Result<()> {
    weir_shared::threads::spawn("weir-page", move || {
        loop {
            watch.wait_for_change();
            match read(&file) {
                Ok(new) => {
                    page.store(Arc::new(new));
                    tracing::info!("the refusal page was read again");
                }
                Err(error) => tracing::warn!("{error}; what was read before stays in use"),
            }
        }
    })
    .map(drop)
}

/// Reads a page, no further than it may be long.
fn read(path: &Path) -> Result<RefusalPage, PageError> {
    let mut text = Vec::new();
    File::open(path)
        .and_then(|file| file.take(MAX_BYTES as u64 + 1).read_to_end(&mut text))
        .map_err(|error| PageError::of(path, format!("cannot be read: {error}")))?;
    RefusalPage::parse(&text).map_err(|fault| PageError::of(path, fault.to_string()))
}

impl PageError {
    fn of(file: &Path, fault: String) -> Self {
        let file = file.display().to_string();
        Self { file, fault }
    }
}
