//! `weir demo`: the proxy in front of a small application inside the binary, with low limits, on
//! loopback.
//!
//! Everything is real but the application: the same settings, planes and files, in a state
//! directory that is removed at the end. `WAF_*` variables of the environment stand above the
//! demo's own values.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;

use super::ask::Asking;
use super::common::EXIT_CONFIG;
use super::dashboard::Open;
use super::refuse;
use crate::serve::Announce;
use crate::sources::{Sources, environment};

mod fleet;
mod traffic;

/// What is served.
#[derive(Args, Debug)]
pub struct Demo {
    /// Without visitors of its own: nothing happens but what you do
    #[arg(long)]
    quiet: bool,
    /// With a second instance, and a Valkey or Redis between them: they share bans and counts
    #[arg(long)]
    fleet: bool,
}

/// The rules that the demo's visitors match, beside the demo's limit.
const RULES: &str = r#"{"version": 1,
 "traps": [{"name": "scanner", "paths": ["/.env", "/.git/", "/wp-login.php"]}],
 "jails": [{"name": "guesses", "path": "/login", "statuses": [401], "per_minute": 3}]}
"#;

/// Requests a minute that the demo allows.
const REQUESTS_PER_MINUTE: u32 = 10;

/// Runs the demo until Ctrl-C.
pub fn run(given: &Demo) -> ExitCode {
    let state = match tempfile::Builder::new().prefix("weir-demo-").tempdir() {
        Ok(state) => state,
        Err(error) => return failed(&format!("no directory for the demo's state: {error}")),
    };
    let application = match start_application() {
        Ok(address) => address,
        Err(error) => return failed(&format!("the demo's application cannot start: {error}")),
    };
    let log = state.path().join("requests.log");
    if let Err(error) = std::fs::write(state.path().join("rules.json"), RULES) {
        return failed(&format!("the demo's rules cannot be written: {error}"));
    }
    let mut variables: BTreeMap<String, String> = BTreeMap::from(
        [
            ("WAF_UPSTREAM", format!("http://{application}")),
            ("WAF_STATE_DIR", state.path().display().to_string()),
            ("WAF_RATE_LIMIT_PER_MINUTE", REQUESTS_PER_MINUTE.to_string()),
            ("WAF_BAN_FIRST", "1m".to_owned()),
            ("WAF_WORKERS", "1".to_owned()),
            // Few enough for any limit of open files: no warning about it confuses a newcomer.
            ("WAF_MAX_CONNECTIONS", "100".to_owned()),
            // The demo's own application answers the lookups: no address goes to a public service.
            ("WAF_LOOKUP_SOURCE", "url".to_owned()),
            (
                "WAF_LOOKUP_URL",
                format!("http://{application}/lookup/{{ip}}"),
            ),
            ("WAF_LOOKUP_JSON_COUNTRY", "/country".to_owned()),
            ("WAF_LOOKUP_JSON_ASN", "/asn".to_owned()),
            ("WAF_LOOKUP_JSON_AS_NAME", "/name".to_owned()),
            ("WAF_TRUSTED_PROXIES", traffic::PROXY.to_string()),
            ("WAF_LOG_FILE", log.display().to_string()),
            // The demo prints requests and bans itself; lines of the process log would clutter
            // them.
            ("WAF_LOG_LEVEL", "error".to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value)),
    );
    // An empty value is an unset one (SETTING-1).
    variables.extend(environment().filter(|(_, value)| !value.is_empty()));
    let second = match given.fleet {
        false => None,
        true => match fleet::Second::start(state.path(), &mut variables) {
            Ok(second) => Some(second),
            Err(why) => return failed(&why),
        },
    };
    let sources = Sources::of(variables);
    match sources.load() {
        Ok(loaded) => {
            let socket = loaded.settings.control_socket();
            let is_quiet = given.quiet;
            let other = second.as_ref().map(fleet::Second::address);
            let print = move |address: &str| begin(address, other, socket, log, is_quiet);
            super::run(sources, loaded, Announce::With(Box::new(print)))
        }
        Err(refused) => refuse(&refused),
    }
}

fn failed(why: &str) -> ExitCode {
    eprintln!("weir: {why}");
    ExitCode::from(EXIT_CONFIG)
}

/// Runs once the service listens: starts the dashboard, prints what to try, prints each request as
/// a short line, and starts the visitors.
fn begin(
    address: &str,
    other: Option<SocketAddr>,
    socket: Option<PathBuf>,
    log: PathBuf,
    is_quiet: bool,
) {
    print_lines(
        address,
        other,
        socket.as_deref(),
        page(socket.as_deref()).as_deref(),
    );
    traffic::tell(log);
    if !is_quiet {
        traffic::start(address);
    }
}

/// Serves the dashboard on a thread of its own, and returns its address.
fn page(socket: Option<&Path>) -> Option<String> {
    let asking = Asking {
        socket: Some(socket?.to_owned()),
        admin: None,
        json: false,
    };
    let open = Open::at(0, &asking).ok()?;
    let url = open.url.clone();
    let thread = std::thread::Builder::new().name("demo-dashboard".to_owned());
    // The thread ends with the process.
    let begun = thread.spawn(move || open.serve().map_err(|failure| failure.tell()));
    begun.ok().map(|_| url)
}

/// Prints commands to try, in this order.
fn print_lines(
    address: &str,
    other: Option<SocketAddr>,
    socket: Option<&Path>,
    page: Option<&str>,
) {
    let more = REQUESTS_PER_MINUTE + 2;
    let page = page.map_or(String::new(), |url| {
        format!("\nIn a browser, with plots:\n  {url}\n")
    });
    println!(
        "weir demo: {REQUESTS_PER_MINUTE} requests a minute are allowed.
{page}
Try these in another terminal.

A pass, 200:
  curl -i http://{address}/

A break, 200 until the limit and 429 from then on:
  curl -s -o /dev/null -w '%{{http_code}}\\n' 'http://{address}/?[1-{more}]'

A ban, 429 with Retry-After:
  curl -i http://{address}/
{}{}
Each request and each ban is a line below. Ctrl-C ends the demo.
",
        other.map(fleet::lines).unwrap_or_default(),
        operators_lines(socket, other.is_some())
    );
}

/// The operator commands to try, as they are typed.
fn operators_lines(socket: Option<&Path>, in_fleet: bool) -> String {
    let (Some(socket), Ok(weir)) = (socket, std::env::current_exe()) else {
        return String::new();
    };
    let (socket, weir) = (socket.display(), weir.display());
    let fleet = match in_fleet {
        false => String::new(),
        true => format!("\nBoth instances:\n  {weir} fleet --socket {socket}\n"),
    };
    format!(
        "
Why, and an end to it:
  {weir} explain 127.0.0.1 --socket {socket}
  {weir} bans lift 127.0.0.1 --socket {socket}

All of it in a terminal, or the page again:
  {weir} top --socket {socket}
  {weir} dashboard --socket {socket}
{fleet}"
    )
}

/// Starts the demo's application on a free port: it answers with the request it got.
fn start_application() -> io::Result<SocketAddr> {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()?;
    std::thread::Builder::new()
        .name("demo-application".to_owned())
        .spawn(move || {
            if let Err(error) = runtime.block_on(serve_application(listener)) {
                tracing::error!(%error, "the demo's application ended");
            }
        })?;
    Ok(address)
}

async fn serve_application(listener: std::net::TcpListener) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    loop {
        let (stream, _) = listener.accept().await?;
        tokio::spawn(async move {
            // A client that goes away needs no report here.
            let _ = http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service_fn(hello))
                .await;
        });
    }
}

async fn hello(
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, std::convert::Infallible> {
    let path = request.uri().path();
    if let Some(address) = path.strip_prefix("/lookup/") {
        return Ok(Response::new(Full::new(Bytes::from(traffic::origin(
            address,
        )))));
    }
    let text = format!(
        "hello from the application: {} {}\n",
        request.method(),
        request.uri()
    );
    let mut response = Response::new(Full::new(Bytes::from(text)));
    if request.method() == Method::POST && path == "/login" {
        *response.status_mut() = StatusCode::UNAUTHORIZED;
    }
    Ok(response)
}
