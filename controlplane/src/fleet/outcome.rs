//! The results of a replica's changes, and the data it is restored from.

use std::sync::Arc;

use weir_shared::ban::Ban;

use super::entry::EntryId;
use super::event::Event;
use super::stamp::Stamp;
use crate::bans::document::BanKey;
use crate::rules::ListKey;

/// The key of an event to send.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Item {
    /// A ban.
    Entry(EntryId),
    /// A lift.
    Lift(Stamp),
    /// An entry of a list.
    List(ListKey),
}

/// An order to the ledger: hold this ban under this key, or none.
#[derive(Clone, PartialEq, Debug)]
pub struct Effect {
    /// Its name in bans.json.
    pub key: BanKey,
    /// The ban; none to remove it.
    pub ban: Option<Arc<Ban>>,
}

/// The result of a change.
#[derive(Default, Debug)]
pub struct Outcome {
    /// Orders to the ledger.
    pub effects: Vec<Effect>,
    /// Items to send to the others.
    pub items: Vec<Item>,
}

/// What an instance knows beyond bans.json.
#[derive(Clone, Default, Debug)]
pub struct Kept {
    /// Lifts, edited or removed entries, and lists.
    pub events: Vec<Event>,
    /// When a ban was made, if that differs from its start.
    pub made: Vec<(BanKey, Stamp)>,
}
