//! How single values are read. Every function gives what is wrong as a predicate (`is not a whole number`), to which
//! `load.rs` adds the setting, the value and what is allowed.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::time::Duration;

use http::HeaderName;

use super::{Secret, Upstream, WatchNet};
use crate::netblock::{NetSet, Netblock, NotANetblock};
use crate::path::normalise;
use crate::units::{parse_duration, parse_size};

/// What is wrong with a value: one predicate for each problem, so that a list names all its bad entries at once.
#[derive(Debug)]
pub(super) struct Fault(pub(super) Vec<String>);

impl Fault {
    pub(super) fn unless_empty(faults: Vec<String>) -> Result<(), Self> {
        if faults.is_empty() {
            Ok(())
        } else {
            Err(Self(faults))
        }
    }
}

impl From<String> for Fault {
    fn from(predicate: String) -> Self {
        Self(vec![predicate])
    }
}

/// A whole number, digits only.
pub(super) fn whole<N: TryFrom<u64>>(
    text: &str,
    allowed: RangeInclusive<u64>,
) -> Result<N, String> {
    if text == "off" {
        return Err("cannot be off".to_owned());
    }
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("is not a whole number".to_owned());
    }
    text.parse()
        .ok()
        .filter(|number| allowed.contains(number))
        .and_then(|number| N::try_from(number).ok())
        .ok_or_else(|| "is out of range".to_owned())
}

pub(super) fn duration(text: &str, allowed: RangeInclusive<Duration>) -> Result<Duration, String> {
    if text == "off" {
        return Err("cannot be off".to_owned());
    }
    let duration = parse_duration(text).map_err(|_| "is not a duration".to_owned())?;
    if allowed.contains(&duration) {
        Ok(duration)
    } else {
        Err("is out of range".to_owned())
    }
}

/// A size of at least one byte: what 0 would mean differs from one proxy to the next, so it has to be said as `off`.
pub(super) fn size(text: &str) -> Result<u64, String> {
    match parse_size(text) {
        Ok(0) => Err("is out of range".to_owned()),
        Ok(bytes) => Ok(bytes),
        Err(_) => Err("is not a size".to_owned()),
    }
}

pub(super) fn or_off<T>(
    text: &str,
    read: impl FnOnce(&str) -> Result<T, String>,
) -> Result<Option<T>, String> {
    if text == "off" {
        return Ok(None);
    }
    read(text).map(Some)
}

pub(super) fn word<T: Copy>(text: &str, words: &[(&str, T)]) -> Result<T, String> {
    words
        .iter()
        .find(|(word, _)| *word == text)
        .map(|(_, meaning)| *meaning)
        .ok_or_else(|| "is not known".to_owned())
}

/// `on|off`, `true|false`, `1|0`.
pub(super) fn boolean(text: &str) -> Result<bool, String> {
    word(
        text,
        &[
            ("on", true),
            ("off", false),
            ("true", true),
            ("false", false),
            ("1", true),
            ("0", false),
        ],
    )
}

/// The entries of a list; blanks and empty entries are ignored.
pub(super) fn entries(text: &str) -> impl Iterator<Item = &str> {
    text.split(',')
        .map(str::trim)
        .filter(|entry| !entry.is_empty())
}

pub(super) fn nets(text: &str) -> Result<NetSet, Fault> {
    let (mut blocks, mut faults) = (Vec::new(), Vec::new());
    for entry in entries(text) {
        match entry.parse::<Netblock>() {
            Ok(block) => blocks.push(block),
            Err(NotANetblock::Zone(_)) => {
                faults.push(format!("has {entry:?}, which carries a zone"));
            }
            Err(NotANetblock::Syntax(_)) => {
                faults.push(format!("has {entry:?}, which is not a netblock"));
            }
        }
    }
    Fault::unless_empty(faults)?;
    Ok(blocks.into_iter().collect())
}

/// Netblocks with or without a name. Two entries may share a name, an office has more than one line; a netblock stands
/// there once, or its alerts would come twice.
pub(super) fn watch_nets(text: &str) -> Result<Vec<WatchNet>, Fault> {
    let (mut watches, mut faults) = (Vec::<WatchNet>::new(), Vec::new());
    for entry in entries(text) {
        let (name, block) = match entry.split_once('=') {
            Some((name, block)) => (Some(name.trim()), block.trim()),
            None => (None, entry),
        };
        if name.is_some_and(|name| !is_watch_name(name)) {
            faults.push(format!("has {entry:?}, whose name is not allowed"));
            continue;
        }
        match block.parse::<Netblock>() {
            Ok(netblock) if watches.iter().any(|held| held.netblock == netblock) => {
                faults.push(format!("has {entry:?}, a netblock that stands there twice"));
            }
            Ok(netblock) => watches.push(WatchNet {
                name: name.map_or_else(|| netblock.to_string(), str::to_owned),
                netblock,
            }),
            Err(NotANetblock::Zone(_)) => {
                faults.push(format!("has {entry:?}, which carries a zone"));
            }
            Err(NotANetblock::Syntax(_)) => {
                faults.push(format!("has {entry:?}, which is not a netblock"));
            }
        }
    }
    Fault::unless_empty(faults)?;
    Ok(watches)
}

/// Short and plain: it stands in every log line of its clients.
fn is_watch_name(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_'))
}

pub(super) fn header_name(text: &str) -> Option<HeaderName> {
    HeaderName::from_bytes(text.as_bytes()).ok()
}

/// A prefix for [`crate::path::is_exempt`]: normalised, without a trailing slash.
pub(super) fn path_prefix(text: &str) -> Option<String> {
    let strange = |c: char| c.is_control() || c.is_whitespace() || matches!(c, '?' | '#' | '\\');
    if !text.starts_with('/') || text.contains(strange) {
        return None;
    }
    Some(normalise(text).trim_end_matches('/').to_owned())
}

/// A token as `Authorization: Bearer` can carry it.
pub(super) fn token(text: &str) -> Result<Secret, String> {
    if text.bytes().all(|byte| byte.is_ascii_graphic()) {
        Ok(Secret::new(text.to_owned()))
    } else {
        Err("holds a character that a header cannot carry".to_owned())
    }
}

pub(super) fn upstream(text: &str) -> Result<Upstream, String> {
    if text.starts_with("https://") {
        return Err("asks for TLS, which is not spoken to the application".to_owned());
    }
    let wrong = || "is not the address of an application".to_owned();
    let authority = text.strip_prefix("http://").ok_or_else(wrong)?;
    let authority = authority.strip_suffix('/').unwrap_or(authority);
    let (host, port) = match authority.strip_prefix('[') {
        Some(v6) => {
            let (host, port) = v6.split_once(']').ok_or_else(wrong)?;
            host.parse::<Ipv6Addr>().map_err(|_| wrong())?;
            (host, port)
        }
        None => {
            let end = authority.find(':').unwrap_or(authority.len());
            let (host, port) = authority.split_at(end);
            if !is_host(host) {
                return Err(wrong());
            }
            (host, port)
        }
    };
    let port = match port.strip_prefix(':') {
        Some(digits) => whole(digits, 1..=65_535).map_err(|_| wrong())?,
        None if port.is_empty() => 80,
        None => return Err(wrong()),
    };
    Ok(Upstream {
        host: host.to_owned(),
        port,
    })
}

/// An IPv4 address, or a name of letters, digits, hyphens and the underscores that container networks like.
fn is_host(host: &str) -> bool {
    let last_is_number = host
        .rsplit('.')
        .next()
        .is_some_and(|label| label.bytes().all(|byte| byte.is_ascii_digit()));
    if last_is_number {
        return host.parse::<Ipv4Addr>().is_ok();
    }
    host.len() <= 253
        && host.split('.').all(|label| {
            !label.is_empty()
                && label.len() <= 63
                && label
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
        })
}
