//! What a start makes of a state file (STATE-6), with the help of what is known of it.

use std::io;
use std::path::Path;

use weir_shared::units::Time;

use super::agreed::Agreed;
use super::diff::{Base, Change};
use super::document::Document;
use super::error::StateError;
use super::journal::{self, Standing};
use super::kept_base::{self, KeptBase};
use super::known::{self, Found, Known};
use super::stat::{Hash, Seen};
use super::store::Store;
use super::text::{self, Content, Envelope};

/// What a start finds of a file.
pub(crate) struct Read<D: Document> {
    /// What was last written, or what is in the file where nobody knows that.
    pub(crate) entries: Vec<D::Entry>,
    /// What somebody has done to the file since, in the last moment before a kill or while no
    /// service ran. None, if the copy was merely older than the file.
    pub(crate) edit: Option<Vec<Change<D>>>,
    /// Which lines of the journal came behind the entries, and before the edit.
    pub(crate) journal: Standing,
}

impl Standing {
    /// By what is known of the file that was last written.
    pub(super) fn of<K>(kept: Option<&KeptBase<K>>) -> Self {
        match kept.map(|kept| kept.history.journal) {
            None => Self::Every,
            Some(None) => Self::Nothing,
            Some(Some(number)) => Self::After(number),
        }
    }

    /// The same for somebody who only looks.
    pub(crate) fn found<D: Document>(dir: &Path) -> Self {
        if !dir.join(D::FILE).exists() {
            return Self::Nothing;
        }
        Self::of(kept_base::read::<D::Key>(dir, D::FILE).as_ref())
    }
}

/// A file as it was found at the start.
pub(super) struct Start<D: Document> {
    base: Base<D>,
    envelope: Envelope,
    pub(super) on_disk: Option<Seen>,
    /// Of the document that the kept base is of.
    kept: Option<Hash>,
    read: Read<D>,
}

impl<D: Document> Start<D> {
    pub(super) fn read(
        store: &Store,
        known: Option<Known<D>>,
        now: Time,
    ) -> Result<Self, StateError> {
        let failed = |error| StateError::Read {
            path: store.path(D::FILE),
            error,
        };
        store.recover(D::FILE).map_err(failed)?;
        let Some(found) = known::find::<D>(store, known)? else {
            return Self::of_nothing(store).map_err(failed);
        };
        let Found {
            content,
            seen,
            kept,
        } = found;
        let Content {
            entries,
            envelope,
            written,
        } = content;
        let journal = Standing::of(kept.as_ref());
        let kept_hash = kept.as_ref().map(|kept| kept.hash);
        let as_it_stands = |entries| (Base::new(D::complete(entries, &[], now), written), None);
        let (base, edited) = match kept {
            None => as_it_stands(entries),
            Some(kept) if kept.hash == seen.hash => {
                (Base::remembered(entries, written, kept.history), None)
            }
            Some(kept) => match last_written(kept, written) {
                Some(base) => (base, Some(entries)),
                None => as_it_stands(entries),
            },
        };
        let mut start = Self {
            read: Read {
                entries: base.entries().to_vec(),
                edit: None,
                journal,
            },
            base,
            envelope,
            on_disk: Some(seen),
            kept: kept_hash,
        };
        if let Some(found) = edited {
            start.take_edit(found, written, &seen, now);
        }
        Ok(start)
    }

    /// There is no file: what was kept beside it says nothing any more.
    fn of_nothing(store: &Store) -> io::Result<Self> {
        // The journal goes first: without a base all of it would count.
        if D::KEEPS_BASE {
            journal::forget(&store.dir)?;
        }
        kept_base::forget(&store.dir, D::FILE)?;
        Ok(Self {
            base: Base::new(Vec::new(), None),
            envelope: Envelope::new::<D>(),
            on_disk: None,
            kept: None,
            read: Read {
                entries: Vec::new(),
                edit: None,
                journal: Standing::Nothing,
            },
        })
    }

    /// What the file and memory agree on now, and what was read.
    pub(super) fn split(self) -> (Agreed<D>, Read<D>) {
        let agreed = Agreed::new(self.base, self.envelope, &self.read.journal, self.kept);
        (agreed, self.read)
    }

    /// The file is not the one that was last written: it was edited while the service did not run,
    /// or in the last moment before it was killed. The edit is taken as a running service takes it;
    /// a document that holds it must follow.
    fn take_edit(&mut self, found: Vec<D::Entry>, read: Option<Time>, seen: &Seen, now: Time) {
        let diff = self.base.take_found(found, read, now);
        tracing::info!(
            file = D::FILE,
            uid = seen.stat.uid,
            entries = diff.named(),
            "edit from before the start taken in: {}",
            diff.summary()
        );
        if !diff.is_empty() {
            self.read.edit = Some(diff.changes);
        }
    }
}

/// What was last written of the file; none where that is not understood.
fn last_written<D: Document>(kept: KeptBase<D::Key>, read: Option<Time>) -> Option<Base<D>> {
    match text::parse::<D>(&kept.document) {
        Ok(base) => {
            // A version before this one writes the file without its base, and says so with its
            // stamp.
            let written = base.written.max(read);
            Some(Base::remembered(base.entries, written, kept.history))
        }
        Err(fault) => {
            tracing::warn!(
                file = D::FILE,
                "what was last written of the state file is not understood ({fault}): the file counts as it stands"
            );
            None
        }
    }
}
