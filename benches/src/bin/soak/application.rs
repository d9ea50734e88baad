//! The application behind the proxy: it answers well, badly, late or not at all, as the path says.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use weir_benches::message::{Message, receive};

/// The length of the body of `/large`.
const LARGE: usize = 64 * 1024;
/// How often the listener looks for an outage.
const LOOK: Duration = Duration::from_millis(20);
/// How long `/slow` takes.
const SLOW: Duration = Duration::from_millis(30);

/// What the threads know of the application.
#[derive(Debug, Default)]
pub(crate) struct Switch {
    /// Whether there is an outage: nothing listens and kept connections end.
    pub(crate) down: AtomicBool,
    /// Heads of answers that were written, interim ones not among them.
    pub(crate) answers: AtomicU64,
}

/// Serves on a thread of its own until the process ends.
pub(crate) fn start(switch: Arc<Switch>) -> Result<SocketAddr> {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0))?;
    let address = listener.local_addr()?;
    listener.set_nonblocking(true)?;
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build()?;
    std::thread::spawn(move || {
        let local = tokio::task::LocalSet::new();
        if let Err(error) = local.block_on(&runtime, listen(listener, address, switch)) {
            eprintln!("soak: the application ended: {error:#}");
        }
    });
    Ok(address)
}

async fn listen(
    first: std::net::TcpListener,
    address: SocketAddr,
    switch: Arc<Switch>,
) -> Result<()> {
    let mut listener = Some(TcpListener::from_std(first)?);
    loop {
        let down = switch.down.load(Ordering::SeqCst);
        if down {
            listener = None;
        } else if listener.is_none() {
            listener = Some(TcpListener::bind(address).await.context("the old port")?);
        }
        let accepted = async {
            match &listener {
                Some(listener) => listener.accept().await,
                None => std::future::pending().await,
            }
        };
        let Ok(accepted) = tokio::time::timeout(LOOK, accepted).await else {
            continue;
        };
        let (stream, _) = accepted?;
        let switch = Arc::clone(&switch);
        tokio::task::spawn_local(async move {
            // A proxy that closes a connection is no fault of this run.
            let _ = serve(stream, &switch).await;
        });
    }
}

async fn serve(mut stream: TcpStream, switch: &Switch) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = Vec::new();
    loop {
        let Some(request) = receive(&mut stream, &mut buffer, Message::whole).await? else {
            return Ok(());
        };
        if switch.down.load(Ordering::SeqCst)
            || !answer(&mut stream, request.target(), switch).await?
        {
            return Ok(());
        }
    }
}

/// What is answered to a target, and whether the connection ends behind it. The last answers every
/// other one.
#[rustfmt::skip]
const ANSWERS: [(&str, &str, bool); 9] = [
    ("/garbage", "SMTP ready\r\n\r\n", true),
    ("/cut", "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nabc", true),
    ("/endless", "HTTP/1.1 200 OK\r\nContent-Length: 100000000000\r\n\r\n", true),
    ("/socket", "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
        Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhbK+xOo0M=\r\n\r\nhello", true),
    ("/chunked", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
        5\r\nhello\r\n7\r\n, world\r\n0\r\n\r\n", false),
    ("/large", "HTTP/1.1 200 OK\r\nContent-Length: 65536\r\n\r\n", false),
    ("/missing", "HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno", false),
    ("/close", "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok", true),
    ("", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", false),
];

/// Answers by the target; false where the connection is to end.
async fn answer(stream: &mut TcpStream, target: &str, switch: &Switch) -> Result<bool> {
    if target == "/reset" {
        stream.set_zero_linger()?;
        return Ok(false);
    }
    if target == "/slow" {
        tokio::time::sleep(SLOW).await;
    }
    let mut answers = ANSWERS.iter();
    let found = answers.find(|(known, ..)| *known == target || known.is_empty());
    let (_, text, ends) = found.context("the last is for all")?;
    stream.write_all(text.as_bytes()).await?;
    if target != "/garbage" {
        switch.answers.fetch_add(1, Ordering::SeqCst);
    }
    match target {
        "/large" => stream.write_all(&[b'x'; LARGE]).await?,
        "/endless" => while stream.write_all(&[b'x'; 16 * 1024]).await.is_ok() {},
        "/socket" => drop(stream.read_to_end(&mut Vec::new()).await),
        _ => {}
    }
    Ok(!ends)
}
