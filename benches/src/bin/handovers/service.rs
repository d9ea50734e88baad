//! The service whose process changes: started, asked, handed over, ended.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::Value;
use weir_benches::program::{Owned, free_port};

/// How long a start or a hand-over may take.
const PATIENCE: Duration = Duration::from_secs(120);
const TOKEN: &str = "Handovers-admin-token-0123456789abcdef";

/// The service.
pub(crate) struct Service {
    /// The first process; a successor is not a child of ours.
    first: Owned,
    pub(crate) address: SocketAddr,
    said: PathBuf,
    bans: usize,
}

impl Service {
    /// Starts it on the state under `directory`, with `WAF_MAX_BANS=most`.
    pub(crate) fn start(
        weir: &Path,
        application: SocketAddr,
        directory: &Path,
        most: usize,
    ) -> Result<Self> {
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()?));
        let said = directory.join("said.log");
        let off = || "off".to_owned();
        let first = Command::new(weir)
            .env_clear()
            .envs([
                ("WAF_LISTEN", address.to_string()),
                ("WAF_UPSTREAM", format!("http://{application}")),
                (
                    "WAF_STATE_DIR",
                    directory.join("state").display().to_string(),
                ),
                ("WAF_WORKERS", "2".to_owned()),
                ("WAF_LOOKUP_SOURCE", off()),
                ("WAF_TRUSTED_PROXIES", "127.0.0.1".to_owned()),
                ("WAF_ADMIN_TOKEN", TOKEN.to_owned()),
                ("WAF_RATE_LIMIT_PER_MINUTE", off()),
                ("WAF_RATE_LIMIT_PER_HOUR", off()),
                ("WAF_RATE_LIMIT_PER_DAY", off()),
                (
                    "WAF_ANOMALY_CLIENT_REQUESTS_PER_HOUR",
                    "1000000000".to_owned(),
                ),
                ("WAF_MAX_BANS", most.to_string()),
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&said)?)
            .spawn()
            .context("the service cannot be started")?;
        let mut service = Self {
            first: Owned(first),
            address,
            said,
            bans: 0,
        };
        service.wait_for_listening(1)?;
        service.bans = service.bans()?;
        Ok(service)
    }

    /// Bans that were there at the start.
    pub(crate) const fn bans_at_start(&self) -> usize {
        self.bans
    }

    /// What all processes have said with this message.
    fn lines(&self, message: &str) -> Result<Vec<Value>> {
        let text = std::fs::read_to_string(&self.said)?;
        let lines = text
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok());
        let named = |line: &Value| line.get("message").and_then(Value::as_str) == Some(message);
        Ok(lines.filter(named).collect())
    }

    fn wait_for_listening(&self, count: usize) -> Result<()> {
        let began = Instant::now();
        while self.lines("listening")?.len() < count {
            if began.elapsed() > PATIENCE {
                bail!(
                    "no process serves: {}",
                    std::fs::read_to_string(&self.said)?
                );
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// The process that serves now.
    fn process(&self) -> Result<Pid> {
        let last = self.lines("handing over")?.pop();
        let id = match last.as_ref().and_then(|line| line.get("process")?.as_u64()) {
            Some(id) => i32::try_from(id)?,
            None => i32::try_from(self.first.0.id())?,
        };
        Pid::from_raw(id).context("no process id")
    }

    /// A hand-over from the signal until the new process serves.
    pub(crate) fn hand_over(&self) -> Result<()> {
        let before = self.lines("listening")?.len();
        kill_process(self.process()?, Signal::USR2)?;
        self.wait_for_listening(before + 1)
    }

    /// Asks as a client, and expects this status.
    pub(crate) fn ask(&self, client: &str, status: u16) -> Result<()> {
        let (found, _) = self.exchange("GET", "/", client, "")?;
        if found != status {
            bail!("{client} is answered {found}, and {status} is expected");
        }
        Ok(())
    }

    /// An answer of the administration.
    pub(crate) fn admin(&self, method: &str, target: &str, body: &str) -> Result<String> {
        let (status, text) = self.exchange(method, target, "192.0.2.254", body)?;
        if !(200..300).contains(&status) {
            bail!("{method} {target} is answered {status}: {text}");
        }
        Ok(text)
    }

    /// Requests of a client that were let through.
    pub(crate) fn passed(&self, client: &str) -> Result<u64> {
        let target = format!("/_waf/clients/{client}");
        let (status, text) = self.exchange("GET", &target, "192.0.2.254", "")?;
        if status == 404 {
            return Ok(0);
        }
        let answer: Value = serde_json::from_str(&text)?;
        let passed = answer.pointer("/client/passed").and_then(Value::as_u64);
        Ok(passed.unwrap_or(0))
    }

    /// Bans that it holds.
    pub(crate) fn bans(&self) -> Result<usize> {
        let answer: Value = serde_json::from_str(&self.admin("GET", "/_waf/bans", "")?)?;
        let bans = answer.get("bans").and_then(Value::as_array);
        Ok(bans.context("no list of bans")?.len())
    }

    fn exchange(
        &self,
        method: &str,
        target: &str,
        client: &str,
        body: &str,
    ) -> Result<(u16, String)> {
        let mut stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        write!(
            stream,
            "{method} {target} HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: {client}\r\nConnection: close\r\n\
             Authorization: Bearer {TOKEN}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        let (head, body) = text.split_once("\r\n\r\n").context("no answer")?;
        let status = head.split(' ').nth(1).context("no status")?.parse()?;
        let is_chunked = head.to_ascii_lowercase().contains("transfer-encoding");
        let body = if is_chunked {
            joined(body)
        } else {
            body.to_owned()
        };
        Ok((status, body))
    }
}

/// The content of a chunked body.
fn joined(mut body: &str) -> String {
    let mut whole = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap_or(0);
        let (Some(chunk), 1..) = (rest.get(..size), size) else {
            break;
        };
        whole.push_str(chunk);
        body = rest.get(size + 2..).unwrap_or_default();
    }
    whole
}

impl Drop for Service {
    fn drop(&mut self) {
        let Ok(last) = self.process() else { return };
        let _ = kill_process(last, Signal::TERM);
        let asked = Instant::now();
        while asked.elapsed() < PATIENCE && test_kill_process(last).is_ok() {
            // The first is a child of ours, and is there until it is waited for.
            let _ = self.first.0.try_wait();
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::joined;

    #[test]
    fn chunks_are_joined() {
        assert_eq!(joined("3\r\nabc\r\n1\r\nd\r\n0\r\n\r\n"), "abcd");
        assert_eq!(joined(""), "");
    }
}
