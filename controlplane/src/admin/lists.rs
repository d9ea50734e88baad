//! `POST /v1/lists` and `DELETE /v1/lists/<list>/<netblock>`: adds or removes a member of a list of
//! rules.json (CONTROL-8). The thread that watches the file changes it.

use std::sync::Arc;

use http::StatusCode;
use percent_encoding::percent_decode_str;
use serde::Deserialize;
use weir_schema::Schema;
use weir_shared::api::lists::ListChanged;
use weir_shared::handover::OwnResponse;
use weir_shared::spared::Spared;
use weir_shared::units::Time;

use crate::bans::too_wide::too_wide;
use crate::json;
use crate::rules::{Change, Changed, Entry, List, NotChanged};

use super::bans::listed_netblock;
use super::body::{BodyReader, one_fault};
use super::problem::{Problem, json as json_answer};

/// The schema of a body (STATE-8).
const SCHEMA: &str = include_str!("../../../schema/proxy/list-entry.schema.json");

/// Reads and checks changes of lists.
pub(crate) struct ListReader {
    body: BodyReader,
    spared: Arc<Spared>,
}

/// A body that fits the schema.
#[derive(Deserialize)]
struct Written {
    list: List,
    netblock: String,
    until: Option<Time>,
    comment: Option<String>,
    #[serde(default)]
    force: bool,
}

impl ListReader {
    pub(crate) fn new(spared: Arc<Spared>) -> Self {
        Self {
            body: BodyReader::new(|| Schema::parse(SCHEMA)),
            spared,
        }
    }

    /// Reads a body.
    ///
    /// # Errors
    /// 400 where it is not JSON, 422 where it does not fit.
    pub(crate) fn read(&self, body: &[u8]) -> Result<Change, Problem> {
        let written: Written = self.body.read(body)?;
        let fault = |detail| one_fault(json::member("netblock"), detail);
        let netblock = listed_netblock(&written.netblock).map_err(fault)?;
        let change = Change {
            list: written.list,
            netblock,
            entry: Some(Entry {
                until: written.until,
                comment: written.comment,
                force: written.force,
            }),
        };
        // An allow entry needs force only if it is very wide. A deny entry also needs it if it
        // covers a trusted proxy: that could refuse everybody.
        let wide = match change.list {
            List::Allow => change.too_wide(),
            List::Deny => too_wide(netblock, &self.spared, None),
        };
        match wide.filter(|_| !written.force) {
            Some(why) => Err(fault(format!("{why}: \"force\": true would be needed"))),
            None => Ok(change),
        }
    }
}

/// Parses the part of a target after `lists/`: the list, and a netblock whose slash may be
/// percent-encoded.
pub(crate) fn removal(rest: &str) -> Result<Change, Problem> {
    let (list, netblock) = rest.split_once('/').ok_or(Problem::NotFound)?;
    let list = match list {
        "allow" => List::Allow,
        "deny" => List::Deny,
        _ => return Err(Problem::NotFound),
    };
    let netblock = percent_decode_str(netblock).decode_utf8_lossy();
    Ok(Change {
        list,
        netblock: listed_netblock(&netblock).map_err(Problem::BadRequest)?,
        entry: None,
    })
}

/// The answer, once the change is in force.
pub(crate) fn answer(
    change: &Change,
    changed: Result<Changed, NotChanged>,
    request_id: &str,
) -> OwnResponse {
    let changed = match changed {
        Ok(changed) => changed,
        Err(unfit @ (NotChanged::DoesNotFit { .. } | NotChanged::WouldNotFit { .. })) => {
            return Problem::Unfit(unfit.to_string()).answer(request_id);
        }
        Err(why @ (NotChanged::System { .. } | NotChanged::Contested { .. })) => {
            return Problem::NotWritten(why.to_string()).answer(request_id);
        }
    };
    let told = ListChanged {
        in_force: Some(true),
        ..changed.told(change)
    };
    json_answer(StatusCode::OK, &told)
}
