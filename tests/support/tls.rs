//! TLS for the harness: certificates, a client, and the connection of a behaviour test, over
//! whatever it is to speak.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData as _,
};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, ring};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, Error, SignatureScheme, StreamOwned,
    SupportedProtocolVersion,
};

use super::PATIENCE;
use super::translator::Translated;
use super::transport::{Transport, spoken};
use super::unread::OtherEnd;

/// A certificate and its key, as files.
pub(crate) struct Pair {
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
}

impl Pair {
    /// A new one for these names, as `stem.pem` and `stem.key`; what was there is replaced.
    #[track_caller]
    pub(crate) fn write(directory: &Path, stem: &str, names: &[&str]) -> Self {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let params = CertificateParams::new(names).expect("names");
        Self::write_with(directory, stem, params)
    }

    #[track_caller]
    pub(crate) fn write_with(directory: &Path, stem: &str, params: CertificateParams) -> Self {
        let secret = KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&secret).expect("a certificate");
        let pair = Self {
            cert: directory.join(format!("{stem}.pem")),
            key: directory.join(format!("{stem}.key")),
        };
        replace(&pair.key, &secret.serialize_pem());
        replace(&pair.cert, &certificate.pem());
        pair
    }

    /// Signs a pair with an authority of its own, whose certificate is `stem.ca`; gives the digest
    /// of the authority's public key besides.
    #[track_caller]
    pub(crate) fn with_authority(directory: &Path, stem: &str, names: &[&str]) -> (Self, Vec<u8>) {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let name = &mut params.distinguished_name;
        name.push(DnType::CommonName, "an authority of tests");
        let secret = KeyPair::generate().expect("a key");
        let digest = sha256(&secret.subject_public_key_info());
        let authority = params.self_signed(&secret).expect("a certificate");
        replace(&directory.join(format!("{stem}.ca")), &authority.pem());
        let issuer = Issuer::new(params, secret);
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).expect("names");
        params.use_authority_key_identifier_extension = true;
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &issuer).expect("a certificate");
        let pair = Self {
            cert: directory.join(format!("{stem}.pem")),
            key: directory.join(format!("{stem}.key")),
        };
        replace(&pair.key, &key.serialize_pem());
        replace(&pair.cert, &(certificate.pem() + &authority.pem()));
        (pair, digest)
    }

    /// The settings of the files.
    pub(crate) fn settings(pairs: &[&Self]) -> [(&'static str, String); 2] {
        let list = |of: fn(&Self) -> &PathBuf| {
            let paths: Vec<String> = pairs
                .iter()
                .map(|pair| of(pair).display().to_string())
                .collect();
            paths.join(",")
        };
        [
            ("WAF_TLS_CERT", list(|pair| &pair.cert)),
            ("WAF_TLS_KEY", list(|pair| &pair.key)),
        ]
    }
}

fn sha256(bytes: &[u8]) -> Vec<u8> {
    let suite = ring::cipher_suite::TLS13_AES_128_GCM_SHA256.tls13();
    let hash = suite.expect("TLS 1.3").common.hash_provider;
    hash.hash(bytes).as_ref().to_vec()
}

/// By rename, as programs that renew certificates do.
fn replace(path: &Path, text: &str) {
    let beside = path.with_extension("new");
    std::fs::write(&beside, text).expect("writes");
    std::fs::rename(&beside, path).expect("renames");
}

/// The certificate that all services of this process share where nothing else is asked for.
pub(crate) fn shared_pair() -> &'static Pair {
    static SHARED: LazyLock<(tempfile::TempDir, Pair)> = LazyLock::new(|| {
        let directory = tempfile::tempdir().expect("a directory");
        let pair = Pair::write(directory.path(), "shared", &["localhost"]);
        (directory, pair)
    });
    &SHARED.1
}

fn algorithms() -> WebPkiSupportedAlgorithms {
    ring::default_provider().signature_verification_algorithms
}

/// Takes every certificate, and keeps the signature checks: the harness asks who is there itself.
#[derive(Debug)]
struct AnyCertificate;

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        rustls::crypto::verify_tls12_signature(message, cert, dss, &algorithms())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        rustls::crypto::verify_tls13_signature(message, cert, dss, &algorithms())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        algorithms().supported_schemes()
    }
}

/// What a client speaks: its versions and its protocols above TLS.
pub(crate) fn client(
    versions: &[&'static SupportedProtocolVersion],
    protocols: &[&str],
) -> Arc<ClientConfig> {
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let mut config = builder
        .with_protocol_versions(versions)
        .expect("versions")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyCertificate))
        .with_no_client_auth();
    config.alpn_protocols = protocols
        .iter()
        .map(|protocol| protocol.as_bytes().to_vec())
        .collect();
    Arc::new(config)
}

/// A client of this process, with its memory of sessions.
static ANY: LazyLock<Arc<ClientConfig>> = LazyLock::new(|| client(rustls::ALL_VERSIONS, &[]));

/// A TLS connection.
pub(crate) type Secured = StreamOwned<ClientConnection, TcpStream>;

/// Connects and makes the handshake.
pub(crate) fn connect(
    address: SocketAddr,
    name: &str,
    config: &Arc<ClientConfig>,
) -> io::Result<Secured> {
    let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    secure(stream, name, config)
}

/// Makes the handshake on a connection.
pub(crate) fn secure(
    mut stream: TcpStream,
    name: &str,
    config: &Arc<ClientConfig>,
) -> io::Result<Secured> {
    let name = ServerName::try_from(name.to_owned()).expect("a name");
    let mut connection = ClientConnection::new(Arc::clone(config), name).expect("a client");
    while connection.is_handshaking() {
        connection.complete_io(&mut stream)?;
    }
    Ok(StreamOwned::new(connection, stream))
}

/// A connection of the harness: plain, or over what is spoken at the other end.
pub(crate) enum Stream {
    Plain(TcpStream),
    Tls(Box<Secured>),
    Http2(Translated),
    /// The handshake failed: what is sent is lost, as behind a reset that has not come yet.
    Failed(TcpStream),
}

impl Stream {
    /// Speaks what is spoken at the other end. Where the handshake fails, whoever reads finds the
    /// end.
    #[track_caller]
    pub(crate) fn over(stream: TcpStream) -> Self {
        match stream.peer_addr().map_or(Transport::Plain, spoken) {
            Transport::Plain => return Self::Plain(stream),
            Transport::Http2 => return Self::Http2(Translated::over(stream)),
            Transport::Tls => {}
        }
        let kept = stream.try_clone().expect("twice");
        match secure(stream, "localhost", &ANY) {
            Ok(secured) => Self::Tls(Box::new(secured)),
            Err(_) => Self::Failed(kept),
        }
    }

    pub(crate) fn tcp(&self) -> &TcpStream {
        match self {
            Self::Plain(stream) | Self::Failed(stream) => stream,
            Self::Tls(secured) => &secured.sock,
            Self::Http2(translated) => &translated.near,
        }
    }

    /// Ends our sending side.
    pub(crate) fn finish_sending(&self) {
        if let Self::Http2(translated) = self {
            translated.only_reads.store(true, Ordering::SeqCst);
        }
        let _ = self.tcp().shutdown(Shutdown::Write);
    }

    /// Waits until the service has read all that was sent.
    #[track_caller]
    pub(crate) fn wait_until_read(&self) {
        OtherEnd::of(self.tcp()).wait_until_read();
        if let Self::Http2(translated) = self {
            translated.far_end.wait_until_read();
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) | Self::Failed(stream) => stream.read(buf),
            Self::Tls(secured) => read(secured, buf),
            Self::Http2(translated) => translated.near.read(buf),
        }
    }
}

/// Reads what was sent, also where nothing can be sent any more: rustls's own stream would write
/// first.
fn read(secured: &mut Secured, buf: &mut [u8]) -> io::Result<usize> {
    loop {
        match secured.conn.reader().read(buf) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            read => return read,
        }
        secured.conn.read_tls(&mut secured.sock)?;
        let processed = secured.conn.process_new_packets();
        processed.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    }
}

impl Write for Stream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.write(buf),
            Self::Tls(secured) => {
                let written = secured.write(buf)?;
                secured.flush()?;
                Ok(written)
            }
            Self::Http2(translated) => translated.near.write(buf),
            Self::Failed(_) => Ok(buf.len()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(stream) => stream.flush(),
            Self::Tls(secured) => secured.flush(),
            Self::Http2(translated) => translated.near.flush(),
            Self::Failed(_) => Ok(()),
        }
    }
}
