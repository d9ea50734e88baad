//! The connections that are served at the same time. One that has not asked for anything yet gives
//! its place to one that comes, the oldest first (CONTROL-10): a port scan must not keep operators
//! out.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// So many places.
pub(super) struct Places {
    free: Arc<Semaphore>,
    /// As many for streams, which have no end: they keep nobody from asking.
    streams: Arc<Semaphore>,
    /// Those that have not asked yet, the oldest first.
    silent: Mutex<VecDeque<(u64, Arc<Notify>)>>,
    next: AtomicU64,
}

/// The place of one connection, until it is dropped.
pub(super) struct Place {
    places: Arc<Places>,
    number: u64,
    gives_way: Arc<Notify>,
    permit: Mutex<Option<OwnedSemaphorePermit>>,
}

impl Places {
    pub(super) fn new(count: usize) -> Self {
        Self {
            free: Arc::new(Semaphore::new(count)),
            streams: Arc::new(Semaphore::new(count)),
            silent: Mutex::default(),
            next: AtomicU64::new(0),
        }
    }

    /// Takes a place, of a silent connection if there is no other; waits where all have asked.
    pub(super) async fn take(self: &Arc<Self>) -> Place {
        let permit = match Arc::clone(&self.free).try_acquire_owned() {
            Ok(permit) => Some(permit),
            Err(_) => {
                if let Some((_, gives_way)) = self.silent().pop_front() {
                    gives_way.notify_one();
                }
                // Never closed.
                Arc::clone(&self.free).acquire_owned().await.ok()
            }
        };
        // Relaxed: a number, and nothing else.
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let gives_way = Arc::new(Notify::new());
        self.silent().push_back((number, Arc::clone(&gives_way)));
        Place {
            places: Arc::clone(self),
            number,
            gives_way,
            permit: Mutex::new(permit),
        }
    }

    fn silent(&self) -> MutexGuard<'_, VecDeque<(u64, Arc<Notify>)>> {
        // It is whole whatever happened to who held it.
        self.silent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    /// The connection has asked: it keeps its place.
    pub(super) fn has_asked(&self) {
        self.places
            .silent()
            .retain(|(number, _)| *number != self.number);
    }

    /// The connection is to become a stream: it takes one of their places, until it ends, and gives
    /// back its own. False where all of them are taken.
    pub(super) fn streams(&self) -> bool {
        let Ok(of_streams) = Arc::clone(&self.places.streams).try_acquire_owned() else {
            return false;
        };
        let mut permit = self.permit.lock().unwrap_or_else(PoisonError::into_inner);
        *permit = Some(of_streams);
        true
    }

    /// Waits until the place is to be given away.
    pub(super) async fn gives_way(&self) {
        self.gives_way.notified().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.has_asked();
    }
}
