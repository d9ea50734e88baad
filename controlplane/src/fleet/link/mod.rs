//! The link to a Valkey or Redis: only this folder uses the crate `redis` (FLEET-2).
//!
//! A link is one connection, used by one thread; every question has a time-out. After a fault the
//! connection is dropped, and its thread opens another one after a pause. The engine may have
//! obeyed what was sent, and it may be sent again.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use redis::{Cmd, ErrorKind, RedisError, ServerErrorKind, Value};
use weir_shared::settings::EnginePlace;

use super::engine::{
    Alive, Answer, Beat, CountKind, Cursor, Engine, Fault, Logged, SnapshotAt, Welcome,
};
use super::stamp::Origin;

mod access;
mod claim;
mod cluster;
mod merge;
mod policy;
mod sentinel;
mod snapshot;
mod wire;

pub use access::Access;
use access::Place;
use wire::{Wire, fault};

/// The most batches that are read at once: four megabytes.
const MOST_READ: usize = 64;
/// The most instances of a fleet.
pub const MAX_INSTANCES: usize = 1024;

const HELLO: &str = include_str!("hello.lua");
const APPEND: &str = include_str!("append.lua");
const BEAT: &str = include_str!("beat.lua");

impl Access {
    /// Opens a connection to the engine, wherever it is now.
    fn connect(&self) -> Result<Wire, Fault> {
        match &self.place {
            EnginePlace::Sentinels { places, name, tls } => self.by_sentinels(places, name, *tls),
            EnginePlace::Cluster { places, tls } => self.in_cluster(places, *tls),
            EnginePlace::Tcp { host, port, tls } => {
                Wire::open(self, &Place::Tcp(host.clone(), *port, *tls))
            }
            EnginePlace::Unix(path) => Wire::open(self, &Place::Unix(path.clone())),
        }
    }
}

/// An open link.
pub struct Link {
    connection: Wire,
    fleet: String,
    /// The pipelined questions without an answer yet.
    asked: VecDeque<Asked>,
    /// The remaining steps of the snapshot that is being stored.
    steps: VecDeque<Step>,
    /// The number of this connection's hello; the engine refuses batches of earlier connections.
    hello: Vec<u8>,
}

/// A pipelined question.
enum Ahead {
    Append {
        seq: u64,
    },
    Beat,
    /// Whether this instance is the one to store a snapshot now.
    Turn,
    /// Which snapshot is there, before it is replaced.
    Pointer {
        upto: Cursor,
    },
    Step,
}

/// A pipelined question without an answer yet.
struct Asked {
    question: Ahead,
    at: Instant,
    bytes: usize,
}

/// A step of storing a snapshot.
struct Step {
    question: Ahead,
    command: Cmd,
    bytes: usize,
    /// Sent only once all earlier questions were answered.
    waits: bool,
}

/// A script, and its SHA-1, by which it is called.
struct Script {
    text: &'static str,
    keys: Vec<String>,
    arguments: Vec<Vec<u8>>,
}

impl Link {
    /// Opens a link. A read over it waits at most `wait` for entries.
    ///
    /// # Errors
    /// [`Fault`]
    pub fn open(access: &Access, wait: Duration) -> Result<Self, Fault> {
        let mut connection = access.connect()?;
        connection.wait_longer(wait);
        Ok(Self {
            connection,
            fleet: access.fleet.clone(),
            asked: VecDeque::new(),
            steps: VecDeque::new(),
            hello: Vec::new(),
        })
    }

    fn key(&self, name: &str) -> String {
        key(&self.fleet, name)
    }

    fn ask(&mut self, command: &Cmd) -> Result<Value, Fault> {
        self.is_free()?;
        command.query(&mut self.connection).map_err(fault)
    }

    /// Fails unless every question is answered, so that the next answer is that of the next
    /// question.
    fn is_free(&self) -> Result<(), Fault> {
        let early = || Fault("it was asked too early; please report this".to_owned());
        (!self.is_asked()).then_some(()).ok_or_else(early)
    }

    /// Sends a pipelined question. If the engine does not know the script, that is a fault: the
    /// next connection loads it.
    fn ask_ahead(&mut self, question: Ahead, command: &Cmd) -> Result<(), Fault> {
        let (at, bytes) = self.connection.ask(command).map_err(fault)?;
        self.asked.push_back(Asked {
            question,
            at,
            bytes,
        });
        Ok(())
    }

    fn run(&mut self, script: &Script) -> Result<Value, Fault> {
        self.is_free()?;
        let command = script.command();
        match command.query(&mut self.connection) {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                self.ask(redis::cmd("SCRIPT").arg("LOAD").arg(script.text))?;
                self.ask(&command)
            }
            answer => answer.map_err(fault),
        }
    }
}

impl Script {
    fn command(&self) -> Cmd {
        let mut command = redis::cmd("EVALSHA");
        command.arg(sha1(self.text)).arg(self.keys.len());
        for key in &self.keys {
            command.arg(key);
        }
        for argument in &self.arguments {
            command.arg(argument);
        }
        command
    }
}

impl Engine for Link {
    fn hello(&mut self, me: &Origin, cursor: Cursor, found: u128) -> Result<Welcome, Fault> {
        // Loads the scripts, which a restarted engine has lost, so that the first ban need not wait
        // for that.
        let mut scripts = redis::pipe();
        for text in [HELLO, BEAT, APPEND] {
            scripts.cmd("SCRIPT").arg("LOAD").arg(text).ignore();
        }
        scripts.query::<()>(&mut self.connection).map_err(fault)?;
        self.hello = format!("{found:032x}").into_bytes();
        let answer = self.run(&Script {
            text: HELLO,
            keys: vec![self.key("meta"), self.key("log"), self.key("seq")],
            arguments: vec![
                me.as_str().into(),
                self.hello.clone(),
                cursor.to_string().into_bytes(),
            ],
        })?;
        let parts = array(answer)?;
        let [format, rest @ ..] = parts.as_slice() else {
            return Err(strange());
        };
        let format = text(format)?;
        if format != "1" {
            return Err(Fault(format!(
                "the fleet there has format {format}, this one knows 1"
            )));
        }
        let [generation, last, at_cursor, is_whole, time, by] = rest else {
            return Err(strange());
        };
        Ok(Welcome {
            generation: u128::from_str_radix(&text(generation)?, 16).map_err(|_| strange())?,
            hello: found,
            last: number(last)?,
            // A value that is no number was written by another program.
            last_by: u128::from_str_radix(&text(by)?, 16).ok(),
            at_cursor: (array(at_cursor.clone())?.into_iter().next())
                .map(logged)
                .transpose()?,
            is_whole: number(is_whole)? == 1,
            time_ms: number(time)?,
        })
    }

    fn append(&mut self, me: &Origin, seq: u64, sealed: &[u8]) -> Result<(), Fault> {
        let script = Script {
            text: APPEND,
            keys: vec![self.key("log"), self.key("seq")],
            arguments: vec![
                me.as_str().into(),
                seq.to_string().into_bytes(),
                sealed.to_vec(),
                self.hello.clone(),
            ],
        };
        self.ask_ahead(Ahead::Append { seq }, &script.command())
    }

    fn answer(&mut self, wait: Duration) -> Result<Option<Answer>, Fault> {
        let Some(Asked { question, at, .. }) = self.asked.front() else {
            return Ok(None);
        };
        let came = match self.connection.answer(*at, wait) {
            // A value of another program is replaced.
            Err(error)
                if matches!(question, Ahead::Pointer { .. }) && is_of_another_type(&error) =>
            {
                Some((Value::Nil, Duration::ZERO))
            }
            came => came.map_err(fault)?,
        };
        let Some((answer, round_trip)) = came else {
            return Ok(None);
        };
        let answer = match *question {
            Ahead::Append { seq } => Answer::Appended {
                seq,
                last: number(&answer)?,
            },
            Ahead::Beat => Answer::Beaten {
                alive: alive(answer)?,
                round_trip,
            },
            Ahead::Turn => {
                if answer != Value::Okay {
                    self.steps.clear();
                }
                Answer::Stored
            }
            Ahead::Pointer { upto } => {
                self.clear_before(&answer, upto);
                Answer::Stored
            }
            Ahead::Step => Answer::Stored,
        };
        self.asked.pop_front();
        Ok(Some(answer))
    }

    fn is_asked(&self) -> bool {
        !self.asked.is_empty()
    }

    fn read_after(
        &mut self,
        cursor: Cursor,
        most: usize,
        wait: Duration,
    ) -> Result<Vec<Logged>, Fault> {
        let mut command = redis::cmd("XREAD");
        command.arg("COUNT").arg(most.min(MOST_READ));
        if !wait.is_zero() {
            command
                .arg("BLOCK")
                .arg(wait.as_millis().max(1).to_string());
        }
        command
            .arg("STREAMS")
            .arg(self.key("log"))
            .arg(cursor.to_string());
        let streams = match self.ask(&command)? {
            Value::Nil => return Ok(Vec::new()),
            answer => array(answer)?,
        };
        let Some(stream) = streams.into_iter().next() else {
            return Ok(Vec::new());
        };
        let stream = array(stream)?;
        let [_, entries] = <[Value; 2]>::try_from(stream).map_err(|_| strange())?;
        array(entries)?.into_iter().map(logged).collect()
    }

    fn snapshot(&mut self) -> Result<Option<SnapshotAt>, Fault> {
        self.pointer()
    }

    fn snapshot_chunks(
        &mut self,
        at: SnapshotAt,
        from: usize,
    ) -> Result<Option<Vec<Vec<u8>>>, Fault> {
        self.chunks(at, from)
    }

    fn snapshot_put(&mut self, upto: Cursor, chunks: Vec<Vec<u8>>) -> Result<(), Fault> {
        self.put(upto, chunks);
        Ok(())
    }

    fn beat(&mut self, me: &Origin, sealed: &[u8]) -> Result<(), Fault> {
        let script = Script {
            text: BEAT,
            keys: vec![
                self.key("alive"),
                self.key("m"),
                self.key("seq"),
                self.key(CountKind::Enforced.numbers()),
                self.key(CountKind::Observed.numbers()),
            ],
            arguments: vec![
                me.as_str().into(),
                sealed.to_vec(),
                MAX_INSTANCES.to_string().into(),
                self.hello.clone(),
            ],
        };
        self.ask_ahead(Ahead::Beat, &script.command())
    }

    /// Removes the beat. The numbers of its batches stay as long as after a crash: without them a
    /// batch that a dropped connection has left on its way would count as the first one again
    /// (FLEET-6, FLEET-15).
    fn leave(&mut self, me: &Origin) -> Result<(), Fault> {
        let beats = self.key("m");
        self.ask(redis::cmd("HDEL").arg(beats).arg(me.as_str()))
            .map(drop)
    }
}

/// Parses the script's answer about the instances.
fn alive(answer: Value) -> Result<Alive, Fault> {
    let mut answer = array(answer)?.into_iter();
    let time_ms = number(&answer.next().ok_or_else(strange)?)?;
    let mut members = Vec::new();
    while let (Some(origin), Some(at), Some(Value::BulkString(sealed))) =
        (answer.next(), answer.next(), answer.next())
    {
        // Written by another program, or by a version with another form of names.
        let (Some(origin), Ok(at_ms)) = (named(&origin), number(&at)) else {
            continue;
        };
        members.push(Beat {
            origin,
            age_ms: time_ms.saturating_sub(at_ms),
            sealed,
        });
    }
    Ok(Alive { time_ms, members })
}

/// The name of a key. The part in braces decides which node of a cluster has it, so one node has
/// all keys.
fn key(fleet: &str, name: &str) -> String {
    format!("weir:{{{fleet}}}:{name}")
}

fn is_of_another_type(error: &RedisError) -> bool {
    error.code() == Some("WRONGTYPE")
}

fn strange() -> Fault {
    Fault("the engine gave an answer of another form than that asked for".to_owned())
}

fn array(value: Value) -> Result<Vec<Value>, Fault> {
    match value {
        Value::Array(parts) => Ok(parts),
        _ => Err(strange()),
    }
}

fn text(value: &Value) -> Result<String, Fault> {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).map_err(|_| strange()),
        Value::SimpleString(text) => Ok(text.clone()),
        Value::Okay => Ok("OK".to_owned()),
        Value::VerbatimString { text, .. } => Ok(text.clone()),
        _ => Err(strange()),
    }
}

/// A number from the engine. Larger ones than it counts to are refused: they could overflow.
fn number(value: &Value) -> Result<u64, Fault> {
    let number: i64 = match value {
        Value::Int(number) => *number,
        other => text(other)?.parse().map_err(|_| strange())?,
    };
    u64::try_from(number).map_err(|_| strange())
}

/// An entry of the stream: its id and its fields.
fn logged(entry: Value) -> Result<Logged, Fault> {
    let [at, fields] = <[Value; 2]>::try_from(array(entry)?).map_err(|_| strange())?;
    let at: Cursor = text(&at)?.parse().map_err(|_| strange())?;
    let fields = match fields {
        Value::Array(fields) => fields,
        _ => Vec::new(),
    };
    // An entry of another program gets a place, and fails to open with any key.
    let mut logged = Logged {
        at,
        origin: nobody()?,
        seq: 0,
        sealed: Vec::new(),
    };
    for pair in fields.chunks_exact(2) {
        let [name, value] = pair else { continue };
        match (text(name).as_deref(), value) {
            (Ok("o"), value) => {
                if let Some(origin) = named(value) {
                    logged.origin = origin;
                }
            }
            (Ok("n"), value) => logged.seq = number(value).unwrap_or(0),
            (Ok("e"), Value::BulkString(sealed)) => logged.sealed.clone_from(sealed),
            _ => {}
        }
    }
    Ok(logged)
}

/// An origin; none where another program has written something else, which need not be a text.
fn named(value: &Value) -> Option<Origin> {
    text(value).ok()?.parse().ok()
}

fn nobody() -> Result<Origin, Fault> {
    Origin::new("-", 0).ok_or_else(strange)
}

/// The SHA-1 of a script.
fn sha1(text: &str) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY, text.as_bytes());
    data_encoding::HEXLOWER.encode(digest.as_ref())
}

#[cfg(test)]
mod tests;
