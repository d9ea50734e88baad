//! The TLS handshakes that one worker has under way: how many, and whose turn it is.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::downstream::{Downstream, Ending};

/// Handshakes that a worker has under way at most; the oldest gives way to a further one.
const MAX_UNDER_WAY: usize = 1024;

/// The handshakes of one worker, and the certificates that they are made with.
pub struct Handshakes {
    config: Option<Arc<ArcSwap<ServerConfig>>>,
    /// One step at a time.
    turn: Semaphore,
    under_way: RefCell<BTreeMap<u64, Weak<Downstream>>>,
    next: Cell<u64>,
}

impl Handshakes {
    /// None is under way.
    pub fn new(config: Option<Arc<ArcSwap<ServerConfig>>>) -> Self {
        Self {
            config,
            turn: Semaphore::new(1),
            under_way: RefCell::default(),
            next: Cell::new(0),
        }
    }

    /// What the next one is made with.
    pub fn config(&self) -> Option<Arc<ServerConfig>> {
        self.config.as_ref().map(|config| config.load_full())
    }

    /// Waits for the turn, which lasts as long as what is returned.
    pub async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        // It is never closed.
        self.turn.acquire().await.ok()
    }

    /// Counts a handshake in, for as long as what is returned lives.
    pub fn enter(&self, downstream: &Rc<Downstream>) -> UnderWay<'_> {
        let number = self.next.get();
        self.next.set(number.wrapping_add(1));
        let mut under_way = self.under_way.borrow_mut();
        if under_way.len() >= MAX_UNDER_WAY
            && let Some((_, oldest)) = under_way.pop_first()
            && let Some(oldest) = oldest.upgrade()
        {
            oldest.finish(Ending::Idle);
        }
        under_way.insert(number, Rc::downgrade(downstream));
        UnderWay {
            handshakes: self,
            number,
        }
    }
}

/// A handshake that is under way.
pub struct UnderWay<'a> {
    handshakes: &'a Handshakes,
    number: u64,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.handshakes.under_way.borrow_mut().remove(&self.number);
    }
}
