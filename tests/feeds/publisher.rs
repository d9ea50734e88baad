//! A publisher of lists on loopback, in plain or over HTTPS with a certificate authority of its
//! own, that can be told to misbehave. A thread a connection; each has one answer.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use rustls::{ServerConnection, StreamOwned};

use crate::support::geo::{issuer, server_config};
use crate::support::wait_until;

/// What a publisher sends to a head.
type Answering = Box<dyn Fn(&str) -> Vec<u8> + Send>;

pub(crate) struct Publisher {
    address: SocketAddr,
    is_tls: bool,
    directory: tempfile::TempDir,
    heads: Arc<Mutex<Vec<String>>>,
    answering: Arc<Mutex<Answering>>,
    /// Answers wait while it is held.
    held: Arc<Mutex<()>>,
}

/// A whole answer.
pub(crate) fn answer(status: &str, fields: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n{fields}\r\n{body}").into_bytes()
}

impl Publisher {
    #[track_caller]
    pub(crate) fn plain() -> Self {
        Self::start(false)
    }

    #[track_caller]
    pub(crate) fn tls() -> Self {
        Self::start(true)
    }

    #[track_caller]
    fn start(is_tls: bool) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let issuer = issuer();
        std::fs::write(directory.path().join("ca.pem"), issuer.pem()).expect("the file");
        let config = is_tls.then(|| server_config(&issuer));
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let publisher = Self {
            address: listener.local_addr().expect("an address"),
            is_tls,
            directory,
            heads: Arc::default(),
            answering: Arc::new(Mutex::new(Box::new(|_| answer("404 Not Found", "", "")))),
            held: Arc::default(),
        };
        let heads = Arc::clone(&publisher.heads);
        let answering = Arc::clone(&publisher.answering);
        let held = Arc::clone(&publisher.held);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (heads, answering) = (Arc::clone(&heads), Arc::clone(&answering));
                let (config, held) = (config.clone(), Arc::clone(&held));
                std::thread::spawn(move || match config {
                    None => serve(stream, &heads, &answering, &held),
                    Some(config) => {
                        let Ok(connection) = ServerConnection::new(config) else {
                            return;
                        };
                        let mut stream = StreamOwned::new(connection, stream);
                        serve(&mut stream, &heads, &answering, &held);
                        stream.conn.send_close_notify();
                        let _ = stream.flush();
                    }
                });
            }
        });
        publisher
    }

    pub(crate) fn url(&self, path: &str) -> String {
        match self.is_tls {
            true => format!("https://localhost:{}{path}", self.address.port()),
            false => format!("http://{}{path}", self.address),
        }
    }

    /// The certificate authority.
    pub(crate) fn ca_file(&self) -> PathBuf {
        self.directory.path().join("ca.pem")
    }

    /// From now on it answers like this, given the head.
    #[track_caller]
    pub(crate) fn answers(&self, answering: impl Fn(&str) -> Vec<u8> + Send + 'static) {
        *self.answering.lock().expect("the answer") = Box::new(answering);
    }

    /// From now on it publishes this.
    #[track_caller]
    pub(crate) fn publishes(&self, body: &str) {
        let whole = answer("200 OK", "", body);
        self.answers(move |_| whole.clone());
    }

    /// What it was asked, in small letters.
    #[track_caller]
    pub(crate) fn heads(&self) -> Vec<String> {
        self.heads.lock().expect("the heads").clone()
    }

    /// Waits until it was asked so often.
    #[track_caller]
    pub(crate) fn wait_for_heads(&self, count: usize) {
        wait_until(&format!("{count} fetches"), || self.heads().len() >= count);
    }

    /// Answers nothing while the guard lives.
    #[track_caller]
    pub(crate) fn hold(&self) -> std::sync::MutexGuard<'_, ()> {
        self.held.lock().expect("the guard")
    }
}

fn serve(
    mut stream: impl Read + Write,
    heads: &Mutex<Vec<String>>,
    answering: &Mutex<Answering>,
    held: &Mutex<()>,
) {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut byte) {
            Ok(1) => head.push(byte[0]),
            _ => return,
        }
    }
    let head = String::from_utf8(head).expect("UTF-8").to_ascii_lowercase();
    heads.lock().expect("the heads").push(head.clone());
    drop(held.lock());
    let answer = answering.lock().expect("the answer")(&head);
    let _ = stream.write_all(&answer);
    let _ = stream.flush();
}
