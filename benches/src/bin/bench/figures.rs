//! Figures that stand for themselves: how long a start takes, how much memory there is, how soon a
//! new ban is seen by the neighbours (BAN-8), and how long an edit of a large bans.json keeps the
//! control loop from answering.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use serde_json::{Value, json};
use weir_benches::ask::{self, connect, forwarded, metric, metrics, request};
use weir_benches::config::Settings;
use weir_benches::load::WARM_UP;
use weir_benches::meter;
use weir_benches::program::Running;
use weir_benches::state::{self, FILES};
use weir_benches::statistics::{Spread, ms};

use crate::features::Overhead;
use crate::scripts::CLIENTS;
use crate::table::Figure;

/// How often a start is timed.
const STARTS: usize = 7;
/// How many bans are made and watched.
const NEW_BANS: usize = 50;
/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// Measures figures that stand for themselves.
type Measure = fn(&Overhead) -> Result<Vec<Figure>>;

/// Those, as `--only` names them.
pub(crate) const FIGURES: [(&str, Measure); 4] = [
    ("start", start),
    ("memory", memory),
    ("bans", new_bans),
    ("edits", edits),
];

/// From the start of the program to the first answer of the application, with full files.
fn start(bench: &Overhead) -> Result<Vec<Figure>> {
    let mut times = Vec::new();
    for _ in 0..STARTS {
        let weir = bench.weir(Settings::default(), &FILES, false)?;
        ask_once(&weir)?;
        times.push(ms(weir.began.elapsed()));
    }
    let Spread { median, most, .. } = Spread::of(times);
    let title = "start with full state to the first answer (median, longest)";
    let value = format!("{median:.0} ms, {most:.0} ms");
    Ok(vec![(title, value, "500 ms")])
}

/// Resident memory of a busy service. That of a connection is what `held_connections.py` measures.
fn memory(bench: &Overhead) -> Result<Vec<Figure>> {
    let some = "memory with 20,000 clients, 10,000 bans, 64 connections";
    let all = "the same with 20,000 lookups and 20,000 counters";
    let rows = [
        (some, &["bans.json", "clients.json"][..], "48 MiB"),
        (all, &FILES[..], "–"),
    ];
    let measure = |(title, files, at_most)| {
        let weir = bench.weir(Settings::default(), files, false)?;
        bench.bench.load.run(weir.address, CLIENTS, 2 * WARM_UP)?;
        let held = (0..64).map(|_| ask_once(&weir));
        let _held = held.collect::<Result<Vec<_>>>()?;
        let memory = meter::memory_mebibytes(weir.id())?;
        Ok((title, format!("{memory:.1} MiB"), at_most))
    };
    rows.into_iter().map(measure).collect()
}

/// One request to the application, on a connection that stays open.
fn ask_once(weir: &Running) -> Result<TcpStream> {
    let mut stream = connect(weir.address)?;
    ask::on(&mut stream, &request("GET /", "", ""))?.expect(200)?;
    Ok(stream)
}

/// From the end of the answer that breaks a limit to the refusal of another client of the netblock,
/// beside 10,000 active bans.
fn new_bans(bench: &Overhead) -> Result<Vec<Figure>> {
    let settings = Settings::default()
        .with("WAF_BYTES_LIMIT_PER_HOUR", 1000)
        .with("WAF_BYTES_COUNT", "request")
        .with("WAF_MAX_BANS", 200_000);
    let weir = bench.weir(settings, &["bans.json"], false)?;
    let mut times = Vec::new();
    for number in 0..NEW_BANS {
        let net = format!("203.0.{number}");
        let mut neighbour = connect(weir.address)?;
        let of = |host| forwarded(&format!("{net}.{host}"));
        let poll = request("GET /", &of(200), "");
        ask::on(&mut neighbour, &poll)?.expect(200)?;
        let breaks = request("POST /", &of(7), &"x".repeat(1001));
        ask::on(&mut connect(weir.address)?, &breaks)?;
        let broken = Instant::now();
        while ask::on(&mut neighbour, &poll)?.target() != "429" {
            if broken.elapsed() > PATIENCE {
                bail!("the neighbour of {net}.7 is not refused");
            }
        }
        times.push(ms(broken.elapsed()));
    }
    let Spread { median, most, .. } = Spread::of(times);
    let title = "a new ban among 10,000 seen by a neighbour, BAN-8 (median, longest of 50)";
    let value = format!("{median:.1} ms, {most:.1} ms");
    Ok(vec![(title, value, "50 ms")])
}

/// The longest answer of the control loop while an edit is taken in: the metrics page is asked for
/// again and again, and the loop gathers it.
fn edits(bench: &Overhead) -> Result<Vec<Figure>> {
    let few = "longest answer of the control loop during an edit of 10,000 bans (and without)";
    let rows = [
        (few, 10_000, "20 ms"),
        ("the same of 100,000 bans", 100_000, "200 ms"),
    ];
    let measure = |(title, bans, at_most)| {
        let settings = Settings::default()
            .with("WAF_MAX_BANS", 200_000)
            .with("WAF_STATE_COUNTER_INTERVAL", "1h");
        let weir = bench.weir(settings, &[], false)?;
        let path = weir.files.path().join("state/bans.json");
        edit(&weir, &path, &document(bans, 0)?)?;
        let quiet = longest(weir.address, |asked| Ok(asked < 200))?;
        // Every entry stays, each with another end.
        let during = edit(&weir, &path, &document(bans, 1)?)?;
        Ok((title, format!("{during:.1} ms ({quiet:.1} ms)"), at_most))
    };
    rows.into_iter().map(measure).collect()
}

/// Saves the file as an editor does, and asks until it is taken: the longest answer in
/// milliseconds.
fn edit(weir: &Running, path: &Path, document: &Value) -> Result<f64> {
    const TAKEN: &str = "waf_state_edits_total{file=\"bans.json\",outcome=\"taken\"}";
    let before = metric(&metrics(weir.address)?, TAKEN)?;
    let aside = path.with_extension("new");
    std::fs::write(&aside, serde_json::to_string_pretty(document)?)?;
    std::fs::rename(&aside, path)?;
    let began = Instant::now();
    // It counts as taken before the control loop has it: the answers after that are those it
    // delays.
    let mut after = 0;
    longest(weir.address, |_| {
        if began.elapsed() > PATIENCE {
            bail!("the edit is not taken");
        }
        after += usize::from(after > 0 || metric(&metrics(weir.address)?, TAKEN)? != before);
        Ok(after < 200)
    })
}

/// The longest time that the metrics took, asked for as long as `goes_on` says.
fn longest(address: SocketAddr, mut goes_on: impl FnMut(usize) -> Result<bool>) -> Result<f64> {
    let (mut longest, mut asked) = (0.0_f64, 0);
    loop {
        let began = Instant::now();
        metrics(address)?;
        longest = longest.max(ms(began.elapsed()));
        asked += 1;
        if !goes_on(asked)? {
            return Ok(longest);
        }
    }
}

/// A bans.json of so many bans for a day and some hours.
fn document(bans: u32, hours: u64) -> Result<Value> {
    let later = Duration::from_secs(86_400 + 3_600 * hours);
    let expires = state::now()?.plus(later);
    let bans: Vec<Value> = (0..bans)
        .map(|number| {
            let netblock = Ipv4Addr::from((100 << 24) + (number << 4));
            json!({"netblock": format!("{netblock}/28"), "ban_expires": expires, "cause": "edit"})
        })
        .collect();
    Ok(json!({"version": 1, "bans": bans}))
}
