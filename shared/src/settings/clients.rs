//! Who a client is, and which netblocks and paths are treated apart.

use std::net::IpAddr;

use http::HeaderName;
use http::header::HOST;

use super::kind::{Fault, Kind, each_entry, nets, parse_header_name, whole};
use super::row::{Row, row};
use crate::netblock::NetSet;
use crate::path;

/// Names in `WAF_STRIP_REQUEST_HEADERS` at most: each field of a request is compared with those of
/// its length.
const MAX_STRIPPED: usize = 64;

/// Who a client is.
#[derive(Clone, Debug)]
pub struct IdentitySettings {
    /// `WAF_TRUSTED_PROXIES`
    pub trusted_proxies: NetSet,
    /// `WAF_CLIENT_IP_HEADER`
    pub header: HeaderName,
    /// `WAF_STRIP_REQUEST_HEADERS`
    pub strip: Vec<HeaderName>,
    /// `WAF_TRUSTED_HOPS`, instead of the former.
    pub trusted_hops: Option<u8>,
    /// `WAF_APPLICATION_FIELD`
    pub application_field: Option<HeaderName>,
}

impl IdentitySettings {
    /// Whether what this peer says of clients is believed (CLIENT-2, CLIENT-8).
    pub fn trusts(&self, peer: IpAddr) -> bool {
        self.trusted_hops.is_some() || self.trusted_proxies.contains(peer)
    }
}

impl Default for IdentitySettings {
    fn default() -> Self {
        Self {
            trusted_proxies: NetSet::default(),
            header: HeaderName::from_static("x-forwarded-for"),
            trusted_hops: None,
            application_field: None,
            strip: Vec::new(),
        }
    }
}

/// Netblocks and paths that are treated apart.
#[derive(Clone, Debug, Default)]
pub struct ListSettings {
    /// `WAF_ALLOW_NETS`
    pub allow_nets: NetSet,
    /// `WAF_DENY_NETS`
    pub deny_nets: NetSet,
    /// `WAF_EXEMPT_PATHS`: normalised prefixes, without a trailing slash
    pub exempt_paths: Vec<String>,
}

pub(super) fn identity_rows() -> Vec<Row<IdentitySettings>> {
    vec![
        row(
            "WAF_TRUSTED_PROXIES",
            "",
            nets("whoever connects from there chooses the client that is charged"),
            |identity: &mut IdentitySettings| &mut identity.trusted_proxies,
            "Peers whose forwarding headers are believed; empty: nobody's.",
        )
        .live()
        .essential(),
        row(
            "WAF_TRUSTED_HOPS",
            "off",
            whole(1..=64).or_off(),
            |identity: &mut IdentitySettings| &mut identity.trusted_hops,
            "Instead of WAF_TRUSTED_PROXIES: so many proxies stand in front, the peer is the nearest, and the client is the entry of this number from the end. Every peer is believed: weir has to be reachable through the proxies alone.",
        )
        .live(),
        row(
            "WAF_CLIENT_IP_HEADER",
            "X-Forwarded-For",
            header_name(),
            |identity: &mut IdentitySettings| &mut identity.header,
            "The header in which trusted proxies name the client.",
        )
        .live(),
        row(
            "WAF_STRIP_REQUEST_HEADERS",
            "CF-Connecting-IP,True-Client-IP,Client-IP,Fastly-Client-IP,X-Client-IP,X-Original-URL,X-Rewrite-URL",
            stripped(),
            |identity: &mut IdentitySettings| &mut identity.strip,
            "Further headers that are taken from requests of untrusted peers.",
        )
        .live(),
        row(
            "WAF_APPLICATION_FIELD",
            "off",
            application_field().or_off(),
            |identity: &mut IdentitySettings| &mut identity.application_field,
            "A field of the application's answers in which it says what becomes of the client: count=NAME, ban, ban=DURATION, trust=DURATION. It reaches no client. Leave it off where users of the application can set its header fields.",
        )
        .live(),
    ]
}

pub(super) fn list_rows() -> Vec<Row<ListSettings>> {
    vec![
        row(
            "WAF_ALLOW_NETS",
            "",
            nets("no client from there is checked"),
            |lists: &mut ListSettings| &mut lists.allow_nets,
            "Clients that skip every check.",
        )
        .live()
        .essential(),
        row(
            "WAF_DENY_NETS",
            "",
            nets("every client from there is refused"),
            |lists: &mut ListSettings| &mut lists.deny_nets,
            "Clients that are refused with WAF_DENY_RESPONSE.",
        )
        .live()
        .essential(),
        row(
            "WAF_EXEMPT_PATHS",
            "",
            path_prefixes(),
            |lists: &mut ListSettings| &mut lists.exempt_paths,
            "Paths that no limit counts, matched by whole segments.",
        )
        .live(),
    ]
}

fn header_name() -> Kind<HeaderName> {
    Kind::new(
        "a header name such as X-Forwarded-For, Forwarded or X-Real-IP",
        |text| parse_header_name(text).ok_or("is not a header name"),
    )
}

/// Response fields of HTTP and of the web platform, which answers have for something else: kept
/// from clients they would be missed, and what they say is no word of the application. With those
/// of [`OF_OTHERS_BEGIN`].
const OF_OTHERS: [&str; 58] = [
    "age",
    "allow",
    "alt-svc",
    "authentication-info",
    "cache-control",
    "cache-status",
    "cdn-cache-control",
    "clear-site-data",
    "connection",
    "date",
    "deprecation",
    "etag",
    "expect-ct",
    "expires",
    "host",
    "keep-alive",
    "last-modified",
    "link",
    "location",
    "nel",
    "origin-agent-cluster",
    "p3p",
    "permissions-policy",
    "pragma",
    "preference-applied",
    "priority",
    "ratelimit",
    "ratelimit-policy",
    "referrer-policy",
    "refresh",
    "report-to",
    "reporting-endpoints",
    "retry-after",
    "server",
    "server-timing",
    "set-cookie",
    "sourcemap",
    "speculation-rules",
    "strict-transport-security",
    "sunset",
    "te",
    "timing-allow-origin",
    "tk",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "vary",
    "via",
    "warning",
    "www-authenticate",
    "x-content-type-options",
    "x-dns-prefetch-control",
    "x-frame-options",
    "x-powered-by",
    "x-request-id",
    "x-robots-tag",
    "x-ua-compatible",
    "x-xss-protection",
];

/// What further ones begin with.
const OF_OTHERS_BEGIN: [&str; 6] = [
    "accept-",
    "access-control-",
    "content-",
    "cross-origin-",
    "proxy-",
    "sec-",
];

fn application_field() -> Kind<HeaderName> {
    Kind::new(
        "a header name such as X-Waf that answers have for nothing else",
        |text| {
            let name = parse_header_name(text).ok_or("is not a header name")?;
            let text = name.as_str();
            if OF_OTHERS.contains(&text) || OF_OTHERS_BEGIN.iter().any(|one| text.starts_with(one))
            {
                return Err("is a response field that answers have for something else");
            }
            Ok(name)
        },
    )
}

fn stripped() -> Kind<Vec<HeaderName>> {
    Kind::new(
        format!("a list of at most {MAX_STRIPPED} header names other than Host, or off"),
        |text| {
            let mut names = Vec::new();
            if text == "off" {
                return Ok(names);
            }
            each_entry(text, |entry| {
                let wrong = || format!("has {entry:?}, which is not a header name");
                let name = parse_header_name(entry).ok_or_else(wrong)?;
                if name == HOST {
                    return Err(format!("has {entry:?}, which every request needs"));
                }
                if !names.contains(&name) {
                    names.push(name);
                }
                Ok(())
            })?;
            match names.len() {
                count if count > MAX_STRIPPED => Err(Fault::from(format!("has {count} names"))),
                _ => Ok(names),
            }
        },
    )
}

fn path_prefixes() -> Kind<Vec<String>> {
    Kind::new(
        "a list of path prefixes such as /static,/favicon.ico",
        |text| {
            let mut prefixes = Vec::new();
            each_entry(text, |entry| {
                let wrong = || format!("has {entry:?}, which is not a path prefix");
                prefixes.push(path_prefix(entry).ok_or_else(wrong)?);
                Ok(())
            })?;
            Ok::<_, Fault>(prefixes)
        },
    )
}

/// A prefix for [`crate::path::is_exempt`]: normalised, without a trailing slash.
fn path_prefix(text: &str) -> Option<String> {
    let strange = |c: char| c.is_control() || c.is_whitespace() || matches!(c, '?' | '#' | '\\');
    if !text.starts_with('/') || text.contains(strange) {
        return None;
    }
    Some(path::prefix(text))
}
