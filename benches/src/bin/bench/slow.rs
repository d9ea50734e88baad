//! Slow connections of five kinds. One that the service ends is opened anew, so that as many stand
//! all the time.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::Result;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

/// Between two steps of a slow connection.
const STEP: Duration = Duration::from_secs(2);
/// A small window, so that a reader that is slow is slow for the service too.
const WINDOW: u32 = 4096;

/// What a slow connection does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// It sends nothing.
    Silent,
    /// A byte of the head each step.
    Head,
    /// A byte of the body each step.
    Upload,
    /// A few bytes of a megabyte each step.
    Reader,
    /// A whole request each step, and nothing between.
    Idle,
}

impl Kind {
    pub(crate) const ALL: [Self; 5] = [
        Self::Silent,
        Self::Head,
        Self::Upload,
        Self::Reader,
        Self::Idle,
    ];
}

/// Holds one slow connection for ever. Each number is a client of its own.
pub(crate) async fn hold(address: SocketAddr, number: usize) {
    let kind = Kind::ALL.into_iter().cycle().nth(number % Kind::ALL.len());
    let kind = kind.unwrap_or(Kind::Silent);
    // Not all in the same moment.
    tokio::time::sleep(STEP.mul_f64(fastrand::f64())).await;
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
    socket.bind(SocketAddr::new(
        IpAddr::V4(Ipv4Addr::new(127, 1, third?, fourth?)),
        0,
    ))?;
    socket.set_recv_buffer_size(WINDOW)?;
    Ok(socket.connect(address).await?)
}

async fn slow(mut stream: TcpStream, kind: Kind) -> Result<()> {
    let mut bytes = [0; 4096];
    match kind {
        Kind::Silent => {
            // Nothing comes but the end.
            while stream.read(&mut bytes).await? > 0 {}
        }
        Kind::Head => {
            stream
                .write_all(b"GET / HTTP/1.1\r\nHost: a\r\nX: ")
                .await?;
            drip(&mut stream).await?;
        }
        Kind::Upload => {
            let head = b"POST /upload HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n";
            stream.write_all(head).await?;
            drip(&mut stream).await?;
        }
        Kind::Reader => {
            stream
                .write_all(b"GET /1m HTTP/1.1\r\nHost: a\r\n\r\n")
                .await?;
            let (few, _) = bytes.split_at_mut(64);
            while stream.read(few).await? > 0 {
                tokio::time::sleep(STEP).await;
            }
        }
        Kind::Idle => loop {
            stream
                .write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
                .await?;
            if stream.read(&mut bytes).await? == 0 {
                break;
            }
            tokio::time::sleep(STEP).await;
        },
    }
    Ok(())
}

async fn drip(stream: &mut TcpStream) -> Result<()> {
    loop {
        tokio::time::sleep(STEP).await;
        stream.write_all(b"x").await?;
    }
}
