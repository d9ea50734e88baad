//! What goes wrong meanwhile: outages of the application, and an operator who bans, lifts and edits
//! `bans.json` by hand.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::application::Switch;
use crate::service::operator;

/// Between two troubles.
const PAUSE: Duration = Duration::from_secs(2);
/// How long the application is away.
const OUTAGE: Duration = Duration::from_millis(200);

/// The thread that makes it.
pub(crate) struct Trouble {
    stopping: Arc<AtomicBool>,
    thread: JoinHandle<Result<Done>>,
}

/// What was done.
#[derive(Debug, Default)]
pub(crate) struct Done {
    /// Requests of the operator that were answered.
    pub(crate) asked: u64,
    /// Netblocks that were banned, by either way, and not lifted.
    pub(crate) banned: Vec<String>,
    /// How often the application was away: once a round.
    pub(crate) outages: u32,
}

impl Trouble {
    /// Goes on behind what was `done` before.
    pub(crate) fn start(address: SocketAddr, state: &Path, switch: Switch, done: Done) -> Self {
        let stopping = Arc::new(AtomicBool::new(false));
        let (stop, file) = (Arc::clone(&stopping), state.join("bans.json"));
        let thread = std::thread::spawn(move || trouble(address, &file, &switch, &stop, done));
        Self { stopping, thread }
    }

    pub(crate) fn stop(self) -> Result<Done> {
        self.stopping.store(true, Ordering::SeqCst);
        let done = self.thread.join();
        done.map_err(|_| anyhow::anyhow!("the troubles panicked"))?
    }
}

fn trouble(
    address: SocketAddr,
    file: &PathBuf,
    switch: &Switch,
    stop: &AtomicBool,
    mut done: Done,
) -> Result<Done> {
    for round in done.outages.. {
        if stop.load(Ordering::SeqCst) {
            break;
        }
        let block = |second: u32| format!("100.{second}.{}.{}/32", round / 250 % 250, round % 250);
        // By the endpoint; every other one is lifted again.
        let order = json!({"netblock": block(64), "duration": "permanent", "reason": "soak"});
        operator(address, "POST /_waf/bans", &order.to_string())?.expect(201)?;
        done.asked += 1;
        if round % 2 == 0 {
            let whom = block(64);
            let line = format!("DELETE /_waf/bans/{}", whom.trim_end_matches("/32"));
            operator(address, &line, "")?.expect(200)?;
            done.asked += 1;
        } else {
            done.banned.push(block(64));
        }
        // By hand, every fifth time: read, changed, saved beside and renamed, as editors do.
        if round % 5 == 0 {
            edit(file, &block(65))?;
            done.banned.push(block(65));
        }
        switch.set_down(true);
        std::thread::sleep(OUTAGE);
        switch.set_down(false);
        done.outages += 1;
        std::thread::sleep(PAUSE);
    }
    Ok(done)
}

fn edit(file: &PathBuf, netblock: &str) -> Result<()> {
    let mut document: Value = serde_json::from_str(&std::fs::read_to_string(file)?)?;
    let bans = document.get_mut("bans").and_then(Value::as_array_mut);
    bans.context("no bans in bans.json")?
        .push(json!({"netblock": netblock, "ban_expires": "permanent"}));
    let beside = file.with_extension("json.edited");
    std::fs::write(&beside, document.to_string())?;
    Ok(std::fs::rename(&beside, file)?)
}
