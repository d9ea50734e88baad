//! The thread's side of a state file, of three objects: what lies there and may it be believed
//! ([`OnDisk`]), what is to be written and who waits ([`Pending`]), what was agreed on last
//! ([`Agreed`]). `look.rs` takes in what somebody saved, `write.rs` writes what waits, `turn.rs`
//! calls both.
//!
//! Nothing here waits long: a write that has to wait (an edit is half saved, the disk is full)
//! stays queued and the thread goes on. Time is an argument.

use std::sync::Arc;

use crossbeam_channel::{Sender, bounded};
use weir_shared::units::Time;

use super::agreed::Agreed;
use super::displaced::Displaced;
use super::document::Document;
use super::error::StateError;
use super::file::{Edit, Shared, StateFile};
use super::known::Known;
use super::on_disk::OnDisk;
use super::pending::Pending;
use super::start::{self, Read};
use super::store::Store;

/// Edits of one file that wait for the owner; it takes them every few milliseconds, an
/// administrator saves every few seconds. While they fill the channel further ones wait on disk.
const EDITS: usize = 64;

/// The thread's side of a file.
pub(super) struct DiskFile<D: Document> {
    pub(super) on_disk: OnDisk,
    pub(super) pending: Pending<D>,
    pub(super) agreed: Agreed<D>,
    /// The file that was replaced last.
    pub(super) displaced: Option<Displaced>,
    pub(super) edits: Sender<Edit<D>>,
    pub(super) shared: Arc<Shared<D>>,
    /// A read that failed was reported.
    pub(super) unread: bool,
}

impl<D: Document> DiskFile<D> {
    /// Reads the file at start (STATE-6), with the help of what is known of it. Also gives the
    /// owner's side, and what was read.
    pub(super) fn open(
        store: &Store,
        wake: &Sender<()>,
        known: Option<Known<D>>,
        now: Time,
    ) -> Result<(Self, StateFile<D>, Read<D>), StateError> {
        let (agreed, seen, read) = start::read(store, known, now)?;
        let (edits_out, edits) = bounded(EDITS);
        let shared = Arc::<Shared<D>>::default();
        let file = StateFile {
            edits,
            shared: Arc::clone(&shared),
            wake: wake.clone(),
        };
        let disk = Self {
            on_disk: OnDisk::found(seen),
            pending: Pending::new(Arc::clone(&shared)),
            agreed,
            displaced: None,
            edits: edits_out,
            shared,
            unread: false,
        };
        Ok((disk, file, read))
    }
}
