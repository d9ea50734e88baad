//! `weir replay`: what these settings would have refused of the requests of a log (CONTROL-6). The
//! code of the checks and bans is the service's own, with a table and a ledger of the replay; no
//! file of the service is written.

use std::collections::BTreeSet;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use tokio::signal::unix::SignalKind;
use weir_shared::settings::LookupSource;

mod engine;
mod format;
mod input;
mod progress;
mod report;
mod request;
mod settings;
mod stamp;
mod tally;
mod trial;

use self::engine::{Engine, Refusals};
use self::format::{Format, Line, Unreadable};
use self::input::{Input, Next};
use self::progress::Progress;
use self::report::{File, Reading, TOLD};
use self::settings::Base;
use self::trial::Trial;
use super::ask::{Asking, Place};
use super::common::{EXIT_USAGE, Failure, finish, out, print_json};
use super::{ended, trust};

/// The exit status that shells expect after SIGINT.
const EXIT_INTERRUPTED: u8 = 130;
/// How many lines of a log may decide its format.
const LOOKS: u64 = 1000;

#[derive(Args, Debug)]
pub struct Replay {
    /// Logs, oldest first; - for standard input. Up to 16,384 lines are sorted by when their
    /// requests began
    #[arg(required = true, value_name = "LOG")]
    logs: Vec<PathBuf>,
    /// The form of the logs; without it the first lines decide
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// Try this setting, beside the settings as they are; may be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    set: Vec<String>,
    /// A setting of another trial, in the place of the settings as they are; may be repeated
    #[arg(long, value_name = "NAME=VALUE", requires = "set")]
    or_set: Vec<String>,
    /// How many clients, netblocks, ASes, countries and paths are shown
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=1000))]
    top: u16,
    /// Write each refusal as a line of JSON to this file
    #[arg(long, value_name = "FILE")]
    refusals: Option<PathBuf>,
    #[command(flatten)]
    asking: Asking,
}

/// Runs `weir replay`: exit status 130 if it was interrupted.
pub fn run(given: &Replay) -> ExitCode {
    finish(replay(given))
}

fn replay(given: &Replay) -> Result<ExitCode, Failure> {
    let interrupted = ended::by(&[SignalKind::interrupt()]).map_err(|error| {
        Failure::new(1, format!("the system refused a signal handler: {error}"))
    })?;
    let (from, mut engine) = prepare(given)?;
    let mut reading = Reading::default();
    let mut progress = Progress::new(input::size(&given.logs));
    let mut input = Input::start(given.logs.clone(), interrupted)?;
    let mut lines = Lines {
        given,
        engine: &mut engine,
        reading: &mut reading,
        format: None,
        number: 0,
    };
    let ended = input.each(|next| {
        if let Next::Read(bytes) = next {
            progress.add(bytes);
        }
        lines.take(next)
    });
    progress.clear();
    reading.interrupted = ended?;
    engine.finish().map_err(|error| unwritten(given, &error))?;
    for (file, number, why) in &reading.told {
        eprintln!("weir: {file}, line {number}: {why}");
    }
    if engine.requests == 0 && reading.unreadable > 0 {
        let sentence = "no request can be read: expected our own log, nginx's combined format or HAProxy's HTTP format; --format names it";
        return Err(Failure::new(EXIT_USAGE, sentence));
    }
    for told in unheld(&engine.trials, &reading) {
        eprintln!("weir: {told}");
    }
    let document = report::document(&reading, from, &engine, given.top.into());
    if given.asking.json {
        print_json(&document)?;
    } else {
        out(&report::in_words(&document));
    }
    Ok(ExitCode::from(match reading.interrupted {
        true => EXIT_INTERRUPTED,
        false => 0,
    }))
}

/// The parts of a request that the rules ask for and the logs do not tell: rules about them match
/// nothing (MATCH-1).
fn unheld(trials: &[Trial], reading: &Reading) -> Vec<String> {
    let is_read = |format: &Format| {
        let mut files = reading.files.iter();
        files.any(|file| file.format == Some(format.name()))
    };
    let formats = [Format::Weir, Format::Combined, Format::Haproxy];
    let formats = formats.into_iter().filter(is_read);
    let asked: BTreeSet<String> = trials.iter().flat_map(Trial::fields_asked_for).collect();
    let mut told = Vec::new();
    for format in formats {
        let is_held = |name: &str| {
            let mut further = reading.fields.iter();
            format.fields().contains(&name)
                || (format == Format::Weir && further.any(|held| held == name))
        };
        let names = asked.iter().map(String::as_str);
        let names: Vec<&str> = names.filter(|name| !is_held(name)).collect();
        if !names.is_empty() {
            told.push(format!(
                "rules ask for {}, which a log of the format {} does not hold: there they match nothing",
                names.join(", "),
                format.name()
            ));
        }
    }
    if trials.iter().any(Trial::asks_names) {
        told.push("rules have crawlers that prove themselves by DNS, whose names a log does not hold: here they stay unproven".to_owned());
    }
    told
}

/// Prepares the settings on trial.
fn prepare(given: &Replay) -> Result<(&'static str, Engine), Failure> {
    let place = Place::of(&given.asking)?;
    let found = Base::find(&place)?;
    let base = found.with(&Vec::new())?.settings;
    let mut trials = Vec::new();
    if given.or_set.is_empty() {
        trials.push(Trial::new(&base, Vec::new())?);
    }
    for set in [&given.set, &given.or_set] {
        if !set.is_empty() {
            let set = found.changes(set)?;
            let tried = found.with(&set)?.settings;
            trials.push(Trial::new(&tried, set)?);
        }
    }
    if base.lookup.source.asks_a_service() || base.lookup.source == LookupSource::Off {
        eprintln!(
            "weir: countries and AS numbers are those of the log: WAF_LOOKUP_SOURCE=file looks up the rest"
        );
    }
    let refusals: Refusals = match &given.refusals {
        None => None,
        Some(path) => {
            let file = trust::create(path).map_err(|error| unwritten(given, &error))?;
            Some(Box::new(BufWriter::new(file)) as Box<dyn Write>)
        }
    };
    let engine = Engine::new(trials, base.bans.prefixes, refusals);
    Ok((found.from, engine))
}

/// The lines of the logs on their way to the engine.
struct Lines<'a> {
    given: &'a Replay,
    engine: &'a mut Engine,
    reading: &'a mut Reading,
    /// The format of the current log; none until a line has decided it.
    format: Option<Format>,
    /// The number of the current line in its log.
    number: u64,
}

impl Lines<'_> {
    fn take(&mut self, next: Next<'_>) -> Result<(), Failure> {
        match next {
            Next::Read(_) => Ok(()),
            Next::Begin(at) => {
                self.number = 0;
                self.format = self.given.format;
                let path = self.given.logs.get(at).map_or(Path::new("-"), |path| path);
                self.reading.files.push(File {
                    name: path.display().to_string(),
                    format: self.format.map(Format::name),
                });
                Ok(())
            }
            Next::Line(line) => self.line(line),
        }
    }

    fn line(&mut self, line: Option<&[u8]>) -> Result<(), Failure> {
        self.number += 1;
        let line = line.map(<[u8]>::trim_ascii);
        if line.is_some_and(<[u8]>::is_empty) {
            return Ok(());
        }
        self.reading.lines += 1;
        let Some(line) = line else {
            self.unreadable("it is longer than 1 MiB");
            return Ok(());
        };
        let is_ours = self.format == Some(Format::Weir);
        if let Some(note) = (!is_ours).then(|| format::note(line)).flatten() {
            return self.take_line(Ok(note));
        }
        if self.format.is_none() && self.number <= LOOKS {
            self.format = Format::of(line);
            if let Some(file) = self.reading.files.last_mut() {
                file.format = self.format.map(Format::name);
            }
        }
        let Some(format) = self.format else {
            self.unreadable("in none of the formats weir, combined and haproxy");
            return Ok(());
        };
        self.take_line(format.read(line))
    }

    fn take_line(&mut self, line: Result<Line, Unreadable>) -> Result<(), Failure> {
        match line {
            Ok(Line::Request(mut request)) => {
                request.number = self.number;
                for name in request.sent.fields.keys() {
                    if !self.reading.fields.contains(name.as_str()) {
                        self.reading.fields.insert(name.to_string());
                    }
                }
                let taken = self.engine.take(request);
                taken.map_err(|error| unwritten(self.given, &error))?;
            }
            Ok(Line::Other) => self.reading.other += 1,
            Ok(Line::LeftOut(count)) => {
                self.reading.other += 1;
                let left_out = self.reading.left_out.saturating_add(count);
                self.reading.left_out = left_out;
            }
            Err(why) => self.unreadable(why),
        }
        Ok(())
    }

    fn unreadable(&mut self, why: &'static str) {
        self.reading.unreadable += 1;
        if self.reading.told.len() < TOLD {
            let file = self.reading.files.last();
            let file = file.map_or(String::new(), |file| file.name.clone());
            self.reading.told.push((file, self.number, why));
        }
    }
}

fn unwritten(given: &Replay, error: &std::io::Error) -> Failure {
    let path = given.refusals.as_deref().unwrap_or(Path::new(""));
    let sentence = format!("--refusals {} cannot be written: {error}", path.display());
    Failure::new(EXIT_USAGE, sentence)
}
