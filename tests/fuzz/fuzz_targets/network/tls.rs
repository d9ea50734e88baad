//! Records of TLS: whatever comes in the place of a handshake ends it in as many turns as it has
//! bytes; and of what a client has sent over a session only a beginning is read, all of it where
//! nobody has changed a bit (EDGE-2).
//!
//! The first byte chooses between the two, and whether a bit is changed; the next two say which.
#![no_main]

use std::future::poll_fn;
use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Waker};

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use rustls::pki_types::PrivateKeyDer;
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig};
use tokio::io::ReadBuf;
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use weir_dataplane::fuzzing::tls::{Advanced, Session};

static CONFIGS: LazyLock<(Arc<ServerConfig>, Arc<ClientConfig>)> = LazyLock::new(configs);

thread_local! {
    static RUNTIME: Runtime = Builder::new_current_thread().enable_io().build().expect("a runtime");
}

fuzz_target!(|input: &[u8]| {
    let [choice, high, low, bytes @ ..] = input else {
        return;
    };
    let changed = (choice & 2 != 0).then(|| usize::from(u16::from_be_bytes([*high, *low])));
    RUNTIME.with(|runtime| {
        if choice & 1 == 0 {
            runtime.block_on(handshake(bytes));
        } else {
            runtime.block_on(session(bytes, changed));
        }
    });
});

/// A client's end, and the service's.
fn pair() -> (UnixStream, TcpStream) {
    let (client, service) = UnixStream::pair().expect("a pair");
    service.set_nonblocking(true).expect("an option");
    let service = std::net::TcpStream::from(std::os::fd::OwnedFd::from(service));
    (client, TcpStream::from_std(service).expect("a stream"))
}

async fn handshake(bytes: &[u8]) {
    let (client, mut stream) = pair();
    client.shutdown(Shutdown::Write).expect("it is open");
    let early = Bytes::copy_from_slice(bytes);
    let mut session = Session::new(Arc::clone(&CONFIGS.0), early).expect("a session");
    for _ in 0..bytes.len() + 2 {
        poll_fn(|cx| session.poll_handshake(&stream, cx)).await;
        let mut cx = Context::from_waker(Waker::noop());
        match session.advance(&mut stream, &mut cx) {
            Ok(Advanced::UnderWay) => {}
            Ok(Advanced::Closed) | Err(_) => return,
            Ok(Advanced::Done { .. }) => panic!("a handshake without the other side's answer"),
        }
    }
    panic!("it is still under way");
}

async fn session(content: &[u8], changed: Option<usize>) {
    let (mut socket, mut stream) = pair();
    let name = "a.example".try_into().expect("a name");
    let mut client = ClientConnection::new(Arc::clone(&CONFIGS.1), name).expect("a client");
    let mut session = Session::new(Arc::clone(&CONFIGS.0), Bytes::new()).expect("a session");
    client.write_tls(&mut socket).expect("a hello");
    let mut hello_is_answered = false;
    loop {
        poll_fn(|cx| session.poll_handshake(&stream, cx)).await;
        let mut cx = Context::from_waker(Waker::noop());
        let advanced = session.advance(&mut stream, &mut cx).expect("a handshake");
        if matches!(advanced, Advanced::Done { .. }) {
            break;
        }
        // Readiness may be told without bytes.
        socket.set_nonblocking(true).expect("an option");
        while client.is_handshaking() {
            let mut room = [0; 4096];
            let Ok(count) = socket.read(&mut room) else {
                break;
            };
            let mut read = &room[..count];
            while !read.is_empty() {
                client.read_tls(&mut read).expect("it has room");
                client.process_new_packets().expect("a flight");
            }
        }
        if !client.is_handshaking() && !std::mem::replace(&mut hello_is_answered, true) {
            client
                .write_tls(&mut socket)
                .expect("the end of the handshake");
        }
    }
    client.writer().write_all(content).expect("it has room");
    let mut wire = Vec::new();
    while client.wants_write() {
        client.write_tls(&mut wire).expect("a Vec has room");
    }
    if let Some(changed) = changed {
        let bits = wire.len() * 8;
        if let Some(bit) = changed.checked_rem(bits) {
            wire[bit / 8] ^= 1 << (bit % 8);
        }
    }
    socket.set_nonblocking(false).expect("an option");
    socket.write_all(&wire).expect("the socket has room");
    socket.shutdown(Shutdown::Write).expect("it is open");
    let mut read = Vec::new();
    loop {
        let mut room = [0; 300];
        let mut buf = ReadBuf::new(&mut room);
        match poll_fn(|cx| session.poll_read(&mut stream, cx, &mut buf)).await {
            Ok(()) if !buf.filled().is_empty() => read.extend_from_slice(buf.filled()),
            Ok(()) | Err(_) => break,
        }
    }
    assert!(content.starts_with(&read));
    assert!(changed.is_some() || read == content);
}

fn configs() -> (Arc<ServerConfig>, Arc<ClientConfig>) {
    let made = rcgen::generate_simple_self_signed(["a.example".to_owned()]).expect("a certificate");
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).expect("a key");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .expect("a certificate");
    let mut roots = RootCertStore::empty();
    roots.add(made.cert.der().clone()).expect("a root");
    let client = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    (Arc::new(server), Arc::new(client))
}
