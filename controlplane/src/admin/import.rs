//! `POST /v1/bans/import`: many bans in one request and one write (CONTROL-9). The body is a
//! bans.json, as `weir bans export` writes one, or a plain list of netblocks, one a line, for which
//! the query says how long and why. It is judged whole: with one fault nothing is taken.

use std::collections::BTreeSet;
use std::sync::Arc;

use percent_encoding::percent_decode_str;
use weir_shared::ban::Ban;
use weir_shared::netblock::Netblock;
use weir_shared::spared::Spared;

use crate::bans::document::BansFile;
use crate::bans::ledger::Order;
use crate::bans::ledger::import::Batch;
use crate::bans::too_wide::too_wide;
use crate::json;
use crate::state::text;

use super::bans::{duration, netblock};
use super::problem::{Fault, Problem};

/// The most bytes of a body: 100,000 bans with all their notes.
pub(crate) const MAX_IMPORT: usize = 128 << 20;
/// Faults that are told; how many more there are is told, too.
const MAX_TOLD: usize = 100;
/// The longest reason, as of a single ban.
const MAX_REASON: usize = 500;

/// What the query says.
#[derive(Default)]
struct Terms {
    duration: Option<String>,
    reason: Option<String>,
    force: bool,
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

    fn judge<T>(mut self, good: T) -> Result<T, Problem> {
        if self.told.is_empty() {
            return Ok(good);
        }
        if self.further > 0 {
            self.told.push(Fault {
                pointer: String::new(),
                detail: format!("{} further faults", self.further),
            });
        }
        Err(Problem::DoesNotFit(self.told))
    }
}

/// Reads a body. It takes seconds where the body is long.
///
/// # Errors
/// 400 for the query, 422 with every fault of the body, each with its line or its JSON pointer.
pub(crate) fn read(query: &str, body: &[u8], spared: &Spared) -> Result<Batch, Problem> {
    let terms = terms(query)?;
    if body.trim_ascii_start().starts_with(b"{") {
        if terms.duration.is_some() || terms.reason.is_some() {
            let sentence = "duration and reason are for a plain list: a bans.json has its own";
            return Err(Problem::BadRequest(sentence.to_owned()));
        }
        return document(body, terms.force, spared);
    }
    let (Some(length), Some(reason)) = (&terms.duration, terms.reason) else {
        let sentence = "a plain list needs how long and why: ?duration=2h&reason=TEXT; a bans.json begins with {";
        return Err(Problem::BadRequest(sentence.to_owned()));
    };
    let length = duration(length).map_err(|why| Problem::BadRequest(format!("duration: {why}")))?;
    if !(1..=MAX_REASON).contains(&reason.chars().count()) {
        let sentence = format!("reason: expected 1 to {MAX_REASON} characters");
        return Err(Problem::BadRequest(sentence));
    }
    let netblocks = list(body, terms.force, spared)?.into_iter();
    let order = |netblock| Order {
        netblock,
        client: None,
        duration: length,
        reason: reason.clone(),
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
            _ => {
                return Err(Problem::BadRequest(format!(
                    "{name}={value:?} is not understood: expected duration, reason, or force=true"
                )));
            }
        }
    }
    Ok(terms)
}

fn document(body: &[u8], force: bool, spared: &Spared) -> Result<Batch, Problem> {
    let content = text::parse::<BansFile>(body).map_err(|fault| {
        let (line, column) = (fault.line, fault.column);
        Problem::DoesNotFit(vec![Fault {
            pointer: fault.pointer,
            detail: format!("line {line}, column {column}: {}", fault.message),
        }])
    })?;
    let mut faults = Faults::default();
    let mut bans: Vec<Arc<Ban>> = content.entries;
    for (index, ban) in bans.iter_mut().enumerate() {
        let widened = ban.netblock.widened_to_clients();
        if widened != ban.netblock {
            Arc::make_mut(ban).netblock = widened;
        }
        let of_entry = ban.unknown.get("force").and_then(|force| force.as_bool());
        if force || of_entry == Some(true) || ban.lifted.is_some() {
            continue;
        }
        if let Some(why) = too_wide(ban.netblock, spared, None) {
            let pointer = format!("/bans/{index}{}", json::member("netblock"));
            let line = match faults.told.len() < MAX_TOLD {
                true => json::place(body, &pointer).0,
                false => 0,
            };
            let detail = format!("line {line}: {why}: \"force\": true would be needed");
            faults.add(pointer, detail);
        }
    }
    faults.judge(Batch::Bans(bans))
}

/// The netblocks of a plain list, each once; comments stand behind `#` and `;`.
fn list(body: &[u8], force: bool, spared: &Spared) -> Result<BTreeSet<Netblock>, Problem> {
    let mut faults = Faults::default();
    let mut netblocks = BTreeSet::new();
    let text = String::from_utf8_lossy(body);
    let text = text.trim_start_matches('\u{feff}');
    for (line, number) in text.lines().zip(1..) {
        let written = line.split(['#', ';']).next().unwrap_or_default().trim();
        if written.is_empty() {
            continue;
        }
        let judged = netblock(written).and_then(|netblock| {
            match too_wide(netblock, spared, None).filter(|_| !force) {
                Some(why) => Err(format!("{why}: \"force\": true would be needed")),
                None => Ok(netblock),
            }
        });
        match judged {
            Ok(netblock) => drop(netblocks.insert(netblock)),
            Err(why) => faults.add(String::new(), format!("line {number}: {}", shortened(&why))),
        }
    }
    faults.judge(netblocks)
}

/// A line may be a megabyte long.
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

        /// CONTROL-9: whatever bytes come, they are judged: bans, or at least one fault.
        #[test]
        fn any_bytes_are_judged(body in prop::collection::vec(any::<u8>(), 0..200), brace in any::<bool>()) {
            let body = if brace { [b"{".as_slice(), &body].concat() } else { body };
            let query = if body.trim_ascii_start().starts_with(b"{") { "" } else { TERMS };
            match read(query, &body, &spared()) {
                Ok(_) => {}
                Err(Problem::DoesNotFit(faults)) => prop_assert!(!faults.is_empty()),
                Err(other) => prop_assert!(false, "{:?}", other),
            }
        }

        /// CONTROL-9: a list is taken whole or not at all, and each bad line is named once: as when
        /// each line is judged by itself.
        #[test]
        fn a_list_is_judged_line_by_line(lines in prop::collection::vec(line(), 0..30)) {
            let alone = |line: &str| read(TERMS, line.as_bytes(), &spared());
            let bad: Vec<usize> = (lines.iter().zip(1..))
                .filter(|(line, _)| alone(line).is_err())
                .map(|(_, number)| number)
                .collect();
            match read(TERMS, lines.join("\n").as_bytes(), &spared()) {
                Ok(Batch::Orders(orders)) => {
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

    /// CONTROL-9: faults are told up to a bound, and how many more there are.
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
