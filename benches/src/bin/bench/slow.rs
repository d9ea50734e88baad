//! Slow connections of five kinds. One that the service ends is opened anew, so that as many stand
//! all the time.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::Result;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

/// Between two steps of a slow connection.
const STEP: Duration = Duration::from_secs(2);
/// Kinds of slow connections.
const KINDS: usize = 5;
/// A small window, so that a reader that is slow is slow for the service too.
const WINDOW: u32 = 4096;

/// Holds one slow connection for ever. Each number is a client of its own.
pub(crate) async fn hold(address: SocketAddr, number: usize) {
    // Not all in the same moment.
    tokio::time::sleep(STEP.mul_f64(fastrand::f64())).await;
    loop {
        if let Ok(stream) = open(address, number).await {
            // The service ends slow connections: that is its right.
            let _ = slow(stream, number % KINDS).await;
        }
        tokio::time::sleep(STEP / 4).await;
    }
}

async fn open(address: SocketAddr, number: usize) -> Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    let [third, fourth] = [number / 250, number % 250 + 1].map(u8::try_from);
    socket.bind(SocketAddr::new(
        IpAddr::V4(Ipv4Addr::new(127, 1, third?, fourth?)),
        0,
    ))?;
    socket.set_recv_buffer_size(WINDOW)?;
    Ok(socket.connect(address).await?)
}

/// One of five kinds, until the service ends the connection.
async fn slow(mut stream: TcpStream, kind: usize) -> Result<()> {
    let mut bytes = [0; 4096];
    let begin: &[u8] = match kind {
        0 => b"",
        1 => b"GET / HTTP/1.1\r\nHost: a\r\nX: ",
        2 => b"POST /upload HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n",
        3 => b"GET /1m HTTP/1.1\r\nHost: a\r\n\r\n",
        _ => b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    };
    stream.write_all(begin).await?;
    match kind {
        // It sends nothing, and nothing comes but the end.
        0 => while stream.read(&mut bytes).await? > 0 {},
        // A byte of the head, or of the body, each step.
        1 | 2 => drip(&mut stream).await?,
        // A few bytes of a megabyte each step.
        3 => {
            let (few, _) = bytes.split_at_mut(64);
            while stream.read(few).await? > 0 {
                tokio::time::sleep(STEP).await;
            }
        }
        // A whole request each step, and nothing between.
        _ => {
            while stream.read(&mut bytes).await? > 0 {
                tokio::time::sleep(STEP).await;
                stream.write_all(begin).await?;
            }
        }
    }
    Ok(())
}

async fn drip(stream: &mut TcpStream) -> Result<()> {
    loop {
        tokio::time::sleep(STEP).await;
        stream.write_all(b"x").await?;
    }
}
