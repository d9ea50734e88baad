//! A request as a log line describes it.

use std::net::IpAddr;
use std::sync::Arc;

use http::{Method, StatusCode};
use weir_dataplane::replay::{End, Past};
use weir_shared::lookup::Lookup;
use weir_shared::rules::{Remembered, Told};

/// Bytes of a path that are kept, as in the request log.
const MAX_PATH: usize = 4096;

/// One request.
#[derive(Debug)]
pub struct Request {
    /// The number of its line.
    pub number: u64,
    /// When its head was read, milliseconds since 1970.
    pub at_ms: u64,
    /// How long it took.
    pub took_ms: u64,
    /// How long the application took to answer, where the log says so.
    pub first_byte_ms: Option<u64>,
    pub address: IpAddr,
    pub method: Method,
    /// Without the query.
    pub path: String,
    /// Its host, query and fields, as far as the log has them.
    pub sent: Remembered,
    pub content_length: Option<u64>,
    /// True if the log says that a page of another site made this request.
    pub other_site: bool,
    pub end: End,
    /// What the application reported about the client, if the log tells.
    pub application: Option<String>,
    /// The lookup of its client, if the log tells.
    pub lookup: Option<Arc<Lookup>>,
    /// Its id, where the log has one.
    pub id: Option<String>,
    /// Whether it was refused; none if the log does not tell.
    pub was_refused: Option<bool>,
}

impl Request {
    /// A request that took no time and has no further details.
    pub fn new(at_ms: u64, address: IpAddr, method: Method, target: &str) -> Self {
        Self {
            number: 0,
            at_ms,
            took_ms: 0,
            first_byte_ms: None,
            address,
            method,
            path: path_of(target),
            sent: Remembered {
                query: Told::Known(query_of(target)),
                known: Some(&[]),
                ..Remembered::default()
            },
            content_length: None,
            other_site: false,
            end: End::default(),
            application: None,
            lookup: None,
            id: None,
            was_refused: None,
        }
    }

    /// When the application answered, milliseconds since 1970; the end of the request if the log
    /// does not tell.
    pub fn answered_ms(&self) -> u64 {
        let took_ms = self.took_ms.min(self.first_byte_ms.unwrap_or(u64::MAX));
        self.at_ms.saturating_add(took_ms)
    }

    /// The request in the form that the checks take.
    pub fn past(&self) -> Past<'_> {
        let counted = Some(self.end.request_bytes).filter(|_| !self.end.websocket);
        Past {
            address: self.address,
            method: &self.method,
            path: &self.path,
            sent: &self.sent,
            content_length: self.content_length.max(counted),
            other_site: self.other_site,
            application: self.application.as_deref(),
        }
    }

    /// Sets the application's answer; a status that is no HTTP status is ignored.
    pub fn answered(&mut self, status: u16) {
        self.end.status = StatusCode::from_u16(status).ok();
    }
}

/// The part of a target after its `?`.
fn query_of(target: &str) -> Option<String> {
    let target = target.split('#').next().unwrap_or_default();
    let (_, query) = target.split_once('?')?;
    let end = query.floor_char_boundary(MAX_PATH);
    query.get(..end).map(str::to_owned)
}

/// The path of a target: without the query, and without the scheme and the host of a whole URL.
fn path_of(target: &str) -> String {
    let path = target.split(['?', '#']).next().unwrap_or_default();
    let path = match path.split_once("://") {
        Some((scheme, rest)) if !scheme.contains('/') => rest
            .find('/')
            .map_or("/", |at| rest.get(at..).unwrap_or("/")),
        _ => path,
    };
    let end = path.floor_char_boundary(MAX_PATH);
    path.get(..end).unwrap_or_default().to_owned()
}
