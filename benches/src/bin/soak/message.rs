//! Messages of HTTP/1.1 as both ends of this run need them: whole, small, and nothing hidden by a
//! library. Only what this program sends itself is understood.

use anyhow::{Context, Result, bail};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

/// `WAF_METRICS_TOKEN`
pub(crate) const METRICS_TOKEN: &str = "soak-metrics-token-0123456789abcdef";
/// `WAF_ADMIN_TOKEN`
pub(crate) const ADMIN_TOKEN: &str = "Soak-admin-token-0123456789abcdef";

/// A message that was received whole.
#[derive(Debug)]
pub(crate) struct Message {
    /// The target of a request; the status of an answer.
    pub(crate) target: String,
    /// The connection ends after it.
    pub(crate) close: bool,
}

/// What came.
#[derive(Debug)]
pub(crate) enum Received {
    /// A message, its body read.
    Whole(Message),
    /// The head of a message whose body ended early.
    Cut,
    /// The end of the connection, before a whole head.
    Nothing,
}

/// Receives one message; what lies behind it stays in `buffer`.
pub(crate) async fn receive(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Result<Received> {
    let Some(head) = head(stream, buffer).await? else {
        return Ok(Received::Nothing);
    };
    let message = Message {
        target: head.split(' ').nth(1).unwrap_or_default().to_owned(),
        close: field(&head, "connection") == Some("close"),
    };
    let whole = if field(&head, "transfer-encoding").is_some() {
        chunked(stream, buffer).await?
    } else if let Some(length) = field(&head, "content-length") {
        take(stream, buffer, length.parse().context("a length")?).await?
    } else {
        true
    };
    Ok(if whole {
        Received::Whole(message)
    } else {
        Received::Cut
    })
}

/// Receives a head alone; its body stays unread.
pub(crate) async fn head(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Result<Option<String>> {
    loop {
        if let Some(end) = find(buffer, b"\r\n\r\n") {
            let rest = buffer.split_off(end + 4);
            let head = std::mem::replace(buffer, rest);
            return Ok(Some(String::from_utf8(head)?));
        }
        if !more(stream, buffer).await? {
            return Ok(None);
        }
    }
}

/// Reads a chunked body without trailer fields; false where it is cut.
async fn chunked(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Result<bool> {
    loop {
        let end = loop {
            if let Some(end) = find(buffer, b"\r\n") {
                break end;
            }
            if !more(stream, buffer).await? {
                return Ok(false);
            }
        };
        let line = String::from_utf8(buffer.drain(..end + 2).collect())?;
        let size = usize::from_str_radix(line.trim_end(), 16).context("the size of a chunk")?;
        if !take(stream, buffer, size + 2).await? {
            return Ok(false);
        }
        if size == 0 {
            return Ok(true);
        }
    }
}

/// Reads that many bytes; false where the connection ends before.
async fn take(stream: &mut TcpStream, buffer: &mut Vec<u8>, count: usize) -> Result<bool> {
    let mut left = count;
    loop {
        let here = left.min(buffer.len());
        buffer.drain(..here);
        left -= here;
        if left == 0 {
            return Ok(true);
        }
        if !more(stream, buffer).await? {
            return Ok(false);
        }
    }
}

/// Reads on; false at the end, however it comes.
async fn more(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Result<bool> {
    if buffer.len() > 1 << 20 {
        bail!("a head of a megabyte");
    }
    Ok(stream.read_buf(buffer).await.is_ok_and(|count| count > 0))
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|part| part == what)
}

fn field<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().skip(1).find_map(|line| {
        let (left, right) = line.split_once(':')?;
        left.eq_ignore_ascii_case(name).then(|| right.trim())
    })
}
