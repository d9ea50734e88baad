//! Lookup databases of the size and depth of real ones, made here: real ones have licences of their
//! own.
//!
//! Country and AS of each of the 262,144 /24 networks in 64.0.0.0/6, in the layout of MaxMind and
//! DB-IP; the format is <https://maxmind.github.io/MaxMind-DB/>. A lookup walks the whole depth of
//! the tree and finds a record.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

/// The network that the databases know: its first byte, and how many bits of it count.
const FIRST: u8 = 64;
const KNOWN_BITS: usize = 6;
/// Levels of the tree between that network and the /24 networks.
const LEVELS: usize = 24 - KNOWN_BITS;
const NETWORKS: usize = 1 << LEVELS;
/// Nodes of the path to that network: IPv4 lies 96 levels deep in the tree of IPv6.
const PATH: usize = 96 + KNOWN_BITS;
/// How many countries and AS there are, about as in the Internet.
const COUNTRIES: usize = 250;
const SYSTEMS: usize = 60_000;
/// Between tree and data.
const SEPARATOR: usize = 16;

/// Writes `country.mmdb` and `asn.mmdb` into `directory`.
pub(crate) fn write(directory: &Path) -> Result<()> {
    let countries = database("weir-Bench-Country", COUNTRIES, country);
    let systems = database("weir-Bench-ASN", SYSTEMS, system);
    for (name, content) in [("country.mmdb", countries), ("asn.mmdb", systems)] {
        let content = content.with_context(|| format!("{name} does not fit its format"))?;
        std::fs::write(directory.join(name), content)?;
    }
    Ok(())
}

fn country(number: usize) -> Value {
    let letters = [number / 26 % 26, number % 26];
    let code: String = letters
        .map(|letter| char::from(b'A' + letter as u8))
        .iter()
        .collect();
    let languages = ["de", "en", "es", "fr", "ja", "pt-BR", "ru", "zh-CN"];
    let named = |language| (language, format!("Country {code} in {language}"));
    let names: BTreeMap<_, _> = languages.map(named).into();
    let country = json!({"geoname_id": 1_000_000, "iso_code": code, "names": names});
    json!({
        "continent": {"geoname_id": 1_000_000, "code": "EU", "names": names},
        "country": country,
        "registered_country": country,
    })
}

fn system(number: usize) -> Value {
    json!({
        "autonomous_system_number": 1000 + number,
        "autonomous_system_organization": format!("Example Networks {number} Ltd"),
    })
}

/// Which of `count` records a network has. Neighbours have different ones; and as on the Internet,
/// a few have most: here a hundred AS of 60,000 have 45 % of the networks.
fn owner(network: usize, count: usize) -> usize {
    let turned = network.wrapping_mul(7919) % NETWORKS;
    ((turned as f64 / NETWORKS as f64).powi(8) * count as f64) as usize
}

/// A whole file, its networks spread over `count` records; none if it is too large for its
/// pointers.
fn database(kind: &str, count: usize, record: impl Fn(usize) -> Value) -> Option<Vec<u8>> {
    let (mut data, mut places) = (Vec::new(), Vec::new());
    for number in 0..count {
        places.push(data.len());
        put(&record(number), &mut data)?;
    }
    let nodes = PATH + NETWORKS - 1;
    let mut file = Vec::new();
    let mut node = |left: usize, right: usize| {
        for child in [left, right] {
            let [0, bytes @ ..] = u32::try_from(child).ok()?.to_be_bytes() else {
                return None;
            };
            file.extend_from_slice(&bytes);
        }
        Some(())
    };
    for level in 0..PATH {
        // The number of nodes as a child means that nothing is known.
        let is_set = level >= 96 && FIRST << (level - 96) & 0x80 != 0;
        match is_set {
            true => node(nodes, level + 1)?,
            false => node(level + 1, nodes)?,
        }
    }
    // Below, the tree is complete, its nodes numbered from 1 level by level.
    for parent in 1..NETWORKS {
        let child = |number: usize| match number.checked_sub(NETWORKS) {
            None => Some(PATH + number - 1),
            Some(network) => {
                let place = places.get(owner(network, count))?;
                Some(nodes + SEPARATOR + place)
            }
        };
        node(child(2 * parent)?, child(2 * parent + 1)?)?;
    }
    file.extend_from_slice(&[0; SEPARATOR]);
    file.extend_from_slice(&data);
    file.extend_from_slice(b"\xab\xcd\xefMaxMind.com");
    let facts = json!({
        "binary_format_major_version": 2,
        "binary_format_minor_version": 0,
        "build_epoch": 1_793_491_200,
        "database_type": kind,
        "description": {"en": "made for a benchmark of weir"},
        "ip_version": 6,
        "languages": ["en"],
        "node_count": nodes,
        "record_size": 24,
    });
    put(&facts, &mut file)?;
    Some(file)
}

/// Appends a value: a control byte with type and size, and what it holds.
fn put(value: &Value, data: &mut Vec<u8>) -> Option<()> {
    match value {
        Value::String(text) => put_bytes(2, text.as_bytes(), data),
        Value::Object(members) => {
            control(7, members.len(), data)?;
            members.iter().try_for_each(|(name, member)| {
                put_bytes(2, name.as_bytes(), data)?;
                match member.as_u64() {
                    Some(number) => put_number(name, number, data),
                    None => put(member, data),
                }
            })
        }
        Value::Array(values) => {
            control(11, values.len(), data)?;
            values.iter().try_for_each(|value| put(value, data))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => None,
    }
}

/// The format says how wide the number of each member is.
fn put_number(name: &str, number: u64, data: &mut Vec<u8>) -> Option<()> {
    let (kind, width) = match name {
        "build_epoch" => (9, 8),
        "autonomous_system_number" | "geoname_id" | "node_count" => (6, 4),
        _ => (5, 2),
    };
    put_bytes(kind, number.to_be_bytes().get(8 - width..)?, data)
}

fn put_bytes(kind: u8, bytes: &[u8], data: &mut Vec<u8>) -> Option<()> {
    control(kind, bytes.len(), data)?;
    data.extend_from_slice(bytes);
    Some(())
}

/// Types above 7 have a byte of their own; sizes from 29 on too.
fn control(kind: u8, size: usize, data: &mut Vec<u8>) -> Option<()> {
    let size = u8::try_from(size).ok()?;
    let short = size.min(29);
    match kind.checked_sub(7).filter(|more| *more > 0) {
        Some(more) => data.extend_from_slice(&[short, more]),
        None => data.push(kind << 5 | short),
    }
    if let Some(more) = size.checked_sub(29) {
        data.push(more);
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use maxminddb::{Reader, geoip2};

    use super::*;

    #[test]
    fn the_databases_are_sound_and_know_every_client_of_theirs() {
        let countries = Reader::from_source(database("a", COUNTRIES, country).unwrap()).unwrap();
        let systems = Reader::from_source(database("b", SYSTEMS, system).unwrap()).unwrap();
        countries.verify().unwrap();
        systems.verify().unwrap();
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        for known in ["64.0.0.1", "65.1.2.3", "67.255.255.255"].map(address) {
            let found = countries.lookup(known).unwrap().decode::<geoip2::Country>();
            let code = found.unwrap().unwrap().country.iso_code.unwrap().to_owned();
            let is_upper = code.bytes().all(|byte| byte.is_ascii_uppercase());
            assert!(code.len() == 2 && is_upper, "{code}");
            let found = systems.lookup(known).unwrap().decode::<geoip2::Asn>();
            assert!(found.unwrap().unwrap().autonomous_system_number.unwrap() >= 1000);
        }
        for unknown in ["63.255.255.255", "68.0.0.0", "2a02::1"].map(address) {
            assert!(!countries.lookup(unknown).unwrap().has_data(), "{unknown}");
        }
    }
}
