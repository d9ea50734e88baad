//! `GET /_waf/clients/<address>`: the client as clients.json would hold it now, with its bans
//! (ADMIN-4).

use std::sync::Arc;

use http::StatusCode;
use serde::Serialize;
use serde_json::Value;
use weir_shared::ban::Ban;
use weir_shared::client::Client;
use weir_shared::handover::OwnResponse;
use weir_shared::table::ClientTable;

use crate::bans::ledger::Ledger;
use crate::clients::client_json;

use super::problem::{Problem, json};

/// The client and every ban that covers it, whether it still refuses or not; 404 where neither is
/// known.
pub(crate) fn answer(
    client: Client,
    table: &dyn ClientTable,
    ledger: &Ledger,
    request_id: &str,
) -> OwnResponse {
    #[derive(Serialize)]
    struct Document {
        client: Option<Value>,
        bans: Vec<Arc<Ban>>,
    }
    let document = Document {
        client: table.row(client).map(|row| client_json(&row)),
        bans: ledger.covering(client),
    };
    if document.client.is_none() && document.bans.is_empty() {
        return Problem::NotFound.answer(request_id);
    }
    json(StatusCode::OK, &document)
}
