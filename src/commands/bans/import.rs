//! `weir bans import` and `weir bans check`: many bans from a file, a bans.json or a list of
//! netblocks.
#![expect(
    clippy::indexing_slicing,
    reason = "a member that a JSON document does not have reads as null"
)]

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use http::{Method, StatusCode};
use serde_json::{Value, json};
use weir_controlplane::offline;
use weir_shared::netblock::NetSet;

use crate::commands::ask::{Answer, Asked, Asking, Place, not_of_weir, words};
use crate::commands::common::{EXIT_NO, EXIT_USAGE, Failure, out, percent_encoded, print_json};
use crate::commands::lists;
use crate::commands::text::count;
use crate::sources::Sources;

/// The most bytes of an import: the service has the same bound.
const MAX_IMPORT: u64 = 128 << 20;

#[derive(Args, Debug)]
pub struct Import {
    /// The file: what export wrote, or a list of netblocks, a text or JSON; - is standard input
    file: PathBuf,
    /// How long, of a list: a time such as 2h, or permanent
    #[arg(long = "for", value_name = "TIME")]
    duration: Option<String>,
    /// Why, of a list
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Even if something covers everything or a trusted proxy
    #[arg(long)]
    force: bool,
    /// Judge the file and ban nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    asking: Asking,
}

#[derive(Args, Debug)]
pub struct Check {
    /// The file, as import takes it; - is standard input; without it the bans.json of the state
    /// directory
    file: Option<PathBuf>,
    #[command(flatten)]
    asking: Asking,
}

/// Imports a file by one request and one write. The file is checked as a whole: with a fault
/// nothing is banned.
pub fn import(given: &Import) -> Result<ExitCode, Failure> {
    let body = content(&given.file)?;
    let target = format!("/v1/bans/import{}", terms(given, &body)?);
    let answer = match Place::of(&given.asking)?.send(Method::POST, &target, body)? {
        Asked::Answered(answer) => answer,
        Asked::NoService(nobody) => return Err(nobody),
    };
    let faults: Vec<String> = faults_of(&answer);
    if faults.is_empty() {
        let imported = answer.good()?;
        let [all, would, new, dropped] =
            ["imported", "would_import", "new", "dropped"].map(|name| imported[name].as_u64());
        let Some(all) = all.or(would) else {
            return Err(not_of_weir("missing field `imported`"));
        };
        if given.asking.json {
            return print_json(&imported);
        }
        if would.is_some() {
            out(&format!(
                "no faults: {} would be imported\n",
                count(all, "ban")
            ));
            return Ok(ExitCode::SUCCESS);
        }
        let new = new.unwrap_or(0);
        let dropped = match dropped {
            Some(1..) => format!(", {} dropped for them", imported["dropped"]),
            _ => String::new(),
        };
        let late = if imported["persisted"] == false {
            ", not on disk yet"
        } else {
            ""
        };
        let all = count(all, "ban");
        out(&format!(
            "imported {all}, {new} of them new{dropped}{late}\n"
        ));
        return Ok(ExitCode::SUCCESS);
    }
    for fault in &faults {
        eprintln!("weir: {}: {fault}", given.file.display());
    }
    if given.asking.json {
        print_json(&json!({"imported": 0, "new": 0, "dropped": 0, "faults": faults}))?;
    } else {
        let faults = count(faults.len() as u64, "fault");
        out(&format!("nothing is imported: {faults}\n"));
    }
    Ok(ExitCode::from(EXIT_NO))
}

/// The query of an import: duration and reason for each netblock of a list.
fn terms(given: &Import, body: &[u8]) -> Result<String, Failure> {
    let is_document = offline::is_bans_file(body);
    let usage = |sentence| Err(Failure::new(EXIT_USAGE, sentence));
    if let Some(duration) = &given.duration {
        lists::end_of(duration)?;
    }
    let mut parts = match (&given.duration, &given.reason) {
        (None, None) if is_document => Vec::new(),
        (Some(duration), Some(reason)) if !is_document => vec![
            format!("duration={}", percent_encoded(duration)),
            format!("reason={}", percent_encoded(reason)),
        ],
        _ if is_document => {
            return usage(
                "--for and --reason are for a list of netblocks: a bans.json says both of each ban",
            );
        }
        _ => {
            return usage(
                "a list of netblocks needs --for and --reason; a bans.json has them in it",
            );
        }
    };
    if given.force {
        parts.push("force=true".to_owned());
    }
    if given.dry_run {
        parts.push("dry_run=true".to_owned());
    }
    Ok(match parts.is_empty() {
        true => String::new(),
        false => format!("?{}", parts.join("&")),
    })
}

/// The faults of the body, one sentence each.
fn faults_of(answer: &Answer) -> Vec<String> {
    if answer.status != StatusCode::UNPROCESSABLE_ENTITY {
        return Vec::new();
    }
    let errors = answer.body["errors"].as_array().into_iter().flatten();
    let sentence = |fault: &Value| {
        let detail = words(fault["detail"].as_str().unwrap_or_default());
        match fault["pointer"].as_str().unwrap_or_default() {
            "" => detail,
            pointer => format!("{pointer}: {detail}"),
        }
    };
    errors.map(sentence).collect()
}

/// Reads a whole file, or all of standard input.
fn content(file: &Path) -> Result<Vec<u8>, Failure> {
    let read = |source: &mut dyn Read| {
        let mut bytes = Vec::new();
        source.take(MAX_IMPORT + 1).read_to_end(&mut bytes)?;
        match bytes.len() as u64 > MAX_IMPORT {
            true => Err(io::Error::other(format!(
                "it is larger than {} MiB",
                MAX_IMPORT >> 20
            ))),
            false => Ok(bytes),
        }
    };
    let read = match file.as_os_str() == "-" {
        true => read(&mut io::stdin().lock()),
        false => File::open(file).and_then(|mut file| read(&mut file)),
    };
    let unread = |error| format!("{} cannot be read: {error}", file.display());
    read.map_err(|error| Failure::new(EXIT_USAGE, unread(error)))
}

pub fn check(given: &Check) -> Result<ExitCode, Failure> {
    let path = match &given.file {
        Some(file) => file.clone(),
        None => Place::of(&given.asking)?.dir.join("bans.json"),
    };
    if path.as_os_str() != "-" && !path.is_file() {
        let sentence = format!("{} is no file", path.display());
        return Err(Failure::new(EXIT_USAGE, sentence));
    }
    let name = path.display();
    let judged = offline::check_import(&content(&path)?, trusted());
    let (bans, faults) = match judged {
        Ok(bans) => (bans, Vec::new()),
        Err(faults) => (0, faults),
    };
    if given.asking.json {
        print_json(
            &json!({"file": path, "bans": bans, "fault": faults.first(), "faults": faults}),
        )?;
    } else if faults.is_empty() {
        out(&format!(
            "{name}: {}, no faults\n",
            count(bans as u64, "ban")
        ));
    } else {
        for fault in &faults {
            eprintln!("weir: {name}: {}", words(fault));
        }
    }
    Ok(ExitCode::from(if faults.is_empty() { 0 } else { EXIT_NO }))
}

/// The trusted proxies of the caller's own settings; none if those cannot be read.
fn trusted() -> NetSet {
    let loaded = Sources::of_process().load();
    loaded.map_or_else(
        |_| NetSet::default(),
        |loaded| loaded.settings.identity.trusted_proxies,
    )
}
