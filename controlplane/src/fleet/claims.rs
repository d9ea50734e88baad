//! Anomalies of the whole fleet (FLEET-19): each instance puts its counts of the scopes near a
//! threshold into its beat, and compares the sums of all instances with its own thresholds.
//!
//! All instances find a sum over a threshold at about the same time. The first one to put a claim
//! into the engine raises the alert, and the cooldown of the others ends with that one's. The claim
//! expires after some seconds, unless its instance confirms that it has raised the alert. Claims
//! are sealed, so that the engine's owner cannot forge them. If the engine does not answer, each
//! instance decides alone.

use std::collections::VecDeque;

use weir_shared::units::Time;

use crate::anomaly::shared::Sums;
use crate::anomaly::{Over, Scope};

/// The most alerts that wait for the engine, which is asked about one at a time.
pub(super) const MOST_WAITING: usize = 256;
/// How long an unconfirmed claim lasts: if its instance ends before it has raised the alert,
/// another one raises it.
pub(super) const TELLING_MS: u64 = 10_000;
/// How long counts of a beat are used.
pub(super) const SAID_NS: u64 = 900_000_000;

/// The decision about an alert.
pub(crate) enum Settled {
    /// This instance raises it.
    Here(Over),
    /// Another instance has raised it; the cooldown ends at this time.
    Elsewhere(Scope, Time),
}

/// The claims under way, and the counts of this and other instances.
#[derive(Default)]
pub(super) struct Claims {
    pub(super) waiting: VecDeque<Over>,
    pub(super) asked: Option<Over>,
    /// Alerts that this instance raises and has not confirmed yet: the name of the claim, and the
    /// end of the cooldown by this instance's clock.
    pub(super) untold: VecDeque<(String, Time)>,
    pub(super) settled: Vec<Settled>,
    /// The counts for the next beats.
    pub(super) said: Vec<(Scope, Sums)>,
    pub(super) said_ns: u64,
    /// Beats of others came since the last call.
    pub(super) has_heard: bool,
}

impl Claims {
    /// Raises every waiting alert here, because the engine does not answer.
    pub(super) fn alone(&mut self) {
        let asked = self.asked.take().into_iter();
        let alone = asked.chain(self.waiting.drain(..)).map(Settled::Here);
        self.settled.extend(alone);
        self.untold.clear();
        self.said.clear();
        self.said_ns = 0;
    }

    /// Whether no claim waits.
    pub(super) fn is_empty(&self) -> bool {
        self.asked.is_none() && self.waiting.is_empty() && self.untold.is_empty()
    }
}

/// The text of a scope in a beat.
pub(super) fn text(scope: Scope) -> String {
    match scope.of() {
        Some(of) => format!("{} {of}", scope.kind()),
        None => scope.kind().to_owned(),
    }
}

/// Parses such a text; none if it is from a newer version with further scopes.
pub(super) fn scope(text: &str) -> Option<Scope> {
    let (kind, of) = match text.split_once(' ') {
        Some((kind, of)) => (kind, Some(of)),
        None => (text, None),
    };
    Scope::read(kind, of).ok()
}
