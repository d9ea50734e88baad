//! `POST /v1/bans/import`: many bans in one request and one write (CONTROL-9). The body is a
//! bans.json, as `weir bans export` writes one, or a list of netblocks in any published form
//! (FEED-2), with duration and reason in the query. The body is checked as a whole: with one fault
//! nothing is imported.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use http::StatusCode;
use percent_encoding::percent_decode_str;
use serde::de::{Deserializer as _, IgnoredAny, MapAccess, Visitor};
use weir_shared::ban::Ban;
use weir_shared::handover::OwnResponse;
use weir_shared::netblock::Netblock;
use weir_shared::spared::Spared;

use crate::bans::document::BansFile;
use crate::bans::ledger::AdminBan;
use crate::bans::ledger::import::Batch;
use crate::bans::too_wide::too_wide;
use crate::json;
use crate::netblock_list::{self, Found, MAX_LISTED, Unusable};
use crate::state::text;

use super::bans::{duration, not_mapped};
use super::problem::{Fault, Problem, json as json_answer};

/// The most bytes of a body: 100,000 bans with all their notes.
pub(crate) const MAX_IMPORT: usize = 128 << 20;
/// The most faults of a list that are reported; the number of further ones is reported too.
const MAX_TOLD: usize = 100;
/// The most faults of a bans.json: finding the line of each costs a search of the whole file.
const MAX_PLACED: usize = 20;
/// The longest reason, as of a single ban.
const MAX_REASON: usize = 500;

/// The query: duration, reason and the like.
#[derive(Default)]
struct Terms {
    duration: Option<String>,
    reason: Option<String>,
    force: bool,
    dry_run: bool,
}

/// A body without a fault.
#[derive(Debug)]
pub(crate) enum Judged {
    Take(Batch),
    /// A dry run: so many bans would be imported.
    WouldTake(usize),
}

/// The faults of a body.
#[derive(Default)]
struct Faults {
    told: Vec<Fault>,
    further: usize,
}

impl Faults {
    fn add(&mut self, pointer: String, detail: String) {
        if self.told.len() < MAX_TOLD {
            self.told.push(Fault { pointer, detail });
        } else {
            self.further += 1;
        }
    }

    fn judge<T>(self, good: T) -> Result<T, Problem> {
        if self.told.is_empty() {
            return Ok(good);
        }
        Err(self.problem())
    }

    fn problem(mut self) -> Problem {
        if self.further > 0 {
            self.told.push(Fault {
                pointer: String::new(),
                detail: format!("{} further faults", self.further),
            });
        }
        Problem::DoesNotFit(self.told)
    }
}

/// Reads and checks a body. A long one takes seconds.
///
/// # Errors
/// 400 for the query, 422 with every fault of the body, each with its line or its JSON pointer.
pub(crate) fn read(query: &str, body: &[u8], spared: &Spared) -> Result<Judged, Problem> {
    let terms = terms(query)?;
    let dry_run = terms.dry_run;
    let batch = batch(terms, body, spared)?;
    Ok(match dry_run {
        true => Judged::WouldTake(batch.len()),
        false => Judged::Take(batch),
    })
}

/// The answer to a dry run.
pub(crate) fn would_take(count: usize) -> OwnResponse {
    json_answer(
        StatusCode::OK,
        &serde_json::json!({"dry_run": true, "would_import": count}),
    )
}

/// Checks a file to import without a service (CONTROL-3): returns the number of its bans, or every
/// fault.
pub(crate) fn check(body: &[u8], spared: &Spared) -> Result<usize, Vec<String>> {
    let is_document = is_bans_file(body);
    let terms = Terms {
        duration: (!is_document).then(|| "1h".to_owned()),
        reason: (!is_document).then(|| "a check".to_owned()),
        ..Terms::default()
    };
    let faults = match batch(terms, body, spared) {
        Ok(batch) => return Ok(batch.len()),
        Err(Problem::DoesNotFit(faults)) => faults,
        Err(_) => Vec::new(),
    };
    let sentence = |fault: Fault| match &*fault.pointer {
        "" => fault.detail,
        pointer => format!("{pointer}: {}", fault.detail),
    };
    Err(faults.into_iter().map(sentence).collect())
}

fn batch(terms: Terms, body: &[u8], spared: &Spared) -> Result<Batch, Problem> {
    if is_bans_file(body) {
        if terms.duration.is_some() || terms.reason.is_some() {
            let sentence =
                "duration and reason are for a list of netblocks: a bans.json has its own";
            return Err(Problem::BadRequest(sentence.to_owned()));
        }
        return document(body, terms.force, spared);
    }
    let (Some(length), Some(reason)) = (&terms.duration, terms.reason) else {
        let sentence = "a list of netblocks needs how long and why: ?duration=2h&reason=TEXT; a bans.json has them in it";
        return Err(Problem::BadRequest(sentence.to_owned()));
    };
    let length = duration(length).map_err(|why| Problem::BadRequest(format!("duration: {why}")))?;
    if !(1..=MAX_REASON).contains(&reason.chars().count()) {
        let sentence = format!("reason: expected 1 to {MAX_REASON} characters");
        return Err(Problem::BadRequest(sentence));
    }
    let force = terms.force;
    let netblocks = list(body, force, spared)?.into_iter();
    let order = |netblock| AdminBan {
        netblock,
        client: None,
        duration: length,
        reason: reason.clone(),
        force,
    };
    Ok(Batch::Orders(netblocks.map(order).collect()))
}

fn terms(query: &str) -> Result<Terms, Problem> {
    let mut terms = Terms::default();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let value = percent_decode_str(value).decode_utf8_lossy().into_owned();
        match (name, value.as_str()) {
            ("duration", _) => terms.duration = Some(value),
            ("reason", _) => terms.reason = Some(value),
            ("force", "true" | "false") => terms.force = value == "true",
            ("dry_run", "true" | "false") => terms.dry_run = value == "true",
            _ => {
                return Err(Problem::BadRequest(format!(
                    "{name}={value:?} is not valid: expected duration, reason, force=true or dry_run=true"
                )));
            }
        }
    }
    Ok(terms)
}

fn document(body: &[u8], force: bool, spared: &Spared) -> Result<Batch, Problem> {
    let judge = |ban: &Arc<Ban>| {
        let of_entry = ban.unknown.get("force").and_then(|force| force.as_bool());
        if force || of_entry == Some(true) || ban.lifted.is_some() {
            return Ok(());
        }
        match too_wide(ban.netblock.widened_to_clients(), spared, None) {
            Some(why) => Err((
                json::member("netblock"),
                format!("{why}: \"force\": true would be needed"),
            )),
            None => Ok(()),
        }
    };
    let content = text::judged::<BansFile>(body, MAX_PLACED, &judge).map_err(|found| {
        let mut faults = Faults {
            further: found.further,
            ..Faults::default()
        };
        for fault in found.told {
            let (line, column) = (fault.line, fault.column);
            let detail = format!("line {line}, column {column}: {}", fault.message);
            faults.add(fault.pointer, detail);
        }
        faults.problem()
    })?;
    let mut bans: Vec<Arc<Ban>> = content.entries;
    for ban in &mut bans {
        let widened = ban.netblock.widened_to_clients();
        if widened != ban.netblock {
            Arc::make_mut(ban).netblock = widened;
        }
    }
    Ok(Batch::Bans(bans))
}

/// Whether a body is a bans.json rather than a list of netblocks in JSON. Both begin alike, so the
/// members decide; an object without members counts as a bans.json.
pub(crate) fn is_bans_file(body: &[u8]) -> bool {
    struct Members<'a>(&'a mut bool);

    impl<'de> Visitor<'de> for Members<'_> {
        type Value = ();

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
            let mut is_empty = true;
            while let Some(name) = map.next_key::<String>()? {
                if matches!(&*name, "version" | "bans") {
                    *self.0 = true;
                    return Ok(());
                }
                is_empty = false;
                map.next_value::<IgnoredAny>()?;
            }
            *self.0 = is_empty;
            Ok(())
        }
    }

    let mut is_bans = false;
    let mut json = serde_json::Deserializer::from_slice(body);
    // Errors are reported later, by the reader of the whole body.
    let _ = json.deserialize_map(Members(&mut is_bans));
    is_bans
}

/// The netblocks of a list, each once.
fn list(body: &[u8], force: bool, spared: &Spared) -> Result<BTreeSet<Netblock>, Problem> {
    let mut faults = Faults::default();
    let mut netblocks = BTreeSet::new();
    let read = netblock_list::each(body, MAX_LISTED, &mut |found| match judged(
        &found, force, spared,
    ) {
        Ok(netblock) => drop(netblocks.insert(netblock)),
        Err(why) => {
            let (pointer, why) = (found.pointer, shortened(&why));
            match found.line {
                None => faults.add(pointer.to_owned(), why),
                Some(number) if pointer.is_empty() => {
                    faults.add(String::new(), format!("line {number}: {why}"));
                }
                Some(number) => {
                    let detail = format!("line {number}, at \"{pointer}\": {why}");
                    faults.add(String::new(), shortened(&detail));
                }
            }
        }
    });
    match read {
        Ok(()) => {}
        Err(Unusable::NotJson(fault)) => {
            let (line, column) = (fault.line, fault.column);
            let detail = format!("line {line}, column {column}: {}", fault.message);
            faults.add(fault.pointer, detail);
        }
        Err(Unusable::TooMany(most)) => {
            faults.add(String::new(), format!("expected at most {most} netblocks"));
        }
    }
    faults.judge(netblocks)
}

/// Checks an item of a list, and returns the netblock of its ban.
fn judged(found: &Found<'_>, force: bool, spared: &Spared) -> Result<Netblock, String> {
    let Some(netblock) = found.netblock else {
        return Err(netblock_list::expected(found.text));
    };
    not_mapped(found.text)?;
    let netblock = netblock.widened_to_clients();
    match too_wide(netblock, spared, None).filter(|_| !force) {
        Some(why) => Err(format!("{why}: \"force\": true would be needed")),
        None => Ok(netblock),
    }
}

/// Shortens a text for a message: a line may be a megabyte long.
fn shortened(text: &str) -> String {
    let end = text.floor_char_boundary(300);
    let cut = text.get(..end).unwrap_or_default();
    if cut.len() < text.len() {
        format!("{cut}…")
    } else {
        cut.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TERMS: &str = "duration=2h&reason=a%20list";

    fn spared() -> Spared {
        Spared::new(["10.1.0.0/16".parse().unwrap()].into_iter().collect())
    }

    /// CONTROL-9: a ban that would end at once is a fault in an import, as it is in a request for
    /// one ban.
    #[test]
    fn a_list_wants_a_length() {
        for length in ["0s", "0h"] {
            let query = format!("duration={length}&reason=x");
            let judged = batch(terms(&query).unwrap(), b"192.0.2.1", &spared());
            let told = format!("{:?}", judged.err());
            assert!(told.contains("would end at once"), "{told}");
        }
    }

    /// CONTROL-9: the answer names every faulty entry of a bans.json with its line and its pointer,
    /// up to a bound, and also bytes after the entries that are not JSON.
    #[test]
    fn every_faulty_entry_is_named() {
        let told = |text: &str| match read("", text.as_bytes(), &spared()) {
            Err(Problem::DoesNotFit(faults)) => faults
                .into_iter()
                .map(|fault| format!("{} {}", fault.pointer, fault.detail))
                .collect::<Vec<_>>(),
            other => panic!("{other:?}"),
        };
        let entries = [
            r#"{"netblock":"nowhere","ban_expires":"permanent"}"#,
            r#"{"netblock":"192.0.2.0/24","ban_expires":"permanent"}"#,
            r#"{"netblock":"0.0.0.0/0","ban_expires":"permanent"}"#,
            r#"{"netblock":"198.51.100.0/24"}"#,
        ];
        let text = format!("{{\"version\":1,\"bans\":[\n{}\n]}}", entries.join(",\n"));
        let faults = told(&text);
        let begins = [
            "/bans/0/netblock line 2, column ",
            "/bans/2/netblock line 4, column ",
            "/bans/3 line 5, column ",
        ];
        assert_eq!(faults.len(), begins.len(), "{faults:?}");
        for (fault, begin) in faults.iter().zip(begins) {
            assert!(fault.starts_with(begin), "{fault}");
        }
        let cut = told(text.trim_end_matches("}\n]}"));
        assert_eq!(cut.len(), 3, "{cut:?}");
        assert!(cut[2].contains("EOF while parsing"), "{cut:?}");
        let many = vec![entries[0]; MAX_PLACED + 30].join(",");
        let many = told(&format!("{{\"version\":1,\"bans\":[{many}]}}"));
        assert_eq!(many.len(), MAX_PLACED + 1);
        assert_eq!(many[MAX_PLACED], " 30 further faults");
    }

    fn line() -> impl Strategy<Value = &'static str> {
        prop::sample::select(vec![
            "192.0.2.1",
            " 192.0.2.0/24 # c",
            "; c",
            "",
            "::1/128",
            "2001:db8::/32 ; c",
            "0.0.0.0/0",
            "10.1.2.3",
            "::ffff:192.0.2.1",
            "nowhere",
            "1.2.3.4/33",
            "192.0.2.1-9",
            "\u{feff}",
        ])
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        /// CONTROL-9: a body of any bytes becomes bans, or at least one fault.
        #[test]
        fn any_bytes_are_judged(body in prop::collection::vec(any::<u8>(), 0..200), brace in any::<bool>()) {
            let body = if brace { [b"{\"bans\":".as_slice(), &body].concat() } else { body };
            let query = if is_bans_file(&body) { "" } else { TERMS };
            match read(query, &body, &spared()) {
                Ok(_) => {}
                Err(Problem::DoesNotFit(faults)) => prop_assert!(!faults.is_empty()),
                Err(other) => prop_assert!(false, "{:?}", other),
            }
        }

        /// CONTROL-9: a list is imported whole or not at all, and each bad line is named once: the
        /// same lines as when each is parsed alone.
        #[test]
        fn a_list_is_judged_line_by_line(lines in prop::collection::vec(line(), 0..30)) {
            let alone = |line: &str| read(TERMS, line.as_bytes(), &spared());
            let bad: Vec<usize> = (lines.iter().zip(1..))
                .filter(|(line, _)| alone(line).is_err())
                .map(|(_, number)| number)
                .collect();
            match read(TERMS, lines.join("\n").as_bytes(), &spared()) {
                Ok(Judged::Take(Batch::Orders(orders))) => {
                    prop_assert!(bad.is_empty());
                    for order in &orders {
                        prop_assert_eq!(&order.reason, "a list");
                    }
                }
                Err(Problem::DoesNotFit(faults)) => {
                    let told: Vec<String> = faults.into_iter().map(|fault| fault.detail).collect();
                    prop_assert!(bad.len() <= told.len());
                    for number in bad {
                        let line = format!("line {number}: ");
                        prop_assert_eq!(told.iter().filter(|told| told.starts_with(&line)).count(), 1);
                    }
                }
                other => prop_assert!(false, "{:?}", other),
            }
        }
    }

    /// CONTROL-9: the answer lists faults up to a bound, and the number of the others.
    #[test]
    fn faults_are_bounded() {
        let body = format!("nowhere {}\n", "x".repeat(9000)).repeat(150);
        let Err(Problem::DoesNotFit(faults)) = read(TERMS, body.as_bytes(), &spared()) else {
            panic!("it is taken");
        };
        assert_eq!(faults.len(), MAX_TOLD + 1);
        assert!(faults.iter().all(|fault| fault.detail.len() < 400));
        assert_eq!(faults[MAX_TOLD].detail, "50 further faults");
    }
}
