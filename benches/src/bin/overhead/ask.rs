//! Asks weir by hand: its metrics, and an answer of the application.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// `WAF_METRICS_TOKEN` of every run.
pub(crate) const TOKEN: &str = "benchmark";

/// Far longer than any answer takes, and no wait for ever.
const PATIENCE: Duration = Duration::from_secs(10);

/// A request on a connection of its own: the status of its answer.
pub(crate) fn status(address: SocketAddr, request: &str, body: &[u8]) -> Result<u16> {
    let mut stream = connect(address)?;
    stream.write_all(request.as_bytes())?;
    stream.write_all(body)?;
    status_of(&mut stream)
}

/// The status of the answer to what was sent; small answers come in one piece.
pub(crate) fn status_of(stream: &mut TcpStream) -> Result<u16> {
    let mut answer = [0; 4096];
    let length = stream.read(&mut answer).context("no answer")?;
    let answer = String::from_utf8_lossy(answer.get(..length).unwrap_or_default());
    let status = answer.get(9..12).and_then(|status| status.parse().ok());
    status.with_context(|| format!("no answer: {answer:?}"))
}

/// The metrics, asked for on a connection of their own.
pub(crate) fn metrics(address: SocketAddr) -> Result<String> {
    let mut stream = connect(address)?;
    write!(
        stream,
        "GET /_waf/metrics HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {TOKEN}\r\nConnection: close\r\n\r\n"
    )?;
    let mut answer = String::new();
    stream
        .read_to_string(&mut answer)
        .context("the metrics end early")?;
    expect_success(&answer)?;
    Ok(answer)
}

/// One sample, named as on the page.
pub(crate) fn metric(page: &str, series: &str) -> Result<f64> {
    let value = page.lines().find_map(|line| {
        let (name, value) = line.trim_end().rsplit_once(' ')?;
        (name == series).then(|| value.parse().ok())?
    });
    value.with_context(|| format!("the metrics have no {series}"))
}

pub(crate) fn connect(address: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect(address).context("no connection to weir")?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// One request to the application; the connection stays open.
pub(crate) fn ask(stream: &mut TcpStream) -> Result<()> {
    stream.write_all(b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n")?;
    // The application's answer is small: head and body come in one piece.
    let mut answer = [0; 2048];
    let length = stream.read(&mut answer).context("no answer")?;
    expect_success(&String::from_utf8_lossy(
        answer.get(..length).unwrap_or_default(),
    ))
}

fn expect_success(answer: &str) -> Result<()> {
    if !answer.starts_with("HTTP/1.1 200 ") {
        bail!(
            "the answer is {:?}",
            answer.lines().next().unwrap_or_default()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_found_by_its_whole_name() {
        let page = "HTTP/1.1 200 OK\r\n\r\n# TYPE waf_x counter\nwaf_x{file=\"a b\",outcome=\"ok\"} 3\nwaf_xy 4\nwaf_x 5\n";
        assert_eq!(
            metric(page, "waf_x{file=\"a b\",outcome=\"ok\"}").unwrap(),
            3.0
        );
        assert_eq!(metric(page, "waf_x").unwrap(), 5.0);
        assert!(metric(page, "waf_z").is_err());
    }

    #[test]
    fn only_success_is_taken() {
        assert!(expect_success("HTTP/1.1 200 OK\r\n").is_ok());
        assert!(expect_success("HTTP/1.1 401 Unauthorized\r\n").is_err());
        assert!(expect_success("").is_err());
    }
}
