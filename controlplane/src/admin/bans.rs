//! Bodies of `POST /_waf/bans` and the answers about bans. What a ban then does is the ledger's.

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

/// What judges a body.
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

    /// Who is not banned without force.
    pub(crate) fn spared(&self) -> &Spared {
        &self.spared
    }

    /// A client's netblock is this wide from now on.
    pub(crate) fn set_prefixes(&self, prefixes: PrefixLengths) {
        self.prefixes.store(Arc::new(prefixes));
    }

    /// Reads a POST body: every fault at once, each with its JSON pointer; first by the schema,
    /// then what a schema cannot say (ADMIN-2). `asker` is the client that sends it, if it is one.
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

/// A netblock as it is given, widened to what a ban can refuse. IPv4-mapped ones are turned away:
/// whoever writes one may mean the IPv4 netblock or the IPv6 one, and a ban must not guess.
pub(crate) fn netblock(text: &str) -> Result<Netblock, String> {
    listed_netblock(text).map(Netblock::widened_to_clients)
}

/// The same as a list has it, where an address may be narrower than a client.
pub(crate) fn listed_netblock(text: &str) -> Result<Netblock, String> {
    let netblock: Netblock = text
        .parse()
        .map_err(|error: weir_shared::netblock::NotANetblock| error.to_string())?;
    not_mapped(text).map(|()| netblock)
}

/// Whether a netblock is written as what it is, and not as IPv4-mapped IPv6.
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

/// None is permanent.
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

/// Which bans `GET /_waf/bans` gives.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Filter {
    /// `?active=true`: those that are active; `false`: those that are not.
    pub(crate) active: Option<bool>,
    /// `?ip=`: those that cover this client.
    pub(crate) client: Option<Client>,
    /// `?limit=`: so many at most.
    pub(crate) limit: Option<usize>,
    /// `?newest=`: so many at most, those that began last.
    pub(crate) newest: Option<usize>,
    /// `?after=`: those behind this one.
    pub(crate) after: Option<BanKey>,
}

/// What `?after=` takes: the last ban of the page before, as its answer names it in `next`.
pub(super) fn key_of(text: &str) -> Option<BanKey> {
    let (netblock, rest) = text.split_once('@')?;
    let (started, origin) = rest.split_once('@')?;
    let netblock = netblock.parse().ok()?;
    let started_ms = started.parse().ok()?;
    Some(BanKey::new(netblock, started_ms, origin.parse().ok()?))
}

impl Filter {
    /// Whether the ban is among those that are asked for.
    fn lets(&self, ban: &Ban, now_ms: u64) -> bool {
        self.active
            .is_none_or(|active| ban.is_active(now_ms) == active)
            && self
                .client
                .is_none_or(|client| ban.netblock.covers_client(client))
    }
}

/// A list of bans that is being gathered for `GET /_waf/bans`, a piece a turn of the control loop.
/// A ban that is held all the while is in it once.
pub(crate) struct Listing {
    filter: Filter,
    /// The last one that was looked at.
    after: Option<BanKey>,
    listed: Listed,
}

/// The bans of a list, by key.
#[derive(Default)]
pub(crate) struct Listed {
    bans: Vec<Arc<Ban>>,
    /// The last of them, where there may be more.
    next: Option<BanKey>,
    /// Where the stream of changes goes on from what was listed.
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

    /// Looks at up to so many further bans and tells at how many: fewer once it looked at all of
    /// them, or found as many as were asked for.
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

    /// Drops all but so many: the last ones in the order of the answer, also of those that began in
    /// one millisecond.
    fn keep_newest(&mut self, newest: usize) {
        let bans = &mut self.listed.bans;
        bans.sort_by_key(|ban| Reverse((ban.ban_started, BanKey::of(ban))));
        bans.truncate(newest);
    }

    /// What was found so far, by key.
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
    /// Who has it once it is on disk, or is not: it waits for something else, too.
    next: Option<Next>,
}

/// Takes what waits for the disk no longer.
type Next = Box<dyn FnOnce(Respond, Pending, bool) + Send>;

impl Pending {
    /// Of `POST /_waf/bans`: the ban.
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

    /// Of `POST /v1/bans/import`: how many.
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

    /// Of `DELETE /_waf/bans/<address>`: the bans that were lifted.
    pub(crate) fn lifted(bans: &[Arc<Ban>]) -> Self {
        let lifted = serde_json::to_value(bans).unwrap_or_default();
        Self {
            status: StatusCode::OK,
            location: None,
            body: Map::from_iter([("lifted".to_owned(), lifted)]),
            next: None,
        }
    }

    /// Has it wait for something else, once it has waited for the disk.
    #[cfg(feature = "fleet")]
    pub(crate) fn then(&mut self, next: impl FnOnce(Respond, Self, bool) + Send + 'static) {
        self.next = Some(Box::new(next));
    }

    /// A member more.
    #[cfg(feature = "fleet")]
    pub(crate) fn insert(&mut self, name: &str, value: Value) {
        self.body.insert(name.to_owned(), value);
    }

    /// Answers, or has it wait for what it waits for besides.
    pub(crate) fn answer_to(mut self, respond: Respond, persisted: bool) {
        match self.next.take() {
            Some(next) => next(respond, self, persisted),
            None => respond(self.answer(persisted)),
        }
    }

    /// The answer. What could not be written is in force all the same, and the answer says so.
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

        /// ADMIN-2: whatever bytes come, the body is judged: never a panic, and never an order of
        /// nothing.
        #[test]
        fn any_bytes_are_judged(body in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(judged(&body).is_err());
        }

        /// ADMIN-2: whatever members come, there is an order that is right, or faults that point at
        /// what is wrong.
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
