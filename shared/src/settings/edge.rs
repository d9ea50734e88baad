//! What is spoken where the service listens: TLS and its certificates (EDGE-2).

use std::path::PathBuf;

use super::kind::{Kind, boolean, entries, word};
use super::row::{Row, row};

/// What is spoken where the service listens.
#[derive(Clone, Debug, Default)]
pub struct EdgeSettings {
    /// `WAF_TLS_CERT`
    pub certificates: Vec<PathBuf>,
    /// `WAF_TLS_KEY`: as many
    pub keys: Vec<PathBuf>,
    /// `WAF_PROXY_PROTOCOL`
    pub proxy_protocol: bool,
    /// `WAF_PROXY_PROTOCOL_LOCAL`
    pub proxy_protocol_local: LocalIs,
    /// `WAF_REDIRECT_HTTP`
    pub redirect_http: bool,
    /// `WAF_H2C`
    pub h2c: bool,
}

/// `WAF_PROXY_PROTOCOL_LOCAL`: a connection whose PROXY header names no client (EDGE-4).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LocalIs {
    /// The proxy's own, and it is not believed on what it says of clients.
    #[default]
    Peer,
    /// The proxy's own, and it is believed.
    Trusted,
}

/// Certificates at most: each handshake may look at the name of each.
const MAX_CERTIFICATES: usize = 1000;

pub(super) fn rows() -> Vec<Row<EdgeSettings>> {
    vec![
        row(
            "WAF_TLS_CERT",
            "",
            files(),
            |edge: &mut EdgeSettings| &mut edge.certificates,
            "Certificate chains in PEM, a list; the one is used that has the name a client asks for, else the first. Read again on a change.",
        )
        .live(),
        row(
            "WAF_TLS_KEY",
            "",
            files(),
            |edge: &mut EdgeSettings| &mut edge.keys,
            "The private keys of the certificates in PEM, as many and in the same order.",
        )
        .live(),
        row(
            "WAF_REDIRECT_HTTP",
            "off",
            boolean(),
            |edge: &mut EdgeSettings| &mut edge.redirect_http,
            "Plain requests that pass the checks are sent to https with 308; health is answered.",
        )
        .live(),
        row(
            "WAF_H2C",
            "off",
            boolean(),
            |edge: &mut EdgeSettings| &mut edge.h2c,
            "HTTP/2 is spoken on plain places too, to clients that begin with it (prior knowledge). Over TLS it always is.",
        )
        .live(),
        row(
            "WAF_PROXY_PROTOCOL",
            "off",
            boolean(),
            |edge: &mut EdgeSettings| &mut edge.proxy_protocol,
            "Trusted proxies begin each connection with a header of the PROXY protocol, version 1 or 2.",
        )
        .restart(),
        row(
            "WAF_PROXY_PROTOCOL_LOCAL",
            "peer",
            word([("peer", LocalIs::Peer), ("trusted", LocalIs::Trusted)]),
            |edge: &mut EdgeSettings| &mut edge.proxy_protocol_local,
            "A connection whose PROXY header names no client (UNKNOWN, LOCAL) is the proxy's own: `peer` does not believe its forwarding headers, `trusted` does.",
        )
        .live(),
    ]
}

fn files() -> Kind<Vec<PathBuf>> {
    Kind::new("files, separated by commas", |text| {
        let files: Vec<PathBuf> = entries(text).map(PathBuf::from).collect();
        if entries(text).any(|file| file.ends_with('/')) {
            return Err("names a directory");
        }
        match files.len() {
            0 => Err("names no file"),
            count if count > MAX_CERTIFICATES => Err("names more than 1000 files"),
            _ => Ok(files),
        }
    })
}
