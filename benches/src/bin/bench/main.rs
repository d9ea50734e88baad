//! What weir costs, and what it costs others: `cargo run --release -p weir-benches --bin bench --
//! peers|overhead|neighbours|handovers|feeds`.
//!
//! Absolute figures move with the machine, so what is compared takes turns, and every figure that
//! matters is a ratio. Core 0 belongs to the proxy under test, the whole process; core 1 to the
//! load generator (wrk), the application (nginx) and this program.
//!
//! It installs nothing, listens on loopback only, keeps its files in temporary directories, and
//! ends only processes that it started.

use anyhow::Result;
use clap::{Parser, Subcommand};
use weir_benches::program::Programs;

mod cases;
mod database;
mod features;
mod feeds;
mod figures;
mod handovers;
mod measure;
mod neighbours;
mod overhead;
mod peers;
mod proxies;
mod run;
mod scripts;
mod table;

/// Measures weir, and prints tables.
#[derive(Parser)]
#[command(name = "bench")]
struct Arguments {
    #[command(subcommand)]
    what: What,
    #[command(flatten)]
    programs: Programs,
}

#[derive(Subcommand)]
enum What {
    /// weir beside nginx and HAProxy
    Peers(peers::Arguments),
    /// weir without and with each of its features
    Overhead(overhead::Arguments),
    /// Good traffic alone and beside slow connections
    Neighbours(neighbours::Arguments),
    /// Hand-overs under load with full state files; status 1 where a request waits over a second
    Handovers(handovers::Arguments),
    /// Good traffic alone and beside a feed of which another version is taken every few seconds
    Feeds(feeds::Arguments),
}

fn main() -> Result<()> {
    let Arguments { what, programs } = Arguments::parse();
    let told = match &what {
        What::Peers(of) => peers::compare(of, &programs),
        What::Overhead(of) => overhead::compare(of, &programs),
        What::Neighbours(of) => neighbours::compare(of, &programs),
        What::Handovers(of) => handovers::compare(of, &programs),
        What::Feeds(of) => feeds::compare(of, &programs),
    };
    println!("{}", told?);
    Ok(())
}
