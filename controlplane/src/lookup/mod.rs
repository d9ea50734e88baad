//! Lookups: the country and the AS of a client (LOOKUP-1..7). One interface to three sources: a
//! service, database files, none.
//!
//! The data plane calls a function, which never blocks. The data plane applies the answer to
//! country lists and percentages; `document.rs` has the form of lookups.json.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use weir_shared::client::Client;
use weir_shared::clock::Clock;
use weir_shared::lookup::{Ask, Lookup, LookupStarted, OnLookup, is_public};
use weir_shared::reload::{Part, Take};
use weir_shared::settings::{LookupSettings, LookupSource, Settings};
use weir_shared::table::ClientTable;

use crate::state::Change;
use crate::watching::file::{FileWatch, Known};
use crate::watching::{FileThread, Subject};

mod answer;
pub(crate) mod breaker;
pub(crate) mod budget;
mod cache;
mod database;
pub(crate) mod document;
mod error;
mod file;
mod outcome;
mod service;

pub use cache::LookupRow;
pub use database::FileError;
#[cfg(fuzzing)]
pub use database::read_database;
pub use error::LookupError;
pub(crate) use outcome::Outcome;

use document::LookupsFile;
use file::Databases;
use outcome::Counts;
use service::{Asking, Service};

/// When a client whose record cannot be read is looked up again, because the file may be replaced
/// by then. The same after a panic.
const RECORD_AGAIN_NS: u64 = 60_000_000_000;

/// The lookups, shared by all threads.
#[derive(Clone)]
pub struct Lookups {
    source: Source,
    counts: Arc<Counts>,
    clock: Clock,
    table: Arc<dyn ClientTable>,
}

#[derive(Clone)]
enum Source {
    /// No source. Answers of an earlier source stay in the file until they are too old.
    Off(Arc<Vec<LookupRow>>),
    File(Arc<Databases>, Arc<Vec<LookupRow>>),
    Service(Arc<Service>),
}

/// The facts about lookups for the metrics.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct LookupFacts {
    /// By position in [`Outcome::ALL`].
    pub(crate) outcomes: [u64; Outcome::ALL.len()],
    /// When the database files were last read, in milliseconds since 1970; 0 without files.
    pub(crate) file_read_ms: u64,
    /// Replacements of them that could not be used.
    pub(crate) file_errors: u64,
}

/// The database files, read; nothing for another source. Opened before [`Lookups::start`], which
/// also needs the entries of lookups.json.
pub struct LookupFiles(Option<(Databases, Known)>);

impl LookupFiles {
    /// Reads and checks them.
    ///
    /// # Errors
    /// [`LookupError`], a sentence an operator can act on.
    pub fn open(settings: &LookupSettings, clock: &Clock) -> Result<Self, LookupError> {
        let databases = match settings.source {
            LookupSource::File => {
                // Before the reading, so that a change right after it is not missed.
                let known = Known::of(&settings.db_paths);
                Some((Databases::open(&settings.db_paths, clock)?, known))
            }
            LookupSource::Off | LookupSource::Geojs | LookupSource::Url => None,
        };
        Ok(Self(databases))
    }
}

/// Checks the files of the lookups as a start would: databases, or the root certificates of a
/// service.
///
/// # Errors
/// As [`LookupFiles::open`] and [`Lookups::start`].
pub(crate) fn check(settings: &LookupSettings, clock: &Clock) -> Result<(), LookupError> {
    match settings.source {
        LookupSource::Off => {}
        LookupSource::File => drop(Databases::open(&settings.db_paths, clock)?),
        LookupSource::Geojs | LookupSource::Url => {
            drop(crate::outgoing::tls(settings.ca_file.as_deref())?);
        }
    }
    Ok(())
}

impl Lookups {
    /// Starts to watch the database files or to ask the service. Logs it if visitors' addresses
    /// leave the machine (LOOKUP-7). `files` must be opened with the same settings; `rows` are the
    /// entries of lookups.json.
    ///
    /// # Errors
    /// [`LookupError`], a sentence an operator can act on.
    pub fn start(
        settings: &Settings,
        clock: &Clock,
        table: &Arc<dyn ClientTable>,
        (LookupFiles(files), looks): (LookupFiles, &FileThread),
        rows: Vec<LookupRow>,
    ) -> Result<Self, LookupError> {
        let lookup = &settings.lookup;
        let counts = Arc::new(Counts::default());
        let source = match (files, lookup.source) {
            (Some((databases, known)), _) => {
                let databases = Arc::new(databases);
                let (replaced, table) = (Arc::clone(&databases), Arc::clone(table));
                let (clock, faults) = (clock.clone(), looks.faults().clone());
                let watch = FileWatch::new(known, move || {
                    if replaced.replace(&clock, &faults) {
                        renew(&replaced, &*table);
                    }
                });
                looks.watch(Subject::Databases, watch);
                Source::File(databases, Arc::new(rows))
            }
            (None, LookupSource::Off | LookupSource::File) => Source::Off(Arc::new(rows)),
            (None, LookupSource::Geojs | LookupSource::Url) => {
                let (table, counts) = (Arc::clone(table), Arc::clone(&counts));
                let service = Service::start(lookup, clock.clone(), table, counts, rows)?;
                tell_of_privacy(lookup);
                Source::Service(service)
            }
        };
        Ok(Self {
            source,
            counts,
            clock: clock.clone(),
            table: Arc::clone(table),
        })
    }

    /// The lookups' part of a reload: reads databases again, or asks the service by the new
    /// settings. The kind of source stays that of the start.
    pub(crate) fn part(&self) -> Part {
        let lookups = self.clone();
        Box::new(move |new| {
            let prepared = lookups.prepare(&new.settings.lookup);
            prepared.map_err(|error| vec![error.to_string()])
        })
    }

    fn prepare(&self, settings: &LookupSettings) -> Result<Take, LookupError> {
        Ok(match &self.source {
            Source::Off(_) => Box::new(|| Ok(())),
            Source::File(databases, _) => {
                let read = databases.read()?;
                let (databases, table) = (Arc::clone(databases), Arc::clone(&self.table));
                let clock = self.clock.clone();
                Box::new(move || {
                    databases.put(read, &clock);
                    renew(&databases, &*table);
                    Ok(())
                })
            }
            Source::Service(service) => {
                let (asking, ttl) = (Asking::of(settings)?, settings.ttl);
                let service = Arc::clone(service);
                Box::new(move || {
                    service.take(asking, ttl);
                    Ok(())
                })
            }
        })
    }

    /// The function that the data plane asks. A panic in it is a bug here or in the reader of
    /// database files. The client is unknown for now, as after any failure (LOOKUP-3), and its
    /// request continues.
    pub fn asking(&self) -> Ask {
        let lookups = self.clone();
        Arc::new(move |client, answered| {
            let asked = AssertUnwindSafe(|| lookups.ask(client, answered));
            catch_unwind(asked).unwrap_or_else(|_| {
                tracing::error!(
                    "a lookup panicked: its client is unknown for now; please report this"
                );
                lookups.no_answer()
            })
        })
    }

    fn ask(&self, client: Client, answered: Option<OnLookup>) -> LookupStarted {
        let address = client.first_address();
        if !is_public(address) {
            self.counts.count(Outcome::Skipped);
            return LookupStarted::Known {
                lookup: Arc::new(Lookup::default()),
                until_ns: u64::MAX,
            };
        }
        match &self.source {
            Source::Off(_) => LookupStarted::NotNow { again_ns: u64::MAX },
            Source::Service(service) => service.ask(client, answered),
            Source::File(databases, _) => match databases.look_up(address) {
                Ok(lookup) => {
                    self.counts.count(match lookup.country {
                        Some(_) => Outcome::Known,
                        None => Outcome::Unknown,
                    });
                    LookupStarted::Known {
                        lookup,
                        // Valid until the file is replaced, which renews the answers in the table.
                        until_ns: u64::MAX,
                    }
                }
                Err(error) => {
                    tracing::debug!("a record of the lookup database cannot be read: {error}");
                    self.no_answer()
                }
            },
        }
    }

    fn no_answer(&self) -> LookupStarted {
        self.counts.count(Outcome::Error);
        LookupStarted::NotNow {
            again_ns: self.clock.now().mono_ns.saturating_add(RECORD_AGAIN_NS),
        }
    }

    /// The entries to write to lookups.json.
    pub(crate) fn rows(&self) -> Vec<LookupRow> {
        match &self.source {
            Source::Off(rows) | Source::File(_, rows) => rows.to_vec(),
            Source::Service(service) => service.rows(),
        }
    }

    /// Applies an edit of lookups.json: added, changed and removed entries. A client that is known
    /// gets the edited answer at once, because its WebSocket may have to end by it (CONN-6); one
    /// without an answer is looked up again with its next request.
    pub(crate) fn edit(&mut self, changes: &[Change<LookupsFile>]) {
        let client = |change: &Change<LookupsFile>| match change {
            Change::Remove(client) => *client,
            Change::Put { after, .. } => after.row.client,
        };
        let put = |change: &Change<LookupsFile>| match change {
            Change::Remove(_) => None,
            Change::Put { after, .. } => Some(after.row.clone()),
        };
        match &mut self.source {
            Source::Off(rows) | Source::File(_, rows) => {
                let rows = Arc::make_mut(rows);
                let touched: HashSet<Client> = changes.iter().map(client).collect();
                rows.retain(|row| !touched.contains(&row.client));
                rows.extend(changes.iter().filter_map(put));
            }
            Source::Service(service) => {
                for change in changes {
                    let client = client(change);
                    match put(change) {
                        Some(row) => service.put(row),
                        None => service.remove(client),
                    }
                    match service.known(client) {
                        Some((lookup, until_ns)) => self.table.answer(client, lookup, until_ns),
                        None => self.table.forget_lookup(client),
                    }
                }
            }
        }
    }

    /// The facts for the metrics.
    pub(crate) fn facts(&self) -> LookupFacts {
        let mut facts = LookupFacts::default();
        for (count, counter) in facts.outcomes.iter_mut().zip(&self.counts.0) {
            *count = counter.load(Ordering::Relaxed);
        }
        if let Source::File(databases, _) = &self.source {
            facts.file_read_ms = databases.read_ms.load(Ordering::Relaxed);
            facts.file_errors = databases.errors.load(Ordering::Relaxed);
        }
        facts
    }
}

/// After a replacement of the files: every client that has an answer gets the new one.
fn renew(databases: &Databases, table: &dyn ClientTable) {
    for row in table.rows() {
        let Some(held) = row.lookup else { continue };
        let address = row.client.first_address();
        if !is_public(address) {
            continue;
        }
        if let Ok(lookup) = databases.look_up(address)
            && lookup != held
        {
            table.answer(row.client, lookup, u64::MAX);
        }
    }
}

fn tell_of_privacy(lookup: &LookupSettings) {
    tracing::info!(
        service = lookup.url.origin,
        "visitors' addresses (of IPv6 the /64) are sent to this service to learn their country and AS: set \
         WAF_LOOKUP_SOURCE=file to use a database of your own, or WAF_LOOKUP_SOURCE=off to stop it"
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Rig, settings};

    /// LOOKUP-3: a panic in a lookup in the files is only a failure: nothing waits, it is counted,
    /// the client is asked about again later, and the next lookup is answered.
    #[test]
    fn a_panic_in_a_lookup_is_a_failure_and_no_more() {
        let rig = Rig::new(settings());
        let table = Arc::clone(&rig.table) as Arc<dyn ClientTable>;
        let mut settings = settings();
        settings.lookup.source = LookupSource::File;
        let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/");
        settings.lookup.db_paths = vec![format!("{fixtures}lite.mmdb").into()];
        let (clock, _) = Clock::manual(0);
        let files = LookupFiles::open(&settings.lookup, &clock).unwrap();
        let lookups = Lookups::start(
            &settings,
            &clock,
            &table,
            (files, &FileThread::default()),
            Vec::new(),
        )
        .unwrap();
        let Source::File(databases, _) = &lookups.source else {
            panic!("the source is a file");
        };
        let ask = lookups.asking();
        let client = || "81.2.69.7".parse().unwrap();

        databases.panics.store(true, Ordering::Relaxed);
        let (send, told) = crossbeam_channel::bounded(1);
        let answered: OnLookup = Box::new(move |lookup| drop(send.send(lookup)));
        let reply = ask(client(), Some(answered));
        assert!(matches!(
            reply,
            LookupStarted::NotNow {
                again_ns: RECORD_AGAIN_NS
            }
        ));
        assert!(told.try_recv().is_err(), "dropped: who waits goes on");
        assert_eq!(lookups.facts().outcomes, [0, 0, 0, 1, 0]);

        databases.panics.store(false, Ordering::Relaxed);
        let reply = ask(client(), None);
        assert!(
            matches!(reply, LookupStarted::Known { lookup, .. } if lookup.country.as_deref() == Some("GB"))
        );
        assert_eq!(lookups.facts().outcomes, [1, 0, 0, 1, 0]);
    }
}
