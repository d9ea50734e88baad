//! A state file as a process read it that is to take over from another (RESTART-1): what was
//! understood while the other one still served is not read and judged again.
//!
//! At the take-over a file that stands as it was read is not opened. One that was written meanwhile
//! is read, and only those of its entries are judged whose text is new. Nobody is locked out here:
//! whoever reads must look again once the directory is its own.

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

use super::document::Document;
use super::error::StateError;
use super::kept_base::{self, KeptBase};
use super::stat::{self, Seen, Stat};
use super::store::Store;
use super::text::{self, Content};

/// A file that was read.
pub(crate) struct Known<D: Document> {
    bytes: Vec<u8>,
    seen: Seen,
    /// It was read so soon after its last change that another one may look the same.
    racy: bool,
    content: Content<D>,
    /// Where each entry stands in the bytes.
    places: Vec<Range<usize>>,
    base: Option<KnownBase<D::Key>>,
}

/// What was last written of it, where that is kept beside it.
struct KnownBase<K> {
    stat: Stat,
    racy: bool,
    kept: KeptBase<K>,
}

impl<D: Document> Known<D> {
    /// Reads and judges the file in this directory; none where there is none.
    ///
    /// # Errors
    /// [`StateError`], as at a start.
    pub(crate) fn read(dir: &Path) -> Result<Option<Self>, StateError> {
        let path = dir.join(D::FILE);
        let (bytes, seen) = match stat::read(&path) {
            Ok(Some(read)) => read,
            Ok(None) => return Ok(None),
            Err(error) => return Err(StateError::Read { path, error }),
        };
        let racy = seen.stat.is_racy();
        let parsed = text::parse_noting::<D>(&bytes, |_| None);
        let (content, places) = parsed.map_err(|fault| StateError::DoesNotFit { path, fault })?;
        let base = D::KEEPS_BASE.then(|| KnownBase::read(dir, D::FILE));
        Ok(Some(Self {
            bytes,
            seen,
            racy,
            content,
            places,
            base: base.flatten(),
        }))
    }

    /// Its entries.
    pub(crate) fn entries(&self) -> &[D::Entry] {
        &self.content.entries
    }

    /// The content of a file of these bytes.
    fn again(&self, bytes: &[u8]) -> Result<Content<D>, super::fault::Fault> {
        let texts = self
            .places
            .iter()
            .map(|place| self.bytes.get(place.clone()));
        let held: HashMap<_, _> = texts.zip(&self.content.entries).collect();
        let known = |text: &[u8]| held.get(&Some(text)).map(|entry| (*entry).clone());
        text::parse_noting::<D>(bytes, known).map(|(content, _)| content)
    }
}

impl<K: serde::de::DeserializeOwned> KnownBase<K> {
    fn read(dir: &Path, name: &str) -> Option<Self> {
        let path = kept_base::path(dir, name);
        let stat = Stat::at(&path)?;
        let kept = kept_base::read(&path, name)?;
        let racy = stat.is_racy();
        Some(Self { stat, racy, kept })
    }
}

/// What a start finds of a file: its content, how it was seen, and what was last written of it.
pub(super) struct Found<D: Document> {
    pub(super) content: Content<D>,
    pub(super) seen: Seen,
    pub(super) kept: Option<KeptBase<D::Key>>,
}

/// Reads the file as it stands now, with the help of what is known of it.
///
/// # Errors
/// [`StateError`], as at a start.
pub(super) fn find<D: Document>(
    store: &Store,
    known: Option<Known<D>>,
) -> Result<Option<Found<D>>, StateError> {
    let path = store.path(D::FILE);
    let failed = |error| StateError::Read {
        path: path.clone(),
        error,
    };
    let stat = store.stat(D::FILE).map_err(failed)?;
    let mut known = known;
    let known_base = known.as_mut().and_then(|known| known.base.take());
    let stands = |known: &Known<D>| stat == Some(known.seen.stat) && !known.racy;
    let (content, seen) = if let Some(known) = known.take_if(|known| stands(known)) {
        (known.content, known.seen)
    } else {
        let Some((bytes, seen)) = stat::read(&path).map_err(failed)? else {
            return Ok(None);
        };
        let content = match known {
            Some(known) if known.seen.hash == seen.hash => Ok(known.content),
            Some(known) => known.again(&bytes),
            None => text::parse::<D>(&bytes),
        };
        let content = content.map_err(|fault| StateError::DoesNotFit { path, fault })?;
        (content, seen)
    };
    let kept = D::KEEPS_BASE.then(|| {
        let path = kept_base::path(&store.path(""), D::FILE);
        let stands = |known: &KnownBase<D::Key>| Stat::at(&path) == Some(known.stat) && !known.racy;
        let known = known_base.filter(stands).map(|known| known.kept);
        known.or_else(|| kept_base::read(&path, D::FILE))
    });
    Ok(Some(Found {
        content,
        seen,
        kept: kept.flatten(),
    }))
}

#[cfg(test)]
mod tests;
