//! What a replica says of its changes, and what it is restored from.

use std::sync::Arc;

use weir_shared::ban::Ban;

use super::entry::EntryId;
use super::event::Event;
use super::stamp::Stamp;
use crate::bans::document::BanKey;
use crate::rules::ListKey;

/// What names an event that is to be sent.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Item {
    /// A ban.
    Entry(EntryId),
    /// A lift.
    Lift(Stamp),
    /// An entry of a list.
    List(ListKey),
}

/// What the ledger is to do: hold this ban under this key, or none.
#[derive(Clone, PartialEq, Debug)]
pub struct Effect {
    /// Its name in bans.json.
    pub key: BanKey,
    /// As it is to be.
    pub ban: Option<Arc<Ban>>,
}

/// What became of a change.
#[derive(Default, Debug)]
pub struct Outcome {
    /// What the ledger is to do.
    pub effects: Vec<Effect>,
    /// What the others are to be told.
    pub items: Vec<Item>,
}

/// What an instance knows beyond the file of its bans.
#[derive(Clone, Default, Debug)]
pub struct Kept {
    /// Lifts, entries that were edited or taken out, and lists.
    pub events: Vec<Event>,
    /// When a ban was made, where its start does not say so.
    pub made: Vec<(BanKey, Stamp)>,
}
