//! A client's body that nobody reads.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

use bytes::Bytes;
use http::HeaderMap;
use http::header::EXPECT;
use hyper::body::Body as _;

use crate::client_body::ClientBody;

/// Of an unread body, this much is taken at once so that a refused request need not cost its
/// connection.
const MAX_DISCARDED: usize = 64 * 1024;

/// Takes what has already come of a body that nobody will read, so that a small one does not cost
/// the connection; true if something is left of it. A client that waits for a 100 is not asked for
/// its body.
pub async fn discard_body(body: Option<ClientBody>, headers: Option<&HeaderMap>) -> bool {
    let Some(mut body) = body.filter(|body| !body.is_end_stream()) else {
        return false;
    };
    if headers.is_some_and(|headers| headers.contains_key(EXPECT)) {
        return true;
    }
    let mut discarded = 0;
    poll_fn(|cx| {
        while discarded < MAX_DISCARDED {
            match Pin::new(&mut body).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => {
                    discarded += frame.data_ref().map_or(0, Bytes::len);
                }
                Poll::Ready(Some(Err(_)) | None) | Poll::Pending => break,
            }
        }
        Poll::Ready(!body.is_end_stream())
    })
    .await
}
