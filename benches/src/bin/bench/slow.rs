//! Slow connections of five kinds. One that the service ends is opened anew, so that as many stand
//! all the time.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

/// Between two steps of a slow connection.
const STEP: Duration = Duration::from_secs(2);
/// What each kind sends at first, what with each step, and how many bytes it reads before one:
/// nothing at all, a byte of a head, a byte of a body, a few bytes of a megabyte, a whole request.
const KINDS: [(&str, &str, usize); 5] = [
    ("", "", 4096),
    ("GET / HTTP/1.1\r\nHost: a\r\nX: ", "x", 0),
    (UPLOAD, "x", 0),
    ("GET /1m HTTP/1.1\r\nHost: a\r\n\r\n", "", 64),
    (REQUEST, REQUEST, 4096),
];
const UPLOAD: &str = "POST /upload HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n";
const REQUEST: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
/// A small window, so that a reader that is slow is slow for the service too.
const WINDOW: u32 = 4096;

/// Holds one slow connection for ever. Each number is a client of its own.
pub(crate) async fn hold(address: SocketAddr, number: usize) {
    // Not all in the same moment.
    tokio::time::sleep(STEP.mul_f64(fastrand::f64())).await;
    let kind = KINDS
        .iter()
        .cycle()
        .nth(number)
        .copied()
        .unwrap_or_default();
    loop {
        if let Ok(stream) = open(address, number).await {
            // The service ends slow connections: that is its right.
            let _ = slow(stream, kind).await;
        }
        tokio::time::sleep(STEP / 4).await;
    }
}

async fn open(address: SocketAddr, number: usize) -> Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    let [third, fourth] = [number / 250, number % 250 + 1].map(u8::try_from);
    socket.bind(SocketAddr::from(([127, 1, third?, fourth?], 0)))?;
    socket.set_recv_buffer_size(WINDOW)?;
    Ok(socket.connect(address).await?)
}

/// Until the service ends the connection.
async fn slow(mut stream: TcpStream, kind: (&str, &str, usize)) -> Result<()> {
    let (begin, more, reads) = kind;
    let mut bytes = vec![0; reads];
    stream.write_all(begin.as_bytes()).await?;
    loop {
        if reads > 0 && stream.read(&mut bytes).await? == 0 {
            return Ok(());
        }
        tokio::time::sleep(STEP).await;
        stream.write_all(more.as_bytes()).await?;
    }
}
