//! Limits without bans, and rules.json, in enforce and observe mode (RULE).

use std::path::Path;
use std::sync::mpsc;

use serde_json::Value;

use crate::support::application::{After, Application, statuses};
use crate::support::raw_client::{Response, request};
use crate::support::wait_until;
use crate::support::weir::{StateDir, Weir, state_dir};

mod application;
mod edits;
mod jails_and_traps;
mod known;
mod limits;
mod limits_without_bans;
mod lists;
mod matching;
mod migrating;
mod other_sites;
mod shared;
mod spelling;

/// A service with this rules.json, and the directory that it lies in.
#[track_caller]
fn start(application: &Application, rules: &str, settings: &[(&str, &str)]) -> (Weir, StateDir) {
    let state = state_dir();
    std::fs::write(state.path().join("rules.json"), rules).expect("writes rules.json");
    let weir = Weir::start_at(application.address(), &state, settings);
    (weir, state)
}

/// Saves a file as most editors do: a new one in the place of the old one.
#[track_caller]
fn save(directory: &Path, name: &str, text: &str) {
    let new = directory.join(format!(".{name}.new"));
    std::fs::write(&new, text).expect("writes");
    std::fs::rename(new, directory.join(name)).expect("renames");
}

/// An application that answers `/slow` when it is told to.
fn waiting() -> (Application, mpsc::Sender<()>) {
    let (tell, told) = mpsc::channel::<()>();
    let told = std::sync::Mutex::new(told);
    let application = Application::start(move |exchange| {
        exchange.read_body();
        if exchange.request.target == "/slow" {
            let _ = told.lock().unwrap().recv();
        }
        exchange.answer(200, &[], b"");
        After::KeepAlive
    });
    (application, tell)
}

/// A request of a method, with another host than the usual one.
#[track_caller]
fn send(weir: &Weir, method: &str, target: &str, client: &str, host: Option<&str>) -> Response {
    let mut fields = vec![("X-Forwarded-For", client)];
    fields.extend(host.map(|host| ("Host", host)));
    weir.send(&request(method, target, &fields, None))
}

/// The ban of a cause, once it is there.
#[track_caller]
fn ban_of(weir: &Weir, cause: &str) -> Value {
    let found = || weir.bans().into_iter().find(|ban| ban["cause"] == cause);
    crate::support::wait_for(&format!("a ban of {cause}"), found)
}

/// Waits until the rules that were saved are in force.
#[track_caller]
fn wait_for_edits(weir: &Weir, outcome: &str, count: f64) {
    wait_until("the edit", || weir.edits("rules.json", outcome) >= count);
}

/// How often a rule was hit.
#[track_caller]
fn hits(weir: &Weir, rule: &str, kind: &str) -> Option<f64> {
    weir.metric(&format!(
        "waf_rule_hits_total{{rule=\"{rule}\",kind=\"{kind}\"}}"
    ))
}
