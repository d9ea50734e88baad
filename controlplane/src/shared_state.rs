//! `shared.json`: keeps the counts of shared limits, the known clients, and the verified crawlers
//! over a restart (SHARE-4, SHARE-8, CRAWL-4). It is not one of the state files: with 200,000 known
//! clients, the copy in memory that edits are compared with would take many times the memory of the
//! clients. Nobody edits it while the service runs. A start checks the file, and uses or ignores it
//! as a whole; the next write keeps a faulty one as `shared.json.bad`.
//!
//! A thread of its own gathers and writes, every `WAF_STATE_COUNTER_INTERVAL` and at a stop or a
//! hand-over, which wait a bounded time for it. Without any content no file is made.

use std::fs;
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, TryRecvError, bounded};
use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};
use weir_shared::api::buckets::Buckets;
use weir_shared::client::Client;
use weir_shared::clock::Now;
use weir_shared::fleet::ValueHash;
use weir_shared::lookup::AsNumber;
use weir_shared::rules::{Rule, RuleKind, RuleSet, SharedKey};
use weir_shared::spared::{MAX_CRAWLER_CLIENTS, Spared};
use weir_shared::table::{ClientTable, KnownRow, MAX_KNOWN, SharedRow, SharedWindow};
use weir_shared::units::{Count, Time};
use weir_shared::window::RuleSpan;

use crate::beside::{self, UnderWay, Writing};
use crate::guarded::{self, if_there};
use crate::json;
use crate::state::fault::Fault;

/// The file's name.
pub(crate) const FILE: &str = "shared.json";
/// The most bytes that are read: enough for all known clients and all counts.
const MAX_BYTES: u64 = 64 << 20;
/// How long a start, a stop or a hand-over waits for the disk.
const PATIENCE: Duration = Duration::from_secs(2);
/// The most counts: more than the data plane keeps.
const MAX_COUNTS: usize = 50_000;

/// The file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    version: u32,
    /// The key of the field values whose counts are in the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    values: Option<ValueKey>,
    counts: Vec<CountForm>,
    known: Vec<KnownForm>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    crawlers: Vec<CrawlerForm>,
}

/// The key of the hashes of field values (SHARE-5), as 64 hexadecimal digits: with it the hashes
/// mean the same to the next process. In a fleet the fleet's key is used instead.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
struct ValueKey([u64; 4]);

impl ValueKey {
    fn drawn() -> Self {
        let random = RandomState::new();
        Self([0_u64, 1, 2, 3].map(|number| random.hash_one(number)))
    }

    fn hash(self) -> ValueHash {
        let Self([first, second, third, fourth]) = self;
        let hasher = ahash::RandomState::with_seeds(first, second, third, fourth);
        Box::new(move |value| hasher.hash_one(value))
    }
}

impl From<ValueKey> for String {
    fn from(ValueKey(key): ValueKey) -> Self {
        key.map(|part| format!("{part:016x}")).concat()
    }
}

impl TryFrom<String> for ValueKey {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let mut key = [0; 4];
        let bytes = HEXLOWER.decode(text.as_bytes()).ok();
        let bytes = bytes.filter(|bytes| bytes.len() == 32);
        let bytes = bytes.ok_or("expected 64 hexadecimal digits in lower case")?;
        for (part, bytes) in key.iter_mut().zip(bytes.as_chunks().0) {
            *part = u64::from_be_bytes(*bytes);
        }
        Ok(Self(key))
    }
}

/// One count.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CountForm {
    rule: String,
    per: String,
    key: String,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    known: bool,
    windows: Vec<WindowForm>,
}

#[derive(Serialize, Deserialize)]
struct WindowForm {
    window: RuleSpan,
    limit: Count,
    #[serde(flatten)]
    buckets: Buckets,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    other_sites: Option<Buckets>,
}

/// One known client.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KnownForm {
    client: Client,
    since: Time,
    lead: Count,
}

/// One client that was verified as a crawler.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CrawlerForm {
    client: Client,
    until: Time,
}

impl CountForm {
    fn of(row: &SharedRow) -> Self {
        Self {
            rule: row.rule.name.clone(),
            per: row.key.per().to_owned(),
            key: row.key.to_string(),
            known: row.is_second,
            windows: row.windows.iter().map(WindowForm::of).collect(),
        }
    }

    /// The row; none if the rule is gone, or the key is invalid.
    fn row(self, rules: &RuleSet) -> Option<SharedRow> {
        let is_it = |rule: &&Arc<Rule>| rule.kind == RuleKind::Limit && rule.name == self.rule;
        Some(SharedRow {
            rule: Arc::clone(rules.rules().find(is_it)?),
            key: key(&self.per, &self.key)?,
            is_second: self.known,
            windows: self.windows.into_iter().map(WindowForm::window).collect(),
        })
    }
}

/// Parses a key from its form in the log.
fn key(per: &str, text: &str) -> Option<SharedKey> {
    let is_unknown = text == "unknown";
    Some(match per {
        "netblock" => SharedKey::Netblock(text.parse().ok()?),
        "asn" if is_unknown => SharedKey::Asn(None),
        "asn" => SharedKey::Asn(Some(AsNumber::parse_named(text).ok()?.0?)),
        "country" if is_unknown => SharedKey::Country(None),
        "country" => SharedKey::Country(Some(text.parse().ok()?)),
        "all" => SharedKey::All,
        "field" if text == "absent" => SharedKey::Field(None),
        "field" => SharedKey::Field(Some(u64::from_str_radix(text, 16).ok()?)),
        _ => return None,
    })
}

impl WindowForm {
    fn of(of: &SharedWindow) -> Self {
        let other_sites = of.other_sites;
        Self {
            window: of.span,
            limit: Count(of.limit),
            buckets: Buckets::of(&of.window),
            other_sites: (other_sites.current > 0 || other_sites.previous > 0)
                .then(|| Buckets::of(&other_sites)),
        }
    }

    fn window(self) -> SharedWindow {
        SharedWindow {
            span: self.window,
            limit: self.limit.0,
            window: self.buckets.window(self.window),
            other_sites: self.other_sites.unwrap_or_default().window(self.window),
        }
    }
}

/// The control loop's state of the file.
pub(crate) struct SharedState {
    path: PathBuf,
    /// None in a fleet, which has its own key.
    values: Option<ValueKey>,
    /// The clients that the service never bans by itself, including verified crawlers.
    spared: Arc<Spared>,
    /// The content that the previous process left, until it is used.
    before: Option<Receiver<Result<Option<Written>, Unfit>>>,
    /// The write that is under way.
    writing: Option<Writing>,
    written_ns: u64,
    /// True if the file is faulty: it is set aside before it is replaced.
    is_unfit: Arc<AtomicBool>,
}

/// Why the file cannot be used.
#[derive(Debug, thiserror::Error)]
enum Unfit {
    #[error("what clients share, who is known and who is a crawler cannot be read: {0}")]
    Unread(#[from] io::Error),
    #[error("it does not fit: {0}; nothing of it is in force")]
    Misfit(Fault),
}

impl SharedState {
    /// Has the file read by a thread of its own, because it may hang with its mount. Waits a
    /// bounded time for it.
    pub(crate) fn start(
        (state_dir, is_in_fleet): (&Path, bool),
        table: &dyn ClientTable,
        spared: &Arc<Spared>,
        rules: &RuleSet,
        now: Now,
    ) -> Self {
        let values = (!is_in_fleet).then(ValueKey::drawn);
        if let Some(drawn) = values {
            table.tell_values_by(drawn.hash());
        }
        let path = state_dir.join(FILE);
        let (found, before) = bounded(1);
        let from = path.clone();
        let thread = std::thread::Builder::new().name("weir-shared".to_owned());
        // Without this thread no client is known yet.
        let _ = thread.spawn(move || found.send(read(&from)));
        let mut state = Self {
            path,
            values,
            spared: Arc::clone(spared),
            before: None,
            writing: None,
            written_ns: now.mono_ns,
            is_unfit: Arc::default(),
        };
        match before.recv_timeout(PATIENCE) {
            Ok(written) => state.put(written, table, rules, now),
            Err(_) => state.before = Some(before),
        }
        state
    }

    fn put(
        &mut self,
        written: Result<Option<Written>, Unfit>,
        table: &dyn ClientTable,
        rules: &RuleSet,
        now: Now,
    ) {
        let written = match written {
            Ok(Some(written)) => written,
            Ok(None) => return,
            Err(unfit) => {
                tracing::warn!("{}", unfit.sentence(&self.path));
                // Relaxed: the writing thread does not run yet.
                self.is_unfit.store(true, Ordering::Relaxed);
                return;
            }
        };
        if let (Some(values), Some(kept)) = (&mut self.values, written.values) {
            *values = kept;
            table.tell_values_by(kept.hash());
        }
        let crawlers = written.crawlers.into_iter().take(MAX_CRAWLER_CLIENTS);
        let crawlers = crawlers.map(|CrawlerForm { client, until }| (client, until.0));
        self.spared.put_crawlers(crawlers, now.wall_ms);
        let is_of_key = self.values.is_some() == written.values.is_some();
        rows(written.counts, rules, is_of_key).for_each(|row| table.put_shared(row));
        for KnownForm {
            client,
            since,
            lead,
        } in written.known.into_iter().take(MAX_KNOWN)
        {
            let lead = lead.0;
            table.put_known(KnownRow {
                client,
                since,
                lead,
            });
        }
    }

    /// Writes the file if that is due, and uses content that a slow disk delivers late.
    pub(crate) fn turn(
        &mut self,
        table: &Arc<dyn ClientTable>,
        rules: &RuleSet,
        interval: Duration,
        now: Now,
    ) {
        if let Some(found) = &self.before {
            match found.try_recv() {
                Ok(written) => {
                    self.before = None;
                    self.put(written, &**table, rules, now);
                }
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => self.before = None,
            }
        }
        if let Some(writing) = &self.writing {
            let Some(outcome) = writing.ended(Duration::ZERO) else {
                return;
            };
            self.told(&outcome);
            self.writing = None;
        }
        let interval_ns = u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX);
        if now.mono_ns.saturating_sub(self.written_ns) >= interval_ns {
            self.written_ns = now.mono_ns;
            self.writing = self.begin(table);
        }
    }

    /// Writes the file for the next process.
    ///
    /// # Errors
    /// A write is still under way: it may replace the file at any later time. A write that failed
    /// is in the log alone.
    pub(crate) fn keep(&mut self, table: &Arc<dyn ClientTable>) -> Result<(), UnderWay> {
        // A file that was never read is not overwritten.
        if self.before.is_some() {
            return Ok(());
        }
        if self.await_write() {
            self.writing = self.begin(table);
            self.await_write();
        }
        let is_at_rest = self.writing.is_none();
        is_at_rest.then_some(()).ok_or(UnderWay(FILE))
    }

    /// Waits for the write under way. True if it has ended without an error, or there was none.
    fn await_write(&mut self) -> bool {
        let Some(writing) = &self.writing else {
            return true;
        };
        let outcome = writing.ended(PATIENCE);
        if outcome.is_some() {
            self.writing = None;
        }
        let outcome = outcome.unwrap_or_else(|| Err(beside::late()));
        self.told(&outcome);
        outcome.is_ok()
    }

    fn told(&self, outcome: &io::Result<()>) {
        if let Err(error) = outcome {
            let file = self.path.display();
            tracing::warn!(%file, %error, "what clients share, who is known and who is a crawler is not kept");
        }
    }

    fn begin(&self, table: &Arc<dyn ClientTable>) -> Option<Writing> {
        let (path, table) = (self.path.clone(), Arc::clone(table));
        let (spared, is_unfit) = (Arc::clone(&self.spared), Arc::clone(&self.is_unfit));
        let values = self.values;
        let begun = Writing::begin("weir-shared", move || {
            let written = gathered(&*table, &spared, values);
            let is_there = path.symlink_metadata().is_ok();
            if written.is_empty() && !is_there {
                return Ok(());
            }
            // Relaxed: only one such thread runs at a time.
            if is_there && is_unfit.load(Ordering::Relaxed) {
                set_aside(&path)?;
                is_unfit.store(false, Ordering::Relaxed);
            }
            write(&path, &written)
        });
        begun.ok()
    }
}

/// The warning of a start about the file in this directory, without which it goes on.
pub(crate) fn warning(state_dir: &Path) -> Option<String> {
    let path = state_dir.join(FILE);
    let unfit = read(&path).err()?;
    Some(unfit.sentence(&path))
}

impl Unfit {
    fn sentence(&self, path: &Path) -> String {
        let file = path.display();
        format!("{file}: {self}; the next write sets it aside as {file}.bad")
    }
}

fn set_aside(path: &Path) -> io::Result<()> {
    let aside = beside::room_aside(path)?;
    fs::rename(path, &aside)?;
    let (file, aside) = (path.display(), aside.display());
    tracing::warn!(%file, "what does not fit is set aside as {aside}");
    Ok(())
}

impl Written {
    const fn is_empty(&self) -> bool {
        self.counts.is_empty() && self.known.is_empty() && self.crawlers.is_empty()
    }
}

/// The counts of existing rules. Hashes of field values are dropped if the key has changed, such as
/// to that of a fleet which this instance has joined since.
fn rows(
    counts: Vec<CountForm>,
    rules: &RuleSet,
    is_of_key: bool,
) -> impl Iterator<Item = SharedRow> {
    let counts = counts.into_iter().take(MAX_COUNTS);
    let is_known =
        move |row: &SharedRow| is_of_key || !matches!(row.key, SharedKey::Field(Some(_)));
    counts.filter_map(|count| count.row(rules)).filter(is_known)
}

fn gathered(table: &dyn ClientTable, spared: &Spared, values: Option<ValueKey>) -> Written {
    let counts = table.shared_rows();
    let has_values = (counts.iter()).any(|row| matches!(row.key, SharedKey::Field(Some(_))));
    let known = table.known_rows().into_iter().map(|row| KnownForm {
        client: row.client,
        since: row.since,
        lead: Count(row.lead),
    });
    let crawlers = spared.crawler_rows().into_iter();
    let crawlers = crawlers.map(|(client, until_ms)| CrawlerForm {
        client,
        until: Time(until_ms),
    });
    Written {
        version: 1,
        values: values.filter(|_| has_values),
        counts: counts.iter().map(CountForm::of).collect(),
        known: known.collect(),
        crawlers: crawlers.collect(),
    }
}

/// Reads the file; none if there is no file.
fn read(path: &Path) -> Result<Option<Written>, Unfit> {
    let Some(bytes) = if_there(guarded::read(path, MAX_BYTES))? else {
        return Ok(None);
    };
    match serde_json::from_slice::<Written>(&bytes) {
        Ok(written) if written.version == 1 => Ok(Some(written)),
        Ok(_) | Err(_) => Err(Unfit::Misfit(fault(&bytes))),
    }
}

/// The fault of a refused file, with its place. The file is parsed once more into types: as generic
/// values it could take many times its size.
fn fault(bytes: &[u8]) -> Fault {
    match json::explain(PhantomData::<Written>, bytes) {
        Ok(Written { version, .. }) => {
            let (line, column) = json::place(bytes, "/version");
            let message = format!("unknown version {version}: 1 is known");
            Fault::new(line, column, "/version", &message)
        }
        Err(refused) => {
            let said = json::sentence(&refused.error);
            let missing = said.strip_prefix("missing field `");
            let message = match missing.and_then(|rest| rest.strip_suffix('`')) {
                Some(name) => format!("expected a member {name:?}"),
                None if said.starts_with("EOF while parsing") => {
                    "the text ends too early: expected all of a JSON object".to_owned()
                }
                None => said,
            };
            let (line, column) = (refused.error.line(), refused.error.column());
            Fault::new(line, column, &refused.pointer, &message)
        }
    }
}

fn write(path: &Path, written: &Written) -> io::Result<()> {
    beside::replace(path, |out| {
        serde_json::to_writer(&mut *out, written)?;
        out.write_all(b"\n")
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use serde_json::{Value, json};
    use weir_schema::Schema;
    use weir_shared::clock::Clock;
    use weir_shared::window::Window;

    use super::*;

    const NOW: u64 = 1_795_276_800_000;

    fn window(span: RuleSpan, limit: u64) -> SharedWindow {
        SharedWindow {
            span,
            limit,
            window: Window {
                start_ms: NOW - NOW % 86_400_000,
                current: 3,
                previous: 1,
            },
            other_sites: Window::default(),
        }
    }

    /// SHARE-4, SHARE-8: the written file is valid under its schema, and is read back unchanged.
    #[test]
    fn what_is_written_is_read_back() {
        let rule = Arc::new(Rule::new(RuleKind::Limit, "search".to_owned()));
        let keys = [
            SharedKey::All,
            SharedKey::Netblock("203.0.113.0/24".parse().unwrap()),
            SharedKey::Asn(AsNumber::new(64_496)),
            SharedKey::Asn(None),
            SharedKey::Country("DE".parse().ok()),
            SharedKey::Country(None),
            SharedKey::Field(None),
            SharedKey::Field(Some(0x0123_4567_89ab_cdef)),
        ];
        let rows = keys.map(|key| SharedRow {
            rule: Arc::clone(&rule),
            key,
            is_second: key == SharedKey::All,
            windows: vec![window(RuleSpan::Second, 7), window(RuleSpan::Day, 9)],
        });
        let known = ["203.0.113.7", "2001:db8:1:2::/64"].map(|client| KnownForm {
            client: client.parse().unwrap(),
            since: Time(NOW),
            lead: Count(5),
        });
        let key = ValueKey([0, 1, u64::MAX, 0x0123_4567_89ab_cdef]);
        let written = Written {
            version: 1,
            values: Some(key),
            counts: rows.iter().map(CountForm::of).collect(),
            known: known.into(),
            crawlers: vec![CrawlerForm {
                client: "66.249.66.1".parse().unwrap(),
                until: Time(NOW),
            }],
        };
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        write(&path, &written).unwrap();
        let text: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let schema = include_str!("../../schema/proxy/shared.schema.json");
        Schema::parse(schema).unwrap().validate(&text).unwrap();
        assert_eq!(
            text["known"][1],
            json!({"client": "2001:db8:1:2::/64", "since": "2026-11-21T16:00:00Z", "lead": 5})
        );
        let read = read(&path).unwrap().unwrap();
        assert_eq!(read.known.len(), 2);
        assert_eq!(read.values, Some(key));
        let crawler = json!({"client": "66.249.66.1", "until": "2026-11-21T16:00:00Z"});
        assert_eq!(text["crawlers"], json!([crawler]));
        assert_eq!(read.crawlers[0].until, Time(NOW));
        let rules = RuleSet::of(weir_shared::rules::Parts {
            limits: vec![weir_shared::rules::Limit {
                rule: Arc::clone(&rule),
                matcher: weir_shared::rules::Matcher::default(),
                quotas: Vec::new(),
                on_limit: weir_shared::settings::OnLimit::Refuse,
                per: weir_shared::rules::Per::All,
                spare_known: None,
            }],
            ..weir_shared::rules::Parts::default()
        });
        let again: Vec<SharedRow> = super::rows(read.counts, &rules, true).collect();
        assert_eq!(again, rows);
        // Of another key: all but the number of a value.
        let read = super::read(&path).unwrap().unwrap();
        let again: Vec<SharedRow> = super::rows(read.counts, &rules, false).collect();
        assert_eq!(again, rows[..rows.len() - 1]);
    }

    /// SHARE-8, STATE-2: a link or pipe at the temporary name is neither followed nor waited for; a
    /// failed write leaves the old file, and nothing beside it.
    #[test]
    fn nothing_beside_it_is_in_the_way() {
        let nothing = Written {
            version: 1,
            values: None,
            counts: Vec::new(),
            known: Vec::new(),
            crawlers: Vec::new(),
        };
        let dir = tempfile::tempdir().unwrap();
        let (path, beside) = (dir.path().join(FILE), dir.path().join(".shared.json.tmp"));
        let other = dir.path().join("other");
        fs::write(&other, "precious").unwrap();
        symlink(&other, &beside).unwrap();
        write(&path, &nothing).unwrap();
        assert_eq!(fs::read_to_string(&other).unwrap(), "precious");
        assert!(fs::symlink_metadata(&path).unwrap().is_file());
        mknodat(CWD, &beside, FileType::Fifo, Mode::from(0o600), 0).unwrap();
        write(&path, &nothing).unwrap();
        assert!(!beside.exists());
    }

    /// SHARE-8, STATE-5: an invalid file stops no start, a check reports it, and no write loses it:
    /// the first write sets it aside.
    #[test]
    fn what_does_not_fit_is_set_aside() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        let theirs = r#"{"version":2,"counts":[],"known":[]}"#;
        fs::write(&path, theirs).unwrap();
        let told = warning(dir.path()).unwrap();
        assert!(told.contains("unknown version 2"), "{told}");
        let (table, rules) = (crate::testing::empty_table(), RuleSet::default());
        let now = Clock::manual(NOW).0.now();
        let mut state =
            SharedState::start((dir.path(), false), &*table, &Arc::default(), &rules, now);
        state.keep(&table).unwrap();
        state.keep(&table).unwrap();
        let aside = dir.path().join("shared.json.bad");
        assert_eq!(fs::read_to_string(aside).unwrap(), theirs);
        assert!(!dir.path().join("shared.json.bad.1").exists());
        assert!(read(&path).unwrap().is_some());
        assert_eq!(warning(dir.path()), None);
    }

    /// SHARE-8, STATE-2, RESTART-4: while a slow disk delays a write, no second write begins, and
    /// that is told: two of them, of one process or of two, would remove each other's file.
    #[test]
    fn one_write_is_under_way_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let (table, rules) = (crate::testing::empty_table(), RuleSet::default());
        let now = Clock::manual(NOW).0.now();
        let mut state =
            SharedState::start((dir.path(), false), &*table, &Arc::default(), &rules, now);
        let (go_on, hangs) = bounded::<()>(0);
        let slow = Writing::begin("test", move || {
            let _ = hangs.recv();
            Ok(())
        });
        state.writing = slow.ok();
        assert_eq!(state.keep(&table), Err(UnderWay(FILE)));
        let is_under_way = |writing: &Writing| writing.ended(Duration::ZERO).is_none();
        assert!(state.writing.as_ref().is_some_and(is_under_way));
        drop(go_on);
        // The machine may be slow.
        while state.keep(&table).is_err() {}
        assert!(state.writing.is_none());
    }

    /// SHARE-8: a file that is cut, or not weir's, counts as missing; a removed rule has no count.
    #[test]
    fn what_does_not_fit_is_left_aside() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        assert!(read(&path).unwrap().is_none());
        for (text, told) in [
            (
                "",
                "line 1, column 0, at \"\": the text ends too early: expected all of a JSON object",
            ),
            (
                "{\n\"version\":1,",
                "line 2, column 12, at \"\": the text ends too early: expected all of a JSON object",
            ),
            (
                r#"{"version":1,"counts":[]}"#,
                "line 1, column 25, at \"\": expected a member \"known\"",
            ),
            (
                r#"{"version":2,"counts":[],"known":[]}"#,
                "line 1, column 12, at \"/version\": unknown version 2: 1 is known",
            ),
            (
                r#"{"version":1,"counts":7,"known":[]}"#,
                "line 1, column 23, at \"/counts\": invalid type: integer `7`, expected a sequence",
            ),
            (
                r#"{"version":1,"counts":[],"known":[{"client":"x","since":"2026-11-21T16:00:00Z","lead":1}]}"#,
                "line 1, column 47, at \"/known/0/client\": \"x\" is not a client: expected an IPv4 address, an IPv6 address or an IPv6 /64",
            ),
            (
                r#"{"version":1,"values":"0A","counts":[],"known":[]}"#,
                "line 1, column 26, at \"/values\": expected 64 hexadecimal digits in lower case",
            ),
            (
                r#"{"version":1,"counts":[],"known":[{"name":1}]}"#,
                "line 1, column 41, at \"/known/0/name\": unknown field `name`, expected one of `client`, `since`, `lead`",
            ),
        ] {
            fs::write(&path, text).unwrap();
            let Err(Unfit::Misfit(fault)) = read(&path) else {
                panic!("{text}")
            };
            assert_eq!(fault.to_string(), told);
        }
        let text = r#"{"version":1,"counts":[{"rule":"x","per":"all","key":"all","windows":[]}],"known":[]}"#;
        fs::write(&path, text).unwrap();
        let counts = read(&path).unwrap().unwrap().counts.into_iter();
        assert_eq!(
            counts
                .filter_map(|count| count.row(&RuleSet::default()))
                .count(),
            0
        );
    }
}
