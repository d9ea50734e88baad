//! Behaviour tests over HTTP/2: a test goes on writing and reading HTTP/1.1, and a thread between
//! it and the service says the same in HTTP/2. Requests go one after the other, each in a stream of
//! one connection, their bodies and answers piece by piece as they come.
//!
//! What ends there ends here: a stream that is reset ends the test's connection, a test that leaves
//! ends the connection to the service. What HTTP/2 cannot say (two lengths, a folded line) ends the
//! test's connection, and standard error says why.

use std::future::poll_fn;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};
use http::header::{CONNECTION, CONTENT_LENGTH, HOST, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, Uri, Version};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::task::JoinHandle;

use super::PATIENCE;
use super::raw_client::find;
use super::unread::OtherEnd;

/// The test's end of a connection that is translated.
pub(crate) struct Translated {
    pub(crate) near: TcpStream,
    /// The test has ended its sending side, and still reads.
    pub(crate) only_reads: Arc<AtomicBool>,
    /// The service's end.
    pub(crate) far_end: OtherEnd,
}

impl Translated {
    /// Translates on this connection to the service.
    #[track_caller]
    pub(crate) fn over(far: TcpStream) -> Self {
        let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("binds");
        let between = listener.local_addr().expect("an address");
        let near = TcpStream::connect(between).expect("connects");
        near.set_read_timeout(Some(PATIENCE)).expect("a time-out");
        near.set_write_timeout(Some(PATIENCE)).expect("a time-out");
        near.set_nodelay(true).expect("nodelay");
        let (other_end, _) = listener.accept().expect("accepts");
        // Neither waits with a small piece until the last one is acknowledged.
        for end in [&other_end, &far] {
            let _ = end.set_nodelay(true);
        }
        let far_end = OtherEnd::of(&far);
        let only_reads = Arc::new(AtomicBool::new(false));
        let noted = Arc::clone(&only_reads);
        std::thread::spawn(move || run(other_end, far, noted));
        Self {
            near,
            only_reads,
            far_end,
        }
    }
}

fn run(near: TcpStream, far: TcpStream, only_reads: Arc<AtomicBool>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let kept = far.try_clone().expect("twice");
    let ended = runtime.block_on(async {
        let near = asynchronous(near);
        let (read, mut write) = near.into_split();
        let mut near = Near {
            read,
            held: Vec::new(),
            only_reads,
        };
        let ended = translate(&mut near, &mut write, asynchronous(far)).await;
        if matches!(ended, Ok(())) {
            // Nothing that was said is to be lost by a reset.
            let _ = write.shutdown().await;
            let _ = tokio::time::timeout(PATIENCE, async {
                while near.fill().await.is_ok() {
                    near.held.clear();
                }
            })
            .await;
        }
        ended
    });
    match ended {
        Err(End::Reset) => {
            let _ = socket2::SockRef::from(&kept).set_linger(Some(Duration::ZERO));
        }
        Err(End::Unsayable(what)) => eprintln!("HTTP/2 cannot say this: {what}"),
        Ok(()) | Err(End::Left | End::Cut) => {}
    }
}

fn asynchronous(stream: TcpStream) -> tokio::net::TcpStream {
    stream.set_nonblocking(true).expect("non-blocking");
    tokio::net::TcpStream::from_std(stream).expect("in a runtime")
}

/// Why the translation ends before all is said.
enum End {
    /// The test has closed.
    Left,
    /// The test has reset its connection.
    Reset,
    /// The service has ended the stream or the connection.
    Cut,
    /// There are no words for it in HTTP/2.
    Unsayable(String),
}

impl From<h2::Error> for End {
    fn from(_: h2::Error) -> Self {
        Self::Cut
    }
}

/// The test, as it is read.
struct Near {
    read: OwnedReadHalf,
    held: Vec<u8>,
    only_reads: Arc<AtomicBool>,
}

impl Near {
    /// Reads more.
    async fn fill(&mut self) -> Result<(), End> {
        match self.read.read_buf(&mut self.held).await {
            Ok(0) => Err(End::Left),
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Err(End::Reset),
            Err(_) => Err(End::Left),
        }
    }

    /// Waits for the end of what the test sends; where it only reads from then on, for ever.
    async fn leaves(&mut self) -> End {
        loop {
            if let Err(end) = self.fill().await {
                if matches!(end, End::Left) && self.only_reads.load(Ordering::SeqCst) {
                    std::future::pending::<()>().await;
                }
                return end;
            }
        }
    }

    /// What comes until this, which is left out.
    async fn until(&mut self, end: &[u8]) -> Result<Vec<u8>, End> {
        loop {
            if let Some(at) = find(&self.held, end) {
                let mut found: Vec<u8> = self.held.drain(..at + end.len()).collect();
                found.truncate(at);
                return Ok(found);
            }
            self.fill().await?;
        }
    }

    /// At most so many bytes, and one at least.
    async fn some(&mut self, at_most: u64) -> Result<Bytes, End> {
        if self.held.is_empty() {
            self.fill().await?;
        }
        let count = self
            .held
            .len()
            .min(usize::try_from(at_most).unwrap_or(usize::MAX));
        Ok(self.held.drain(..count).collect())
    }
}

/// Says requests until one side has enough: `Ok` where what was asked is answered.
async fn translate(
    near: &mut Near,
    write: &mut OwnedWriteHalf,
    far: tokio::net::TcpStream,
) -> Result<(), End> {
    // A connection on which nothing was said says nothing here either.
    let mut nothing = [0; 1];
    match either(near.fill(), far.peek(&mut nothing)).await {
        Either::First(filled) => filled?,
        Either::Second(_) => return Err(End::Cut),
    }
    let (requests, connection) = h2::client::handshake(far).await?;
    let mut connection = tokio::spawn(async move {
        let _ = connection.await;
    });
    let mut requests = requests.ready().await?;
    loop {
        let head = match either(near.until(b"\r\n\r\n"), &mut connection).await {
            Either::First(head) => head,
            Either::Second(_) => return Ok(()),
        };
        let said = match head {
            Ok(head) => parse(&head).map_err(End::Unsayable)?,
            Err(End::Left) => return Ok(()),
            Err(end) => return Err(end),
        };
        let ends = said.closes;
        let goes = one(near, write, &mut requests, said).await?;
        if ends || matches!(goes, Goes::No) {
            return end(requests, connection).await;
        }
    }
}

/// Ends a connection in good order.
async fn end(requests: SendRequest<Bytes>, connection: JoinHandle<()>) -> Result<(), End> {
    drop(requests);
    let _ = tokio::time::timeout(PATIENCE, connection).await;
    Ok(())
}

/// Whether another request can follow.
enum Goes {
    On,
    No,
}

/// One request and its answer.
async fn one(
    near: &mut Near,
    write: &mut OwnedWriteHalf,
    requests: &mut SendRequest<Bytes>,
    said: Said,
) -> Result<Goes, End> {
    poll_fn(|cx| requests.poll_ready(cx)).await?;
    let to_head = said.request.method() == Method::HEAD;
    let has_body = !matches!(said.body, Framing::Length(0));
    let (response, mut body) = requests.send_request(said.request, !has_body)?;
    let mut answering = pin!(answer(response, write, to_head));
    if has_body {
        let sending = pin!(sent_or_refused(near, &mut body, said.body));
        match either(&mut answering, sending).await {
            // Nobody reads the rest of the body: in HTTP/1.1 no request can follow it.
            Either::First(answered) => return answered.map(|()| Goes::No),
            Either::Second(sent) => sent?,
        }
    }
    match either(answering, near.leaves()).await {
        Either::First(answered) => answered.map(|()| Goes::On),
        Either::Second(end) => Err(end),
    }
}

/// Sends a body; where the service wants no more of it, waits for ever: the answer says why.
async fn sent_or_refused(
    near: &mut Near,
    to: &mut SendStream<Bytes>,
    framing: Framing,
) -> Result<(), End> {
    match send(near, to, framing).await {
        Err(End::Cut) => std::future::pending().await,
        sent => sent,
    }
}

/// Sends a body.
async fn send(near: &mut Near, to: &mut SendStream<Bytes>, framing: Framing) -> Result<(), End> {
    if let Framing::Length(mut left) = framing {
        while left > 0 {
            let piece = near.some(left).await?;
            left -= piece.len() as u64;
            say(to, piece, left == 0).await?;
        }
        return Ok(());
    }
    loop {
        let line = near.until(b"\r\n").await?;
        let size = std::str::from_utf8(&line).ok();
        let size = size.and_then(|line| line.split(';').next());
        let size = size.and_then(|size| u64::from_str_radix(size, 16).ok());
        let mut left = size.ok_or_else(|| End::Unsayable(format!("chunk size {line:?}")))?;
        if left == 0 {
            break;
        }
        while left > 0 {
            let piece = near.some(left).await?;
            left -= piece.len() as u64;
            say(to, piece, false).await?;
        }
        near.until(b"\r\n").await?;
    }
    let mut trailers = HeaderMap::new();
    loop {
        let line = near.until(b"\r\n").await?;
        if line.is_empty() {
            break;
        }
        let (name, value) = field(&line).map_err(End::Unsayable)?;
        trailers.append(name, value);
    }
    if trailers.is_empty() {
        return to.send_data(Bytes::new(), true).map_err(End::from);
    }
    let names = format!("{:?}", trailers.keys());
    to.send_trailers(trailers)
        .map_err(|_| End::Unsayable(names))
}

/// Sends a piece as the service makes room for it.
async fn say(to: &mut SendStream<Bytes>, mut piece: Bytes, is_last: bool) -> Result<(), End> {
    while !piece.is_empty() {
        to.reserve_capacity(piece.len());
        let room = poll_fn(|cx| to.poll_capacity(cx)).await;
        let room = room.ok_or(End::Cut)??;
        let part = piece.split_to(room.min(piece.len()));
        let ends = is_last && piece.is_empty();
        to.send_data(part, ends)?;
    }
    Ok(())
}

/// Gives the test an answer as it comes.
async fn answer(
    mut response: ResponseFuture,
    write: &mut OwnedWriteHalf,
    to_head: bool,
) -> Result<(), End> {
    let head = loop {
        let next = poll_fn(|cx| {
            if let Poll::Ready(Some(interim)) = response.poll_informational(cx) {
                return Poll::Ready(Err(interim));
            }
            std::pin::Pin::new(&mut response).poll(cx).map(Ok)
        });
        match next.await {
            Ok(head) => break head?,
            Err(interim) => tell(write, &head_of(&interim?)).await?,
        }
    };
    let has_body = !to_head && !matches!(head.status().as_u16(), 204 | 304);
    let has_length = head.headers().contains_key(CONTENT_LENGTH);
    let is_empty = head.body().is_end_stream();
    let mut text = head_of(&head);
    if has_body && !has_length {
        let framing: &[u8] = match is_empty {
            true => b"content-length: 0\r\n",
            false => b"transfer-encoding: chunked\r\n",
        };
        text.splice(text.len() - 2..text.len() - 2, framing.iter().copied());
    }
    tell(write, &text).await?;
    body(head.into_body(), write, has_length).await
}

async fn body(
    mut body: RecvStream,
    write: &mut OwnedWriteHalf,
    has_length: bool,
) -> Result<(), End> {
    if body.is_end_stream() {
        return Ok(());
    }
    while let Some(piece) = body.data().await {
        let piece = piece?;
        if !has_length && !piece.is_empty() {
            tell(write, format!("{:x}\r\n", piece.len()).as_bytes()).await?;
        }
        tell(write, &piece).await?;
        if !has_length && !piece.is_empty() {
            tell(write, b"\r\n").await?;
        }
        body.flow_control().release_capacity(piece.len())?;
    }
    let trailers = body.trailers().await?.unwrap_or_default();
    if has_length {
        return Ok(());
    }
    let mut text = b"0\r\n".to_vec();
    text.extend(fields(&trailers));
    text.extend(b"\r\n");
    tell(write, &text).await
}

async fn tell(write: &mut OwnedWriteHalf, bytes: &[u8]) -> Result<(), End> {
    write.write_all(bytes).await.map_err(|_| End::Left)
}

fn head_of<T>(response: &Response<T>) -> Vec<u8> {
    let mut text = format!("HTTP/1.1 {}\r\n", response.status()).into_bytes();
    text.extend(fields(response.headers()));
    text.extend(b"\r\n");
    text
}

fn fields(headers: &HeaderMap) -> Vec<u8> {
    let line = |(name, value): (&HeaderName, &HeaderValue)| {
        [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"].concat()
    };
    headers.iter().flat_map(line).collect()
}

/// How long a body is.
#[derive(Clone, Copy)]
enum Framing {
    Length(u64),
    Chunked,
}

/// A head as it can be said.
struct Said {
    request: Request<()>,
    body: Framing,
    /// The connection is to end behind the answer.
    closes: bool,
}

fn parse(head: &[u8]) -> Result<Said, String> {
    let mut lines = head
        .split(|byte| *byte == b'\n')
        .map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let line = String::from_utf8_lossy(lines.next().unwrap_or_default()).into_owned();
    let words: Vec<&str> = line.split(' ').collect();
    let [method, target, "HTTP/1.1"] = words[..] else {
        return Err(line);
    };
    let mut headers = HeaderMap::new();
    for line in lines {
        let (name, value) = field(line)?;
        headers.append(name, value);
    }
    let body = framing(&headers)?;
    let connection = headers.get_all(CONNECTION).iter();
    let options: Vec<String> = connection
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|option| option.trim().to_ascii_lowercase())
        .collect();
    // They are the connection's own, which another one takes the place of.
    for name in [CONNECTION, TRANSFER_ENCODING, UPGRADE] {
        headers.remove(name);
    }
    headers.remove("keep-alive");
    headers.remove("proxy-connection");
    if headers.get_all(HOST).iter().count() > 1 {
        return Err(line);
    }
    let uri = match headers.get(HOST).and_then(|host| host.to_str().ok()) {
        Some(host) if target.starts_with('/') => {
            let uri = format!("http://{host}{target}").parse::<Uri>();
            headers.remove(HOST);
            uri
        }
        // It names its host itself.
        _ if target.contains("://") => {
            headers.remove(HOST);
            target.parse()
        }
        _ => target.parse(),
    };
    let mut request = Request::new(());
    *request.method_mut() = method.parse().map_err(|_| line.clone())?;
    *request.uri_mut() = uri.map_err(|_| line)?;
    *request.version_mut() = Version::HTTP_2;
    *request.headers_mut() = headers;
    Ok(Said {
        request,
        body,
        closes: options.iter().any(|option| option == "close"),
    })
}

fn framing(headers: &HeaderMap) -> Result<Framing, String> {
    let lengths: Vec<_> = headers.get_all(CONTENT_LENGTH).iter().collect();
    let codings: Vec<_> = headers.get_all(TRANSFER_ENCODING).iter().collect();
    match (&lengths[..], &codings[..]) {
        ([], []) => Ok(Framing::Length(0)),
        ([length], []) => {
            let length = length.to_str().ok().and_then(|length| length.parse().ok());
            length
                .map(Framing::Length)
                .ok_or_else(|| format!("{lengths:?}"))
        }
        ([], [coding]) if *coding == "chunked" => Ok(Framing::Chunked),
        _ => Err(format!("{lengths:?} {codings:?}")),
    }
}

fn field(line: &[u8]) -> Result<(HeaderName, HeaderValue), String> {
    let unsayable = || String::from_utf8_lossy(line).into_owned();
    let colon = line.iter().position(|byte| *byte == b':');
    let (name, value) = line.split_at(colon.ok_or_else(unsayable)?);
    let name = HeaderName::from_bytes(name).map_err(|_| unsayable())?;
    let value = HeaderValue::from_bytes(value[1..].trim_ascii()).map_err(|_| unsayable())?;
    Ok((name, value))
}

/// What came first of two.
enum Either<A, B> {
    First(A),
    Second(B),
}

async fn either<A, B>(
    first: impl Future<Output = A>,
    second: impl Future<Output = B>,
) -> Either<A, B> {
    let (mut first, mut second) = (pin!(first), pin!(second));
    poll_fn(|cx| {
        if let Poll::Ready(first) = first.as_mut().poll(cx) {
            return Poll::Ready(Either::First(first));
        }
        second.as_mut().poll(cx).map(Either::Second)
    })
    .await
}
