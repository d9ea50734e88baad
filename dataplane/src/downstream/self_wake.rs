//! Polling what wakes its own task while it is polled, without polling the task twice.

use std::cell::OnceCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll, Wake, Waker};

/// The waker under which a task polls its upstream connection. Made at the first use, for the task
/// that it is used by: a connection's task never changes.
#[derive(Default)]
pub struct SelfWake {
    made: OnceCell<(Arc<Filter>, Waker)>,
}

impl SelfWake {
    /// Polls something that wakes itself while it is polled, as hyper's two halves of a connection
    /// do when one task drives both: `work` goes on until it cannot, so such a wake would only have
    /// the whole task polled once more for nothing. Where `work` is pending in the end and was
    /// woken meanwhile, the task is woken after all.
    pub fn without<R>(
        &self,
        cx: &mut Context<'_>,
        work: impl FnOnce(&mut Context<'_>) -> Poll<R>,
    ) -> Poll<R> {
        let (filter, waker) = self.made.get_or_init(|| {
            let filter = Arc::new(Filter {
                task: cx.waker().clone(),
                polling: AtomicBool::new(false),
                missed: AtomicBool::new(false),
            });
            let waker = Waker::from(Arc::clone(&filter));
            (filter, waker)
        });
        filter.missed.store(false, Relaxed);
        filter.polling.store(true, Relaxed);
        let outcome = work(&mut Context::from_waker(waker));
        filter.polling.store(false, Relaxed);
        if outcome.is_pending() && filter.missed.load(Relaxed) {
            cx.waker().wake_by_ref();
        }
        outcome
    }
}

/// Passes a wake on to the task, but for one that comes while the task polls. All of it happens on
/// one thread; the atomics only make it a waker, so relaxed ordering suffices.
struct Filter {
    task: Waker,
    polling: AtomicBool,
    missed: AtomicBool,
}

impl Wake for Filter {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.polling.load(Relaxed) {
            self.missed.store(true, Relaxed);
        } else {
            self.task.wake_by_ref();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[derive(Default)]
    struct Counted(AtomicUsize);

    impl Wake for Counted {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    /// A wake while polling counts only where the work is still pending afterwards; one that comes
    /// later always counts.
    #[test]
    fn the_task_is_woken_only_where_work_is_left() {
        let task = Arc::new(Counted::default());
        let waker = Waker::from(Arc::clone(&task));
        let cx = &mut Context::from_waker(&waker);
        let (self_wake, mut later) = (SelfWake::default(), None);
        let ready = self_wake.without(cx, |cx| {
            cx.waker().wake_by_ref();
            later = Some(cx.waker().clone());
            Poll::Ready(())
        });
        assert!(ready.is_ready());
        assert_eq!(task.0.load(Relaxed), 0);
        let pending: Poll<()> = self_wake.without(cx, |cx| {
            cx.waker().wake_by_ref();
            cx.waker().wake_by_ref();
            Poll::Pending
        });
        assert!(pending.is_pending());
        assert_eq!(task.0.load(Relaxed), 1);
        let silent: Poll<()> = self_wake.without(cx, |_| Poll::Pending);
        assert!(silent.is_pending());
        assert_eq!(task.0.load(Relaxed), 1);
        later.unwrap().wake();
        assert_eq!(task.0.load(Relaxed), 2);
    }
}
