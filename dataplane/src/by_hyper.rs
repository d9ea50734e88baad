//! What hyper's server reads in some bytes, with the service's own settings of it: beside it stands
//! what this crate reads by itself. For tests and fuzz targets alone.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::future::{Future as _, poll_fn};
use std::io;
use std::mem::MaybeUninit;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Request, Response, Version};
use http_body_util::Empty;
use hyper::body::{Body as _, Incoming};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::service::service_fn;
use tokio::io::ReadBuf;

use crate::connection;
use crate::downstream::inbound::Inbound;
use crate::downstream::upload::Upload;
use crate::head::{Fields as _, Head as _};
use crate::plain::{MAX_FIELDS, Parsed, Plain};

/// Polls without anything read, handed over or written, after which hyper is taken to wait: it
/// comes back to some things by waking itself.
const IDLE: usize = 8;

/// A request as hyper handed it over.
#[derive(Debug)]
pub struct Message {
    /// Its head.
    pub head: Parts,
    /// Its content, as far as it came.
    pub content: Vec<u8>,
    /// The fields behind its content.
    pub trailers: Option<HeaderMap>,
    /// Whether it came to its end.
    pub is_whole: bool,
}

/// All that hyper made of a connection.
#[derive(Debug, Default)]
pub struct Connection {
    /// The requests.
    pub messages: Vec<Message>,
    /// The responses.
    pub written: Vec<u8>,
}

/// How the bytes get to hyper.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Through {
    /// As they came.
    Nothing,
    /// Cut and framed, as the service does it.
    Inbound,
}

/// A client that has sent these bytes, and waits; `cuts` are the places where one read ends and the
/// next begins, in order. Every request is read to its end and answered with nothing.
pub fn read(bytes: &[u8], cuts: &[usize], through: Through) -> Connection {
    let found = Rc::new(RefCell::new(Connection::default()));
    let inbound = (through == Through::Inbound).then(|| Inbound::new(Bytes::new()));
    let inbound = Rc::new(RefCell::new(inbound));
    let at = Rc::new(Cell::new(0));
    let client = Client {
        bytes: bytes.to_vec(),
        at: Rc::clone(&at),
        cuts: cuts.to_vec(),
        inbound: Rc::clone(&inbound),
        upload: Upload::default(),
        found: Rc::clone(&found),
    };
    let service = service_fn(|request: Request<Incoming>| {
        if let Some(inbound) = &mut *inbound.borrow_mut() {
            inbound.begin_body(connection::framing(&request));
        }
        let found = Rc::clone(&found);
        async move {
            take(request, &found).await;
            Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
        }
    });
    {
        let mut connection = pin!(connection::builder().serve_connection(client, service));
        let mut cx = Context::from_waker(Waker::noop());
        let (mut idle, mut before) = (0, None);
        while idle < IDLE && connection.as_mut().poll(&mut cx).is_pending() {
            let now = Some((at.get(), found.borrow().size()));
            idle = if now == before { idle + 1 } else { 0 };
            before = now;
        }
    }
    found.take()
}

impl Connection {
    /// Grows with whatever happens.
    fn size(&self) -> (usize, usize, usize) {
        let content = self.messages.iter().map(|message| message.content.len());
        (self.messages.len(), content.sum(), self.written.len())
    }
}

async fn take(request: Request<Incoming>, found: &RefCell<Connection>) {
    let (head, body) = request.into_parts();
    let mut body = pin!(body);
    found.borrow_mut().messages.push(Message {
        head,
        content: Vec::new(),
        trailers: None,
        is_whole: false,
    });
    loop {
        let frame = poll_fn(|cx| body.as_mut().poll_frame(cx)).await;
        let mut found = found.borrow_mut();
        let Some(message) = found.messages.last_mut() else {
            return;
        };
        match frame {
            None => {
                message.is_whole = true;
                return;
            }
            Some(Err(_)) => return,
            Some(Ok(frame)) => match frame.into_data() {
                Ok(content) => message.content.extend_from_slice(&content),
                Err(frame) => message.trailers = frame.into_trailers().ok(),
            },
        }
    }
}

/// What is answered before hyper, hyper takes for the same request: nothing is told to the
/// application that hyper would have refused, or would have told otherwise.
///
/// # Errors
/// A sentence with both.
pub fn compare_plain(bytes: &[u8]) -> Result<(), String> {
    let mut space = [const { MaybeUninit::uninit() }; MAX_FIELDS];
    let Parsed::Whole(plain, length) = Plain::parse(bytes, &mut space) else {
        return Ok(());
    };
    let theirs = read(
        bytes.get(..length).unwrap_or_default(),
        &[],
        Through::Nothing,
    );
    let [Message { head, content, .. }] = theirs.messages.as_slice() else {
        return Err(format!("hyper reads {:?}", theirs.messages));
    };
    let mut fields: Vec<_> = (plain.fields())
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim_ascii().to_vec()))
        .collect();
    let mut same: Vec<_> = (head.headers.iter())
        .map(|(name, value)| (name.to_string(), value.as_bytes().trim_ascii().to_vec()))
        .collect();
    fields.sort();
    same.sort();
    let query = plain.query().map(|query| format!("?{query}"));
    let target = format!("{}{}", plain.path(), query.unwrap_or_default());
    let closes = theirs
        .written
        .windows(17)
        .any(|part| part == b"connection: close");
    let ours = (
        plain.method(),
        &*target,
        fields,
        plain.closes,
        Version::HTTP_11,
    );
    let said = head.uri.to_string();
    let hyper = (head.method.as_str(), &*said, same, closes, head.version);
    if ours != hyper || !content.is_empty() {
        return Err(format!("{ours:?}, but hyper {hyper:?}"));
    }
    Ok(())
}

/// The client's side of the connection.
struct Client {
    bytes: Vec<u8>,
    at: Rc<Cell<usize>>,
    cuts: Vec<usize>,
    inbound: Rc<RefCell<Option<Inbound>>>,
    upload: Upload,
    found: Rc<RefCell<Connection>>,
}

impl Client {
    /// The next piece that fits; none where all has come.
    fn next(&self, room: usize) -> Poll<&[u8]> {
        let at = self.at.get();
        let cut = self.cuts.iter().copied().find(|cut| *cut > at);
        let end = cut.unwrap_or(usize::MAX).min(at.saturating_add(room));
        let piece = self.bytes.get(at..end.min(self.bytes.len()));
        let piece = piece.unwrap_or_default();
        self.at.set(at + piece.len());
        if piece.is_empty() {
            return Poll::Pending;
        }
        Poll::Ready(piece)
    }
}

impl Read for Client {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut out: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let inbound = Rc::clone(&this.inbound);
        let mut inbound = inbound.borrow_mut();
        let Some(inbound) = &mut *inbound else {
            let piece = ready!(this.next(out.remaining()));
            out.put_slice(piece);
            return Poll::Ready(Ok(()));
        };
        inbound.poll_read(cx, out, &this.upload, |_, buf: &mut ReadBuf<'_>| {
            buf.put_slice(ready!(this.next(buf.remaining())));
            Poll::Ready(Ok(()))
        })
    }
}

impl Write for Client {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.found.borrow_mut().written.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
