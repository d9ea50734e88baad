//! `weir allow` and `weir deny`: a member more, or less, in a list of rules.json, or of lists.json
//! where a fleet shares lists (FLEET-18). The service
//! changes it, and answers once that is in force; where none runs the command does, in the same way
//! (CONTROL-8).
#![expect(
    clippy::indexing_slicing,
    reason = "a member that a JSON document does not have reads as null"
)]

use std::path::Path;
use std::process::ExitCode;

use clap::Args;
use http::{Method, StatusCode};
use serde_json::{Value, json};
pub use weir_controlplane::lists::List;
use weir_controlplane::lists::{Change, Changed, Entry, ListFiles, NotChanged};
use weir_shared::ban::Expiry;
use weir_shared::netblock::{Netblock, NotANetblock};
use weir_shared::units::{DURATION_FORM, Time, parse_duration};

use super::ask::{Asked, Asking, Place, RULES_FILE};
use super::common::{
    EXIT_CONFIG, EXIT_NO, EXIT_USAGE, Failure, finish, now, out, percent_encoded, print_json,
};
use super::text::cell;

/// A member of a list.
#[derive(Args, Debug)]
pub struct Member {
    /// An address or a netblock
    netblock: String,
    /// For how long, such as 24h; without it for good
    #[arg(long = "for", value_name = "TIME", conflicts_with = "remove")]
    duration: Option<String>,
    /// Why, for people
    #[arg(long, value_name = "TEXT", conflicts_with = "remove")]
    comment: Option<String>,
    /// Take it out of the list
    #[arg(long)]
    remove: bool,
    /// Even if it covers everything, or a trusted proxy is denied
    #[arg(long, conflicts_with = "remove")]
    force: bool,
    #[command(flatten)]
    asking: Asking,
}

/// Changes the list, and waits until that is in force.
pub fn run(list: List, given: &Member) -> ExitCode {
    finish((|| {
        let until = given.duration.as_deref().map(until).transpose()?;
        let change = Change {
            list,
            netblock: netblock(&given.netblock)?,
            entry: (!given.remove).then(|| Entry {
                until,
                comment: given.comment.clone(),
                force: given.force,
            }),
        };
        let told = changed(&Place::of(&given.asking)?, &change, given.force)?;
        if given.asking.json {
            print_json(&told)?;
        } else {
            out(&format!("{}\n", in_words(&change, &told)));
        }
        let code = if told["changed"] == true { 0 } else { EXIT_NO };
        Ok(ExitCode::from(code))
    })())
}

/// One more member, and what became of it, in words.
pub fn add(
    place: &Place,
    list: List,
    subject: &str,
    until: Option<Time>,
    comment: &str,
) -> Result<String, Failure> {
    let change = Change {
        list,
        netblock: netblock(subject)?,
        entry: Some(Entry {
            until,
            comment: Some(comment.to_owned()),
            force: false,
        }),
    };
    let told = changed(place, &change, false)?;
    Ok(in_words(&change, &told))
}

/// The end of a time that begins now.
pub fn until(text: &str) -> Result<Time, Failure> {
    let wrong = |wrong| Failure::new(EXIT_USAGE, format!("--for: {wrong}: {DURATION_FORM}"));
    let duration = parse_duration(text).map_err(wrong)?;
    if duration.is_zero() {
        return Err(wrong(format!("{text:?} is no time at all")));
    }
    Ok(Time(now().wall_ms).plus(duration))
}

/// The end of a ban that begins now.
pub fn end_of(duration: &str) -> Result<Expiry, Failure> {
    if duration == "permanent" {
        return Ok(Expiry::Permanent);
    }
    let until = until(duration).map_err(|failure| {
        let sentence = format!("{}, or permanent", failure.sentence);
        Failure::new(EXIT_USAGE, sentence)
    })?;
    Ok(Expiry::At(until))
}

/// An address or a netblock that was typed.
pub fn netblock(text: &str) -> Result<Netblock, Failure> {
    let wrong = |error: NotANetblock| Failure::new(EXIT_USAGE, error.to_string());
    text.parse().map_err(wrong)
}

/// Has the list changed; what became of it, as `ListChanged` of the OpenAPI document.
fn changed(place: &Place, change: &Change, force: bool) -> Result<Value, Failure> {
    let answer = match ask(place, change, force)? {
        Asked::Answered(answer) => answer,
        Asked::NoService(nobody) => return by_hand(place, change, force, nobody),
    };
    // A service that may not write its rules file (below /etc, under the unit of the package): who
    // names it in his own settings may, and the service takes the very same change in.
    let answer = match place.named_file(RULES_FILE)? {
        Some(file)
            if answer.status == StatusCode::INTERNAL_SERVER_ERROR && !place.shares_lists()? =>
        {
            by_files(place, &file, change)?;
            match ask(place, change, force)? {
                Asked::Answered(answer) => answer,
                Asked::NoService(nobody) => return Err(nobody),
            }
        }
        _ => answer,
    };
    let status = answer.status;
    let mut told = answer.good().map_err(|failure| match status {
        StatusCode::CONFLICT | StatusCode::INTERNAL_SERVER_ERROR => {
            Failure::new(EXIT_CONFIG, failure.sentence)
        }
        _ => failure,
    })?;
    told["decides"] = decides(place, change)?;
    Ok(told)
}

fn ask(place: &Place, change: &Change, force: bool) -> Result<Asked, Failure> {
    let list = change.list.name();
    let Some(entry) = &change.entry else {
        let netblock = percent_encoded(&change.netblock.to_string());
        let target = format!("/v1/lists/{list}/{netblock}");
        return place.ask(Method::DELETE, &target, None);
    };
    let mut body = json!({"list": list, "netblock": change.netblock, "force": force});
    if let Some(until) = entry.until {
        body["until"] = json!(until);
    }
    if let Some(comment) = &entry.comment {
        body["comment"] = json!(comment);
    }
    place.ask(Method::POST, "/v1/lists", Some(&body))
}

/// Where no service runs. None of its locks and comparisons is left out: another command may do the
/// same, and a person may save the file.
fn by_hand(place: &Place, change: &Change, force: bool, nobody: Failure) -> Result<Value, Failure> {
    let Some(file) = place.rules_file()? else {
        return Err(nobody);
    };
    if let Some(why) = change.too_wide().filter(|_| !force) {
        return Err(Failure::new(
            EXIT_USAGE,
            format!("{why}: --force if that is meant"),
        ));
    }
    let done = by_files(place, &file, change)?;
    Ok(json!({
        "list": change.list.name(),
        "netblock": change.netblock,
        "until": change.entry.as_ref().and_then(|entry| entry.until),
        "removed": change.entry.is_none(),
        "changed": done.changed,
        "ended": done.ended,
        "file": done.file,
        "in_force": null,
        "decides": null,
    }))
}

fn by_files(place: &Place, rules: &Path, change: &Change) -> Result<Changed, Failure> {
    let files = ListFiles {
        rules,
        state_dir: &place.dir,
        are_shared: place.shares_lists()?,
    };
    files.change(change, now()).map_err(|why| failure(&why))
}

fn failure(why: &NotChanged) -> Failure {
    Failure::new(EXIT_CONFIG, why.to_string())
}

/// The member of a list that decides now for the first address: another than the changed one where
/// that lies inside of it, or where the other list comes first.
fn decides(place: &Place, change: &Change) -> Result<Value, Failure> {
    let address = percent_encoded(&change.first_address().to_string());
    let target = format!("/v1/explain?address={address}");
    match place.ask(Method::GET, &target, None)? {
        Asked::Answered(answer) if answer.status.is_success() => Ok(answer.body["list"].clone()),
        Asked::Answered(_) | Asked::NoService(_) => Ok(Value::Null),
    }
}

fn in_words(change: &Change, told: &Value) -> String {
    let (netblock, list) = (change.netblock, change.list.name());
    if told["changed"] != true {
        return format!(
            "{netblock} is not in the list {list:?} of {}",
            cell(&told["file"])
        );
    }
    let done = match (&change.entry, change.list) {
        (None, _) => format!("took {netblock} out of the list {list:?}"),
        (Some(_), List::Allow) => format!("allowed {netblock}"),
        (Some(_), List::Deny) => format!("denied {netblock}"),
    };
    let end = change.entry.as_ref().and_then(|entry| entry.until);
    let end = end.map_or(String::new(), |until| format!(" until {until}"));
    let force = match told["in_force"] == true {
        true => "in force",
        false => "written; no service runs",
    };
    let decides = &told["decides"];
    let other = match decides["netblock"].as_str() {
        // Taken out, and inside of another; put in, and the other list comes first.
        Some(other) if change.entry.is_none() || decides["name"] != list => {
            let does = match decides["name"] == "allow" {
                true => "lets it through",
                false => "refuses it",
            };
            format!(
                "; {other} of {} {does} all the same",
                cell(&decides["source"])
            )
        }
        _ => String::new(),
    };
    format!("{done}{end}: {force}{other}")
}
