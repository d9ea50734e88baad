//! Parses the targets of the routes: addresses, and queries.

use std::net::IpAddr;

use http::header::HOST;
use http::{HeaderName, HeaderValue, Method};
use percent_encoding::percent_decode_str;
use weir_shared::client::Client;
use weir_shared::explain::Question;
use weir_shared::handover::OwnRequest;
use weir_shared::rules::{Remembered, Told};

use super::bans::{Filter, key_of, netblock};
use super::clients::{Most, Sort};
use super::explain::Asked;
use super::groups::By;
use super::problem::Problem;
use crate::bans::Subject;
use crate::bans::feed::Cursor;
use crate::history::KEPT;

/// The client of an address in a path or a query, percent-encoded or not.
pub(super) fn client_of(text: &str) -> Result<Client, Problem> {
    let wrong = |text: &str| {
        Problem::BadRequest(format!(
            "{text:?} is not an address: expected one IPv4 or IPv6 address, no netblock and no zone"
        ))
    };
    let decoded = percent_decode_str(text)
        .decode_utf8()
        .map_err(|_| wrong(text))?;
    decoded
        .parse::<IpAddr>()
        .map(Client::of)
        .map_err(|_| wrong(&decoded))
}

/// The bans to lift: those that cover an address, or those of exactly one netblock.
pub(super) fn subject_of(text: &str) -> Result<Subject, Problem> {
    let decoded = percent_decode_str(text).decode_utf8_lossy();
    if !decoded.contains('/') {
        let wrong = |_| {
            Problem::BadRequest(format!(
                "{decoded:?} is not an address, nor a netblock: expected an IPv4 or IPv6 address, \
                 or a prefix such as 192.0.2.0/24 or 2001:db8::/32"
            ))
        };
        return client_of(text).map(Subject::Client).map_err(wrong);
    }
    let netblock = netblock(&decoded);
    netblock.map(Subject::Netblock).map_err(Problem::BadRequest)
}

/// Refuses unknown names in a query, and suggests the nearest known one (CONTROL-10): a misspelt
/// filter must not be ignored silently.
pub(super) fn only(request: &OwnRequest, known: &[&str]) -> Result<(), Problem> {
    let query = request.query.as_deref().unwrap_or_default();
    let names = (query.split('&')).map(|pair| pair.split_once('=').map_or(pair, |pair| pair.0));
    let mut others = names.filter(|name| !name.is_empty() && !known.contains(name));
    let Some(name) = others.next() else {
        return Ok(());
    };
    let distances = known
        .iter()
        .map(|known| (strsim::osa_distance(known, name), known));
    let meant = distances.min().filter(|(distance, _)| *distance <= 3);
    let meant = meant.map(|(_, known)| format!("; did you mean {known}?"));
    let expected = match known {
        [] => "no query".to_owned(),
        known => known.join(", "),
    };
    let sentence = format!("{name:?} is not known: expected {expected}");
    Err(Problem::BadRequest(sentence + &meant.unwrap_or_default()))
}

/// Reads the query of `GET /_waf/bans`.
pub(super) fn filter(query: &str) -> Result<Filter, Problem> {
    let mut filter = Filter::default();
    for pair in query.split('&') {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let twice = match name {
            "active" => {
                let active = match value {
                    "true" => true,
                    "false" => false,
                    _ => {
                        return Err(Problem::BadRequest(format!(
                            "active={value:?} is not valid: expected true or false"
                        )));
                    }
                };
                filter.active.replace(active).is_some()
            }
            "ip" => filter.client.replace(client_of(value)?).is_some(),
            "limit" => filter.limit.replace(limit("limit", value)?).is_some(),
            "newest" => filter.newest.replace(limit("newest", value)?).is_some(),
            "after" => {
                let text = percent_decode_str(value).decode_utf8_lossy();
                let key = key_of(&text).ok_or_else(|| {
                    Problem::BadRequest(format!(
                        "after={text:?} is not valid: expected what the page before has as \"next\""
                    ))
                })?;
                filter.after.replace(key).is_some()
            }
            _ => false,
        };
        if twice {
            return Err(Problem::BadRequest(format!("{name} is given twice")));
        }
    }
    if filter.newest.is_some() && (filter.limit.is_some() || filter.after.is_some()) {
        let sentence = "newest is one answer: limit and after, which are pages, do not go with it";
        return Err(Problem::BadRequest(sentence.to_owned()));
    }
    Ok(filter)
}

/// Reads the cursor of `GET /v1/bans/stream`; none means from now on.
pub(super) fn cursor(query: &str) -> Result<Option<Cursor>, Problem> {
    let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let Some((_, text)) = pairs.find(|(name, _)| *name == "cursor") else {
        return Ok(None);
    };
    Cursor::parse(text).map(Some).ok_or_else(|| {
        Problem::BadRequest(format!(
            "cursor={text:?} is not valid: expected what /v1/bans has as \"cursor\""
        ))
    })
}

/// Reads the number of minutes of `GET /v1/history`; without one, all of them.
pub(super) fn minutes(query: &str) -> Result<usize, Problem> {
    let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs
        .find(|(name, _)| *name == "minutes")
        .map_or(Ok(KEPT), |(name, value)| limit(name, value))
}

fn limit(name: &str, value: &str) -> Result<usize, Problem> {
    let limit = value.parse().ok().filter(|limit| *limit > 0);
    limit.ok_or_else(|| {
        Problem::BadRequest(format!(
            "{name}={value:?} is not valid: expected a whole number from 1"
        ))
    })
}

/// The most fields of a request to explain.
const MAX_FIELDS: usize = 64;
/// The fields that the request log always has.
const KNOWN_OF_LOG: &[&str] = &["host", "referer", "user-agent"];

/// Adds a field to the head of a request to explain. The error says what is expected.
fn add_sent(sent: &mut Remembered, name: &str, value: &str) -> Result<(), &'static str> {
    match name {
        "host" => {
            let host = HeaderValue::from_str(value);
            let host = host.map_err(|_| "expected the name of a host")?;
            sent.fields.insert(HOST, host);
        }
        "query" => sent.query = Told::Known(Some(value.to_owned())),
        "partly" => {
            let partly: bool = value.parse().map_err(|_| "expected true or false")?;
            sent.known = partly.then_some(KNOWN_OF_LOG);
        }
        _ => {
            let (name, value) = field(value).ok_or("expected a field such as user-agent:curl")?;
            if sent.fields.len() == MAX_FIELDS {
                return Err("expected at most 64 fields");
            }
            sent.fields.append(name, value);
        }
    }
    Ok(())
}

/// `name:value`
fn field(text: &str) -> Option<(HeaderName, HeaderValue)> {
    let (name, value) = text.split_once(':')?;
    let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
    Some((name, HeaderValue::from_str(value.trim()).ok()?))
}

/// Reads the query of `GET /v1/explain`.
pub(super) fn question(query: &str) -> Result<Asked, Problem> {
    let mut request = None;
    let (mut address, mut method, mut path) = (None, Method::GET, "/".to_owned());
    let (mut sent, mut other_site) = (Remembered::default(), false);
    for pair in query.split('&') {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let value = percent_decode_str(value).decode_utf8_lossy();
        let wrong = |expected: &str| {
            Problem::BadRequest(format!("{name}={value:?} is not valid: {expected}"))
        };
        match name {
            "address" => {
                let parsed = value.parse::<IpAddr>();
                address = Some(parsed.map_err(|_| wrong("expected one IPv4 or IPv6 address"))?);
            }
            "method" => {
                method = Method::from_bytes(value.as_bytes())
                    .map_err(|_| wrong("expected a method such as GET"))?;
            }
            "host" | "query" | "field" | "partly" => {
                add_sent(&mut sent, name, &value).map_err(wrong)?;
            }
            "other_site" => {
                other_site = value.parse().map_err(|_| wrong("expected true or false"))?;
            }
            "request" => request = Some(value.into_owned()),
            "path" if value.starts_with('/') => path = value.into_owned(),
            "path" => return Err(wrong("expected a path that begins with /")),
            _ => {}
        }
    }
    match request {
        Some(_) if query.contains('&') => {
            let alone = "request is given alone: address, path, method and host are its own";
            return Err(Problem::BadRequest(alone.to_owned()));
        }
        Some(id) => return Ok(Asked::Request(id)),
        None => {}
    }
    let address = address.ok_or_else(|| Problem::BadRequest("address is missing".to_owned()))?;
    Ok(Asked::Question(Question {
        address,
        method,
        path,
        sent,
        other_site,
    }))
}

/// Reads the grouping of `GET /v1/groups`.
pub(super) fn by(query: &str) -> Result<By, Problem> {
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let mut named = pairs.filter(|(name, _)| *name == "by");
    let value = named.next().map_or("", |(_, value)| value);
    By::named(value).ok_or_else(|| {
        Problem::BadRequest(format!(
            "by={value:?} is not valid: expected netblock, asn or country"
        ))
    })
}

/// Reads the query of `GET /v1/clients` and of `/v1/groups`.
pub(super) fn most(query: &str) -> Result<Most, Problem> {
    let mut most = Most::default();
    for pair in query.split('&') {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        match name {
            "sort" => {
                most.sort = Sort::named(value).ok_or_else(|| {
                    Problem::BadRequest(format!(
                        "sort={value:?} is not valid: expected requests, bytes, refused or last_seen"
                    ))
                })?;
            }
            "limit" => {
                most.limit = limit("limit", value)?;
            }
            _ => {}
        }
    }
    Ok(most)
}
