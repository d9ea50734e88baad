//! Good traffic at a fixed rate. A request's time runs from the moment in which it was due, so that
//! a wait does not hide those behind it.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";

/// Asks at `rate` a second on `connections` connections; how long each answer took, shortest first.
///
/// # Errors
/// A request that was not answered with 200.
pub(crate) async fn ask(
    address: SocketAddr,
    connections: u32,
    rate: u32,
    time: Duration,
) -> Result<Vec<Duration>> {
    let begin = Instant::now() + Duration::from_millis(200);
    let local = tokio::task::LocalSet::new();
    let gap = Duration::from_secs(1) * connections / rate;
    let tasks: Vec<_> = (0..connections)
        .map(|number| {
            let first = begin + gap * number / connections;
            local.spawn_local(one(address, first, gap, begin + time))
        })
        .collect();
    local
        .run_until(async {
            let mut times = Vec::new();
            for task in tasks {
                times.extend(task.await??);
            }
            times.sort_unstable();
            Ok(times)
        })
        .await
}

async fn one(
    address: SocketAddr,
    first: Instant,
    gap: Duration,
    end: Instant,
) -> Result<Vec<Duration>> {
    let mut stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let (mut times, mut due) = (Vec::new(), first);
    let mut bytes = vec![0; 4096];
    while due < end {
        tokio::time::sleep_until(due.into()).await;
        stream.write_all(REQUEST).await.context("a good request")?;
        let count = stream.read(&mut bytes).await.context("a good answer")?;
        if !bytes[..count].starts_with(b"HTTP/1.1 200 ") {
            let text = String::from_utf8_lossy(&bytes[..count]).into_owned();
            bail!("a good request was answered: {text:?}");
        }
        times.push(due.elapsed());
        due += gap;
    }
    Ok(times)
}
