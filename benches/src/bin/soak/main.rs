//! Millions of mixed requests with faults on every side, and at the end each counter beside what
//! the clients saw: `cargo run --release -p weir-benches --bin soak`.
//!
//! Clients and application are in this process and know exactly what they did. It ends with status
//! 1 if one number differs, if a ban is missing, or if the service holds more files, threads or
//! memory than at the beginning. Loopback only; ends by itself.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail};
use clap::Parser;

mod application;
mod client;
mod message;
mod service;
mod trouble;

use application::Switch;
use client::{Client, Seen};
use service::{Held, Process, Service, operator};
use trouble::{Done, Trouble};

/// Part of the requests that come before the first look at memory.
const WARM_UP: i64 = 10;
/// So many at least where memory is judged: the table of 20,000 clients is full by then.
const WARM: i64 = 300_000;
/// Then more of them, piece by piece, until so many copies have been written: the second replaces
/// the first, which is held to compare with.
const COPIES: u32 = 2;
const PIECE: i64 = 20_000;
/// How long everything may calm down before a look at memory: longer than idle connections live.
const CALM: Duration = Duration::from_secs(8);
/// How often it is looked how far a run is.
const LOOK: Duration = Duration::from_millis(250);
/// Memory that may be there more at the end: it moves by the copy of the clients that is written,
/// some 5 MiB, and the run goes on to make bans.
const MEMORY_KIB: u64 = 6 * 1024;
/// Processor time of a second in which nobody asks, in milliseconds: state files are written.
const AT_REST_MS: u64 = 200;
/// With fewer requests the first look comes before every client has been seen once, and memory is
/// printed but not judged.
const JUDGED: i64 = 1_000_000;

/// Sends mixed requests with faults and compares every counter at the end.
#[derive(Parser)]
#[command(name = "soak")]
struct Arguments {
    /// How many requests
    #[arg(long, default_value_t = 10_000_000)]
    requests: i64,
    /// Clients at once
    #[arg(long, default_value_t = 64)]
    connections: u64,
    /// WAF_WORKERS
    #[arg(long, default_value_t = 1)]
    workers: usize,
    /// Looks at memory after every so many requests, under load
    #[arg(long, default_value_t = 250_000)]
    look_every: i64,
    /// Repeats a run's mixture
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The binary of weir
    #[arg(default_value = "target/release/weir")]
    weir: PathBuf,
}

impl Arguments {
    /// Whether the memory at the end decides.
    const fn is_judged(&self) -> bool {
        self.requests >= JUDGED
    }
}

fn main() -> ExitCode {
    match soak(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("soak: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn soak(arguments: &Arguments) -> Result<bool> {
    if arguments.requests < 100 || arguments.connections == 0 {
        bail!("--requests is at least 100, --connections at least 1");
    }
    let directory = tempfile::Builder::new().prefix("weir-soak-").tempdir()?;
    let switch = Switch::default();
    let application = application::start(switch.clone())?;
    let service = Service::start(&arguments.weir, application, directory, arguments.workers)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let began = Instant::now();
    let load =
        |requests: i64, seed: u64| runtime.block_on(clients(&service, requests, arguments, seed));

    let trouble = |done| Trouble::start(service.address, &service.state, switch.clone(), done);
    // With trouble too: what a first edit, ban or outage makes once is no growth.
    let first = trouble(Done::default());
    let warm_part = warm_up(arguments, &service.state, &load);
    let done = first.stop()?;
    let (mut seen, sent) = warm_part?;
    std::thread::sleep(CALM);
    let before = service.process().held()?;
    let second = trouble(done);
    let main_part = load(arguments.requests - sent, arguments.seed + 1);
    let done = second.stop()?;
    seen += main_part?;
    std::thread::sleep(CALM);
    let after = service.process().held()?;

    let seconds = began.elapsed().as_secs();
    println!(
        "{} requests in {seconds} s, {} outages",
        seen.requests(),
        done.outages
    );
    let mut report = Report::default();
    compare(&mut report, &service, &seen, &done, &switch)?;
    held(&mut report, before, after, arguments.is_judged());
    report.at_most(
        "processor at rest, ms a second",
        service.busy_ms()?,
        AT_REST_MS,
    );
    bans(&mut report, &service, &done)?;
    let log = service.stop()?;
    let lines = log.iter().filter(|(action, _)| *action != "(no request)");
    // The scrape that was compared is one more line.
    let expected = seen.requests() + done.asked + 2;
    report.equal(
        "lines of the log",
        lines.map(|(_, count)| count).sum(),
        expected,
    );
    Ok(report.holds)
}

/// What comes before the first look at memory, and how many requests it was.
fn warm_up(
    arguments: &Arguments,
    state: &Path,
    load: &impl Fn(i64, u64) -> Result<Seen>,
) -> Result<(Seen, i64)> {
    let judged = arguments.is_judged();
    let least = if judged { WARM } else { 0 };
    let mut sent = least.max(arguments.requests / WARM_UP);
    let mut seen = load(sent, arguments.seed)?;
    let mut copies = Copies::of(state);
    while judged && sent < arguments.requests / 2 && copies.count() < COPIES {
        sent += PIECE;
        seen += load(PIECE, arguments.seed + sent.unsigned_abs())?;
    }
    Ok((seen, sent))
}

/// How often clients.json has been written since this looked first.
struct Copies {
    path: PathBuf,
    last: Option<SystemTime>,
    count: u32,
}

impl Copies {
    fn of(state: &Path) -> Self {
        let path = state.join("clients.json");
        let last = modified(&path);
        let count = 0;
        Self { path, last, count }
    }

    fn count(&mut self) -> u32 {
        let last = modified(&self.path);
        self.count += u32::from(last != self.last);
        self.last = last;
        self.count
    }
}

fn modified(path: &Path) -> Option<SystemTime> {
    std::fs::metadata(path).ok()?.modified().ok()
}

async fn clients(
    service: &Service,
    requests: i64,
    arguments: &Arguments,
    seed: u64,
) -> Result<Seen> {
    let left = Arc::new(AtomicI64::new(requests));
    let local = tokio::task::LocalSet::new();
    let address = service.address;
    let tasks: Vec<_> = (0..arguments.connections)
        .map(|number| {
            let left = Arc::clone(&left);
            let client = Client::new(address, seed.wrapping_mul(1 << 20) + number);
            local.spawn_local(async move { client.run(&left).await })
        })
        .collect();
    let (process, every) = (service.process(), arguments.look_every.max(1));
    local.spawn_local(look(process, requests, every, Arc::clone(&left)));
    let all = async {
        let mut seen = Seen::default();
        for task in tasks {
            seen += task.await.context("a client panicked")??;
        }
        Ok(seen)
    };
    local.run_until(all).await
}

/// Says what the service holds after each part of the requests: memory that grows on shows here.
async fn look(process: Process, requests: i64, every: i64, left: Arc<AtomicI64>) -> Result<()> {
    let mut tick = tokio::time::interval(LOOK);
    let mut next = every;
    loop {
        tick.tick().await;
        let done = requests - left.load(Ordering::Relaxed).max(0);
        if done < next {
            continue;
        }
        next = (done / every + 1) * every;
        let held = process.held()?;
        eprintln!(
            "soak: {done} requests: {} KiB resident, {} of them its own, {} files",
            held.kib, held.own_kib, held.files
        );
    }
}

/// The lines of the result.
struct Report {
    holds: bool,
}

impl Default for Report {
    fn default() -> Self {
        Self { holds: true }
    }
}

impl Report {
    fn equal(&mut self, what: &str, counted: u64, expected: u64) {
        let verdict = if counted == expected {
            "equal"
        } else {
            "DIFFERS"
        };
        println!("{what:44} {counted:>12} {expected:>12}  {verdict}");
        self.holds &= counted == expected;
    }

    fn at_most(&mut self, what: &str, counted: u64, bound: u64) {
        let verdict = if counted <= bound {
            "holds"
        } else {
            "TOO MUCH"
        };
        let told = if bound == u64::MAX {
            "any".to_owned()
        } else {
            bound.to_string()
        };
        println!("{what:44} {counted:>12} {told:>12}  {verdict}");
        self.holds &= counted <= bound;
    }
}

/// Every counter beside what the clients saw.
fn compare(
    report: &mut Report,
    service: &Service,
    seen: &Seen,
    done: &Done,
    switch: &Switch,
) -> Result<()> {
    let metrics = service.metrics()?;
    // A series that is not there is no zero.
    let of = |series: &str| metrics.get(series).map_or(u64::MAX, |value| *value as u64);
    let action = |name: &str| {
        of(&format!(
            "waf_requests_total{{action=\"{name}\",mode=\"enforce\"}}"
        ))
    };
    let answered = seen.metrics + done.asked;
    println!("{:44} {:>12} {:>12}", "", "the service", "the clients");
    report.equal("passed", action("passed"), seen.passed);
    report.equal(
        "upstream_error + client_aborted",
        action("upstream_error").saturating_add(action("client_aborted")),
        seen.failed + seen.cut + seen.aborted,
    );
    report.equal(
        "banned + rate_limited",
        action("banned").saturating_add(action("rate_limited")),
        seen.banned + seen.limited,
    );
    report.equal("unauthorized", action("unauthorized"), seen.unauthorized);
    report.equal("not_found", action("not_found"), seen.not_found);
    report.equal("answered", action("answered"), answered);
    report.equal(
        "bad requests",
        of("waf_connection_errors_total{kind=\"bad_request\"}"),
        seen.bad,
    );
    application_answers(report, &of, seen, switch);
    report.equal(
        "events dropped",
        sum(&metrics, "waf_events_dropped_total"),
        0,
    );
    report.equal(
        "log lines dropped",
        sum(&metrics, "waf_log_lines_dropped_total"),
        0,
    );
    report.equal("state writes that failed", failed_writes(&metrics), 0);
    Ok(())
}

/// What the application wrote beside what the service counted of it: an answer to a client that had
/// gone may have been written and never read.
fn application_answers(
    report: &mut Report,
    of: &impl Fn(&str) -> u64,
    seen: &Seen,
    switch: &Switch,
) {
    let classes = ["1xx", "2xx", "3xx", "4xx", "5xx"];
    let answers = classes.map(|class| of(&format!("waf_responses_total{{class=\"{class}\"}}")));
    report.at_most(
        "answers of the application",
        answers.iter().sum(),
        switch.answers(),
    );
    report.at_most(
        "answers the application wrote, unseen",
        switch.answers().abs_diff(answers.iter().sum()),
        seen.aborted,
    );
}

fn sum(metrics: &BTreeMap<String, f64>, name: &str) -> u64 {
    let of = metrics
        .iter()
        .filter(|(series, _)| series.starts_with(name));
    of.map(|(_, value)| *value as u64).sum()
}

fn failed_writes(metrics: &BTreeMap<String, f64>) -> u64 {
    let writes = metrics.iter().filter(|(series, _)| {
        series.starts_with("waf_state_writes_total") && !series.contains("outcome=\"ok\"")
    });
    writes.map(|(_, value)| *value as u64).sum()
}

/// What the service holds of the system.
fn held(report: &mut Report, before: Held, after: Held, judged: bool) {
    println!("{:44} {:>12} {:>12}", "", "at the end", "at most");
    let bound = if judged {
        before.kib + MEMORY_KIB
    } else {
        u64::MAX
    };
    report.at_most("resident memory, KiB", after.kib, bound);
    report.at_most("open files", after.files as u64, before.files as u64);
    report.at_most("threads", after.threads as u64, before.threads as u64);
}

/// Every ban that was acknowledged or saved is there.
fn bans(report: &mut Report, service: &Service, done: &Done) -> Result<()> {
    let answer = operator(service.address, "GET /_waf/bans?active=true", "")?;
    let text = answer.expect(200)?.body;
    let there = done.banned.iter().filter(|netblock| {
        text.contains(&format!("\"{netblock}\""))
            || text.contains(&format!("\"{}\"", netblock.trim_end_matches("/32")))
    });
    report.equal(
        "bans of the operator",
        there.count() as u64,
        done.banned.len() as u64,
    );
    Ok(())
}
