//! HTTP/2 on a plain place, told by what a client begins with (`WAF_H2C`, RFC 9113 §3.3).

use std::future::poll_fn;
use std::task::{Poll, ready};

use bytes::Bytes;
use tokio::io::ReadBuf;

use super::flood::PREFACE;
use crate::downstream::Downstream;

/// How a connection begins.
pub enum Begins {
    /// With HTTP/2; this was read of it.
    Http2(Bytes),
    /// With something else; this was read of it.
    Other(Bytes),
}

/// Reads until it is clear how a connection begins. `early` was read already. One that ends first,
/// or is to end, begins with something else.
pub async fn told(downstream: &Downstream, early: Bytes) -> Begins {
    let mut read = early.to_vec();
    loop {
        let length = read.len().min(PREFACE.len());
        if read.get(..length) != PREFACE.get(..length) {
            return Begins::Other(read.into());
        }
        if length == PREFACE.len() {
            return Begins::Http2(read.into());
        }
        let mut more = [0; PREFACE.len()];
        let count = poll_fn(|cx| {
            downstream.note_waker(cx);
            if downstream.ending().is_cut() {
                return Poll::Ready(0);
            }
            let mut more = ReadBuf::new(more.get_mut(length..).unwrap_or_default());
            let outcome = ready!(downstream.poll_read(cx, &mut more));
            Poll::Ready(outcome.map_or(0, |()| more.filled().len()))
        })
        .await;
        if count == 0 {
            return Begins::Other(read.into());
        }
        read.extend_from_slice(more.get(length..length + count).unwrap_or_default());
    }
}
