//! The file of `WAF_REFUSAL_PAGE` (TELL-1): read at the start, and again on each change. A faulty
//! one stops the start; later the last good one stays in use.

use std::path::Path;
use std::sync::Arc;

use arc_swap::ArcSwap;
use weir_shared::refusal_page::{MAX_BYTES, RefusalPage};
use weir_shared::reload::{Part, Take};

use crate::faults::{Faults, PartFault};
use crate::guarded;
use crate::watching::file::{FileWatch, Known};
use crate::watching::{FileThread, Subject};

const EXPECTED: &str = "expected a text in UTF-8 of at most 32 KiB";

/// Why the file is no page.
#[derive(Debug, thiserror::Error)]
#[error("WAF_REFUSAL_PAGE {file} {fault}; {EXPECTED}")]
pub struct PageError {
    file: String,
    fault: String,
}

/// The page, and the file that it comes from.
pub struct PageFile {
    page: Arc<ArcSwap<RefusalPage>>,
    files: FileThread,
}

impl PageFile {
    /// The page of the file, which is watched from then on; without a file the built-in page.
    ///
    /// # Errors
    /// [`PageError`] where the file cannot be used.
    pub fn open(file: Option<&Path>, files: &FileThread) -> Result<Self, PageError> {
        let opened = Self {
            page: Arc::default(),
            files: files.clone(),
        };
        let new = prepare(&opened.page, files, file)?;
        // Applying a page never blocks and cannot fail.
        let _ = new();
        Ok(opened)
    }

    /// The page, for those who answer with it.
    pub fn page(&self) -> Arc<ArcSwap<RefusalPage>> {
        Arc::clone(&self.page)
    }

    /// The page's part of a reload: reads the file again, which may be another one.
    pub fn part(&self) -> Part {
        let (page, files) = (Arc::clone(&self.page), self.files.clone());
        Box::new(move |new| {
            let prepared = prepare(&page, &files, new.settings.bans.refusal_page.as_deref());
            prepared.map_err(|error| vec![error.to_string()])
        })
    }
}

/// Whether a start could use the file.
///
/// # Errors
/// [`PageError`] where it could not.
pub(crate) fn check(file: &Path) -> Result<(), PageError> {
    read(file).map(drop)
}

/// Reads the page of the file, to be applied once the whole reload is valid.
fn prepare(
    page: &Arc<ArcSwap<RefusalPage>>,
    files: &FileThread,
    file: Option<&Path>,
) -> Result<Take, PageError> {
    let (page, files) = (Arc::clone(page), files.clone());
    let Some(file) = file.map(Path::to_owned) else {
        return Ok(Box::new(move || {
            page.store(Arc::default());
            files.forget(Subject::Page);
            Ok(())
        }));
    };
    // Before the reading, so that a change right after it is not missed.
    let known = Known::of([&file]);
    let read = read(&file)?;
    Ok(Box::new(move || {
        page.store(Arc::new(read));
        let faults = files.faults().clone();
        let watch = FileWatch::new(known, move || read_again(&page, &file, &faults));
        files.watch(Subject::Page, watch);
        Ok(())
    }))
}

fn read_again(page: &ArcSwap<RefusalPage>, file: &Path, faults: &Faults) {
    match read(file) {
        Ok(new) => {
            page.store(Arc::new(new));
            tracing::info!("the refusal page was read again");
        }
        Err(error) => {
            tracing::warn!("{error}; what was read before stays in use");
            faults.tell(PartFault::file(&error.file, &error));
        }
    }
}

fn read(path: &Path) -> Result<RefusalPage, PageError> {
    let text = guarded::read(path, MAX_BYTES as u64)
        .map_err(|error| PageError::of(path, format!("cannot be read: {error}")))?;
    RefusalPage::parse(&text).map_err(|fault| PageError::of(path, fault.to_string()))
}

impl PageError {
    fn of(file: &Path, fault: String) -> Self {
        let file = file.display().to_string();
        Self { file, fault }
    }
}
