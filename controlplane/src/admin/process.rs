//! `POST /v1/reload` and `POST /v1/upgrade`: passed to the process, which answers (RELOAD-2,
//! RESTART-1).

use http::StatusCode;
use weir_shared::api::process::{Reloaded, Upgraded};
use weir_shared::handover::Respond;

use super::problem::{Problem, json as json_answer};
use crate::process::ProcessCommand;

/// The route: reload or upgrade.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ProcessRoute {
    Reload,
    Upgrade,
}

impl ProcessRoute {
    /// The command for the process, with a reply that writes the answer.
    pub(crate) fn order(self, request_id: String, respond: Respond) -> ProcessCommand {
        match self {
            Self::Reload => ProcessCommand::Reload(Box::new(move |ended| {
                respond(match ended {
                    Ok(report) => {
                        let told = Reloaded::of(&report.changes, &report.warnings);
                        json_answer(StatusCode::OK, &told)
                    }
                    Err(faults) => Problem::NotReloaded(faults).answer(&request_id),
                });
            })),
            Self::Upgrade => ProcessCommand::Upgrade(Box::new(move |ended| {
                respond(match ended {
                    Ok(process) => json_answer(StatusCode::OK, &Upgraded { process }),
                    Err(why) => Problem::NotUpgraded(why).answer(&request_id),
                });
            })),
        }
    }
}
