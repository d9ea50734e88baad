//! The end of a connection that has answered: what is written is not lost by it.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use crate::downstream::{Downstream, Ending};

/// Bytes that a lingering close reads at most.
const LINGER_BYTES: usize = 1024 * 1024;
/// Time that a lingering close waits at most.
const LINGER: Duration = Duration::from_secs(2);

/// Writes what TLS still holds of a response that hyper has ended.
pub async fn write_rest(downstream: &Downstream) {
    poll_fn(|cx| {
        if downstream.ending().is_cut() {
            return Poll::Ready(());
        }
        downstream.poll_flush(cx).map(drop)
    })
    .await;
}

/// Sends FIN, then reads and discards for a bounded while: closing with bytes unread would make the
/// system send a reset, and the client would lose the response it has not read yet.
pub async fn linger(downstream: &Downstream) {
    downstream.shutdown_write();
    let mut timeout = pin!(tokio::time::sleep(LINGER));
    let mut left = LINGER_BYTES;
    let mut scratch = [0u8; 8192];
    poll_fn(|cx| {
        if timeout.as_mut().poll(cx).is_ready() || downstream.ending() == Ending::Abort {
            return Poll::Ready(());
        }
        while left > 0 {
            match downstream.discard(&mut scratch) {
                Some(0) => return Poll::Ready(()),
                Some(read) => left = left.saturating_sub(read),
                None if downstream.poll_arrival(cx).is_ready() => {}
                None => return Poll::Pending,
            }
        }
        Poll::Ready(())
    })
    .await;
}
