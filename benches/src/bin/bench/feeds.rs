//! What the rebuild of a large feed costs others (FEED-6): good traffic at a fixed rate is timed
//! alone, then while a feed gets another version every few seconds; rounds of both take turns. The
//! processor time of the threads that take part is told for each version.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use serde_json::json;
use weir_benches::beside::{Ended, beside};
use weir_benches::program::{Programs, Running, directory, free_port, wait_until};
use weir_benches::{ask, config, meter};

use crate::run::{Good, positive, without_and_with};

/// How long the service may take until a version holds.
const PATIENCE: Duration = Duration::from_secs(60);
/// The thread of the control loop, the one that reads lists, the one that fetches, and the workers.
const THREADS: [&str; 4] = ["weir-control", "weir-files", "weir-feeds", "weir-worker"];

/// Times good traffic alone and beside the rebuilds of a feed.
#[derive(Args)]
#[command(mut_arg("rate", |rate| rate.default_value("2000")))]
#[command(mut_arg("connections", |connections| connections.default_value("16")))]
#[command(mut_arg("seconds", |seconds| seconds.default_value("15")))]
pub(crate) struct Arguments {
    /// Entries of the feed
    #[arg(long, default_value_t = 500_000)]
    entries: u32,
    /// Seconds from one version to the next
    #[arg(long, default_value_t = 3, value_parser = positive::<u64>())]
    every: u64,
    #[command(flatten)]
    good: Good,
    /// Let weir run on the core of the load, too: its threads then have room beside the worker
    #[arg(long)]
    both_cores: bool,
}

/// The table: with the processor time of each of [`THREADS`], in milliseconds.
pub(crate) fn compare(arguments: &Arguments, programs: &Programs) -> Result<String> {
    let good = &arguments.good;
    if good.rounds.seconds <= arguments.every {
        bail!("--every is less than --seconds");
    }
    let application = Running::application(programs)?;
    let service = Service::start(programs, &application, arguments)?;
    let every = Duration::from_secs(arguments.every);
    let (mut versions, mut times) = (0, [0.0; THREADS.len()]);
    let both = without_and_with("feeds", good.rounds.rounds, |is_beside| {
        let before = service.threads()?;
        let change = |ended: &Ended| service.change_each(every, is_beside, ended);
        let (taken, delays) = beside(change, || good.load().run(service.weir.address))?;
        versions += taken;
        for ((time, now), before) in times.iter_mut().zip(service.threads()?).zip(before) {
            let more = now - before;
            *time += if is_beside { more } else { -more };
        }
        Ok(delays)
    })?;
    let cores = match arguments.both_cores {
        true => "both cores",
        false => "one core",
    };
    let what = format!(
        "a feed of {} entries, {versions} versions taken, one every {} s; weir on {cores}",
        arguments.entries, arguments.every
    );
    let mut text = good.table(&what, &both);
    text.push_str("processor time, ms a version, beside less alone\n");
    for (name, time) in THREADS.iter().zip(times) {
        let each = time / f64::from(versions.max(1));
        let _ = writeln!(text, "{name:14} {each:8.1}");
    }
    Ok(text)
}

/// The service, and the application that publishes its feed.
struct Service {
    weir: Running,
    /// Its admin listener: the public port has no feeds.
    admin: SocketAddr,
    /// The file that is published, and what it holds in turn.
    file: PathBuf,
    versions: [String; 2],
}

impl Service {
    fn start(programs: &Programs, application: &Running, arguments: &Arguments) -> Result<Self> {
        let directory = directory()?;
        let state = directory.path().join("state");
        std::fs::create_dir(&state)?;
        let url = format!("http://{}/drop", application.address);
        let feed = json!({"name": "drop", "url": url, "use": "deny"});
        let rules = json!({"version": 1, "feeds": [feed]});
        std::fs::write(state.join("rules.json"), rules.to_string())?;
        let admin = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?));
        let settings = config::weir(directory.path(), application.address)
            .with("WAF_ADMIN_LISTEN", admin)
            .with("WAF_ADMIN_TOKEN", ask::TOKEN)
            .with("WAF_TRUSTED_PROXIES", "127.0.0.1");
        let cores = 1 + usize::from(arguments.both_cores);
        let versions = [9, 11].map(|first| list(first, arguments.entries));
        let file = application.files.path().join("drop");
        let [first, _] = &versions;
        std::fs::write(&file, first)?;
        let weir = Running::weir(cores, programs, settings, directory)?;
        let service = Self {
            weir,
            admin,
            file,
            versions,
        };
        service.wait_for_another(None)?;
        Ok(service)
    }

    /// Changes the feed again and again, or never, until the work beside it has ended: how often.
    fn change_each(&self, every: Duration, is_wanted: bool, ended: &Ended) -> Result<u32> {
        let mut versions = 0;
        while is_wanted && !ended.is_within(every) {
            self.change()?;
            versions += 1;
        }
        Ok(versions)
    }

    /// Has another version fetched, and waits until it holds.
    fn change(&self) -> Result<()> {
        let held = self.taken()?;
        let [first, second] = &self.versions;
        let is_first = std::fs::read_to_string(&self.file)? == *first;
        std::fs::write(&self.file, if is_first { second } else { first })?;
        ask::operator(self.admin, "POST /v1/feeds/drop/fetch", "")?.expect(202)?;
        self.wait_for_another(held.as_deref())
    }

    /// Waits for a version other than the one that was taken at this time.
    fn wait_for_another(&self, held: Option<&str>) -> Result<()> {
        wait_until("another version of the feed", PATIENCE, || {
            // Each question is work for the control loop, too.
            std::thread::sleep(Duration::from_millis(200));
            let taken = self.taken()?;
            Ok(taken.is_some() && taken.as_deref() != held)
        })
    }

    /// When the version was taken that holds.
    fn taken(&self) -> Result<Option<String>> {
        let answer = ask::operator(self.admin, "GET /v1/feeds", "")?.expect(200)?;
        Ok(answer.at("/feeds/0/taken")?.as_str().map(str::to_owned))
    }

    fn threads(&self) -> Result<[f64; THREADS.len()]> {
        let mut times = [0.0; THREADS.len()];
        for (time, name) in times.iter_mut().zip(THREADS) {
            *time = meter::thread_nanoseconds(self.weir.id(), name)? as f64 / 1e6;
        }
        Ok(times)
    }
}

/// So many addresses of a /8, none next to another.
fn list(first: u32, entries: u32) -> String {
    let line = |number: u32| {
        let address = first << 24 | ((number * 33) & 0x00ff_ffff);
        format!("{}\n", Ipv4Addr::from(address))
    };
    (0..entries).map(line).collect()
}
