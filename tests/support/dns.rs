//! A DNS server on loopback, over UDP, that can be told what to say and to misbehave. It is written
//! byte by byte, so that nothing is shared with what is tested.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

const A: u16 = 1;
const CNAME: u16 = 5;
const PTR: u16 = 12;
const AAAA: u16 = 28;

/// How it answers whatever is asked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mood {
    /// From its records.
    Fine,
    /// SERVFAIL.
    Fails,
    /// Not at all.
    Silent,
}

struct Zone {
    /// By name and type: what the records hold, as it is written on the wire.
    records: HashMap<(String, u16), Vec<Vec<u8>>>,
    /// Zones of which nothing is found out, and whether that is said.
    broken: HashMap<String, Mood>,
    mood: Mood,
    ttl: u32,
    asked: Vec<String>,
}

/// A running server.
pub(crate) struct Dns {
    address: SocketAddr,
    zone: Arc<Mutex<Zone>>,
}

impl Dns {
    #[track_caller]
    pub(crate) fn start() -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
        let address = socket.local_addr().expect("an address");
        let zone = Arc::new(Mutex::new(Zone {
            records: HashMap::new(),
            broken: HashMap::new(),
            mood: Mood::Fine,
            ttl: 300,
            asked: Vec::new(),
        }));
        let (serving, held) = (socket, Arc::downgrade(&zone));
        serving
            .set_read_timeout(Some(Duration::from_millis(200)))
            .expect("a time-out");
        std::thread::spawn(move || {
            let mut query = [0; 1500];
            while let Some(zone) = held.upgrade() {
                if let Ok((length, peer)) = serving.recv_from(&mut query)
                    && let Some(answer) = answer(&mut lock(&zone), &query[..length])
                {
                    let _ = serving.send_to(&answer, peer);
                }
            }
        });
        Self { address, zone }
    }

    /// The setting that leads to it.
    pub(crate) fn setting(&self) -> String {
        self.address.to_string()
    }

    /// An address has these names.
    pub(crate) fn names(&self, address: &str, names: &[&str]) {
        let names = names.iter().map(|name| encoded(name)).collect();
        let key = (reversed(address.parse().expect("an address")), PTR);
        lock(&self.zone).records.insert(key, names);
    }

    /// A name has these addresses.
    pub(crate) fn addresses(&self, name: &str, addresses: &[&str]) {
        let mut zone = lock(&self.zone);
        for address in addresses {
            let (kind, data) = match address.parse().expect("an address") {
                IpAddr::V4(v4) => (A, v4.octets().to_vec()),
                IpAddr::V6(v6) => (AAAA, v6.octets().to_vec()),
            };
            let key = (name.to_owned(), kind);
            zone.records.entry(key).or_default().push(data);
        }
    }

    /// An address has this name, which leads back to it.
    pub(crate) fn both(&self, address: &str, name: &str) {
        self.names(address, &[name]);
        self.addresses(name, &[address]);
    }

    /// A name stands for another.
    pub(crate) fn alias(&self, name: &str, other: &str) {
        let key = (name.to_owned(), CNAME);
        lock(&self.zone).records.insert(key, vec![encoded(other)]);
    }

    /// The names of an address stand under another name.
    pub(crate) fn delegated(&self, address: &str, under: &str, names: &[&str]) {
        self.alias(&reversed(address.parse().expect("an address")), under);
        let names = names.iter().map(|name| encoded(name)).collect();
        let key = (under.to_owned(), PTR);
        lock(&self.zone).records.insert(key, names);
    }

    /// Of the names of an address nothing is found out.
    pub(crate) fn broken(&self, address: &str, mood: Mood) {
        let name = reversed(address.parse().expect("an address"));
        lock(&self.zone).broken.insert(name, mood);
    }

    pub(crate) fn set_mood(&self, mood: Mood) {
        lock(&self.zone).mood = mood;
    }

    pub(crate) fn set_ttl(&self, seconds: u32) {
        lock(&self.zone).ttl = seconds;
    }

    /// The names that were asked for, in order.
    pub(crate) fn asked(&self) -> Vec<String> {
        lock(&self.zone).asked.clone()
    }

    /// How often the names of an address were asked for.
    pub(crate) fn asked_about(&self, address: &str) -> usize {
        let name = reversed(address.parse().expect("an address"));
        self.asked().iter().filter(|asked| **asked == name).count()
    }
}

fn lock(zone: &Mutex<Zone>) -> MutexGuard<'_, Zone> {
    zone.lock().expect("nobody panicked")
}

/// `1.66.249.66.in-addr.arpa`
fn reversed(address: IpAddr) -> String {
    match address {
        IpAddr::V4(v4) => {
            let [a, b, c, d] = v4.octets();
            format!("{d}.{c}.{b}.{a}.in-addr.arpa")
        }
        IpAddr::V6(v6) => {
            let nibbles = v6.octets().into_iter().rev();
            let nibbles = nibbles.map(|byte| format!("{:x}.{:x}.", byte & 15, byte >> 4));
            nibbles.collect::<String>() + "ip6.arpa"
        }
    }
}

fn encoded(name: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for label in name.split('.') {
        bytes.push(u8::try_from(label.len()).expect("a label"));
        bytes.extend_from_slice(label.as_bytes());
    }
    bytes.push(0);
    bytes
}

/// The name at the beginning, in small letters, and how many bytes it takes.
fn decoded(bytes: &[u8]) -> Option<(String, usize)> {
    let (mut labels, mut at) = (Vec::new(), 0);
    loop {
        let length = usize::from(*bytes.get(at)?);
        at += 1;
        if length == 0 {
            return Some((labels.join("."), at));
        }
        let label = bytes.get(at..at + length)?;
        labels.push(String::from_utf8_lossy(label).to_ascii_lowercase());
        at += length;
    }
}

fn answer(zone: &mut Zone, query: &[u8]) -> Option<Vec<u8>> {
    let question = query.get(12..)?;
    let (name, length) = decoded(question)?;
    let kind = u16::from_be_bytes([*question.get(length)?, *question.get(length + 1)?]);
    zone.asked.push(name.clone());
    let mood = zone.broken.get(&name).copied().unwrap_or(zone.mood);
    let mut answers = Vec::new();
    match mood {
        Mood::Silent => return None,
        Mood::Fails => {}
        Mood::Fine => {
            let mut of = name;
            // As a server that resolves: the alias and what it stands for.
            while let Some(alias) = zone.records.get(&(of.clone(), CNAME)) {
                answers.push(record(&of, CNAME, zone.ttl, &alias[0]));
                of = decoded(&alias[0])?.0;
            }
            let found = zone.records.get(&(of.clone(), kind)).into_iter().flatten();
            answers.extend(found.map(|data| record(&of, kind, zone.ttl, data)));
        }
    }
    let code: u8 = match mood {
        Mood::Fails => 2,
        _ if answers.is_empty() => 3,
        _ => 0,
    };
    let mut out = query.get(..2)?.to_vec();
    out.extend_from_slice(&[0x81, 0x80 | code, 0, 1, 0, answers.len() as u8, 0, 0, 0, 0]);
    out.extend_from_slice(question.get(..length + 4)?);
    answers
        .iter()
        .for_each(|record| out.extend_from_slice(record));
    Some(out)
}

fn record(name: &str, kind: u16, ttl: u32, data: &[u8]) -> Vec<u8> {
    let mut record = encoded(name);
    record.extend_from_slice(&kind.to_be_bytes());
    record.extend_from_slice(&[0, 1]);
    record.extend_from_slice(&ttl.to_be_bytes());
    let length = u16::try_from(data.len()).expect("a record");
    record.extend_from_slice(&length.to_be_bytes());
    record.extend_from_slice(data);
    record
}
