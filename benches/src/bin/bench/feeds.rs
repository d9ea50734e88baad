//! What the rebuild of a large feed costs others (FEED-6): good traffic at a fixed rate is timed
//! alone, then while a feed gets another version every few seconds; rounds of both take turns. The
//! processor time of the threads that take part is told for each version.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::{Value, json};
use weir_benches::beside::{Ended, beside};
use weir_benches::paced::Paced;
use weir_benches::program::{LOAD_CORE, PROXY_CORE, Programs, Running, directory, free_port};
use weir_benches::statistics::{median, quantile};
use weir_benches::{ask, config, meter};

/// How long the service may take until a version holds.
const PATIENCE: Duration = Duration::from_secs(60);
const TOKEN: &str = "Feeds-admin-token-0123456789abcdefgh";
/// The thread of the control loop, the one that reads lists, the one that fetches, and the workers.
const THREADS: [&str; 4] = ["weir-control", "weir-files", "weir-feeds", "weir-worker"];

/// Times good traffic alone and beside the rebuilds of a feed.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Entries of the feed
    #[arg(long, default_value_t = 500_000)]
    entries: u32,
    /// Seconds from one version to the next
    #[arg(long, default_value_t = 3)]
    every: u64,
    /// Good requests a second
    #[arg(long, default_value_t = 2000)]
    rate: u32,
    /// Connections of the good traffic
    #[arg(long, default_value_t = 16)]
    connections: u32,
    /// Seconds a measurement lasts
    #[arg(long, default_value_t = 15)]
    seconds: u64,
    /// Rounds of both
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Let weir run on the core of the load, too: its threads then have room beside the worker
    #[arg(long)]
    both_cores: bool,
}

/// One measurement.
struct Measured {
    /// How long answers took, microseconds, in order.
    delays: Vec<f64>,
    /// Processor time of each of [`THREADS`], milliseconds.
    threads: [f64; THREADS.len()],
    /// Versions that were taken.
    versions: usize,
}

/// The table.
pub(crate) fn compare(arguments: &Arguments, programs: &Programs) -> Result<String> {
    if arguments.rounds == 0 || arguments.connections == 0 || arguments.rate == 0 {
        bail!("--rounds, --connections and --rate are at least 1");
    }
    if arguments.every == 0 || arguments.seconds <= arguments.every {
        bail!("--every is at least 1, and less than --seconds");
    }
    let place = directory()?;
    let application = Running::application(programs, place.path())?;
    let service = Service::start(programs, &application, arguments)?;
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    for round in 1..=arguments.rounds {
        eprintln!("bench: feeds, round {round} of {}", arguments.rounds);
        alone.push(service.measure(arguments, false)?);
        beside.push(service.measure(arguments, true)?);
    }
    Ok(table(arguments, &alone, &beside))
}

fn table(arguments: &Arguments, alone: &[Measured], beside: &[Measured]) -> String {
    let versions: usize = beside.iter().map(|measured| measured.versions).sum();
    let mut text = format!(
        "{} requests a second on {} connections, medians of {} rounds of {} s\n\
         a feed of {} entries, {versions} versions taken, one every {} s; weir on {}\n\
         ms           alone    beside   ratio\n",
        arguments.rate,
        arguments.connections,
        arguments.rounds,
        arguments.seconds,
        arguments.entries,
        arguments.every,
        if arguments.both_cores {
            "both cores"
        } else {
            "one core"
        },
    );
    for (name, of_thousand) in [
        ("p50", 500),
        ("p99", 990),
        ("p99.9", 999),
        ("longest", 1000),
    ] {
        let [alone, beside] = [alone, beside].map(|all| {
            let each = all.iter();
            median(each.map(|one| quantile(&one.delays, of_thousand)).collect()) / 1e3
        });
        let _ = writeln!(
            text,
            "{name:8} {alone:9.3} {beside:9.3} {:7.2}",
            beside / alone
        );
    }
    text.push_str("processor time, ms a version, beside less alone\n");
    for (thread, name) in THREADS.iter().enumerate() {
        let sum = |all: &[Measured]| -> f64 {
            all.iter().filter_map(|one| one.threads.get(thread)).sum()
        };
        let each = (sum(beside) - sum(alone)) / versions.max(1) as f64;
        let _ = writeln!(text, "{name:14} {each:8.1}");
    }
    text
}

/// The service, and who publishes its feed.
struct Service {
    weir: Running,
    /// Its admin listener: the public port has no feeds.
    admin: SocketAddr,
}

impl Service {
    fn start(programs: &Programs, application: &Running, arguments: &Arguments) -> Result<Self> {
        let publisher = publish(arguments.entries)?;
        let directory = directory()?;
        let state = directory.path().join("state");
        std::fs::create_dir(&state)?;
        let rules = json!({"version": 1, "feeds": [
            {"name": "drop", "url": format!("http://{publisher}/drop"), "use": "deny"}]});
        std::fs::write(state.join("rules.json"), rules.to_string())?;
        let mut settings = config::weir(directory.path(), application.address);
        let admin = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?));
        settings.extend([
            ("WAF_ADMIN_LISTEN", admin.to_string()),
            ("WAF_ADMIN_TOKEN", TOKEN.to_owned()),
            ("WAF_TRUSTED_PROXIES", "127.0.0.1".to_owned()),
        ]);
        let cores: &[usize] = match arguments.both_cores {
            true => &[PROXY_CORE, LOAD_CORE],
            false => &[PROXY_CORE],
        };
        let service = Self {
            weir: Running::weir(cores, programs, settings, directory)?,
            admin,
        };
        service.wait_for_another(None)?;
        Ok(service)
    }

    /// The load, alone or while the feed changes.
    fn measure(&self, arguments: &Arguments, changes: bool) -> Result<Measured> {
        let load = Paced {
            rate: f64::from(arguments.rate),
            connections: arguments.connections,
            time: Duration::from_secs(arguments.seconds),
        };
        let before = self.threads()?;
        let change = |ended: &Ended| {
            let mut versions = 0;
            let pause = Duration::from_secs(arguments.every);
            while changes && !ended.is_within(pause) {
                self.change()?;
                versions += 1;
            }
            Ok(versions)
        };
        let (versions, mut delays) = beside(change, || load.each(self.weir.address))?;
        delays.sort_by(f64::total_cmp);
        let mut threads = self.threads()?;
        for (now, before) in threads.iter_mut().zip(before) {
            *now -= before;
        }
        Ok(Measured {
            delays,
            threads,
            versions,
        })
    }

    /// Has another version fetched, and waits until it holds.
    fn change(&self) -> Result<()> {
        let held = self.taken()?;
        ask::operator(self.admin, TOKEN, "POST /v1/feeds/drop/fetch", "")?.expect(202)?;
        self.wait_for_another(held.as_deref())
    }

    /// Waits for a version other than the one that was taken at this time.
    fn wait_for_another(&self, held: Option<&str>) -> Result<()> {
        let began = Instant::now();
        loop {
            let taken = self.taken()?;
            if taken.is_some() && taken.as_deref() != held {
                return Ok(());
            }
            if began.elapsed() > PATIENCE {
                bail!("no other version of the feed holds after {PATIENCE:?}");
            }
            // Each question is work for the control loop, too.
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// When the version was taken that holds.
    fn taken(&self) -> Result<Option<String>> {
        let answer = ask::operator(self.admin, TOKEN, "GET /v1/feeds", "")?.expect(200)?;
        let answer: Value = serde_json::from_str(&answer.body)?;
        let taken = answer.pointer("/feeds/0/taken").and_then(Value::as_str);
        Ok(taken.map(str::to_owned))
    }

    fn threads(&self) -> Result<[f64; THREADS.len()]> {
        let mut times = [0.0; THREADS.len()];
        for (time, name) in times.iter_mut().zip(THREADS) {
            *time = meter::thread_nanoseconds(self.weir.process.0.id(), name)? as f64 / 1e6;
        }
        Ok(times)
    }
}

/// Publishes a list of so many addresses, another one for each request, as long as the program
/// lasts.
fn publish(entries: u32) -> Result<SocketAddr> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).context("no port for the publisher")?;
    let address = listener.local_addr()?;
    let versions = [0x0b00_0000, 0x0c00_0000].map(|first: u32| {
        // Addresses of a /8, none next to another.
        let line = |number: u32| {
            let address = first | ((number * 33) & 0x00ff_ffff);
            format!("{}\n", Ipv4Addr::from(address))
        };
        (0..entries).map(line).collect::<String>()
    });
    std::thread::spawn(move || {
        let both = versions.iter().cycle();
        for (stream, version) in listener.incoming().zip(both) {
            if let Err(error) = stream
                .map_err(Into::into)
                .and_then(|stream| serve(stream, version))
            {
                eprintln!("bench: the publisher: {error:#}");
            }
        }
    });
    Ok(address)
}

/// One request on one connection.
fn serve(mut stream: TcpStream, version: &str) -> Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    while lines
        .next()
        .transpose()?
        .is_some_and(|line| !line.is_empty())
    {}
    let length = version.len();
    write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    )?;
    Ok(stream.write_all(version.as_bytes())?)
}
