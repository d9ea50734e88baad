//! Messages as both ends of this run receive them.

use anyhow::{Result, bail};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use weir_benches::message::{self, Message};

/// `WAF_METRICS_TOKEN`
pub(crate) const METRICS_TOKEN: &str = "soak-metrics-token-0123456789abcdef";
/// `WAF_ADMIN_TOKEN`
pub(crate) const ADMIN_TOKEN: &str = "Soak-admin-token-0123456789abcdef";

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
    loop {
        if let Some((message, used)) = Message::whole(buffer) {
            buffer.drain(..used);
            return Ok(Received::Whole(message));
        }
        if !more(stream, buffer).await? {
            let is_cut = message::head(buffer).is_some();
            return Ok(if is_cut {
                Received::Cut
            } else {
                Received::Nothing
            });
        }
    }
}

/// Receives a head alone; its body stays unread.
pub(crate) async fn head(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Result<Option<String>> {
    loop {
        if let Some((head, used)) = message::head(buffer) {
            buffer.drain(..used);
            return Ok(Some(head));
        }
        if !more(stream, buffer).await? {
            return Ok(None);
        }
    }
}

/// Reads on; false at the end, however it comes.
async fn more(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Result<bool> {
    if buffer.len() > 1 << 20 {
        bail!("a message of a megabyte");
    }
    Ok(stream.read_buf(buffer).await.is_ok_and(|count| count > 0))
}
