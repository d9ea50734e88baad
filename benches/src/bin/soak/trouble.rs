//! What goes wrong meanwhile: outages of the application, and an operator who bans, lifts and edits
//! `bans.json` by hand.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use weir_benches::ask::operator;
use weir_benches::beside::Ended;

use crate::application::Switch;
use crate::service::Service;

/// Between two troubles.
const PAUSE: Duration = Duration::from_secs(2);
/// How long the application is away.
const OUTAGE: Duration = Duration::from_millis(200);

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

/// Makes trouble behind what was `done` before, until the work beside it has ended.
pub(crate) fn trouble(
    service: &Service,
    switch: &Switch,
    mut done: Done,
    ended: &Ended,
) -> Result<Done> {
    let (address, file) = (service.address, service.state.join("bans.json"));
    while !ended.is_now() {
        let round = done.outages;
        let block = |second: u32| format!("100.{second}.{}.{}/32", round / 250 % 250, round % 250);
        // By the endpoint; every other one is lifted again.
        let order = json!({"netblock": block(64), "duration": "permanent", "reason": "soak"});
        operator(address, "POST /_waf/bans", &order.to_string())?.expect(201)?;
        done.asked += 1;
        if round.is_multiple_of(2) {
            let whom = block(64);
            let line = format!("DELETE /_waf/bans/{}", whom.trim_end_matches("/32"));
            operator(address, &line, "")?.expect(200)?;
            done.asked += 1;
        } else {
            done.banned.push(block(64));
        }
        // By hand, every fifth time: read, changed, saved beside and renamed, as editors do.
        if round.is_multiple_of(5) {
            edit(&file, &block(65))?;
            done.banned.push(block(65));
        }
        switch.down.store(true, Ordering::SeqCst);
        std::thread::sleep(OUTAGE);
        switch.down.store(false, Ordering::SeqCst);
        done.outages += 1;
        std::thread::sleep(PAUSE);
    }
    Ok(done)
}

fn edit(file: &Path, netblock: &str) -> Result<()> {
    let mut document: Value = serde_json::from_str(&std::fs::read_to_string(file)?)?;
    let bans = document.get_mut("bans").and_then(Value::as_array_mut);
    bans.context("no bans in bans.json")?
        .push(json!({"netblock": netblock, "ban_expires": "permanent"}));
    let beside = file.with_extension("json.edited");
    std::fs::write(&beside, document.to_string())?;
    Ok(std::fs::rename(&beside, file)?)
}
