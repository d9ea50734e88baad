//! How a command asks the running service: over the control socket, one request a connection.
#![expect(
    clippy::indexing_slicing,
    reason = "a member that a JSON document does not have reads as null"
)]

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::UnixStream;
use weir_controlplane::StateError;
use weir_controlplane::offline::Offline;
use weir_shared::settings::{self, Settings};

use super::common::{EXIT_CONFIG, EXIT_NO, EXIT_UNAVAILABLE, EXIT_USAGE, Failure, now};
use crate::sources::Sources;

/// How long an answer may take: five seconds for the disk, a list of 100,000 bans, or the start of
/// the process that takes over.
const PATIENCE: Duration = Duration::from_secs(150);

/// The state directory of the packaged service, for a shell that knows nothing of the settings.
const PACKAGED: &str = "/var/lib/weir";

/// Whom a command asks, and how it answers.
#[derive(Args, Clone, Debug)]
pub struct Asking {
    /// The control socket of the service; without it that of the settings
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Answer in JSON
    #[arg(long)]
    pub json: bool,
}

/// Where a service is, as far as the environment tells.
pub struct Place {
    /// None where `WAF_CONTROL_SOCKET=off`.
    socket: Option<PathBuf>,
    /// Where its files are.
    pub dir: PathBuf,
    /// Whether the files are those of the service that is asked.
    has_files: bool,
}

/// An answer.
pub struct Answer {
    pub status: StatusCode,
    pub body: Value,
}

/// What became of a question.
pub enum Asked {
    Answered(Answer),
    /// Nobody is there: the files are read instead where that can be.
    NoService(Failure),
}

impl Place {
    /// Reads the environment and the settings file. Only the settings that say where the service is
    /// are looked at: a shell of an operator rarely has all of them.
    pub fn of(asking: &Asking) -> Result<Self, Failure> {
        let names = ["WAF_STATE_DIR", "STATE_DIRECTORY", "WAF_CONTROL_SOCKET"];
        let refused = |refused| Failure::of_settings(&refused);
        let mut told = Sources::of_process().some(&names).map_err(refused)?;
        if told.is_empty() && !Path::new("state").exists() {
            told.push(("WAF_STATE_DIR".to_owned(), PACKAGED.to_owned()));
        }
        // Required, and of no consequence here.
        let rest = ("WAF_UPSTREAM".to_owned(), "http://localhost:1".to_owned());
        let loaded = settings::load(told.into_iter().chain([rest])).map_err(refused)?;
        let Settings { state, .. } = &loaded.settings;
        let of_settings = loaded.settings.control_socket();
        Ok(Self {
            dir: state.dir.clone(),
            has_files: asking.socket.is_none(),
            socket: asking.socket.clone().or(of_settings),
        })
    }

    /// The state directory, unless another service was named than that of the settings.
    fn files(&self) -> Option<&Path> {
        (self.has_files && self.dir.is_dir()).then_some(&*self.dir)
    }

    /// Where rules.json is: as the service says, or as the environment does where none runs.
    pub fn rules_file(&self) -> Result<PathBuf, Failure> {
        let name = "WAF_RULES_FILE";
        let told = match self.ask(Method::GET, "/v1/settings", None)? {
            Asked::Answered(answer) => {
                let settings = answer.good()?;
                let settings = settings["settings"].as_array().into_iter().flatten();
                let mut named = settings.filter(|one| one["name"] == name);
                let value = named.next().and_then(|one| one["value"].as_str());
                value.map(PathBuf::from)
            }
            Asked::NoService(failure) if !self.has_files => return Err(failure),
            Asked::NoService(_) => {
                let set = Sources::of_process().some(&[name]);
                let set = set.map_err(|refused| Failure::of_settings(&refused))?;
                set.into_iter()
                    .next()
                    .map(|(_, value)| PathBuf::from(value))
            }
        };
        match told {
            Some(file)
                if file.is_relative() && self.socket.as_ref().is_some_and(|s| s.exists()) =>
            {
                let sentence = format!(
                    "{name}={} is relative to where the service runs: edit it there",
                    file.display()
                );
                Err(Failure::new(EXIT_CONFIG, sentence))
            }
            Some(file) => Ok(file),
            None => {
                let beside = self.socket.as_ref().and_then(|socket| socket.parent());
                let dir = if self.has_files {
                    Some(&*self.dir)
                } else {
                    beside
                };
                Ok(dir.unwrap_or(Path::new("")).join("rules.json"))
            }
        }
    }

    /// Asks the service.
    pub fn ask(
        &self,
        method: Method,
        target: &str,
        body: Option<&Value>,
    ) -> Result<Asked, Failure> {
        let Some(socket) = &self.socket else {
            let sentence = "WAF_CONTROL_SOCKET is off: no service can be asked";
            return Ok(Asked::NoService(Failure::new(EXIT_UNAVAILABLE, sentence)));
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| unavailable(socket, &error.to_string()))?;
        let asked = runtime.block_on(async {
            let asked = exchange(socket, method, target, body);
            tokio::time::timeout(PATIENCE, asked).await
        });
        match asked {
            Ok(Ok(answer)) => Ok(Asked::Answered(answer)),
            Ok(Err(Broken::Connect(error))) => Ok(Asked::NoService(no_service(socket, &error))),
            Ok(Err(Broken::Later(why))) => Err(unavailable(socket, &why)),
            Err(_) => Err(unavailable(socket, "it took too long")),
        }
    }

    /// The answer from the files, where nobody is there to be asked; a word on standard error says
    /// so.
    pub fn read_files<'a>(
        &'a self,
        nobody: Failure,
        read: impl FnOnce(Offline<'a>) -> Result<Value, StateError>,
    ) -> Result<Value, Failure> {
        let Some(dir) = self.files() else {
            return Err(nobody);
        };
        eprintln!(
            "weir: no service runs: read from the files in {}",
            dir.display()
        );
        let now = now();
        read(Offline { dir, now }).map_err(|error| Failure::new(EXIT_CONFIG, error.to_string()))
    }

    /// Asks for what only a running service knows.
    pub fn expect(
        &self,
        method: Method,
        target: &str,
        body: Option<&Value>,
    ) -> Result<Answer, Failure> {
        match self.ask(method, target, body)? {
            Asked::Answered(answer) => Ok(answer),
            Asked::NoService(failure) => Err(failure),
        }
    }
}

impl Answer {
    /// The body of a good answer; otherwise what the problem document says.
    pub fn good(self) -> Result<Value, Failure> {
        if self.status.is_success() {
            return Ok(self.body);
        }
        let mut sentence = match self.body["detail"].as_str() {
            Some(detail) => detail.to_owned(),
            None => format!("the service answered {}", self.status),
        };
        for fault in self.body["errors"].as_array().into_iter().flatten() {
            let pointer = fault["pointer"].as_str().unwrap_or_default();
            let detail = fault["detail"].as_str().unwrap_or_default();
            sentence.push_str(&format!(
                "\nweir: {}: {detail}",
                pointer.trim_start_matches('/')
            ));
        }
        let status = match self.status {
            StatusCode::SERVICE_UNAVAILABLE => EXIT_UNAVAILABLE,
            StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY => EXIT_USAGE,
            _ => EXIT_NO,
        };
        Err(Failure { sentence, status })
    }
}

enum Broken {
    Connect(io::Error),
    Later(String),
}

async fn exchange(
    socket: &Path,
    method: Method,
    target: &str,
    body: Option<&Value>,
) -> Result<Answer, Broken> {
    let later = |error: &dyn std::error::Error| Broken::Later(error.to_string());
    let stream = UnixStream::connect(socket).await.map_err(Broken::Connect)?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| later(&error))?;
    tokio::spawn(connection);
    let body = body.map(Value::to_string).unwrap_or_default();
    let request = Request::builder()
        .method(method)
        .uri(target)
        .header(http::header::HOST, "localhost")
        .body(Full::new(Bytes::from(body)))
        .map_err(|error| later(&error))?;
    let response = sender
        .send_request(request)
        .await
        .map_err(|error| later(&error))?;
    let status = response.status();
    let body = response.into_body().collect().await;
    let body = body.map_err(|error| later(&error))?.to_bytes();
    let body = serde_json::from_slice(&body).map_err(|error| later(&error))?;
    Ok(Answer { status, body })
}

fn no_service(socket: &Path, error: &io::Error) -> Failure {
    let socket = socket.display();
    let sentence = match error.kind() {
        io::ErrorKind::PermissionDenied => format!(
            "{socket} is open to the user of the service and to root: run the command as one of them"
        ),
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => format!(
            "no service answers at {socket}; is it running, and is WAF_STATE_DIR its directory? --socket names another"
        ),
        _ => format!("no service answers at {socket}: {error}"),
    };
    Failure::new(EXIT_UNAVAILABLE, sentence)
}

fn unavailable(socket: &Path, why: &str) -> Failure {
    let sentence = format!("the service at {} did not answer: {why}", socket.display());
    Failure::new(EXIT_UNAVAILABLE, sentence)
}
