//! Anomalies of the whole fleet (FLEET-19): each instance says in its beat what it has counted of
//! the scopes that are near a threshold, and compares the sum of all with its own thresholds.
//!
//! All of them find the sum over a threshold at about the same time: who is first to put its name
//! into the engine until the cooldown ends tells the alert, and the cooldown of the others ends
//! with that one. The name goes after some seconds, unless its instance has told the alert and says
//! so. What the engine holds is sealed, so that its owner cannot invent that somebody
//! told. Where the engine does not answer, each instance decides alone.

use std::collections::VecDeque;

use weir_shared::units::Time;

use crate::anomaly::shared::Sums;
use crate::anomaly::{Over, Scope};

/// The most alerts that wait for the engine: it is asked for one at a time.
pub(super) const MOST_WAITING: usize = 256;
/// How long a name in the engine holds before its instance has told the alert: where it ends before
/// that, another tells it.
pub(super) const TELLING_MS: u64 = 10_000;
/// How long what was said of the counts holds.
pub(super) const SAID_NS: u64 = 900_000_000;

/// What became of an alert.
pub(crate) enum Settled {
    /// This instance tells it.
    Here(Over),
    /// Another one has told it; its cooldown ends then.
    Elsewhere(Scope, Time),
}

/// What is asked of the engine, and what others and this instance have said of their counts.
#[derive(Default)]
pub(super) struct Claims {
    pub(super) waiting: VecDeque<Over>,
    pub(super) asked: Option<Over>,
    /// What this instance tells, and has not said so to the engine: its name there, and until when
    /// the cooldown lasts by the own clock.
    pub(super) untold: VecDeque<(String, Time)>,
    pub(super) settled: Vec<Settled>,
    /// What the next beats say.
    pub(super) said: Vec<(Scope, Sums)>,
    pub(super) said_ns: u64,
    /// Others have shown themselves since this was asked last.
    pub(super) has_heard: bool,
}

impl Claims {
    /// The engine does not answer: everything is told here.
    pub(super) fn alone(&mut self) {
        let asked = self.asked.take().into_iter();
        let alone = asked.chain(self.waiting.drain(..)).map(Settled::Here);
        self.settled.extend(alone);
        self.untold.clear();
        self.said.clear();
        self.said_ns = 0;
    }

    /// Whether nothing is asked.
    pub(super) fn is_empty(&self) -> bool {
        self.asked.is_none() && self.waiting.is_empty() && self.untold.is_empty()
    }
}

/// A scope as it is said to others.
pub(super) fn text(scope: Scope) -> String {
    match scope.of() {
        Some(of) => format!("{} {of}", scope.kind()),
        None => scope.kind().to_owned(),
    }
}

/// The scope that such a text says; none where it is of a version that knows more.
pub(super) fn scope(text: &str) -> Option<Scope> {
    let (kind, of) = match text.split_once(' ') {
        Some((kind, of)) => (kind, Some(of)),
        None => (text, None),
    };
    Scope::read(kind, of).ok()
}
