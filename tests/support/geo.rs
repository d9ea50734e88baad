//! A lookup service over HTTPS with a certificate authority of its own, that can be told to
//! misbehave. A thread a connection, like the application.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

type Stream = StreamOwned<ServerConnection, TcpStream>;

/// A listening service. It answers as its handler says, for each question anew.
pub(crate) struct Geo {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
    directory: tempfile::TempDir,
}

/// One question, and the connection to answer on.
pub(crate) struct Question {
    /// What stands after the slash: the address.
    pub(crate) address: String,
    /// How many questions came before.
    pub(crate) number: usize,
    stream: Stream,
}

impl Geo {
    #[track_caller]
    pub(crate) fn start(handler: impl Fn(&mut Question) + Send + Sync + 'static) -> Self {
        let issuer = issuer();
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::write(directory.path().join("ca.pem"), issuer.pem()).expect("the file");
        // A certificate authority that signed nothing.
        std::fs::write(directory.path().join("other.pem"), self::issuer().pem()).expect("the file");
        let config = server_config(&issuer);
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (seen, handler) = (Arc::clone(&asked), Arc::new(handler));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { continue };
                let config = Arc::clone(&config);
                let (seen, handler) = (Arc::clone(&seen), Arc::clone(&handler));
                std::thread::spawn(move || serve(stream, config, &seen, &*handler));
            }
        });
        Self {
            address,
            asked,
            directory,
        }
    }

    /// Answers every question with this body.
    #[track_caller]
    pub(crate) fn saying(body: &'static str) -> Self {
        Self::start(move |question| question.say(body))
    }

    /// Never answers.
    #[track_caller]
    pub(crate) fn silent() -> Self {
        Self::start(|_| std::thread::sleep(Duration::from_secs(60)))
    }

    /// The settings that lead to it, and those given.
    pub(crate) fn settings(&self, more: &[(&'static str, &str)]) -> Vec<(&'static str, String)> {
        let url = format!("https://localhost:{}/{{ip}}", self.address.port());
        let mut settings = vec![
            ("WAF_LOOKUP_SOURCE", "geojs".to_owned()),
            ("WAF_LOOKUP_URL", url),
            (
                "WAF_LOOKUP_CA_FILE",
                self.file("ca.pem").display().to_string(),
            ),
            // Generous: a busy machine is no failure of the service.
            ("WAF_LOOKUP_TIMEOUT", "15s".to_owned()),
        ];
        settings.extend(
            more.iter()
                .map(|(name, value)| (*name, (*value).to_owned())),
        );
        settings
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The addresses that were asked about so far.
    #[track_caller]
    pub(crate) fn asked(&self) -> Vec<String> {
        self.asked.lock().expect("the questions").clone()
    }
}

impl Question {
    /// 200 with a body.
    pub(crate) fn say(&mut self, body: &str) {
        self.answer("HTTP/1.1 200 OK", "", body);
    }

    pub(crate) fn answer(&mut self, status: &str, fields: &str, body: &str) {
        let length = body.len();
        let text = format!("{status}\r\nContent-Length: {length}\r\n{fields}\r\n{body}");
        self.send(text.as_bytes());
    }

    /// Raw bytes. False if the other side is gone.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).is_ok() && self.stream.flush().is_ok()
    }

    /// Ends the connection.
    pub(crate) fn close(&mut self) {
        self.stream.conn.send_close_notify();
        let _ = self.stream.flush();
        let _ = self.stream.sock.shutdown(std::net::Shutdown::Both);
    }

    /// Ends the connection as a crash would.
    pub(crate) fn reset(&mut self) {
        let linger = Some(Duration::ZERO);
        let _ = socket2::SockRef::from(&self.stream.sock).set_linger(linger);
        let _ = self.stream.sock.shutdown(std::net::Shutdown::Both);
    }
}

fn serve(
    stream: TcpStream,
    config: Arc<ServerConfig>,
    seen: &Mutex<Vec<String>>,
    handler: &(dyn Fn(&mut Question) + Send + Sync),
) {
    let Ok(connection) = ServerConnection::new(config) else {
        return;
    };
    let mut question = Question {
        address: String::new(),
        number: 0,
        stream: StreamOwned::new(connection, stream),
    };
    loop {
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") {
            match question.stream.read(&mut byte) {
                Ok(1) => head.push(byte[0]),
                _ => return,
            }
        }
        let head = String::from_utf8(head).expect("UTF-8");
        let target = head.split(' ').nth(1).expect("a target");
        question.address = target.trim_start_matches('/').to_owned();
        {
            let mut seen = seen.lock().expect("the questions");
            question.number = seen.len();
            seen.push(question.address.clone());
        }
        handler(&mut question);
    }
}

/// A certificate authority.
pub(crate) fn issuer() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::new(Vec::<String>::new()).expect("parameters");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().expect("a key");
    CertifiedIssuer::self_signed(params, key).expect("a certificate")
}

/// TLS of a server at `localhost`, whose certificate this authority has signed.
pub(crate) fn server_config(issuer: &CertifiedIssuer<'static, KeyPair>) -> Arc<ServerConfig> {
    let names = vec!["localhost".to_owned()];
    let params = CertificateParams::new(names).expect("parameters");
    let key = KeyPair::generate().expect("a key");
    let certificate = params.signed_by(&key, issuer).expect("a certificate");
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .expect("a certificate and its key");
    Arc::new(config)
}
