//! Millions of mixed requests with faults on every side, and at the end each counter beside what
//! the clients saw: `cargo run --release -p weir-benches --bin soak`.
//!
//! Clients and application are in this process and know exactly what they did. It ends with status
//! 1 if one number differs, if a ban is missing, or if the service holds more files, threads or
//! memory than at the beginning. Loopback only; ends by itself.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail};
use clap::{Parser, value_parser};
use weir_benches::ask;
use weir_benches::beside::beside;
use weir_benches::meter::{Held, held};
use weir_benches::program::directory;

mod application;
mod client;
mod service;
mod trouble;

use application::Switch;
use client::{Client, Seen, What};
use service::Service;
use trouble::{Done, trouble};

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
    #[arg(long, default_value_t = 10_000_000, value_parser = value_parser!(i64).range(100..))]
    requests: i64,
    /// Clients at once
    #[arg(long, default_value_t = 64, value_parser = value_parser!(u64).range(1..))]
    connections: u64,
    /// WAF_WORKERS
    #[arg(long, default_value_t = 1)]
    workers: usize,
    /// Looks at memory after every so many requests, under load
    #[arg(long, default_value_t = 250_000, value_parser = value_parser!(i64).range(1..))]
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

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let directory = directory()?;
    let switch = Arc::<Switch>::default();
    let application = application::start(Arc::clone(&switch))?;
    let service = Service::start(&arguments.weir, application, directory, arguments.workers)?;
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build()?;
    let began = Instant::now();
    let seen = Rc::<Seen>::default();
    let load = |requests: i64, seed: u64| {
        runtime.block_on(clients(&service, requests, &arguments, seed, &seen))
    };

    // With trouble too: what a first edit, ban or outage makes once is no growth.
    let (done, sent) = beside(
        |ended| trouble(&service, &switch, Done::default(), ended),
        || warm_up(&arguments, &service.state, &load),
    )?;
    std::thread::sleep(CALM);
    let before = held(service.process())?;
    let (done, ()) = beside(
        |ended| trouble(&service, &switch, done, ended),
        || load(arguments.requests - sent, arguments.seed + 1),
    )?;
    std::thread::sleep(CALM);
    let after = held(service.process())?;

    let (requests, seconds) = (seen.requests(), began.elapsed().as_secs());
    println!(
        "{requests} requests in {seconds} s, {} outages",
        done.outages
    );
    let mut report = Report::default();
    compare(&mut report, &service, &seen, &done, &switch)?;
    compare_held(&mut report, before, after, arguments.is_judged());
    let at_rest = service.busy_ms()?;
    report.at_most("processor at rest, ms a second", at_rest, AT_REST_MS);
    bans(&mut report, &service, &done)?;
    // The scrape that was compared is one more line.
    report.equal(
        "lines of the log",
        service.stop()?,
        requests + done.asked + 2,
    );
    if report.fails {
        bail!("not everything holds");
    }
    Ok(())
}

/// What comes before the first look at memory: how many requests it was.
fn warm_up(
    arguments: &Arguments,
    state: &Path,
    load: &impl Fn(i64, u64) -> Result<()>,
) -> Result<i64> {
    let judged = arguments.is_judged();
    let least = if judged { WARM } else { 0 };
    let mut sent = least.max(arguments.requests / WARM_UP);
    load(sent, arguments.seed)?;
    let (mut copies, mut last) = (0, written(state));
    while judged && sent < arguments.requests / 2 && copies < COPIES {
        sent += PIECE;
        load(PIECE, arguments.seed + sent.unsigned_abs())?;
        let now = written(state);
        copies += u32::from(now != last);
        last = now;
    }
    Ok(sent)
}

/// When clients.json was written last.
fn written(state: &Path) -> Option<SystemTime> {
    let file = std::fs::metadata(state.join("clients.json")).ok()?;
    file.modified().ok()
}

async fn clients(
    service: &Service,
    requests: i64,
    arguments: &Arguments,
    seed: u64,
    seen: &Rc<Seen>,
) -> Result<()> {
    let left = Arc::new(AtomicI64::new(requests));
    let local = tokio::task::LocalSet::new();
    let address = service.address;
    let tasks: Vec<_> = (0..arguments.connections)
        .map(|number| {
            let left = Arc::clone(&left);
            let seed = seed.wrapping_mul(1 << 20) + number;
            let client = Client::new(address, seed, Rc::clone(seen));
            local.spawn_local(async move { client.run(&left).await })
        })
        .collect();
    let (process, every) = (service.process(), arguments.look_every);
    local.spawn_local(look(process, requests, every, Arc::clone(&left)));
    let all = async {
        for task in tasks {
            task.await.context("a client panicked")??;
        }
        Ok(())
    };
    local.run_until(all).await
}

/// Says what the service holds after each part of the requests: memory that grows on shows here.
async fn look(process: u32, requests: i64, every: i64, left: Arc<AtomicI64>) -> Result<()> {
    let mut tick = tokio::time::interval(LOOK);
    let mut next = every;
    loop {
        tick.tick().await;
        let done = requests - left.load(Ordering::Relaxed).max(0);
        if done < next {
            continue;
        }
        next = (done / every + 1) * every;
        let now = held(process)?;
        eprintln!(
            "soak: {done} requests: {} KiB resident, {} of them its own, {} files",
            now.kib, now.own_kib, now.files
        );
    }
}

/// The lines of the result.
#[derive(Default)]
struct Report {
    fails: bool,
}

impl Report {
    fn line(&mut self, what: &str, counted: u64, expected: u64, holds: bool) {
        let told = if holds { "holds" } else { "FAILS" };
        println!("{what:44} {counted:>12} {expected:>12}  {told}");
        self.fails |= !holds;
    }

    fn equal(&mut self, what: &str, counted: u64, expected: u64) {
        self.line(what, counted, expected, counted == expected);
    }

    fn at_most(&mut self, what: &str, counted: u64, bound: u64) {
        self.line(what, counted, bound, counted <= bound);
    }
}

/// What is counted as a failure, and as a refusal for a ban or a limit.
const FAILED: &[What] = &[What::Failed, What::Cut, What::Aborted];
const REFUSED: &[What] = &[What::Banned, What::Limited];

/// Every counter beside what the clients saw.
fn compare(
    report: &mut Report,
    service: &Service,
    seen: &Seen,
    done: &Done,
    switch: &Switch,
) -> Result<()> {
    let page = ask::metrics(service.address)?;
    // A series that is not there is no zero.
    let of = |series: &str| ask::metric(&page, series).map_or(u64::MAX, |value| value as u64);
    let rows: [(&[&str], &[What], u64); 6] = [
        (&["passed"], &[What::Passed], 0),
        (&["upstream_error", "client_aborted"], FAILED, 0),
        (&["banned", "rate_limited"], REFUSED, 0),
        (&["unauthorized"], &[What::Unauthorized], 0),
        (&["not_found"], &[What::NotFound], 0),
        (&["answered"], &[What::Metrics], done.asked),
    ];
    println!("{:44} {:>12} {:>12}", "", "the service", "the clients");
    for (actions, what, more) in rows {
        let labels = |name| format!("{{action=\"{name}\",mode=\"enforce\"}}");
        let counts = actions
            .iter()
            .map(|name| of(&format!("waf_requests_total{}", labels(name))));
        let counted = counts.fold(0, u64::saturating_add);
        let saw: u64 = what.iter().map(|what| seen.of(*what)).sum();
        report.equal(&actions.join(" + "), counted, saw + more);
    }
    let bad = of("waf_connection_errors_total{kind=\"bad_request\"}");
    report.equal("bad requests", bad, seen.of(What::Bad));
    // An answer to a client that had gone may have been written and never read.
    let answers = sum(&page, |series| series.starts_with("waf_responses_total{"));
    let (wrote, gone) = (
        switch.answers.load(Ordering::SeqCst),
        seen.of(What::Aborted),
    );
    report.at_most("answers of the application", answers, wrote);
    report.at_most(
        "answers the application wrote, unseen",
        wrote.abs_diff(answers),
        gone,
    );
    for (what, name) in [
        ("events dropped", "waf_events_dropped_total"),
        ("log lines dropped", "waf_log_lines_dropped_total"),
    ] {
        report.equal(what, sum(&page, |series| series.starts_with(name)), 0);
    }
    let failed = sum(&page, |series| {
        series.starts_with("waf_state_writes_total") && !series.contains("outcome=\"ok\"")
    });
    report.equal("state writes that failed", failed, 0);
    Ok(())
}

/// All series of the metrics that are chosen.
fn sum(page: &str, chosen: impl Fn(&str) -> bool) -> u64 {
    let series = page.lines().filter_map(|line| line.rsplit_once(' '));
    let chosen = series.filter(|(name, _)| chosen(name));
    let values = chosen.filter_map(|(_, value)| value.parse::<f64>().ok());
    values.sum::<f64>() as u64
}

/// What the service holds of the system.
fn compare_held(report: &mut Report, before: Held, after: Held, judged: bool) {
    println!("{:44} {:>12} {:>12}", "", "at the end", "at most");
    // What is not judged is bound by itself.
    let most = if judged {
        before.kib + MEMORY_KIB
    } else {
        after.kib
    };
    report.at_most("resident memory, KiB", after.kib, most);
    report.at_most("open files", after.files, before.files);
    report.at_most("threads", after.threads, before.threads);
}

/// Every ban that was acknowledged or saved is there.
fn bans(report: &mut Report, service: &Service, done: &Done) -> Result<()> {
    let answer = ask::operator(service.address, "GET /_waf/bans?active=true", "")?;
    let answer = answer.expect(200)?;
    let text = answer.text();
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
