//! A state file as a process read it that is to take over from another (RESTART-1): what was
//! understood while the other one still served is not read and judged again.
//!
//! At the take-over a file that stands as it was read is not opened. One that was written meanwhile
//! is read, and only those of its entries are judged whose text is new. The directory is not locked
//! here: a process looks again once it holds the lock.

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
    content: Content<D>,
    /// Where each entry stands in the bytes.
    places: Vec<Range<usize>>,
    /// What was last written of it, where that is kept beside it.
    kept: Option<KeptBase<D::Key>>,
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
        let parsed = text::parse_noting::<D>(&bytes, |_| None);
        let (content, places) = parsed.map_err(|fault| StateError::DoesNotFit { path, fault })?;
        Ok(Some(Self {
            bytes,
            seen,
            content,
            places,
            kept: kept_base::read::<D>(dir),
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

/// What a start finds of a file: its content, how it was seen, and what was last written of it.
pub(super) type Found<D> = (Content<D>, Seen, Option<KeptBase<<D as Document>::Key>>);

/// Reads the file as it stands now, with the help of what is known of it.
///
/// # Errors
/// [`StateError`], as at a start.
pub(super) fn find<D: Document>(
    store: &Store,
    mut known: Option<Known<D>>,
) -> Result<Option<Found<D>>, StateError> {
    let path = store.path(D::FILE);
    let failed = |error| StateError::Read {
        path: path.clone(),
        error,
    };
    let now = store.stat(D::FILE).map_err(failed)?;
    let known_base = known.as_mut().and_then(|known| known.kept.take());
    let (content, seen) = if let Some(known) = known.take_if(|known| known.seen.stands(now)) {
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
    let now = || Stat::at(&kept_base::path(&store.dir, D::FILE));
    let known = known_base.filter(|known| known.seen.stands(now()));
    let kept = known.or_else(|| kept_base::read::<D>(&store.dir));
    Ok(Some((content, seen, kept)))
}

#[cfg(test)]
mod tests;
