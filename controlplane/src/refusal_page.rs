//! The file of `WAF_REFUSAL_PAGE` (TELL-1): read at the start, and again on each change. A faulty
//! one stops the start; later the last good one stays in use.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use crossbeam_channel::{RecvTimeoutError, Sender, bounded};
use weir_shared::refusal_page::{MAX_BYTES, RefusalPage};
use weir_shared::reload::{Part, Take};

use crate::file_watch::FileWatch;

/// How often the file is looked at.
const POLL: Duration = Duration::from_millis(200);
/// What is watched, for a warning.
const WHAT: &str = "the refusal page";
const EXPECTED: &str = "expected a text in UTF-8 of at most 32 KiB";

/// Why the file is no page.
#[derive(Debug, thiserror::Error)]
#[error("WAF_REFUSAL_PAGE {file} {fault}; {EXPECTED}")]
pub struct PageError {
    file: String,
    fault: String,
}

/// The file that is watched, if there is one.
type Watched = Option<(PathBuf, FileWatch)>;

/// The page, and the file that it comes from.
pub struct PageFile {
    page: Arc<ArcSwap<RefusalPage>>,
    /// The thread that watches it; none before the first file.
    thread: Arc<Mutex<Option<Sender<Watched>>>>,
}

impl PageFile {
    /// The page of the file, which is watched for as long as the process lives; the page that is
    /// built in without one.
    ///
    /// # Errors
    /// [`PageError`] where the file cannot be used, or the system refuses a thread.
    pub fn open(file: Option<&Path>) -> Result<Self, PageError> {
        let opened = Self {
            page: Arc::default(),
            thread: Arc::default(),
        };
        let new = prepare(&opened.page, &opened.thread, file)?;
        // A page waits for nobody.
        let _ = new();
        Ok(opened)
    }

    /// The page, for those who answer with it.
    pub fn page(&self) -> Arc<ArcSwap<RefusalPage>> {
        Arc::clone(&self.page)
    }

    /// The part of a reload: the file is read again, which may be another one.
    pub fn part(&self) -> Part {
        let (page, thread) = (Arc::clone(&self.page), Arc::clone(&self.thread));
        Box::new(move |new| {
            let prepared = prepare(&page, &thread, new.settings.bans.refusal_page.as_deref());
            prepared.map_err(|error| vec![error.to_string()])
        })
    }
}

/// Reads the page of the file; to be taken once everything else is sound.
fn prepare(
    page: &Arc<ArcSwap<RefusalPage>>,
    thread: &Mutex<Option<Sender<Watched>>>,
    file: Option<&Path>,
) -> Result<Take, PageError> {
    // Before it is read: a change right after that must not be missed.
    let watch = |file: &Path| (file.to_owned(), FileWatch::start(&[file.to_owned()], WHAT));
    let watch = file.map(watch);
    let read = file.map(read).transpose()?;
    // Nothing panics while it is held.
    let mut thread = thread.lock().unwrap_or_else(PoisonError::into_inner);
    if let (None, Some(file)) = (&*thread, file) {
        let refused = |error| PageError::of(file, format!("cannot be watched: {error}"));
        *thread = Some(start(Arc::clone(page)).map_err(refused)?);
    }
    let (page, thread) = (Arc::clone(page), thread.clone());
    Ok(Box::new(move || {
        page.store(Arc::new(read.unwrap_or_default()));
        if let Some(thread) = thread {
            // The thread takes each at once, but for a moment in which it reads a page.
            let _ = thread.send(watch);
        }
        Ok(())
    }))
}

/// Starts the thread that watches the file that it was told of last.
fn start(page: Arc<ArcSwap<RefusalPage>>) -> io::Result<Sender<Watched>> {
    let (tell, told) = bounded(16);
    weir_shared::threads::spawn("weir-page", move || {
        let mut watched: Watched = None;
        loop {
            match told.recv_timeout(POLL) {
                Ok(other) => watched = other,
                Err(RecvTimeoutError::Timeout) => {}
                // Nobody is left who could tell of another.
                Err(RecvTimeoutError::Disconnected) => std::thread::sleep(POLL),
            }
            if let Some((file, watch)) = &mut watched
                && watch.has_changed()
            {
                read_again(&page, file);
            }
        }
    })?;
    Ok(tell)
}

fn read_again(page: &ArcSwap<RefusalPage>, file: &Path) {
    match read(file) {
        Ok(new) => {
            page.store(Arc::new(new));
            tracing::info!("the refusal page was read again");
        }
        Err(error) => tracing::warn!("{error}; what was read before stays in use"),
    }
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
