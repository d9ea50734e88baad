//! `weir dashboard`: a page about the running service, served on loopback by this command, which
//! asks the service over the control socket (CONTROL-3).

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::json;
use tokio::net::TcpStream;
use tokio::signal::unix::SignalKind;
use tokio::sync::Semaphore;

mod answer;

use self::answer::{Asker, Door, of_service, refused};
use super::ask::{Asking, Place};
use super::common::{EXIT_USAGE, Failure, finish, out};
use super::ended;

/// Connections at once; a browser opens six.
const CONNECTIONS: usize = 32;
/// How long the head of a request may take.
const HEAD: Duration = Duration::from_secs(10);
/// The most bytes of a request's body.
const BODY: usize = 16 << 10;
/// How often the server looks for SIGINT and SIGTERM.
const LOOK: Duration = Duration::from_millis(100);

#[derive(Args, Debug)]
pub struct Dashboard {
    /// The port on 127.0.0.1; without it any that is free
    #[arg(long, default_value_t = 0)]
    port: u16,
    #[command(flatten)]
    asking: Asking,
}

/// Serves the page until SIGINT or SIGTERM.
pub fn run(given: &Dashboard) -> ExitCode {
    finish(serve(given))
}

fn serve(given: &Dashboard) -> Result<ExitCode, Failure> {
    let open = Open::at(given.port, &given.asking)?;
    let url = &open.url;
    if given.asking.json {
        out(&format!("{}\n", json!({"url": url})));
    } else {
        out(&format!(
            "{url}\nWho has this address can change bans. Ctrl-C ends it.\n"
        ));
    }
    open.serve()?;
    Ok(ExitCode::SUCCESS)
}

/// A bound listener of the page that is not served yet.
pub struct Open {
    pub url: String,
    bound: TcpListener,
    ends: Arc<AtomicBool>,
    shared: Arc<(Door, Asker)>,
}

fn system(error: std::io::Error) -> Failure {
    Failure::new(1, format!("the system refused: {error}"))
}

impl Open {
    /// Binds this port of loopback for a page about the service of `asking`; 0 is any free port.
    pub fn at(port: u16, asking: &Asking) -> Result<Self, Failure> {
        let place = Place::of(asking)?;
        // Fails here if the service does not answer, before anybody opens the page.
        place.expect(Method::GET, "/v1/health", None)?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let taken = |error| format!("{address} cannot be bound: {error}");
        let bound = TcpListener::bind(address);
        let bound = bound.map_err(|error| Failure::new(EXIT_USAGE, taken(error)))?;
        let kinds = [SignalKind::interrupt(), SignalKind::terminate()];
        let ends = ended::by(&kinds).map_err(system)?;
        let port = bound.local_addr().map_err(system)?.port();
        let door = Door {
            prefix: format!("/{}/", secret()?),
            port,
        };
        bound.set_nonblocking(true).map_err(system)?;
        let asker = Asker {
            place: Arc::new(place),
            paths: Arc::default(),
        };
        Ok(Self {
            url: format!("http://127.0.0.1:{port}{}", door.prefix),
            bound,
            ends,
            shared: Arc::new((door, asker)),
        })
    }

    /// Serves the page until SIGINT or SIGTERM.
    pub fn serve(self) -> Result<(), Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(system)?;
        let served = accept(self.bound, &self.shared, &self.ends);
        runtime.block_on(served).map_err(system)
    }
}

/// 128 bits that no other page can guess.
fn secret() -> Result<String, Failure> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)
        .map_err(|error| Failure::new(1, format!("the system has no random number: {error}")))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

async fn accept(
    bound: TcpListener,
    shared: &Arc<(Door, Asker)>,
    ends: &AtomicBool,
) -> std::io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(bound)?;
    let slots = Arc::new(Semaphore::new(CONNECTIONS));
    while !ends.load(Ordering::Relaxed) {
        let Ok(accepted) = tokio::time::timeout(LOOK, listener.accept()).await else {
            continue;
        };
        // The connection is gone already, or no descriptor or place is free: the next accept may
        // succeed.
        let (Ok((stream, _)), Ok(slot)) = (accepted, Arc::clone(&slots).try_acquire_owned()) else {
            continue;
        };
        let shared = Arc::clone(shared);
        tokio::spawn(async move {
            connection(stream, shared).await;
            drop(slot);
        });
    }
    Ok(())
}

async fn connection(stream: TcpStream, shared: Arc<(Door, Asker)>) {
    let service = service_fn(|request| {
        let shared = Arc::clone(&shared);
        async move { Ok::<_, Infallible>(answer(shared, request).await) }
    });
    // An error of a connection needs no report: the browser shows it.
    let _ = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

async fn answer(shared: Arc<(Door, Asker)>, request: Request<Incoming>) -> Response<Full<Bytes>> {
    let (head, body) = request.into_parts();
    let wanted = match shared.0.judge(&head) {
        Ok(wanted) => wanted,
        Err((status, why)) => return refused(status, why),
    };
    let body = tokio::time::timeout(HEAD, Limited::new(body, BODY).collect());
    let Ok(Ok(body)) = body.await else {
        return refused(
            StatusCode::BAD_REQUEST,
            "the body is late, broken or too long",
        );
    };
    let body = body.to_bytes();
    let asked = tokio::task::spawn_blocking(move || of_service(&shared.1, &wanted, &body));
    let failed = |_| refused(StatusCode::INTERNAL_SERVER_ERROR, "a bug: please report it");
    asked.await.unwrap_or_else(failed)
}
