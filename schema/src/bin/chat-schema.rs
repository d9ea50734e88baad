//! `chat-schema`: the schemas, the strict parser, the canonical form and the signatures for those who
//! write a chat client or server in any language (SCHEMA-8).
//!
//! Streams are newline-delimited JSON, one answer a line, so that it fits in a pipe. Everything it knows
//! is the crate's; this file reads, prints and counts.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufRead, BufReader, Read, Write},
    path::{Path, PathBuf},
    process::ExitCode,
    time::{SystemTime, UNIX_EPOCH},
};

use clap::{Parser, Subcommand};
use serde_json::{Value, json};
use weir_schema::{
    BASE, Catalog, CatalogError, Family, canonical,
    replay::{self, MemoryStore},
    signature::{self, PublicKey, SecretKey},
    strict::{self, Limits},
};

/// How many messages `verify --fresh` remembers.
const REMEMBERED: usize = 1_000_000;

/// The chat message schemas on the command line.
///
/// FILE is standard input where it is absent or `-`. The exit code is 0, 1 if a message was refused, 2 if
/// the command could not do its work.
#[derive(Parser)]
#[command(name = "chat-schema", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Lists the schemas: name, tab, title.
    List,
    /// Prints one schema, such as `message` or `s2c/001`.
    Show {
        name: String,
        /// The base URL of the `$id`.
        #[arg(long, default_value = BASE)]
        base: String,
    },
    /// Judges newline-delimited messages; prints one report a line, as JSON.
    Validate {
        /// c2s, s2c or s2s.
        #[arg(long)]
        family: Family,
        file: Option<PathBuf>,
    },
    /// Prints the canonical form (RFC 8785) of one JSON text, without a line break at the end.
    Canon {
        /// Read newline-delimited JSON and print one line for each.
        #[arg(long)]
        lines: bool,
        /// Leave `meta.sig` out: these are the bytes that a signature covers.
        #[arg(long)]
        without_sig: bool,
        file: Option<PathBuf>,
    },
    /// Makes an Ed25519 key and prints it as a private JWK.
    Keygen {
        /// Write the private key to this new file, for its owner alone, and print the public one.
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
        /// Make no key; print the public half of this one.
        #[arg(long, value_name = "FILE", conflicts_with = "out")]
        public_of: Option<PathBuf>,
    },
    /// Signs newline-delimited messages and prints them.
    Sign {
        /// The private key, a JWK.
        #[arg(long)]
        key: PathBuf,
        file: Option<PathBuf>,
    },
    /// Verifies newline-delimited messages; prints one report a line, as JSON.
    Verify {
        /// A key that is trusted, a JWK; may come several times.
        #[arg(long, required = true)]
        key: Vec<PathBuf>,
        /// Accept messages from this sender only. Without it a good signature proves a key, no sender.
        #[arg(long)]
        from: Option<String>,
        /// Refuse messages more than 300 s from the clock, and those that come twice.
        #[arg(long)]
        fresh: bool,
        file: Option<PathBuf>,
    },
    /// Writes all schemas under another base URL.
    Export {
        /// The base URL; the files belong below it.
        #[arg(long)]
        base: String,
        /// The folder that gets `schema/…`. Files that are there are replaced.
        #[arg(long)]
        out: PathBuf,
    },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let mut refused = false;
    match run(arguments.command, &mut io::stdout().lock(), &mut refused) {
        Ok(()) => {}
        // Who reads us has seen enough. That is no fault.
        Err(Failure::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => {}
        Err(failure) => {
            complain(&failure.to_string());
            return ExitCode::from(2);
        }
    }
    if refused {
        ExitCode::from(1)
    } else {
        ExitCode::SUCCESS
    }
}

/// Does `command`, and notes in `refused` whether a message was.
fn run(command: Command, out: &mut impl Write, refused: &mut bool) -> Result<(), Failure> {
    match command {
        Command::List => list(out)?,
        Command::Show { name, base } => {
            let catalog = Catalog::with_base(&base)?;
            let text = catalog.text(&name).ok_or(Failure::NoSchema(name))?;
            out.write_all(text.as_bytes())?;
        }
        Command::Validate { family, file } => {
            let catalog = Catalog::new()?;
            for_each_line(file.as_deref(), |number, text| {
                let report = match strict::parse(text) {
                    Err(error) => unreadable(number, &error),
                    Ok(message) => match catalog.validate(family, &message) {
                        Ok(()) => json!({ "line": number, "valid": true }),
                        Err(violations) => {
                            json!({ "line": number, "valid": false, "violations": violations })
                        }
                    },
                };
                *refused |= report.get("valid") != Some(&Value::Bool(true));
                Ok(writeln!(out, "{report}")?)
            })?;
        }
        Command::Canon {
            lines,
            without_sig,
            file,
        } => {
            let canon = |text: &[u8]| -> Result<Vec<u8>, String> {
                let value = strict::parse(text).map_err(|error| error.to_string())?;
                if without_sig {
                    signature::signed_bytes(&value)
                } else {
                    canonical::to_vec(&value)
                }
                .map_err(|error| error.to_string())
            };
            if lines {
                for_each_line(file.as_deref(), |number, text| match canon(text) {
                    Ok(bytes) => {
                        out.write_all(&bytes)?;
                        Ok(writeln!(out)?)
                    }
                    Err(error) => {
                        *refused = true;
                        complain(&format!("line {number}: {error}"));
                        Ok(())
                    }
                })?;
            } else {
                // One byte more than is allowed, so that the parser sees that it is too long.
                let mut text = Vec::new();
                let most = Limits::MESSAGE.bytes as u64 + 1;
                input(file.as_deref())?
                    .take(most)
                    .read_to_end(&mut text)
                    .map_err(|error| Failure::input(file.as_deref(), error))?;
                match canon(&text) {
                    Ok(bytes) => out.write_all(&bytes)?,
                    Err(error) => {
                        *refused = true;
                        complain(&error);
                    }
                }
            }
        }
        Command::Keygen {
            out: file,
            public_of,
        } => keygen(file.as_deref(), public_of.as_deref(), out)?,
        Command::Sign { key, file } => {
            let key =
                SecretKey::from_jwk(&read_jwk(&key)?).map_err(|error| Failure::key(&key, error))?;
            for_each_line(file.as_deref(), |number, text| {
                let signed = strict::parse(text)
                    .map_err(|error| error.to_string())
                    .and_then(|message| key.sign(&message).map_err(|error| error.to_string()));
                match signed {
                    Ok(message) => Ok(writeln!(out, "{message}")?),
                    Err(error) => {
                        *refused = true;
                        complain(&format!("line {number}: {error}"));
                        Ok(())
                    }
                }
            })?;
        }
        Command::Verify {
            key,
            from,
            fresh,
            file,
        } => {
            let mut keys = Vec::with_capacity(key.len());
            for path in &key {
                keys.push(
                    PublicKey::from_jwk(&read_jwk(path)?)
                        .map_err(|error| Failure::key(path, error))?,
                );
            }
            let mut store = fresh.then(|| MemoryStore::new(REMEMBERED));
            for_each_line(file.as_deref(), |number, text| {
                let report = verify(number, text, &keys, from.as_deref(), store.as_mut());
                *refused |= report.get("valid") != Some(&Value::Bool(true));
                Ok(writeln!(out, "{report}")?)
            })?;
        }
        Command::Export { base, out: folder } => {
            let catalog = Catalog::with_base(&base)?;
            for name in catalog.names() {
                let path = folder.join("schema").join(format!("{name}.schema.json"));
                let text = catalog.text(name).unwrap_or_default();
                path.parent()
                    .map_or(Ok(()), fs::create_dir_all)
                    .and_then(|()| fs::write(&path, text))
                    .map_err(|error| Failure::File(path.clone(), error))?;
                writeln!(out, "{}", path.display())?;
            }
        }
    }
    out.flush()?;
    Ok(())
}

fn list(out: &mut impl Write) -> Result<(), Failure> {
    let catalog = Catalog::new()?;
    for name in catalog.names() {
        let schema: Value =
            serde_json::from_str(catalog.text(name).unwrap_or_default()).unwrap_or_default();
        writeln!(
            out,
            "{name}\t{}",
            schema
                .get("title")
                .and_then(Value::as_str)
                .unwrap_or_default()
        )?;
    }
    Ok(())
}

fn keygen(
    file: Option<&Path>,
    public_of: Option<&Path>,
    out: &mut impl Write,
) -> Result<(), Failure> {
    if let Some(path) = public_of {
        let key =
            PublicKey::from_jwk(&read_jwk(path)?).map_err(|error| Failure::key(path, error))?;
        return Ok(writeln!(out, "{}", key.to_jwk())?);
    }
    let mut seed = [0; 32];
    getrandom::fill(&mut seed).map_err(|error| Failure::Random(error.to_string()))?;
    let key = SecretKey::from_seed(&seed);
    let Some(path) = file else {
        return Ok(writeln!(out, "{}", key.to_jwk())?);
    };
    let mut options = OpenOptions::new();
    options.write(true).create_new(true); // a key that is there may be the only one
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
        .open(path)
        .and_then(|mut file| {
            writeln!(file, "{}", key.to_jwk())?;
            file.sync_all()
        })
        .map_err(|error| Failure::File(path.to_owned(), error))?;
    Ok(writeln!(out, "{}", key.public().to_jwk())?)
}

fn verify(
    number: u64,
    text: &[u8],
    keys: &[PublicKey],
    from: Option<&str>,
    store: Option<&mut MemoryStore>,
) -> Value {
    let message = match strict::parse(text) {
        Ok(message) => message,
        Err(error) => return unreadable(number, &error),
    };
    let verified = signature::verify(&message, |claim| {
        let expected = from.is_none_or(|from| from == claim.from);
        keys.iter().find(|key| expected && key.kid() == claim.kid)
    });
    let outcome = verified
        .map_err(|error| error.to_string())
        .and_then(|verified| match store {
            Some(store) => replay::admit(store, &verified, now())
                .map(|()| verified)
                .map_err(|error| error.to_string()),
            None => Ok(verified),
        });
    match outcome {
        Ok(verified) => json!({
            "line": number, "valid": true,
            "kid": verified.kid, "id": verified.id, "from": verified.from, "ts": verified.ts,
        }),
        Err(error) => json!({ "line": number, "valid": false, "error": error }),
    }
}

fn unreadable(number: u64, error: &strict::StrictError) -> Value {
    // The line of the error is that of the text, which is one line; the number of the line is ours.
    json!({ "line": number, "valid": false, "error": error.fault.to_string(), "column": error.column })
}

/// Milliseconds since 1970.
fn now() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |age| i64::try_from(age.as_millis()).unwrap_or(i64::MAX))
}

/// Calls `each` with the number, from 1, and the bytes of every line. A line that is longer than a message
/// may be is cut one byte after the limit, where the parser refuses it; memory does not grow with it.
fn for_each_line(
    file: Option<&Path>,
    mut each: impl FnMut(u64, &[u8]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut source = input(file)?;
    let most = Limits::MESSAGE.bytes + 1;
    let mut line = Vec::new();
    let mut number = 0;
    loop {
        line.clear();
        let failed = |error| Failure::input(file, error);
        // Two more for the line break.
        source
            .by_ref()
            .take(most as u64 + 2)
            .read_until(b'\n', &mut line)
            .map_err(failed)?;
        if line.is_empty() {
            return Ok(());
        }
        if line.last() == Some(&b'\n') {
            line.pop();
            if line.last() == Some(&b'\r') {
                line.pop();
            }
        } else {
            source.skip_until(b'\n').map_err(failed)?;
        }
        line.truncate(most);
        number += 1;
        each(number, &line)?;
    }
}

fn input(file: Option<&Path>) -> Result<Box<dyn BufRead>, Failure> {
    match file {
        Some(path) if path != Path::new("-") => {
            let file = File::open(path).map_err(|error| Failure::File(path.to_owned(), error))?;
            Ok(Box::new(BufReader::new(file)))
        }
        _ => Ok(Box::new(io::stdin().lock())),
    }
}

fn read_jwk(path: &Path) -> Result<Value, Failure> {
    let text = fs::read(path).map_err(|error| Failure::File(path.to_owned(), error))?;
    strict::parse(&text).map_err(|error| Failure::key(path, error))
}

/// Says `sentence` to people. Where nobody listens, it is lost, and that is no reason to fail.
fn complain(sentence: &str) {
    drop(writeln!(io::stderr().lock(), "chat-schema: {sentence}"));
}

/// Why the command could not do its work.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("{}: {_1}", _0.display())]
    File(PathBuf, io::Error),
    #[error("standard input: {0}")]
    Input(io::Error),
    #[error("standard output: {0}")]
    Output(#[from] io::Error),
    #[error("{}: {_1}", _0.display())]
    Key(PathBuf, String),
    #[error("there is no schema {0:?}; `chat-schema list` names them")]
    NoSchema(String),
    #[error("the system gives no random bytes: {0}")]
    Random(String),
    #[error(transparent)]
    Catalog(#[from] CatalogError),
}

impl Failure {
    fn key(path: &Path, error: impl ToString) -> Self {
        Self::Key(path.to_owned(), error.to_string())
    }

    fn input(file: Option<&Path>, error: io::Error) -> Self {
        match file {
            Some(path) => Self::File(path.to_owned(), error),
            None => Self::Input(error),
        }
    }
}
