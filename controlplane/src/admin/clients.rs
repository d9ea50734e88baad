//! `GET clients/<address>`: the client as clients.json would hold it now, with its bans (ADMIN-4).
//! `GET /v1/clients`: the clients with the most requests, bytes or refusals, or the last seen
//! (CONTROL-2).

use std::cmp::Reverse;
use std::sync::Arc;

use http::StatusCode;
use weir_shared::api::clients::{ClientList, Held, Listed};
use weir_shared::ban::Expiry;
use weir_shared::client::Client;
use weir_shared::handover::OwnResponse;
use weir_shared::table::{ClientRow, ClientTable, MAX_CLIENTS};
use weir_shared::window::Span;

use crate::bans::ledger::Ledger;

use super::problem::json as json_answer;
use super::status::Service;

/// How many clients are listed, and in which order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Most {
    pub(crate) sort: Sort,
    /// How many, at least 1.
    pub(crate) limit: usize,
}

impl Default for Most {
    fn default() -> Self {
        Self {
            sort: Sort::LastSeen,
            limit: 100,
        }
    }
}

/// The order of a list, highest first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sort {
    /// Requests within the last day, as the limits count them.
    Requests,
    /// Bytes within the last day, as the limits count them.
    Bytes,
    /// Refused requests.
    Refused,
    /// The latest request.
    LastSeen,
}

impl Sort {
    pub(crate) fn named(name: &str) -> Option<Self> {
        match name {
            "requests" => Some(Self::Requests),
            "bytes" => Some(Self::Bytes),
            "refused" => Some(Self::Refused),
            "last_seen" => Some(Self::LastSeen),
            _ => None,
        }
    }

    fn of(self, row: &ClientRow, now_ms: u64) -> u64 {
        match self {
            Self::Requests => row.requests.day.estimate(Span::Day, now_ms),
            Self::Bytes => row.bytes.day.estimate(Span::Day, now_ms),
            Self::Refused => row.refused,
            Self::LastSeen => row.last_seen.0,
        }
    }
}

/// The client's history and bans; none if there is neither.
pub(crate) fn held(client: Client, table: &dyn ClientTable, ledger: &Ledger) -> Option<Held> {
    let held = Held {
        client: table.row(client).as_ref().map(Into::into),
        bans: ledger.covering(client),
    };
    (held.client.is_some() || !held.bans.is_empty()).then_some(held)
}

/// The client and its bans.
pub(crate) fn answer(held: &Held) -> OwnResponse {
    json_answer(StatusCode::OK, held)
}

/// The clients in the chosen order, in the form of clients.json, each with the end of the ban that
/// refuses it.
pub(crate) fn list(most: Most, service: &Service, now_ms: u64) -> OwnResponse {
    let mut rows = service.table.rows();
    let held = rows.len() as u64;
    // The sort is stable: among equals the most recently seen comes first.
    rows.reverse();
    rows.sort_by_key(|row| Reverse(most.sort.of(row, now_ms)));
    rows.truncate(most.limit.min(MAX_CLIENTS));
    let bans = Arc::clone(&service.snapshots.load().bans);
    let listed = |row: &ClientRow| Listed {
        client: row.into(),
        ban_expires: (bans.active_until(row.client, now_ms)).map(Expiry::from_end_ms),
    };
    let clients = rows.iter().map(listed).collect();
    json_answer(StatusCode::OK, &ClientList { held, clients })
}
