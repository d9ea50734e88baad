//! TLS for the benches: certificates, and a generator that makes a handshake for each request,
//! which wrk does not.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, Error, HandshakeKind, SignatureScheme,
    StreamOwned,
};

use crate::ask::connect;
use crate::load::{Counted, on_threads};
use crate::message::Message;
use crate::statistics::{Delays, ms};

/// Sessions that a generator remembers.
const SESSIONS: usize = 256;

/// The key of a certificate, as openssl makes it.
pub type Key = &'static [&'static str];
/// ECDSA over P-256, as certificates mostly are today.
pub const ECDSA: Key = &["ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"];
/// RSA of 2048 bits.
pub const RSA: Key = &["rsa:2048"];

/// Makes a certificate with openssl: `cert.pem`, `key.pem`, and both in `both.pem`, as HAProxy
/// reads them.
pub fn certificate(directory: &Path, key: Key) -> Result<()> {
    let made = "req -x509 -nodes -days 30 -subj /CN=localhost -keyout key.pem -out cert.pem";
    let output = Command::new("openssl")
        .args(made.split(' '))
        .args(["-addext", "subjectAltName=DNS:localhost", "-newkey"])
        .args(key)
        .current_dir(directory)
        .stdin(Stdio::null())
        .output()
        .context("openssl cannot be started")?;
    if !output.status.success() {
        bail!("openssl: {}", String::from_utf8_lossy(&output.stderr));
    }
    let file = |name| std::fs::read_to_string(directory.join(name));
    let both = file("cert.pem")? + &file("key.pem")?;
    Ok(std::fs::write(directory.join("both.pem"), both)?)
}

/// Takes every certificate and signature: who is there is known, and the generator is to be quick.
#[derive(Debug)]
struct Anybody;

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        ring::default_provider()
            .signature_verification_algorithms
            .supported_schemes()
    }
}

/// Makes one connection after the other, each with a handshake and one request.
#[derive(Clone, Debug)]
pub struct Handshakes {
    config: Arc<ClientConfig>,
    kind: HandshakeKind,
}

impl Handshakes {
    /// Full handshakes, or such that go on with a session. TLS 1.3, X25519, AES-256-GCM: what all
    /// of the proxies choose.
    pub fn new(resumed: bool) -> Result<Self> {
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let sessions = Resumption::in_memory_sessions(SESSIONS);
        let (resumption, kind) = match resumed {
            true => (sessions, HandshakeKind::Resumed),
            false => (Resumption::disabled(), HandshakeKind::Full),
        };
        let mut config = builder
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Anybody))
            .with_no_client_auth();
        config.resumption = resumption;
        let config = Arc::new(config);
        Ok(Self { config, kind })
    }

    /// One request on a connection of its own: the answer, and how the handshake went.
    pub fn ask(&self, address: SocketAddr, request: &str) -> Result<(Message, HandshakeKind)> {
        let name = ServerName::try_from("localhost").context("a name")?;
        let connection = ClientConnection::new(Arc::clone(&self.config), name)?;
        let mut stream = StreamOwned::new(connection, connect(address)?);
        stream.write_all(request.as_bytes())?;
        let mut answer = Vec::with_capacity(1024);
        match stream.read_to_end(&mut answer) {
            // HTTP says itself how long an answer is.
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {}
            read => drop(read?),
        }
        let (answer, _) = Message::whole(&answer).context("no whole answer")?;
        let kind = stream.conn.handshake_kind();
        Ok((answer, kind.context("no handshake")?))
    }

    /// Asks for `path` on so many threads of the load's core, for a while.
    /// More than one handshake of a hundred that goes otherwise is an error: the first ones of each
    /// thread have no session yet.
    pub fn run(
        &self,
        address: SocketAddr,
        path: &str,
        threads: u32,
        time: Duration,
    ) -> Result<Counted> {
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        let begin = Instant::now();
        let others = AtomicU64::new(0);
        let took = on_threads(threads, |_| {
            // Its own memory of sessions: a ticket is used once.
            let own = Self::new(self.kind == HandshakeKind::Resumed)?;
            let mut took = Vec::new();
            while begin.elapsed() < time {
                let asked = Instant::now();
                let (answer, kind) = own.ask(address, &request)?;
                answer.expect(200)?;
                others.fetch_add(u64::from(kind != self.kind), Ordering::Relaxed);
                took.push(ms(asked.elapsed()));
            }
            Ok(took)
        })?;
        let seconds = begin.elapsed().as_secs_f64();
        let (requests, others) = (took.len() as u64, others.into_inner());
        if others > u64::from(threads) + requests / 100 {
            bail!("{others} of {requests} handshakes were not {:?}", self.kind);
        }
        Ok(Counted {
            requests,
            seconds,
            delays: Delays::of(took),
            refused: 0,
            broken: 0,
        })
    }
}
