//! Reads what the targets of the routes say: addresses, and the queries behind the question mark.

use std::net::IpAddr;

use http::{HeaderValue, Method};
use percent_encoding::percent_decode_str;
use weir_shared::client::Client;
use weir_shared::explain::Question;

use super::bans::Filter;
use super::clients::{Most, Sort};
use super::explain::Asked;
use super::groups::By;
use super::problem::Problem;

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

/// Reads the query of `GET /_waf/bans`. Parameters of other names are left aside, as everywhere on
/// the web.
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
                            "active={value:?} is not understood: expected true or false"
                        )));
                    }
                };
                filter.active.replace(active).is_some()
            }
            "ip" => filter.client.replace(client_of(value)?).is_some(),
            _ => false,
        };
        if twice {
            return Err(Problem::BadRequest(format!("{name} is given twice")));
        }
    }
    Ok(filter)
}

/// Reads the query of `GET /v1/explain`.
pub(super) fn question(query: &str) -> Result<Asked, Problem> {
    let mut request = None;
    let (mut address, mut method, mut path) = (None, Method::GET, "/".to_owned());
    let (mut host, mut other_site) = (None, false);
    for pair in query.split('&') {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let value = percent_decode_str(value).decode_utf8_lossy();
        let wrong = |expected: &str| {
            Problem::BadRequest(format!("{name}={value:?} is not understood: {expected}"))
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
            "host" => {
                let given = HeaderValue::from_str(&value);
                host = Some(given.map_err(|_| wrong("expected the name of a host"))?);
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
        host,
        other_site,
    }))
}

/// Reads how `GET /v1/groups` groups.
pub(super) fn by(query: &str) -> Result<By, Problem> {
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let mut named = pairs.filter(|(name, _)| *name == "by");
    let value = named.next().map_or("", |(_, value)| value);
    By::named(value).ok_or_else(|| {
        Problem::BadRequest(format!(
            "by={value:?} is not understood: expected netblock, asn or country"
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
                        "sort={value:?} is not understood: expected requests, bytes, refused or last_seen"
                    ))
                })?;
            }
            "limit" => {
                let limit = value.parse().ok().filter(|limit| *limit > 0);
                most.limit = limit.ok_or_else(|| {
                    Problem::BadRequest(format!(
                        "limit={value:?} is not understood: expected a whole number from 1"
                    ))
                })?;
            }
            _ => {}
        }
    }
    Ok(most)
}
