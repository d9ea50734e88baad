//! Bounds the connections that are served at the same time. A connection that has not sent a
//! request yet gives its place to a new one, the oldest first (CONTROL-10): a port scan must not
//! keep operators out.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};

/// How long a new connection may be silent before it gives way, because it is probably about to
/// send a request. Of a flood of silent connections at most 800 a second are admitted.
const GRACE: Duration = Duration::from_millis(20);

/// The places of one listener.
pub(super) struct Places {
    free: Arc<Semaphore>,
    /// As many places again for streams: these have no end, and must not take the places of
    /// requests.
    streams: Arc<Semaphore>,
    /// The connections without a request yet, the oldest first.
    silent: Mutex<VecDeque<(u64, Arc<Notify>)>>,
    next: AtomicU64,
}

/// The place of one connection. Dropping it frees the place.
pub(super) struct Place {
    places: Arc<Places>,
    number: u64,
    gives_way: Arc<Notify>,
    has_asked: AtomicBool,
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

    /// Takes a place, that of a silent connection if none is free. Waits if all connections have
    /// sent requests.
    pub(super) async fn take(self: &Arc<Self>) -> Place {
        let permit = self.permit().await;
        // Relaxed: a number, and nothing else.
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let gives_way = Arc::new(Notify::new());
        self.silent().push_back((number, Arc::clone(&gives_way)));
        Place {
            places: Arc::clone(self),
            number,
            gives_way,
            has_asked: AtomicBool::new(false),
            permit: Mutex::new(permit),
        }
    }

    /// A permit; none only if the semaphore were closed, which it never is.
    async fn permit(&self) -> Option<OwnedSemaphorePermit> {
        let mut free = pin!(Arc::clone(&self.free).acquire_owned());
        if let Ok(permit) = Arc::clone(&self.free).try_acquire_owned() {
            return Some(permit);
        }
        loop {
            let Some((_, gives_way)) = self.silent().pop_front() else {
                return free.await.ok();
            };
            gives_way.notify_one();
            // That connection may send its request meanwhile, and keep its place.
            if let Ok(permit) = timeout(2 * GRACE, free.as_mut()).await {
                return permit.ok();
            }
        }
    }

    fn silent(&self) -> MutexGuard<'_, VecDeque<(u64, Arc<Notify>)>> {
        // A panic of a holder leaves the list valid.
        self.silent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    /// Notes that the connection has sent a request: it keeps its place.
    pub(super) fn has_asked(&self) {
        // Relaxed: one task reads and writes it.
        self.has_asked.store(true, Ordering::Relaxed);
        self.places
            .silent()
            .retain(|(number, _)| *number != self.number);
    }

    /// Makes the connection a stream: it takes a place of streams until it ends, and frees its own.
    /// False if all places of streams are taken.
    pub(super) fn streams(&self) -> bool {
        let Ok(of_streams) = Arc::clone(&self.places.streams).try_acquire_owned() else {
            return false;
        };
        let mut permit = self.permit.lock().unwrap_or_else(PoisonError::into_inner);
        *permit = Some(of_streams);
        true
    }

    /// Waits until the place must be given away, at least for [`GRACE`]. Waits forever if the
    /// connection has sent a request meanwhile.
    pub(super) async fn gives_way(&self) {
        sleep(GRACE).await;
        self.gives_way.notified().await;
        if self.has_asked.load(Ordering::Relaxed) {
            std::future::pending().await
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.has_asked();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::testing::run;

    /// CONTROL-10: a new connection is not closed at once, and keeps its place once it has sent a
    /// request; of the silent ones the oldest is closed.
    #[test]
    fn a_silent_connection_has_a_moment() {
        run(async {
            let places = Arc::new(Places::new(2));
            let began = Instant::now();
            let (asks, silent) = (places.take().await, places.take().await);
            asks.has_asked();
            let coming = {
                let places = Arc::clone(&places);
                tokio::spawn(async move { places.take().await })
            };
            silent.gives_way().await;
            assert!(began.elapsed() >= GRACE, "it has just come");
            drop(silent);
            coming.await.unwrap();
            assert!(timeout(2 * GRACE, asks.gives_way()).await.is_err());
        });
    }

    /// CONTROL-10: a connection that sends its request just as it would be closed keeps its place,
    /// and the next one is closed.
    #[test]
    fn one_that_asks_at_the_last_moment_stays() {
        run(async {
            let places = Arc::new(Places::new(2));
            let (asks, silent) = (places.take().await, places.take().await);
            let coming = {
                let places = Arc::clone(&places);
                tokio::spawn(async move { places.take().await })
            };
            while places.silent().len() == 2 {
                tokio::task::yield_now().await;
            }
            asks.has_asked();
            assert!(timeout(2 * GRACE, asks.gives_way()).await.is_err());
            silent.gives_way().await;
            drop(silent);
            coming.await.unwrap();
        });
    }
}
