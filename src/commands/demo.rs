//! `weir demo`: the proxy in front of a small application inside the binary, with low limits, on
//! loopback.
//!
//! Everything is real but the application: the same settings, planes and files, in a state
//! directory that is removed at the end. `WAF_*` variables of the environment stand above the
//! demo's own values.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::ExitCode;

use http::{Request, Response};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;

use super::common::EXIT_CONFIG;
use super::refuse;
use crate::serve::Announce;
use crate::sources::{Sources, environment};

/// Requests a minute that the demo allows.
const REQUESTS_PER_MINUTE: u32 = 10;

/// Runs the demo until Ctrl-C.
pub fn run() -> ExitCode {
    let state = match tempfile::Builder::new().prefix("weir-demo-").tempdir() {
        Ok(state) => state,
        Err(error) => return failed(&format!("no directory for the demo's state: {error}")),
    };
    let application = match start_application() {
        Ok(address) => address,
        Err(error) => return failed(&format!("the demo's application cannot start: {error}")),
    };
    let mut variables: BTreeMap<String, String> = BTreeMap::from(
        [
            ("WAF_UPSTREAM", format!("http://{application}")),
            ("WAF_STATE_DIR", state.path().display().to_string()),
            ("WAF_RATE_LIMIT_PER_MINUTE", REQUESTS_PER_MINUTE.to_string()),
            ("WAF_BAN_FIRST", "1m".to_owned()),
            ("WAF_WORKERS", "1".to_owned()),
            // Far fewer than any system has open files for: no newcomer is warned of that.
            ("WAF_MAX_CONNECTIONS", "100".to_owned()),
            // The demo sends nobody's address anywhere.
            ("WAF_LOOKUP_SOURCE", "off".to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value)),
    );
    // An empty value is an unset one (SETTING-1).
    variables.extend(environment().filter(|(_, value)| !value.is_empty()));
    let sources = Sources::of(variables);
    match sources.load() {
        Ok(loaded) => {
            let socket = loaded.settings.control_socket();
            let print = move |address: &str| print_lines(address, socket.as_deref());
            super::run(sources, loaded, Announce::With(Box::new(print)))
        }
        Err(refused) => refuse(&refused),
    }
}

fn failed(why: &str) -> ExitCode {
    eprintln!("weir: {why}");
    ExitCode::from(EXIT_CONFIG)
}

/// Lines to try, in this order.
fn print_lines(address: &str, socket: Option<&Path>) {
    let more = REQUESTS_PER_MINUTE + 2;
    println!(
        "weir demo: {REQUESTS_PER_MINUTE} requests a minute are allowed. Try these in another terminal.

A pass, 200:
  curl -i http://{address}/

A break, 200 until the limit and 429 from then on:
  curl -s -o /dev/null -w '%{{http_code}}\\n' 'http://{address}/?[1-{more}]'

A ban, 429 with Retry-After:
  curl -i http://{address}/
{}
Each request is logged below. Ctrl-C ends the demo.
",
        operators_lines(socket)
    );
}

/// The commands beside it, as they are typed.
fn operators_lines(socket: Option<&Path>) -> String {
    let (Some(socket), Ok(weir)) = (socket, std::env::current_exe()) else {
        return String::new();
    };
    let (socket, weir) = (socket.display(), weir.display());
    format!(
        "
Why, and an end to it:
  {weir} explain 127.0.0.1 --socket {socket}
  {weir} bans lift 127.0.0.1 --socket {socket}

All of it in a browser, or on this terminal:
  {weir} dashboard --socket {socket}
  {weir} top --socket {socket}
"
    )
}

/// The application: says what it was asked, on a port of its own.
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
            // A client that goes away is no event worth a word here.
            let _ = http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service_fn(hello))
                .await;
        });
    }
}

async fn hello(
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, std::convert::Infallible> {
    let text = format!(
        "hello from the application: {} {}\n",
        request.method(),
        request.uri()
    );
    Ok(Response::new(Full::new(Bytes::from(text))))
}
