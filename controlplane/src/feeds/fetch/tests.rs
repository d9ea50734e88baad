use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::*;
use crate::outgoing::tls;
use crate::testing::run;

/// What a publisher sends to a head, and whether it then waits for the other side to go.
type Answering = dyn Fn(&str) -> (Vec<u8>, bool) + Send + Sync;

/// A publisher on loopback, with TLS or without. A thread a connection.
struct Publisher {
    port: u16,
    heads: Arc<Mutex<Vec<String>>>,
}

impl Publisher {
    fn start(
        config: Option<Arc<ServerConfig>>,
        answering: impl Fn(&str) -> (Vec<u8>, bool) + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let heads = Arc::<Mutex<Vec<String>>>::default();
        let (seen, answering) = (Arc::clone(&heads), Arc::new(answering));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (seen, answering) = (Arc::clone(&seen), Arc::clone(&answering));
                let config = config.clone();
                std::thread::spawn(move || match config {
                    None => serve(stream, &seen, &*answering),
                    Some(config) => {
                        let connection = ServerConnection::new(config).unwrap();
                        let mut stream = StreamOwned::new(connection, stream);
                        serve(&mut stream, &seen, &*answering);
                        stream.conn.send_close_notify();
                        let _ = stream.flush();
                    }
                });
            }
        });
        Self { port, heads }
    }

    fn plain(answer: impl Into<Vec<u8>>) -> Self {
        let answer = answer.into();
        Self::start(None, move |_| (answer.clone(), false))
    }

    fn url(&self) -> FeedUrl {
        url(&format!("http://127.0.0.1:{}/list", self.port))
    }

    fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap().clone()
    }
}

fn serve(mut stream: impl Read + Write, heads: &Mutex<Vec<String>>, answering: &Answering) {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut byte) {
            Ok(1) => head.push(byte[0]),
            _ => return,
        }
    }
    let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
    heads.lock().unwrap().push(head.clone());
    let (answer, waits) = answering(&head);
    let _ = stream.write_all(&answer);
    let _ = stream.flush();
    if waits {
        let _ = stream.read(&mut byte);
    }
}

fn url(text: &str) -> FeedUrl {
    FeedUrl::try_from(text.to_owned()).unwrap()
}

fn get(url: &FeedUrl, validators: &Validators) -> Result<Fetched, Failure> {
    run(fetch(&tls(None).unwrap(), url, validators, 0))
}

fn answer(status: &str, fields: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n{fields}\r\n{body}").into_bytes()
}

/// FEED-3: the request to the publisher; a version that weir already has is not sent again.
#[test]
fn a_fetch_is_conditional() {
    let publisher = Publisher::start(None, |head| {
        let fields = "ETag: \"v1\"\r\nLast-Modified: Sat, 21 Nov 2026 16:00:00 GMT\r\n";
        match head.contains("\r\nif-none-match: \"v1\"\r\n") {
            true => (answer("304 Not Modified", fields, ""), false),
            false => (answer("200 OK", fields, "192.0.2.1\n"), false),
        }
    });
    let none = Validators::default();
    let Ok(Fetched::Body(bytes, validators)) = get(&publisher.url(), &none) else {
        panic!("no list");
    };
    assert_eq!(bytes, b"192.0.2.1\n");
    assert_eq!(validators.etag.as_deref(), Some("\"v1\""));
    assert_eq!(get(&publisher.url(), &validators), Ok(Fetched::Unchanged));
    let [first, second] = publisher.heads().try_into().unwrap();
    let host = format!("host: 127.0.0.1:{}\r\n", publisher.port);
    assert_eq!(
        first,
        format!(
            "get /list http/1.1\r\nuser-agent: weir\r\naccept-encoding: identity\r\n{host}\r\n"
        )
    );
    assert!(
        second.contains("if-modified-since: sat, 21 nov 2026 16:00:00 gmt\r\n"),
        "{second}"
    );
    // Nobody asked whether anything has changed.
    let publisher = Publisher::plain(answer("304 Not Modified", "", ""));
    let failure = get(&publisher.url(), &none).unwrap_err();
    assert_eq!(
        failure.to_string(),
        "the answer has status 304 Not Modified"
    );
}

/// FEED-3: an answer that is incomplete, too large or not the requested list is refused; a
/// publisher may ask for a pause.
#[test]
fn an_answer_that_is_not_whole_is_none() {
    let told = |answer: Vec<u8>| {
        let publisher = Publisher::plain(answer);
        get(&publisher.url(), &Validators::default()).unwrap_err()
    };
    for (raw, why) in [
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n192.0.2.1\n",
            "it was broken off: ",
        ),
        (
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\na\r\n192.0.2.1\n\r\n",
            "it was broken off: ",
        ),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 67108865\r\n\r\n192.0.2.1\n",
            "it is larger than 64 MiB",
        ),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-encoding: gzip\r\n\r\nxx",
            "it is encoded as \"gzip\"",
        ),
        ("HTTP/1.1 200 O", "the connection failed: "),
        ("", "the connection failed: "),
        ("SSH-2.0-x\r\n\r\n", "the connection failed: "),
        (
            "HTTP/1.1 404 Not Found\r\n\r\n",
            "the answer has status 404",
        ),
        ("HTTP/1.1 302 Found\r\n\r\n", "the answer has status 302"),
        (
            "HTTP/1.1 302 Found\r\nlocation: /other\r\n\r\n",
            "it redirects to \"/other\", and a feed on loopback follows none",
        ),
    ] {
        let told = told(raw.into()).to_string();
        assert!(told.starts_with(why), "{raw:?}: {told}");
    }
    let pause = |answer: &str| told(answer.into()).pause().map(|pause| pause.as_secs());
    assert_eq!(
        pause("HTTP/1.1 503 x\r\nretry-after: 700\r\n\r\n"),
        Some(700)
    );
    assert_eq!(pause("HTTP/1.1 429 x\r\nretry-after: soon\r\n\r\n"), None);
}

/// FEED-3: at most 64 MiB of a list without a length is read, and no read waits for ever.
#[test]
fn a_list_without_an_end_is_not_read_on() {
    let chunk = [b"100000\r\n".as_slice(), &[b'#'; 1 << 20], b"\r\n"].concat();
    let begin = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".as_slice();
    let publisher = Publisher::plain([begin, &chunk.repeat(65)].concat());
    let none = Validators::default();
    assert_eq!(get(&publisher.url(), &none), Err(Failure::TooLarge));
    let publisher = Publisher::start(None, |_| {
        let begun = b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n192.0.2.1\n";
        (begun.to_vec(), true)
    });
    let tls = tls(None).unwrap();
    let way = Way {
        tls: &tls,
        reach: Reach::Loopback,
        now_ms: 0,
    };
    let fetching = way.fetch(publisher.url(), &none);
    let fetched = run(within(Duration::from_millis(50), fetching));
    assert_eq!(fetched, Err(Failure::TimedOut));
}

/// A certificate authority, and what a publisher of these names serves with.
fn authority(names: &[&str]) -> (tempfile::NamedTempFile, Arc<ServerConfig>) {
    let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(names).unwrap();
    let certificate = certificate.signed_by(&key, &issuer).unwrap();
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .unwrap();
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(issuer.pem().as_bytes()).unwrap();
    (file, Arc::new(config))
}

/// FEED-1, FEED-3: over HTTPS with a private authority, a redirect is followed to another public
/// place of the same scheme, a few times, and to no other.
#[test]
fn redirects_are_followed_outside_alone() {
    let (file, config) = authority(&["lists.test", "other.test", "127.0.0.1"]);
    let there = Publisher::start(Some(Arc::clone(&config)), |_| {
        (answer("200 OK", "", "192.0.2.1\n"), false)
    });
    let port = there.port;
    let from = Publisher::start(Some(config), move |head| {
        let target = head.split(' ').nth(1).unwrap();
        let location = match target {
            "/other" => format!("https://other.test:{port}/list"),
            "/round" => "/round".to_owned(),
            "/plain" => format!("http://other.test:{port}/list"),
            "/private" => "https://10.0.0.1/list".to_owned(),
            "/metadata" => "https://169.254.169.254/list".to_owned(),
            "/local" => format!("https://localhost:{port}/list"),
            other => panic!("{other}"),
        };
        (
            answer("302 Found", &format!("location: {location}\r\n"), ""),
            false,
        )
    });
    let trusting = tls(Some(file.path())).unwrap();
    let get = |tls: &ClientConfig, reach, path: &str| {
        let place = url(&format!("https://lists.test:{}{path}", from.port));
        let way = Way {
            tls,
            reach,
            now_ms: 0,
        };
        run(way.fetch(place, &Validators::default()))
    };
    let public = Reach::TestPublic;
    let fetched = get(&trusting, public, "/other");
    assert_eq!(
        fetched,
        Ok(Fetched::Body(
            b"192.0.2.1\n".to_vec(),
            Validators::default()
        ))
    );
    assert_eq!(get(&trusting, public, "/round"), Err(Failure::Redirects));
    for (path, why) in [
        ("/plain", "which has another scheme"),
        ("/private", "which is no public address"),
        ("/metadata", "which is no public address"),
        ("/local", "which is no public address"),
    ] {
        let told = get(&trusting, public, path).unwrap_err().to_string();
        assert!(told.contains(why), "{path}: {told}");
    }
    assert_eq!(there.heads().len(), 1, "nothing else was asked for");
    // The name leads to this machine, which is not public.
    let told = get(&trusting, Reach::Public, "/other")
        .unwrap_err()
        .to_string();
    assert!(told.contains("the name has no public address"), "{told}");
    // Whoever trusts Mozilla's roots alone does not trust this authority.
    let told = get(&tls(None).unwrap(), public, "/other")
        .unwrap_err()
        .to_string();
    assert!(told.contains("certificate"), "{told}");
    let elsewhere = url(&format!("https://stranger.test:{}/other", from.port));
    let way = Way {
        tls: &trusting,
        reach: public,
        now_ms: 0,
    };
    let told = run(way.fetch(elsewhere, &Validators::default())).unwrap_err();
    assert!(told.to_string().contains("certificate"), "{told}");
}
