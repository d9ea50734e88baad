//! `weir alerts`: the newest alerts, one line each. `weir top` shows the same lines.

use std::process::ExitCode;

use http::Method;
use serde_json::{Value, json};
use weir_controlplane::offline::Offline;
use weir_shared::api::alerts::{Alert, AlertList};

use super::ask::{Asked, Asking, Place, typed};
use super::common::{finish, out, print_json};
use super::text::{Table, cell, last_cell, plain};

/// The columns of [`row`].
const HEADINGS: [&str; 4] = ["TIME", "KIND", "OF", "WHAT"];

/// `weir alerts`: asks the service, or reads the state file if no service runs.
pub fn alerts(asking: &Asking) -> ExitCode {
    finish((|| {
        let place = Place::of(asking)?;
        let answer = match place.ask(Method::GET, "/v1/alerts", None)? {
            Asked::Answered(answer) => answer.good()?,
            Asked::NoService(failure) => json!(place.read_files(failure, Offline::alerts)?),
        };
        let AlertList { alerts } = typed::<AlertList<Alert>>(answer.clone())?;
        if asking.json {
            return print_json(&answer);
        }
        if alerts.is_empty() {
            out("no alerts\n");
            return Ok(ExitCode::SUCCESS);
        }
        let mut table = Table::new(&HEADINGS, &[]);
        for alert in &alerts {
            table.row(row(alert));
        }
        out(&table.text());
        Ok(ExitCode::SUCCESS)
    })())
}

/// The cells of one alert: time, kind, subject, and what happened. The last is made from members
/// that differ by kind.
pub fn row(alert: &Alert) -> [String; 4] {
    let first = |names: &[&str]| {
        let members = names.iter().filter_map(|name| alert.members.get(*name));
        let mut said = members.filter(|value| !value.is_null());
        said.next().unwrap_or(&Value::Null)
    };
    [
        alert.time.to_string(),
        plain(&alert.kind),
        cell(first(&[
            "netblock", "of", "file", "feed", "name", "key", "per", "scope", "hour", "what",
        ])),
        // Not cut: the sentence about a refused file ends with what to mend.
        last_cell(first(&[
            "reason",
            "error",
            "expires",
            "threshold",
            "held_back",
            "detail",
            "rule",
        ])),
    ]
}
