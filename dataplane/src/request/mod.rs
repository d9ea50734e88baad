//! One request, top to bottom: head, client, verdict, response.
//!
//! Every exit ends in [`Exchange`], which alone counts, charges bytes, keeps the client's history
//! and writes the log record. What a bug would do is caught one level up, where a connection is
//! served.

pub mod application;
pub mod body;
pub mod endpoints;
pub mod exchange;
pub mod identity;
pub mod ladder;
pub mod outcome;
pub mod problem;
pub mod record;
pub mod refuse;

use std::rc::Rc;
use std::sync::Arc;

use http::{HeaderValue, Method, StatusCode};
use weir_shared::ban::{Cause, Scope};
use weir_shared::clock::Now;
use weir_shared::event::Offence;
use weir_shared::health::Health;
use weir_shared::path;
use weir_shared::rules::Rule;
use weir_shared::totals::ApplicationWord;
use weir_shared::verdict::Group;

use crate::clients::charging::{Answered, Jailed};
use crate::clients::entry::Entry;
use crate::conn::Downstream;
use crate::message::{Fields, Form, Head, fields};
use crate::relay::delivery::Reply;
use crate::relay::forward;
use crate::request::application::{Misunderstood, Said};
use crate::request::body::ClientBody;
use crate::request::exchange::Exchange;
use crate::request::identity::{
    Identity, Sender, X_FORWARDED_FOR, X_REQUEST_ID, identify, request_id,
};
use crate::request::ladder::{Asked, Decision, Refusal, Verdict, asking, is_health_check};
use crate::request::record::Refused;
use crate::request::refuse::{Dropped, RefusalText, method_not_allowed, refuse, refuse_client};
use crate::worker::Worker;

/// What the head of a request leads to.
pub enum Judged {
    /// It is answered, or is let in: the rest of the way is [`answer`].
    Goes(Box<Exchange>),
    /// It is refused for whom it comes from; the response, and the id of the request.
    Refused(RefusalText, HeaderValue),
    /// The health check.
    Health(problem::Own),
    /// The connection closes unanswered.
    Dropped,
}

/// Identifies the client of a request and asks the ladder, while its head still stands where it was
/// read. Answers what needs no more than that: the health check, which is neither charged nor
/// logged, and the most frequent refusal. What goes on is given a head of its own.
pub fn judge(worker: &Rc<Worker>, downstream: &Rc<Downstream>, head: Head<impl Form>) -> Judged {
    downstream.begin_request();
    let now = worker.clock.now();
    if is_health_check(&head.method, head.path()) {
        return Judged::Health(health(worker, downstream, &head));
    }
    let settings = &worker.in_force.settings.identity;
    let identity = identify(downstream.sender(), settings, &head, head.known);
    if head.known.forwarded_for {
        warn_of_forgotten_proxy(worker, downstream, &head, now);
    }
    let decision = worker.decide(&Asked::of(&head, &identity, true), now);
    let websocket = fields::asks_for_websocket(&head);
    match refusal_of_client(worker, &decision) {
        // A body may cost the connection: who has one is refused with it.
        Some(refusal) if head.length.is_empty() => {
            let refused = Refused {
                worker,
                downstream,
                request_id: worker
                    .request_ids
                    .given_or_next(identity.request_id.as_ref()),
                head: &head,
                identity: &identity,
                decision,
                started: now,
                websocket,
            };
            match refuse_client(&refused, &refusal) {
                Ok(said) => Judged::Refused(said, refused.request_id),
                Err(Dropped) => Judged::Dropped,
            }
        }
        _ => match head.into_own() {
            Some(head) => Judged::Goes(Exchange::new(
                worker, downstream, head, identity, decision, now, websocket,
            )),
            // A head within its bounds is never too large for its text.
            None => Judged::Dropped,
        },
    }
}

/// Answers a request that was judged: what follows from the ladder's decision. Rare arms that hold
/// much across their awaits are boxed.
///
/// # Errors
/// [`Dropped`] where the connection closes unanswered.
pub async fn answer(mut exchange: Box<Exchange>, body: ClientBody) -> Result<Reply, Dropped> {
    let response = loop {
        match next_step(&mut exchange) {
            Step::AwaitLookup => Box::pin(exchange.await_lookup()).await,
            Step::Refuse(refusal) => break refuse(exchange, body, refusal).await?,
            Step::AnswerOwn => break Box::pin(endpoints::answer(exchange, body)).await,
            Step::MethodNotAllowed => break method_not_allowed(exchange, body).await,
            Step::Redirect(port) => break endpoints::redirect(exchange, body, port).await,
            Step::Forward => return Ok(forward(exchange, body).await),
        }
    };
    Ok(Reply::own(response))
}

/// The refusal of a client for who it is, in enforce mode.
fn refusal_of_client(worker: &Worker, decision: &Decision) -> Option<Refusal> {
    match decision.verdict {
        Verdict::Refuse(refusal) if refusal.is_of_the_client() => {
            (!worker.accounting.observe).then_some(refusal)
        }
        _ => None,
    }
}

/// The health check: an untrusted peer is answered, but is not to hold connections by it (CONN-3).
fn health(worker: &Worker, downstream: &Downstream, head: &impl Fields) -> problem::Own {
    let mut response = problem::health(Health::now(worker.is_draining()));
    let given = downstream.trusted().then(|| request_id(head)).flatten();
    let id = worker.request_ids.given_or_next(given.as_ref());
    response.headers_mut().insert(X_REQUEST_ID, id);
    downstream.shorten_idle();
    downstream.end_request();
    let who = Identity::of_peer(downstream.sender()).who();
    if worker.refuses(who) && downstream.slot.gives_way_to_ban() {
        problem::close(&mut response);
    }
    response
}

/// What a verdict leads to.
enum Step {
    /// The client's lookup decides (LOOKUP-3).
    AwaitLookup,
    /// In enforce mode.
    Refuse(Refusal),
    /// Under `/_waf/`.
    AnswerOwn,
    /// CONNECT and TRACE.
    MethodNotAllowed,
    /// It is to come again over https, at this port.
    Redirect(u16),
    /// The application answers.
    Forward,
}

/// The step that follows from the ladder's decision. A refusal is reported; observe mode goes on
/// all the same (CHECK-3).
fn next_step(exchange: &mut Exchange) -> Step {
    let own = match exchange.decision.verdict {
        Verdict::AwaitLookup => return Step::AwaitLookup,
        Verdict::Refuse(refusal) => {
            exchange.report(&refusal);
            if !exchange.worker.accounting.observe {
                return Step::Refuse(refusal);
            }
            exchange.shadow_action = Some(refusal.action());
            path::is_own(exchange.head.path())
        }
        Verdict::Own => true,
        Verdict::Forward => false,
    };
    let method = &exchange.head.method;
    if own {
        Step::AnswerOwn
    } else if *method == Method::CONNECT || *method == Method::TRACE {
        Step::MethodNotAllowed
    } else if let Some(port) = exchange.worker.redirect_to
        && exchange.identity.scheme == "http"
    {
        Step::Redirect(port)
    } else {
        Step::Forward
    }
}

/// CLIENT-7, where there is an `X-Forwarded-For`.
fn warn_of_forgotten_proxy(worker: &Worker, downstream: &Downstream, head: &impl Fields, now: Now) {
    let Sender { peer, is_proxy, .. } = downstream.sender();
    if !is_proxy && let Some(line) = head.values_of(&X_FORWARDED_FOR).next_back() {
        worker.forgotten_proxy.note(peer, line, now.wall_ms);
    }
}

// The application has answered: what its answer means for the client (RULE-4, RULE-9), and what it
// says of it in a field (APP).
impl Exchange {
    /// Notes that the application's response has begun, and charges the jails that count it.
    /// `written_ns` is when the request had been written, on the monotonic clock: nothing but the
    /// application is waited for from then on (FORWARD-7).
    pub fn note_first_byte(
        &mut self,
        connect_us: Option<u64>,
        written_ns: Option<u64>,
        status: StatusCode,
        said: Option<Result<Option<Said>, Misunderstood>>,
    ) {
        let now = self.worker.clock.now();
        let waited_ns = written_ns.map_or(0, |written| now.mono_ns.saturating_sub(written));
        let first_byte_us = now.mono_ns.saturating_sub(self.started.mono_ns) / 1000;
        self.durations.connect = connect_us;
        self.durations.first_byte = Some(first_byte_us);
        self.worker.counters.upstream(waited_ns / 1000);
        self.worker.counters.response(status);
        // In observe mode what enforce mode would have refused has no answer (CHECK-3).
        let said = said.filter(|_| self.shadow_action.is_none());
        self.said = said.and_then(|said| self.heard(said, now));
        self.charge_jails(status, now);
        self.obey(now);
    }

    /// What the application said of the client, if that was understood; counted and told (APP-5).
    fn heard(&self, said: Result<Option<Said>, Misunderstood>, now: Now) -> Option<Box<Said>> {
        let (worker, in_force) = (&self.worker, &self.worker.in_force);
        let said = said.and_then(|said| {
            let jails = |name: &str| {
                worker.with_snapshot(|snapshot| {
                    (snapshot.rules.every_jail()).any(|jail| jail.rule.name == name)
                })
            };
            let names = said.as_ref().into_iter().flat_map(Said::counts);
            let unknown = names.map(str::to_owned).find(|name| !jails(name));
            match unknown {
                Some(name) => Err(Misunderstood::NoJail(name)),
                None => Ok(said),
            }
        });
        match said {
            Ok(said) => {
                let said = said?;
                said.each_word(|word| worker.counters.application(word, 1));
                Some(Box::new(said))
            }
            Err(why) => {
                worker.counters.application(ApplicationWord::Ignored, 1);
                if let Some(field) = &in_force.application_field {
                    (in_force.voice).misunderstood(&field.name, &why, now.wall_ms);
                }
                None
            }
        }
    }

    /// What the application said, where it has consequences: not for a client on an allow list.
    fn said_in_force(&self) -> Option<&Said> {
        let is_allowed = self.decision.group == Group::Allow;
        self.said.as_deref().filter(|_| !is_allowed)
    }

    /// Charges the jails that count the application's answer (RULE-4): nothing is cut short. The
    /// status is enough (RULE-9): whoever reads it has what it guessed for, and may hold the rest
    /// of the answer for as long as it likes.
    fn charge_jails(&mut self, status: StatusCode, now: Now) {
        // In observe mode what enforce mode would have refused is not charged (CHECK-3).
        let by_status = self.decision.counted && self.shadow_action.is_none();
        let said = self.said_in_force();
        if !by_status && said.is_none() {
            return;
        }
        let claims = &self.decision.claims;
        let answered = Answered {
            client: self.identity.client,
            asking: asking(&self.head, self.identity.address),
            status: by_status.then_some(status),
            named: said.map(Said::counts),
            claim: claims.claim.as_ref(),
            other_site: self.identity.other_site || claims.verified().is_some(),
            now,
        };
        let worker = &self.worker;
        let jailed = worker.with_snapshot(|snapshot| {
            let fallen = |rule: &Arc<Rule>| self.fall(Some(rule));
            answered.charge_jails(&worker.table, &snapshot.rules, fallen)
        });
        drop(answered);
        if let Some(Jailed {
            exceeded,
            rule,
            scope,
        }) = jailed
        {
            let offence = outcome::jailed(&exceeded, &rule, scope);
            self.decision.rule = Some(rule);
            if exceeded.first {
                let can_ban = self.worker.can_ban(self.identity.who(), Cause::Jail, scope);
                self.offend(offence, can_ban);
            }
        }
    }

    /// Trusts or bans the client as the application says (APP-3, APP-4).
    fn obey(&mut self, now: Now) {
        let Some(Said { ban, trust, .. }) = self.said_in_force() else {
            return;
        };
        let (ban, worker) = (*ban, &self.worker);
        if let Some(duration) = *trust {
            worker
                .table
                .known()
                .trust(self.identity.client, duration, now);
        }
        let Some(asked) = ban else { return };
        let is_first = (worker.table).update(self.identity.client, now, Entry::is_first_offence);
        if !is_first {
            return;
        }
        let who = self.identity.who();
        let can_ban = worker.can_ban(who, Cause::Application, Scope::Netblock);
        let is_within = can_ban && worker.in_force.voice.may_ban(now.wall_ms);
        if can_ban && !is_within {
            let word = ApplicationWord::BanLeftOut;
            worker.counters.application(word, 1);
        }
        self.offend(Some(Offence::Application(asked)), is_within);
    }
}
