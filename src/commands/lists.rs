//! `weir allow` and `weir deny`: a member more, or less, in a list of rules.json, which the service
//! takes in within a second (RULE-1).
#![expect(
    clippy::indexing_slicing,
    reason = "a member that a JSON document does not have reads as null"
)]

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, chown};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use http::Method;
use serde_json::{Map, Value, json};
use weir_shared::netblock::{Netblock, NotANetblock};
use weir_shared::units::{DURATION_FORM, Time, parse_duration};

use super::ask::{Asked, Asking, Place};
use super::common::{
    EXIT_CONFIG, EXIT_NO, EXIT_USAGE, Failure, finish, now, out, percent_encoded, print_json,
};

/// How often the service is asked whether it has taken the change in, and how long in between.
const LOOKS: usize = 30;
const PAUSE: Duration = Duration::from_millis(100);

/// Which list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum List {
    Allow,
    Deny,
}

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
    #[command(flatten)]
    asking: Asking,
}

impl List {
    const fn name(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
        }
    }
}

/// Changes the list, and waits until the service has taken it in.
pub fn run(list: List, given: &Member) -> ExitCode {
    finish(change(list, given))
}

fn change(list: List, given: &Member) -> Result<ExitCode, Failure> {
    let netblock = netblock(&given.netblock)?;
    let until = given.duration.as_deref().map(until).transpose()?;
    let place = Place::of(&given.asking)?;
    let file = place.rules_file()?;
    let added = (!given.remove).then(|| member(netblock, until, given.comment.as_deref()));
    if !set(&file, list, netblock, added)? {
        out(&format!(
            "{netblock} is not in the list {:?} of {}\n",
            list.name(),
            file.display()
        ));
        return Ok(ExitCode::from(EXIT_NO));
    }
    let in_force = in_force(&place, list, netblock, !given.remove)?;
    let told = json!({
        "list": list.name(),
        "netblock": netblock,
        "until": until,
        "removed": given.remove,
        "file": file,
        "in_force": in_force,
    });
    if given.asking.json {
        print_json(&told)?;
    } else {
        out(&in_words(list, given.remove, netblock, until, in_force));
    }
    Ok(ExitCode::from(if in_force == Some(false) {
        EXIT_NO
    } else {
        0
    }))
}

/// One more member, and what became of it, in words.
pub fn add(
    place: &Place,
    list: List,
    subject: &str,
    until: Option<Time>,
    comment: &str,
) -> Result<String, Failure> {
    let netblock = netblock(subject)?;
    let added = member(netblock, until, Some(comment));
    set(&place.rules_file()?, list, netblock, Some(added))?;
    let in_force = in_force(place, list, netblock, true)?;
    let told = in_words(list, false, netblock, until, in_force);
    Ok(told.trim_end().to_owned())
}

/// The end of a time that begins now.
pub fn until(text: &str) -> Result<Time, Failure> {
    let wrong = |wrong| Failure::new(EXIT_USAGE, format!("--for: {wrong}: {DURATION_FORM}"));
    let duration = parse_duration(text).map_err(wrong)?;
    Ok(Time(now().wall_ms).plus(duration))
}

fn netblock(text: &str) -> Result<Netblock, Failure> {
    let wrong = |error: NotANetblock| Failure::new(EXIT_USAGE, error.to_string());
    text.parse().map_err(wrong)
}

/// Takes every entry of exactly this netblock out of the list and puts the new one in. Says whether
/// there was anything to do.
fn set(file: &Path, list: List, netblock: Netblock, added: Option<Value>) -> Result<bool, Failure> {
    let mut rules = read(file)?;
    let removed = take_out(&mut rules, list, netblock);
    match added {
        Some(member) => put(&mut rules, list, member),
        None if removed == 0 => return Ok(false),
        None => {}
    }
    let unwritten = |error| {
        let sentence = format!("{} cannot be written: {error}", file.display());
        Failure::new(EXIT_CONFIG, sentence)
    };
    write(file, &rules).map_err(unwritten)?;
    Ok(true)
}

fn in_words(
    list: List,
    removed: bool,
    netblock: Netblock,
    until: Option<Time>,
    in_force: Option<bool>,
) -> String {
    let done = match (removed, list) {
        (true, _) => format!("took {netblock} out of the list {:?}", list.name()),
        (false, List::Allow) => format!("allowed {netblock}"),
        (false, List::Deny) => format!("denied {netblock}"),
    };
    let end = until.map_or(String::new(), |until| format!(" until {until}"));
    let force = match in_force {
        Some(true) => "in force",
        Some(false) => "written, and not in force: weir explain and weir alerts say why",
        None => "written; no service runs",
    };
    format!("{done}{end}: {force}\n")
}

/// The whole file; an empty one where there is none.
fn read(file: &Path) -> Result<Map<String, Value>, Failure> {
    let wrong = |why: String| Failure::new(EXIT_CONFIG, format!("{} {why}", file.display()));
    let text = match fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(Map::from_iter([("version".to_owned(), json!(1))]));
        }
        Err(error) => return Err(wrong(format!("cannot be read: {error}"))),
    };
    match serde_json::from_str(&text) {
        Ok(Value::Object(rules)) => Ok(rules),
        Ok(_) => Err(wrong("is no JSON object: mend it first".to_owned())),
        Err(error) => Err(wrong(format!("is no JSON: {error}; mend it first"))),
    }
}

/// Takes every entry of exactly this netblock out, and says how many there were.
fn take_out(rules: &mut Map<String, Value>, list: List, netblock: Netblock) -> usize {
    let Some(Value::Array(members)) = rules.get_mut(list.name()) else {
        return 0;
    };
    let before = members.len();
    members.retain(|member| {
        let held = member["netblock"].as_str().map(str::parse::<Netblock>);
        !matches!(held, Some(Ok(held)) if held == netblock)
    });
    before - members.len()
}

fn member(netblock: Netblock, until: Option<Time>, comment: Option<&str>) -> Value {
    let mut member = Map::new();
    member.insert("netblock".to_owned(), json!(netblock));
    member.extend(until.map(|until| ("until".to_owned(), json!(until))));
    member.extend(comment.map(|comment| ("comment".to_owned(), json!(comment))));
    Value::Object(member)
}

fn put(rules: &mut Map<String, Value>, list: List, member: Value) {
    let members = rules.entry(list.name()).or_insert_with(|| json!([]));
    if let Value::Array(members) = members {
        members.push(member);
    }
}

/// Writes a new file in the place of the old one, with its owner and mode, or those of the
/// directory's owner: the service must be able to read it.
fn write(file: &Path, rules: &Map<String, Value>) -> io::Result<()> {
    let mut text = serde_json::to_string_pretty(rules)?;
    text.push('\n');
    let old = fs::metadata(file);
    let dir = file.parent().unwrap_or(Path::new(""));
    let new = dir.join(".rules.json.tmp");
    let _ = fs::remove_file(&new);
    let mode = old.as_ref().map_or(0o640, MetadataExt::mode) & 0o777;
    let mut written = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(&new)?;
    written.write_all(text.as_bytes())?;
    written.sync_all()?;
    let owner = old.or_else(|_| new.parent().map_or(fs::metadata("."), fs::metadata))?;
    let own = written.metadata()?;
    if (own.uid(), own.gid()) != (owner.uid(), owner.gid()) {
        chown(&new, Some(owner.uid()), Some(owner.gid()))?;
    }
    fs::rename(&new, file)
}

/// Whether the service has taken the change in: its checks say so. None where no service runs.
fn in_force(
    place: &Place,
    list: List,
    netblock: Netblock,
    listed: bool,
) -> Result<Option<bool>, Failure> {
    let address = netblock.net().network().to_string();
    let target = format!("/v1/explain?address={}", percent_encoded(&address));
    for _ in 0..LOOKS {
        match place.ask(Method::GET, &target, None)? {
            Asked::NoService(_) => return Ok(None),
            Asked::Answered(answer) => {
                let explained = answer.good()?;
                let held = explained["list"]["name"] == list.name();
                if held == listed {
                    return Ok(Some(true));
                }
            }
        }
        std::thread::sleep(PAUSE);
    }
    Ok(Some(false))
}
