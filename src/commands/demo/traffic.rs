//! The visitors of the demo, and its requests as short lines. The visitors connect from a loopback
//! address that the demo trusts as a proxy, and claim addresses of a network reserved for tests
//! (44.128.0.0/16): addresses reserved for documentation would not be looked up.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;

/// The trusted proxy of the demo's visitors. Requests of a person come from 127.0.0.1.
pub const PROXY: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// The pause between two requests of ordinary visitors.
const PAUSE: Duration = Duration::from_millis(250);
/// How long one request may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often the log is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// Invented networks: the first three numbers of their addresses, country, AS, name of the AS.
const NETWORKS: [(&str, &str, &str, &str); 6] = [
    ("44.128.10", "DE", "AS64496", "Example Cable"),
    ("44.128.20", "FR", "AS64497", "Exemple Mobile"),
    ("44.128.30", "NL", "AS64498", "Example Hosting"),
    ("44.128.40", "US", "AS64499", "Example Broadband"),
    ("44.128.50", "JP", "AS64500", "Example Kabel"),
    ("44.128.60", "BR", "AS64501", "Exemplo Fibra"),
];

const PAGES: [&str; 7] = [
    "/",
    "/news",
    "/search?q=weir",
    "/about",
    "/products/1",
    "/products/2",
    "/contact",
];

/// Country and AS of an address: the answer to a lookup of the demo.
pub fn origin(address: &str) -> String {
    let network = NETWORKS.iter().find(|(begin, ..)| {
        address
            .strip_prefix(begin)
            .is_some_and(|rest| rest.starts_with('.'))
    });
    let (country, asn, name) = network.map_or((None, None, None), |(_, country, asn, name)| {
        (Some(country), Some(asn), Some(name))
    });
    json!({"country": country, "asn": asn, "name": name}).to_string()
}

/// Starts the visitors on a thread of their own, which ends with the process.
pub fn start(address: &str) {
    let Ok(address) = address.parse::<SocketAddr>() else {
        return;
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let Ok(runtime) = runtime else { return };
    let thread = std::thread::Builder::new().name("demo-visitors".to_owned());
    let _ = thread.spawn(move || runtime.block_on(visit(address)));
}

/// Sends one request of an ordinary visitor in every turn, and now and then those of an attacker.
async fn visit(address: SocketAddr) {
    let mut turn: usize = 0;
    loop {
        let number = turn % 48;
        let (begin, ..) = NETWORKS
            .get(number % NETWORKS.len())
            .copied()
            .unwrap_or_default();
        let page = PAGES.get(turn * 5 % PAGES.len()).copied().unwrap_or("/");
        ask(
            address,
            "GET",
            page,
            &format!("{begin}.{}", 10 + number / 6),
        )
        .await;
        let round = turn / 80 % 100;
        match turn % 80 {
            20 => {
                for path in ["/.env", "/.git/config", "/wp-login.php"] {
                    ask(address, "GET", path, &format!("44.128.30.{}", 66 + round)).await;
                }
            }
            45 => {
                for page in 0..14 {
                    let path = format!("/search?page={page}");
                    ask(address, "GET", &path, &format!("44.128.50.{}", 100 + round)).await;
                }
            }
            65 => {
                for _ in 0..5 {
                    ask(
                        address,
                        "POST",
                        "/login",
                        &format!("44.128.60.{}", 100 + round),
                    )
                    .await;
                }
            }
            _ => {}
        }
        turn += 1;
        tokio::time::sleep(PAUSE).await;
    }
}

/// Sends one request of a visitor. The log tells its outcome.
async fn ask(address: SocketAddr, method: &str, path: &str, visitor: &str) {
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: demo.example\r\nX-Forwarded-For: {visitor}\r\n\
         Content-Length: 0\r\nConnection: close\r\n\r\n"
    );
    let asked = async {
        let socket = TcpSocket::new_v4()?;
        socket.bind((PROXY, 0).into())?;
        let mut stream = socket.connect(address).await?;
        stream.write_all(head.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await
    };
    // An ending service does not answer: that is no error here.
    let _ = tokio::time::timeout(PATIENCE, asked).await;
}

/// Prints each request and each ban of the log as one short line, on a thread of its own.
pub fn tell(log: PathBuf) {
    let thread = std::thread::Builder::new().name("demo-log".to_owned());
    let _ = thread.spawn(move || {
        let Ok(file) = File::open(log) else { return };
        let mut lines = BufReader::new(file);
        let mut line = String::new();
        loop {
            // At the end of the file `line` may hold a partial line; its rest comes later.
            match lines.read_line(&mut line) {
                Ok(_) if line.ends_with('\n') => {
                    if let Some(short) = short(&line) {
                        println!("{short}");
                    }
                    line.clear();
                }
                Ok(_) => std::thread::sleep(LOOK),
                Err(_) => return,
            }
        }
    });
}

/// `20:42:08  203.0.113.7  GET  /search  429 banned`, or
/// `20:42:08  203.0.113.0/24  BAN  more than 10 requests per minute`
fn short(line: &str) -> Option<String> {
    let line: Value = serde_json::from_str(line).ok()?;
    let text = |name: &str| line.get(name).map(crate::commands::text::cell);
    let time = line.get("time")?.as_str()?.get(11..19)?.to_owned();
    if line.get("kind").is_some_and(|kind| kind == "ban") {
        let (netblock, reason) = (text("netblock")?, text("reason")?);
        return Some(format!("{time}  {netblock:<15}  BAN  {reason}"));
    }
    if line.get("event")? != "request" {
        return None;
    }
    let action = text("action").filter(|action| action != "passed");
    let action = action.map_or(String::new(), |action| format!(" {action}"));
    Some(format!(
        "{time}  {:<15}  {:<4} {}  {}{action}",
        text("client")?,
        text("method")?,
        text("path")?,
        text("status")?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CONTROL-3: a request and a ban are one short line each; other lines of the log are not
    /// shown.
    #[test]
    fn a_request_is_one_short_line() {
        let mut line = json!({
            "event": "request", "time": "2026-11-21T20:42:08.123Z", "client": "203.0.113.7",
            "method": "GET", "path": "/search", "status": 429, "action": "banned",
        });
        let told = "20:42:08  203.0.113.7      GET  /search  429 banned";
        assert_eq!(short(&line.to_string()).as_deref(), Some(told));
        line["action"] = "passed".into();
        let told = "20:42:08  203.0.113.7      GET  /search  429";
        assert_eq!(short(&line.to_string()).as_deref(), Some(told));
        let ban = json!({
            "event": "alert", "kind": "ban", "time": "2026-11-21T20:42:08.123Z",
            "netblock": "203.0.113.0/24", "reason": "more than 10 requests per minute",
        });
        let told = "20:42:08  203.0.113.0/24   BAN  more than 10 requests per minute";
        assert_eq!(short(&ban.to_string()).as_deref(), Some(told));
        assert_eq!(short(r#"{"event":"alert"}"#), None);
        assert_eq!(short("no JSON"), None);
        assert!(origin("44.128.30.7").contains("NL") && origin("10.0.0.1").contains("null"));
    }
}
