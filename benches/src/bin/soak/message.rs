//! Messages as both ends of this run receive them.

use anyhow::{Result, bail};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use weir_benches::message::{self, Message};

/// `WAF_METRICS_TOKEN`
pub(crate) const METRICS_TOKEN: &str = "soak-metrics-token-0123456789abcdef";
/// `WAF_ADMIN_TOKEN`
pub(crate) const ADMIN_TOKEN: &str = "Soak-admin-token-0123456789abcdef";

/// Receives one message, its body too; what lies behind it stays in `buffer`. None where the
/// connection ends before.
pub(crate) async fn receive(
    stream: &mut TcpStream,
    buffer: &mut Vec<u8>,
) -> Result<Option<Message>> {
    receive_by(stream, buffer, Message::whole).await
}

/// Receives a head alone; its body stays unread.
pub(crate) async fn head(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Result<Option<String>> {
    receive_by(stream, buffer, message::head).await
}

async fn receive_by<T>(
    stream: &mut TcpStream,
    buffer: &mut Vec<u8>,
    read: impl Fn(&[u8]) -> Option<(T, usize)>,
) -> Result<Option<T>> {
    loop {
        if let Some((found, used)) = read(buffer) {
            buffer.drain(..used);
            return Ok(Some(found));
        }
        if buffer.len() > 1 << 20 {
            bail!("a message of a megabyte");
        }
        // An end is an end, however it comes.
        if stream.read_buf(buffer).await.unwrap_or(0) == 0 {
            return Ok(None);
        }
    }
}
