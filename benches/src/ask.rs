//! Asks a server by hand: a request on a connection, and its answer.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::message::Message;

/// The token of whoever asks for metrics, and of the operator, of every service that has one.
pub const TOKEN: &str = "Benches-token-0123456789abcdef-abcdef";

/// Far longer than any answer takes, and no wait for ever.
const PATIENCE: Duration = Duration::from_secs(120);

/// A connection.
pub fn connect(address: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect(address).context("no connection")?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// One request on a connection that stays open.
pub fn on(stream: &mut TcpStream, request: &str) -> Result<Message> {
    stream.write_all(request.as_bytes())?;
    let (mut came, mut part) = (Vec::new(), [0; 8192]);
    loop {
        let read = stream.read(&mut part)?;
        came.extend_from_slice(part.get(..read).unwrap_or_default());
        match Message::whole(&came) {
            Some((answer, _)) => return Ok(answer),
            None if read == 0 => bail!("no answer: {:?}", String::from_utf8_lossy(&came)),
            None => {}
        }
    }
}

/// A request: its method and target, lines of fields, and its body.
pub fn request(line: &str, fields: &str, body: &str) -> String {
    let length = body.len();
    format!("{line} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n{fields}\r\n{body}")
}

/// The field that names the client, where a proxy is trusted.
pub fn forwarded(client: &str) -> String {
    format!("X-Forwarded-For: {client}\r\n")
}

/// One request on a connection of its own.
pub fn once(address: SocketAddr, line: &str, fields: &str, body: &str) -> Result<Message> {
    let fields = format!("Connection: close\r\n{fields}");
    on(&mut connect(address)?, &request(line, &fields, body))
}

/// The same of the operator of a service.
pub fn operator(address: SocketAddr, line: &str, body: &str) -> Result<Message> {
    let fields = format!(
        "Authorization: Bearer {TOKEN}\r\nX-Forwarded-For: 192.0.2.254\r\nContent-Type: application/json\r\n"
    );
    once(address, line, &fields, body)
}

/// The metrics.
pub fn metrics(address: SocketAddr) -> Result<String> {
    let answer = operator(address, "GET /_waf/metrics", "")?;
    Ok(answer.expect(200)?.text().into_owned())
}

/// One sample, named as on the page.
pub fn metric(page: &str, series: &str) -> Result<f64> {
    let value = page.lines().find_map(|line| {
        let (name, value) = line.trim_end().rsplit_once(' ')?;
        (name == series).then(|| value.parse().ok())?
    });
    value.with_context(|| format!("the metrics have no {series}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_found_by_its_whole_name() {
        let page = "# TYPE waf_x counter\nwaf_x{file=\"a b\"} 3\nwaf_xy 4\nwaf_x 5\n";
        assert_eq!(metric(page, "waf_x{file=\"a b\"}").unwrap(), 3.0);
        assert_eq!(metric(page, "waf_x").unwrap(), 5.0);
        assert!(metric(page, "waf_z").is_err());
    }
}
