//! Reads rules.json: checks it by its schema, then for what a schema cannot express. A fault has
//! line, column and JSON pointer.

use std::collections::HashSet;
use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::Value;
use serde_path_to_error::{Deserializer as Tracked, Track};
use weir_schema::{CatalogError, Schema, Violation};
use weir_shared::path;
use weir_shared::rules::{
    CrawlerWord, MAX_DENIALS, MAX_LITERALS, MAX_NAMES, MAX_TRAP_PATHS, is_root,
};

use super::choosing::{Match, host};
use super::list_file::{FILE, LISTS};
use crate::json::{self, Strict};
use crate::state::fault::Fault;
pub(super) use entries::{
    Answer, FieldName, Member, OnLimit, Per, Quotas, RulesFile, Verify, Which, Word,
};

mod entries;
mod sentences;

pub(super) use sentences::LISTS_SCHEMA;

/// The most faults that are reported.
const MAX_TOLD: usize = 10;

impl RulesFile {
    /// Every `match`, with the pointer to it.
    pub(super) fn matches(&self) -> impl Iterator<Item = (String, &Match)> {
        let limits = self.limits.iter().map(|limit| limit.matching.as_ref());
        let jails = self.jails.iter().map(|jail| jail.matching.as_ref());
        let denials = self.denials.iter().map(|denial| Some(&denial.matching));
        let exempt = self.exempt.iter().map(|exempt| Some(&exempt.matching));
        let all = (limits.enumerate().map(|one| ("limits", one)))
            .chain(jails.enumerate().map(|one| ("jails", one)))
            .chain(denials.enumerate().map(|one| ("denials", one)))
            .chain(exempt.enumerate().map(|one| ("exempt", one)));
        all.filter_map(|(list, (index, matching))| {
            Some((format!("/{list}/{index}/match"), matching?))
        })
    }

    /// The fault of rules that need lookups while lookups are off (MATCH-5).
    pub(super) fn without_lookups(&self) -> Option<(String, String)> {
        let of_matches = self.matches().find_map(|(pointer, matching)| {
            let member = matching.needs_lookups()?;
            Some((format!("{pointer}/{member}"), member))
        });
        let mut limits = self.limits.iter().enumerate();
        let of_limits = || {
            limits.find_map(|(index, limit)| {
                let word = match limit.per {
                    Per::Asn => "asn",
                    Per::Country => "country",
                    Per::Client | Per::Netblock | Per::All | Per::Field(_) => return None,
                };
                Some((format!("/limits/{index}/per"), word))
            })
        };
        let (pointer, member) = of_matches.or_else(of_limits)?;
        let message = format!(
            "{member:?} needs lookups and WAF_LOOKUP_SOURCE=\"off\": expected geojs, url or file with it"
        );
        Some((pointer, message))
    }
}

/// Reads and checks a whole file.
pub(super) struct Reader {
    /// Compiled when the first file is checked.
    schema: LazyLock<Result<Schema, CatalogError>>,
}

impl Reader {
    pub(super) const fn new() -> Self {
        Self {
            schema: LazyLock::new(|| Schema::parse(sentences::SCHEMA)),
        }
    }

    pub(super) fn read(&self, bytes: &[u8]) -> Result<RulesFile, Fault> {
        let Strict(value) =
            json::explain(std::marker::PhantomData::<Strict>, bytes).map_err(|refused| {
                let error = &refused.error;
                let message = sentences::syntax(json::sentence(error));
                Fault::new(error.line(), error.column(), &refused.pointer, &message)
            })?;
        self.understand(&value).map_err(|faults| {
            let further = faults.len().saturating_sub(MAX_TOLD);
            let faults = faults.into_iter().take(MAX_TOLD);
            let mut faults = faults.map(|(pointer, message)| at(bytes, &pointer, &message));
            // There is a first fault: a file without faults does not come here.
            let mut first = faults
                .next()
                .unwrap_or_else(|| at(bytes, "", "it does not fit"));
            first.further = faults.collect();
            if further > 0 {
                let told = format!("{further} further faults");
                first.further.push(at(bytes, "", &told));
            }
            first
        })
    }

    /// The file, or pointer and message of every fault. If both the schema and the reader of values
    /// refuse a value, the reader's message is used, which is better.
    fn understand(&self, value: &Value) -> Result<RulesFile, Vec<(String, String)>> {
        // A test compiles the schema.
        let schema = self.schema.as_ref().map_err(|error| {
            let message = format!("the schema of rules.json is wrong: {error}");
            vec![(String::new(), message)]
        })?;
        let violations = schema.validate(value).err().unwrap_or_default();
        if let Some(version) = value.get("version")
            && version.as_f64() != Some(1.0)
        {
            let message = format!("unknown version {version}: 1 is known");
            return Err(vec![("/version".to_owned(), message)]);
        }
        let mut track = Track::new();
        let read = RulesFile::deserialize(Tracked::new(value, &mut track));
        let inside = json::pointer(&track.path());
        match (violations.is_empty(), read) {
            (true, Ok(file)) => match judge(&file) {
                faults if faults.is_empty() => Ok(file),
                faults => Err(faults),
            },
            (true, Err(error)) => Err(vec![(inside, json::sentence(&error))]),
            (false, read) => {
                let reader = read.err().map(|error| (inside, json::sentence(&error)));
                let mut faults = Vec::new();
                // For a value that is no object, missing members are not reported.
                let is_told = |fault: &&Violation| {
                    let is_wrong = |other: &Violation| {
                        other.keyword == "type" && other.instance_path == fault.instance_path
                    };
                    !is_choice(fault) || !violations.iter().any(is_wrong)
                };
                for fault in violations.iter().filter(is_told) {
                    for one in told(value, fault, reader.as_ref()) {
                        // Two keywords may report the same fault.
                        if !faults.contains(&one) {
                            faults.push(one);
                        }
                    }
                }
                Err(faults)
            }
        }
    }
}

/// Whether the violation is that none of several forms fits, or more than one.
fn is_choice(fault: &Violation) -> bool {
    matches!(&*fault.keyword, "anyOf" | "oneOf")
}

/// The faults of one violation. Each unknown member is a fault of its own, at the member rather
/// than the object, with a suggestion of a known name.
pub(super) fn told(
    value: &Value,
    fault: &Violation,
    reader: Option<&(String, String)>,
) -> Vec<(String, String)> {
    if let Some(missing) = json::missing(fault) {
        return vec![(fault.instance_path.clone(), missing)];
    }
    let is_choice = is_choice(fault);
    let is_there = |inside: &str| {
        let below = inside.strip_prefix(&*fault.instance_path);
        below.is_some_and(|below| below.is_empty() || is_choice && below.starts_with('/'))
    };
    let better = reader.filter(|(inside, why)| is_there(inside) && sentences::is_ours(why));
    if let Some(better) = better {
        return vec![better.clone()];
    }
    let object = value
        .pointer(&fault.instance_path)
        .and_then(Value::as_object);
    let is_named = |name: &&String| fault.sentence.contains(&format!("'{name}'"));
    let unknown = object
        .into_iter()
        .flat_map(|members| members.keys().filter(is_named));
    let unknown: Vec<(String, String)> = match &*fault.keyword {
        "additionalProperties" => unknown
            .map(|name| {
                let pointer = format!("{}{}", fault.instance_path, json::member(name));
                (pointer, no_member(name, &sentences::members(fault)))
            })
            .collect(),
        _ => Vec::new(),
    };
    if !unknown.is_empty() {
        return unknown;
    }
    let sentence = sentences::allowed(fault)
        .unwrap_or_else(|| fault.sentence.trim_end_matches('.').to_owned());
    vec![(fault.instance_path.clone(), sentence)]
}

/// `"pth" is no member here; did you mean "path"?`
fn no_member(name: &str, known: &[&str]) -> String {
    let near = known
        .iter()
        .map(|member| (strsim::osa_distance(member, name), member));
    let meant = match near.min().filter(|(distance, _)| *distance <= 3) {
        Some((_, member)) => format!("; did you mean {member:?}?"),
        None => format!(": expected one of {}", sentences::all_of(known)),
    };
    format!("{name:?} is no member here{meant}")
}

/// A fault at the place that a pointer names.
pub(super) fn at(bytes: &[u8], pointer: &str, message: &str) -> Fault {
    let (line, column) = json::place(bytes, pointer);
    Fault::new(line, column, pointer, message)
}

/// Checks what the schema cannot express.
fn judge(file: &RulesFile) -> Vec<(String, String)> {
    let judged = [
        names(file),
        feeds(file),
        paths(file),
        matches(file),
        members(file),
        shared(file),
        crawlers(file),
    ]
    .into_iter();
    judged.filter_map(Result::err).collect()
}

fn members(file: &RulesFile) -> Result<(), (String, String)> {
    for (list, members) in [("allow", &file.allow), ("deny", &file.deny)] {
        for (index, member) in members.iter().enumerate() {
            if member.file.as_ref().is_some_and(|name| name.contains('\0')) {
                let message = "expected the name of a file".to_owned();
                return Err((format!("/{list}/{index}/file"), message));
            }
            let everyone = member
                .netblock
                .filter(|netblock| netblock.net().prefix_len() == 0);
            if let Some(netblock) = everyone.filter(|_| !member.force) {
                let message =
                    format!("{netblock} is every client: \"force\": true if that is meant");
                return Err((format!("/{list}/{index}/netblock"), message));
            }
        }
    }
    Ok(())
}

/// Checks limits of all clients, an AS, a country or a field: no single client exceeds such a limit
/// (SHARE-2).
fn shared(file: &RulesFile) -> Result<(), (String, String)> {
    for (index, limit) in file.limits.iter().enumerate() {
        let bans_somebody = matches!(limit.per, Per::Client | Per::Netblock);
        if limit.follows() == OnLimit::Ban && !bans_somebody {
            let message = "nobody in particular breaks this limit: expected \"refuse\"".to_owned();
            return Err((format!("/limits/{index}/on_limit"), message));
        }
        let spares = limit.spare_known.is_some_and(|spared| spared.0.is_some());
        let fault = match (spares, &limit.per, limit.follows()) {
            (true, Per::Client, _) => {
                "known clients have a second count where clients share one: expected another \"per\" than \"client\""
            }
            (true, _, OnLimit::Ban) => {
                "a limit that bans spares nobody: expected \"on_limit\": \"refuse\""
            }
            (false, ..) | (true, _, OnLimit::Refuse) => continue,
        };
        return Err((format!("/limits/{index}/spare_known"), fault.to_owned()));
    }
    Ok(())
}

/// Checks crawlers, and references to them (CRAWL-1, CRAWL-5).
fn crawlers(file: &RulesFile) -> Result<(), (String, String)> {
    let mut seen = HashSet::new();
    for (index, crawler) in file.crawlers.iter().enumerate() {
        let name = &crawler.name;
        let pointer = |member: &str| format!("/crawlers/{index}/{member}");
        if !seen.insert(name) {
            let message = format!("two crawlers are named {name:?}");
            return Err((pointer("name"), message));
        }
        if !matches!(CrawlerWord::of(name), CrawlerWord::Name(_)) {
            let message = format!("{name:?} is a word of \"match\": expected another name");
            return Err((pointer("name"), message));
        }
        if let Verify::Feed(feed) = &crawler.verify
            && !file.feeds.iter().any(|held| held.name == *feed)
        {
            let message = format!("no feed is named {feed:?}");
            return Err((pointer("verify"), message));
        }
    }
    for (pointer, matching) in file.matches() {
        for (index, word) in matching.crawler_words().iter().enumerate() {
            let is_known = match CrawlerWord::of(word) {
                CrawlerWord::State(_) | CrawlerWord::Purpose(_) => true,
                CrawlerWord::Name(name) => seen.contains(&name),
            };
            if !is_known {
                let pointer = matching.crawler_pointer(&pointer, index);
                let message = format!(
                    "no crawler is named {word:?}: expected a name, verified, fake, unproven, or a purpose"
                );
                return Err((pointer, message));
            }
        }
    }
    Ok(())
}

fn names(file: &RulesFile) -> Result<(), (String, String)> {
    let limits = file.limits.iter().map(|limit| &limit.name);
    let traps = file.traps.iter().map(|trap| &trap.name);
    let jails = file.jails.iter().map(|jail| &jail.name);
    let denials = file.denials.iter().map(|denial| &denial.name);
    let exempt = file.exempt.iter().map(|exempt| &exempt.name);
    let all = [
        ("limits", limits.collect::<Vec<_>>()),
        ("traps", traps.collect()),
        ("jails", jails.collect()),
        // The schema bounds the number of these.
        ("denials", denials.collect()),
        ("exempt", exempt.collect()),
    ];
    let mut seen = HashSet::new();
    for (list, names) in all {
        let is_bounded = matches!(list, "limits" | "traps" | "jails");
        for (index, name) in names.into_iter().enumerate() {
            let pointer = format!("/{list}/{index}/name");
            if !seen.insert(name) {
                return Err((pointer, format!("two rules are named {name:?}")));
            }
            if is_bounded && seen.len() > MAX_NAMES {
                let message = format!("expected at most {MAX_NAMES} names in all");
                return Err((pointer, message));
            }
        }
    }
    Ok(())
}

/// Checks feeds and lists in files: their names identify lists in the log and the metrics, and must
/// be unique.
fn feeds(file: &RulesFile) -> Result<(), (String, String)> {
    let members = file.allow.iter().chain(&file.deny);
    let mut seen: HashSet<&str> = members
        .filter_map(|member| member.file.as_deref())
        .collect();
    seen.insert(FILE);
    seen.insert(LISTS);
    let mut denials = file.denials.len();
    for (index, feed) in file.feeds.iter().enumerate() {
        if !seen.insert(&feed.name) {
            let message = format!("two lists are named {:?}", feed.name);
            return Err((format!("/feeds/{index}/name"), message));
        }
        // Its autonomous systems and countries become a denial of the same name (FEED-7).
        if feed.crowdsec.is_some() {
            if file.denials.iter().any(|denial| denial.name == feed.name) {
                let message = format!("a denial is named {:?} too", feed.name);
                return Err((format!("/feeds/{index}/name"), message));
            }
            denials += 2;
            if denials > MAX_DENIALS {
                let message = format!(
                    "expected at most {MAX_DENIALS} denials in all, of which each decision stream is two"
                );
                return Err((format!("/feeds/{index}"), message));
            }
        }
    }
    Ok(())
}

fn paths(file: &RulesFile) -> Result<(), (String, String)> {
    let limits = file.limits.iter();
    let limits = limits.map(|limit| ("limits", &limit.which, limit.matching.is_some()));
    let jails = file.jails.iter();
    let jails = jails.map(|jail| ("jails", &jail.which, jail.matching.is_some()));
    let mut before = ("", 0);
    for (list, which, has_match) in limits.chain(jails) {
        let index = if before.0 == list { before.1 + 1 } else { 0 };
        before = (list, index);
        if let Some(member) = which.named().filter(|_| has_match) {
            let message = format!("{member:?} stands beside \"match\": expected it inside");
            return Err((format!("/{list}/{index}/{member}"), message));
        }
        if let Some(name) = &which.host {
            host(name).map_err(|why| (format!("/{list}/{index}/host"), why))?;
        }
        match &which.path {
            Some(path) => plain(path).map_err(|why| (format!("/{list}/{index}/path"), why))?,
            None if which.is_exact() => {
                let message = "\"exact\" needs a path".to_owned();
                return Err((format!("/{list}/{index}/exact"), message));
            }
            None if which.minds_case() => {
                let message = "\"exact_case\" needs a path".to_owned();
                return Err((format!("/{list}/{index}/exact_case"), message));
            }
            None => {}
        }
    }
    let mut count = 0;
    for (index, trap) in file.traps.iter().enumerate() {
        for (place, path) in trap.paths.iter().enumerate() {
            let fault = |why| (format!("/traps/{index}/paths/{place}"), why);
            plain(path).map_err(fault)?;
            trap_path(path).map_err(fault)?;
            count += 1;
            if count > MAX_TRAP_PATHS {
                let why = format!("expected at most {MAX_TRAP_PATHS} trap paths in all");
                return Err(fault(why));
            }
        }
    }
    Ok(())
}

/// Checks what a schema cannot express about `match`.
fn matches(file: &RulesFile) -> Result<(), (String, String)> {
    let of_crawlers = file.crawlers.iter().map(|one| one.user_agent.len());
    let mut literals: usize = of_crawlers.sum();
    for (pointer, matching) in file.matches() {
        let judged = matching.judge(plain).and_then(|()| {
            let is_exempt = pointer.starts_with("/exempt/");
            if is_exempt {
                matching.judge_exempt()
            } else {
                Ok(())
            }
        });
        judged.map_err(|(inside, why)| (format!("{pointer}{inside}"), why))?;
        if let Some(list) = &matching.list
            && !file.feeds.iter().any(|feed| feed.name == *list)
        {
            let why = format!("no feed is named {list:?}");
            return Err((format!("{pointer}/list"), why));
        }
        literals += matching.literals();
        if literals > MAX_LITERALS {
            let why = format!("expected at most {MAX_LITERALS} literals in all");
            return Err((pointer, why));
        }
    }
    Ok(())
}

/// Refuses a text that no path can be.
fn plain(path: &str) -> Result<(), String> {
    let strange = |c: char| c.is_control() || c.is_whitespace() || matches!(c, '?' | '#' | '\\');
    if !path.starts_with('/') || path.contains(strange) {
        return Err(format!(
            "{path:?} is not a path: expected one that begins with / and has no blank, ?, # or \\"
        ));
    }
    Ok(())
}

fn trap_path(path: &str) -> Result<(), String> {
    if is_root(path) {
        return Err("a trap at / would ban every client".to_owned());
    }
    if path::is_own(path) {
        return Err(format!(
            "{path:?} is the service's own: it is never forwarded"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
