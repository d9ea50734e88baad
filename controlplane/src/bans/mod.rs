//! Bans: an exceeded limit becomes a ban in the ledger, the ban is published, its notes are
//! gathered, and its client is reset.
//!
//! The control loop drives [`Bans`] and gets back what happened: files and alerts are the loop's.
//! The length of a ban is pure arithmetic in [`weir_shared::escalation`], because both planes need
//! it.

use std::collections::VecDeque;
use std::sync::Arc;

use arc_swap::ArcSwap;
use crossbeam_channel::{Receiver, Select, TryRecvError, never};
use weir_shared::ban::{Ban, FleetNote, Notes, RuleNote, Unknown, WithUnknown};
use weir_shared::client::Client;
use weir_shared::clock::Now;
use weir_shared::event::{LimitExceeded, Offence};
use weir_shared::netblock::{NetSet, Netblock};
use weir_shared::rules::RuleSet;
use weir_shared::snapshot::Snapshot;
use weir_shared::spared::Spared;
use weir_shared::table::ClientTable;

use crate::line_limit::LineLimit;
use crate::state::Change;
use breaker::{Breaker, is_decisive};
use document::{BanKey, BansFile};
use ledger::changes::LedgerChange;
use ledger::import::{Batch, Imported};
use ledger::{AdminBan, BanOutcome, Full, Ledger, LedgerSettings};
use publish::Publisher;

mod breaker;
pub(crate) mod document;
mod drop_order;
mod elsewhere;
pub(crate) mod feed;
pub(crate) mod journal;
pub(crate) mod ledger;
pub(crate) mod publish;
mod starts;
pub(crate) mod too_wide;

/// The most exceeded limits that become bans before one publication: a flood must not delay the
/// first ban.
pub(crate) const MAX_BATCH: usize = 1024;

/// The most bans whose notes are gathered before exceeded limits are looked at again: counting the
/// requests of a netblock walks the client table, and a storm of bans must not delay the next ban
/// (BAN-8).
pub(crate) const MAX_NOTES_A_TURN: usize = 8;

/// The most bans that wait for their notes. Beyond it, notes lack the count of the netblock.
const MAX_UNNOTED: usize = 4096;

/// The bans that a lift addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Subject {
    /// All that cover this client.
    Client(Client),
    /// Those of exactly this netblock.
    Netblock(Netblock),
}

/// The ledger, its publisher, and the exceeded limits that lead to bans.
pub(crate) struct Bans {
    /// The settings of the ledger.
    settings: LedgerSettings,
    /// The bans themselves, at most `WAF_MAX_BANS`.
    ledger: Ledger,
    /// Publishes the ledger to the data plane.
    publisher: Publisher,
    /// Exceeded limits; the data plane bounds the channel.
    exceeded: Receiver<LimitExceeded>,
    /// The data plane's clients. Their counts go into notes; they are reset once their ban is
    /// published.
    table: Arc<dyn ClientTable>,
    /// The clients that the service never bans by itself (ALIVE-5).
    spared: Arc<Spared>,
    /// The number of the last change of crawlers that the ledger knows.
    crawler_changes: u64,
    /// Clients whose exceeded limits are being handled, at most [`MAX_BATCH`]. After a panic they
    /// are reset, or the data plane would never report them again.
    in_hand: Vec<Client>,
    /// Published bans that wait for their notes, at most [`MAX_UNNOTED`] and one batch. Their
    /// clients are reset afterwards.
    unnoted: VecDeque<(LimitExceeded, BanKey)>,
    /// Clients of bans from other instances, to be reset once those are published.
    to_reset: Vec<(Client, BanKey)>,
    /// Bounds the bans that follow only from other instances' counts.
    breaker: Breaker,
    /// The number of live instances of the fleet.
    instances: u64,
    /// How far the clock is ahead of the fleet's time, by which bans are written, in milliseconds
    /// (FLEET-22).
    ahead_ms: i64,
    /// Bounds the log lines about bans made.
    made_lines: LineLimit,
    /// Bounds the log lines about bans dropped.
    dropped_lines: LineLimit,
}

impl Bans {
    /// Takes the bans that a start has read, and publishes them.
    ///
    /// # Errors
    /// As [`Ledger::new`].
    pub(crate) fn new(
        settings: LedgerSettings,
        held: Vec<Arc<Ban>>,
        exceeded: Receiver<LimitExceeded>,
        table: Arc<dyn ClientTable>,
        snapshots: Arc<ArcSwap<Snapshot>>,
        spared: Arc<Spared>,
        now: Now,
    ) -> Result<Self, usize> {
        let mut ledger = Ledger::new(settings, held, now.wall_ms)?;
        ledger.trust(spared.trusted_blocks());
        table.remember_after(snapshots.load().rules.remembers_after());
        Ok(Self {
            settings,
            publisher: Publisher::new(snapshots, &mut ledger, now.wall_ms),
            ledger,
            exceeded,
            table,
            spared,
            crawler_changes: 0,
            in_hand: Vec::new(),
            unnoted: VecDeque::new(),
            to_reset: Vec::new(),
            breaker: Breaker::default(),
            instances: 1,
            ahead_ms: 0,
            made_lines: LineLimit::default(),
            dropped_lines: LineLimit::default(),
        })
    }

    /// Whether the held bans would fit under these settings.
    ///
    /// # Errors
    /// As [`Ledger::new`].
    pub(crate) fn fit(&self, settings: LedgerSettings, now: Now) -> Result<(), usize> {
        self.ledger.fit(settings, self.ms(now))
    }

    /// Applies these settings, and publishes the changes.
    pub(crate) fn take_settings(&mut self, settings: LedgerSettings, trusted: &NetSet, now: Now) {
        self.settings = settings;
        self.ledger.trust(self.spared.trusted_with(trusted));
        let now_ms = self.ms(now);
        self.ledger.take_settings(settings, now_ms);
        self.publish(now);
        self.log_drops();
    }

    /// The changes since the last call.
    pub(crate) fn take_changes(&mut self) -> Vec<LedgerChange> {
        self.ledger.take_changes()
    }

    /// The ledger, read-only.
    pub(crate) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Adds the channel of exceeded limits to the loop's select.
    pub(crate) fn select<'a>(&'a self, select: &mut Select<'a>) {
        select.recv(&self.exceeded);
    }

    /// Turns exceeded limits into bans, publishes them together, and only then resets their clients
    /// (LIMIT-6).
    pub(crate) fn take(&mut self, now: Now) {
        let batch = self.next_batch();
        if batch.is_empty() {
            return;
        }
        self.in_hand = batch.iter().map(|exceeded| exceeded.client).collect();
        let outcomes: Vec<BanOutcome> = batch
            .iter()
            .map(|exceeded| self.ban_for(exceeded, now))
            .collect();
        self.publish(now);
        let generation = self.publisher.generation();
        for (exceeded, outcome) in batch.into_iter().zip(outcomes) {
            match outcome {
                BanOutcome::Banned(key) => {
                    if let Some(ban) = self.ledger.ban(key)
                        && self.made_lines.allow()
                    {
                        log_ban(ban);
                    }
                    self.unnoted.push_back((exceeded, key));
                }
                BanOutcome::Already(banned) => {
                    (self.table).reset(exceeded.client, banned, generation, exceeded.at_ms);
                }
                BanOutcome::Full | BanOutcome::Spared => self.table.release(exceeded.client),
            }
        }
        self.in_hand.clear();
        self.log_drops();
    }

    fn ban_for(&mut self, exceeded: &LimitExceeded, now: Now) -> BanOutcome {
        // A worker has asked this as well; a forgotten proxy may have been noticed since.
        let (cause, scope) = (exceeded.offence.cause(), exceeded.offence.scope());
        let prefixes = self.settings.prefixes;
        let target = (self.spared).target(exceeded.client, cause, scope, prefixes);
        let Some(target) = target else {
            return BanOutcome::Spared;
        };
        // A netblock that is banned already does not count toward the bound of FLEET-27.
        if is_decisive(exceeded) && !self.ledger.is_banned(exceeded, target, self.ms(now)) {
            let minute_ago = now.wall_ms.saturating_sub(60_000);
            let clients = || self.table.seen_since(minute_ago);
            if !self.breaker.admits(clients, now) {
                return BanOutcome::Spared;
            }
        }
        let now_ms = self.ms(now);
        self.ledger.ban_for(exceeded, target, now_ms)
    }

    fn next_batch(&mut self) -> Vec<LimitExceeded> {
        let mut batch = Vec::new();
        while batch.len() < MAX_BATCH {
            match self.exceeded.try_recv() {
                Ok(mut exceeded) => {
                    exceeded.at_ms = exceeded.at_ms.saturating_add_signed(-self.ahead_ms);
                    batch.push(exceeded);
                }
                Err(TryRecvError::Empty) => break,
                // A disconnected channel is always ready: it would wake the loop without a pause.
                Err(TryRecvError::Disconnected) => {
                    self.exceeded = never();
                    break;
                }
            }
        }
        batch
    }

    /// Whether exceeded limits wait.
    pub(crate) fn has_more(&self) -> bool {
        !self.exceeded.is_empty()
    }

    /// Whether bans wait for their notes.
    pub(crate) fn has_unnoted(&self) -> bool {
        !self.unnoted.is_empty()
    }

    /// How many bans get their notes in one turn. All bans beyond [`MAX_UNNOTED`] do: their notes
    /// are cheap, and the queue stays bounded.
    pub(crate) fn notes_a_turn(&self) -> usize {
        let beyond = self.unnoted.len().saturating_sub(MAX_UNNOTED);
        MAX_NOTES_A_TURN.max(beyond)
    }

    /// Gathers the notes of the next published ban, then resets its client. Returns the ban with
    /// its notes; none if no ban waits.
    pub(crate) fn note_next(&mut self, now: Now) -> Option<Arc<Ban>> {
        loop {
            let crowded = self.unnoted.len() > MAX_UNNOTED;
            let (exceeded, key) = self.unnoted.pop_front()?;
            let client = exceeded.client;
            self.in_hand.push(client);
            // A ban that was dropped meanwhile needs no notes.
            if self.ledger.ban(key).is_some() {
                let notes = self.notes(exceeded, key.netblock, crowded, now);
                self.ledger.note(key, notes);
            }
            let generation = self.publisher.generation();
            let began_ms = key.ban_started.0;
            (self.table).reset(client, key.netblock, generation, began_ms);
            self.in_hand.clear();
            if let Some(ban) = self.ledger.ban(key) {
                return Some(Arc::clone(ban));
            }
        }
    }

    /// The notes of a ban (BAN-4). The client is not reset yet, so its own requests are counted.
    fn notes(&self, exceeded: LimitExceeded, netblock: Netblock, crowded: bool, now: Now) -> Notes {
        let (limit, rule) = match &exceeded.offence {
            Offence::Limit {
                kind,
                value,
                percent,
            } => (Some((*kind, *value, *percent)), None),
            Offence::Rule { rule, quota, .. } => (None, Some((rule, *quota))),
            Offence::Application(_) => (None, None),
        };
        let quota = rule.and_then(|(_, quota)| quota);
        // A trap has no window, and a window of a second is over before it could be counted.
        let span = limit.map(|(kind, ..)| kind.span());
        let span = span.or(quota.and_then(|quota| quota.span.of_clients()));
        let requests = |span| self.table.netblock_requests(netblock, span, now.wall_ms);
        Notes {
            netblock_requests: span.filter(|_| !crowded).map(requests),
            lookup: self
                .table
                .row(exceeded.client)
                .and_then(|row| row.lookup)
                .map(WithUnknown::from),
            request: exceeded.request.map(WithUnknown::from),
            fleet: exceeded.fleet.map(|note| {
                let instances = note.instances.max(self.instances);
                WithUnknown::from(FleetNote { instances, ..note })
            }),
            limit: limit.map(|(kind, ..)| kind),
            limit_value: limit
                .map(|(_, value, _)| value)
                .or(quota.map(|quota| quota.limit)),
            limit_percent: limit.map(|(.., percent)| percent),
            rule: rule.map(|(rule, quota)| {
                WithUnknown::from(RuleNote {
                    name: rule.name.clone(),
                    kind: rule.kind.name().to_owned(),
                    window: quota.map(|quota| quota.span),
                })
            }),
            unknown: Unknown::default(),
        }
    }

    /// Makes an administrator's ban. The ban is in force with the next [`Bans::publish`]; the
    /// request must not be answered before that.
    ///
    /// # Errors
    /// As [`Ledger::add`].
    pub(crate) fn add(&mut self, order: AdminBan, now: Now) -> Result<Arc<Ban>, Full> {
        let ban = self.ledger.add(order, self.ms(now))?;
        self.log_drops();
        if self.made_lines.allow() {
            log_ban(&ban);
        }
        Ok(ban)
    }

    /// Imports many bans, all or none. They are in force with the next [`Bans::publish`].
    ///
    /// # Errors
    /// As [`Ledger::import`].
    pub(crate) fn import(&mut self, batch: Batch, now: Now) -> Result<Imported, Full> {
        let imported = self.ledger.import(batch, self.ms(now))?;
        self.log_drops();
        tracing::warn!(
            bans = imported.imported,
            new = imported.new,
            dropped = imported.dropped,
            "bans imported"
        );
        Ok(imported)
    }

    /// Lifts the active bans of `subject` and returns them. In force with the next
    /// [`Bans::publish`].
    pub(crate) fn lift(&mut self, subject: Subject, now: Now) -> Vec<Arc<Ban>> {
        let now_ms = self.ms(now);
        match subject {
            Subject::Client(client) => {
                let lifted = self.ledger.lift(client, now_ms);
                tracing::info!(%client, bans = lifted.len(), "bans lifted");
                lifted
            }
            Subject::Netblock(netblock) => {
                let lifted = self.ledger.lift_netblock(netblock, now_ms);
                tracing::info!(%netblock, bans = lifted.len(), "bans lifted");
                lifted
            }
        }
    }

    /// Applies an edit of bans.json.
    pub(crate) fn edit(&mut self, changes: &[Change<BansFile>], now: Now) {
        let refused = self.ledger.edit(changes, self.ms(now));
        self.publish(now);
        if refused > 0 {
            tracing::warn!(
                "{refused} entries of the edited bans.json did not fit: none of the {} bans that WAF_MAX_BANS \
                 allows may be dropped",
                self.settings.max_bans
            );
        }
        self.log_drops();
    }

    /// Publishes the changes, if there are any. Called in every turn.
    pub(crate) fn publish(&mut self, now: Now) {
        let now_ms = self.ms(now);
        self.publisher.publish(&mut self.ledger, now_ms);
        let generation = self.publisher.generation();
        for (client, key) in self.to_reset.drain(..) {
            let (banned, began_ms) = (key.netblock, key.ban_started.0);
            self.table.reset(client, banned, generation, began_ms);
        }
    }

    /// Publishes new rules, with the bans as they are.
    pub(crate) fn publish_rules(&mut self, rules: Arc<RuleSet>) {
        let remembers_after = rules.remembers_after();
        self.publisher.publish_rules(rules);
        self.table.remember_after(remembers_after);
    }

    /// Logs how many lines were held back in the last minute, once it is over.
    pub(crate) fn log_held_back(&mut self, now: Now) {
        if let Some(rest) = self.made_lines.turn(now.wall_ms) {
            tracing::warn!("{rest} further bans were made in the last minute");
        }
        if let Some(rest) = self.dropped_lines.turn(now.wall_ms) {
            tracing::warn!(
                "{rest} further bans were dropped in the last minute, WAF_MAX_BANS is reached"
            );
        }
    }

    /// After a panic: rebuilds everything that is derived from the bans, and resets the clients
    /// that were being handled.
    pub(crate) fn recover(&mut self, now: Now) {
        self.ledger.rebuild();
        self.publish(now);
        for client in std::mem::take(&mut self.in_hand) {
            self.table.release(client);
        }
    }

    /// Logs every ban that was dropped for `WAF_MAX_BANS`.
    fn log_drops(&mut self) {
        for ban in self.ledger.take_drops() {
            if self.dropped_lines.allow() {
                tracing::warn!(
                    netblock = %ban.netblock, ban_expires = %ban.ban_expires, cause = ban.cause.name(),
                    "ban dropped, WAF_MAX_BANS is reached"
                );
            }
        }
    }
}

fn log_ban(ban: &Ban) {
    tracing::warn!(
        netblock = %ban.netblock, ban_expires = %ban.ban_expires, cause = ban.cause.name(), reason = ban.reason,
        observed = ban.observed, "ban made"
    );
}
