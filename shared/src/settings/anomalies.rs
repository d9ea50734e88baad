//! When an alert is raised about traffic (ALERT-1 to ALERT-3).

use std::time::Duration;

use super::kind::{Kind, count, each_entry, netblock, size, timeout};
use super::row::{Cell, Row, cell, family, row};
use crate::netblock::Netblock;

/// When an alert is raised about traffic (ALERT-1 to ALERT-3).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Anomalies {
    /// `WAF_ANOMALY_CLIENT_*`
    pub client: Thresholds,
    /// `WAF_ANOMALY_NET_*`
    pub net: Thresholds,
    /// `WAF_ANOMALY_ASN_*`
    pub asn: Thresholds,
    /// `WAF_ANOMALY_TOTAL_*`
    pub total: Thresholds,
    /// `WAF_WATCH_*_PER_*`, for each of the watched netblocks
    pub watch: Thresholds,
    /// `WAF_ANOMALY_COOLDOWN`
    pub cooldown: Duration,
    /// `WAF_WATCH_NETS`
    pub watch_nets: Vec<WatchNet>,
}

impl Anomalies {
    /// Whether anything at all is counted. If not, the data plane reports no request.
    pub fn is_on(&self) -> bool {
        [&self.client, &self.net, &self.asn, &self.total]
            .into_iter()
            .any(Thresholds::is_on)
            || (self.watch.is_on() && !self.watch_nets.is_empty())
    }
}

/// The thresholds of one scope; none is `off`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Thresholds {
    /// Requests in a minute, in an hour.
    pub requests: [Option<u64>; 2],
    /// Bytes in a minute, in an hour.
    pub bytes: [Option<u64>; 2],
}

impl Thresholds {
    /// Whether one of them is set.
    pub fn is_on(&self) -> bool {
        self.requests.iter().chain(&self.bytes).any(Option::is_some)
    }
}

/// One entry of `WAF_WATCH_NETS`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WatchNet {
    /// Its name; the netblock's own text where none was given.
    pub name: String,
    /// What is watched.
    pub netblock: Netblock,
}

pub(super) fn rows() -> Vec<Row<Anomalies>> {
    let scopes: [fn(&mut Anomalies) -> &mut Thresholds; 4] = [
        |anomalies| &mut anomalies.client,
        |anomalies| &mut anomalies.net,
        |anomalies| &mut anomalies.asn,
        |anomalies| &mut anomalies.total,
    ];
    vec![
        family(
            "WAF_ANOMALY_{CLIENT,NET,ASN,TOTAL}_{REQUESTS,BYTES}_PER_{MINUTE,HOUR}",
            scopes.into_iter().flat_map(thresholds),
            "An alert when one client, one netblock of clients, one AS number, or all clients together have more requests or bytes in a minute or an hour; refuses nothing.",
        ).live(),
        row(
            "WAF_ANOMALY_COOLDOWN",
            "1h",
            timeout(),
            |anomalies: &mut Anomalies| &mut anomalies.cooldown,
            "After an alert of a scope, further ones are held back this long and told in the summary of the hour.",
        ).live(),
        row(
            "WAF_WATCH_NETS",
            "",
            watch_nets(),
            |anomalies: &mut Anomalies| &mut anomalies.watch_nets,
            "Netblocks that are watched: each has thresholds of its own and is named in `client_group` of the request log.",
        ).live(),
        family(
            "WAF_WATCH_{REQUESTS,BYTES}_PER_{MINUTE,HOUR}",
            thresholds(|anomalies| &mut anomalies.watch),
            "An alert when a watched netblock has more requests or bytes in a minute or an hour.",
        ).live(),
    ]
}

/// The thresholds of one scope in the order of `{REQUESTS,BYTES}_PER_{MINUTE,HOUR}`.
fn thresholds(
    scope: fn(&mut Anomalies) -> &mut Thresholds,
) -> [(&'static str, Cell<Anomalies>); 4] {
    [
        cell(count(), move |all| &mut scope(all).requests[0]),
        cell(count(), move |all| &mut scope(all).requests[1]),
        cell(size(), move |all| &mut scope(all).bytes[0]),
        cell(size(), move |all| &mut scope(all).bytes[1]),
    ]
    .map(|cell| ("off", cell))
}

/// Netblocks with or without a name. Two entries may share a name, an office has more than one
/// line; a netblock stands there once, or its alerts would come twice.
fn watch_nets() -> Kind<Vec<WatchNet>> {
    Kind {
        expected: "a list of netblocks without zones, with or without a name of letters, digits, dots, dashes and underscores, such as office=192.0.2.0/24,2001:db8::/32".to_owned(),
        read: Box::new(|text, remarks| {
            let mut watches = Vec::<WatchNet>::new();
            each_entry(text, |entry| {
                let (name, block) = match entry.split_once('=') {
                    Some((name, block)) => (Some(name.trim()), block.trim()),
                    None => (None, entry),
                };
                if name.is_some_and(|name| !is_watch_name(name)) {
                    return Err(format!("has {entry:?}, whose name cannot be used"));
                }
                let netblock = netblock(block, entry, remarks)?;
                if watches.iter().any(|held| held.netblock == netblock) {
                    return Err(format!("has {entry:?}, a duplicate netblock"));
                }
                watches.push(WatchNet {
                    name: name.map_or_else(|| netblock.to_string(), str::to_owned),
                    netblock,
                });
                Ok(())
            })?;
            Ok(watches)
        }),
    }
}

/// Short and plain: it stands in every log line of its clients.
fn is_watch_name(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_'))
}
