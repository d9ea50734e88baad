//! `weir fleet`: the instances that act as one with this one (FLEET-29).
#![expect(
    clippy::indexing_slicing,
    reason = "a member that a JSON document does not have reads as null"
)]

use std::process::ExitCode;
use std::time::Duration;

use http::{Method, StatusCode};
use serde_json::Value;

use super::ask::{Asking, Place};
use super::common::{EXIT_NO, Failure, finish, out, print_json};
use super::text::{Table, cell, span};

/// `weir fleet`: status 1 where there is no fleet, or not all of it holds the same.
pub fn run(asking: &Asking) -> ExitCode {
    finish((|| {
        let answer = Place::of(asking)?.expect(Method::GET, "/v1/fleet", None)?;
        if answer.status == StatusCode::NOT_FOUND {
            let sentence = "this instance is of no fleet: WAF_FLEET is off";
            return Err(Failure::new(EXIT_NO, sentence));
        }
        let fleet = answer.good()?;
        if asking.json {
            print_json(&fleet)?;
        } else {
            out(&told(&fleet));
        }
        let in_step = fleet["in_step"] == true;
        Ok(ExitCode::from(if in_step { 0 } else { EXIT_NO }))
    })())
}

fn told(fleet: &Value) -> String {
    let mut lines = vec![format!(
        "fleet {} at {}, round trip {} ms",
        cell(&fleet["fleet"]),
        cell(&fleet["engine"]),
        fleet["round_trip_ms"]
    )];
    if let Some(seconds) = fleet["alone_seconds"].as_u64() {
        lines.push(format!(
            "alone for {}: {}; {} events wait",
            span(Duration::from_secs(seconds)),
            cell(&fleet["why"]),
            fleet["waiting"]
        ));
    }
    if let Some(sentence) = fleet["eviction"].as_str() {
        lines.push(sentence.to_owned());
    }
    let headings = [
        "INSTANCE", "STATE", "SEEN", "WAITING", "CLOCK", "VERSION", "BANS", "SETTINGS",
    ];
    let mut table = Table::new(&headings, &[2, 3, 4, 6]);
    for one in fleet["instances"].as_array().into_iter().flatten() {
        table.row(row(one));
    }
    let step = match fleet["in_step"] == true {
        true => "in step: all hold the same",
        false => "not in step",
    };
    format!("{}\n{}{step}\n", lines.join("\n"), table.text())
}

fn row(one: &Value) -> [String; 8] {
    let own = one["self"] == true;
    let settings = one["settings"].as_array().into_iter().flatten();
    let settings: Vec<String> = settings
        .map(|setting| {
            format!(
                "{} {} (here {})",
                cell(&setting["name"]),
                cell(&setting["there"]),
                cell(&setting["here"])
            )
        })
        .collect();
    let ms = |value: &Value| match value.as_i64() {
        Some(ms) => format!("{ms} ms"),
        None => "–".to_owned(),
    };
    [
        format!("{}{}", cell(&one["name"]), if own { " *" } else { "" }),
        cell(&one["state"]),
        ms(&one["lag_ms"]),
        cell(&one["waiting"]),
        ms(&one["clock_ms"]),
        cell(&one["version"]),
        cell(&one["bans"]),
        settings.join(", "),
    ]
}
