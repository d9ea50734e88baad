//! What happens to header fields on their way through (CLIENT-4..6, RFC 9110 §7.6).
//!
//! Hop-by-hop fields, and those that `Connection` names, go first; only then are ours added, so
//! that no client can have ours stripped. Of the trailer fields none goes on whose name would be
//! removed or replaced as a header field, in either spelling of dash and underscore (FORWARD-1,
//! RFC 9110 §6.5.1).

use std::sync::Arc;

use http::header::{
    AUTHORIZATION, CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, FORWARDED, HOST, HeaderName,
    MAX_FORWARDS, SET_COOKIE, TE, TRAILER, UPGRADE, WWW_AUTHENTICATE,
};
use http::{HeaderMap, HeaderValue, Method, Version};
use weir_shared::lookup::{Lookup, Origin};
use weir_shared::rules::is_read_as;

use crate::message::{Fields, Form, Head, is};
use crate::request::identity::{X_FORWARDED_FOR, X_FORWARDED_PROTO, X_REQUEST_ID};

const X_REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");
/// `X-Client-ASN`
const X_CLIENT_ASN: HeaderName = HeaderName::from_static("x-client-asn");
/// `X-Client-Country`
const X_CLIENT_COUNTRY: HeaderName = HeaderName::from_static("x-client-country");
const WEBSOCKET: HeaderValue = HeaderValue::from_static("websocket");
const UPGRADE_TOKEN: HeaderValue = HeaderValue::from_static("upgrade");

/// The content of the fields that the proxy adds.
pub struct ProxyFields<'a> {
    /// The peer of the connection, as a header value.
    pub peer: &'a HeaderValue,
    /// Whether the peer's forwarding fields are believed.
    pub trusted: bool,
    /// Fields that are passed on from trusted peers only.
    pub stripped: &'a Stripped,
    /// `http` or `https`
    pub scheme: &'static str,
    /// `X-Request-ID`
    pub request_id: &'a HeaderValue,
    /// `Host` for a client that sent none.
    pub upstream_host: &'a HeaderValue,
}

/// Fields that no untrusted peer passes on (FORWARD-2, FORWARD-8): those that
/// `WAF_STRIP_REQUEST_HEADERS` and `WAF_CLIENT_IP_HEADER` name.
#[derive(Clone, Debug)]
pub struct Stripped {
    /// A bit for each length of a name: most fields of a request are none by it.
    lengths: u64,
    /// As [`read_as`] gives them.
    names: Arc<[String]>,
}

impl Stripped {
    /// The fields of these names.
    pub fn new<'a>(names: impl IntoIterator<Item = &'a HeaderName>) -> Self {
        let names = names.into_iter();
        let names: Arc<[String]> = names.map(|name| read_as(name.as_str())).collect();
        Self {
            lengths: names.iter().fold(0, |all, name| all | length_bit(name)),
            names,
        }
    }

    /// Whether a field is one of them to some application.
    pub fn has(&self, name: &str) -> bool {
        self.lengths & length_bit(name) != 0 && self.names.iter().any(|each| is_read_as(name, each))
    }
}

const fn length_bit(name: &str) -> u64 {
    let length = name.len();
    1 << (if length < 63 { length } else { 63 })
}

/// A field's value as a number, if it is one.
pub fn number(value: impl AsRef<[u8]>) -> Option<u64> {
    std::str::from_utf8(value.as_ref().trim_ascii())
        .ok()?
        .parse()
        .ok()
}

/// A number in plain digits (RFC 9110 §8.6) that is less than 2^63: a sum with it cannot overflow,
/// and readers with signed numbers see no other length.
pub fn decimal(value: &[u8]) -> Option<u64> {
    if value.is_empty() {
        return None;
    }
    let number = value.iter().try_fold(0_u64, |number, byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    })?;
    i64::try_from(number).is_ok().then_some(number)
}

/// Whether the bytes can be a `Host` (RFC 9110 §7.2): empty, or a reg-name or IP-literal with an
/// optional port.
pub fn is_host(host: &[u8]) -> bool {
    let is_of_host = |byte: &u8| OF_HOST.get(usize::from(*byte)) == Some(&true);
    host.iter().all(is_of_host)
}

/// The bytes of a `Host`: a look for each costs less than comparisons.
#[expect(clippy::indexing_slicing, reason = "a byte below 127")]
const OF_HOST: [bool; 256] = {
    let mut of_host = [false; 256];
    let mut byte = 0x21_u8;
    while byte < 0x7f {
        let is_mark = matches!(
            byte,
            b'!' | b'$'..=b'.' | b':' | b';' | b'=' | b'[' | b']' | b'_' | b'~'
        );
        of_host[byte as usize] = is_mark || byte.is_ascii_alphanumeric();
        byte += 1;
    }
    of_host
};

/// Whether a request asks for a WebSocket (RFC 6455 §4.1).
pub fn asks_for_websocket(head: &Head<impl Form>) -> bool {
    // Every other request costs one look.
    head.known.upgrade
        && head.method == Method::GET
        && head.version == Version::HTTP_11
        && upgrades_to_websocket(head)
}

/// Whether the fields of a request, or of an answer of 101, are those of a WebSocket.
pub fn upgrades_to_websocket(fields: &impl Fields) -> bool {
    let is_websocket = |value: &[u8]| value.trim_ascii().eq_ignore_ascii_case(b"websocket");
    fields.values_of(&UPGRADE).next().is_some_and(is_websocket)
        && names(fields, &CONNECTION, "upgrade")
}

/// Whether a client takes trailer fields (RFC 9110 §6.5.1).
pub fn takes_trailers(client: &impl Fields) -> bool {
    names(client, &TE, "trailers")
}

/// Whether a list field names the token.
fn names(headers: &impl Fields, field: &HeaderName, token: &str) -> bool {
    headers.values_of(field).any(|line| has_token(line, token))
}

/// Whether a line of a list field names the token.
pub fn has_token(line: &[u8], token: &str) -> bool {
    line.split(|byte| *byte == b',')
        .any(|each| each.trim_ascii().eq_ignore_ascii_case(token.as_bytes()))
}

/// The fields that the application gets, from those of the client, one by one to `put`. Those that
/// say how the body is framed are not among them: who frames the body writes them. `nominated` are
/// those that `Connection` names.
///
/// The client's own fields are kept as they came, for the log, a ban's notes and a safe retry, and
/// no map is made of them.
// long: a flat list of what happens to each field, and of those that are added
pub fn to_upstream(
    client: &impl Fields,
    nominated: &[HeaderName],
    ours: &ProxyFields<'_>,
    websocket: bool,
    mut put: impl FnMut(&str, &[u8]),
) {
    let (mut host, mut te, mut chain) = (None, false, false);
    let (mut proto, mut forwarded_host) = (false, false);
    for (name, value) in client.fields() {
        let kind = Kind::of(name);
        let passes = match kind {
            Kind::Other => true,
            Kind::Host => {
                host = Some(value);
                true
            }
            Kind::Te => {
                te = true;
                false
            }
            // Replaced by a chain that ends with the peer, whatever `Connection` names.
            Kind::ForwardedFor => {
                chain = true;
                false
            }
            Kind::Removed => false,
            Kind::ForwardedProto | Kind::ForwardedHost | Kind::Forwarding => {
                ours.trusted && is_plainly_spelt(name)
            }
        };
        if !passes
            || (!ours.trusted && ours.stripped.has(name))
            || nominated
                .iter()
                .any(|each| name.eq_ignore_ascii_case(each.as_str()))
        {
            continue;
        }
        proto |= kind == Kind::ForwardedProto;
        forwarded_host |= kind == Kind::ForwardedHost;
        put(name, value);
    }
    if host.is_none() {
        // HTTP/1.0 has no Host, what we send must (RFC 9112 §3.2).
        put(HOST.as_str(), ours.upstream_host.as_bytes());
    }
    if websocket {
        put(CONNECTION.as_str(), UPGRADE_TOKEN.as_bytes());
        put(UPGRADE.as_str(), WEBSOCKET.as_bytes());
    } else if te && takes_trailers(client) {
        put(TE.as_str(), b"trailers");
        put(CONNECTION.as_str(), b"te");
    }
    if ours.trusted && chain {
        put(X_FORWARDED_FOR.as_str(), &appended(client, ours.peer));
    } else {
        put(X_FORWARDED_FOR.as_str(), ours.peer.as_bytes());
    }
    if !proto {
        put(X_FORWARDED_PROTO.as_str(), ours.scheme.as_bytes());
    }
    if let (Some(host), false) = (host, forwarded_host) {
        put("x-forwarded-host", host);
    }
    put(X_REQUEST_ID.as_str(), ours.request_id.as_bytes());
}

/// The fields that `Connection` names, which do not go on.
pub fn nominated_by_client(client: &impl Fields) -> Vec<HeaderName> {
    let name = |(name, _): (&str, &[u8])| HeaderName::from_bytes(name.as_bytes()).ok();
    let names: Vec<_> = client.fields().filter_map(name).collect();
    nominated(client.values_of(&CONNECTION), names.iter())
}

/// Tells the application what is known of the client (LOOKUP-6), as it counts here: the AS number
/// of a client without a country is unknown (LOOKUP-4). The client's own fields of these names do
/// not go on.
pub fn add_lookup(lookup: Option<&Lookup>, mut put: impl FnMut(&str, &[u8])) {
    let Some(lookup) = lookup else { return };
    let asn = Origin::of(lookup).asn.and(lookup.asn.as_deref());
    for (name, value) in [
        (X_CLIENT_ASN, asn),
        (X_CLIENT_COUNTRY, lookup.country.as_deref()),
    ] {
        let value = value.and_then(|text| HeaderValue::from_str(text).ok());
        if let Some(value) = value {
            put(name.as_str(), value.as_bytes());
        }
    }
}

/// What a field of the client is to who forwards it. To an application that reads other marks as
/// dashes (CGI makes underscores of all of them) a name with them is the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// Nothing special.
    Other,
    Host,
    Te,
    ForwardedFor,
    ForwardedProto,
    ForwardedHost,
    /// Another one that only a trusted peer has a say in.
    Forwarding,
    /// It is of one hop, or ours replaces it.
    Removed,
}

impl Kind {
    /// The length and the first letter tell most names apart at once.
    fn of(name: &str) -> Self {
        let removed = |is_removed: bool| match is_removed {
            true => Self::Removed,
            false => Self::Other,
        };
        let first = name.as_bytes().first().copied().unwrap_or_default();
        match (name.len(), first | 0x20) {
            (_, b'x') => Self::of_x(name),
            (2, b't') if is(name, b"te") => Self::Te,
            (4, b'h') if is(name, b"host") => Self::Host,
            // The body is asked for when the application is ready to take it; the 100 to the client
            // is sent then.
            (6, b'e') => removed(is(name, b"expect")),
            (9, b'f') if is(name, b"forwarded") => Self::Forwarding,
            (14, b'c') => removed(is_read_as(name, "content-length")),
            (17, b't') => removed(is_read_as(name, "transfer-encoding")),
            _ => removed(is_of_one_hop(name)),
        }
    }

    fn of_x(name: &str) -> Self {
        if is_read_as_forwarding(name) {
            return match name.len() {
                15 if is(name, b"x-forwarded-for") => Self::ForwardedFor,
                16 if is(name, b"x-forwarded-host") => Self::ForwardedHost,
                17 if is(name, b"x-forwarded-proto") => Self::ForwardedProto,
                _ => Self::Forwarding,
            };
        }
        let is_ours = match name.len() {
            12 => is_read_as(name, "x-client-asn") || is_read_as(name, "x-request-id"),
            16 => is_read_as(name, "x-client-country"),
            _ => false,
        };
        match is_ours {
            true => Self::Removed,
            false => Self::Other,
        }
    }
}

/// Makes the fields of the application's answer those that the client gets.
pub fn to_downstream(headers: &mut HeaderMap, websocket: bool) {
    strip_hop_by_hop(headers);
    if websocket {
        headers.insert(CONNECTION, UPGRADE_TOKEN);
        headers.insert(UPGRADE, WEBSOCKET);
    }
}

/// The fields among `names` that lines of `Connection` name (CLIENT-6, RFC 9110 §7.6.1), each once:
/// thousands of tokens cost one look each and no memory (CONN-9).
pub fn nominated<'a>(
    lines: impl Iterator<Item = &'a [u8]>,
    names: impl Iterator<Item = &'a HeaderName>,
) -> Vec<HeaderName> {
    let mut tokens = lines.flat_map(naming_tokens).peekable();
    if tokens.peek().is_none() {
        return Vec::new();
    }
    let mut left: HeaderMap<HeaderName> = names
        // A message without Host or its length would be another message.
        .filter(|name| **name != HOST && **name != CONTENT_LENGTH)
        .map(|name| (name.clone(), name.clone()))
        .collect();
    tokens.filter_map(|token| left.remove(token)).collect()
}

/// The tokens of a line of `Connection` that name a field; the usual ones name none, or one that is
/// always removed.
pub fn naming_tokens(line: &[u8]) -> impl Iterator<Item = &str> {
    line.split(|byte| *byte == b',')
        .filter_map(|token| std::str::from_utf8(token.trim_ascii()).ok())
        .filter(|token| {
            !["keep-alive", "close", "upgrade", "te", ""]
                .iter()
                .any(|usual| token.eq_ignore_ascii_case(usual))
        })
}

/// Whether a field is always of one hop (RFC 9110 §7.6.1). The length and the first letter tell
/// most names apart at once.
#[inline(always)]
pub fn is_of_one_hop(name: &str) -> bool {
    let first = name.as_bytes().first().copied().unwrap_or_default();
    match (name.len(), first | 0x20) {
        (2, b't') => is(name, b"te"),
        (7, b'u') => is(name, b"upgrade"),
        (10, b'c') => is(name, b"connection"),
        (10, b'k') => is(name, b"keep-alive"),
        (16, b'p') => is(name, b"proxy-connection"),
        (17, b't') => is(name, b"transfer-encoding"),
        (18, b'p') => is(name, b"proxy-authenticate"),
        (19, b'p') => is(name, b"proxy-authorization"),
        _ => false,
    }
}

fn strip_hop_by_hop(headers: &mut HeaderMap) {
    let is_of_one_hop = |name: &&HeaderName| is_of_one_hop(name.as_str());
    if headers.keys().find(is_of_one_hop).is_none() {
        return;
    }
    for name in nominated(headers.values_of(&CONNECTION), headers.keys()) {
        headers.remove(name);
    }
    // Most of these answers have one: each that is found costs a look over the names.
    while let Some(name) = headers.keys().find(is_of_one_hop).cloned() {
        headers.remove(name);
    }
}

/// A forwarding field that an untrusted peer has no say in.
pub fn is_forwarding(name: &str) -> bool {
    name.starts_with("x-forwarded") || name == FORWARDED.as_str() || name == X_REAL_IP.as_str()
}

/// A name as such an application reads it.
pub fn read_as(name: &str) -> String {
    let is_mark = |letter: char| !letter.is_ascii_alphanumeric();
    name.to_ascii_lowercase().replace(is_mark, "-")
}

/// Whether a name has no other marks than dashes.
fn is_plainly_spelt(name: &str) -> bool {
    name.bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

/// Whether a name is that of a forwarding field which begins with an x to such an application.
fn is_read_as_forwarding(name: &str) -> bool {
    const BEGIN: &str = "x-forwarded";
    let begin = name.get(..BEGIN.len());
    begin.is_some_and(|begin| is_read_as(begin, BEGIN)) || is_read_as(name, X_REAL_IP.as_str())
}

/// A trusted peer's chain with the peer added, as one line. Joined values of valid lines are valid.
fn appended(client: &impl Fields, peer: &HeaderValue) -> Vec<u8> {
    let mut chain = Vec::with_capacity(64);
    for line in client.values_of(&X_FORWARDED_FOR) {
        chain.extend_from_slice(line);
        chain.extend_from_slice(b", ");
    }
    chain.extend_from_slice(peer.as_bytes());
    chain
}

/// Which trailer fields of a message go on.
pub struct TrailerFilter {
    /// The lines of `Connection` that name fields, with dashes for all other marks; usually none.
    connection: Vec<Vec<u8>>,
    /// Further fields that end here.
    stripped: Option<Stripped>,
}

impl TrailerFilter {
    /// For a message with these fields. `stripped` are the fields of a request that an untrusted
    /// peer has no say in, or the field of an answer that reaches no client (APP-1).
    pub fn of(fields: &impl Fields, stripped: Option<&Stripped>) -> Self {
        let dashed = |byte: &u8| match byte {
            b',' | b' ' | b'\t' => *byte,
            byte if byte.is_ascii_alphanumeric() => *byte,
            _ => b'-',
        };
        let lines = fields.values_of(&CONNECTION);
        let naming = lines.filter(|line| naming_tokens(line).next().is_some());
        Self {
            connection: naming
                .map(|line| line.iter().map(dashed).collect())
                .collect(),
            stripped: stripped.cloned(),
        }
    }

    /// Removes what does not go on.
    pub fn apply(&self, trailers: &mut HeaderMap) {
        let dashed = |name: &HeaderName| {
            HeaderName::try_from(read_as(name.as_str())).unwrap_or_else(|_| name.clone())
        };
        let names: Vec<(HeaderName, HeaderName)> = trailers
            .keys()
            .map(|name| (name.clone(), dashed(name)))
            .collect();
        let nominated = nominated(
            self.connection.iter().map(Vec::as_slice),
            names.iter().map(|(_, dashed)| dashed),
        );
        for (name, dashed) in names {
            if self.stops(&dashed) || nominated.contains(&dashed) {
                trailers.remove(name);
            }
        }
    }

    /// Whether a field ends here, its name written with dashes.
    fn stops(&self, name: &HeaderName) -> bool {
        is_of_one_hop(name.as_str())
            || is_forwarding(name.as_str())
            || (self.stripped.as_ref()).is_some_and(|stripped| stripped.has(name.as_str()))
            || [
                // Ours.
                X_CLIENT_ASN,
                X_CLIENT_COUNTRY,
                X_REQUEST_ID,
                // Framing and routing (RFC 9110 §6.5.1).
                CONTENT_LENGTH,
                TRAILER,
                EXPECT,
                HOST,
                MAX_FORWARDS,
                // Authentication.
                AUTHORIZATION,
                WWW_AUTHENTICATE,
                COOKIE,
                SET_COOKIE,
            ]
            .contains(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// RFC 9110 §7.2: the bytes of a reg-name, an IP-literal and a port make a host, and no others.
    #[test]
    fn a_host_has_no_other_bytes() {
        for byte in 0..=u8::MAX {
            let is_mark = b"-._~%!$&'()*+,;=:[]".contains(&byte);
            assert_eq!(
                is_host(&[b'a', byte]),
                is_mark || byte.is_ascii_alphanumeric()
            );
        }
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

    /// A head of one field.
    struct One<'a>(&'a str);

    impl Fields for One<'_> {
        fn values_of(&self, name: &HeaderName) -> impl DoubleEndedIterator<Item = &[u8]> {
            let is_it = self.0.eq_ignore_ascii_case(name.as_str());
            is_it.then_some(&b"marked"[..]).into_iter()
        }

        fn fields(&self) -> impl Iterator<Item = (&str, &[u8])> {
            std::iter::once((self.0, &b"marked"[..]))
        }
    }

    fn stripped() -> Stripped {
        let settings = weir_shared::settings::Settings::default();
        let identity = &settings.identity;
        Stripped::new(identity.strip.iter().chain([&identity.header]))
    }

    fn sent(lines: &[(&str, &str)], trusted: bool) -> HeaderMap {
        sent_as(lines, trusted, false)
    }

    fn sent_as(lines: &[(&str, &str)], trusted: bool, websocket: bool) -> HeaderMap {
        let (peer, request_id, upstream_host) = (
            HeaderValue::from_static("198.51.100.1"),
            HeaderValue::from_static("id-1"),
            HeaderValue::from_static("upstream"),
        );
        let mut map = HeaderMap::new();
        let client = headers(lines);
        to_upstream(
            &client,
            &nominated_by_client(&client),
            &ProxyFields {
                peer: &peer,
                trusted,
                stripped: &stripped(),
                scheme: "http",
                request_id: &request_id,
                upstream_host: &upstream_host,
            },
            websocket,
            |name, value| {
                let value = HeaderValue::from_bytes(value).unwrap();
                map.append(HeaderName::try_from(name).unwrap(), value);
            },
        );
        map
    }

    /// CLIENT-6: a client cannot have ours stripped by naming them in `Connection`.
    #[test]
    fn hop_by_hop_goes_before_ours_are_added() {
        let map = sent(
            &[
                ("host", "example.org"),
                (
                    "connection",
                    "close, X-Forwarded-For, x-request-id, X-Own, content-length",
                ),
                ("x-own", "1"),
                ("keep-alive", "timeout=5"),
                ("te", "gzip"),
                ("upgrade", "h2c"),
                ("proxy-connection", "keep-alive"),
                ("content-length", "3"),
                ("accept", "*/*"),
            ],
            false,
        );
        let mut names: Vec<_> = map.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(
            names,
            [
                "accept",
                "host",
                "x-forwarded-for",
                "x-forwarded-host",
                "x-forwarded-proto",
                "x-request-id"
            ]
        );
    }

    /// CLIENT-5, FORWARD-8: an untrusted peer's forwarding fields are replaced, never passed on,
    /// nor are fields in which CDNs name the client; nor twins with other marks.
    #[test]
    fn forged_fields_never_arrive() {
        let map = sent(
            &[
                ("host", "example.org"),
                ("x-forwarded-for", "203.0.113.7"),
                ("x-forwarded-for", "203.0.113.8"),
                ("x-forwarded-port", "443"),
                ("x-forwarded-proto", "https"),
                ("x-forwarded-host", "evil.example"),
                ("forwarded", "for=203.0.113.7"),
                ("x-real-ip", "203.0.113.7"),
                ("x-request-id", "mine"),
                ("x-client-asn", "AS64496"),
                ("x-client-country", "DE"),
                ("x_client_country", "DE"),
                ("transfer_encoding", "chunked"),
                ("x.forwarded.for", "203.0.113.7"),
                ("true-client-ip", "203.0.113.7"),
                ("x!original.url", "/admin"),
                ("x_own", "kept"),
            ],
            false,
        );
        assert_eq!(
            map.get_all(X_FORWARDED_FOR).iter().collect::<Vec<_>>(),
            ["198.51.100.1"]
        );
        assert_eq!(map[X_FORWARDED_PROTO], "http");
        assert_eq!(map["x-forwarded-host"], "example.org");
        assert_eq!(map[X_REQUEST_ID], "id-1");
        assert_eq!(map["x_own"], "kept");
        for gone in [
            "x-forwarded-port",
            "forwarded",
            "x-real-ip",
            "x-client-asn",
            "x-client-country",
            "x_client_country",
            "transfer_encoding",
            "x.forwarded.for",
            "true-client-ip",
            "x!original.url",
        ] {
            assert!(!map.contains_key(gone), "{gone}");
        }
    }

    /// LOOKUP-6, LOOKUP-4: the application is told what is known: without a country nothing is.
    #[test]
    fn the_as_number_of_an_unknown_client_is_not_told() {
        let text = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        for (country, asn, told) in [
            ("DE", "AS64496", vec!["AS64496", "DE"]),
            ("DE", "", vec!["DE"]),
            ("DE", "AS64512", vec!["DE"]),
            ("", "AS64496", vec![]),
        ] {
            let lookup = Lookup {
                country: text(country),
                asn: text(asn),
                as_name: None,
            };
            let mut put = Vec::new();
            add_lookup(Some(&lookup), |_, value| {
                put.push(String::from_utf8(value.to_vec()).unwrap());
            });
            assert_eq!(put, told, "{country} {asn}");
        }
    }

    /// CLIENT-5, FORWARD-8: each spelling of a protected name is dropped, and what is spelt nearly
    /// so is not.
    #[test]
    fn every_spelling_of_a_name_is_known() {
        let of_one_hop = [
            "connection",
            "keep-alive",
            "proxy-authenticate",
            "proxy-authorization",
            "proxy-connection",
            "te",
            "transfer-encoding",
            "upgrade",
        ];
        let naive = |name: &str, trusted: bool| {
            let dashed = name.replace(['_', '.', '!'], "-");
            let stripped = ["cf-connecting-ip", "x-original-url"].contains(&dashed.as_str());
            let forwarding = stripped
                || dashed.starts_with("x-forwarded")
                || ["forwarded", "x-real-ip"].contains(&dashed.as_str());
            let is_alias = name.contains(['_', '.', '!']) && !stripped;
            let exact = HeaderName::try_from(name).unwrap();
            of_one_hop.contains(&exact.as_str())
                || exact == http::header::EXPECT
                || ["content-length", "transfer-encoding", "x-request-id"].contains(&&*dashed)
                || ["x-client-asn", "x-client-country"].contains(&&*dashed)
                || (forwarding && (!trusted || is_alias))
        };
        let peer = HeaderValue::from_static("a");
        let fields = ["cf-connecting-ip", "x-original-url"].map(HeaderName::from_static);
        let stripped = Stripped::new(&fields);
        for known in [
            "connection",
            "keep-alive",
            "proxy-connection",
            "proxy-authenticate",
            "te",
            "upgrade",
            "proxy-authorization",
            "transfer-encoding",
            "content-length",
            "expect",
            "x-request-id",
            "x-client-asn",
            "x-client-country",
            "x-forwarded",
            "x-forwarded-for",
            "x-forwarded-a-b",
            "forwarded",
            "x-real-ip",
            "cf-connecting-ip",
            "x-original-url",
            "x-forwarde",
            "x-real-i",
            "accept",
            "dnt",
        ] {
            let dashes = known.matches('-').count() as u32;
            for spelling in 0..4_u32.pow(dashes) {
                let mut left = spelling;
                let respelt = known.chars().map(|letter| match letter {
                    '-' => {
                        let mark = ['-', '_', '.', '!'][left as usize % 4];
                        left /= 4;
                        mark
                    }
                    letter => letter,
                });
                let respelt: String = respelt.collect();
                for name in [
                    respelt.clone(),
                    format!("{respelt}x"),
                    format!("x{respelt}"),
                ] {
                    for trusted in [false, true] {
                        let ours = ProxyFields {
                            peer: &peer,
                            trusted,
                            stripped: &stripped,
                            scheme: "http",
                            request_id: &peer,
                            upstream_host: &peer,
                        };
                        let dropped = naive(&name, trusted);
                        for spelt in [name.clone(), name.to_ascii_uppercase()] {
                            let mut passes = false;
                            to_upstream(&One(&spelt), &[], &ours, false, |_, value| {
                                passes |= value.starts_with(b"marked");
                            });
                            assert_eq!(!passes, dropped, "{spelt}, trusted: {trusted}");
                        }
                    }
                }
            }
        }
    }

    /// CLIENT-3, CLIENT-5: a trusted peer's chain is kept and the peer added; a client's AS and
    /// country still go.
    #[test]
    fn a_trusted_chain_is_kept_and_extended() {
        let map = sent(
            &[
                ("host", "example.org"),
                ("x-forwarded-for", "203.0.113.7"),
                ("x-forwarded-for", "10.0.0.2"),
                ("x-forwarded-proto", "https"),
                ("x-forwarded-host", "public.example"),
                ("x-client-asn", "AS64496"),
            ],
            true,
        );
        assert_eq!(
            map.get_all(X_FORWARDED_FOR).iter().collect::<Vec<_>>(),
            ["203.0.113.7, 10.0.0.2, 198.51.100.1"]
        );
        assert_eq!(map[X_FORWARDED_PROTO], "https");
        assert_eq!(map["x-forwarded-host"], "public.example");
        assert!(!map.contains_key("x-client-asn"));
    }

    #[test]
    fn a_client_that_takes_trailers_gets_them() {
        let map = sent(&[("host", "a"), ("te", "trailers, deflate")], false);
        assert_eq!(map[TE], "trailers");
        assert_eq!(map[CONNECTION], "te");
    }

    /// CLIENT-6: a `TE` that `Connection` does not name would travel on (RFC 9110 §10.1.4).
    #[test]
    fn a_websocket_asks_for_its_upgrade_alone() {
        let map = sent_as(&[("host", "a"), ("te", "trailers")], false, true);
        assert_eq!(map[CONNECTION], UPGRADE_TOKEN);
        assert!(!map.contains_key(TE));
    }

    /// CONN-9: of any number of names only those of fields that are there are kept, each once.
    #[test]
    fn thousands_of_nominations_are_as_many_as_fields() {
        let names: Vec<_> = (0..8_000)
            .map(|number| format!("x-{}", number % 4_000))
            .collect();
        let map = headers(&[
            ("connection", &names.join(",")),
            ("host", "a"),
            ("X-17", "1"),
            ("x-3999", "1"),
            ("x-own", "1"),
        ]);
        let found = nominated(map.values_of(&CONNECTION), map.keys());
        assert_eq!(found, ["x-17", "x-3999"]);
    }

    #[test]
    fn only_a_whole_websocket_handshake_is_one() {
        let asks = |fields: &str| {
            let bytes = format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
            let mut space = [const { std::mem::MaybeUninit::uninit() }; 100];
            match crate::http1::request::parse(bytes.as_bytes(), &mut space) {
                Ok(Some((head, _))) => asks_for_websocket(&head),
                _ => panic!("no head: {fields:?}"),
            }
        };
        assert!(asks(
            "connection: keep-alive, Upgrade\r\nupgrade: WebSocket\r\n"
        ));
        assert!(!asks("connection: Upgrade\r\nupgrade: h2c\r\n"));
        assert!(!asks("upgrade: websocket\r\n"));
    }

    proptest! {
        /// CLIENT-5, CLIENT-6: whatever a client nominates or pretends, our four fields arrive once
        /// and are ours.
        #[test]
        fn ours_always_arrive(names in prop::collection::vec(prop_oneof![Just("x-forwarded-for"), Just("x-request-id"), Just("X-Forwarded-Host"), Just("host"), Just("connection"), Just("a")], 0..12), nominated in prop::collection::vec("[a-z-]{1,16}|x-forwarded-for|x-request-id|host", 0..6)) {
            let mut lines: Vec<(String, String)> = names.into_iter().map(|name| (name.to_owned(), "forged".to_owned())).collect();
            lines.push(("connection".to_owned(), nominated.join(",")));
            let lines: Vec<(&str, &str)> = lines.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
            let map = sent(&lines, false);
            prop_assert_eq!(map.get_all(X_FORWARDED_FOR).iter().collect::<Vec<_>>(), ["198.51.100.1"]);
            prop_assert_eq!(map.get_all(X_REQUEST_ID).iter().collect::<Vec<_>>(), ["id-1"]);
            prop_assert!(!map.contains_key(CONNECTION));
        }
    }
}
