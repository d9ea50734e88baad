//! `GET /v1/groups`: sums of clients by netblock, AS or country (CONTROL-2).

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use ahash::RandomState;
use http::StatusCode;
use weir_shared::api::groups::{Group, Groups};
use weir_shared::handover::OwnResponse;
use weir_shared::netblock::{Netblock, PrefixLengths};
use weir_shared::snapshot::BanIndex;
use weir_shared::table::ClientRow;
use weir_shared::window::Span;

use super::clients::{Most, Sort};
use super::problem::json as json_answer;
use super::status::Service;

/// What the clients of a group share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum By {
    /// The netblock that a ban of one of them would cover.
    Netblock,
    /// The AS, from the lookups.
    Asn,
    /// The country, from the lookups.
    Country,
}

impl By {
    pub(crate) fn named(name: &str) -> Option<Self> {
        match name {
            "netblock" => Some(Self::Netblock),
            "asn" => Some(Self::Asn),
            "country" => Some(Self::Country),
            _ => None,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Netblock => "netblock",
            Self::Asn => "asn",
            Self::Country => "country",
        }
    }
}

fn add(group: &mut Group, row: &ClientRow, bans: &BanIndex, now_ms: u64) {
    group.clients += 1;
    group.banned += u64::from(bans.active_until(row.client, now_ms).is_some());
    group.passed = group.passed.saturating_add(row.passed);
    group.refused = group.refused.saturating_add(row.refused);
    let requests = row.requests.day.estimate(Span::Day, now_ms);
    group.requests = group.requests.saturating_add(requests);
    let bytes = row.bytes.day.estimate(Span::Day, now_ms);
    group.bytes = group.bytes.saturating_add(bytes);
    group.last_seen = group.last_seen.max(row.last_seen);
}

fn most(group: &Group, sort: Sort) -> u64 {
    match sort {
        Sort::Requests => group.requests,
        Sort::Bytes => group.bytes,
        Sort::Refused => group.refused,
        Sort::LastSeen => group.last_seen.0,
    }
}

/// The groups in the chosen order. Clients that no lookup knows form a group of their own.
pub(crate) fn list(by: By, most: Most, service: &Service, now_ms: u64) -> OwnResponse {
    let rows = service.table.rows();
    let bans = Arc::clone(&service.snapshots.load().bans);
    let groups = match by {
        By::Netblock => {
            let prefixes = service.reloaded.load().settings.bans.prefixes;
            by_netblock(&rows, prefixes, &bans, now_ms)
        }
        By::Asn | By::Country => by_lookup(&rows, by, &bans, now_ms),
    };
    let answer = Groups {
        by: by.name().to_owned(),
        held: groups.len() as u64,
        groups: first(groups, most),
    };
    json_answer(StatusCode::OK, &answer)
}

type Sums<K> = HashMap<K, Group, RandomState>;

fn by_netblock(
    rows: &[ClientRow],
    prefixes: PrefixLengths,
    bans: &BanIndex,
    now_ms: u64,
) -> Vec<Group> {
    let mut sums = Sums::default();
    for row in rows {
        let netblock = Netblock::of(row.client, prefixes);
        add(sums.entry(netblock).or_default(), row, bans, now_ms);
    }
    let named = |(netblock, sum): (Netblock, Group)| Group {
        group: Some(netblock.to_string()),
        ..sum
    };
    sums.into_iter().map(named).collect()
}

fn by_lookup(rows: &[ClientRow], by: By, bans: &BanIndex, now_ms: u64) -> Vec<Group> {
    let mut sums: Sums<Option<&str>> = Sums::default();
    for row in rows {
        let lookup = row.lookup.as_deref();
        let (group, name) = match by {
            By::Country => (lookup.and_then(|lookup| lookup.country.as_deref()), None),
            By::Asn | By::Netblock => (
                lookup.and_then(|lookup| lookup.asn.as_deref()),
                lookup.and_then(|lookup| lookup.as_name.as_ref()),
            ),
        };
        let sum = sums.entry(group).or_default();
        add(sum, row, bans, now_ms);
        if sum.name.is_none() && group.is_some() {
            sum.name = name.cloned();
        }
    }
    let named = |(group, sum): (Option<&str>, Group)| Group {
        group: group.map(str::to_owned),
        ..sum
    };
    sums.into_iter().map(named).collect()
}

/// The first groups. Equal ones are sorted by name, so that a list that is shown repeatedly does
/// not jump.
fn first(mut groups: Vec<Group>, by: Most) -> Vec<Group> {
    let first = |group: &Group| (Reverse(most(group, by.sort)), group.group.clone());
    groups.sort_by_cached_key(first);
    groups.truncate(by.limit);
    groups
}
