use std::future::poll_fn;
use std::sync::atomic::AtomicUsize;
use std::task::Poll;

use proptest::prelude::*;
use tokio::task::{LocalSet, yield_now};

use crate::upstream::bound::*;

const LONG: Duration = Duration::from_secs(60);

fn settings(max_upstream: usize) -> ConnectionSettings {
    ConnectionSettings {
        max_upstream,
        ..ConnectionSettings::default()
    }
}

fn bound(max: usize) -> Rc<LocalBound> {
    LocalBound::new(&Arc::new(UpstreamBound::new(&settings(max))))
}

fn numbers(taken: u32, waiting: u32) -> Numbers {
    Numbers { taken, waiting }
}

/// One request, as it is known to itself.
enum Request<'a> {
    Served(#[expect(dead_code, reason = "held until it ends")] UpstreamSlot),
    Waits(Waiting<'a>),
    Gone,
}

impl Request<'_> {
    /// Takes the slot that it was given, if it was.
    fn look(&mut self, bound: &Rc<LocalBound>) {
        if let Self::Waits(waiting) = self
            && waiting.granted.try_recv().is_ok()
        {
            waiting.has_slot = true;
            *self = Self::Served(UpstreamSlot(Rc::clone(bound)));
        }
    }
}

/// The rule in its plainest form: who is served, and who waits, in the order of arrival.
struct Twin {
    max: usize,
    served: Vec<usize>,
    waits: Vec<usize>,
}

impl Twin {
    fn admit(&mut self) {
        while self.served.len() < self.max && !self.waits.is_empty() {
            self.served.push(self.waits.remove(0));
        }
    }

    fn arrive(&mut self, id: usize) {
        self.waits.push(id);
        self.admit();
    }

    fn leave(&mut self, id: usize) {
        self.served.retain(|each| *each != id);
        self.waits.retain(|each| *each != id);
        self.admit();
    }
}

#[derive(Clone, Debug)]
enum Step {
    Arrive,
    /// The request of this number ends, or gives up waiting, whether or not it has seen that its
    /// turn has come.
    Leave(usize),
    /// Those that wait look whether their turn has come.
    Look,
    Set(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => Just(Step::Arrive),
        4 => (0..40usize).prop_map(Step::Leave),
        1 => Just(Step::Look),
        1 => (1..5usize).prop_map(Step::Set),
    ]
}

proptest! {
    /// CONN-12: never more than the bound, first come first served, and nobody is forgotten,
    /// however requests end and whatever becomes of the bound.
    #[test]
    fn the_queue_is_its_naive_twin(
        max in 1..5usize,
        steps in proptest::collection::vec(step(), 0..120),
    ) {
        let bound = bound(max);
        let mut twin = Twin { max, served: Vec::new(), waits: Vec::new() };
        let mut requests = Vec::new();
        for step in steps {
            match step {
                Step::Arrive => {
                    twin.arrive(requests.len());
                    requests.push(match UpstreamSlot::take(&bound) {
                        Some(slot) => Request::Served(slot),
                        None => match bound.0.join() {
                            Joined::Waits(waiting) => Request::Waits(waiting),
                            Joined::Taken | Joined::Full => Request::Gone,
                        },
                    });
                }
                Step::Leave(id) => {
                    twin.leave(id);
                    if let Some(request) = requests.get_mut(id) {
                        *request = Request::Gone;
                    }
                }
                Step::Look => requests.iter_mut().for_each(|request| request.look(&bound)),
                Step::Set(max) => {
                    twin.max = max;
                    twin.admit();
                    bound.0.set(&settings(max));
                }
            }
            let expected = numbers(twin.served.len() as u32, twin.waits.len() as u32);
            prop_assert_eq!(bound.0.numbers(), expected);
        }
        for (id, request) in requests.iter_mut().enumerate() {
            request.look(&bound);
            let is_served = matches!(request, Request::Served(_));
            let waits = matches!(request, Request::Waits(_));
            prop_assert_eq!(is_served, twin.served.contains(&id));
            prop_assert_eq!(waits, twin.waits.contains(&id));
        }
        drop(requests);
        prop_assert_eq!(bound.0.numbers(), numbers(0, 0));
    }
}

/// CONN-12: a thousand wait, and one more is refused at once; who leaves makes room.
#[test]
fn a_thousand_wait() {
    let bound = bound(1);
    let slot = UpstreamSlot::take(&bound);
    assert!(slot.is_some());
    let mut waiting: Vec<_> = (0..1000).map(|_| bound.0.join()).collect();
    assert!(waiting.iter().all(|each| matches!(each, Joined::Waits(_))));
    assert!(matches!(bound.0.join(), Joined::Full));
    assert_eq!(bound.0.numbers(), numbers(1, 1000));
    waiting.remove(500);
    waiting.push(bound.0.join());
    assert!(matches!(waiting.last(), Some(Joined::Waits(_))));
    drop(waiting);
    assert_eq!(bound.0.numbers(), numbers(1, 0));
}

/// CONN-12: without a queue nobody waits, and a wait ends.
#[test]
fn a_wait_is_bounded() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let bound = bound(1);
    let slot = UpstreamSlot::take(&bound).unwrap();
    for at_most in [Duration::ZERO, Duration::from_millis(1)] {
        let waited = runtime.block_on(UpstreamSlot::wait(&bound, at_most));
        assert!(waited.is_err());
        assert_eq!(bound.0.numbers(), numbers(1, 0));
    }
    drop(slot);
    assert_eq!(bound.0.numbers(), numbers(0, 0));
}

/// Requests of one thread that take slots, hold them, give up.
async fn ask_often(bound: Rc<LocalBound>, max: usize, under_way: Arc<AtomicUsize>, seed: usize) {
    for turn in 0..300 {
        let number = seed.wrapping_mul(31).wrapping_add(turn);
        let gives_up = number.is_multiple_of(7);
        let mut waits = Box::pin(async {
            match UpstreamSlot::take(&bound) {
                Some(slot) => Ok(slot),
                None => UpstreamSlot::wait(&bound, LONG).await,
            }
        });
        let mut looks = 0;
        let slot = poll_fn(|cx| {
            looks += 1;
            match waits.as_mut().poll(cx) {
                Poll::Ready(slot) => Poll::Ready(Some(slot)),
                Poll::Pending if gives_up && looks == 3 => Poll::Ready(None),
                Poll::Pending => {
                    if gives_up {
                        cx.waker().wake_by_ref();
                    }
                    Poll::Pending
                }
            }
        })
        .await;
        drop(waits);
        let Some(slot) = slot else { continue };
        let slot = slot.expect("nobody is forgotten");
        assert!(under_way.fetch_add(1, Relaxed) < max, "over the bound");
        for _ in 0..number % 3 {
            yield_now().await;
        }
        under_way.fetch_sub(1, Relaxed);
        drop(slot);
    }
}

/// CONN-12: over several threads there is never more than the bound at a time, and no wake-up is
/// lost: each gets its slot.
#[test]
fn threads_share_the_bound() {
    let max = 3;
    let bound = Arc::new(UpstreamBound::new(&settings(max)));
    let under_way = Arc::new(AtomicUsize::new(0));
    let threads: Vec<_> = (0..4)
        .map(|thread| {
            let (bound, under_way) = (Arc::clone(&bound), Arc::clone(&under_way));
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_time()
                    .build()
                    .unwrap();
                let tasks = LocalSet::new();
                let bound = LocalBound::new(&bound);
                for task in 0..5 {
                    let (bound, under_way) = (Rc::clone(&bound), Arc::clone(&under_way));
                    tasks.spawn_local(ask_often(bound, max, under_way, thread * 5 + task));
                }
                runtime.block_on(tasks);
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(bound.numbers(), numbers(0, 0));
}
