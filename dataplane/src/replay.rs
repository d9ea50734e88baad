//! The checks on requests of the past (CONTROL-6): the ladder itself, on a client table of its own,
//! with the time of the log as the time.
//!
//! What a limit, a trap or a jail leads to is reported as a worker reports it; whoever holds the
//! other end makes the bans. What is left out is what a log does not hold: connections, bodies,
//! answers.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use crossbeam_channel::Sender;
use http::{Method, StatusCode};
use weir_shared::ban::{Cause, RequestNote, Scope};
use weir_shared::client::{Client, fold};
use weir_shared::clock::Now;
use weir_shared::event::{LimitExceeded, Offence};
use weir_shared::lookup::{Lookup, LookupStarted};
use weir_shared::rules::{Asking, Sent};
use weir_shared::settings::Settings;
use weir_shared::snapshot::Snapshot;
use weir_shared::spared::Spared;
use weir_shared::verdict::{Action, Group, History, LimitHit};

use crate::clients::charging::{Answered, Jailed};
use crate::clients::entry::{Entry, Exceeded};
use crate::clients::known::Standing;
use crate::clients::table::Table;
use crate::request::application::{self, Said, Voice};
use crate::request::identity::Who;
use crate::request::ladder::{self, Asked, Decision, Refusal, Rules, Verdict};
use crate::request::outcome::{self, Accounting, AtEnd};

/// A request of a log, as far as the checks ask about it.
#[derive(Clone, Copy, Debug)]
pub struct Past<'a> {
    /// The client's full address.
    pub address: IpAddr,
    /// Its method.
    pub method: &'a Method,
    /// Its path as written, without the query.
    pub path: &'a str,
    /// Its host, its query and its fields, as far as the log has them.
    pub sent: &'a dyn Sent,
    /// The length of its body, announced or counted.
    pub content_length: Option<u64>,
    /// The page of another site asked for it (RULE-8), where the log says so.
    pub other_site: bool,
    /// What the application said of the client in its answer (APP), where the log says so.
    pub application: Option<&'a str>,
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
    /// None where the application's words are not asked for.
    voice: Option<Voice>,
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
            voice: (settings.identity.application_field.as_ref()).map(|_| Voice::default()),
        }
    }

    /// The fields that the rules ask for.
    pub fn fields_asked_for(&self) -> BTreeSet<String> {
        let snapshot = self.snapshots.load();
        let fields = snapshot.rules.fields_asked_for();
        fields.map(str::to_owned).collect()
    }

    /// Whether a crawler of the rules proves itself by DNS (CRAWL-3). A log holds no names.
    pub fn asks_names(&self) -> bool {
        !self.snapshots.load().rules.suffixes().is_empty()
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
            if decision.claims.notes {
                (self.rules.spared).spare_crawler(who.client, now.wall_ms);
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
                let offence = outcome::trapped(decision.rule.as_ref(), scope);
                self.offend(decided, offence, ban.is_some());
            }
            Refusal::Trapped { .. }
            | Refusal::DeniedNet
            | Refusal::DeniedCountry
            | Refusal::DeniedAsn
            | Refusal::DeniedRule(_)
            | Refusal::Banned(_)
            | Refusal::BodyTooLarge => {}
        }
        if refusal.action().history() != History::Refused {
            return;
        }
        let refused = |entry: &mut Entry| {
            entry.refused += 1;
            entry.standing()
        };
        let (client, at) = (decided.who.client, decided.at);
        let standing = if decision.counted {
            Some(self.table.update(client, at, refused))
        } else {
            // Not admitted where it is not kept; a trap's client is (LIMIT-9).
            self.table.seen(client, at, refused)
        };
        self.note_known(client, (false, standing.unwrap_or_default()), at);
    }

    fn note_known(&self, client: Client, (passed, standing): (bool, Standing), now: Now) {
        let after = self.snapshots.load().rules.remembers_after();
        self.table
            .known()
            .note(client, passed, standing, after, now);
    }

    fn exceed(&self, decided: &Decided, exceeded: &Exceeded, can_ban: bool, decision: &Decision) {
        if !exceeded.first {
            return;
        }
        let percents = [decision.limit_percent, decision.bytes_percent];
        let offence = outcome::offence(exceeded, percents, decision.rule.as_ref());
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
                    request: Some(RequestNote::default()),
                    fleet: None,
                };
                self.exceeded.try_send(report).is_ok()
            });
        if !reported {
            self.table
                .update(decided.who.client, decided.at, Entry::release);
        }
    }

    /// The application answers a request that passed: the jails that count it are charged (RULE-9),
    /// and what it says of the client holds (APP).
    pub fn answer(&self, decided: &Decided, past: &Past<'_>, end: &End, now: Now) {
        let forwarded = |decision: &&Decision| decision.verdict == Verdict::Forward;
        let decision = decided.decision.as_ref().filter(forwarded);
        let (Some(decision), Some(status), None) = (decision, end.status, decided.refusal) else {
            return;
        };
        let said = (past.application.filter(|_| decision.group != Group::Allow))
            .zip(self.voice.as_ref())
            .and_then(|(text, _)| application::read([text.as_bytes()].into_iter()).ok()?);
        let status = decision.counted.then_some(status);
        self.charge_jails(decided, past, status, said.as_ref(), now);
        if let Some(said) = said {
            self.obey(decided, &said, now);
        }
    }

    fn obey(&self, decided: &Decided, said: &Said, now: Now) {
        let client = decided.who.client;
        if let Some(duration) = said.trust {
            self.table.known().trust(client, duration, now);
        }
        if let Some(asked) = said.ban
            && self.table.update(client, now, Entry::is_first_offence)
        {
            let can_ban = self.can_ban(decided.who, Cause::Application, Scope::Netblock);
            let voice = self.voice.as_ref();
            let is_within = can_ban && voice.is_some_and(|voice| voice.may_ban(now.wall_ms));
            self.offend(decided, Some(Offence::Application(asked)), is_within);
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
        let mut standing = Standing::default();
        let work = |entry: &mut Entry| {
            entry.note_passed(decided.at.wall_ms, false);
            standing = entry.standing();
            if decision.under_way {
                entry.end_request();
            }
            let bytes = outcome.charged_bytes?;
            let (limits, wall_ms) = (entry.limits(&self.rules.terms), now.wall_ms);
            let is_crawler = decision.claims.verified().is_some();
            let charging = self.rules.charging.of_client(is_crawler);
            charging.charge_bytes(entry, &limits, wall_ms, bytes, decided.other_site)
        };
        let exceeded = if decision.counted {
            self.table.update(decided.who.client, now, work)
        } else {
            self.table.touch(decided.who.client, decided.at, work)
        };
        self.note_known(decided.who.client, (true, standing), now);
        if let Some(exceeded) = exceeded {
            let can_ban = self.can_ban(decided.who, Cause::ByteLimit, Scope::Netblock);
            self.exceed(decided, &exceeded, can_ban, decision);
        }
    }

    fn charge_jails(
        &self,
        decided: &Decided,
        past: &Past<'_>,
        status: Option<StatusCode>,
        said: Option<&Said>,
        now: Now,
    ) {
        let claim = decided.decision.as_ref();
        let claim = claim.and_then(|decision| decision.claims.claim.as_ref());
        let is_crawler = claim.is_some_and(|claim| claim.verified().is_some());
        let answered = Answered {
            client: decided.who.client,
            asking: asking(past),
            status,
            named: said.map(Said::counts),
            claim,
            other_site: past.other_site || is_crawler,
            now,
        };
        let jailed = answered.charge_jails(&self.table, &self.snapshots.load().rules, |_| ());
        if let Some(Jailed {
            exceeded,
            rule,
            scope,
        }) = jailed.filter(|jailed| jailed.exceeded.first)
        {
            let offence = outcome::jailed(&exceeded, &rule, scope);
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
        address: past.address,
        sent: past.sent,
    }
}
