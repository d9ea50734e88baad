//! `GET /v1/explain`: what the checks would do with a request, and why (CONTROL-5). The data plane
//! runs its ladder; here its answer is put beside the bans.

use std::sync::Arc;

use http::header::HOST;
use http::{Method, StatusCode};
use serde_json::{Map, Value, json};
use weir_shared::ban::{Ban, Expiry};
use weir_shared::clock::Now;
use weir_shared::explain::{
    Elsewhere, ExemptBy, Explanation, Outcome, Question, RuleElsewhere, RuleUsage, Usage,
};
use weir_shared::handover::OwnResponse;
use weir_shared::rules::{Claim, Remembered, Told};
use weir_shared::units::Time;
use weir_shared::verdict::{Action, AppliedPercent};
use weir_shared::window::PerSpan;

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
// long: a flat list of the members
pub(crate) fn answer(asked: &Explained) -> OwnResponse {
    let Explained {
        question,
        seen,
        explanation: explained,
        bans,
        observe,
        now,
    } = asked;
    let (seen, now) = (seen.as_ref(), *now);
    let bans = bans.iter().filter(|ban| ban.is_active(now.wall_ms));
    let bans: Vec<&Arc<Ban>> = bans.collect();
    let mut members = Map::new();
    let mut member = |name: &str, value: Value| members.insert(name.to_owned(), value);
    member("request", json!(seen.map(remembered)));
    member("address", json!(question.address));
    member("method", json!(question.method.as_str()));
    member("path", json!(question.path));
    member("other_site", json!(question.other_site));
    member("client", json!(explained.client));
    member("netblock", json!(explained.netblock));
    member("observe", json!(observe));
    member("now", outcome(&explained.outcome, now));
    let otherwise = explained.otherwise.as_ref();
    member(
        "otherwise",
        json!(otherwise.map(|otherwise| outcome(otherwise, now))),
    );
    let list = explained.list.as_ref();
    member(
        "list",
        json!(list.map(|list| json!({
            "name": explained.group.name(),
            "netblock": list.netblock,
            "source": list.source.name,
            "since": explained.list_since_ms.map(Time),
        }))),
    );
    let rule = explained.rule.as_ref();
    member(
        "rule",
        json!(rule.map(|rule| json!({"name": rule.name, "kind": rule.kind.name()}))),
    );
    member("exempt", json!(explained.exempt.as_ref().map(exempt_by)));
    member("crawler", json!(explained.claim.as_ref().map(claim)));
    member("counted", json!(explained.counted));
    member("known", json!(explained.known));
    member("trusted", json!(explained.trusted));
    member("lookup", json!(explained.lookup));
    member("requests", usages(&explained.requests));
    member("bytes", usages(&explained.bytes));
    member(
        "elsewhere",
        json!(explained.elsewhere.as_ref().map(elsewhere)),
    );
    member("rule_limits", rule_usages(&explained.rule_limits));
    member("jails", rule_usages(&explained.jails));
    member("limit_percent", percent(explained.limit_percent));
    member("bytes_percent", percent(explained.bytes_percent));
    member("next_ban_expires", json!(explained.next_ban));
    member("bans", json!(bans));
    member("undo", json!(undo(question, explained)));
    json_answer(StatusCode::OK, &members)
}

fn exempt_by(by: &ExemptBy) -> Value {
    match by {
        ExemptBy::Path(path) => {
            // As it is written: a prefix is kept without its last slash.
            let path = if path.is_empty() { "/" } else { path };
            json!({"source": "WAF_EXEMPT_PATHS", "name": path})
        }
        ExemptBy::Entry(rule) => json!({"source": "rules.json", "name": rule.name}),
    }
}

fn claim(claim: &Claim) -> Value {
    json!({
        "name": claim.crawler.rule.name,
        "purpose": claim.crawler.purpose.name(),
        "state": claim.state.name(),
    })
}

fn remembered((id, refusal): &(String, Refusal)) -> Value {
    json!({
        "request_id": id,
        "time": refusal.at,
        "action": refusal.action.name(),
        "enforced": refusal.enforced,
    })
}

fn outcome(outcome: &Outcome, now: Now) -> Value {
    let (result, action, limit, ban) = match outcome {
        Outcome::Health => ("health", None, None, None),
        Outcome::Forward => ("passed", None, None, None),
        Outcome::Own => ("answered", None, None, None),
        Outcome::AwaitLookup => ("awaits_lookup", None, None, None),
        Outcome::Refuse { action, limit, ban } => ("refused", Some(*action), *limit, *ban),
    };
    let wait_ms = match ban {
        Some(Expiry::At(Time(end))) => Some(end.saturating_sub(now.wall_ms)),
        Some(Expiry::Permanent) | None => None,
    };
    json!({
        "result": result,
        "action": action.map(Action::name),
        "limit_hit": limit.map(weir_shared::verdict::LimitHit::name),
        "ban_expires": ban,
        "ban_ends_in_seconds": wait_ms.map(|ms| ms.div_ceil(1000)),
    })
}

fn usages(windows: &PerSpan<Usage>) -> Value {
    json!({
        "minute": usage(&windows.minute),
        "hour": usage(&windows.hour),
        "day": usage(&windows.day),
    })
}

fn elsewhere(counted: &Elsewhere) -> Value {
    let windows = |of: &PerSpan<u64>| json!({"minute": of.minute, "hour": of.hour, "day": of.day});
    json!({
        "requests": windows(&counted.requests),
        "bytes": windows(&counted.bytes),
        "age_ms": counted.age_ms,
    })
}

fn usage(usage: &Usage) -> Value {
    json!({
        "used": usage.used,
        "limit": usage.limit,
        "fits_in_seconds": usage.fits_in_ms.map(|ms| ms.div_ceil(1000)),
    })
}

fn rule_usages(rules: &[RuleUsage]) -> Value {
    rules.iter().map(rule_usage).collect()
}

fn rule_usage(of: &RuleUsage) -> Value {
    let windows = of.windows.iter();
    let windows: Map<String, Value> = windows
        .map(|(span, used)| (span.name().to_owned(), usage(used)))
        .collect();
    json!({
        "name": of.rule.name,
        "windows": windows,
        "elsewhere": of.elsewhere.as_ref().map(rule_elsewhere),
        "would_ban": of.would_ban,
    })
}

fn rule_elsewhere(counted: &RuleElsewhere) -> Value {
    let windows = counted.windows.iter();
    let mut told: Map<String, Value> = windows
        .map(|(span, others)| (span.name().to_owned(), json!(others)))
        .collect();
    told.insert("age_ms".to_owned(), json!(counted.age_ms));
    told.into()
}

fn percent(applied: Option<AppliedPercent>) -> Value {
    applied.map_or(
        Value::Null,
        |applied| json!({"percent": applied.percent, "setting": applied.setting}),
    )
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
        (Action::DeniedRule, _) => {
            let rule = explained.rule.as_ref().map_or("", |rule| &rule.name);
            format!("change the denial {rule:?} of rules.json")
        }
        _ => return vec![allow],
    };
    vec![first, allow]
}
