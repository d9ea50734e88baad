//! Hand-overs under load with full state files (RESTART-1).
//!
//! Four generators ask one request after the other. Before each hand-over a ban is made and
//! acknowledged, and a client asks three times; afterwards every ban of the run must refuse, and
//! the three requests must be counted. A request that failed is a failure, and so is one that
//! waited for more than a second.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::{Value, json};
use weir_benches::beside::{Ended, beside};
use weir_benches::message::Message;
use weir_benches::program::{Programs, Running, directory, wait_until};
use weir_benches::state;
use weir_benches::statistics::{median, spread};
use weir_benches::{ask, config};

use crate::traffic::Traffic;

/// How long a request may wait for a hand-over.
const LONGEST_MS: f64 = 1000.0;
/// How long a hand-over, or an end, may take.
const PATIENCE: Duration = Duration::from_secs(120);
/// Clients of a run that are no generators, and room for those that ask for the answers here.
const OTHERS: usize = 10;
const TOKEN: &str = "Handovers-admin-token-0123456789abcdef";

/// Times hand-overs under load with full state files.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Hand-overs
    #[arg(long, default_value_t = 50)]
    rounds: usize,
    /// Bans in bans.json
    #[arg(long, default_value_t = 100_000)]
    bans: usize,
    /// Netblocks in a list of rules.json
    #[arg(long, default_value_t = 100_000)]
    netblocks: usize,
    /// Connections that ask all the time
    #[arg(long, default_value_t = 4)]
    generators: usize,
    /// Clients that they ask for, one after the other
    #[arg(long, default_value_t = 4)]
    clients: usize,
}

/// What is told.
pub(crate) fn compare(arguments: &Arguments, programs: &Programs) -> Result<String> {
    if arguments.rounds == 0 || arguments.generators == 0 || arguments.clients == 0 {
        bail!("--rounds, --generators and --clients are at least 1");
    }
    let place = directory()?;
    let application = Running::application(programs, place.path())?;
    let service = Service::start(programs, &application, arguments)?;
    let (address, before) = (service.weir.address, service.bans()?);
    let traffic = Traffic::new(address, arguments.clients);
    let (mut waits, mut takes) = (Vec::new(), Vec::new());
    let rounds = || {
        for round in 0..arguments.rounds {
            let took = service
                .round(round, before)
                .with_context(|| format!("hand-over {round}"))?;
            takes.push(took.as_secs_f64() * 1000.0);
            waits.push(traffic.longest().as_secs_f64() * 1000.0);
        }
        Ok(())
    };
    let load = |ended: &Ended| {
        traffic.run(arguments.generators, ended);
        Ok(())
    };
    beside(load, rounds)?;
    let (requests, failed) = (traffic.requests.into_inner(), traffic.failed.into_inner());
    let bans = service.bans()?;
    if bans < arguments.bans + arguments.rounds {
        bail!("bans are lost");
    }
    let (least, longest) = spread(&waits);
    let told = format!(
        "{} bans, 20,000 clients, lookups and counters, {} netblocks; {} hand-overs, {} generators\n\
         {requests} requests, {failed} failed; {bans} bans at the end, none lost; no count lost\n\
         longest wait of a hand-over: median {:.0} ms, least {least:.0} ms, longest {longest:.0} ms\n\
         from the signal until the new process serves: median {:.0} ms",
        arguments.bans,
        arguments.netblocks,
        arguments.rounds,
        arguments.generators,
        median(waits),
        median(takes)
    );
    if failed > 0 {
        bail!("requests have failed\n{told}");
    }
    if longest > LONGEST_MS {
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
    let netblock = |number| std::net::Ipv4Addr::from((112 << 24) + (number as u32) * 256);
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
            .with("WAF_ADMIN_TOKEN", TOKEN)
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
        let id = match last.as_ref().and_then(|line| line.get("process")?.as_u64()) {
            Some(id) => i32::try_from(id)?,
            None => i32::try_from(self.weir.process.0.id())?,
        };
        Pid::from_raw(id).context("no process id")
    }

    fn operator(&self, line: &str, body: &str) -> Result<Message> {
        ask::operator(self.weir.address, TOKEN, line, body)
    }

    /// Asks as a client, and expects this status.
    fn ask(&self, client: &str, status: u16) -> Result<()> {
        let fields = format!("X-Forwarded-For: {client}\r\n");
        let answer = ask::once(self.weir.address, "GET /", &fields, "")?.expect(status);
        answer.map(drop).with_context(|| client.to_owned())
    }

    /// Requests of a client that were let through.
    fn passed(&self, client: &str) -> Result<u64> {
        let answer = self.operator(&format!("GET /_waf/clients/{client}"), "")?;
        if answer.target() == "404" {
            return Ok(0);
        }
        let answer: Value = serde_json::from_slice(&answer.body)?;
        let passed = answer.pointer("/client/passed").and_then(Value::as_u64);
        Ok(passed.unwrap_or(0))
    }

    /// Bans that it holds.
    fn bans(&self) -> Result<usize> {
        let answer = self.operator("GET /_waf/bans", "")?.expect(200)?;
        let answer: Value = serde_json::from_slice(&answer.body)?;
        let bans = answer.get("bans").and_then(Value::as_array);
        Ok(bans.context("no list of bans")?.len())
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
