//! Puts bans aside: writes them to a file first, and removes them only then (FLEET-17).

use std::thread;

use crossbeam_channel::bounded;
use weir_shared::clock::Now;

use super::aside::{FILE, document, put};
use super::facts::Told;
use super::part::Fleet;
use super::replica::Effect;

/// The pause between two tries.
const AGAIN_NS: u64 = 5_000_000_000;

impl Fleet {
    /// Has the file written, and then removes the bans. Returns the effects for the ledger.
    pub(super) fn put_aside(&mut self, now: Now) -> Vec<Effect> {
        if self.aside.is_writing {
            return self.aside_written(now);
        }
        if !self.core.has_aside() || now.mono_ns < self.aside.next_ns {
            return Vec::new();
        }
        let bytes = document(&self.core.aside(), now.wall_ms);
        let (told, written) = bounded(1);
        let dir = self.aside.dir.clone();
        let thread = thread::Builder::new().name("weir-fleet-aside".to_owned());
        let begun = thread.spawn(move || {
            let put = put(&dir, &bytes).map_err(|error| error.to_string());
            let _ = told.send(put);
        });
        self.aside.is_writing = begun.is_ok();
        self.aside.written = written;
        self.aside.next_ns = now.mono_ns.saturating_add(AGAIN_NS);
        Vec::new()
    }

    fn aside_written(&mut self, now: Now) -> Vec<Effect> {
        let Ok(outcome) = self.aside.written.try_recv() else {
            return Vec::new();
        };
        self.aside.is_writing = false;
        let path = match outcome {
            Ok(path) => path,
            Err(fault) => {
                self.aside.next_ns = now.mono_ns.saturating_add(AGAIN_NS);
                tracing::error!("{FILE} cannot be written, and nothing is put aside: {fault}");
                return Vec::new();
            }
        };
        let count = self.core.aside().len();
        let detail = format!(
            "the last contact was more than seven days ago: {count} bans, lifts and entries of lists that the fleet does not have are put aside in {}",
            path.display()
        );
        tracing::warn!("{detail}");
        self.aside.told = Some(Told {
            what: "aside",
            detail,
        });
        self.core.note_change();
        self.core.put_aside()
    }

    /// The alert about it.
    pub(super) fn told_aside(&mut self) -> Option<Told> {
        self.aside.told.take()
    }
}
