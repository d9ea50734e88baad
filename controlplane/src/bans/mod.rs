//! Bans: an exceeded limit becomes a ban in the ledger, the ban is published, its circumstances are
//! noted, and its client is reset.
//!
//! [`Bans`] is turned by the control loop and returns what happened: files and alerts are the
//! loop's. How long a ban lasts is pure arithmetic and lies in [`weir_shared::escalation`], because
//! both planes ask it.

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

/// The most exceeded limits that are made into bans before they are published: a flood of them must
/// not delay the first.
pub(crate) const MAX_BATCH: usize = 1024;

/// The most bans whose circumstances are gathered before exceeded limits are looked at again:
/// counting the requests of a netblock walks the client table, and a storm of bans must not hold up
/// the next one (BAN-8).
pub(crate) const MAX_NOTES_A_TURN: usize = 8;

/// The most bans that wait for their circumstances; beyond it they go without the count of their
/// netblock.
const MAX_UNNOTED: usize = 4096;

/// Which bans are meant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Subject {
    /// All that cover this client.
    Client(Client),
    /// Those of exactly this netblock.
    Netblock(Netblock),
}

/// Every ban, and what leads to one.
pub(crate) struct Bans {
    /// The settings that bans obey.
    settings: LedgerSettings,
    /// The bans themselves, at most `WAF_MAX_BANS`.
    ledger: Ledger,
    /// Hands them to the data plane.
    publisher: Publisher,
    /// Exceeded limits; the data plane bounds the channel.
    exceeded: Receiver<LimitExceeded>,
    /// The data plane's clients: asked for circumstances, and reset once their ban is published.
    table: Arc<dyn ClientTable>,
    /// Who is not banned by the service itself (ALIVE-5).
    spared: Arc<Spared>,
    /// The change of its crawlers that the ledger knows.
    crawler_changes: u64,
    /// Clients whose exceeded limits are being handled, at most [`MAX_BATCH`]: after a panic they
    /// are released, or they would never be reported again.
    in_hand: Vec<Client>,
    /// Bans that are published and wait for their circumstances, at most [`MAX_UNNOTED`] and one
    /// batch; their clients are reset afterwards.
    unnoted: VecDeque<(LimitExceeded, BanKey)>,
    /// Clients that other instances have banned, until that is published.
    to_reset: Vec<(Client, BanKey)>,
    /// Bounds the bans that only the counts of other instances make.
    breaker: Breaker,
    /// Instances of the fleet that live.
    instances: u64,
    /// How far the clock is ahead of that by which bans are written, milliseconds (FLEET-22).
    ahead_ms: i64,
    /// Bounds the log lines about bans made.
    made_lines: LineLimit,
    /// Bounds the log lines about bans dropped.
    dropped_lines: LineLimit,
}

impl Bans {
    /// Takes in what bans.json held at the start and publishes it.
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

    /// Whether the bans that are held would fit under these settings.
    ///
    /// # Errors
    /// As [`Ledger::new`].
    pub(crate) fn fit(&self, settings: LedgerSettings, now: Now) -> Result<(), usize> {
        self.ledger.fit(settings, self.ms(now))
    }

    /// Obeys these settings from now on, and publishes what that changes.
    pub(crate) fn take_settings(&mut self, settings: LedgerSettings, trusted: &NetSet, now: Now) {
        self.settings = settings;
        self.ledger.trust(self.spared.trusted_with(trusted));
        let now_ms = self.ms(now);
        self.ledger.take_settings(settings, now_ms);
        self.publish(now);
        self.log_drops();
    }

    /// What changed since this was last asked.
    pub(crate) fn take_changes(&mut self) -> Vec<LedgerChange> {
        self.ledger.take_changes()
    }

    /// Every ban, to be read.
    pub(crate) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// What the loop wakes for.
    pub(crate) fn select<'a>(&'a self, select: &mut Select<'a>) {
        select.recv(&self.exceeded);
    }

    /// Makes bans of exceeded limits, publishes them in one go, and only then resets the clients
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
        // A worker asks the same; a peer may have been noticed since.
        let (cause, scope) = (exceeded.offence.cause(), exceeded.offence.scope());
        let prefixes = self.settings.prefixes;
        let target = (self.spared).target(exceeded.client, cause, scope, prefixes);
        let Some(target) = target else {
            return BanOutcome::Spared;
        };
        // Who is banned already costs nothing of what others may have banned (FLEET-27).
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
                // A channel whose other end is gone is always ready; it would be asked without a
                // pause.
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

    /// Whether bans wait for their circumstances.
    pub(crate) fn has_unnoted(&self) -> bool {
        !self.unnoted.is_empty()
    }

    /// How many bans one turn notes. Those beyond the bound cost little, and all of them go: the
    /// queue stays bounded.
    pub(crate) fn notes_a_turn(&self) -> usize {
        let beyond = self.unnoted.len().saturating_sub(MAX_UNNOTED);
        MAX_NOTES_A_TURN.max(beyond)
    }

    /// Gathers the circumstances of the next ban that was published, then resets its client.
    /// Returns the ban as it is now; none where no ban waits.
    pub(crate) fn note_next(&mut self, now: Now) -> Option<Arc<Ban>> {
        loop {
            let crowded = self.unnoted.len() > MAX_UNNOTED;
            let (exceeded, key) = self.unnoted.pop_front()?;
            let client = exceeded.client;
            self.in_hand.push(client);
            // A ban that was dropped meanwhile needs none.
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

    /// The circumstances of a ban (BAN-4). The client is not reset yet, so its own requests are
    /// among those counted.
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
        // A trap has no window, and what a second holds is gone before it could be counted.
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

    /// Makes an administrator's ban. It is in force with the next [`Bans::publish`], and nobody is
    /// to be answered before that.
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

    /// Takes many bans in, all or none. In force with the next [`Bans::publish`], as with
    /// [`Bans::add`].
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

    /// Lifts every active ban that is meant and returns them. In force with the next
    /// [`Bans::publish`], as with [`Bans::add`].
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

    /// Brings an edit of bans.json into force.
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

    /// Publishes what changed, if anything did. Called in every turn.
    pub(crate) fn publish(&mut self, now: Now) {
        let now_ms = self.ms(now);
        self.publisher.publish(&mut self.ledger, now_ms);
        let generation = self.publisher.generation();
        for (client, key) in self.to_reset.drain(..) {
            let (banned, began_ms) = (key.netblock, key.ban_started.0);
            self.table.reset(client, banned, generation, began_ms);
        }
    }

    /// Publishes other rules, with the bans as they stand.
    pub(crate) fn publish_rules(&mut self, rules: Arc<RuleSet>) {
        let remembers_after = rules.remembers_after();
        self.publisher.publish_rules(rules);
        self.table.remember_after(remembers_after);
    }

    /// Logs how many lines the last minute held back, once it is over.
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

    /// After a panic: works everything that follows from the bans out anew and releases the clients
    /// that were being handled.
    pub(crate) fn recover(&mut self, now: Now) {
        self.ledger.rebuild();
        self.publish(now);
        for client in std::mem::take(&mut self.in_hand) {
            self.table.release(client);
        }
    }

    /// Logs every ban that was dropped for the bound.
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
