//! One ban as a fleet holds it: a value that instances can join in any order and any number of
//! times, with the same result (FLEET-12, FLEET-16).
//!
//! Each part has a total order, and a join takes the greater one. Of twins the body with the higher
//! rank wins, of an edited member and of a lift the later stamp, of the time it was made the
//! earlier one.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use weir_shared::ban::Ban;
use weir_shared::ban_origin::BanOrigin;
use weir_shared::netblock::Netblock;
use weir_shared::units::Time;

use super::lift::LiftRecord;
use super::stamp::Stamp;
use crate::bans::document::BanKey;

/// The length of a slot: automatic bans of one netblock that start in the same slot are one ban
/// (FLEET-12).
pub const SLOT_MS: u64 = 10_000;
/// The most members of a ban that may have been edited, and the longest of them as JSON.
const MAX_MEMBERS: usize = 16;
const MAX_MEMBER: usize = 2048;
/// The most members of a newer version, and the longest of them.
const MAX_UNKNOWN: usize = 8;
const MAX_UNKNOWN_MEMBER: usize = 1024;
/// The longest ban as JSON.
const MAX_BODY: usize = 16 * 1024;
/// The most entries of one slot, or of one start, each made after the previous one was over.
pub const MAX_PLACE: u32 = 1_000;
/// Members that have parts of their own.
const NO_MEMBERS: [&str; 4] = ["netblock", "ban_started", "origin", "lifted"];

/// The key of a ban in a fleet.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct EntryId {
    /// The netblock.
    pub netblock: Netblock,
    /// Which of its bans.
    pub which: WhichBan,
}

/// Which ban of a netblock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WhichBan {
    /// An automatic ban: its slot, whether it is observed, and its number after earlier bans of the
    /// slot that are over.
    Automatic(u64, bool, u32),
    /// A ban made by people: its start, its origin, and its number after earlier ones that were
    /// removed.
    Made(Time, BanOrigin, u32),
}

/// A ban as it was made.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Body {
    /// Without `lifted`.
    pub ban: Arc<Ban>,
    /// The name of the instance that made it; none for what a file held.
    pub by: Option<Arc<str>>,
}

impl Body {
    /// The rank among twins: the longest ban wins, then the earliest, then the one with the
    /// smallest name.
    fn rank(&self) -> impl Ord + use<> {
        let notes = self.ban.notes.is_some();
        let text = serde_json::to_string(&self.ban).unwrap_or_default();
        let start = Reverse(self.ban.ban_started);
        (
            self.ban.length_ms(),
            start,
            Reverse(self.by.clone()),
            notes,
            text,
        )
    }
}

/// A ban of the fleet.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Entry {
    /// Its name.
    pub id: EntryId,
    /// When it was made; the earliest of twins.
    pub made: Stamp,
    /// The ban as it was made; none once it was removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<Body>,
    /// Members that were edited since; `null` for a removed member.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub members: BTreeMap<String, (Value, Stamp)>,
    /// Set if an edit lifted the ban, or undid a lift.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifted: Option<(Option<Time>, Stamp)>,
    /// The first lift later than the ban. It is derived from the known lifts.
    #[serde(skip)]
    pub lift: Option<(Stamp, Time)>,
    /// Set once it was removed, for good: a ban that is added again is another entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gone: Option<Stamp>,
    /// Members of a newer version: kept and passed on (FLEET-31).
    #[serde(flatten)]
    pub unknown: BTreeMap<String, Value>,
}

impl Entry {
    /// A ban that was just made, or that a file held.
    pub fn new(id: EntryId, made: Stamp, ban: &Ban, by: Option<Arc<str>>) -> Self {
        let lifted = ban
            .lifted
            .map(|at| (Some(at), Stamp::of_time(at.0).max(made.clone())));
        let mut ban = ban.clone();
        ban.lifted = None;
        let body = Body {
            ban: Arc::new(ban),
            by,
        };
        Self {
            id,
            made,
            body: Some(body),
            members: BTreeMap::new(),
            lifted,
            lift: None,
            gone: None,
            unknown: BTreeMap::new(),
        }
    }

    /// Whether bans.json lacks a part of this entry, apart from when it was made.
    pub fn has_more(&self) -> bool {
        // For a lift by an edit, bans.json has the time, which is as good as its stamp.
        let by_edit = match &self.lifted {
            None => false,
            Some((Some(at), stamp)) => stamp.ms() != at.0,
            Some((None, _)) => true,
        };
        by_edit || self.is_gone() || !self.members.is_empty() || !self.unknown.is_empty()
    }

    /// Whether it was made at the start of its ban.
    pub fn is_made_at_its_start(&self) -> bool {
        let start = self.key().map(|key| Stamp::of_time(key.ban_started.0));
        start.is_some_and(|start| start == self.made)
    }

    /// Whether it was taken out.
    pub fn is_gone(&self) -> bool {
        self.body.is_none() || self.gone.is_some()
    }

    /// All its stamps.
    pub fn stamps(&self) -> impl Iterator<Item = &Stamp> {
        let members = self.members.values().map(|(_, stamp)| stamp);
        let lifted = self.lifted.iter().map(|(_, stamp)| stamp);
        let made = [&self.made].into_iter();
        made.chain(members).chain(lifted).chain(&self.gone)
    }

    /// The ban as it is now; none if it was removed.
    pub fn ban(&self) -> Option<Arc<Ban>> {
        if self.is_gone() {
            return None;
        }
        let body = &self.body.as_ref()?.ban;
        let lifted = self.lifted_at();
        if self.members.is_empty() {
            if lifted.is_none() {
                return Some(Arc::clone(body));
            }
            let mut ban = Ban::clone(body);
            ban.lifted = lifted;
            return Some(Arc::new(ban));
        }
        // If the edited members do not form a valid ban, such as those of a newer version, the ban
        // stays as it was made.
        let mut ban = self.edited(body).unwrap_or_else(|| Ban::clone(body));
        ban.lifted = lifted;
        Some(Arc::new(ban))
    }

    fn edited(&self, body: &Ban) -> Option<Ban> {
        let Ok(Value::Object(mut members)) = serde_json::to_value(body) else {
            return None;
        };
        for (name, (value, _)) in &self.members {
            if value.is_null() {
                members.remove(name);
            } else {
                members.insert(name.clone(), value.clone());
            }
        }
        serde_json::from_value(Value::Object(members)).ok()
    }

    fn lifted_at(&self) -> Option<Time> {
        let by_edit = self.lifted.as_ref();
        match &self.lift {
            Some((stamp, at)) if by_edit.is_none_or(|(_, edit)| stamp > edit) => Some(*at),
            _ => by_edit.and_then(|(at, _)| *at),
        }
    }

    /// Joins another instance's state of this entry.
    pub fn join(&mut self, other: &Self) {
        if other.made < self.made {
            self.made = other.made.clone();
        }
        if other.body != self.body
            && other.body.as_ref().map(Body::rank) > self.body.as_ref().map(Body::rank)
        {
            self.body.clone_from(&other.body);
        }
        for (name, (value, stamp)) in &other.members {
            let held = self.members.get(name);
            if held.is_none_or(|(held, at)| (at, held.to_string()) < (stamp, value.to_string())) {
                self.members
                    .insert(name.clone(), (value.clone(), stamp.clone()));
            }
        }
        later(&mut self.lifted, &other.lifted, |(at, stamp)| {
            (stamp.clone(), *at)
        });
        later(&mut self.gone, &other.gone, Stamp::clone);
        for (name, value) in &other.unknown {
            let text = value.to_string();
            let held = self.unknown.get(name).map(Value::to_string);
            if held.is_none_or(|held| held < text) {
                self.unknown.insert(name.clone(), value.clone());
            }
        }
        // The remaining members are the same in whatever order they came.
        while self.members.len() > MAX_MEMBERS {
            self.members.pop_last();
        }
        while self.unknown.len() > MAX_UNKNOWN {
            self.unknown.pop_last();
        }
        self.shrink();
    }

    /// Applies these lifts, beside the current one, if they cover the ban and are later than it.
    pub fn lift_by<'a>(&mut self, records: impl Iterator<Item = &'a LiftRecord>) {
        if self.gone.is_some() {
            return;
        }
        let covering = records
            .filter(|record| record.covers(self.id.netblock))
            .map(|record| (record.stamp.clone(), record.at));
        let held = self.lift.clone();
        self.lift = self.first_lift(held.into_iter().chain(covering));
    }

    /// The first lift that is later than the ban and later than an edit that undid one. A lift
    /// after the end of the ban does not count.
    fn first_lift(&self, lifts: impl Iterator<Item = (Stamp, Time)>) -> Option<(Stamp, Time)> {
        if matches!(self.lifted, Some((Some(_), _))) {
            return None;
        }
        let edit = self.lifted.as_ref().map_or(&self.made, |(_, stamp)| stamp);
        let body = self.body.as_ref();
        let end_ms = body.map_or(u64::MAX, |body| self.end_ms(&body.ban));
        lifts
            .filter(|(stamp, at)| *stamp > self.made && stamp > edit && at.0 < end_ms)
            .min()
    }

    /// When it ends, an edit of the end included.
    fn end_ms(&self, body: &Ban) -> u64 {
        let edited = self.members.get("ban_expires");
        let edited = edited.and_then(|(value, _)| serde_json::from_value(value.clone()).ok());
        edited.unwrap_or(body.ban_expires).end_ms()
    }

    /// Reduces a removed entry to the fact of its removal.
    fn shrink(&mut self) {
        if self.gone.is_some() {
            self.body = None;
            self.members.clear();
            self.lifted = None;
            self.lift = None;
        }
    }

    /// Stores the current lift in `lifted`, because its record is removed.
    pub fn keep_lift(&mut self) {
        if let Some((stamp, at)) = self.lift.take() {
            self.lifted = Some((Some(at), stamp));
        }
    }

    /// Takes it out.
    pub fn forget(&mut self, stamp: Stamp) {
        self.gone = Some(stamp);
        self.shrink();
    }

    /// Takes the ledger's change of this ban from `before` to `after`: each member that differs is
    /// an edit. Returns whether anything is new.
    pub fn edit(
        &mut self,
        before: &Ban,
        after: &Ban,
        now_ms: u64,
        mut stamp: impl FnMut() -> Stamp,
    ) -> bool {
        let mut changed = false;
        // An edit that restarts an ended ban is intended, whatever was lifted meanwhile.
        let begins_again = !before.is_active(now_ms) && after.is_active(now_ms);
        if before.lifted != after.lifted || begins_again {
            self.lifted = Some((after.lifted, stamp()));
            self.lift = None;
            changed = true;
        }
        let members = |ban: &Ban| match serde_json::to_value(ban) {
            Ok(Value::Object(members)) => members,
            _ => Map::new(),
        };
        let (before_members, after_members) = (members(before), members(after));
        let taken_out = before_members
            .keys()
            .filter(|name| !after_members.contains_key(*name));
        let names = after_members.keys().chain(taken_out);
        for name in names.filter(|name| !NO_MEMBERS.contains(&name.as_str())) {
            let now = after_members.get(name);
            if now == before_members.get(name) {
                continue;
            }
            changed = true;
            // Notes that the service adds belong to the making of the ban.
            if name == "notes"
                && before.notes.is_none()
                && !self.members.contains_key(name)
                && let Some(body) = &mut self.body
            {
                Arc::make_mut(&mut body.ban).notes.clone_from(&after.notes);
                continue;
            }
            let value = now.cloned().unwrap_or(Value::Null);
            self.members.insert(name.clone(), (value, stamp()));
        }
        changed
    }

    /// Checks that it is well formed, and a ban that an edit could make (FLEET-24).
    ///
    /// # Errors
    /// What is wrong with it, as a predicate.
    pub fn check(&self) -> Result<(), &'static str> {
        let fits = |value: &Value, most| value.to_string().len() <= most;
        let mut members = self.members.values().map(|(value, _)| value);
        if self.members.len() > MAX_MEMBERS
            || self.unknown.len() > MAX_UNKNOWN
            || !members.all(|value| fits(value, MAX_MEMBER))
            || !self
                .unknown
                .values()
                .all(|value| fits(value, MAX_UNKNOWN_MEMBER))
        {
            return Err("has too many members, or too long ones");
        }
        if self
            .members
            .keys()
            .any(|name| NO_MEMBERS.contains(&name.as_str()))
        {
            return Err("edits a member that cannot be edited");
        }
        if self.id.netblock.widened_to_clients() != self.id.netblock {
            return Err("is narrower than a client");
        }
        let (WhichBan::Automatic(.., place) | WhichBan::Made(.., place)) = self.id.which;
        if place > MAX_PLACE {
            return Err("has a place too far behind");
        }
        let Some(Body { ban, .. }) = &self.body else {
            return self
                .gone
                .as_ref()
                .map(|_| ())
                .ok_or("is neither a ban nor one that was taken out");
        };
        if serde_json::to_vec(ban).is_ok_and(|text| text.len() > MAX_BODY) {
            return Err("is too long");
        }
        let Some(start) = ban.ban_started else {
            return Err("has no start");
        };
        let fits = match self.id.which {
            WhichBan::Automatic(slot, observed, _) => {
                let service = ban.origin().is_automatic();
                service && slot == start.0 / SLOT_MS && observed == ban.observed
            }
            WhichBan::Made(at, origin, _) => at == start && origin == ban.origin(),
        };
        if !fits || ban.netblock != self.id.netblock || ban.lifted.is_some() {
            return Err("is not the ban of its name");
        }
        Ok(())
    }

    /// The name in bans.json.
    pub fn key(&self) -> Option<BanKey> {
        self.body.as_ref().map(|body| BanKey::of(&body.ban))
    }
}

fn later<T: Clone, O: Ord>(held: &mut Option<T>, other: &Option<T>, order: impl Fn(&T) -> O) {
    if other.as_ref().map(&order) > held.as_ref().map(&order) {
        held.clone_from(other);
    }
}
