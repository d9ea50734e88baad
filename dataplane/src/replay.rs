//! The checks on requests of the past (CONTROL-6): the ladder itself, on a client table of its own,
//! with the time of the log as the time.
//!
//! What a limit, a trap or a jail leads to is reported as a worker reports it; whoever holds the
//! other end makes the bans. What is left out is what a log does not hold: connections, bodies,
//! answers.

use std::net::IpAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use crossbeam_channel::Sender;
use http::{HeaderMap, Method, StatusCode};
use weir_shared::ban::{Cause, RequestNote, Scope};
use weir_shared::client::{Client, fold};
use weir_shared::clock::Now;
use weir_shared::event::{LimitExceeded, Offence};
use weir_shared::lookup::{Lookup, LookupStarted};
use weir_shared::rules::{Asking, Host};
use weir_shared::settings::Settings;
use weir_shared::snapshot::Snapshot;
use weir_shared::spared::Spared;
use weir_shared::verdict::{Action, History, LimitHit};

use crate::clients::entry::{Entry, Exceeded};
use crate::clients::table::Table;
use crate::exchange::limit_break;
use crate::identity::Who;
use crate::ladder::{self, Asked, Decision, Refusal, Rules, Verdict};
use crate::outcome::{Accounting, AtEnd};

/// A request of a log, as far as the checks ask about it.
#[derive(Clone, Copy, Debug)]
pub struct Past<'a> {
    /// The client's full address.
    pub address: IpAddr,
    /// Its method.
    pub method: &'a Method,
    /// Its path as written, without the query.
    pub path: &'a str,
    /// Its `Host` field, if the log has it.
    pub headers: &'a HeaderMap,
    /// The length of its body, announced or counted.
    pub content_length: Option<u64>,
    /// The page of another site asked for it (RULE-8), where the log says so.
    pub other_site: bool,
}

/// How a request of a log ended.
#[derive(Clone, Copy, Debug, Default)]
pub struct End {
    /// Body bytes from the client.
    pub request_bytes: u64,
    /// Body bytes to the client.
    pub response_bytes: u64,
    /// It asked for a WebSocket.
    pub websocket: bool,
    /// The application's answer, where the log knows one.
    pub status: Option<StatusCode>,
}

/// What the checks said of a request.
#[derive(Clone, Debug)]
pub struct Decided {
    /// The refusal, if it is refused.
    pub refusal: Option<Action>,
    limit_hit: Option<LimitHit>,
    who: Who,
    /// The page of another site asked for it (RULE-8).
    other_site: bool,
    at: Now,
    /// None for the health check, which nothing counts.
    decision: Option<Decision>,
}

impl Decided {
    /// The limit that refused it, as the log names it.
    pub fn limit_hit(&self) -> Option<&str> {
        let rule = self.decision.as_ref().and_then(|one| one.rule.as_ref());
        match (self.limit_hit?, rule) {
            (LimitHit::Rule(_), Some(rule)) => Some(&rule.name),
            (limit, _) => Some(limit.name()),
        }
    }
}

/// Settings as they would have judged.
pub struct Replay {
    rules: Rules,
    accounting: Accounting,
    table: Arc<Table>,
    snapshots: Arc<ArcSwap<Snapshot>>,
    exceeded: Sender<LimitExceeded>,
}

impl Replay {
    /// With nobody seen yet. Offences go to `exceeded`.
    pub fn new(
        settings: &Settings,
        spared: Arc<Spared>,
        table: Arc<Table>,
        snapshots: Arc<ArcSwap<Snapshot>>,
        exceeded: Sender<LimitExceeded>,
    ) -> Self {
        let rules = Rules::of(settings, spared);
        table.set_bucket(rules.charging.bucket);
        Self {
            rules,
            accounting: Accounting::of(settings),
            table,
            snapshots,
            exceeded,
        }
    }

    /// Asks the ladder. `lookup` is asked about a client that nothing is known of yet, where a
    /// setting wants to know.
    pub fn decide(
        &self,
        past: &Past<'_>,
        lookup: impl Fn(Client) -> LookupStarted,
        now: Now,
    ) -> Decided {
        let who = Who::client(fold(past.address));
        let mut decided = Decided {
            refusal: None,
            limit_hit: None,
            who,
            other_site: past.other_site,
            at: now,
            decision: None,
        };
        if ladder::is_health_check(past.method, past.path) {
            return decided;
        }
        let decision = self.ladder(past, who, lookup, now);
        if let Verdict::Refuse(refusal) = decision.verdict {
            self.refuse(&mut decided, refusal, &decision);
        }
        decided.decision = Some(decision);
        decided
    }

    fn ladder(
        &self,
        past: &Past<'_>,
        who: Who,
        lookup: impl Fn(Client) -> LookupStarted,
        now: Now,
    ) -> Decision {
        let mut may_wait = true;
        loop {
            let asked = Asked {
                asking: asking(past),
                who,
                other_site: past.other_site,
                content_length: past.content_length,
                may_wait,
            };
            let snapshot = self.snapshots.load();
            let decided = ladder::decide(&self.rules, &snapshot, &self.table, &asked, now);
            let Ok(decision) = decided else { continue };
            if decision.ask || decision.verdict == Verdict::AwaitLookup {
                self.attach(who.client, lookup(who.client), now);
            }
            if decision.verdict != Verdict::AwaitLookup {
                return decision;
            }
            may_wait = false;
        }
    }

    fn attach(&self, client: Client, started: LookupStarted, now: Now) {
        self.table.get(client, |entry| match started {
            LookupStarted::Known { lookup, until_ns } => {
                entry.attach(lookup, until_ns);
            }
            LookupStarted::NotNow { again_ns } => entry.ask_again(again_ns),
            LookupStarted::Later => entry.ask_again(now.mono_ns),
        });
    }

    /// What is known of a client.
    pub fn lookup_of(&self, address: IpAddr) -> Option<Arc<Lookup>> {
        let client = Client::of(address);
        self.table.get(client, |entry| entry.lookup.clone())?
    }

    fn refuse(&self, decided: &mut Decided, refusal: Refusal, decision: &Decision) {
        decided.refusal = Some(refusal.action());
        match refusal {
            Refusal::RateLimited { exceeded, ban } => {
                decided.limit_hit = Some(exceeded.limit);
                self.exceed(decided, &exceeded, ban.is_some(), decision);
            }
            Refusal::Trapped {
                bans: Some(scope),
                first: true,
                ban,
            } => {
                let offence = limit_break::trapped(decision.rule.as_ref(), scope);
                self.offend(decided, offence, ban.is_some());
            }
            Refusal::Trapped { .. }
            | Refusal::DeniedNet
            | Refusal::DeniedCountry
            | Refusal::Banned(_)
            | Refusal::BodyTooLarge => {}
        }
        let refused = |entry: &mut Entry| match refusal.action().history() {
            History::Refused => entry.refused += 1,
            History::Passed | History::Neither => {}
        };
        if decision.counted {
            self.table.update(decided.who.client, decided.at, refused);
        } else {
            // Not admitted where it is not kept; a trap's client is (LIMIT-9).
            self.table.seen(decided.who.client, decided.at, refused);
        }
    }

    fn exceed(&self, decided: &Decided, exceeded: &Exceeded, can_ban: bool, decision: &Decision) {
        if !exceeded.first {
            return;
        }
        let percent = match exceeded.limit {
            LimitHit::Window(kind) if kind.counts_bytes() => decision.bytes_percent,
            _ => decision.limit_percent,
        };
        let percent = percent.map_or(100, |applied| applied.percent);
        let offence = limit_break::offence(exceeded, percent, decision.rule.as_ref());
        self.offend(decided, offence, can_ban);
    }

    /// Reports an offence, if a ban can follow.
    fn offend(&self, decided: &Decided, offence: Option<Offence>, can_ban: bool) {
        let reported = can_ban
            && offence.is_some_and(|offence| {
                let report = LimitExceeded {
                    client: decided.who.client,
                    offence,
                    at_ms: decided.at.wall_ms,
                    request: RequestNote::default(),
                };
                self.exceeded.try_send(report).is_ok()
            });
        if !reported {
            self.table
                .update(decided.who.client, decided.at, Entry::release);
        }
    }

    /// The application answers a request that passed: the jails that count it are charged (RULE-9).
    pub fn answer(&self, decided: &Decided, past: &Past<'_>, end: &End, now: Now) {
        let charges = |decision: &Decision| {
            decision.verdict == Verdict::Forward && decision.counted && decided.refusal.is_none()
        };
        if let Some(status) = end.status
            && decided.decision.as_ref().is_some_and(charges)
        {
            self.charge_jails(decided, past, status, now);
        }
    }

    /// Ends a request that passed: its bytes are charged.
    pub fn end(&self, decided: &Decided, end: &End, now: Now) {
        let Some(decision) = &decided.decision else {
            return;
        };
        let forwarded = decision.verdict == Verdict::Forward;
        if decided.refusal.is_some() {
            return;
        }
        let action = if forwarded {
            Action::Passed
        } else {
            Action::Answered
        };
        let outcome = self.accounting.outcome(&AtEnd {
            action,
            shadow_action: None,
            history: None,
            forwarded,
            counted: decision.counted,
            websocket: end.websocket,
            request_bytes: end.request_bytes,
            response_bytes: end.response_bytes,
        });
        let work = |entry: &mut Entry| {
            entry.passed += 1;
            if decision.under_way {
                entry.end_request();
            }
            let bytes = outcome.charged_bytes?;
            let (limits, wall_ms) = (entry.limits(&self.rules.terms), now.wall_ms);
            let charging = &self.rules.charging;
            charging.charge_bytes(entry, &limits, wall_ms, bytes, decided.other_site)
        };
        let exceeded = if decision.counted {
            self.table.update(decided.who.client, now, work)
        } else {
            self.table.touch(decided.who.client, decided.at, work)
        };
        if let Some(exceeded) = exceeded {
            let can_ban = self.can_ban(decided.who, Cause::ByteLimit, Scope::Netblock);
            self.exceed(decided, &exceeded, can_ban, decision);
        }
    }

    fn charge_jails(&self, decided: &Decided, past: &Past<'_>, status: StatusCode, now: Now) {
        let snapshot = self.snapshots.load();
        let mut jailed = None;
        for jail in snapshot.rules.jails(status, &asking(past)) {
            let exceeded = self.table.update(decided.who.client, now, |entry| {
                entry.charge_rule(&jail.rule, &jail.quotas, now.wall_ms, past.other_site)
            });
            if let Some(exceeded) = exceeded.filter(|exceeded| exceeded.bans) {
                jailed.get_or_insert((exceeded, Arc::clone(&jail.rule), jail.scope));
            }
        }
        if let Some((exceeded, rule, scope)) = jailed.filter(|(exceeded, ..)| exceeded.first) {
            let offence = limit_break::jailed(&exceeded, &rule, scope);
            let can_ban = self.can_ban(decided.who, Cause::Jail, scope);
            self.offend(decided, offence, can_ban);
        }
    }

    fn can_ban(&self, who: Who, cause: Cause, scope: Scope) -> bool {
        let snapshot = self.snapshots.load();
        ladder::ban_target(&self.rules, &snapshot, who, cause, scope).is_some()
    }
}

fn asking<'a>(past: &Past<'a>) -> Asking<'a> {
    Asking {
        path: past.path,
        method: past.method,
        host: Host::Among(past.headers),
    }
}
