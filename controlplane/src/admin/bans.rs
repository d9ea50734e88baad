//! Bodies of `POST /_waf/bans`, and the answers about bans. The ledger makes the bans.

use std::cmp::Reverse;
use std::net::IpAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use http::header::LOCATION;
use http::{HeaderValue, StatusCode};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use weir_schema::Schema;
use weir_shared::ban::Ban;
use weir_shared::client::{Client, fold};
use weir_shared::handover::{OwnResponse, Respond};
use weir_shared::netblock::{Netblock, PrefixLengths};
use weir_shared::spared::Spared;
use weir_shared::units::{DURATION_FORM, parse_duration};

use crate::bans::document::BanKey;
use crate::bans::feed::Cursor;
use crate::bans::ledger::import::Imported;
use crate::bans::ledger::{AdminBan, Ledger, oldest_first};
use crate::bans::too_wide::too_wide;
use crate::json;

use super::body::BodyReader;
use super::door::Door;
use super::problem::{Fault, Problem, json as json_answer};

/// The schema of a body (STATE-8).
const SCHEMA: &str = include_str!("../../../schema/proxy/ban-order.schema.json");

/// Reads and checks bodies.
pub(crate) struct OrderReader {
    body: BodyReader,
    spared: Arc<Spared>,
    prefixes: ArcSwap<PrefixLengths>,
}

/// A body that fits the schema.
#[derive(Deserialize)]
struct Written {
    client: Option<String>,
    netblock: Option<String>,
    duration: String,
    reason: String,
    #[serde(default)]
    force: bool,
}

impl OrderReader {
    pub(crate) fn new(spared: Arc<Spared>, prefixes: PrefixLengths) -> Self {
        Self {
            body: BodyReader::new(|| Schema::parse(SCHEMA)),
            spared,
            prefixes: ArcSwap::from_pointee(prefixes),
        }
    }

    /// The clients that are not banned without force.
    pub(crate) fn spared(&self) -> &Spared {
        &self.spared
    }

    /// Sets the width of a client's netblock.
    pub(crate) fn set_prefixes(&self, prefixes: PrefixLengths) {
        self.prefixes.store(Arc::new(prefixes));
    }

    /// Reads a POST body. Reports every fault at once, each with its JSON pointer: first those by
    /// the schema, then those that a schema cannot express (ADMIN-2). `asker` is the client that
    /// sends the body, if it is known.
    ///
    /// # Errors
    /// 400 where it is not JSON, 422 where it does not fit.
    pub(crate) fn read(&self, body: &[u8], asker: Option<Client>) -> Result<AdminBan, Problem> {
        let written = self.body.read(body)?;
        self.order(written, asker)
    }

    fn order(&self, written: Written, asker: Option<Client>) -> Result<AdminBan, Problem> {
        let mut faults = Vec::new();
        let mut fault = |member: &str, detail: String| {
            faults.push(Fault {
                pointer: json::member(member),
                detail,
            });
        };
        let scope = match (written.client, written.netblock) {
            (Some(text), _) => match text.parse::<Client>() {
                Ok(client) => Some((
                    Netblock::of(client, **self.prefixes.load()),
                    Some(client),
                    "client",
                )),
                Err(error) => {
                    fault("client", error.to_string());
                    None
                }
            },
            (None, text) => match netblock(&text.unwrap_or_default()) {
                Ok(netblock) => Some((netblock, None, "netblock")),
                Err(detail) => {
                    fault("netblock", detail);
                    None
                }
            },
        };
        if let Some((netblock, _, member)) = scope
            && !written.force
            && let Some(why) = too_wide(netblock, &self.spared, asker)
        {
            fault(member, format!("{why}: \"force\": true would be needed"));
        }
        let duration = match duration(&written.duration) {
            Ok(duration) => duration,
            Err(detail) => {
                fault("duration", detail);
                None
            }
        };
        match scope {
            Some((netblock, client, _)) if faults.is_empty() => Ok(AdminBan {
                netblock,
                client,
                duration,
                reason: written.reason,
                force: written.force,
            }),
            _ => Err(Problem::DoesNotFit(faults)),
        }
    }
}

/// A netblock from a request, widened to what a ban can refuse. IPv4-mapped netblocks are rejected:
/// they may mean the IPv4 netblock or the IPv6 one, and a ban must not guess.
pub(crate) fn netblock(text: &str) -> Result<Netblock, String> {
    listed_netblock(text).map(Netblock::widened_to_clients)
}

/// A netblock for a list: there it may be narrower than a client.
pub(crate) fn listed_netblock(text: &str) -> Result<Netblock, String> {
    let netblock: Netblock = text
        .parse()
        .map_err(|error: weir_shared::netblock::NotANetblock| error.to_string())?;
    not_mapped(text).map(|()| netblock)
}

/// Rejects a netblock that is written as IPv4-mapped IPv6.
pub(super) fn not_mapped(text: &str) -> Result<(), String> {
    let address = text
        .parse::<IpNet>()
        .map(|net| net.addr())
        .or_else(|_| text.parse::<IpAddr>());
    match address {
        Ok(address) if fold(address) != address => Err(format!(
            "{text:?} is IPv4-mapped: write the IPv4 netblock instead"
        )),
        _ => Ok(()),
    }
}

/// The length of a ban; none is permanent.
pub(super) fn duration(text: &str) -> Result<Option<std::time::Duration>, String> {
    if text == "permanent" {
        return Ok(None);
    }
    let duration =
        parse_duration(text).map_err(|wrong| format!("{wrong}: {DURATION_FORM}, or permanent"))?;
    if duration.is_zero() {
        return Err(format!(
            "{text:?} would end at once: {DURATION_FORM}, or permanent"
        ));
    }
    Ok(Some(duration))
}

/// The filter of `GET /_waf/bans`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Filter {
    /// `?active=true`: those that are active; `false`: those that are not.
    pub(crate) active: Option<bool>,
    /// `?ip=`: those that cover this client.
    pub(crate) client: Option<Client>,
    /// `?limit=`: at most so many.
    pub(crate) limit: Option<usize>,
    /// `?newest=`: at most so many, those that began last.
    pub(crate) newest: Option<usize>,
    /// `?after=`: those after this one, by key.
    pub(crate) after: Option<BanKey>,
}

/// Parses `?after=`: the last ban of the previous page, as its answer names it in `next`.
pub(super) fn key_of(text: &str) -> Option<BanKey> {
    let (netblock, rest) = text.split_once('@')?;
    let (started, origin) = rest.split_once('@')?;
    let netblock = netblock.parse().ok()?;
    let started_ms = started.parse().ok()?;
    Some(BanKey::new(netblock, started_ms, origin.parse().ok()?))
}

impl Filter {
    /// Whether the ban passes the filter.
    fn lets(&self, ban: &Ban, now_ms: u64) -> bool {
        self.active
            .is_none_or(|active| ban.is_active(now_ms) == active)
            && self
                .client
                .is_none_or(|client| ban.netblock.covers_client(client))
    }
}

/// A list for `GET /_waf/bans` that is being gathered, a piece in each turn of the control loop. A
/// ban that is held during all of it is in the list once.
pub(crate) struct Listing {
    filter: Filter,
    /// The last ban that was looked at.
    after: Option<BanKey>,
    listed: Listed,
}

/// The bans of a list, by key.
#[derive(Default)]
pub(crate) struct Listed {
    bans: Vec<Arc<Ban>>,
    /// The last ban of the list, if there may be more.
    next: Option<BanKey>,
    /// The cursor at which the stream of changes continues this list.
    cursor: Option<Cursor>,
}

impl Listing {
    pub(crate) fn new(filter: Filter, cursor: Cursor) -> Self {
        Self {
            filter,
            after: filter.after,
            listed: Listed {
                bans: Vec::new(),
                next: None,
                cursor: Some(cursor),
            },
        }
    }

    /// Looks at up to `most` further bans, and returns at how many. Fewer than `most` means that
    /// the list is complete: all bans were looked at, or as many were found as were asked for.
    pub(crate) fn look_at(&mut self, most: usize, ledger: &Ledger, now_ms: u64) -> usize {
        let mut looked = 0;
        for (key, ban) in ledger.after(self.after).take(most) {
            if self.filter.limit == Some(self.listed.bans.len()) {
                self.listed.next = self.after;
                break;
            }
            looked += 1;
            self.after = Some(*key);
            if self.filter.lets(ban, now_ms) {
                self.listed.bans.push(ledger.shown(ban));
            }
            if let Some(newest) = self.filter.newest
                && self.listed.bans.len() >= newest.saturating_mul(2)
            {
                self.keep_newest(newest);
            }
        }
        looked
    }

    /// Keeps the last `newest` bans in the order of the answer, also among those that began in one
    /// millisecond.
    fn keep_newest(&mut self, newest: usize) {
        let bans = &mut self.listed.bans;
        bans.sort_by_key(|ban| Reverse((ban.ban_started, BanKey::of(ban))));
        bans.truncate(newest);
    }

    /// The bans found so far, by key.
    #[cfg(test)]
    pub(crate) fn found(&self) -> &[Arc<Ban>] {
        &self.listed.bans
    }

    pub(crate) fn into_listed(mut self) -> Listed {
        if let Some(newest) = self.filter.newest {
            self.keep_newest(newest);
        }
        self.listed
    }
}

/// The answer to `GET /_waf/bans`.
pub(crate) fn list(listed: Listed) -> OwnResponse {
    #[derive(Serialize)]
    struct Document {
        bans: Vec<Arc<Ban>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        next: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        cursor: Option<String>,
    }
    let next =
        (listed.next).map(|key| format!("{}@{}@{}", key.netblock, key.ban_started.0, key.origin));
    let document = Document {
        bans: oldest_first(listed.bans),
        next,
        cursor: listed.cursor.map(|cursor| cursor.to_string()),
    };
    json_answer(StatusCode::OK, &document)
}

/// An answer that waits for bans.json to be on disk (STATE-2).
pub(crate) struct Pending {
    status: StatusCode,
    location: Option<HeaderValue>,
    body: Map<String, Value>,
    /// Called once the change is on disk, or was not written, for answers that wait for something
    /// else as well.
    next: Option<Next>,
}

/// Takes over an answer that no longer waits for the disk.
type Next = Box<dyn FnOnce(Respond, Pending, bool) + Send>;

impl Pending {
    /// The answer of `POST /_waf/bans`: the ban.
    pub(crate) fn made(ban: &Ban, door: Door) -> Self {
        let address = ban
            .client
            .map_or(ban.netblock.net().addr(), Client::first_address);
        Self {
            status: StatusCode::CREATED,
            location: HeaderValue::try_from(format!("{}bans?ip={address}", door.prefix())).ok(),
            body: match serde_json::to_value(ban) {
                Ok(Value::Object(members)) => members,
                _ => Map::new(),
            },
            next: None,
        }
    }

    /// The answer of `POST /v1/bans/import`: the numbers of bans.
    pub(crate) fn imported(imported: Imported) -> Self {
        Self {
            status: StatusCode::OK,
            location: None,
            body: match serde_json::to_value(imported) {
                Ok(Value::Object(members)) => members,
                _ => Map::new(),
            },
            next: None,
        }
    }

    /// The answer of `DELETE /_waf/bans/<address>`: the lifted bans.
    pub(crate) fn lifted(bans: &[Arc<Ban>]) -> Self {
        let lifted = serde_json::to_value(bans).unwrap_or_default();
        Self {
            status: StatusCode::OK,
            location: None,
            body: Map::from_iter([("lifted".to_owned(), lifted)]),
            next: None,
        }
    }

    /// Makes the answer wait for something else after the disk.
    #[cfg(feature = "fleet")]
    pub(crate) fn then(&mut self, next: impl FnOnce(Respond, Self, bool) + Send + 'static) {
        self.next = Some(Box::new(next));
    }

    /// Adds a member.
    #[cfg(feature = "fleet")]
    pub(crate) fn insert(&mut self, name: &str, value: Value) {
        self.body.insert(name.to_owned(), value);
    }

    /// Sends the answer, or passes it on to what it waits for after the disk.
    pub(crate) fn answer_to(mut self, respond: Respond, persisted: bool) {
        match self.next.take() {
            Some(next) => next(respond, self, persisted),
            None => respond(self.answer(persisted)),
        }
    }

    /// The answer. A change that could not be written is in force all the same, and the answer says
    /// so.
    pub(crate) fn answer(mut self, persisted: bool) -> OwnResponse {
        if !persisted {
            self.body.insert("persisted".to_owned(), Value::Bool(false));
        }
        let mut answer = json_answer(self.status, &self.body);
        if let Some(location) = self.location {
            answer.headers.insert(LOCATION, location);
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use proptest::prelude::*;

    use super::*;

    /// Members as an administrator or an attacker may write them, right and wrong.
    fn member() -> impl Strategy<Value = String> {
        let name = prop::sample::select(vec![
            "client", "netblock", "duration", "reason", "force", "x", "a/b~c", "",
        ]);
        let value = prop_oneof![
            prop::sample::select(vec![
                r#""203.0.113.7""#,
                r#""203.0.113.0/24""#,
                r#""2001:db8::/32""#,
                r#""::ffff:203.0.113.7""#,
                r#""0.0.0.0/0""#,
                r#""10.0.0.0/8""#,
                r#""fe80::1%eth0""#,
                r#""2h""#,
                r#""permanent""#,
                r#""0s""#,
                r#""r""#,
                r#""""#,
                "true",
                "false",
                "null",
                "7",
                "-0.5e9",
                "[]",
                "{\"a\":[1]}",
            ])
            .prop_map(str::to_owned),
            "\\PC{0,20}".prop_map(|text| serde_json::to_string(&text).unwrap()),
        ];
        (name, value).prop_map(|(name, value)| format!("{}:{value}", serde_json::json!(name)))
    }

    static READER: LazyLock<OrderReader> = LazyLock::new(|| {
        let trusted = ["10.1.0.0/16".parse().unwrap()].into_iter().collect();
        let spared = Arc::new(Spared::new(trusted));
        OrderReader::new(spared, PrefixLengths::default())
    });

    fn judged(body: &[u8]) -> Result<AdminBan, Problem> {
        READER.read(body, None)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// ADMIN-2: a body of any bytes is parsed without a panic, and never becomes an empty
        /// order.
        #[test]
        fn any_bytes_are_judged(body in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(judged(&body).is_err());
        }

        /// ADMIN-2: a body with any members becomes a valid order, or faults that point at the
        /// wrong members.
        #[test]
        fn any_members_are_judged(members in prop::collection::vec(member(), 0..7), cut in any::<prop::sample::Index>(), whole in any::<bool>()) {
            let text = format!("{{{}}}", members.join(","));
            let end = if whole { text.len() } else { cut.index(text.len()) };
            match judged(&text.as_bytes()[..end]) {
                Ok(order) => {
                    let length = order.reason.chars().count();
                    prop_assert!(whole && (1..=500).contains(&length));
                    prop_assert!(order.duration.is_none_or(|duration| !duration.is_zero()));
                    prop_assert!(order.client.is_none_or(|client| order.netblock.covers_client(client)));
                    prop_assert!(text.contains("true") || too_wide(order.netblock, &READER.spared, None).is_none());
                }
                Err(Problem::DoesNotFit(faults)) => {
                    prop_assert!(whole && !faults.is_empty());
                    for fault in faults {
                        prop_assert!(fault.pointer.is_empty() || fault.pointer.starts_with('/'));
                        prop_assert!(!fault.detail.is_empty());
                    }
                }
                Err(Problem::BadRequest(_)) => prop_assert!(!whole),
                Err(other) => prop_assert!(false, "{:?}", other),
            }
        }
    }
}
