//! Decisions of CrowdSec: the reader of its stream, and the set of current decisions by their ids
//! (FEED-7). Pure: `stream.rs` asks the LAPI and reports.

use std::collections::{BTreeSet, HashMap};
use std::fmt::{self, Write as _};

use serde::Deserialize;
use serde::de::{Deserializer, SeqAccess, Visitor};
use weir_shared::lookup::{AsNumber, Country};
use weir_shared::netblock::Netblock;
use weir_shared::rules::{Feed, MAX_NETBLOCKS};
use weir_shared::settings::{Asns, Countries};

use super::judge::{Guard, bounded};
use super::wanted::Other;

/// How many characters of the value of an unusable decision are quoted.
const MAX_QUOTED: usize = 40;
/// Longer durations count as this: a hundred years.
const MAX_LEFT_MS: u64 = 100 * 366 * 86_400_000;

/// The subject of a decision.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) enum Subject {
    /// Scopes `Ip` and `Range`.
    Netblock(Netblock),
    /// Scope `As`.
    As(AsNumber),
    /// Scope `Country`.
    Country(Country),
}

/// A decision of an answer that this program can apply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Given {
    id: i64,
    /// None if it is simulated: it is ignored whatever its type.
    subject: Option<Subject>,
    /// The time until its end; 0 if it has ended.
    left_ms: u64,
    is_ban: bool,
}

/// One answer of the stream.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Answer {
    new: Vec<Given>,
    deleted: Vec<i64>,
    /// Decisions whose scope, value or duration cannot be used.
    pub(crate) skipped: usize,
    /// The first of these decisions, shortened.
    pub(crate) first_skipped: Option<String>,
}

/// Parses an answer. The error is the end of a sentence, and quotes nothing of the answer.
pub(crate) fn parse(bytes: &[u8]) -> Result<Answer, String> {
    let read: Read = serde_json::from_slice(bytes).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        match error.classify() {
            serde_json::error::Category::Eof => {
                format!("the answer was cut: it ends at line {line}, column {column}")
            }
            _ => format!("the answer is no decision stream: line {line}, column {column}"),
        }
    })?;
    if read.new.is_none() && read.deleted.is_none() {
        return Err("the answer has neither \"new\" nor \"deleted\"".to_owned());
    }
    let new = read.new.and_then(|list| list.0).unwrap_or_default();
    if new.is_too_much {
        return Err(format!(
            "the answer has more than {MAX_NETBLOCKS} decisions, the most of all lists together"
        ));
    }
    let deleted = read.deleted.and_then(|list| list.0);
    Ok(Answer {
        new: new.given,
        deleted: deleted.map(|ids| ids.0).unwrap_or_default(),
        skipped: new.skipped,
        first_skipped: new.first_skipped,
    })
}

/// The JSON of an answer. A list may be `null`, which differs from absent.
#[derive(Deserialize)]
struct Read {
    #[serde(default, deserialize_with = "there")]
    new: Option<Nullable<New>>,
    #[serde(default, deserialize_with = "there")]
    deleted: Option<Nullable<Deleted>>,
}

/// A value, or `null`.
#[derive(Deserialize)]
struct Nullable<T>(Option<T>);

fn there<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Option<T>, D::Error> {
    T::deserialize(from).map(Some)
}

/// The JSON of a decision, with the members in use.
#[derive(Deserialize)]
struct Item {
    id: i64,
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    scope: String,
    #[serde(default)]
    value: String,
    #[serde(default)]
    duration: String,
    #[serde(default)]
    simulated: Option<bool>,
}

impl Item {
    /// The decision; none if it cannot be used.
    fn given(&self) -> Option<Given> {
        let is_simulated = self.simulated == Some(true);
        let subject = match is_simulated {
            true => None,
            false => Some(subject(&self.scope, &self.value)?),
        };
        Some(Given {
            id: self.id,
            subject,
            left_ms: left_ms(&self.duration)?,
            is_ban: self.kind.eq_ignore_ascii_case("ban"),
        })
    }
}

/// `new`, read item by item: even a long list of `null` takes no memory.
#[derive(Default)]
struct New {
    given: Vec<Given>,
    skipped: usize,
    first_skipped: Option<String>,
    is_too_much: bool,
}

impl<'de> Deserialize<'de> for New {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Reading;
        impl<'de> Visitor<'de> for Reading {
            type Value = New;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of decisions")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<New, A::Error> {
                let mut new = New::default();
                while let Some(item) = items.next_element::<Option<Item>>()? {
                    let Some(item) = item else { continue };
                    match item.given() {
                        _ if new.given.len() >= MAX_NETBLOCKS => new.is_too_much = true,
                        Some(given) => new.given.push(given),
                        None => {
                            new.skipped += 1;
                            new.first_skipped.get_or_insert_with(|| told(&item));
                        }
                    }
                }
                Ok(new)
            }
        }
        from.deserialize_seq(Reading)
    }
}

/// `deleted`: only the ids are read.
#[derive(Default)]
struct Deleted(Vec<i64>);

impl<'de> Deserialize<'de> for Deleted {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Id {
            id: i64,
        }
        struct Reading;
        impl<'de> Visitor<'de> for Reading {
            type Value = Deleted;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of decisions")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Deleted, A::Error> {
                let mut ids = Vec::new();
                while let Some(item) = items.next_element::<Option<Id>>()? {
                    ids.extend(item.map(|item| item.id));
                }
                Ok(Deleted(ids))
            }
        }
        from.deserialize_seq(Reading)
    }
}

/// An unusable decision in a few words.
fn told(item: &Item) -> String {
    let short = |text: &str| text.chars().take(MAX_QUOTED).collect::<String>();
    format!(
        "{}: scope {:?}, value {:?}, duration {:?}",
        item.id,
        short(&item.scope),
        short(&item.value),
        short(&item.duration)
    )
}

fn subject(scope: &str, value: &str) -> Option<Subject> {
    let value = value.trim();
    let is = |name: &str| scope.eq_ignore_ascii_case(name);
    if is("ip") || is("range") {
        return value.parse().ok().map(Subject::Netblock);
    }
    if is("as") {
        let (number, name) = AsNumber::parse_named(value).ok()?;
        return number.filter(|_| name.is_none()).map(Subject::As);
    }
    if is("country") {
        return value.parse().ok().map(Subject::Country);
    }
    None
}

/// Milliseconds of a duration in Go's format, such as `3h59m57.12s`, rounded up; 0 if it is
/// negative.
fn left_ms(text: &str) -> Option<u64> {
    let (is_over, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Some(0);
    }
    if rest.is_empty() {
        return None;
    }
    let mut nanoseconds: u128 = 0;
    while !rest.is_empty() {
        let is_number = |c: char| c.is_ascii_digit() || c == '.';
        let (number, behind) = rest.split_at(rest.find(|c| !is_number(c))?);
        let until = behind.find(is_number).unwrap_or(behind.len());
        let (unit, behind) = behind.split_at(until);
        let scale: u128 = match unit {
            "h" => 3_600_000_000_000,
            "m" => 60_000_000_000,
            "s" => 1_000_000_000,
            "ms" => 1_000_000,
            "us" | "µs" | "μs" => 1000,
            "ns" => 1,
            _ => return None,
        };
        let (whole, part) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() && part.is_empty() {
            return None;
        }
        let digits = |text: &str| match text {
            "" => Some(0_u128),
            text => text.bytes().try_fold(0_u128, |sum, byte| {
                let digit = byte.is_ascii_digit().then(|| u128::from(byte - b'0'))?;
                Some(sum.saturating_mul(10).saturating_add(digit))
            }),
        };
        // Further digits are finer than a nanosecond even of an hour.
        let part = part.get(..part.len().min(15)).unwrap_or_default();
        let divisor = 10_u128.pow(u32::try_from(part.len()).unwrap_or(0));
        nanoseconds = nanoseconds
            .saturating_add(digits(whole)?.saturating_mul(scale))
            .saturating_add(digits(part)?.saturating_mul(scale) / divisor);
        rest = behind;
    }
    let left_ms = u64::try_from(nanoseconds.div_ceil(1_000_000)).unwrap_or(u64::MAX);
    Some(if is_over { 0 } else { left_ms.min(MAX_LEFT_MS) })
}

/// A current decision.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Decision {
    subject: Subject,
    /// The end, in milliseconds since 1970.
    ends_ms: u64,
}

/// The current decisions, by their ids.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Decisions(HashMap<i64, Decision>);

impl Decisions {
    /// Applies an answer at `now_ms`, and returns how to undo it. A decision that is new and
    /// deleted in one answer is deleted.
    pub(crate) fn apply(&mut self, answer: &Answer, other: Other, now_ms: u64) -> Undo {
        let mut undo = Undo::default();
        for given in &answer.new {
            let counts = given.left_ms > 0 && (given.is_ban || other == Other::Deny);
            let ends_ms = now_ms.saturating_add(given.left_ms);
            let subject = given.subject.filter(|_| counts);
            let decision = subject.map(|subject| Decision { subject, ends_ms });
            undo.note(given.id, self.put(given.id, decision), decision);
        }
        for id in &answer.deleted {
            undo.note(*id, self.put(*id, None), None);
        }
        undo
    }

    /// Sets or removes a decision, and returns the previous one of this id.
    fn put(&mut self, id: i64, decision: Option<Decision>) -> Option<Decision> {
        match decision {
            Some(decision) => self.0.insert(id, decision),
            None => self.0.remove(&id),
        }
    }

    /// Restores the decisions as they were before an answer.
    pub(crate) fn undo(&mut self, undo: Undo) {
        for (id, before) in undo.0.into_iter().rev() {
            self.put(id, before);
        }
    }

    /// Applies only the deletions of an answer.
    pub(crate) fn delete(&mut self, answer: &Answer) {
        for id in &answer.deleted {
            self.0.remove(id);
        }
    }

    /// Removes the decisions that have ended.
    pub(crate) fn end(&mut self, now_ms: u64) {
        self.0.retain(|_, decision| decision.ends_ms > now_ms);
    }

    /// When the next decision ends.
    pub(crate) fn next_end_ms(&self) -> Option<u64> {
        self.0.values().map(|decision| decision.ends_ms).min()
    }

    /// The number of decisions; two on one value count as two.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The subjects of the decisions, each once.
    pub(crate) fn listed(&self) -> Listed {
        let mut listed = Listed::default();
        for decision in self.0.values() {
            match decision.subject {
                Subject::Netblock(netblock) => listed.netblocks.push(netblock),
                Subject::As(number) => {
                    listed.asns.insert(number);
                }
                Subject::Country(country) => {
                    listed.countries.insert(country);
                }
            }
        }
        listed.netblocks.sort_unstable();
        listed.netblocks.dedup();
        listed
    }

    /// The lines of the copy: id, subject and end, one decision a line, in the order of their ids.
    pub(crate) fn lines(&self) -> String {
        let mut all: Vec<(&i64, &Decision)> = self.0.iter().collect();
        all.sort_unstable_by_key(|(id, _)| **id);
        let mut text = String::new();
        for (id, Decision { subject, ends_ms }) in all {
            let _ = match subject {
                Subject::Netblock(netblock) => writeln!(text, "{id} {netblock} {ends_ms}"),
                Subject::As(number) => writeln!(text, "{id} AS{} {ends_ms}", number.number()),
                Subject::Country(country) => writeln!(text, "{id} {country} {ends_ms}"),
            };
        }
        text
    }

    /// Parses these lines; none if one of them is malformed.
    pub(crate) fn of_lines(text: &str) -> Option<Self> {
        let mut decisions = HashMap::new();
        for line in text.lines() {
            let mut words = line.split(' ');
            let (id, value) = (words.next()?.parse().ok()?, words.next()?);
            let ends_ms = words.next()?.parse().ok()?;
            let scopes = ["ip", "country", "as"].into_iter();
            let subject = scopes.filter_map(|scope| subject(scope, value)).next()?;
            decisions.insert(id, Decision { subject, ends_ms });
        }
        Some(Self(decisions))
    }
}

/// The changes of an answer: ids in order, each with the previous decision.
#[derive(Debug, Default)]
pub(crate) struct Undo(Vec<(i64, Option<Decision>)>);

impl Undo {
    fn note(&mut self, id: i64, before: Option<Decision>, now: Option<Decision>) {
        if before != now {
            self.0.push((id, before));
        }
    }

    /// Whether nothing was changed.
    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The subjects of decisions, each once and in order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Listed {
    pub(crate) netblocks: Vec<Netblock>,
    pub(crate) asns: BTreeSet<AsNumber>,
    pub(crate) countries: BTreeSet<Country>,
}

impl Listed {
    /// Makes a version of the feed of this name, and returns the netblocks that are left out of it
    /// as well (FEED-5).
    ///
    /// # Errors
    /// The remaining netblocks cover nearly everybody. The error is the end of a sentence.
    pub(crate) fn feed(
        self,
        name: &str,
        guard: &Guard,
        taken_ms: u64,
        confirmed_ms: u64,
    ) -> Result<(Feed, Vec<Netblock>), String> {
        let (hold, left_out) = guard.part(self.netblocks);
        bounded(&hold)?;
        let asns = Asns {
            numbers: self.asns,
            unknown: false,
        };
        let countries = Countries {
            codes: self.countries,
            unknown: false,
        };
        let feed = Feed::new(name, hold, taken_ms, confirmed_ms).with_places(asns, countries);
        Ok((feed, left_out))
    }
}

/// Entry points for the fuzz targets.
#[cfg(fuzzing)]
pub mod fuzzing {
    use super::{Decisions, parse};
    use crate::feeds::wanted::Other;

    /// The lines of the copy for an answer, and the same after parsing them again; or why it is no
    /// answer.
    pub fn decisions(bytes: &[u8]) -> Result<(String, Option<String>), String> {
        let answer = parse(bytes)?;
        let mut decisions = Decisions::default();
        decisions.apply(&answer, Other::Deny, 0);
        let lines = decisions.lines();
        let again = Decisions::of_lines(&lines).map(|again| again.lines());
        Ok((lines, again))
    }
}

#[cfg(test)]
mod tests;
