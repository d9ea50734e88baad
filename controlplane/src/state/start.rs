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
use super::known::{self, Known};
use super::stat::Seen;
use super::store::Store;
use super::text::{self, Content, Envelope};

/// What a start finds of a file.
pub(crate) struct Read<D: Document> {
    /// What was last written, or what is in the file where nobody knows that.
    pub(crate) entries: Vec<D::Entry>,
    /// What somebody has done to the file since, in the last moment before a kill or while no
    /// service ran. An empty list where the copy was merely older than the file.
    pub(crate) edit: Option<Vec<Change<D>>>,
    /// Which lines of the journal belong between the entries and the edit.
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
        Self::of(kept_base::read::<D>(dir).as_ref())
    }
}

/// What the file and memory agree on at a start, the file as it was seen, and what its owner is to
/// know.
type Started<D> = (Agreed<D>, Option<Seen>, Read<D>);

/// Reads the file.
pub(super) fn read<D: Document>(
    store: &Store,
    known: Option<Known<D>>,
    now: Time,
) -> Result<Started<D>, StateError> {
    let failed = |error| StateError::Read {
        path: store.path(D::FILE),
        error,
    };
    store.recover(D::FILE).map_err(failed)?;
    let Some((content, seen, kept)) = known::find::<D>(store, known)? else {
        return of_nothing(store).map_err(failed);
    };
    let Content {
        entries,
        envelope,
        written,
    } = content;
    let journal = Standing::of(kept.as_ref());
    let kept_hash = kept.as_ref().map(|kept| kept.hash);
    let mut copy = None;
    let mut base = match kept {
        Some(kept) if kept.hash == seen.hash => Base::remembered(entries, written, kept.history),
        kept => match kept.and_then(|kept| last_written(kept, written)) {
            Some(base) => {
                copy = Some(entries);
                base
            }
            None => Base::new(D::complete(entries, &[], now), written),
        },
    };
    let entries = base.entries().to_vec();
    let edit = copy.and_then(|copy| take_edit(&mut base, copy, written, seen.stat.uid, now));
    let read = Read {
        entries,
        edit,
        journal,
    };
    let agreed = Agreed::new(base, envelope, journal, kept_hash);
    Ok((agreed, Some(seen), read))
}

/// There is no file: what was kept beside it says nothing any more.
fn of_nothing<D: Document>(store: &Store) -> io::Result<Started<D>> {
    // The journal goes first: without a base all of it would count.
    if D::KEEPS_BASE {
        journal::forget(&store.dir)?;
    }
    kept_base::forget(&store.dir, D::FILE)?;
    let base = Base::new(Vec::new(), None);
    let read = Read {
        entries: Vec::new(),
        edit: None,
        journal: Standing::Nothing,
    };
    let agreed = Agreed::new(base, Envelope::new::<D>(), Standing::Nothing, None);
    Ok((agreed, None, read))
}

/// The file is not the one that was last written: it was edited while the service did not run, or
/// in the last moment before it was killed. The edit is taken as a running service takes it; a
/// document that holds it must follow.
fn take_edit<D: Document>(
    base: &mut Base<D>,
    copy: Vec<D::Entry>,
    read: Option<Time>,
    uid: u32,
    now: Time,
) -> Option<Vec<Change<D>>> {
    let diff = base.take_found(copy, read, now);
    tracing::info!(
        file = D::FILE,
        uid,
        entries = diff.named(),
        "edit from before the start taken in: {}",
        diff.summary()
    );
    (!diff.is_empty()).then_some(diff.changes)
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
