//! A WebSocket between client and application: bytes both ways, and the frames that are looked at.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use weir_shared::verdict::Action;

use crate::conn::{Downstream, Ending};
use crate::request::exchange::Exchange;
use crate::upstream::receiving::BodyReceiver;

/// How long a client may take to close after the application did.
const CLOSE_GRACE_NS: u64 = 2_000_000_000;

/// A close frame with status 1008, policy violation (RFC 6455 §5.5.1, §7.4.1).
const POLICY_VIOLATION: &[u8] = b"\x88\x02\x03\xf0";

/// A WebSocket that both sides agreed to.
pub struct Tunnel {
    /// The upstream connection that answered 101, and what came behind the answer.
    pub upstream: BodyReceiver,
    /// The request, finished when the tunnel closes (LIMIT-5).
    pub exchange: Box<Exchange>,
}

/// Runs a tunnel to its end. `early` is what the client sent behind its handshake.
pub async fn run(downstream: &Rc<Downstream>, early: Bytes, tunnel: Tunnel) {
    let Tunnel {
        upstream,
        mut exchange,
    } = tunnel;
    let idle_timeout = exchange.worker.in_force.settings.timeouts.websocket_idle;
    downstream.begin_tunnel(exchange.identity.who());
    downstream.tunnel_carried(idle_timeout);
    let (upstream, early_upstream) = upstream.into_parts();

    let mut client_side = ClientSide {
        early,
        downstream,
        idle_timeout,
        frames: Frames::default(),
        carried: 0,
    };
    let mut application_side = ApplicationSide {
        stream: upstream,
        early: early_upstream,
        downstream,
        idle_timeout,
    };
    {
        let mut copy = pin!(tokio::io::copy_bidirectional(
            &mut client_side,
            &mut application_side
        ));
        poll_fn(|cx| {
            // However it ends, what it carried was counted on the way.
            if matches!(
                downstream.ending(),
                Ending::Stalled | Ending::TooSlow | Ending::Refused | Ending::Abort
            ) {
                return Poll::Ready(());
            }
            copy.as_mut().poll(cx).map(|_| ())
        })
        .await;
    }
    if downstream.ending() == Ending::Refused && client_side.frames.is_between() {
        downstream.write_at_once(POLICY_VIOLATION);
    }
    exchange.response_bytes = client_side.carried;
    exchange.finish(Action::Passed);
}

struct ClientSide<'a> {
    early: Bytes,
    downstream: &'a Downstream,
    idle_timeout: Option<Duration>,
    /// Of the application, as far as the client has them.
    frames: Frames,
    /// Bytes that the client's socket took.
    carried: u64,
}

struct ApplicationSide<'a> {
    stream: TcpStream,
    early: Bytes,
    downstream: &'a Downstream,
    idle_timeout: Option<Duration>,
}

/// Gives out what was read early before anything new is read; true if it did.
fn give_early(early: &mut Bytes, buf: &mut ReadBuf<'_>) -> bool {
    if early.is_empty() {
        return false;
    }
    let fits = early.len().min(buf.remaining());
    buf.put_slice(&early.split_to(fits));
    true
}

impl AsyncRead for ClientSide<'_> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        let outcome = if give_early(&mut this.early, buf) {
            Poll::Ready(Ok(()))
        } else {
            this.downstream.poll_read(cx, buf)
        };
        let read = buf.filled().len() - before;
        if read > 0 {
            this.downstream.upload().take(read, None);
            this.downstream.tunnel_carried(this.idle_timeout);
        }
        outcome
    }
}

impl AsyncWrite for ClientSide<'_> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let outcome = this.downstream.poll_write_tunnel(cx, buf);
        if let Poll::Ready(Ok(written)) = outcome {
            this.frames.pass(buf.get(..written).unwrap_or(buf));
            this.carried += written as u64;
        }
        outcome
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.downstream.poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.downstream.shutdown_write();
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for ApplicationSide<'_> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        let outcome = if give_early(&mut this.early, buf) {
            Poll::Ready(Ok(()))
        } else {
            Pin::new(&mut this.stream).poll_read(cx, buf)
        };
        if buf.filled().len() > before {
            this.downstream.tunnel_carried(this.idle_timeout);
        } else if matches!(outcome, Poll::Ready(Ok(()))) {
            // RFC 6455 §7.1.1: the server closes first. A client that does not follow soon is not
            // waited for.
            this.downstream
                .timed(|deadlines, now_ns| deadlines.tunnel_ends(now_ns, CLOSE_GRACE_NS));
        }
        outcome
    }
}

impl AsyncWrite for ApplicationSide<'_> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

/// The longest head of a frame without its mask: two bytes, and a length of eight.
const MAX_HEAD: usize = 10;

/// Follows one direction of a WebSocket.
#[derive(Default)]
pub struct Frames {
    /// The head of the frame that has begun.
    head: [u8; MAX_HEAD],
    /// Bytes of the head that have passed.
    have: usize,
    /// Bytes of the frame that are still to come, once its head has passed.
    left: u64,
}

impl Frames {
    /// These bytes have passed.
    pub fn pass(&mut self, mut bytes: &[u8]) {
        loop {
            let skipped = usize::try_from(self.left).unwrap_or(usize::MAX);
            let skipped = skipped.min(bytes.len());
            self.left -= skipped as u64;
            let Some((byte, rest)) = bytes.get(skipped..).and_then(<[u8]>::split_first) else {
                return;
            };
            bytes = rest;
            if let Some(place) = self.head.get_mut(self.have) {
                *place = *byte;
            }
            self.have += 1;
            if let Some(length) = self.length() {
                self.have = 0;
                self.left = length;
            }
        }
    }

    /// Whether the last frame has passed whole.
    pub const fn is_between(&self) -> bool {
        self.have == 0 && self.left == 0
    }

    /// What follows the head, once the head is whole: the mask and the payload.
    fn length(&self) -> Option<u64> {
        let [_, second, long @ ..] = self.head;
        let [a, b, ..] = long;
        let (needed, length) = match second & 0x7f {
            126 => (4, u64::from(u16::from_be_bytes([a, b]))),
            127 => (MAX_HEAD, u64::from_be_bytes(long)),
            short => (2, u64::from(short)),
        };
        let mask = if second & 0x80 == 0 { 0 } else { 4 };
        (self.have >= needed.max(2)).then(|| length.saturating_add(mask))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame(length: usize, masked: bool) -> Vec<u8> {
        let mask = if masked { 0x80 } else { 0 };
        let mut bytes = vec![0x82];
        match length {
            0..126 => bytes.push(mask | u8::try_from(length).unwrap()),
            126..65_536 => {
                bytes.push(mask | 126);
                bytes.extend(u16::try_from(length).unwrap().to_be_bytes());
            }
            _ => {
                bytes.push(mask | 127);
                bytes.extend((length as u64).to_be_bytes());
            }
        }
        bytes.extend(std::iter::repeat_n(
            0xff,
            length + if masked { 4 } else { 0 },
        ));
        bytes
    }

    proptest! {
        /// CONN-6: however the bytes are cut, the end of each frame is known, and nothing else is
        /// one.
        #[test]
        fn the_ends_of_frames_are_found(
            frames in prop::collection::vec((prop_oneof![0usize..300, 65_530usize..65_540], any::<bool>()), 1..6),
            cut in 1usize..70_000,
        ) {
            let (mut bytes, mut ends) = (Vec::new(), vec![0]);
            for (length, masked) in frames {
                bytes.extend(frame(length, masked));
                ends.push(bytes.len());
            }
            let mut followed = Frames::default();
            let mut passed = 0;
            for piece in bytes.chunks(cut) {
                followed.pass(piece);
                passed += piece.len();
                prop_assert_eq!(followed.is_between(), ends.contains(&passed));
            }
        }
    }
}
