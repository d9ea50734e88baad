//! Messages of HTTP/1.1 in the bytes that came: only what the benches themselves send or ask for is
//! understood, and nothing is hidden by a library.

use anyhow::{Result, bail};
use serde_json::Value;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;

/// A message, whole.
#[derive(Debug, Default)]
pub struct Message {
    /// Its head, in small letters.
    pub head: String,
    /// Its content.
    pub body: Vec<u8>,
}

impl Message {
    /// The first message in these bytes, and how many of them it is; none where it is not whole.
    /// One that tells no length has no body.
    pub fn whole(bytes: &[u8]) -> Option<(Self, usize)> {
        let (head, mut used) = head(bytes)?;
        let mut message = Self {
            head,
            ..Self::default()
        };
        if message.field("transfer-encoding").is_some() {
            loop {
                let line = used + find(bytes.get(used..)?, b"\r\n")?;
                let size = std::str::from_utf8(bytes.get(used..line)?).ok()?;
                let size = usize::from_str_radix(size, 16).ok()?;
                let chunk = bytes.get(line + 2..line + 2 + size)?;
                message.body.extend_from_slice(chunk);
                used = line + 2 + size + 2;
                if size == 0 {
                    break;
                }
            }
        } else if let Some(length) = message.field("content-length") {
            let end = used + length.parse::<usize>().ok()?;
            message.body.extend_from_slice(bytes.get(used..end)?);
            used = end;
        }
        (used <= bytes.len()).then_some((message, used))
    }

    /// The target of a request; the status of an answer.
    pub fn target(&self) -> &str {
        self.head.split(' ').nth(1).unwrap_or_default()
    }

    /// Itself, an answer with this status.
    pub fn expect(self, status: u16) -> Result<Self> {
        if self.target() != status.to_string() {
            bail!(
                "{status} is expected, and the answer is {}{}",
                self.head,
                self.text()
            );
        }
        Ok(self)
    }

    /// Its content as a text.
    pub fn text(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.body)
    }

    /// The part of its content, which is JSON, at this pointer; null where there is none.
    pub fn at(&self, pointer: &str) -> Result<Value> {
        let content: Value = serde_json::from_slice(&self.body)?;
        Ok(content.pointer(pointer).cloned().unwrap_or_default())
    }

    /// A field of the head.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (left, right) = line.split_once(':')?;
            (left == name).then(|| right.trim())
        })
    }
}

/// The head in small letters, and how many bytes it is; none where it is not whole.
pub fn head(bytes: &[u8]) -> Option<(String, usize)> {
    let end = find(bytes, b"\r\n\r\n")? + 4;
    let head = String::from_utf8_lossy(bytes.get(..end)?);
    Some((head.to_ascii_lowercase(), end))
}

/// Receives what is read from the bytes that come, by [`Message::whole`] or by [`head`], which
/// leaves the body unread. What lies behind it stays in `buffer`. None where the connection ends
/// before.
pub async fn receive<T>(
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

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|part| part == what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_read_to_its_end() {
        let whole = |text: &str| {
            let (message, used) = Message::whole(text.as_bytes())?;
            Some((String::from_utf8(message.body).unwrap(), used))
        };
        let sized = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab";
        assert_eq!(whole(sized), Some(("ab".to_owned(), sized.len())));
        assert_eq!(whole(&sized[..sized.len() - 1]), None);
        assert_eq!(whole("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n"), None);
        let chunked =
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n1\r\nb\r\n0\r\n\r\n";
        let and_more = format!("{chunked}GET /");
        assert_eq!(whole(&and_more), Some(("ab".to_owned(), chunked.len())));
        assert_eq!(whole(&chunked[..chunked.len() - 2]), None);
        let bare = "GET /a HTTP/1.1\r\nHost: b\r\n\r\n";
        let (message, used) = Message::whole(bare.as_bytes()).unwrap();
        assert_eq!((message.target(), used), ("/a", bare.len()));
    }
}
