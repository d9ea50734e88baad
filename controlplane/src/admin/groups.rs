//! `GET /v1/groups`: clients added up by netblock, AS or country (CONTROL-2).

use std::cmp::Reverse;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;
use std::sync::Arc;

use ahash::RandomState;
use http::StatusCode;
use serde_json::{Value, json};
use weir_shared::handover::OwnResponse;
use weir_shared::netblock::{Netblock, PrefixLengths};
use weir_shared::snapshot::BanIndex;
use weir_shared::table::ClientRow;
use weir_shared::units::Time;
use weir_shared::window::Span;

use super::clients::{Most, Sort};
use super::problem::json as json_answer;
use super::status::Service;

/// What the clients of a group share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum By {
    /// The netblock that a ban of one of them would cover.
    Netblock,
    /// The AS, as the lookups know it.
    Asn,
    /// The country, as the lookups know it.
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

/// What the clients of a group have together.
#[derive(Clone, Default)]
struct Sum {
    /// The name of an AS.
    name: Option<String>,
    clients: u64,
    banned: u64,
    passed: u64,
    refused: u64,
    requests: u64,
    bytes: u64,
    last_seen: Time,
}

impl Sum {
    fn add(&mut self, row: &ClientRow, bans: &BanIndex, now_ms: u64) {
        self.clients += 1;
        self.banned += u64::from(bans.active_until(row.client, now_ms).is_some());
        self.passed = self.passed.saturating_add(row.passed);
        self.refused = self.refused.saturating_add(row.refused);
        let requests = row.requests.day.estimate(Span::Day, now_ms);
        self.requests = self.requests.saturating_add(requests);
        let bytes = row.bytes.day.estimate(Span::Day, now_ms);
        self.bytes = self.bytes.saturating_add(bytes);
        self.last_seen = self.last_seen.max(row.last_seen);
    }

    fn most(&self, sort: Sort) -> u64 {
        match sort {
            Sort::Requests => self.requests,
            Sort::Bytes => self.bytes,
            Sort::Refused => self.refused,
            Sort::LastSeen => self.last_seen.0,
        }
    }

    fn json(&self, group: Value) -> Value {
        json!({
            "group": group,
            "name": self.name,
            "clients": self.clients,
            "banned": self.banned,
            "passed": self.passed,
            "refused": self.refused,
            "requests": self.requests,
            "bytes": self.bytes,
            "last_seen": self.last_seen,
        })
    }
}

/// The groups with most of what is asked for; clients that no lookup knows are one of their own.
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
    let held = groups.len();
    let groups = first(groups, most);
    json_answer(
        StatusCode::OK,
        &json!({"by": by.name(), "held": held, "groups": groups}),
    )
}

type Sums<K> = HashMap<K, Sum, RandomState>;

fn by_netblock(
    rows: &[ClientRow],
    prefixes: PrefixLengths,
    bans: &BanIndex,
    now_ms: u64,
) -> Vec<(Value, Sum)> {
    let mut sums = Sums::default();
    for row in rows {
        let netblock = Netblock::of(row.client, prefixes);
        sum_of(&mut sums, netblock).add(row, bans, now_ms);
    }
    let named = |(netblock, sum): (Netblock, Sum)| (json!(netblock), sum);
    sums.into_iter().map(named).collect()
}

fn by_lookup(rows: &[ClientRow], by: By, bans: &BanIndex, now_ms: u64) -> Vec<(Value, Sum)> {
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
        let sum = sum_of(&mut sums, group);
        sum.add(row, bans, now_ms);
        if sum.name.is_none() && group.is_some() {
            sum.name = name.cloned();
        }
    }
    let named = |(group, sum): (Option<&str>, Sum)| (json!(group), sum);
    sums.into_iter().map(named).collect()
}

fn sum_of<K: Eq + Hash>(sums: &mut Sums<K>, group: K) -> &mut Sum {
    match sums.entry(group) {
        Entry::Occupied(held) => held.into_mut(),
        Entry::Vacant(free) => free.insert(Sum::default()),
    }
}

/// Those that come first, as JSON; among equals by name, so that a list that is shown again and
/// again stands still.
fn first(mut groups: Vec<(Value, Sum)>, most: Most) -> Vec<Value> {
    groups.sort_by_cached_key(|(group, sum)| (Reverse(sum.most(most.sort)), group.to_string()));
    groups.truncate(most.limit);
    let json = |(group, sum): (Value, Sum)| sum.json(group);
    groups.into_iter().map(json).collect()
}
