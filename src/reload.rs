//! A reload: reads again everything that can change while the service runs, checks all of it, and
//! applies all or nothing (RELOAD-2, RELOAD-3).
//!
//! The settings are checked first, as at a start. Then each [`Part`] of the service checks its own
//! files; the list of parts is made in `prepared.rs`. Only if none has found a fault does each part
//! apply what it has read.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use weir_controlplane::process::Report;
use weir_shared::reload::{Part, Reloaded};
use weir_shared::settings::{Change, Loaded, Refused, Settings, Taken};

use crate::open_files::Bounds;
use crate::opening;
use crate::sources::Sources;

/// The sources of the settings, the values in force, and the parts to reload.
pub struct Reloader {
    sources: Sources,
    held: Loaded,
    /// The settings in force, with as many connections as the system allows.
    settings: Arc<Settings>,
    /// In the order in which they are applied.
    parts: Vec<Part>,
}

impl Reloader {
    /// The reloader of a service that has just started with these settings.
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

    /// Reads everything again, and applies all of it or nothing. Logs the changes, or why nothing
    /// was changed.
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
        // If the reload was given up, whoever asked has been told already.
        if !faults.is_empty() || !turn.take() {
            return Err(faults);
        }
        // In observe mode the ledger publishes observed bans. The data plane must be in observe
        // mode before that, or such a ban would refuse somebody in between: so the parts are
        // applied in reverse.
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

/// Decides a race: either the reload applies what it has checked, or the waiting main thread gives
/// it up. Only the first of the two succeeds.
#[derive(Default)]
pub struct Turn(AtomicU8);

const JUDGING: u8 = 0;
const TAKING: u8 = 1;
const GIVEN_UP: u8 = 2;

impl Turn {
    fn take(&self) -> bool {
        self.end(TAKING)
    }

    /// Gives the reload up. True if nothing of it is applied, now or later.
    pub fn give_up(&self) -> bool {
        self.end(GIVEN_UP)
    }

    fn end(&self, how: u8) -> bool {
        // Relaxed: the exchange alone decides, and orders no other memory.
        let ended = (self.0).compare_exchange(JUDGING, how, Ordering::Relaxed, Ordering::Relaxed);
        ended.is_ok()
    }
}

/// Logs why nothing was changed.
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
