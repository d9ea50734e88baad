//! The connections of trusted proxies whose PROXY header has not come yet (EDGE-4), of one worker:
//! how many, and that the oldest gives way to a further one.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use tokio::sync::Notify;

/// So many may wait, of one worker. They have no slot among the connections yet.
pub const MAX_UNNAMED: usize = 128;

/// Those that wait, by age.
#[derive(Default)]
pub struct Unnamed {
    waiting: RefCell<BTreeMap<u64, Rc<Notify>>>,
    next: Cell<u64>,
}

impl Unnamed {
    /// Waits for what leads to the name; none where this gave way to another.
    pub async fn wait<T>(&self, naming: impl Future<Output = T>) -> Option<T> {
        let number = self.next.get();
        self.next.set(number.wrapping_add(1));
        let gives_way = Rc::new(Notify::new());
        {
            let mut waiting = self.waiting.borrow_mut();
            if waiting.len() >= MAX_UNNAMED
                && let Some((_, oldest)) = waiting.pop_first()
            {
                oldest.notify_one();
            }
            waiting.insert(number, Rc::clone(&gives_way));
        }
        let _place = Place(self, number);
        let (mut naming, mut gives_way) = (pin!(naming), pin!(gives_way.notified()));
        poll_fn(|cx| match naming.as_mut().poll(cx) {
            Poll::Ready(named) => Poll::Ready(Some(named)),
            Poll::Pending => gives_way.as_mut().poll(cx).map(|()| None),
        })
        .await
    }
}

/// The place of one that waits.
struct Place<'a>(&'a Unnamed, u64);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.waiting.borrow_mut().remove(&self.1);
    }
}
