//! Bodies of `POST /_waf/bans` and the answers about bans. What a ban then does is the ledger's.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use http::header::LOCATION;
use http::{HeaderValue, StatusCode};
use ipnet::IpNet;
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};
use weir_shared::ban::Ban;
use weir_shared::client::{Client, fold};
use weir_shared::handover::OwnAnswer;
use weir_shared::netblock::{NetSet, Netblock, PrefixLengths};
use weir_shared::units::{DURATION_FORM, parse_duration};

use crate::bans::ledger::{Ledger, Order, oldest_first};
use crate::state::BanKey;

use super::Filter;
use super::problem::{Fault, Problem, json};

/// The most characters of a reason.
const MAX_REASON: usize = 500;

/// Reads a POST body: every fault at once, each with its JSON pointer (ADMIN-2).
///
/// # Errors
/// 400 where it is not JSON, 422 where it does not fit.
pub(crate) fn order(
    body: &[u8],
    trusted_proxies: &NetSet,
    prefixes: PrefixLengths,
) -> Result<Order, Problem> {
    let members = match serde_json::from_slice(body) {
        Ok(Written::Object(members)) => members,
        Ok(Written::Other(found)) => {
            return Err(Problem::DoesNotFit(vec![Fault {
                pointer: String::new(),
                detail: format!("the body is {found}: an object is allowed"),
            }]));
        }
        Err(error) => {
            return Err(Problem::BadRequest(format!(
                "the body is not JSON: {error}"
            )));
        }
    };
    let mut reader = Reader::default();
    reader.members(&members);
    reader.order(trusted_proxies, prefixes)
}

/// What a body says, as far as it could be read; the faults come on the way.
#[derive(Default)]
struct Reader {
    client: Member<Client>,
    netblock: Member<Netblock>,
    duration: Member<Option<std::time::Duration>>,
    reason: Member<String>,
    force: Member<bool>,
    faults: Vec<Fault>,
}

/// One member of the body.
#[derive(Default)]
enum Member<T> {
    #[default]
    Absent,
    /// It was there, and its fault is told.
    Wrong,
    Is(T),
}

impl Reader {
    fn members(&mut self, members: &[(String, Value)]) {
        for (position, (name, value)) in members.iter().enumerate() {
            if members
                .iter()
                .take(position)
                .any(|(earlier, _)| earlier == name)
            {
                self.fault(name, "the member is given twice".to_owned());
                continue;
            }
            match name.as_str() {
                "client" => self.client = self.member(name, value, client),
                "netblock" => self.netblock = self.member(name, value, netblock),
                "duration" => self.duration = self.member(name, value, duration),
                "reason" => self.reason = self.member(name, value, reason),
                "force" => self.force = self.member(name, value, force),
                _ => self.fault(
                    name,
                    "the member is unknown: client or netblock, duration, reason and force are allowed"
                        .to_owned(),
                ),
            }
        }
    }

    fn member<T>(
        &mut self,
        name: &str,
        value: &Value,
        read: fn(&Value) -> Result<T, String>,
    ) -> Member<T> {
        match read(value) {
            Ok(read) => Member::Is(read),
            Err(detail) => {
                self.fault(name, detail);
                Member::Wrong
            }
        }
    }

    fn fault(&mut self, name: &str, detail: String) {
        // RFC 6901 §3
        let escaped = name.replace('~', "~0").replace('/', "~1");
        self.faults.push(Fault {
            pointer: format!("/{escaped}"),
            detail,
        });
    }

    fn order(
        mut self,
        trusted_proxies: &NetSet,
        prefixes: PrefixLengths,
    ) -> Result<Order, Problem> {
        let scope = self.scope(prefixes);
        if let Some((netblock, _, name)) = scope
            && !matches!(self.force, Member::Is(true))
            && let Some(detail) = too_wide(netblock, trusted_proxies)
        {
            self.fault(name, detail);
        }
        if matches!(self.duration, Member::Absent) {
            self.fault("duration", "the member is missing".to_owned());
        }
        if matches!(self.reason, Member::Absent) {
            self.fault("reason", "the member is missing".to_owned());
        }
        match (scope, self.duration, self.reason) {
            (Some((netblock, client, _)), Member::Is(duration), Member::Is(reason))
                if self.faults.is_empty() =>
            {
                Ok(Order {
                    netblock,
                    client,
                    duration,
                    reason,
                })
            }
            _ => Err(Problem::DoesNotFit(self.faults)),
        }
    }

    /// What is to be banned, for whom, and the member that said so (BAN-3).
    fn scope(
        &mut self,
        prefixes: PrefixLengths,
    ) -> Option<(Netblock, Option<Client>, &'static str)> {
        match (&self.client, &self.netblock) {
            (Member::Absent, Member::Absent) => {
                self.faults.push(Fault {
                    pointer: String::new(),
                    detail: "one of client and netblock is needed".to_owned(),
                });
                None
            }
            (Member::Absent, Member::Is(netblock)) => Some((*netblock, None, "netblock")),
            (Member::Is(client), Member::Absent) => {
                Some((Netblock::of(*client, prefixes), Some(*client), "client"))
            }
            (Member::Absent, Member::Wrong) | (Member::Wrong, Member::Absent) => None,
            (Member::Is(_) | Member::Wrong, Member::Is(_) | Member::Wrong) => {
                self.fault(
                    "netblock",
                    "the member stands beside client: only one of them is allowed".to_owned(),
                );
                None
            }
        }
    }
}

fn text(value: &Value) -> Result<&str, String> {
    value
        .as_str()
        .ok_or_else(|| format!("the member is {}: a string is allowed", kind(value)))
}

fn client(value: &Value) -> Result<Client, String> {
    text(value)?
        .parse()
        .map_err(|error: weir_shared::client::NotAClient| error.to_string())
}

/// A netblock as it is given, widened to what a ban can refuse. IPv4-mapped ones are turned away: whoever writes one
/// may mean the IPv4 netblock or the IPv6 one, and a ban must not guess.
fn netblock(value: &Value) -> Result<Netblock, String> {
    let text = text(value)?;
    let netblock: Netblock = text
        .parse()
        .map_err(|error: weir_shared::netblock::NotANetblock| error.to_string())?;
    let address = text
        .parse::<IpNet>()
        .map(|net| net.addr())
        .or_else(|_| text.parse::<IpAddr>());
    match address {
        Ok(address) if fold(address) != address => Err(format!(
            "{text:?} is IPv4-mapped: write the IPv4 netblock instead"
        )),
        _ => Ok(netblock.widened_to_clients()),
    }
}

fn duration(value: &Value) -> Result<Option<std::time::Duration>, String> {
    let text = text(value)?;
    if text == "permanent" {
        return Ok(None);
    }
    let duration =
        parse_duration(text).map_err(|wrong| format!("{wrong}: {DURATION_FORM}, or permanent"))?;
    if duration.is_zero() {
        return Err(format!(
            "{text:?} is no time at all: a duration above zero, or permanent, is allowed"
        ));
    }
    Ok(Some(duration))
}

fn reason(value: &Value) -> Result<String, String> {
    let text = text(value)?;
    match text.chars().count() {
        1..=MAX_REASON => Ok(text.to_owned()),
        length => Err(format!(
            "the reason has {length} characters: 1 to {MAX_REASON} are allowed"
        )),
    }
}

fn force(value: &Value) -> Result<bool, String> {
    value
        .as_bool()
        .ok_or_else(|| format!("the member is {}: true or false is allowed", kind(value)))
}

/// What only `"force": true` lets pass: a slip that would shut out everyone, or the load balancer with everyone behind
/// it (ADMIN-2).
fn too_wide(netblock: Netblock, trusted_proxies: &NetSet) -> Option<String> {
    if netblock.net().prefix_len() == 0 {
        return Some(format!(
            "{netblock} covers every address: \"force\": true would be needed"
        ));
    }
    let proxy = trusted_proxies
        .blocks()
        .iter()
        .find(|proxy| netblock.covers(**proxy) || proxy.covers(netblock))?;
    Some(format!(
        "{netblock} covers {proxy} of WAF_TRUSTED_PROXIES: \"force\": true would be needed"
    ))
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// A body, with members that are given twice still in it: `serde_json` alone would keep the last of them in silence.
enum Written {
    Object(Vec<(String, Value)>),
    Other(&'static str),
}

impl<'de> Deserialize<'de> for Written {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(WrittenVisitor)
    }
}

struct WrittenVisitor;

impl<'de> Visitor<'de> for WrittenVisitor {
    type Value = Written;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Written, A::Error> {
        let mut members = Vec::new();
        while let Some(member) = map.next_entry()? {
            members.push(member);
        }
        Ok(Written::Object(members))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Written, A::Error> {
        while seq.next_element::<Value>()?.is_some() {}
        Ok(Written::Other("an array"))
    }

    fn visit_str<E>(self, _: &str) -> Result<Written, E> {
        Ok(Written::Other("a string"))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Written, E> {
        Ok(Written::Other("a boolean"))
    }

    fn visit_unit<E>(self) -> Result<Written, E> {
        Ok(Written::Other("null"))
    }

    fn visit_u64<E>(self, _: u64) -> Result<Written, E> {
        Ok(Written::Other("a number"))
    }

    fn visit_i64<E>(self, _: i64) -> Result<Written, E> {
        Ok(Written::Other("a number"))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Written, E> {
        Ok(Written::Other("a number"))
    }
}

/// A list of bans that is being gathered for `GET /_waf/bans`, a piece a turn of the control loop. A ban that is held all
/// the while is in it once.
pub(crate) struct Listing {
    filter: Filter,
    /// The last one that was looked at.
    after: Option<BanKey>,
    found: Vec<Arc<Ban>>,
}

impl Listing {
    pub(crate) fn new(filter: Filter) -> Self {
        Self {
            filter,
            after: None,
            found: Vec::new(),
        }
    }

    /// Looks at up to so many further bans and tells at how many: fewer once it looked at all of them.
    pub(crate) fn look_at(&mut self, most: usize, ledger: &Ledger, now_ms: u64) -> usize {
        let mut looked = 0;
        for (key, ban) in ledger.after(self.after).take(most) {
            looked += 1;
            self.after = Some(*key);
            if self.filter.lets(ban, now_ms) {
                self.found.push(Arc::clone(ban));
            }
        }
        looked
    }

    /// What was found so far, by key.
    #[cfg(test)]
    pub(crate) fn found(&self) -> &[Arc<Ban>] {
        &self.found
    }

    /// What was found, by key.
    pub(crate) fn into_found(self) -> Vec<Arc<Ban>> {
        self.found
    }
}

/// The answer to `GET /_waf/bans`.
pub(crate) fn list(bans: Vec<Arc<Ban>>) -> OwnAnswer {
    #[derive(Serialize)]
    struct Document {
        bans: Vec<Arc<Ban>>,
    }
    let bans = oldest_first(bans);
    json(StatusCode::OK, &Document { bans })
}

/// An answer that waits for bans.json to be on disk (STATE-2).
pub(crate) struct Pending {
    status: StatusCode,
    location: Option<HeaderValue>,
    body: Map<String, Value>,
}

impl Pending {
    /// Of `POST /_waf/bans`: the ban.
    pub(crate) fn made(ban: &Ban) -> Self {
        let address = ban
            .client
            .map_or(ban.netblock.net().addr(), Client::first_address);
        Self {
            status: StatusCode::CREATED,
            location: HeaderValue::try_from(format!("/_waf/bans?ip={address}")).ok(),
            body: match serde_json::to_value(ban) {
                Ok(Value::Object(members)) => members,
                _ => Map::new(),
            },
        }
    }

    /// Of `DELETE /_waf/bans/<address>`: the bans that were lifted.
    pub(crate) fn lifted(bans: &[Arc<Ban>]) -> Self {
        let lifted = serde_json::to_value(bans).unwrap_or_default();
        Self {
            status: StatusCode::OK,
            location: None,
            body: Map::from_iter([("lifted".to_owned(), lifted)]),
        }
    }

    /// The answer. What could not be written is in force all the same, and the answer says so.
    pub(crate) fn answer(mut self, persisted: bool) -> OwnAnswer {
        if !persisted {
            self.body.insert("persisted".to_owned(), Value::Bool(false));
        }
        let mut answer = json(self.status, &self.body);
        if let Some(location) = self.location {
            answer.headers.insert(LOCATION, location);
        }
        answer
    }
}

#[cfg(test)]
mod tests {
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

    fn judged(body: &[u8]) -> Result<Order, Problem> {
        let trusted = ["10.1.0.0/16".parse().unwrap()].into_iter().collect();
        order(body, &trusted, PrefixLengths::default())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// ADMIN-2: whatever bytes come, the body is judged: never a panic, and never an order of nothing.
        #[test]
        fn any_bytes_are_judged(body in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(judged(&body).is_err());
        }

        /// ADMIN-2: whatever members come, there is an order that is right, or faults that point at what is wrong.
        #[test]
        fn any_members_are_judged(members in prop::collection::vec(member(), 0..7), cut in any::<prop::sample::Index>(), whole in any::<bool>()) {
            let text = format!("{{{}}}", members.join(","));
            let end = if whole { text.len() } else { cut.index(text.len()) };
            match judged(&text.as_bytes()[..end]) {
                Ok(order) => {
                    let length = order.reason.chars().count();
                    prop_assert!(whole && (1..=MAX_REASON).contains(&length));
                    prop_assert!(order.duration.is_none_or(|duration| !duration.is_zero()));
                    prop_assert!(order.client.is_none_or(|client| order.netblock.covers_client(client)));
                    prop_assert!(text.contains("true") || too_wide(order.netblock, &["10.1.0.0/16".parse().unwrap()].into_iter().collect()).is_none());
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
