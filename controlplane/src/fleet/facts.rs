//! The facts about a fleet for the metrics.

use super::event::Rejected;

/// The facts of one instance.
#[derive(Clone, Debug, Default)]
pub(crate) struct FleetFacts {
    /// Whether the engine answers.
    pub(crate) connected: bool,
    /// Instances that live, this one included.
    pub(crate) instances: u64,
    /// Whether all hold the same.
    pub(crate) in_step: bool,
    /// Events that wait to be sent.
    pub(crate) waiting: u64,
    /// Events sent, and received.
    pub(crate) events: [u64; 2],
    /// Entries that were refused, by [`Rejected::ALL`].
    pub(crate) rejected: [u64; Rejected::ALL.len()],
    /// How often the log was read from its beginning.
    pub(crate) resyncs: u64,
    /// How far the clock is ahead of the engine's, in seconds.
    pub(crate) clock_seconds: f64,
    /// The last round trip, in seconds.
    pub(crate) round_trip_seconds: f64,
    /// Counts that the engine has taken, and those that it refused.
    pub(crate) deltas: [u64; 2],
    /// Clients whose counts wait for the next second (FLEET-10).
    pub(crate) held: u64,
    /// Batches of counts that were taken, that were sent again, and that got no answer.
    pub(crate) batches: [u64; 3],
    /// Bans that follow only from other instances' counts.
    pub(crate) decisive: u64,
    /// Settings that differ at other instances.
    pub(crate) settings_differ: u64,
}

/// An alert for the loop to raise.
pub(crate) struct Told {
    /// The name of the problem in the alert.
    pub(crate) what: &'static str,
    /// A sentence.
    pub(crate) detail: String,
}
