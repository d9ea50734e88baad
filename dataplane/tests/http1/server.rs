//! hyper's server on a connection that is a script: what it makes of some bytes, with the bounds
//! that the service has. The tests and the fuzz targets share this file.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::future::{Future as _, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::Empty;
use hyper::body::{Body as _, Incoming};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::server::conn::http1;
use hyper::service::service_fn;

/// Head of a request at most, bytes, and what hyper holds at most.
const MAX_HEAD: usize = 32 * 1024;
/// Polls of one connection at most.
const MAX_POLLS: usize = 10_000;

/// A request as hyper handed it over.
#[derive(Debug)]
pub struct Message {
    pub head: Parts,
    /// Of its content, as the head says it; none where it comes in chunks.
    pub length: Option<u64>,
    pub content: Vec<u8>,
    pub trailers: Option<HeaderMap>,
    /// Whether it came to its end.
    pub is_whole: bool,
    /// Whether its body is malformed.
    pub is_broken: bool,
}

/// All that hyper made of a connection.
#[derive(Debug, Default)]
pub struct Connection {
    pub messages: Vec<Message>,
    /// The status with which it refused what follows them, if it did.
    pub refusal: Option<StatusCode>,
    /// Whether it waits for more.
    pub is_open: bool,
}

/// A client that has sent these bytes, and waits. `cuts` are the places where one read ends and the
/// next begins, in order. Every request is read to its end and answered with nothing.
pub fn read(bytes: &[u8], cuts: &[usize]) -> Connection {
    let mut found = Connection::default();
    found.refusal = serve(bytes, cuts, &[bytes.len()], |messages, is_open| {
        (found.messages, found.is_open) = (std::mem::take(messages), is_open);
    });
    found
}

/// How many requests are whole once a client has sent so many bytes and no more, and whether the
/// connection waits for more then: for each of these places, in order.
pub fn read_until(bytes: &[u8], places: &[usize]) -> Vec<(usize, bool)> {
    let mut found = Vec::new();
    serve(bytes, &[], places, |messages, is_open| {
        let whole = messages.iter().filter(|message| message.is_whole);
        found.push((whole.count(), is_open));
    });
    found
}

/// `at_place` is told what was read at each of the places, and whether the connection waits. Gives
/// the status with which the last request was refused, if it was.
fn serve(
    bytes: &[u8],
    cuts: &[usize],
    places: &[usize],
    mut at_place: impl FnMut(&mut Vec<Message>, bool),
) -> Option<StatusCode> {
    let messages = RefCell::new(Vec::new());
    let (written, until) = (Rc::new(RefCell::new(Vec::new())), Rc::new(Cell::new(0)));
    let client = Client {
        bytes: bytes.to_vec(),
        at: 0,
        until: Rc::clone(&until),
        cuts: cuts.to_vec(),
        written: Rc::clone(&written),
    };
    let service = service_fn(|request: Request<Incoming>| {
        let messages = &messages;
        async move {
            let mut response = Response::new(Empty::<Bytes>::new());
            // A 200 would make a tunnel of the connection.
            if *request.method() == Method::CONNECT {
                *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
            }
            take(request, messages).await;
            Ok::<_, Infallible>(response)
        }
    });
    let mut builder = http1::Builder::new();
    builder
        .header_read_timeout(None)
        .max_header_size(MAX_HEAD)
        .max_buf_size(MAX_HEAD);
    let mut connection = pin!(builder.serve_connection(client, service));
    let mut is_open = true;
    for place in places {
        until.set(*place);
        is_open = is_open && is_open_after(|cx| connection.as_mut().poll(cx).is_ready());
        at_place(&mut messages.borrow_mut(), is_open);
    }
    let refusal = last_status(&written.borrow());
    refusal.filter(|status| status.is_client_error() && *status != StatusCode::METHOD_NOT_ALLOWED)
}

/// Polls until the end, or until only the client could go on.
fn is_open_after(mut poll: impl FnMut(&mut Context<'_>) -> bool) -> bool {
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut cx = Context::from_waker(&waker);
    for _ in 0..MAX_POLLS {
        if poll(&mut cx) {
            return false;
        }
        if !woken.0.swap(false, Ordering::Relaxed) {
            return true;
        }
    }
    panic!("a connection that never waits");
}

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

async fn take(request: Request<Incoming>, messages: &RefCell<Vec<Message>>) {
    let (head, body) = request.into_parts();
    let mut body = pin!(body);
    let length = match body.is_end_stream() {
        true => Some(0),
        false => body.size_hint().exact(),
    };
    messages.borrow_mut().push(Message {
        head,
        length,
        content: Vec::new(),
        trailers: None,
        is_whole: false,
        is_broken: false,
    });
    loop {
        let frame = poll_fn(|cx| body.as_mut().poll_frame(cx)).await;
        let mut messages = messages.borrow_mut();
        let message = messages.last_mut().expect("it was put there");
        match frame {
            None => {
                message.is_whole = true;
                return;
            }
            Some(Err(_)) => {
                message.is_broken = true;
                return;
            }
            Some(Ok(frame)) => match frame.into_data() {
                Ok(content) => message.content.extend_from_slice(&content),
                Err(frame) => message.trailers = frame.into_trailers().ok(),
            },
        }
    }
}

/// The status of the last response. None of them has a body.
fn last_status(written: &[u8]) -> Option<StatusCode> {
    let text = std::str::from_utf8(written).expect("heads alone");
    let (_, line) = text.rsplit_once("HTTP/1.")?;
    line.get(2..5)?.parse().ok()
}

/// The client's side of the connection.
struct Client {
    bytes: Vec<u8>,
    at: usize,
    /// So many of them are sent by now.
    until: Rc<Cell<usize>>,
    cuts: Vec<usize>,
    written: Rc<RefCell<Vec<u8>>>,
}

impl Read for Client {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        mut out: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let at = self.at;
        let cut = self.cuts.iter().copied().find(|cut| *cut > at);
        let end = cut.unwrap_or(self.bytes.len()).min(self.until.get());
        let end = end.min(at + out.remaining());
        if end == at {
            return Poll::Pending;
        }
        out.put_slice(&self.bytes[at..end]);
        self.at = end;
        Poll::Ready(Ok(()))
    }
}

impl Write for Client {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.written.borrow_mut().extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
