//! `weir fleet`: the instances that act as one with this one (FLEET-29).

use std::process::ExitCode;
use std::time::Duration;

use http::{Method, StatusCode};
use weir_shared::api::fleet::{Fleet, Instance};

use super::ask::{Asking, Place};
use super::common::{EXIT_NO, Failure, finish, out, print_json};
use super::text::{Table, maybe, plain, span};

/// `weir fleet`: exit status 1 if there is no fleet, or if its instances do not all hold the same.
pub fn run(asking: &Asking) -> ExitCode {
    finish((|| {
        let answer = Place::of(asking)?.expect(Method::GET, "/v1/fleet", None)?;
        if answer.status == StatusCode::NOT_FOUND {
            let sentence = "this instance is of no fleet: WAF_FLEET is off";
            return Err(Failure::new(EXIT_NO, sentence));
        }
        let (answer, fleet): (_, Fleet) = answer.read()?;
        if asking.json {
            print_json(&answer)?;
        } else {
            out(&told(&fleet));
        }
        Ok(ExitCode::from(if fleet.in_step { 0 } else { EXIT_NO }))
    })())
}

fn told(fleet: &Fleet) -> String {
    let mut lines = vec![format!(
        "fleet {} at {}, round trip {} ms",
        plain(&fleet.fleet),
        plain(&fleet.engine),
        fleet.round_trip_ms
    )];
    if let Some(seconds) = fleet.alone_seconds {
        lines.push(format!(
            "alone for {}: {}; {} events wait",
            span(Duration::from_secs(seconds)),
            maybe(fleet.why.as_ref()),
            fleet.waiting
        ));
    }
    lines.extend(fleet.eviction.clone());
    let headings = [
        "INSTANCE", "STATE", "SEEN", "WAITING", "CLOCK", "VERSION", "BANS", "SETTINGS",
    ];
    let mut table = Table::new(&headings, &[2, 3, 4, 6]);
    for one in &fleet.instances {
        table.row(row(one));
    }
    let step = match fleet.in_step {
        true => "in step: all hold the same",
        false => "not in step",
    };
    format!("{}\n{}{step}\n", lines.join("\n"), table.text())
}

fn row(one: &Instance) -> [String; 8] {
    let settings = one.settings.iter().map(|setting| {
        let (name, there, here) = (&setting.name, &setting.there, &setting.here);
        format!("{} {} (here {})", plain(name), plain(there), plain(here))
    });
    let settings: Vec<String> = settings.collect();
    [
        format!(
            "{}{}",
            plain(&one.name),
            if one.is_self { " *" } else { "" }
        ),
        plain(&one.state),
        format!("{} ms", one.lag_ms),
        maybe(one.waiting),
        maybe(one.clock_ms.map(|ms| format!("{ms} ms"))),
        maybe(one.version.as_ref()),
        maybe(one.bans),
        settings.join(", "),
    ]
}
