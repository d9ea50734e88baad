//! WebSockets: what a connection becomes after a 101 that was asked for.
//!
//! Both sides are plain byte streams then. They are copied both ways with half-closes kept, counted
//! as they pass, and ended on `WAF_WEBSOCKET_IDLE_TIMEOUT` or when the service stops.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use weir_shared::verdict::Action;

use super::frames::Frames;
use crate::downstream::socket::Socket;
use crate::downstream::{Downstream, Ending};
use crate::exchange::Exchange;
use crate::upstream::receiving::BodyReceiver;

/// How long a client may take to close after the application did.
const CLOSE_GRACE: Duration = Duration::from_secs(2);

/// A close frame with status 1008, policy violation (RFC 6455 §5.5.1, §7.4.1).
const POLICY_VIOLATION: &[u8] = b"\x88\x02\x03\xf0";

/// A WebSocket that both sides agreed to.
pub struct Tunnel {
    /// The upstream connection that answered 101, and what came behind the answer.
    pub upstream: BodyReceiver,
    /// The request, finished when the tunnel closes (LIMIT-5).
    pub exchange: Box<Exchange>,
    /// `WAF_WEBSOCKET_IDLE_TIMEOUT`
    pub idle_timeout: Option<Duration>,
}

/// Where a request that was answered 101 leaves its tunnel, for the connection to run it.
pub type TunnelSlot = RefCell<Option<Tunnel>>;

/// Runs a tunnel to its end. `early` is what the client sent behind its handshake.
pub async fn run(downstream: &Rc<Downstream>, mut socket: Socket, early: Bytes, tunnel: Tunnel) {
    socket.begin_tunnel();
    let Tunnel {
        upstream,
        mut exchange,
        idle_timeout,
    } = tunnel;
    downstream.begin_tunnel(exchange.identity.who());
    downstream.tunnel_carried(idle_timeout);
    let (upstream, early_upstream) = upstream.into_parts();

    let mut client_side = ClientSide {
        socket: TokioIo::new(socket),
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
    socket: TokioIo<Socket>,
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
            Pin::new(&mut this.socket).poll_read(cx, buf)
        };
        let read = buf.filled().len() - before;
        if read > 0 {
            this.downstream.upload.take(read, None);
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
        let outcome = Pin::new(&mut this.socket).poll_write(cx, buf);
        if let Poll::Ready(Ok(written)) = outcome {
            this.frames.pass(buf.get(..written).unwrap_or(buf));
            this.carried += written as u64;
        }
        outcome
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().socket).poll_flush(cx)
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
            this.downstream.tunnel_ends(CLOSE_GRACE);
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
