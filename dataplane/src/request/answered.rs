//! The application has answered: what its answer means for the client (RULE-4, RULE-9), and what it
//! says of it in a field (APP). The rest of the request is in `exchange.rs`.

use std::sync::Arc;

use http::StatusCode;
use weir_shared::ban::{Cause, Scope};
use weir_shared::clock::Now;
use weir_shared::event::Offence;
use weir_shared::rules::Rule;
use weir_shared::totals::ApplicationWord;
use weir_shared::verdict::Group;

use crate::clients::charging::{Answered, Jailed};
use crate::clients::entry::Entry;
use crate::request::application::{Misunderstood, Said};
use crate::request::exchange::Exchange;
use crate::request::{ladder, outcome};

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
            asking: ladder::asking(&self.head, self.identity.address),
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
