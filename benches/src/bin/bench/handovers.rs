//! Hand-overs under load with full state files (RESTART-1).
//!
//! Four generators ask one request after the other. Before each hand-over a ban is made and
//! acknowledged, and a client asks three times; afterwards every ban of the run must refuse, and
//! the three requests must be counted. A request that failed is a failure, and so is one that
//! waited for more than a second.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::json;
use weir_benches::beside::{Ended, beside};
use weir_benches::message::Message;
use weir_benches::program::{Programs, Running, directory, wait_until};
use weir_benches::state;
use weir_benches::statistics::{Spread, median, ms};
use weir_benches::{ask, config};

use crate::run::positive;

/// How long a request may wait for a hand-over.
const LONGEST_MS: f64 = 1000.0;
/// How long a hand-over, or an end, may take.
const PATIENCE: Duration = Duration::from_secs(120);
/// Failures that are told.
const MAX_TOLD: u64 = 3;
/// Clients of a run that are no generators, and room for those that ask for the answers here.
const OTHERS: usize = 10;

/// Times hand-overs under load with full state files.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Hand-overs
    #[arg(long, default_value_t = 50, value_parser = positive::<usize>())]
    rounds: usize,
    /// Bans in bans.json
    #[arg(long, default_value_t = 100_000)]
    bans: usize,
    /// Netblocks in a list of rules.json
    #[arg(long, default_value_t = 100_000)]
    netblocks: usize,
    /// Connections that ask all the time
    #[arg(long, default_value_t = 4, value_parser = positive::<usize>())]
    generators: usize,
    /// Clients that they ask for, one after the other
    #[arg(long, default_value_t = 4, value_parser = positive::<usize>())]
    clients: usize,
}

/// What is told.
pub(crate) fn compare(arguments: &Arguments, programs: &Programs) -> Result<String> {
    let application = Running::application(programs)?;
    let service = Service::start(programs, &application, arguments)?;
    let (address, before) = (service.weir.address, service.bans()?);
    let traffic = Traffic::default();
    let (mut waits, mut takes) = (Vec::new(), Vec::new());
    let rounds = || {
        for round in 0..arguments.rounds {
            let took = service.round(round, before);
            takes.push(ms(took.with_context(|| format!("hand-over {round}"))?));
            waits.push(ms(traffic.longest()));
        }
        Ok(())
    };
    let load = |ended: &Ended| {
        traffic.run(address, arguments, ended);
        Ok(())
    };
    beside(load, rounds)?;
    let (requests, failed) = (traffic.requests.into_inner(), traffic.failed.into_inner());
    let bans = service.bans()?;
    if bans < arguments.bans + arguments.rounds {
        bail!("bans are lost");
    }
    let waits = Spread::of(waits);
    let told = format!(
        "{} bans, 20,000 clients, lookups and counters, {} netblocks; {} hand-overs, {} generators\n\
         {requests} requests, {failed} failed; {bans} bans at the end, none lost; no count lost\n\
         longest wait of a hand-over: median {:.0} ms, least {:.0} ms, longest {:.0} ms\n\
         from the signal until the new process serves: median {:.0} ms",
        arguments.bans,
        arguments.netblocks,
        arguments.rounds,
        arguments.generators,
        waits.median,
        waits.least,
        waits.most,
        median(takes)
    );
    if failed > 0 {
        bail!("requests have failed\n{told}");
    }
    if waits.most > LONGEST_MS {
        bail!("a request waited for more than a second\n{told}");
    }
    Ok(told)
}

/// Whom a round bans.
fn made(round: usize) -> String {
    format!("198.18.{}.{}", round / 250, round % 250 + 1)
}

/// A list of so many netblocks that nobody here is in.
fn write_rules(state: &Path, netblocks: usize) -> Result<()> {
    let netblock = |number| Ipv4Addr::from((112 << 24) + (number as u32) * 256);
    let lines: String = (0..netblocks)
        .map(|number| format!("{}/24\n", netblock(number)))
        .collect();
    std::fs::write(state.join("drop.txt"), lines)?;
    let rules = json!({"version": 1, "deny": [{"file": "drop.txt"}]});
    Ok(std::fs::write(state.join("rules.json"), rules.to_string())?)
}

/// The service whose process changes. A successor is no child of ours.
struct Service {
    weir: Running,
}

impl Service {
    fn start(programs: &Programs, application: &Running, arguments: &Arguments) -> Result<Self> {
        let directory = directory()?;
        let state = directory.path().join("state");
        state::write(&state, arguments.bans)?;
        write_rules(&state, arguments.netblocks)?;
        let most = arguments.bans + arguments.rounds + OTHERS;
        let settings = config::weir(directory.path(), application.address)
            .with("WAF_WORKERS", 2)
            .with("WAF_TRUSTED_PROXIES", "127.0.0.1")
            .with("WAF_ADMIN_TOKEN", ask::TOKEN)
            .with("WAF_ANOMALY_CLIENT_REQUESTS_PER_HOUR", 1_000_000_000)
            .with("WAF_MAX_BANS", most);
        let weir = Running::weir(2, programs, settings, directory)?;
        Ok(Self { weir })
    }

    /// One hand-over: how long it took from the signal on.
    fn round(&self, round: usize, before: usize) -> Result<Duration> {
        let netblock = format!("{}/32", made(round));
        let order = json!({"netblock": netblock, "duration": "permanent", "reason": "r"});
        // Acknowledged, on disk or, on a slow disk, soon.
        self.operator("POST /_waf/bans", &order.to_string())?
            .expect(201)?;
        let counted = format!("192.0.2.{}", round % 250 + 1);
        let passed = self.passed(&counted)?;
        for _ in 0..3 {
            self.ask(&counted, 200)?;
        }
        let began = Instant::now();
        self.hand_over()?;
        let took = began.elapsed();
        for earlier in 0..=round {
            self.ask(&made(earlier), 429)?;
        }
        // Every thousandth of those that were there before.
        for number in (0..before).step_by(1000) {
            self.ask(&state::banned(number), 429)?;
        }
        let after = self.passed(&counted)?;
        if after != passed + 3 {
            bail!("{counted} asked {passed} and three times, and {after} are counted");
        }
        Ok(took)
    }

    /// From the signal until the new process serves; the old one may say last who takes over.
    fn hand_over(&self) -> Result<()> {
        let count = |message| self.weir.said(message).len();
        let (serves, given) = (count("listening"), count("handing over"));
        kill_process(self.process()?, Signal::USR2)?;
        wait_until("a new process that serves", PATIENCE, || {
            Ok(count("listening") > serves && count("handing over") > given)
        })
    }

    /// The process that serves now.
    fn process(&self) -> Result<Pid> {
        let last = self.weir.said("handing over").pop();
        let successor = last.and_then(|line| line.get("process")?.as_u64());
        let id = successor.unwrap_or_else(|| self.weir.id().into());
        Pid::from_raw(i32::try_from(id)?).context("no process id")
    }

    fn operator(&self, line: &str, body: &str) -> Result<Message> {
        ask::operator(self.weir.address, line, body)
    }

    /// Asks as a client, and expects this status.
    fn ask(&self, client: &str, status: u16) -> Result<()> {
        let answer = ask::once(self.weir.address, "GET /", &ask::forwarded(client), "")?;
        answer
            .expect(status)
            .map(drop)
            .with_context(|| client.to_owned())
    }

    /// Requests of a client that were let through.
    fn passed(&self, client: &str) -> Result<u64> {
        let answer = self.operator(&format!("GET /_waf/clients/{client}"), "")?;
        if answer.target() == "404" {
            return Ok(0);
        }
        Ok(answer.at("/client/passed")?.as_u64().unwrap_or(0))
    }

    /// Bans that it holds.
    fn bans(&self) -> Result<usize> {
        let bans = self.operator("GET /_waf/bans", "")?.at("/bans")?;
        Ok(bans.as_array().context("no list of bans")?.len())
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let Ok(last) = self.process() else { return };
        let _ = kill_process(last, Signal::TERM);
        let _ = wait_until("its end", PATIENCE, || {
            // The first is a child of ours, and is there until it is waited for.
            let _ = self.weir.process.0.try_wait();
            Ok(test_kill_process(last).is_err())
        });
    }
}

/// Connections that ask all the time, and what they have seen.
#[derive(Default)]
struct Traffic {
    requests: AtomicU64,
    failed: AtomicU64,
    /// Microseconds of the longest wait since it was asked for.
    longest: AtomicU64,
}

impl Traffic {
    /// Asks on every connection until the work beside it has ended.
    fn run(&self, address: SocketAddr, arguments: &Arguments, ended: &Ended) {
        std::thread::scope(|scope| {
            for _ in 0..arguments.generators {
                scope.spawn(|| self.ask(address, arguments.clients, ended));
            }
        });
    }

    /// The longest wait since the last question.
    fn longest(&self) -> Duration {
        Duration::from_micros(self.longest.swap(0, Ordering::Relaxed))
    }

    /// One connection after the other, for clients of the full state files in turn.
    fn ask(&self, address: SocketAddr, clients: usize, ended: &Ended) {
        let mut kept = None;
        while !ended.is_now() {
            let number = self.requests.fetch_add(1, Ordering::Relaxed);
            let began = Instant::now();
            if let Err(error) = request(address, number as usize % clients, &mut kept) {
                if self.failed.fetch_add(1, Ordering::Relaxed) < MAX_TOLD {
                    eprintln!("bench: a request failed: {error:#}");
                }
                kept = None;
            }
            let took = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
            self.longest.fetch_max(took, Ordering::Relaxed);
        }
    }
}

/// One request, on the connection that is kept or on a new one.
fn request(address: SocketAddr, client: usize, kept: &mut Option<TcpStream>) -> Result<()> {
    let mut stream = kept.take().map_or_else(|| ask::connect(address), Ok)?;
    let request = ask::request("GET /", &ask::forwarded(&state::client(client)), "");
    let answer = ask::on(&mut stream, &request)?.expect(200)?;
    if !answer.head.contains("connection: close") {
        *kept = Some(stream);
    }
    Ok(())
}
