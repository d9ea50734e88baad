//! `POST /v1/reload` and `POST /v1/upgrade`: asked of the process, answered by it (RELOAD-2,
//! RESTART-1).

use http::StatusCode;
use serde_json::{Value, json};
use weir_shared::handover::{OwnResponse, Respond};
use weir_shared::settings::{Change, Taken};

use super::problem::{Problem, json as json_answer};
use crate::process::{Order, Report};

/// Which of the two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ProcessRoute {
    Reload,
    Upgrade,
}

impl ProcessRoute {
    /// What the process is asked, and how its answer is told.
    pub(crate) fn order(self, request_id: String, respond: Respond) -> Order {
        match self {
            Self::Reload => Order::Reload(Box::new(move |ended| {
                respond(match ended {
                    Ok(report) => reloaded(&report),
                    Err(faults) => Problem::NotReloaded(faults).answer(&request_id),
                });
            })),
            Self::Upgrade => Order::Upgrade(Box::new(move |ended| {
                respond(match ended {
                    Ok(process) => json_answer(StatusCode::OK, &json!({"process": process})),
                    Err(why) => Problem::NotUpgraded(why).answer(&request_id),
                });
            })),
        }
    }
}

fn reloaded(report: &Report) -> OwnResponse {
    let of = |taken| {
        let changes = report.changes.iter();
        let changes = changes.filter(|change| change.taken == taken);
        changes.map(change).collect::<Vec<_>>()
    };
    let document = json!({
        "taken": of(Taken::Live),
        "restart": of(Taken::Restart),
        "warnings": report.warnings,
    });
    json_answer(StatusCode::OK, &document)
}

fn change(change: &Change) -> Value {
    json!({
        "name": change.name,
        "old": change.old,
        "new": change.new,
        "secret": change.secret,
        "text": change.to_string(),
    })
}
