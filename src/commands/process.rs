//! `weir reload` and `weir upgrade`: requests to the service's process as a whole (RELOAD-2,
//! RESTART-1).
#![expect(
    clippy::indexing_slicing,
    reason = "a member that a JSON document does not have reads as null"
)]

use std::process::ExitCode;

use http::{Method, StatusCode};
use weir_shared::api::process::{Reloaded, SettingChange, Upgraded};

use super::ask::{Asking, Place};
use super::common::{EXIT_CONFIG, Failure, finish, out, print_json};

/// `weir reload`: exit status 78 if the settings have a fault; nothing is changed then.
pub fn reload(asking: &Asking) -> ExitCode {
    finish((|| {
        let answer = Place::of(asking)?.expect(Method::POST, "/v1/reload", None)?;
        if answer.status == StatusCode::UNPROCESSABLE_ENTITY {
            let faults = answer.body["errors"].as_array().into_iter().flatten();
            let faults: Vec<&str> = faults
                .filter_map(|fault| fault["detail"].as_str())
                .collect();
            let sentence = format!("{}\nweir: nothing is changed", faults.join("\nweir: "));
            return Err(Failure::new(EXIT_CONFIG, sentence));
        }
        let (answer, reloaded): (_, Reloaded) = answer.read()?;
        if asking.json {
            return print_json(&answer);
        }
        out(&told(&reloaded));
        for warning in &reloaded.warnings {
            eprintln!("weir: warning: {warning}");
        }
        Ok(ExitCode::SUCCESS)
    })())
}

/// `weir upgrade`: exit status 1 if no process takes over; the old one goes on then.
pub fn upgrade(asking: &Asking) -> ExitCode {
    finish((|| {
        let answer = Place::of(asking)?.expect(Method::POST, "/v1/upgrade", None)?;
        let (answer, Upgraded { process }) = answer.read()?;
        if asking.json {
            return print_json(&answer);
        }
        out(&format!("process {process} takes over\n"));
        Ok(ExitCode::SUCCESS)
    })())
}

fn told(reloaded: &Reloaded) -> String {
    let texts = |changes: &[SettingChange]| {
        let texts = changes.iter().map(|change| change.text.clone());
        texts.collect::<Vec<_>>()
    };
    let mut lines = texts(&reloaded.taken);
    if lines.is_empty() {
        lines.push("no setting has changed; files are read again".to_owned());
    }
    let restart = texts(&reloaded.restart);
    lines.extend(
        restart
            .iter()
            .map(|change| format!("{change}  (needs a restart)")),
    );
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RELOAD-2: each change is a line, and those that need a restart say so.
    #[test]
    fn changes_are_told_one_a_line() {
        let change = |text: &str| SettingChange {
            name: "A".to_owned(),
            old: None,
            new: None,
            secret: false,
            text: text.to_owned(),
        };
        let of = |taken, restart| Reloaded {
            taken,
            restart,
            warnings: Vec::new(),
        };
        let both = of(vec![change("A 1 -> 2")], vec![change("B 3 -> 4")]);
        assert_eq!(told(&both), "A 1 -> 2\nB 3 -> 4  (needs a restart)\n");
        assert_eq!(
            told(&of(Vec::new(), Vec::new())),
            "no setting has changed; files are read again\n"
        );
    }
}
