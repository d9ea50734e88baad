//! Real clients of HTTP/2: curl, nghttp and h2load (EDGE-3).

use std::process::Command;

use super::h2::ON;
use crate::support::application::{After, Application};
use crate::support::tls::{self, Pair};
use crate::support::weir::Weir;

/// Runs a program, and gives what it printed.
#[track_caller]
fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {printed}{said}"
    );
    printed
}

fn application() -> Application {
    Application::start(|exchange| {
        exchange.read_body();
        let length = if exchange.request.target == "/large" {
            3_000_000
        } else {
            4
        };
        let body = if exchange.request.body.is_empty() {
            vec![b'x'; length]
        } else {
            exchange.request.body.clone()
        };
        exchange.answer(200, &[("Content-Type", "text/plain")], &body);
        After::KeepAlive
    })
}

/// A service, and its URLs: over TLS and plain.
fn start(application: &Application) -> (Weir, String, String) {
    let files = Pair::settings(&[tls::shared_pair()]);
    let mut settings = vec![
        ON,
        ("WAF_LISTEN", "127.0.0.1:0,https://127.0.0.1:0"),
        ("WAF_RATE_LIMIT_PER_MINUTE", "off"),
        ("WAF_RATE_LIMIT_PER_HOUR", "off"),
        ("WAF_RATE_LIMIT_PER_DAY", "off"),
    ];
    settings.extend(files.iter().map(|(name, value)| (*name, &**value)));
    let weir = Weir::start(application, &settings);
    let places = weir.places();
    let plain = format!("http://{}", places[0]);
    (weir, places[1].clone(), plain)
}

/// EDGE-3: curl, by ALPN and with prior knowledge: answers, a large one, uploads, HEAD.
#[test]
#[ignore = "needs curl; .ci/run installs it"]
fn curl_is_served() {
    let application = application();
    let (weir, secure, plain) = start(&application);
    for (url, how) in [(&secure, "--http2"), (&plain, "--http2-prior-knowledge")] {
        let curl = |more: &[&str], path: &str| {
            let url = format!("{url}{path}");
            let common = [
                "-sSk",
                "--max-time",
                "60",
                how,
                "-w",
                " %{http_version} %{http_code}",
            ];
            run("curl", &[&common, more, &[&*url]].concat())
        };
        assert_eq!(curl(&[], "/small"), "xxxx 2 200");
        let large = curl(&[], "/large");
        assert_eq!(large.len(), 3_000_000 + " 2 200".len());
        assert_eq!(curl(&["-d", "body=1"], "/post"), "body=1 2 200");
        // It waits for a 100 for a second, and does without.
        let expects = ["-H", "Expect: 100-continue", "-d", "body=2"];
        assert_eq!(curl(&expects, "/expect"), "body=2 2 200");
        assert!(curl(&["-I"], "/head").contains("content-length: 4"));
    }
    for line in weir.lines_of("/small", 2) {
        assert_eq!(line["protocol"], "HTTP/2.0");
    }
}

/// EDGE-3: nghttp: many streams at once, an upload, trailers.
#[test]
#[ignore = "needs nghttp; .ci/run installs it"]
fn nghttp_is_served() {
    let application = application();
    let (_weir, secure, plain) = start(&application);
    let upload = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(upload.path(), vec![b'u'; 500_000]).expect("writes");
    let upload = upload.path().display().to_string();
    for url in [&secure, &plain] {
        let (one, large) = (format!("{url}/one"), format!("{url}/large"));
        let stat = run("nghttp", &["-ns", "-m", "100", &one, &large]);
        let answered = stat.lines().filter(|line| line.contains(" 200 ")).count();
        assert_eq!(answered, 200, "{stat}");
        let up = format!("{url}/up");
        let sent = run(
            "nghttp",
            &[
                "--no-content-length",
                "-d",
                &upload,
                "--trailer",
                "x-end: 1",
                &up,
            ],
        );
        assert_eq!(sent.len(), 500_000);
    }
    let uploads = application.requests();
    let uploads: Vec<_> = uploads.iter().filter(|got| got.target == "/up").collect();
    assert_eq!(uploads.len(), 2);
    assert!(
        uploads
            .iter()
            .all(|got| got.whole && got.trailers == [("x-end".into(), "1".into())])
    );
}

/// EDGE-3: h2load: thousands of requests over few connections, none of them lost, and nothing taken
/// for a flood.
#[test]
#[ignore = "needs h2load; .ci/run installs it"]
fn h2load_loses_nothing() {
    let application = application();
    let (weir, secure, plain) = start(&application);
    for url in [&secure, &plain] {
        let url = format!("{url}/load");
        let said = run("h2load", &["-n", "5000", "-c", "8", "-m", "100", &url]);
        assert!(
            said.contains("5000 succeeded, 0 failed, 0 errored, 0 timeout"),
            "{said}"
        );
        assert!(said.contains("status codes: 5000 2xx"), "{said}");
    }
    let page = weir.control("GET", "/v1/metrics", None).expect(200).text();
    assert!(
        page.contains("waf_connection_errors_total{kind=\"h2_flood\"} 0"),
        "{page}"
    );
    assert_eq!(application.requests().len(), 10_000);
}
