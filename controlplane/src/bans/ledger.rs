//! The ban ledger: holds every ban, decides which bans may be made, and which one is dropped when
//! it is full (BAN-1..5).
//!
//! Plain structs on one thread; time is an argument. The ledger keeps the index for the data plane
//! up to date; `publish.rs` publishes it. Files, logs and the client table are the control loop's.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use weir_shared::ban::{Ban, Cause, Expiry, Notes, Unknown};
use weir_shared::ban_origin::{BanOrigin, DecidedBy};
use weir_shared::client::Client;
use weir_shared::escalation::{Ended, Policy, asked_expiry, next_expiry};
use weir_shared::event::{LimitExceeded, Offence};
use weir_shared::netblock::{Netblock, PrefixLengths};
use weir_shared::settings::Settings;
use weir_shared::snapshot::{BanIndex, BanSpan};
use weir_shared::units::Time;

use super::document::{BanKey, BansFile, merge};
use super::drop_order::DropOrder;
use crate::state::Change;

mod broken;
pub(crate) mod changes;
mod from_fleet;
pub(crate) mod import;
mod lookups;
mod spared;

use broken::broken_at;
use changes::{Changed, Happened, LedgerChange};

/// Every ban held.
pub(crate) struct Ledger {
    settings: LedgerSettings,
    /// At most [`LedgerSettings::max_bans`].
    bans: BTreeMap<BanKey, Arc<Ban>>,
    /// The bans that may be dropped, in several orders. None depends on the current time, so the
    /// end of a ban needs no step, and a clock that is set back leaves no ban in the wrong order.
    order: DropOrder,
    /// The index of bans for the data plane.
    index: BanIndex,
    /// Whether [`Ledger::index`] has changed since it was last taken.
    index_changed: bool,
    /// While many bans change at once: the netblocks that changed. Each is indexed once at the end;
    /// otherwise all bans of a netblock would be looked at for each change.
    touched: Option<BTreeSet<Netblock>>,
    /// For tests: how many bans were looked at for the index.
    #[cfg(test)]
    looks: usize,
    /// For tests: how often all bans were gathered.
    #[cfg(test)]
    pub(crate) gathered: std::cell::Cell<usize>,
    /// Bans made since the start, by position in [`Cause::ALL`].
    made: [u64; Cause::ALL.len()],
    /// Bans dropped for `max_bans` since the start.
    dropped: u64,
    /// Dropped bans that are still to be logged.
    fresh_drops: Vec<Arc<Ban>>,
    /// Changes since they were last taken.
    changed: Changed,
    /// The trusted proxies: bans by other instances that cover one are held, and not in force
    /// (FLEET-24).
    trusted: Vec<Netblock>,
    /// Verified crawlers of the last day: automatic bans by other instances that cover one are not
    /// in force either (CRAWL-4).
    crawlers: BTreeSet<Client>,
}

/// The settings of the ledger.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LedgerSettings {
    /// How long bans last.
    pub(crate) policy: Policy,
    /// The width of a client's netblock.
    pub(crate) prefixes: PrefixLengths,
    /// `WAF_MAX_BANS`
    pub(crate) max_bans: usize,
    /// Observe mode: new bans are observed ones, and observed bans count. In enforce mode an
    /// observed ban neither refuses, nor prevents another ban, nor escalates (CHECK-3).
    pub(crate) observe: bool,
}

impl From<&Settings> for LedgerSettings {
    fn from(settings: &Settings) -> Self {
        Self {
            policy: settings.bans.policy,
            prefixes: settings.bans.prefixes,
            max_bans: settings.bans.max,
            observe: settings.observe,
        }
    }
}

/// The outcome of an exceeded limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BanOutcome {
    /// A ban was made.
    Banned(BanKey),
    /// The netblock is banned already (BAN-2).
    Already(Netblock),
    /// Every ban held is one that may not be dropped (BAN-5).
    Full,
    /// The ban would cover a client that the service never bans by itself (ALIVE-5).
    Spared,
}

/// A ban that an administrator asked for, checked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct AdminBan {
    /// What is banned.
    pub(crate) netblock: Netblock,
    /// The client that the administrator named, if it was one.
    pub(crate) client: Option<Client>,
    /// How long; none is permanent.
    pub(crate) duration: Option<Duration>,
    /// Why.
    pub(crate) reason: String,
    /// The administrator confirms the ban, whomever it covers.
    pub(crate) force: bool,
}

/// Every ban held is one that may not be dropped (BAN-5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Full;

impl Ledger {
    /// Takes in what bans.json held at the start.
    ///
    /// # Errors
    /// The number of undroppable bans, if that exceeds `WAF_MAX_BANS`. The start fails then:
    /// neither the bound nor an administrator's ban is given up, the operator decides.
    pub(crate) fn new(
        settings: LedgerSettings,
        bans: Vec<Arc<Ban>>,
        now_ms: u64,
    ) -> Result<Self, usize> {
        let mut ledger = Self {
            settings,
            bans: BTreeMap::new(),
            order: DropOrder::default(),
            index: BanIndex::default(),
            index_changed: true,
            touched: None,
            #[cfg(test)]
            looks: 0,
            #[cfg(test)]
            gathered: std::cell::Cell::new(0),
            made: [0; Cause::ALL.len()],
            dropped: 0,
            fresh_drops: Vec::new(),
            changed: Changed::default(),
            trusted: Vec::new(),
            crawlers: BTreeSet::new(),
        };
        ledger.indexed_once(|ledger| {
            for ban in bans {
                let (key, ban) = keyed(ban, now_ms);
                ledger.hold(key, ban);
            }
        });
        while ledger.bans.len() > settings.max_bans {
            ledger.drop_one(now_ms).map_err(|Full| ledger.bans.len())?;
        }
        Ok(ledger)
    }

    /// Whether all undroppable bans would fit under these settings.
    ///
    /// # Errors
    /// As [`Ledger::new`].
    pub(crate) fn fit(&self, settings: LedgerSettings, now_ms: u64) -> Result<(), usize> {
        if self.bans.len() <= settings.max_bans {
            return Ok(());
        }
        Self::new(settings, self.bans.values().cloned().collect(), now_ms).map(drop)
    }

    /// Applies these settings: bans that no longer fit are dropped, and another mode changes which
    /// bans count (CHECK-3).
    pub(crate) fn take_settings(&mut self, settings: LedgerSettings, now_ms: u64) {
        let other_mode = settings.observe != self.settings.observe;
        self.settings = settings;
        if other_mode {
            self.rebuild();
        }
        while self.bans.len() > settings.max_bans {
            // An administrator may have made more bans since the check: they stay.
            if self.drop_one(now_ms).is_err() {
                break;
            }
        }
    }

    /// Bans the netblock of a client that exceeded a limit, or the client alone, unless it is
    /// banned already (BAN-1, BAN-2).
    pub(crate) fn ban_for(
        &mut self,
        exceeded: &LimitExceeded,
        netblock: Netblock,
        now_ms: u64,
    ) -> BanOutcome {
        let at_ms = broken_at(exceeded, now_ms);
        if self.is_banned(exceeded, netblock, now_ms) {
            return BanOutcome::Already(netblock);
        }
        // Looked up before room is made: the ban that escalation needs may be the dropped one.
        let last = self.index.last_ended(netblock, at_ms);
        if self.make_room(now_ms).is_err() {
            return BanOutcome::Full;
        }
        let origin = BanOrigin::here(DecidedBy::Service);
        let key = self.free_key(netblock, at_ms, origin);
        let ban = Ban {
            netblock,
            client: Some(exceeded.client),
            ban_started: Some(key.ban_started),
            ban_expires: self.expiry_of(&exceeded.offence, last, key.ban_started.0),
            cause: exceeded.offence.cause(),
            origin: Some(origin),
            reason: exceeded.offence.reason(),
            lifted: None,
            observed: self.settings.observe,
            notes: None,
            unknown: Unknown::default(),
        };
        self.count_made(ban.cause);
        self.insert(key, Arc::new(ban), Happened::Made);
        BanOutcome::Banned(key)
    }

    fn expiry_of(&self, offence: &Offence, last: Option<Ended>, start_ms: u64) -> Expiry {
        let policy = &self.settings.policy;
        match offence {
            Offence::Application(asked) => asked_expiry(policy, last, start_ms, *asked),
            Offence::Limit { .. } | Offence::Rule { .. } => next_expiry(policy, last, start_ms),
        }
    }

    /// Adds notes to a ban. They are gathered after the ban was published: counting a netblock's
    /// requests walks the client table, and no request may pass meanwhile (BAN-8).
    pub(crate) fn note(&mut self, key: BanKey, notes: Notes) {
        if let Some(ban) = self.bans.get_mut(&key) {
            Arc::make_mut(ban).notes = Some(notes);
            self.changed.note(key, Happened::Noted);
        }
    }

    /// Makes an administrator's ban, even while another one is active (BAN-3). In observe mode it
    /// is an observed ban, like every ban made there (CHECK-3).
    ///
    /// # Errors
    /// [`Full`], which becomes 409.
    pub(crate) fn add(&mut self, order: AdminBan, now_ms: u64) -> Result<Arc<Ban>, Full> {
        self.make_room(now_ms)?;
        Ok(self.put_order(order, now_ms))
    }

    fn put_order(&mut self, order: AdminBan, now_ms: u64) -> Arc<Ban> {
        let origin = BanOrigin::here(DecidedBy::Admin);
        let key = self.free_key(order.netblock, now_ms, origin);
        let ban = Arc::new(Ban {
            netblock: order.netblock,
            client: order.client,
            ban_started: Some(key.ban_started),
            ban_expires: order.duration.map_or(Expiry::Permanent, |length| {
                Expiry::At(key.ban_started.plus(length))
            }),
            cause: Cause::Admin,
            origin: Some(origin),
            reason: order.reason,
            lifted: None,
            observed: self.settings.observe,
            notes: None,
            unknown: Unknown::forced(order.force),
        });
        self.count_made(ban.cause);
        self.insert(key, Arc::clone(&ban), Happened::Made);
        ban
    }

    /// Lifts every active ban that covers the client, observed ones too, and returns them lifted,
    /// oldest first.
    pub(crate) fn lift(&mut self, client: Client, now_ms: u64) -> Vec<Arc<Ban>> {
        self.lift_where(now_ms, |netblock| netblock.covers_client(client))
    }

    /// Lifts every active ban of exactly this netblock, likewise.
    pub(crate) fn lift_netblock(&mut self, netblock: Netblock, now_ms: u64) -> Vec<Arc<Ban>> {
        self.lift_where(now_ms, |banned| banned == netblock)
    }

    fn lift_where(&mut self, now_ms: u64, meant: impl Fn(Netblock) -> bool) -> Vec<Arc<Ban>> {
        let lifted: Vec<(BanKey, Arc<Ban>)> = self
            .bans
            .iter()
            .filter(|(_, ban)| ban.is_active(now_ms) && meant(ban.netblock))
            .map(|(key, ban)| {
                let mut ban = Ban::clone(ban);
                ban.lifted = Some(Time(now_ms));
                (*key, Arc::new(ban))
            })
            .collect();
        self.indexed_once(|ledger| {
            for (key, ban) in &lifted {
                ledger.insert(*key, Arc::clone(ban), Happened::Lifted);
            }
        });
        oldest_first(lifted.into_iter().map(|(_, ban)| ban).collect())
    }

    /// Applies an edit of bans.json (STATE-3, STATE-4). Removals come first, so that they make room
    /// for additions. Returns how many entries were rejected because no held ban may be dropped
    /// (BAN-5); they count as dropped.
    pub(crate) fn edit(&mut self, changes: &[Change<BansFile>], now_ms: u64) -> usize {
        self.indexed_once(|ledger| ledger.edit_bans(changes, now_ms))
    }

    fn edit_bans(&mut self, changes: &[Change<BansFile>], now_ms: u64) -> usize {
        for change in changes {
            if let Change::Remove(key) = change {
                self.remove(*key, Happened::Forgotten);
            }
        }
        let mut refused = 0;
        for change in changes {
            let Change::Put { before, after } = change else {
                continue;
            };
            let (key, mut ban) = keyed(Arc::clone(after), now_ms);
            let mut happened = Happened::Edited;
            if let Some(held) = self.bans.get(&key) {
                if let Some(before) = before {
                    ban = merge(before, held, &ban);
                }
            } else if self.make_room(now_ms).is_err() {
                refused += 1;
                self.dropped += 1;
                self.fresh_drops.push(ban);
                continue;
            } else {
                self.count_made(Cause::Edit);
                happened = Happened::Made;
            }
            self.insert(key, ban, happened);
        }
        refused
    }

    /// Whether a further ban can be made (BAN-5).
    pub(crate) fn can_ban(&self, now_ms: u64) -> bool {
        self.bans.len() < self.settings.max_bans || self.order.first(now_ms).is_some()
    }

    /// The bans dropped since the last call, for the log.
    pub(crate) fn take_drops(&mut self) -> Vec<Arc<Ban>> {
        std::mem::take(&mut self.fresh_drops)
    }

    /// The changes since the last call, by key.
    pub(crate) fn take_changes(&mut self) -> Vec<LedgerChange> {
        let change = |(key, happened)| LedgerChange {
            key,
            happened,
            ban: self.bans.get(&key).cloned(),
        };
        self.changed.take().map(change).collect()
    }

    /// A copy of the index, if it changed since the last call.
    pub(crate) fn take_index(&mut self) -> Option<BanIndex> {
        std::mem::take(&mut self.index_changed).then(|| self.index.clone())
    }

    /// Rebuilds everything that is derived from the bans: a panic may have left it half changed.
    pub(crate) fn rebuild(&mut self) {
        self.order = DropOrder::default();
        self.index = BanIndex::default();
        self.index_changed = true;
        let bans = std::mem::take(&mut self.bans);
        self.indexed_once(|ledger| {
            for (key, ban) in bans {
                ledger.hold(key, ban);
            }
        });
    }

    /// Changes many bans, then indexes each changed netblock once.
    fn indexed_once<T>(&mut self, change: impl FnOnce(&mut Self) -> T) -> T {
        self.touched = Some(BTreeSet::new());
        let outcome = change(self);
        for netblock in self.touched.take().unwrap_or_default() {
            self.index_again(netblock);
        }
        outcome
    }

    /// Whether the ban counts in this mode (CHECK-3).
    fn matters(&self, ban: &Ban) -> bool {
        (self.settings.observe || !ban.observed) && !self.spares(ban)
    }

    /// Inserts a ban, or replaces the one with the same key.
    fn insert(&mut self, key: BanKey, ban: Arc<Ban>, happened: Happened) {
        self.changed.note(key, happened);
        self.hold(key, ban);
    }

    fn hold(&mut self, key: BanKey, ban: Arc<Ban>) {
        if let Some(old) = self.bans.insert(key, Arc::clone(&ban)) {
            self.order.remove(key, &old);
        }
        self.order.add(key, &ban);
        self.index_again(key.netblock);
    }

    fn remove(&mut self, key: BanKey, happened: Happened) -> Option<Arc<Ban>> {
        let ban = self.bans.remove(&key)?;
        self.changed.note(key, happened);
        self.order.remove(key, &ban);
        self.index_again(key.netblock);
        Some(ban)
    }

    fn index_again(&mut self, netblock: Netblock) {
        if let Some(touched) = &mut self.touched {
            touched.insert(netblock);
            return;
        }
        let (first, last) = BanOrigin::RANGE;
        let all_of_it = BanKey::new(netblock, 0, first)..=BanKey::new(netblock, u64::MAX, last);
        #[cfg(test)]
        {
            self.looks += self.bans.range(all_of_it.clone()).count();
        }
        let span = self
            .bans
            .range(all_of_it)
            .map(|(_, ban)| ban)
            .filter(|ban| ban.lifted.is_none() && self.matters(ban))
            .map(|ban| BanSpan {
                end_ms: ban.ban_expires.end_ms(),
                length_ms: ban.length_ms(),
                cause: ban.cause,
                is_automatic: ban.origin().is_automatic(),
            })
            .max_by_key(|span| (span.end_ms, span.length_ms));
        if self.index.span(netblock) != span {
            self.index.set(netblock, span);
            self.index_changed = true;
        }
    }

    /// Drops bans until one more fits.
    fn make_room(&mut self, now_ms: u64) -> Result<(), Full> {
        while self.bans.len() >= self.settings.max_bans {
            self.drop_one(now_ms)?;
        }
        Ok(())
    }

    fn drop_one(&mut self, now_ms: u64) -> Result<(), Full> {
        let key = self.order.first(now_ms).ok_or(Full)?;
        let ban = self.remove(key, Happened::Dropped).ok_or(Full)?;
        self.dropped += 1;
        self.fresh_drops.push(ban);
        Ok(())
    }

    /// The key of a ban made now. No two bans of one netblock and one origin start in the same
    /// millisecond, so this may be a later one.
    fn free_key(&self, netblock: Netblock, at_ms: u64, origin: BanOrigin) -> BanKey {
        let mut key = BanKey::new(netblock, at_ms, origin);
        while self.bans.contains_key(&key) {
            key.ban_started.0 += 1;
        }
        key
    }

    fn count_made(&mut self, cause: Cause) {
        for (count, of) in self.made.iter_mut().zip(Cause::ALL) {
            if of == cause {
                *count += 1;
            }
        }
    }
}

/// A ban with its key. The reader of the file fills in a missing `ban_started`; a ban that still
/// lacks one starts now.
fn keyed(mut ban: Arc<Ban>, now_ms: u64) -> (BanKey, Arc<Ban>) {
    if ban.ban_started.is_none() {
        Arc::make_mut(&mut ban).ban_started = Some(Time(now_ms));
    }
    (BanKey::of(&ban), ban)
}

/// Sorts bans in the order of bans.json and of answers.
pub(crate) fn oldest_first(mut bans: Vec<Arc<Ban>>) -> Vec<Arc<Ban>> {
    bans.sort_by_key(|ban| (ban.ban_started, BanKey::of(ban)));
    bans
}

#[cfg(test)]
mod tests;
