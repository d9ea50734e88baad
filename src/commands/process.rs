//! `weir reload` and `weir upgrade`: what is asked of the service's process as a whole (RELOAD-2,
//! RESTART-1).
#![expect(
    clippy::indexing_slicing,
    reason = "a member that a JSON document does not have reads as null"
)]

use std::process::ExitCode;

use http::{Method, StatusCode};
use serde_json::Value;

use super::ask::{Asking, Place};
use super::common::{EXIT_CONFIG, Failure, finish, out, print_json};

/// `weir reload`: status 78 where the settings have a fault, and nothing is changed.
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
        let reloaded = answer.good()?;
        if asking.json {
            return print_json(&reloaded);
        }
        out(&told(&reloaded));
        for warning in texts(&reloaded["warnings"]) {
            eprintln!("weir: warning: {warning}");
        }
        Ok(ExitCode::SUCCESS)
    })())
}

/// `weir upgrade`: status 1 where no process takes over, and the old one goes on.
pub fn upgrade(asking: &Asking) -> ExitCode {
    finish((|| {
        let answer = Place::of(asking)?.expect(Method::POST, "/v1/upgrade", None)?;
        let upgraded = answer.good()?;
        if asking.json {
            return print_json(&upgraded);
        }
        out(&format!("process {} takes over\n", upgraded["process"]));
        Ok(ExitCode::SUCCESS)
    })())
}

fn texts(list: &Value) -> impl Iterator<Item = &str> {
    list.as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
}

fn told(reloaded: &Value) -> String {
    let changes = |list: &str| {
        let changes = reloaded[list].as_array().into_iter().flatten();
        let text = |change: &Value| change["text"].as_str().unwrap_or_default().to_owned();
        changes.map(text).collect::<Vec<_>>()
    };
    let (taken, restart) = (changes("taken"), changes("restart"));
    let mut lines = taken.clone();
    if taken.is_empty() {
        lines.push("no setting has changed; files are read again".to_owned());
    }
    lines.extend(
        restart
            .iter()
            .map(|change| format!("{change}  (needs a restart)")),
    );
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// RELOAD-2: each change is a line, and those that need a restart say so.
    #[test]
    fn changes_are_told_one_a_line() {
        let change = |text: &str| json!({"text": text});
        let both = json!({"taken": [change("A 1 -> 2")], "restart": [change("B 3 -> 4")]});
        assert_eq!(told(&both), "A 1 -> 2\nB 3 -> 4  (needs a restart)\n");
        let none = json!({"taken": [], "restart": []});
        assert_eq!(
            told(&none),
            "no setting has changed; files are read again\n"
        );
    }
}
