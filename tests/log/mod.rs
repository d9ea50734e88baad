//! The request log (LOG): one line a request, every member, no secrets, whatever bytes come.

mod ends;
mod lines;
mod refused;
mod writer;

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};

use serde_json::Value;
use tempfile::TempDir;

use crate::support::PATIENCE;
use crate::support::application::{After, Application};

/// A named pipe as the log, from which nobody reads at first.
struct Pipe {
    directory: TempDir,
    end: File,
}

impl Pipe {
    #[track_caller]
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let pipe = directory.path().join("pipe");
        let made = Command::new("mkfifo").arg(&pipe).status();
        assert!(made.expect("mkfifo runs").success());
        // Open for both, so that opening waits for nobody.
        let end = File::options().read(true).write(true).open(&pipe);
        let end = end.expect("opens");
        Self { directory, end }
    }

    /// `WAF_LOG_FILE`
    #[track_caller]
    fn file(&self) -> String {
        let file = self.directory.path().join("pipe");
        file.to_str().expect("a path").to_owned()
    }

    /// Reads from now on: the lines as they come.
    #[track_caller]
    fn read(&self) -> Lines {
        let (tell, told) = channel();
        let lines = BufReader::new(self.end.try_clone().expect("the pipe")).lines();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if tell.send(line).is_err() {
                    return;
                }
            }
        });
        Lines(told)
    }
}

/// Lines of a log.
struct Lines(Receiver<String>);

impl Lines {
    #[track_caller]
    fn next(&self) -> Value {
        let line = self.0.recv_timeout(PATIENCE).expect("a line");
        serde_json::from_str(&line).expect("JSON")
    }
}

/// What the application does, by the first segment of the path.
#[track_caller]
fn misbehaving() -> Application {
    Application::start(|exchange| {
        let target = exchange.request.target.clone();
        match target.split('/').nth(1).unwrap_or_default() {
            "cut" => {
                exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc");
                After::Reset
            }
            "cut-chunked" => {
                exchange.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n");
                After::Close
            }
            "garbage" => {
                exchange.send(b"SMTP ready\r\n\r\n");
                After::Close
            }
            "none" => After::Close,
            "slow" => {
                exchange.wait_for_close();
                After::Close
            }
            "endless" => {
                exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n");
                while exchange.send(&[b'x'; 65536]) {}
                After::Close
            }
            "chunked" => {
                exchange.read_body();
                exchange.send(
                    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
                );
                After::KeepAlive
            }
            "until-close" => {
                exchange.read_body();
                exchange.send(b"HTTP/1.0 200 OK\r\n\r\nok");
                After::Close
            }
            "early" => {
                exchange.answer(403, &[("Connection", "close")], b"no");
                After::Close
            }
            "socket" => {
                exchange.send(
                    b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                      Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhbK+xOo0M=\r\n\r\nhello",
                );
                if target.ends_with("/theirs") {
                    return After::Close;
                }
                exchange.wait_for_close();
                After::Close
            }
            "unasked" => {
                exchange.send(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n");
                After::Close
            }
            _ => {
                exchange.read_body();
                exchange.answer(200, &[], b"ok");
                After::KeepAlive
            }
        }
    })
}
