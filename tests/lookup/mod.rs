//! Who a client is, as an operator, an application and a lookup service see it (LOOKUP, CHECK-2,
//! LIMIT-4). The addresses are public ones, because private and documentation ranges are never
//! looked up; nothing leaves the machine.

mod countries;
mod files;
mod percents;
mod service;
mod start;

use std::path::{Path, PathBuf};

use crate::support::application::Application;
use crate::support::wait_until;
use crate::support::weir::{StateDir, Weir, state_dir};

const GERMANY: &str = r#"{"ip":"x","country_code":"DE","asn":64496,"organization_name":"Example"}"#;
const CLIENT: &str = "81.2.69.7";

fn start(application: &Application, settings: &[(&'static str, String)]) -> Weir {
    start_on(application, &state_dir(), settings)
}

#[track_caller]
fn start_on(application: &Application, state: &StateDir, settings: &[(&str, String)]) -> Weir {
    let settings: Vec<(&str, &str)> = settings
        .iter()
        .map(|(name, value)| (*name, &**value))
        .collect();
    Weir::start_at(application.address(), state, &settings)
}

#[track_caller]
fn lookups(weir: &Weir, outcome: &str) -> f64 {
    let series = format!("waf_lookups_total{{outcome=\"{outcome}\"}}");
    weir.metric(&series)
        .unwrap_or_else(|| panic!("no {series}"))
}

#[track_caller]
fn wait_for_lookups(weir: &Weir, outcome: &str, count: f64) {
    wait_until(&format!("{count} lookups {outcome}"), || {
        lookups(weir, outcome) == count
    });
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(name)
}
