//! One turn of a state file: a look, and a try where something is to be written.

use std::io;
use std::time::{Duration, Instant};

use super::common::{AnyFile, Common};
use super::disk::DiskFile;
use super::document::Document;
use super::watch::{POLL, TICK};
use super::write::Wrote;
use crate::memory;

impl<D: Document> AnyFile for DiskFile<D> {
    fn turn(&mut self, common: &Common, now: Instant, unreachable: Option<&str>) -> Duration {
        self.pending.accept(&self.agreed);
        let linger = self.check_displaced(common, now);
        let wait = if self.pending.is_due(now, common.stopping) {
            let outcome = match unreachable {
                Some(error) => Err(io::Error::other(error)),
                None => self.write(common, now),
            };
            match outcome {
                Ok(Wrote::Yes) => {
                    self.pending.succeed();
                    memory::freed(self.agreed.base().entries().len());
                    POLL
                }
                Ok(Wrote::NotYet) => TICK,
                Err(error) => self.pending.fail(common, now, &error),
            }
        } else if unreachable.is_some() {
            POLL
        } else {
            self.idle(common, now)
        };
        let retry = self.pending.retry_in(now).unwrap_or(POLL);
        wait.min(linger).min(retry.max(TICK))
    }

    fn fail_by_bug(&mut self, common: &Common, now: Instant) -> Duration {
        self.pending.fail_by_bug(common, now)
    }

    fn is_awaited(&mut self) -> bool {
        self.pending.accept(&self.agreed);
        self.pending.is_awaited()
    }

    fn has_job(&mut self) -> bool {
        self.pending.accept(&self.agreed);
        self.pending.job().is_some()
    }

    fn give_up(&mut self) {
        self.pending.give_up();
    }

    fn rebuild(&mut self) {
        self.agreed.lose();
        self.on_disk.lose();
        self.displaced = None;
        if !self.agreed.base().entries().is_empty() {
            self.pending.write_again(&self.agreed);
        }
    }
}
