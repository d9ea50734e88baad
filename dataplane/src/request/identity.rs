//! Who the client of a request is: what the connection says of its peer, and what a trusted proxy
//! says in the fields of a head. A proxy that was forgotten in the settings is noticed (CLIENT-7).

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex};

use http::header::FORWARDED;
use http::{HeaderName, HeaderValue};
use weir_shared::client::{Client, fold};
use weir_shared::netblock::NetSet;
use weir_shared::settings::IdentitySettings;
use weir_shared::spared::Spared;

use crate::message::{Fields, Known};

/// `X-Forwarded-For`
pub const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
/// `X-Forwarded-Proto`
pub const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
/// `X-Request-ID`
pub const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Entries of a forwarding chain that are read at most (CLIENT-3).
const MAX_ENTRIES: usize = 64;

/// A request id of a trusted proxy is taken up to this length.
const MAX_REQUEST_ID: usize = 128;

/// The peer that sent a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sender {
    /// Its address.
    pub peer: IpAddr,
    /// What it says of clients is believed.
    pub trusted: bool,
    /// It is a trusted proxy, whether it is believed on this connection or not (EDGE-4).
    pub is_proxy: bool,
    /// `http` or `https`
    pub scheme: &'static str,
}

/// Who is refused or banned, where that is decided.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Who {
    /// The client, to which limits and bans are charged.
    pub client: Client,
    /// The full address.
    pub address: IpAddr,
    /// It is a trusted proxy that names nobody else: no ban that the service makes by itself covers
    /// or refuses it (ALIVE-5).
    pub is_proxy: bool,
}

impl Who {
    /// A client that is no proxy.
    pub fn client(address: IpAddr) -> Self {
        Self {
            client: Client::of(address),
            address,
            is_proxy: false,
        }
    }
}

/// The sender of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Identity {
    /// The client, to which limits and bans are charged.
    pub client: Client,
    /// The full address.
    pub address: IpAddr,
    /// The client is a trusted proxy that names nobody else.
    pub is_proxy: bool,
    /// The browser says that the page of another site had it ask (RULE-8).
    pub other_site: bool,
    /// `http` or `https`
    pub scheme: &'static str,
    /// The id a trusted proxy gave.
    pub request_id: Option<HeaderValue>,
}

impl Identity {
    /// A peer that speaks for itself.
    pub fn of_peer(sender: Sender) -> Self {
        Self {
            client: Client::of(sender.peer),
            address: sender.peer,
            is_proxy: sender.is_proxy,
            other_site: false,
            scheme: sender.scheme,
            request_id: None,
        }
    }

    /// Who is refused or banned.
    pub const fn who(&self) -> Who {
        Who {
            client: self.client,
            address: self.address,
            is_proxy: self.is_proxy,
        }
    }
}

/// Identifies the client of a request.
pub fn identify(
    sender: Sender,
    settings: &IdentitySettings,
    head: &impl Fields,
    known: Known,
) -> Identity {
    let other_site = known.other_site;
    if !sender.trusted {
        return Identity {
            other_site,
            ..Identity::of_peer(sender)
        };
    }
    let (peer, scheme) = (sender.peer, sender.scheme);
    let lines = head.values_of(&settings.header).rev();
    let address = if settings.header == FORWARDED {
        let elements = lines.flat_map(|line| rsplit_unquoted(line, b','));
        named(peer, settings, elements.map(forwarded_for))
    } else {
        named(peer, settings, lines.flat_map(entries))
    };
    let is_https = |value: &[u8]| {
        // Of a chain of proxies, the first says what the client spoke.
        let first = value.split(|byte| *byte == b',').next();
        let first = first.unwrap_or_default().trim_ascii();
        let https = first.eq_ignore_ascii_case(b"https");
        if https { "https" } else { "http" }
    };
    Identity {
        client: Client::of(address),
        address,
        is_proxy: sender.is_proxy && address == peer,
        other_site,
        scheme: known
            .forwarded_proto
            .then(|| head.values_of(&X_FORWARDED_PROTO).next())
            .flatten()
            .map_or(scheme, is_https),
        request_id: known.request_id.then(|| request_id(head)).flatten(),
    }
}

/// The entries of a line, from right to left.
fn entries(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.rsplit(|byte| *byte == b',')
}

/// The pieces of a text between separators outside quoted strings (RFC 9110 §5.6.4), from right to
/// left: what the nearest proxy wrote is read right, whatever stands before it.
fn rsplit_unquoted(text: &[u8], separator: u8) -> impl Iterator<Item = &[u8]> {
    let mut left = Some(text);
    std::iter::from_fn(move || {
        let text = left.take()?;
        let mut quoted = false;
        for (at, byte) in text.iter().enumerate().rev() {
            let (before, piece) = text.split_at(at);
            if *byte == b'"' && !(quoted && ends_escaping(before)) {
                quoted = !quoted;
            } else if *byte == separator && !quoted {
                left = Some(before);
                return piece.get(1..);
            }
        }
        Some(text)
    })
}

/// Whether what follows is escaped: an odd number of backslashes stands before it.
fn ends_escaping(before: &[u8]) -> bool {
    let backslashes = before.iter().rev().take_while(|byte| **byte == b'\\');
    backslashes.count() % 2 == 1
}

/// The client that a chain names, from the nearest entry.
fn named<'a>(
    peer: IpAddr,
    settings: &IdentitySettings,
    mut entries: impl Iterator<Item = &'a [u8]>,
) -> IpAddr {
    match settings.trusted_hops {
        // So many proxies, the peer among them, wrote the nearest entries: the farthest of these is
        // the client. Where there are fewer, or it is not an address, the peer is (CLIENT-8).
        Some(hops) => {
            let entry = entries.nth(usize::from(hops).saturating_sub(1));
            entry.and_then(address).unwrap_or(peer)
        }
        None => walk(peer, &settings.trusted_proxies, entries),
    }
}

/// Walks a chain from the nearest entry: trusted addresses are skipped, the first untrusted one is
/// the client; if all are trusted, the farthest is. An entry that is no address ends the walk, and
/// the last good one stands (CLIENT-3).
fn walk<'a>(peer: IpAddr, trusted: &NetSet, entries: impl Iterator<Item = &'a [u8]>) -> IpAddr {
    let mut last_good = peer;
    for entry in entries.take(MAX_ENTRIES) {
        let Some(address) = address(entry) else { break };
        last_good = address;
        if !trusted.contains(address) {
            break;
        }
    }
    last_good
}

/// Reads an address; a port, brackets and a zone are taken off.
fn address(entry: &[u8]) -> Option<IpAddr> {
    let entry = entry.trim_ascii();
    if let Some(plain) = plain_v4(entry) {
        return Some(fold(IpAddr::V4(plain)));
    }
    let entry = std::str::from_utf8(entry).ok()?;
    let entry = entry.trim_matches('"');
    let bare = if let Some(rest) = entry.strip_prefix('[') {
        let (inside, port) = rest.split_once(']')?;
        let port_is_fine = port.is_empty() || port.strip_prefix(':').is_some_and(is_port);
        if !port_is_fine {
            return None;
        }
        inside
    } else {
        match entry.split_once(':') {
            // Exactly one colon: an IPv4 address with a port.
            Some((v4, port)) if !port.contains(':') => {
                if !is_port(port) {
                    return None;
                }
                v4
            }
            _ => entry,
        }
    };
    let without_zone = bare
        .split_once('%')
        .map_or(bare, |(address, _zone)| address);
    without_zone.parse().ok().map(fold)
}

/// An IPv4 address and nothing else, which is what an entry nearly always is.
fn plain_v4(entry: &[u8]) -> Option<Ipv4Addr> {
    let (mut octets, mut at) = ([0_u16; 4], 0);
    let mut digits = 0;
    for byte in entry {
        let octet = octets.get_mut(at)?;
        match byte {
            // A leading zero is left to the reader of everything else, which refuses it.
            b'0'..=b'9' if digits < 3 && !(digits == 1 && *octet == 0) => {
                *octet = *octet * 10 + u16::from(byte - b'0');
                digits += 1;
            }
            b'.' if digits > 0 => (at, digits) = (at + 1, 0),
            _ => return None,
        }
    }
    if at != 3 || digits == 0 {
        return None;
    }
    let [a, b, c, d] = octets.map(u8::try_from);
    Some(Ipv4Addr::new(a.ok()?, b.ok()?, c.ok()?, d.ok()?))
}

fn is_port(text: &str) -> bool {
    text.parse::<u16>().is_ok() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// The `for` parameter of one `Forwarded` element (RFC 7239 §4). An element without one names
/// nobody and ends the walk: what stands behind it is the client's own word (FORWARD-2).
fn forwarded_for(element: &[u8]) -> &[u8] {
    let parameter = rsplit_unquoted(element, b';').find_map(|pair| {
        let mut sides = pair.splitn(2, |byte| *byte == b'=');
        let (name, value) = (sides.next()?, sides.next()?);
        name.trim_ascii()
            .eq_ignore_ascii_case(b"for")
            .then_some(value)
    });
    parameter.unwrap_or_default()
}

/// A trusted proxy's id, if it is one: visible ASCII, not too long.
pub fn request_id(head: &impl Fields) -> Option<HeaderValue> {
    let id = head.values_of(&X_REQUEST_ID).next()?;
    let fine = !id.is_empty()
        && id.len() <= MAX_REQUEST_ID
        && id.iter().all(|byte| byte.is_ascii_graphic());
    fine.then(|| HeaderValue::from_bytes(id).ok()).flatten()
}

/// Notices a forgotten `WAF_TRUSTED_PROXIES`: one untrusted peer that forwards for many clients
/// (CLIENT-7).
#[derive(Default)]
pub struct ForgottenProxy {
    /// Told of each such peer: the service does not ban it by itself (ALIVE-5).
    spared: Arc<Spared>,
    /// Only requests of untrusted peers that carry `X-Forwarded-For` come here; a contended lock
    /// skips the look.
    peers: Mutex<HashMap<IpAddr, Forwarding>>,
}

/// The clients that one untrusted peer forwarded for within a minute.
struct Forwarding {
    minute: u64,
    clients: HashSet<Client>,
    warned_ms: Option<u64>,
}

/// "Many": distinct forwarded clients from one untrusted peer within a minute.
const MANY_CLIENTS: usize = 100;
/// Peers watched at most.
const MAX_PEERS: usize = 64;
const MINUTE_MS: u64 = 60_000;
const HOUR_MS: u64 = 3_600_000;

impl ForgottenProxy {
    /// Tells `spared` of the peers that it notices.
    pub fn new(spared: Arc<Spared>) -> Self {
        Self {
            spared,
            peers: Mutex::default(),
        }
    }

    /// Notes the last line of `X-Forwarded-For` that an untrusted peer sent; warns where it is due.
    pub fn note(&self, peer: IpAddr, line: &[u8], wall_ms: u64) {
        if self.is_due(peer, line, wall_ms) {
            tracing::warn!(
                %peer,
                "this peer forwards for many clients but is not in WAF_TRUSTED_PROXIES: limits and \
                 bans are charged to the peer itself; if it is a load balancer of yours, add it to \
                 WAF_TRUSTED_PROXIES"
            );
        }
    }

    fn is_due(&self, peer: IpAddr, line: &[u8], wall_ms: u64) -> bool {
        // The last entry is the address that the peer itself added.
        let Some(nearest) = entries(line).next().and_then(address) else {
            return false;
        };
        let client = Client::of(nearest);
        let Ok(mut peers) = self.peers.try_lock() else {
            return false;
        };
        let minute = wall_ms / MINUTE_MS;
        if peers.len() >= MAX_PEERS && !peers.contains_key(&peer) {
            peers.retain(|_, forwarding| {
                forwarding.minute == minute
                    || forwarding
                        .warned_ms
                        .is_some_and(|at| wall_ms.saturating_sub(at) < HOUR_MS)
            });
            if peers.len() >= MAX_PEERS {
                return false;
            }
        }
        let forwarding = peers.entry(peer).or_insert_with(|| Forwarding {
            minute,
            clients: HashSet::new(),
            warned_ms: None,
        });
        if forwarding.minute != minute {
            forwarding.minute = minute;
            forwarding.clients.clear();
        }
        if forwarding.clients.len() < MANY_CLIENTS
            && forwarding.clients.insert(client)
            && forwarding.clients.len() == MANY_CLIENTS
        {
            // In each minute anew, so that no gap is left between two warnings.
            self.spared.spare(peer, wall_ms);
        }
        let due = forwarding.clients.len() >= MANY_CLIENTS
            && forwarding
                .warned_ms
                .is_none_or(|at| wall_ms.saturating_sub(at) >= HOUR_MS);
        if due {
            forwarding.warned_ms = Some(wall_ms);
        }
        due
    }
}

/// Where a connection came from, and how.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// The address of the peer.
    pub peer: IpAddr,
    /// What the peer is.
    pub peer_is: PeerIs,
    /// Whether what it says of clients is believed.
    pub trusted: bool,
    /// `http` or `https`
    pub scheme: &'static str,
}

impl Arrival {
    /// The peer, as the sender of a request.
    pub fn sender(&self) -> Sender {
        Sender {
            peer: self.peer,
            trusted: self.trusted,
            is_proxy: self.trusted || self.peer_is == PeerIs::ProxyItself,
            scheme: self.scheme,
        }
    }
}

/// What the peer of a connection is, as far as the connection itself tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PeerIs {
    /// Whoever has that address: the settings say whether it is trusted.
    Anybody,
    /// Whoever may write to a Unix socket: a trusted proxy of this machine (EDGE-1).
    Local,
    /// A trusted proxy that says by the PROXY protocol that it speaks for itself: it is not
    /// believed on what it says of clients (EDGE-4).
    ProxyItself,
}

impl PeerIs {
    /// Whether what the peer says of clients is believed.
    pub fn trusted(self, peer: IpAddr, settings: &IdentitySettings) -> bool {
        match self {
            Self::Anybody => settings.trusts(peer),
            Self::Local => true,
            Self::ProxyItself => false,
        }
    }
}

/// An address as text. Formatting that of IPv4 costs more than the rest of a connection's state.
pub fn written(address: IpAddr) -> String {
    let IpAddr::V4(address) = address else {
        return address.to_string();
    };
    let mut text = String::with_capacity(15);
    for (at, octet) in address.octets().into_iter().enumerate() {
        if at > 0 {
            text.push('.');
        }
        text.push_str(itoa::Buffer::new().format(octet));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderMap;
    use proptest::prelude::*;

    fn identify(
        peer: IpAddr,
        trusted_peer: bool,
        scheme: &'static str,
        trusted: &NetSet,
        client_header: &HeaderName,
        headers: &HeaderMap,
    ) -> Identity {
        let settings = IdentitySettings {
            trusted_proxies: trusted.clone(),
            header: client_header.clone(),
            trusted_hops: None,
            application_field: None,
            strip: Vec::new(),
        };
        let sender = Sender {
            peer,
            trusted: trusted_peer,
            is_proxy: trusted_peer,
            scheme,
        };
        super::identify(sender, &settings, headers, Known::of(headers))
    }

    fn headers(lines: &[(&str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in lines {
            map.append(
                HeaderName::try_from(*name).unwrap(),
                HeaderValue::from_str(value).unwrap(),
            );
        }
        map
    }

    fn trusted() -> NetSet {
        ["10.0.0.0/8", "fd00::/8"]
            .iter()
            .map(|text| text.parse().unwrap())
            .collect()
    }

    fn client(lines: &[(&str, &str)]) -> String {
        let peer = "10.0.0.1".parse().unwrap();
        identify(
            peer,
            true,
            "http",
            &trusted(),
            &X_FORWARDED_FOR,
            &headers(lines),
        )
        .address
        .to_string()
    }

    /// RULE-5: a trusted proxy that names nobody is the client itself.
    #[test]
    fn a_proxy_that_names_nobody_is_told() {
        let peer = "10.0.0.1".parse().unwrap();
        let is_proxy = |line: &str| {
            let lines = headers(&[("x-forwarded-for", line)]);
            identify(peer, true, "http", &trusted(), &X_FORWARDED_FOR, &lines).is_proxy
        };
        for (line, expected) in [
            ("203.0.113.7", false),
            ("203.0.113.7, 10.0.0.2", false),
            ("10.0.0.2", false),
            ("unknown", true),
            ("", true),
        ] {
            assert_eq!(is_proxy(line), expected, "{line}");
        }
    }

    proptest! {
        /// CLIENT-3: the short way for plain IPv4 addresses reads what the long one does.
        #[test]
        fn a_plain_address_is_read_as_every_other(
            text in "[0-9]{0,4}\\.[0-9]{1,3}\\.[0-9]{1,3}\\.[0-9]{1,4}|[0-9.]{0,16}|[0-9.:a]{0,9}",
        ) {
            let read = plain_v4(text.as_bytes());
            prop_assert_eq!(read, text.parse().ok());
        }
    }

    /// CLIENT-2: nobody is trusted unless named.
    #[test]
    fn an_untrusted_peer_is_the_client() {
        let peer: IpAddr = "198.51.100.1".parse().unwrap();
        let lines = headers(&[
            ("x-forwarded-for", "203.0.113.7"),
            ("x-forwarded-proto", "https"),
            ("x-request-id", "a"),
        ]);
        let found = identify(peer, false, "http", &trusted(), &X_FORWARDED_FOR, &lines);
        assert_eq!(
            found,
            Identity {
                client: Client::of(peer),
                address: peer,
                is_proxy: false,
                other_site: false,
                scheme: "http",
                request_id: None
            }
        );
    }

    /// EDGE-2, FORWARD-2: of a chain in `X-Forwarded-Proto` the first entry says what the client
    /// spoke.
    #[test]
    fn the_first_of_a_chain_says_the_scheme() {
        let peer: IpAddr = "10.0.0.1".parse().unwrap();
        for (value, scheme) in [
            ("https", "https"),
            ("HTTPS , http", "https"),
            ("https,http, http", "https"),
            ("http, https", "http"),
            (", https", "http"),
            ("https http", "http"),
            ("", "http"),
        ] {
            let lines = headers(&[("x-forwarded-proto", value)]);
            let found = identify(peer, true, "http", &trusted(), &X_FORWARDED_FOR, &lines);
            assert_eq!(found.scheme, scheme, "{value:?}");
        }
    }

    /// CLIENT-3: lines joined, right to left, trusted skipped, the first untrusted one is the
    /// client.
    #[test]
    fn the_chain_is_walked_from_the_right() {
        let x = "x-forwarded-for";
        assert_eq!(client(&[(x, "203.0.113.7, 10.0.0.2")]), "203.0.113.7");
        assert_eq!(
            client(&[(x, "198.51.100.9, 203.0.113.7"), (x, "10.0.0.3")]),
            "203.0.113.7"
        );
        assert_eq!(client(&[(x, "10.0.0.9, 10.0.0.2")]), "10.0.0.9");
        assert_eq!(
            client(&[(x, "203.0.113.7, nonsense, 10.0.0.2")]),
            "10.0.0.2"
        );
        assert_eq!(client(&[(x, "203.0.113.7, , 10.0.0.2")]), "10.0.0.2");
        assert_eq!(client(&[]), "10.0.0.1");
    }

    /// CLIENT-3: ports, brackets and zones are taken off; CLIENT-1: mapped addresses fold.
    #[test]
    fn ports_brackets_and_zones_are_taken_off() {
        let x = "x-forwarded-for";
        assert_eq!(client(&[(x, "203.0.113.7:4711")]), "203.0.113.7");
        assert_eq!(client(&[(x, "[2001:db8::1]:443")]), "2001:db8::1");
        assert_eq!(client(&[(x, "[2001:db8::1%eth0]")]), "2001:db8::1");
        assert_eq!(client(&[(x, "2001:db8::1")]), "2001:db8::1");
        assert_eq!(client(&[(x, "::ffff:203.0.113.7")]), "203.0.113.7");
        assert_eq!(client(&[(x, "203.0.113.7:99999")]), "10.0.0.1");
    }

    /// CLIENT-3: at most 64 entries are read.
    #[test]
    fn at_most_64_entries_are_read() {
        let chain =
            |trusted_entries: usize| format!("203.0.113.7{}", ", 10.0.0.2".repeat(trusted_entries));
        assert_eq!(client(&[("x-forwarded-for", &chain(63))]), "203.0.113.7");
        assert_eq!(client(&[("x-forwarded-for", &chain(64))]), "10.0.0.2");
    }

    /// CLIENT-3: what a client wrote into the line spoils its own entries, not those that proxies
    /// added to it.
    #[test]
    fn bytes_beyond_ascii_spoil_one_entry() {
        let mut map = HeaderMap::new();
        let line = HeaderValue::from_bytes(b"\xff, 203.0.113.7, 10.0.0.2").unwrap();
        map.append(X_FORWARDED_FOR, line);
        let peer = "10.0.0.1".parse().unwrap();
        let found = identify(peer, true, "http", &trusted(), &X_FORWARDED_FOR, &map);
        assert_eq!(found.address.to_string(), "203.0.113.7");
    }

    /// CLIENT-4: nothing in a quoted string ends an element or a pair (RFC 7239 §4): a proxy quotes
    /// what the client sent.
    #[test]
    fn a_quoted_string_names_no_client() {
        let peer = "10.0.0.1".parse().unwrap();
        for element in [
            r#"for=203.0.113.7;host="a,for=198.51.100.1""#,
            r#"host="a;for=198.51.100.1";for=203.0.113.7"#,
            r#"for=203.0.113.7;host="a\",for=198.51.100.1;by=\"""#,
            r#"for=203.0.113.7;host="a\\""#,
            // The client's own element is left open; what the proxy added stands.
            r#"for="198.51.100.1, for=203.0.113.7"#,
        ] {
            let lines = headers(&[("forwarded", element)]);
            let found = identify(peer, true, "http", &trusted(), &FORWARDED, &lines);
            assert_eq!(found.address.to_string(), "203.0.113.7", "{element}");
        }
    }

    /// CLIENT-4: another header can be named, `Forwarded` among them.
    #[test]
    fn another_header_can_be_named() {
        let peer = "10.0.0.1".parse().unwrap();
        let lines = headers(&[
            (
                "forwarded",
                r#"for="[2001:db8::1]:80";proto=https, for=10.0.0.4"#,
            ),
            ("cf-connecting-ip", "203.0.113.7"),
        ]);
        let with = |name: &str| {
            identify(
                peer,
                true,
                "http",
                &trusted(),
                &HeaderName::try_from(name).unwrap(),
                &lines,
            )
            .address
            .to_string()
        };
        assert_eq!(with("forwarded"), "2001:db8::1");
        assert_eq!(with("cf-connecting-ip"), "203.0.113.7");
    }

    /// CLIENT-8: the client is the entry of this number from the end, whatever it says, and the
    /// peer where there are fewer entries or that one is no address.
    #[test]
    fn hops_count_the_entries_from_the_end() {
        let client = |hops: u8, header: &str, lines: &[&str]| {
            let header = HeaderName::try_from(header).unwrap();
            let mut map = HeaderMap::new();
            for line in lines {
                map.append(header.clone(), HeaderValue::from_str(line).unwrap());
            }
            let settings = IdentitySettings {
                trusted_proxies: NetSet::default(),
                header,
                trusted_hops: Some(hops),
                application_field: None,
                strip: Vec::new(),
            };
            let sender = Sender {
                peer: "198.51.100.1".parse().unwrap(),
                trusted: true,
                is_proxy: true,
                scheme: "http",
            };
            let found = super::identify(sender, &settings, &map, Known::of(&map));
            assert_eq!(found.is_proxy, found.address == sender.peer);
            found.address.to_string()
        };
        let x = "x-forwarded-for";
        assert_eq!(client(1, x, &["192.0.2.66, 203.0.113.7"]), "203.0.113.7");
        assert_eq!(client(2, x, &["192.0.2.66, 203.0.113.7"]), "192.0.2.66");
        assert_eq!(
            client(2, x, &["192.0.2.66", "203.0.113.7, 10.0.0.2"]),
            "203.0.113.7"
        );
        assert_eq!(client(3, x, &["192.0.2.66, 203.0.113.7"]), "198.51.100.1");
        assert_eq!(client(1, x, &[]), "198.51.100.1");
        assert_eq!(client(2, x, &["203.0.113.7, , 10.0.0.2"]), "198.51.100.1");
        assert_eq!(client(2, x, &["203.0.113.7, x, 10.0.0.2"]), "198.51.100.1");
        assert_eq!(client(1, x, &["203.0.113.7:4711"]), "203.0.113.7");
        let forwarded = [r#"for=192.0.2.66, for="[2001:db8::1]:80";proto=https, for=10.0.0.4"#];
        assert_eq!(client(2, "forwarded", &forwarded), "2001:db8::1");
        assert_eq!(
            client(1, "cf-connecting-ip", &["203.0.113.7"]),
            "203.0.113.7"
        );
    }

    /// RULE-8: what browsers say of a page of another site is seen, and nothing else.
    #[test]
    fn another_site_is_seen() {
        let says = |value: &str| Known::of(&headers(&[("sec-fetch-site", value)])).other_site;
        assert!(says("cross-site") && says("same-site"));
        for value in ["same-origin", "none", "", "cross-site2", "Cross-Site"] {
            assert!(!says(value), "{value}");
        }
        assert!(!Known::of(&headers(&[("content-length", "same-site")])).other_site);
    }

    proptest! {
        /// CLIENT-3: whatever a header holds, nothing panics, and an address comes out.
        #[test]
        fn any_bytes_give_an_address(value in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(value) = HeaderValue::from_bytes(&value) {
                let mut map = HeaderMap::new();
                map.append(X_FORWARDED_FOR, value.clone());
                map.append(FORWARDED, value);
                let peer = "10.0.0.1".parse().unwrap();
                identify(peer, true, "http", &trusted(), &X_FORWARDED_FOR, &map);
                identify(peer, true, "http", &trusted(), &FORWARDED, &map);
            }
        }

        /// CLIENT-3 against a naive twin over chains of good and bad entries.
        #[test]
        fn the_walk_agrees_with_its_naive_twin(chain in prop::collection::vec(prop_oneof![Just("10.0.0.5"), Just("203.0.113.7"), Just("2001:db8::9"), Just("junk"), Just("")], 0..80)) {
            let twin = {
                let mut found = "10.0.0.1";
                for (read, entry) in chain.iter().rev().enumerate() {
                    if read == 64 || entry.parse::<IpAddr>().is_err() { break; }
                    found = entry;
                    if !entry.starts_with("10.") { break; }
                }
                found
            };
            if !chain.is_empty() {
                prop_assert_eq!(client(&[("x-forwarded-for", &chain.join(","))]), twin);
            }
        }
    }
}

#[cfg(test)]
mod forgotten_proxy_tests {
    use super::*;

    /// CLIENT-7: a hundred forwarded clients of one untrusted peer within a minute warn, once an
    /// hour.
    #[test]
    fn a_forgotten_proxy_is_noticed_once_an_hour() {
        let spared = Arc::new(Spared::default());
        let noticed = ForgottenProxy::new(Arc::clone(&spared));
        let peer = "198.51.100.1".parse().unwrap();
        let send = |last: u32, at| {
            let chain = format!("203.0.{}.{}", last / 256, last % 256);
            noticed.is_due(peer, chain.as_bytes(), at)
        };
        let start = 1_795_276_800_000;
        assert_eq!((0..99).filter(|last| send(*last, start)).count(), 0);
        assert!(!send(98, start), "the same client again is no further one");
        assert_eq!(spared.forwarder_count(), 0);
        assert!(send(99, start));
        assert_eq!(spared.forwarder_count(), 1, "ALIVE-5");
        assert!(!send(100, start));
        assert_eq!(
            (0..200)
                .filter(|last| send(*last, start + MINUTE_MS))
                .count(),
            0,
            "not twice an hour"
        );
        assert_eq!(
            (0..200).filter(|last| send(*last, start + HOUR_MS)).count(),
            1
        );
    }
}
