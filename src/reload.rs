//! A reload: what can change while the service runs is read again, judged whole, and taken all or
//! not at all (RELOAD-2, RELOAD-3).
//!
//! The settings are judged first, as at a start; then each part of the service judges what is its
//! own: a new one is a [`Part`] in the list that `prepared.rs` makes. Only when nobody has found a
//! fault, each takes what it has judged.

use std::sync::Arc;

use weir_controlplane::process::Report;
use weir_shared::reload::{Part, Reloaded};
use weir_shared::settings::{Change, Loaded, Refused, Settings, Taken};

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
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Reads everything again and takes it, or nothing; the log tells what has changed, or why
    /// nothing has.
    ///
    /// # Errors
    /// Every fault, one sentence each.
    pub fn reload(&mut self) -> Result<Report, Vec<String>> {
        let ended = self.try_reload();
        match &ended {
            Ok(report) => tell(report),
            Err(faults) => {
                for fault in faults {
                    tracing::error!("the reload is refused, nothing is changed: {fault}");
                }
            }
        }
        ended
    }

    fn try_reload(&mut self) -> Result<Report, Vec<String>> {
        let problems = |refused: Refused| refused.problems;
        let new = self.sources.load().map_err(problems)?;
        let (held, changes) = self.held.reloaded(&new).map_err(problems)?;
        let told = Some(self.settings.connections.max);
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
        if !faults.is_empty() {
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
