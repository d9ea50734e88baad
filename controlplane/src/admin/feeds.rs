//! `GET /v1/feeds`, `POST /v1/feeds/<name>/fetch` and `/accept`: the feeds of rules.json (FEED-8).
//! Their thread does the work.

use std::collections::BTreeMap;

use http::{Method, StatusCode};
use weir_shared::api::feeds::{Feed, FeedAsked, FeedList};
use weir_shared::handover::{OwnResponse, Respond, Step};
use weir_shared::units::Time;

use super::problem::{Problem, json as json_answer};
use crate::feeds::handle::FeedsHandle;
use crate::feeds::report::{NotAccepted, Report};

/// A request about feeds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum FeedRoute {
    /// List all feeds.
    List,
    /// Fetch this feed now.
    Fetch(String),
    /// Accept the version of this feed that was refused.
    Accept(String),
}

impl FeedRoute {
    /// Parses a method, and the part of a target after `/v1/`.
    pub(crate) fn read(method: &Method, rest: &str) -> Result<Self, Problem> {
        if rest == "feeds" {
            return match *method {
                Method::GET => Ok(Self::List),
                _ => Err(Problem::MethodNotAllowed { allow: "GET" }),
            };
        }
        let one = rest
            .strip_prefix("feeds/")
            .and_then(|rest| rest.split_once('/'));
        let route = match one {
            Some((name, "fetch")) => Self::Fetch(name.to_owned()),
            Some((name, "accept")) => Self::Accept(name.to_owned()),
            _ => return Err(Problem::NotFound),
        };
        match *method {
            Method::POST => Ok(route),
            _ => Err(Problem::MethodNotAllowed { allow: "POST" }),
        }
    }

    /// Answers a request, or passes it to the thread of the feeds.
    pub(crate) fn answer(self, feeds: &FeedsHandle, id: String, respond: Respond) -> Step {
        let (name, asked) = match self {
            Self::List => return Step::Done(list(&feeds.reports())),
            Self::Fetch(name) => {
                let asked = feeds.fetch(&name);
                (name, asked.map(|is_there| (is_there, Some(()))))
            }
            Self::Accept(name) => {
                let (of, request_id) = (name.clone(), id.clone());
                let asked = feeds.accept(&name, move |accepted| {
                    respond(answer_accepted(&of, accepted, &request_id));
                });
                (name, asked.map(|is_there| (is_there, None)))
            }
        };
        match asked {
            None => Step::Done(Problem::Busy.answer(&id)),
            Some((false, _)) => Step::Done(Problem::NotFound.answer(&id)),
            Some((true, None)) => Step::Later,
            Some((true, Some(()))) => {
                let told = FeedAsked {
                    name,
                    entries: None,
                };
                Step::Done(json_answer(StatusCode::ACCEPTED, &told))
            }
        }
    }
}

fn answer_accepted(
    name: &str,
    accepted: Result<usize, NotAccepted>,
    request_id: &str,
) -> OwnResponse {
    match accepted {
        Ok(entries) => {
            let told = FeedAsked {
                name: name.to_owned(),
                entries: Some(entries as u64),
            };
            json_answer(StatusCode::OK, &told)
        }
        Err(NotAccepted::Unknown) => Problem::NotFound.answer(request_id),
        Err(why @ (NotAccepted::Nothing | NotAccepted::Unfit(_))) => {
            Problem::Unfit(format!("the feed {name:?}: {why}")).answer(request_id)
        }
    }
}

fn list(reports: &BTreeMap<String, Report>) -> OwnResponse {
    let feeds = reports.iter().map(|(name, report)| one(name, report));
    let feeds = feeds.collect();
    json_answer(StatusCode::OK, &FeedList { feeds })
}

fn one(name: &str, report: &Report) -> Feed {
    Feed {
        name: name.to_owned(),
        used: report.used.map(|used| used.name().to_owned()),
        entries: report.feed.entries() as u64,
        taken: report.feed.taken_ms().map(Time),
        checked: report.checked.or(report.feed.confirmed_ms().map(Time)),
        outcome: report.outcome.map(|outcome| outcome.name().to_owned()),
        error: report.error.clone(),
        next: report.next,
    }
}
