//! Which service a command asks, and how the command reads the answer. `wire.rs` does the exchange.
#![expect(
    clippy::indexing_slicing,
    reason = "a member that a JSON document does not have reads as null"
)]

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use http::{HeaderValue, Method, StatusCode};
use serde::de::DeserializeOwned;
use serde_json::Value;
use weir_controlplane::StateError;
use weir_controlplane::guarded;
use weir_controlplane::offline::Offline;
use weir_shared::settings::{self, Settings};

use super::common::{EXIT_CONFIG, EXIT_NO, EXIT_UNAVAILABLE, EXIT_USAGE, Failure, now};
use super::text::quoted;
use super::trust::{self, Believed};
pub use super::wire::Answer;
use super::wire::{Broken, Service};
use crate::sources::{self, Sources};

/// The end of each sentence about an answer that weir does not give.
const EXPECTED: &str = "expected the control socket or the admin listener of weir there";

/// How long an answer may take. The slowest are a write to disk (5 s), a list of 100,000 bans, and
/// a hand-over.
const PATIENCE: Duration = Duration::from_secs(150);

/// The state directory of the packaged service, for a shell that knows nothing of the settings.
const PACKAGED: &str = "/var/lib/weir";

/// The setting of the rules file.
pub const RULES_FILE: &str = "WAF_RULES_FILE";

/// The settings of the admin token.
const TOKEN: &str = "WAF_ADMIN_TOKEN";
const TOKEN_FILE: &str = "WAF_ADMIN_TOKEN_FILE";
/// The setting of the read token, which allows a command to read and not to change anything.
const READ_TOKEN_FILE: &str = "WAF_ADMIN_READ_TOKEN_FILE";
/// The most bytes of a token file that are read, as the service does.
const MAX_TOKEN_BYTES: u64 = 4096;

/// The flags that all commands share: which service to ask, and the output format.
#[derive(Args, Clone, Debug)]
pub struct Asking {
    /// The control socket of the service; without it that of the settings
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// The admin listener of the service instead, such as 127.0.0.1:9180; the token is that of
    /// WAF_ADMIN_TOKEN or WAF_ADMIN_TOKEN_FILE, or, to look alone, of WAF_ADMIN_READ_TOKEN_FILE
    #[arg(long, value_name = "ADDRESS", conflicts_with = "socket")]
    pub admin: Option<String>,
    /// Answer in JSON
    #[arg(long)]
    pub json: bool,
}

impl Asking {
    /// The flags that name the service, to append to commands that are printed for an operator to
    /// type (CONTROL-5): those then reach the same service.
    fn flags(&self) -> String {
        let mut flags = String::new();
        if let Some(file) = sources::named_file() {
            flags.push_str(&format!(" --settings {}", quoted(&file.to_string_lossy())));
        }
        if let Some(socket) = &self.socket {
            flags.push_str(&format!(" --socket {}", quoted(&socket.to_string_lossy())));
        }
        if let Some(admin) = &self.admin {
            flags.push_str(&format!(" --admin {}", quoted(admin)));
        }
        flags
    }
}

/// Where a service answers and where its files are, as far as the flags and the environment say.
pub struct Place {
    /// The flags that named the service, with a blank before each.
    pub flags: String,
    /// None where `WAF_CONTROL_SOCKET=off`.
    service: Option<Service>,
    /// The state directory.
    pub dir: PathBuf,
    /// True if `dir` is the state directory of the service that is asked.
    has_files: bool,
}

/// The result of a request to the service.
pub enum Asked {
    Answered(Answer),
    /// No service answers. Commands that can read the files instead do so.
    NoService(Failure),
}

impl Place {
    /// Reads the environment and the settings file. Only the settings that say where the service is
    /// are looked at: a shell of an operator rarely has all of them.
    pub fn of(asking: &Asking) -> Result<Self, Failure> {
        let names = ["WAF_STATE_DIR", "STATE_DIRECTORY", "WAF_CONTROL_SOCKET"];
        let refused = |refused| Failure::of_settings(&refused);
        let mut told = Sources::of_process().some(&names).map_err(refused)?;
        // A ./state of another user is not taken: anybody may have made it (CONTROL-7).
        let beside = Path::new("state");
        if told.is_empty() && !trust::is_own(beside) {
            if beside.exists() {
                eprintln!(
                    "weir: ./state is not yours: {PACKAGED} is taken for the state directory"
                );
            }
            told.push(("WAF_STATE_DIR".to_owned(), PACKAGED.to_owned()));
        }
        // A required setting; its value does not matter here.
        let rest = ("WAF_UPSTREAM".to_owned(), "http://localhost:1".to_owned());
        let loaded = settings::load(told.into_iter().chain([rest])).map_err(refused)?;
        let Settings { state, .. } = &loaded.settings;
        let service = match &asking.admin {
            Some(address) => Some(Service::Admin {
                address: address.clone(),
                bearer: bearer()?,
            }),
            None => {
                let named = asking.socket.as_ref().map(|path| {
                    let believed = Believed::owners_of(&[trust::parent(path), &state.dir]);
                    Service::Socket(path.clone(), believed)
                });
                named.or_else(|| {
                    let believed = Believed::owners_of(&[&state.dir]);
                    Some(Service::Socket(loaded.settings.control_socket()?, believed))
                })
            }
        };
        Ok(Self {
            flags: asking.flags(),
            dir: state.dir.clone(),
            has_files: asking.socket.is_none() && asking.admin.is_none(),
            service,
        })
    }

    /// The state directory; none if the flags name another service than the settings do.
    fn files(&self) -> Option<&Path> {
        (self.has_files && self.dir.is_dir()).then_some(&*self.dir)
    }

    /// A file that the caller's own settings name; none if the flags name another service than
    /// these settings do.
    pub fn named_file(&self, name: &str) -> Result<Option<PathBuf>, Failure> {
        if !self.has_files {
            return Ok(None);
        }
        let set = Sources::of_process().some(&[name]);
        let set = set.map_err(|refused| Failure::of_settings(&refused))?;
        Ok(set
            .into_iter()
            .next()
            .map(|(_, value)| PathBuf::from(value)))
    }

    /// Whether the command may open paths that the service answers (CONTROL-7). It may if the
    /// service runs as root or as the caller, and could thus read the same files itself. It may not
    /// over the admin listener: those paths may belong to another machine.
    pub fn believes_paths(&self) -> bool {
        match &self.service {
            Some(Service::Socket(_, believed)) => believed.is_own(),
            Some(Service::Admin { .. }) | None => false,
        }
    }

    /// Whether a file lies in the state directory itself.
    pub fn has_in_dir(&self, file: &Path) -> bool {
        let real = |dir: &Path| dir.canonicalize().ok();
        let dir = file.parent().and_then(real);
        self.has_files && dir.is_some() && dir == real(&self.dir)
    }

    /// The path of rules.json according to the caller's own settings; a path from a service is not
    /// believed (CONTROL-7). None if the flags name another service than the settings do.
    pub fn rules_file(&self) -> Result<Option<PathBuf>, Failure> {
        let named = self.named_file(RULES_FILE)?;
        Ok(named.or_else(|| self.has_files.then(|| self.dir.join("rules.json"))))
    }

    /// Whether the fleet shares lists (FLEET-18), according to the caller's own settings.
    pub fn shares_lists(&self) -> Result<bool, Failure> {
        let refused = |refused| Failure::of_settings(&refused);
        let names = ["WAF_FLEET", "WAF_FLEET_SHARE"];
        let told = Sources::of_process().some(&names).map_err(refused)?;
        // Settings that these require; their values do not matter here.
        let rest = [
            ("WAF_UPSTREAM", "http://localhost:1"),
            ("WAF_FLEET_KEY_FILE", "unread"),
            ("WAF_FLEET_INSECURE", "on"),
        ];
        let rest = rest.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let loaded = settings::load(told.into_iter().chain(rest)).map_err(refused)?;
        Ok(loaded.settings.fleet.shares_lists())
    }

    /// Asks the service.
    pub fn ask(
        &self,
        method: Method,
        target: &str,
        body: Option<&Value>,
    ) -> Result<Asked, Failure> {
        let body = body.map(Value::to_string).unwrap_or_default();
        self.send(method, target, body.into_bytes())
    }

    /// Asks the service, with a body of raw bytes.
    pub fn send(&self, method: Method, target: &str, body: Vec<u8>) -> Result<Asked, Failure> {
        let Some(service) = &self.service else {
            let sentence = "WAF_CONTROL_SOCKET is off: no service can be asked";
            return Ok(Asked::NoService(Failure::new(EXIT_UNAVAILABLE, sentence)));
        };
        let asked = runtime(service)?.block_on(async {
            let asked = service.exchange(method, target, body);
            tokio::time::timeout(PATIENCE, asked).await
        });
        match asked {
            Ok(Ok(answer)) => Ok(Asked::Answered(answer)),
            // Without permission on the socket nobody can say whether a service runs, and its files
            // are not readable either.
            Ok(Err(Broken::Connect(error))) if error.kind() == io::ErrorKind::PermissionDenied => {
                Err(self.nobody(service, &error))
            }
            Ok(Err(Broken::Connect(error))) => Ok(Asked::NoService(self.nobody(service, &error))),
            Ok(Err(Broken::Later(why) | Broken::Refused(why))) => Err(unavailable(service, &why)),
            Ok(Err(Broken::Foreign(what))) => Err(foreign(service, &what)),
            Ok(Err(Broken::Doubted(why))) => Err(Failure::new(EXIT_UNAVAILABLE, why)),
            Err(_) => Err(unavailable(service, "it took too long")),
        }
    }

    /// Listens to a stream of lines, until `take` says no or the service goes away.
    pub fn listen(&self, target: &str, take: impl FnMut(&[u8]) -> bool) -> Result<(), Failure> {
        let Some(service) = &self.service else {
            return Ok(());
        };
        let listened = runtime(service)?.block_on(service.lines(target, take));
        listened.map_err(|broken| match broken {
            Broken::Connect(error) => self.nobody(service, &error),
            Broken::Later(why) => unavailable(service, &why),
            Broken::Foreign(what) => foreign(service, &what),
            Broken::Refused(why) | Broken::Doubted(why) => Failure::new(EXIT_UNAVAILABLE, why),
        })
    }

    /// Answers from the files because no service runs, and says so on standard error.
    pub fn read_files<'a, T>(
        &'a self,
        nobody: Failure,
        read: impl FnOnce(Offline<'a>) -> Result<T, StateError>,
    ) -> Result<T, Failure> {
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

    /// The failure of a request that reached no service.
    fn nobody(&self, service: &Service, error: &io::Error) -> Failure {
        let sentence = match (service, error.kind()) {
            (Service::Socket(..), io::ErrorKind::PermissionDenied) => format!(
                "{service} is open to the user of the service and to root: run the command as one of them"
            ),
            (Service::Socket(..), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
                if self.has_files =>
            {
                format!(
                    "no service answers at {service}; is it running, and is WAF_STATE_DIR its directory? --socket names another"
                )
            }
            _ => format!("no service answers at {service}: {error}"),
        };
        Failure::new(EXIT_UNAVAILABLE, sentence)
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

/// The body of a successful answer, as a type of the API.
pub fn typed<T: DeserializeOwned>(body: Value) -> Result<T, Failure> {
    serde_json::from_value(body).map_err(|error| not_of_weir(&error.to_string()))
}

/// The failure of an answer that no service of weir gives.
pub fn not_of_weir(why: &str) -> Failure {
    let sentence = format!("the answer is not as expected: {why}; {EXPECTED}");
    Failure::new(EXIT_UNAVAILABLE, sentence)
}

impl Answer {
    /// The body of a good answer, as it came and as it is read.
    pub fn read<T: DeserializeOwned>(self) -> Result<(Value, T), Failure> {
        let body = self.good()?;
        let read = T::deserialize(&body).map_err(|error| not_of_weir(&error.to_string()))?;
        Ok((body, read))
    }

    /// The body of a successful answer; otherwise the sentence of the problem document.
    pub fn good(self) -> Result<Value, Failure> {
        if self.status.is_success() {
            return Ok(self.body);
        }
        let faults = self.body["errors"]
            .as_array()
            .is_some_and(|errors| !errors.is_empty());
        let mut sentence = match self.body["detail"].as_str() {
            // The list of faults follows, so the sentence before it is left out.
            Some(_) if faults => String::new(),
            Some(detail) => words(detail),
            None => format!("the service answered {}", self.status),
        };
        for fault in self.body["errors"].as_array().into_iter().flatten() {
            let pointer = fault["pointer"].as_str().unwrap_or_default();
            let detail = words(fault["detail"].as_str().unwrap_or_default());
            sentence.push_str(&match pointer.trim_start_matches('/') {
                "" => format!("\nweir: {detail}"),
                member => format!("\nweir: {}: {detail}", flag_of(member)),
            });
        }
        let sentence = sentence.trim_start_matches("\nweir: ").to_owned();
        let status = match self.status {
            StatusCode::SERVICE_UNAVAILABLE => EXIT_UNAVAILABLE,
            StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY => EXIT_USAGE,
            _ => EXIT_NO,
        };
        Err(Failure { sentence, status })
    }
}

/// Turns a sentence of the API into one of the command line: `"force": true` becomes `--force`, and
/// a token becomes its setting.
pub fn words(detail: &str) -> String {
    let detail = detail
        .replace(
            "\"force\": true would be needed",
            "--force if that is meant",
        )
        .replace(
            "Authorization: Bearer <token> is needed",
            "that of WAF_ADMIN_TOKEN or WAF_ADMIN_TOKEN_FILE is sent",
        );
    if let Some(expected) = detail.strip_prefix("The value does not fit. Expected: ") {
        return format!("expected: {expected}");
    }
    // For a text of the wrong length, the description of what the text is for is left out.
    let rest = detail.strip_prefix("The value is ");
    match rest.and_then(|rest| rest.split_once(". Expected: ")) {
        Some((is, _)) if is.starts_with("longer ") || is.starts_with("shorter ") => {
            format!("it is {is}")
        }
        _ => detail,
    }
}

/// The argument of the command line that a member of the body came from.
fn flag_of(member: &str) -> &str {
    match member {
        "duration" => "--for",
        "reason" => "--reason",
        "comment" => "--comment",
        other => other,
    }
}

fn runtime(service: &Service) -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| unavailable(service, &error.to_string()))
}

fn unavailable(service: &Service, why: &str) -> Failure {
    let sentence = format!("the service at {service} did not answer: {why}");
    Failure::new(EXIT_UNAVAILABLE, sentence)
}

fn foreign(service: &Service, what: &str) -> Failure {
    let sentence = format!("{service} answered {what}: {EXPECTED}");
    Failure::new(EXIT_UNAVAILABLE, sentence)
}

fn token_of(file: &str) -> io::Result<String> {
    let bytes = guarded::read(Path::new(file), MAX_TOKEN_BYTES)?;
    String::from_utf8(bytes).map_err(io::Error::other)
}

/// `Authorization` of the admin listener, from the token of the settings.
fn bearer() -> Result<HeaderValue, Failure> {
    let config = |sentence: String| Failure::new(EXIT_CONFIG, sentence);
    let told = Sources::of_process().some(&[TOKEN, TOKEN_FILE]);
    let mut told = told.map_err(|refused| Failure::of_settings(&refused))?;
    if told.is_empty() {
        let read = Sources::of_process().some(&[READ_TOKEN_FILE]);
        told = read.map_err(|refused| Failure::of_settings(&refused))?;
    }
    let token = match told.as_slice() {
        [] => {
            return Err(config(format!(
                "--admin needs the admin token: {TOKEN} or {TOKEN_FILE}, or {READ_TOKEN_FILE} to look alone"
            )));
        }
        [(name, file)] if name != TOKEN => token_of(file)
            .map_err(|error| config(format!("{name}: {file} cannot be read: {error}")))?,
        [(_, token)] => token.clone(),
        _ => return Err(config(format!("{TOKEN} and {TOKEN_FILE}: expected one"))),
    };
    let bearer = HeaderValue::try_from(format!("Bearer {}", token.trim()));
    let mut bearer =
        bearer.map_err(|_| config("the admin token holds what no header can carry".to_owned()))?;
    bearer.set_sensitive(true);
    Ok(bearer)
}
