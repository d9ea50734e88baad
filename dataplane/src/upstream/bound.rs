//! The bound on requests at the application, over all workers, and the queue in front of it
//! (CONN-12).
//!
//! A request holds a slot from before it has a connection to the application until the response was
//! read whole, or the connection is dropped. A request that finds no slot free waits in the order
//! of arrival. The slot passes from the request that ends to the one that waits longest: nobody
//! overtakes.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use weir_shared::settings::ConnectionSettings;

/// Requests that wait at most; more are refused at once.
const MAX_WAITING: u32 = 1000;

/// The bound, shared by all workers.
///
/// Both numbers are one atomic word, so that taking a free slot is one atomic step, and nobody can
/// begin to wait between the last slot's return and the look at the queue. The word alone decides,
/// and no other memory hangs on it: its orderings are relaxed. What the queue holds is guarded by
/// its lock.
#[derive(Debug)]
pub struct UpstreamBound {
    numbers: AtomicU64,
    /// `WAF_MAX_UPSTREAM`; written under the lock of the queue.
    max: AtomicU32,
    queue: Mutex<Queue>,
}

/// The numbers of a moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Numbers {
    /// Requests that hold a slot.
    pub taken: u32,
    /// Requests that wait for one; as many as the queue has. It changes under the queue's lock.
    pub waiting: u32,
}

impl Numbers {
    const fn of(word: u64) -> Self {
        Self {
            taken: (word & 0xffff_ffff) as u32,
            waiting: (word >> 32) as u32,
        }
    }

    const fn word(self) -> u64 {
        (self.waiting as u64) << 32 | self.taken as u64
    }

    /// One slot more taken, where one is free and nobody waits for it.
    fn take(self, max: u32) -> Option<Self> {
        let taken = self.taken + 1;
        (self.waiting == 0 && taken <= max).then_some(Self { taken, ..self })
    }
}

#[derive(Debug, Default)]
struct Queue {
    /// The first has waited longest; their numbers rise.
    waiting: VecDeque<(u64, oneshot::Sender<()>)>,
    next: u64,
}

/// How a request that found no free slot goes on.
enum Joined<'a> {
    /// One came free meanwhile.
    Taken,
    Waits(Waiting<'a>),
    /// As many wait as may.
    Full,
}

/// No slot came free within `WAF_UPSTREAM_QUEUE`, or too many wait for one: 503.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Overloaded;

impl UpstreamBound {
    /// Nothing is taken.
    pub fn new(settings: &ConnectionSettings) -> Self {
        Self {
            numbers: AtomicU64::new(0),
            max: AtomicU32::new(max(settings)),
            queue: Mutex::default(),
        }
    }

    /// Another bound, for requests to come; where it is higher, those that wait go on.
    pub fn set(&self, settings: &ConnectionSettings) {
        let mut granted = Vec::new();
        let mut queue = self.lock();
        let max = max(settings);
        self.max.store(max, Relaxed);
        while self.numbers().taken < max
            && let Some((_, waiting)) = queue.waiting.pop_front()
        {
            granted.push(waiting);
            self.always(|numbers| Numbers {
                taken: numbers.taken + 1,
                waiting: numbers.waiting.saturating_sub(1),
            });
        }
        drop(queue);
        granted.into_iter().for_each(grant);
    }

    /// How many hold a slot, and how many wait.
    pub fn numbers(&self) -> Numbers {
        Numbers::of(self.numbers.load(Relaxed))
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        // Nothing under the lock is left half done.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the numbers in one step, where `step` gives others.
    fn change(&self, step: impl Fn(Numbers) -> Option<Numbers>) -> Option<Numbers> {
        let step = |word| step(Numbers::of(word)).map(Numbers::word);
        let before = self.numbers.fetch_update(Relaxed, Relaxed, step);
        before.ok().map(Numbers::of)
    }

    fn always(&self, step: impl Fn(Numbers) -> Numbers) {
        self.change(|numbers| Some(step(numbers)));
    }

    fn take(&self) -> bool {
        let max = self.max.load(Relaxed);
        self.change(|numbers| numbers.take(max)).is_some()
    }

    /// Takes a slot, or a place at the end of the queue.
    fn join(&self) -> Joined<'_> {
        let mut queue = self.lock();
        let max = self.max.load(Relaxed);
        let wait = |numbers: Numbers| {
            let waiting = numbers.waiting + 1;
            (waiting <= MAX_WAITING).then_some(Numbers { waiting, ..numbers })
        };
        let Some(before) = self.change(|numbers| numbers.take(max).or_else(|| wait(numbers)))
        else {
            return Joined::Full;
        };
        if before.take(max).is_some() {
            return Joined::Taken;
        }
        let (sender, granted) = oneshot::channel();
        let number = queue.next;
        queue.next += 1;
        queue.waiting.push_back((number, sender));
        Joined::Waits(Waiting {
            bound: self,
            number,
            granted,
            has_slot: false,
        })
    }

    /// Gives a slot to the request that has waited longest; where nobody waits, or more are taken
    /// than may be, it is free.
    fn give_back(&self) {
        let free = |numbers: Numbers| Numbers {
            taken: numbers.taken.saturating_sub(1),
            ..numbers
        };
        let is_alone = |numbers: Numbers| (numbers.waiting == 0).then(|| free(numbers));
        if self.change(is_alone).is_some() {
            return;
        }
        let mut queue = self.lock();
        let is_within = self.numbers().taken <= self.max.load(Relaxed);
        match queue.waiting.pop_front_if(|_| is_within) {
            Some((_, waiting)) => {
                self.always(|numbers| Numbers {
                    waiting: numbers.waiting.saturating_sub(1),
                    ..numbers
                });
                drop(queue);
                grant(waiting);
            }
            None => self.always(free),
        }
    }
}

/// Wakes a request that has a slot now. If it is gone, it has seen that it is no longer in the
/// queue, and gives the slot back itself.
fn grant(waiting: oneshot::Sender<()>) {
    let _ = waiting.send(());
}

fn max(settings: &ConnectionSettings) -> u32 {
    u32::try_from(settings.max_upstream).unwrap_or(u32::MAX)
}

/// A request in the queue. Dropped, it leaves the queue, or gives back the slot that it was given
/// and has not taken.
struct Waiting<'a> {
    bound: &'a UpstreamBound,
    number: u64,
    granted: oneshot::Receiver<()>,
    has_slot: bool,
}

impl Waiting<'_> {
    /// Waits for a slot, which is the caller's then.
    async fn slot(mut self, at_most: Duration) -> Result<(), Overloaded> {
        let granted = tokio::time::timeout(at_most, &mut self.granted).await;
        self.has_slot = matches!(granted, Ok(Ok(())));
        if self.has_slot {
            Ok(())
        } else {
            Err(Overloaded)
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.has_slot {
            return;
        }
        let mut queue = self.bound.lock();
        let place = queue
            .waiting
            .binary_search_by_key(&self.number, |each| each.0);
        if let Ok(place) = place {
            queue.waiting.remove(place);
            self.bound.always(|numbers| Numbers {
                waiting: numbers.waiting.saturating_sub(1),
                ..numbers
            });
        } else {
            drop(queue);
            self.bound.give_back();
        }
    }
}

/// The bound as one worker reaches it: its slots count their references by themselves. A count that
/// the workers share would cost each request two more atomic steps.
pub struct LocalBound(Arc<UpstreamBound>);

impl LocalBound {
    /// For one worker.
    pub fn new(bound: &Arc<UpstreamBound>) -> Rc<Self> {
        Rc::new(Self(Arc::clone(bound)))
    }
}

/// A slot among the requests at the application, given back when dropped: also by a panic.
pub struct UpstreamSlot(Rc<LocalBound>);

impl UpstreamSlot {
    /// Takes a slot, if one is free and nobody waits for it.
    pub fn take(bound: &Rc<LocalBound>) -> Option<Self> {
        bound.0.take().then(|| Self(Rc::clone(bound)))
    }

    /// Waits for a slot, in the order of arrival.
    ///
    /// # Errors
    /// [`Overloaded`] where none came free in time, or too many wait.
    pub async fn wait(bound: &Rc<LocalBound>, at_most: Duration) -> Result<Self, Overloaded> {
        if at_most.is_zero() {
            return Err(Overloaded);
        }
        match bound.0.join() {
            Joined::Taken => {}
            Joined::Waits(waiting) => waiting.slot(at_most).await?,
            Joined::Full => return Err(Overloaded),
        }
        Ok(Self(Rc::clone(bound)))
    }
}

impl Drop for UpstreamSlot {
    fn drop(&mut self) {
        self.0.0.give_back();
    }
}

#[cfg(test)]
mod tests;
