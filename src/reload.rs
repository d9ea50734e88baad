//! A reload: what can change while the service runs is read again, judged whole, and taken all or
//! not at all (RELOAD-2, RELOAD-3).
//!
//! The settings are judged first, as at a start; then each part of the service judges what is its
//! own: a new one is a [`Part`] in the list that `prepared.rs` makes. Only when nobody has found a
//! fault, each takes what it has judged.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use weir_controlplane::process::Report;
use weir_shared::reload::{Part, Reloaded};
use weir_shared::settings::{Change, Loaded, Refused, Settings, Taken};

use crate::open_files::Bounds;
use crate::opening;
use crate::sources::Sources;

/// What is reloaded, and what held last.
pub struct Reloader {
    sources: Sources,
    held: Loaded,
    /// The settings in force, with as many connections as the system allows.
    settings: Arc<Settings>,
    /// In the order in which they are taken.
    parts: Vec<Part>,
}

impl Reloader {
    /// Of a service that has just started with these settings.
    pub fn new(sources: Sources, held: Loaded, settings: Arc<Settings>, parts: Vec<Part>) -> Self {
        Self {
            sources,
            held,
            settings,
            parts,
        }
    }

    /// The settings in force.
    pub fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.settings)
    }

    /// Reads everything again and takes it, or nothing; the log tells what has changed, or why
    /// nothing has.
    ///
    /// # Errors
    /// Every fault, one sentence each.
    pub fn reload(&mut self, turn: &Turn) -> Result<Report, Vec<String>> {
        let ended = self.try_reload(turn);
        match &ended {
            Ok(report) => tell(report),
            Err(faults) => tell_faults(faults),
        }
        ended
    }

    fn try_reload(&mut self, turn: &Turn) -> Result<Report, Vec<String>> {
        let problems = |refused: Refused| refused.problems;
        let new = self.sources.load().map_err(problems)?;
        let (held, changes) = self.held.reloaded(&new).map_err(problems)?;
        let told = Bounds::told(&self.settings);
        let settings = opening::within_open_files(held.settings.clone(), told)
            .map_err(|error| vec![error.to_string()])?;
        let reloaded = Reloaded {
            settings: Arc::new(settings),
            listing: held.listing.as_slice().into(),
            warnings: held.warnings.as_slice().into(),
        };
        let (mut takes, mut faults) = (Vec::new(), Vec::new());
        for part in &self.parts {
            match part(&reloaded) {
                Ok(take) => takes.push(take),
                Err(found) => faults.extend(found),
            }
        }
        // Whoever asked was told of a reload that was given up.
        if !faults.is_empty() || !turn.take() {
            return Err(faults);
        }
        // The ledger publishes observed bans in observe mode: nobody is to be refused by one in
        // the moment between.
        if reloaded.settings.observe {
            takes.reverse();
        }
        let late = takes.into_iter().filter_map(|take| take().err());
        let late: Vec<String> = late.collect();
        self.settings = reloaded.settings;
        let mut warnings = held.warnings.clone();
        warnings.extend(late);
        self.held = held;
        Ok(Report { changes, warnings })
    }
}

/// Whose turn it is: the reload's, to take what it has judged, or of whoever waits, to give it up.
/// Only one of the two comes to it.
#[derive(Default)]
pub struct Turn(AtomicU8);

const JUDGING: u8 = 0;
const TAKING: u8 = 1;
const GIVEN_UP: u8 = 2;

impl Turn {
    fn take(&self) -> bool {
        self.end(TAKING)
    }

    /// True if nothing of the reload is taken, now or later.
    pub fn give_up(&self) -> bool {
        self.end(GIVEN_UP)
    }

    fn end(&self, how: u8) -> bool {
        // Nothing else hangs on it: what is taken goes by other ways.
        let ended = (self.0).compare_exchange(JUDGING, how, Ordering::Relaxed, Ordering::Relaxed);
        ended.is_ok()
    }
}

/// Tells why nothing is changed.
pub fn tell_faults(faults: &[String]) {
    for fault in faults {
        tracing::error!("the reload is refused, nothing is changed: {fault}");
    }
}

fn tell(report: &Report) {
    for warning in &report.warnings {
        tracing::warn!("{warning}");
    }
    let of = |taken| {
        let changes = report.changes.iter();
        changes.filter(move |change: &&Change| change.taken == taken)
    };
    for change in of(Taken::Live) {
        tracing::info!("changed: {change}");
    }
    for change in of(Taken::Restart) {
        tracing::warn!("a restart is needed for {change}");
    }
    tracing::info!(
        changed = of(Taken::Live).count(),
        need_a_restart = of(Taken::Restart).count(),
        "reloaded"
    );
}
