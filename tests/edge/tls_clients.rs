//! TLS with clients of others: curl, openssl, Python's httpx, Chromium (EDGE-2).

use std::path::Path;
use std::process::{Command, Output};

use super::tls::Edge;
use crate::support::application::{After, Application};
use crate::support::command::fed;
use crate::support::tls::Pair;
use crate::support::wait_until;
use crate::support::weir::state_dir;

/// A service with the certificate of an authority, and the authority.
struct Trusted {
    edge: Edge,
    authority: String,
    /// The digest of its public key.
    digest: Vec<u8>,
}

impl Trusted {
    #[track_caller]
    fn start(application: &Application) -> Self {
        let state = state_dir();
        let (pair, digest) = Pair::with_authority(state.path(), "one", &["localhost"]);
        let authority = state.path().join("one.ca").display().to_string();
        let settings = [("WAF_TRUSTED_PROXIES", "192.0.2.1")];
        Self {
            edge: Edge::start_with(application, state, &[&pair], &settings),
            authority,
            digest,
        }
    }

    fn url(&self, path: &str) -> String {
        format!("https://localhost:{}{path}", self.edge.tls.port())
    }

    /// `openssl s_client` with these arguments, and what it is given to send.
    #[track_caller]
    fn s_client(&self, arguments: &[&str], input: &str) -> Output {
        let mut openssl = Command::new("openssl");
        openssl
            .args(["s_client", "-connect", &self.edge.tls.to_string()])
            .args(["-servername", "localhost", "-CAfile", &self.authority])
            .args(["-verify_return_error"])
            .args(arguments);
        fed(&mut openssl, input.as_bytes())
    }
}

fn said(output: &Output) -> String {
    let [out, err] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    format!("{}\n{out}\n{err}", output.status)
}

/// EDGE-2: curl, over both versions: answers, uploads by length and in chunks, several requests of
/// one connection, and none where an older version is asked for.
#[test]
#[ignore = "needs curl"]
fn curl_is_served() {
    let application = Application::echo();
    let trusted = Trusted::start(&application);
    let body: Vec<u8> = (0..1_500_000_u32).map(|n| n.to_be_bytes()[2]).collect();
    let file = trusted.edge.state.path().join("body");
    std::fs::write(&file, &body).expect("writes");
    let curl = |arguments: &[&str]| {
        Command::new("curl")
            .args([
                "-sS",
                "--http1.1",
                "--max-time",
                "60",
                "--cacert",
                &trusted.authority,
            ])
            .args(arguments)
            .output()
            .expect("curl is installed")
    };
    for (version, limit) in [("--tlsv1.2", "1.2"), ("--tlsv1.3", "1.3")] {
        let at = |path: &str| trusted.url(&format!("/{limit}{path}"));
        let data = format!("@{}", file.display());
        let only = [version, "--tls-max", limit];
        for coding in ["Content-Type: a/b", "Transfer-Encoding: chunked"] {
            let upload = ["--data-binary", &data, "-H", coding];
            let output = curl(&[&only[..], &upload, &[&at("/upload")]].concat());
            assert!(output.status.success(), "{}", said(&output));
            assert!(output.stdout == body, "{limit} {coding}");
        }
        let (first, second) = (at("/first"), at("/second"));
        let report = "%{num_connects} %{ssl_verify_result} %{http_version}\n";
        let twice = [
            "-w",
            report,
            "-o",
            "/dev/null",
            &first,
            "-o",
            "/dev/null",
            &second,
        ];
        let output = curl(&[&only[..], &twice].concat());
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            "1 0 1.1\n0 0 1.1\n",
            "{}",
            said(&output)
        );
    }
    // curl's own policy would not offer it either: the weakest level asks the service.
    let url = trusted.url("/old");
    let old = [
        "--tlsv1.1",
        "--tls-max",
        "1.1",
        "--ciphers",
        "DEFAULT:@SECLEVEL=0",
        &url,
    ];
    let output = curl(&old);
    assert_eq!(output.status.code(), Some(35), "{}", said(&output));
}

/// EDGE-2: a WebSocket over TLS: curl asks for the upgrade, and what both sides send is carried.
#[test]
#[ignore = "needs curl"]
fn curl_upgrades() {
    let application = Application::start(|exchange| {
        exchange.send(
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
        );
        exchange.send(b"\x81\x05hello");
        After::Close
    });
    let trusted = Trusted::start(&application);
    let output = Command::new("curl")
        .args(["-sS", "-N", "-i", "--http1.1", "--max-time", "20"])
        .args(["--cacert", &trusted.authority])
        .args(["-H", "Connection: Upgrade", "-H", "Upgrade: websocket"])
        .args(["-H", "Sec-WebSocket-Version: 13"])
        .args(["-H", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="])
        .arg(trusted.url("/chat"))
        .output()
        .expect("curl is installed");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.starts_with("HTTP/1.1 101 "), "{}", said(&output));
    assert!(text.contains("hello"), "{}", said(&output));
}

/// EDGE-2: `openssl s_client`: sessions go on in both versions, older versions and renegotiation
/// are refused, the whole chain is sent, and early data is not offered.
#[test]
#[ignore = "needs openssl"]
fn openssl_is_served() {
    const REQUEST: &str = "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let application = Application::ok();
    let trusted = Trusted::start(&application);
    let session = trusted.edge.state.path().join("session");
    let session = session.to_str().expect("a path");
    for version in ["-tls1_2", "-tls1_3"] {
        let first = trusted.s_client(&[version, "-ign_eof", "-sess_out", session], REQUEST);
        let text = said(&first);
        assert!(text.contains("HTTP/1.1 200 "), "{text}");
        assert!(text.contains("Verify return code: 0 (ok)"), "{text}");
        assert!(!text.contains("Max Early Data: 1"), "{text}");
        let again = trusted.s_client(&[version, "-ign_eof", "-sess_in", session], REQUEST);
        let text = said(&again);
        assert!(text.contains("Reused, "), "{text}");
        assert!(text.contains("HTTP/1.1 200 "), "{text}");
    }
    let five = trusted.s_client(&["-tls1_2", "-reconnect"], "");
    assert_eq!(
        said(&five).matches("Reused, ").count(),
        5,
        "{}",
        said(&five)
    );
    for old in ["-tls1", "-tls1_1"] {
        let refused = trusted.s_client(&[old, "-cipher", "DEFAULT:@SECLEVEL=0"], REQUEST);
        let text = said(&refused);
        assert!(text.contains("SSL alert number "), "{text}");
        assert!(text.contains("no peer certificate available"), "{text}");
    }
    wait_until("the failures", || trusted.edge.handshakes("failed") == 2.0);
    assert_eq!(trusted.edge.handshakes("resumed"), 7.0);
    // A line of one R asks for new keys in TLS 1.2.
    let again = trusted.s_client(&["-tls1_2", "-msg"], "R\n");
    let text = said(&again);
    assert!(text.contains("RENEGOTIATING"), "{text}");
    assert!(
        text.contains("no_renegotiation") || text.contains("no renegotiation"),
        "{text}"
    );
    assert_eq!(text.matches(", ServerHello\n").count(), 1, "{text}");
}

/// EDGE-2: a pool of Python's httpx: kept connections, uploads, streams.
#[test]
#[ignore = "needs httpx, in the Python of WEIR_HTTPX"]
fn httpx_is_served() {
    let application = Application::echo();
    let trusted = Trusted::start(&application);
    let python = std::env::var("WEIR_HTTPX").expect("WEIR_HTTPX is a Python with httpx");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/edge/httpx_pool.py");
    let output = Command::new(python)
        .arg(script)
        .args([trusted.url(""), trusted.authority.clone()])
        .output()
        .expect("Python runs");
    assert_eq!(output.stdout, b"good\n", "{}", said(&output));
    assert_eq!(trusted.edge.handshakes("full"), 1.0, "one kept connection");
}

/// EDGE-2: a browser loads a page and what belongs to it.
#[test]
#[ignore = "needs chromium"]
fn chromium_is_served() {
    let application = Application::start(|exchange| {
        if !exchange.read_body() {
            return After::Close;
        }
        let target = exchange.request.target.clone();
        let (kind, body) = match &*target {
            "/page" => (
                "text/html",
                "<!doctype html><title>t</title><p id=p>none</p><script src=/script></script>",
            ),
            "/script" => (
                "text/javascript",
                "document.getElementById('p').textContent = `loaded over ${location.protocol}`",
            ),
            _ => ("text/plain", "none"),
        };
        exchange.answer(200, &[("Content-Type", kind)], body.as_bytes());
        After::KeepAlive
    });
    let trusted = Trusted::start(&application);
    let profile = tempfile::tempdir().expect("a directory");
    let key = data_encoding::BASE64.encode(&trusted.digest);
    let load = |authority: &str| {
        Command::new("chromium")
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"])
            .args(["--disable-dev-shm-usage", "--no-first-run"])
            .args([
                "--disable-background-networking",
                "--disable-component-update",
            ])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg(format!("--ignore-certificate-errors-spki-list={authority}"))
            .arg(trusted.url("/page"))
            .output()
            .expect("chromium is installed")
    };
    let shown = load(&key);
    assert!(
        said(&shown).contains("loaded over https:"),
        "{}",
        said(&shown)
    );
    let line = trusted.edge.weir.line_of("/script");
    assert_eq!(line["scheme"], "https");
    // An authority that it does not know is not trusted.
    let other = data_encoding::BASE64.encode(&[7; 32]);
    assert!(!said(&load(&other)).contains("loaded over"));
}
