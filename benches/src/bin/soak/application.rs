//! The application behind the proxy: it answers well, badly, late or not at all, as the path says.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::message::{Received, receive};

/// The body of `/large`.
const LARGE: usize = 64 * 1024;
/// How often the listener looks for an outage.
const LOOK: Duration = Duration::from_millis(20);
/// How long `/slow` takes.
const SLOW: Duration = Duration::from_millis(30);

/// What the threads know of the application.
#[derive(Clone, Debug, Default)]
pub(crate) struct Switch {
    down: Arc<AtomicBool>,
    answers: Arc<AtomicU64>,
}

impl Switch {
    /// Ends or begins an outage: nothing listens and kept connections end.
    pub(crate) fn set_down(&self, down: bool) {
        self.down.store(down, Ordering::SeqCst);
    }

    /// Heads of answers that were written, interim ones not among them.
    pub(crate) fn answers(&self) -> u64 {
        self.answers.load(Ordering::SeqCst)
    }
}

/// Serves on a thread of its own until the process ends.
pub(crate) fn start(switch: Switch) -> Result<SocketAddr> {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0))?;
    let address = listener.local_addr()?;
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    std::thread::Builder::new()
        .name("application".to_owned())
        .spawn(move || {
            let local = tokio::task::LocalSet::new();
            if let Err(error) = local.block_on(&runtime, listen(listener, address, switch)) {
                eprintln!("soak: the application ended: {error:#}");
            }
        })?;
    Ok(address)
}

async fn listen(first: std::net::TcpListener, address: SocketAddr, switch: Switch) -> Result<()> {
    let switch = Rc::new(switch);
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
        let switch = Rc::clone(&switch);
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
        let Received::Whole(request) = receive(&mut stream, &mut buffer).await? else {
            return Ok(());
        };
        if switch.down.load(Ordering::SeqCst)
            || !answer(&mut stream, request.target(), switch).await?
        {
            return Ok(());
        }
    }
}

/// Answers by the target; false where the connection is to end.
// long: a flat list of the targets
async fn answer(stream: &mut TcpStream, target: &str, switch: &Switch) -> Result<bool> {
    let wrote = || switch.answers.fetch_add(1, Ordering::SeqCst);
    match target {
        "/reset" => {
            stream.set_zero_linger()?;
            return Ok(false);
        }
        "/garbage" => {
            stream.write_all(b"SMTP ready\r\n\r\n").await?;
            return Ok(false);
        }
        "/cut" => {
            stream
                .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nabc")
                .await?;
            wrote();
            return Ok(false);
        }
        "/endless" => {
            stream
                .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000000\r\n\r\n")
                .await?;
            wrote();
            while stream.write_all(&[b'x'; 16 * 1024]).await.is_ok() {}
            return Ok(false);
        }
        "/socket" => {
            stream
                .write_all(
                    b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                      Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhbK+xOo0M=\r\n\r\nhello",
                )
                .await?;
            wrote();
            let mut rest = Vec::new();
            let _ = stream.read_to_end(&mut rest).await;
            return Ok(false);
        }
        "/chunked" => {
            let body = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n7\r\n, world\r\n0\r\n\r\n";
            stream.write_all(body).await?;
        }
        "/large" => {
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {LARGE}\r\n\r\n");
            stream.write_all(head.as_bytes()).await?;
            stream.write_all(&[b'x'; LARGE]).await?;
        }
        "/missing" => {
            stream
                .write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno")
                .await?;
        }
        "/close" => {
            stream
                .write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok")
                .await?;
            wrote();
            return Ok(false);
        }
        _ => {
            if target == "/slow" {
                tokio::time::sleep(SLOW).await;
            }
            stream
                .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
                .await?;
        }
    }
    wrote();
    Ok(true)
}
