//! `weir allow` and `weir deny`: add a member to a list of rules.json, or remove one; where a fleet
//! shares lists, the list is in lists.json (FLEET-18). The service changes the file, and answers
//! once the change is in force. If no service runs, the command changes it in the same way
//! (CONTROL-8).

use std::path::Path;
use std::process::ExitCode;

use clap::Args;
use http::{Method, StatusCode};
use serde::Serialize;
use serde_json::json;
pub use weir_controlplane::lists::List;
use weir_controlplane::lists::{Change, Changed, Entry, ListFiles, NotChanged};
use weir_shared::api::explain::{Explained, ListMember};
use weir_shared::api::lists::ListChanged;
use weir_shared::ban::Expiry;
use weir_shared::netblock::{Netblock, NotANetblock};
use weir_shared::units::{DURATION_FORM, Time, parse_duration};

use super::ask::{Asked, Asking, Place, RULES_FILE, typed};
use super::common::{
    EXIT_CONFIG, EXIT_NO, EXIT_USAGE, Failure, finish, now, out, percent_encoded, print_json,
};
use super::text::plain;

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

/// Changes the list, and waits until the change is in force.
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
            print_json(&json!(told))?;
        } else {
            out(&format!("{}\n", in_words(&change, &told)));
        }
        Ok(ExitCode::from(if told.list.changed { 0 } else { EXIT_NO }))
    })())
}

/// Adds a member, and returns the result in words.
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

/// The end of a duration that begins now.
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

/// The result of a change, as `ListChanged` of the OpenAPI document.
#[derive(Serialize)]
struct Told {
    #[serde(flatten)]
    list: ListChanged,
    /// The list member that now decides for the first address of the changed netblock, if any. This
    /// is another member than the changed one if that member contains it, or if the other list
    /// comes first.
    decides: Option<ListMember>,
}

/// Changes the list, by the service or by hand.
fn changed(place: &Place, change: &Change, force: bool) -> Result<Told, Failure> {
    let answer = match ask(place, change, force)? {
        Asked::Answered(answer) => answer,
        Asked::NoService(nobody) => return by_hand(place, change, force, nobody),
    };
    // The service may not write its rules file (below /etc, under the package's unit). If the
    // caller's own settings name the file, the command changes it itself, and the service then
    // loads the same change.
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
    let answer = answer.good().map_err(|failure| match status {
        StatusCode::CONFLICT | StatusCode::INTERNAL_SERVER_ERROR => {
            Failure::new(EXIT_CONFIG, failure.sentence)
        }
        _ => failure,
    })?;
    Ok(Told {
        list: typed(answer)?,
        decides: decides(place, change)?,
    })
}

/// The body of `POST /v1/lists`: list-entry.schema.json.
#[derive(Serialize)]
struct Body<'a> {
    list: &'static str,
    netblock: Netblock,
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    comment: Option<&'a str>,
    force: bool,
}

fn ask(place: &Place, change: &Change, force: bool) -> Result<Asked, Failure> {
    let list = change.list.name();
    let Some(entry) = &change.entry else {
        let netblock = percent_encoded(&change.netblock.to_string());
        let target = format!("/v1/lists/{list}/{netblock}");
        return place.ask(Method::DELETE, &target, None);
    };
    let body = Body {
        list,
        netblock: change.netblock,
        until: entry.until,
        comment: entry.comment.as_deref(),
        force,
    };
    place.ask(Method::POST, "/v1/lists", Some(&json!(body)))
}

/// Changes the list while no service runs, with the service's locks and comparisons: another
/// command may change it at the same time, and a person may save the file.
fn by_hand(place: &Place, change: &Change, force: bool, nobody: Failure) -> Result<Told, Failure> {
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
    Ok(Told {
        list: done.told(change),
        decides: None,
    })
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

/// [`Told::decides`]
fn decides(place: &Place, change: &Change) -> Result<Option<ListMember>, Failure> {
    let address = percent_encoded(&change.first_address().to_string());
    let target = format!("/v1/explain?address={address}");
    match place.ask(Method::GET, &target, None)? {
        Asked::Answered(answer) if answer.status.is_success() => {
            // The list is changed already, so an unreadable answer is no failure.
            let explained = typed::<Explained>(answer.body).ok();
            Ok(explained.and_then(|explained| explained.list))
        }
        Asked::Answered(_) | Asked::NoService(_) => Ok(None),
    }
}

fn in_words(change: &Change, told: &Told) -> String {
    let (netblock, list) = (change.netblock, change.list.name());
    if !told.list.changed {
        let file = plain(&told.list.file);
        return format!("{netblock} is not in the list {list:?} of {file}");
    }
    let done = match (&change.entry, change.list) {
        (None, _) => format!("took {netblock} out of the list {list:?}"),
        (Some(_), List::Allow) => format!("allowed {netblock}"),
        (Some(_), List::Deny) => format!("denied {netblock}"),
    };
    let end = change.entry.as_ref().and_then(|entry| entry.until);
    let end = end.map_or(String::new(), |until| format!(" until {until}"));
    let force = match told.list.in_force == Some(true) {
        true => "in force",
        false => "written; no service runs",
    };
    let other = match &told.decides {
        // A removed member that lies inside another one, or an added one where the other list comes
        // first.
        Some(other) if change.entry.is_none() || other.name != list => {
            let does = match other.name == "allow" {
                true => "lets it through",
                false => "refuses it",
            };
            let (member, source) = (other.netblock, plain(&other.source));
            format!("; {member} of {source} {does} all the same")
        }
        _ => String::new(),
    };
    format!("{done}{end}: {force}{other}")
}
