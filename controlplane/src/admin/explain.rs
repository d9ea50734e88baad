//! `GET /v1/explain`: what the checks would do with a request, and why (CONTROL-5). The data plane
//! runs its ladder; here its answer is put beside the bans.

use std::sync::Arc;

use http::header::HOST;
use http::{Method, StatusCode};
use weir_shared::api::explain as api;
use weir_shared::ban::Ban;
use weir_shared::clock::Now;
use weir_shared::explain::{Explanation, Outcome, Question};
use weir_shared::handover::OwnResponse;
use weir_shared::rules::{Claim, ListHit, Remembered, Rule, Told};
use weir_shared::units::Time;
use weir_shared::verdict::Action;

use crate::bans::ledger::Ledger;
use crate::refusals::{Refusal, Refusals};

use super::problem::json as json_answer;

/// What is to be explained.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Asked {
    /// A request that is not made.
    Question(Question),
    /// One that was refused, by its id.
    Request(String),
}

impl Asked {
    /// The request, and the refusal of it that is remembered: one of the last, or one that a ban
    /// names.
    pub(crate) fn found(
        self,
        refusals: &Refusals,
        ledger: &Ledger,
    ) -> Option<(Question, Option<(String, Refusal)>)> {
        let id = match self {
            Self::Question(question) => return Some((question, None)),
            Self::Request(id) => id,
        };
        match refusals.find(&id) {
            Some(refusal) => Some((refusal.question.clone(), Some((id, refusal)))),
            None => {
                let mut bans = ledger.after(None);
                let asked = bans.find_map(|(_, ban)| asked_for(ban, &id));
                asked.map(|question| (question, None))
            }
        }
    }
}

/// The request with this id, if the ban was made for it.
fn asked_for(ban: &Ban, id: &str) -> Option<Question> {
    let request = &ban.notes.as_ref()?.request.as_ref()?.known;
    if request.request_id.as_deref() != Some(id) {
        return None;
    }
    let method = request.method.as_deref().unwrap_or("GET");
    let path = request.path.as_deref().unwrap_or("/");
    Some(Question {
        address: ban.client?.first_address(),
        method: Method::from_bytes(method.as_bytes()).ok()?,
        path: path.to_owned(),
        sent: Remembered {
            fields: (request.host.iter())
                .filter_map(|host| Some((HOST, host.parse().ok()?)))
                .collect(),
            query: Told::Unknown,
            known: Some(&["host"]),
        },
        // Of another site it would not have led to a ban.
        other_site: false,
    })
}

/// What an explanation is written from.
pub(crate) struct Explained {
    pub(crate) question: Question,
    /// The refusal that is remembered, with the id of its request.
    pub(crate) seen: Option<(String, Refusal)>,
    pub(crate) explanation: Explanation,
    /// The bans that cover the client.
    pub(crate) bans: Vec<Arc<Ban>>,
    pub(crate) observe: bool,
    pub(crate) now: Now,
}

/// The answer: the explanation, the bans that refuse the client, and how to undo it.
pub(crate) fn answer(asked: &Explained) -> OwnResponse {
    json_answer(StatusCode::OK, &document(asked))
}

// long: a flat list of the members
fn document(asked: &Explained) -> api::Explained {
    let Explained {
        question,
        seen,
        explanation: explained,
        bans,
        observe,
        now,
    } = asked;
    let of = |outcome: &Outcome, rule: &Option<Arc<Rule>>| {
        api::Outcome::of(outcome, rule.as_deref(), now.wall_ms)
    };
    let bans = bans.iter().filter(|ban| ban.is_active(now.wall_ms));
    let list = |list: &ListHit| api::ListMember {
        name: explained.group.name().to_owned(),
        netblock: list.netblock,
        source: list.source.name.clone(),
        since: explained.list_since_ms.map(Time),
    };
    let rule = |rule: &Arc<Rule>| api::RuleName {
        name: rule.name.clone(),
        kind: rule.kind.name().to_owned(),
        since: explained.rule_since_ms.map(Time),
    };
    api::Explained {
        request: seen.as_ref().map(remembered),
        address: question.address,
        method: question.method.to_string(),
        path: question.path.clone(),
        other_site: question.other_site,
        client: explained.client,
        netblock: explained.netblock,
        observe: *observe,
        now: of(&explained.outcome, &explained.rule),
        otherwise: (explained.otherwise.as_ref()).map(|(outcome, rule)| of(outcome, rule)),
        list: explained.list.as_ref().map(list),
        rule: explained.rule.as_ref().map(rule),
        exempt: explained.exempt.as_ref().map(Into::into),
        crawler: explained.claim.as_ref().map(claim),
        counted: explained.counted,
        known: explained.known,
        trusted: explained.trusted,
        lookup: explained.lookup.clone(),
        requests: (&explained.requests).into(),
        bytes: (&explained.bytes).into(),
        elsewhere: explained.elsewhere.as_ref().map(Into::into),
        rule_limits: explained.rule_limits.iter().map(Into::into).collect(),
        jails: explained.jails.iter().map(Into::into).collect(),
        limit_percent: explained.limit_percent.map(Into::into),
        bytes_percent: explained.bytes_percent.map(Into::into),
        next_ban_expires: explained.next_ban,
        bans: bans.cloned().collect(),
        undo: undo(question, explained),
    }
}

fn claim(claim: &Claim) -> api::Crawler {
    api::Crawler {
        name: claim.crawler.rule.name.clone(),
        purpose: claim.crawler.purpose.name().to_owned(),
        state: claim.state.name().to_owned(),
    }
}

fn remembered((id, refusal): &(String, Refusal)) -> api::Refusal {
    api::Refusal {
        request_id: id.clone(),
        time: refusal.at,
        action: refusal.action.name().to_owned(),
        enforced: refusal.enforced,
    }
}

/// What would let the client through: commands, or what to change.
fn undo(question: &Question, explained: &Explanation) -> Vec<String> {
    let Outcome::Refuse { action, .. } = explained.outcome else {
        return Vec::new();
    };
    let address = question.address;
    let allow = format!("weir allow {address} --for 24h");
    let first = match (action, &explained.list) {
        (Action::Banned, _) => format!("weir bans lift {address}"),
        // Allowing it comes before: lists that deny are asked later.
        (Action::DeniedNet, Some(list)) if list.source.name == "rules.json" => {
            format!("weir deny {} --remove", list.netblock)
        }
        // What a feed lists is its publisher's.
        (Action::DeniedNet, Some(_)) if explained.list_since_ms.is_some() => return vec![allow],
        (Action::DeniedNet, Some(list)) => {
            format!("take {} out of {}", list.netblock, list.source.name)
        }
        (Action::DeniedCountry, _) => {
            "change WAF_ALLOW_COUNTRIES or WAF_DENY_COUNTRIES and reload".to_owned()
        }
        (Action::DeniedAsn, _) => "change WAF_DENY_ASNS and reload".to_owned(),
        (Action::DeniedRule, _) if explained.rule_since_ms.is_some() => return vec![allow],
        (Action::DeniedRule, _) => {
            let rule = explained.rule.as_ref().map_or("", |rule| &rule.name);
            format!("change the denial {rule:?} of rules.json")
        }
        _ => return vec![allow],
    };
    vec![first, allow]
}
