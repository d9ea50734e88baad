//! A DNS server on loopback, over UDP and TCP, that can be told what to say and to misbehave. It is
//! written byte by byte, so that nothing is shared with what is tested.

use std::collections::{HashMap, HashSet};
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

const A: u16 = 1;
const CNAME: u16 = 5;
const PTR: u16 = 12;
const AAAA: u16 = 28;

/// The most bytes of an answer over UDP; a larger one is to be asked for over TCP.
const MAX_UDP: usize = 1232;

/// How it answers whatever is asked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mood {
    /// From its records.
    Fine,
    /// SERVFAIL.
    Fails,
    /// Not at all.
    Silent,
    /// From its records, to a question that nobody asked.
    ToOther,
    /// Over UDP that there is more over TCP, where nothing comes.
    Stalls,
    /// Over UDP that there is more over TCP, and there the same.
    Cut,
}

struct Zone {
    /// By name and type: what the records hold, as it is written on the wire.
    records: HashMap<(String, u16), Vec<Vec<u8>>>,
    /// Zones of which nothing is found out, and whether that is said.
    broken: HashMap<String, Mood>,
    mood: Mood,
    ttl: u32,
    /// Of an alias it says no more than what it stands for.
    one_alias_an_answer: bool,
    /// Records that an answer about a name has before its own.
    beside: HashMap<String, Vec<u8>>,
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
        let (socket, listener) = ports();
        let address = socket.local_addr().expect("an address");
        let zone = Arc::new(Mutex::new(Zone {
            records: HashMap::new(),
            broken: HashMap::new(),
            mood: Mood::Fine,
            ttl: 300,
            one_alias_an_answer: false,
            beside: HashMap::new(),
            asked: Vec::new(),
        }));
        let held = Arc::downgrade(&zone);
        std::thread::spawn(move || accept(&listener, &held));
        let (serving, held) = (socket, Arc::downgrade(&zone));
        serving
            .set_read_timeout(Some(Duration::from_millis(200)))
            .expect("a time-out");
        std::thread::spawn(move || {
            let mut query = [0; 1500];
            while let Some(zone) = held.upgrade() {
                if let Ok((length, peer)) = serving.recv_from(&mut query)
                    && let Some(answer) = answer(&mut lock(&zone), &query[..length], true)
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

    /// Under a name stands another one.
    pub(crate) fn pointer(&self, under: &str, name: &str) {
        let key = (under.to_owned(), PTR);
        lock(&self.zone).records.insert(key, vec![encoded(name)]);
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

    /// From now on it says of an alias no more than what it stands for.
    pub(crate) fn one_alias_an_answer(&self) {
        lock(&self.zone).one_alias_an_answer = true;
    }

    /// Answers about a name say of another name that it has this address.
    pub(crate) fn says_beside(&self, name: &str, other: &str, address: &str) {
        let IpAddr::V4(v4) = address.parse().expect("an address") else {
            panic!("{address} is no IPv4 address");
        };
        let record = record(other, A, 300, &v4.octets());
        lock(&self.zone).beside.insert(name.to_owned(), record);
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

/// A port that is free over UDP and TCP.
#[track_caller]
fn ports() -> (UdpSocket, TcpListener) {
    let both = || -> std::io::Result<_> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        Ok((UdpSocket::bind(listener.local_addr()?)?, listener))
    };
    (0..64).find_map(|_| both().ok()).expect("a port")
}

/// Answers over TCP as long as the server is there.
fn accept(listener: &TcpListener, held: &Weak<Mutex<Zone>>) {
    listener.set_nonblocking(true).expect("it may be asked");
    while held.strong_count() > 0 {
        match listener.accept() {
            Ok((stream, _)) => {
                let held = held.clone();
                std::thread::spawn(move || over_tcp(stream, &held));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// Answers the questions of a connection, each behind its length.
fn over_tcp(mut stream: TcpStream, held: &Weak<Mutex<Zone>>) {
    let _ = stream.set_nonblocking(false);
    let mut length = [0; 2];
    while stream.read_exact(&mut length).is_ok() {
        let mut query = vec![0; usize::from(u16::from_be_bytes(length))];
        if stream.read_exact(&mut query).is_err() {
            return;
        }
        let Some(zone) = held.upgrade() else { return };
        if let Some(answer) = answer(&mut lock(&zone), &query, false) {
            let length = u16::try_from(answer.len()).expect("an answer");
            let _ = stream.write_all(&[&length.to_be_bytes()[..], &answer].concat());
        }
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

fn answer(zone: &mut Zone, query: &[u8], is_udp: bool) -> Option<Vec<u8>> {
    let question = query.get(12..)?;
    let (name, length) = decoded(question)?;
    let kind = u16::from_be_bytes([*question.get(length)?, *question.get(length + 1)?]);
    zone.asked.push(name.clone());
    let mood = zone.broken.get(&name).copied().unwrap_or(zone.mood);
    let (code, is_cut, answers) = match mood {
        Mood::Silent => return None,
        Mood::Stalls if !is_udp => return None,
        Mood::Fails => (2, false, Vec::new()),
        Mood::Stalls | Mood::Cut => (0, true, Vec::new()),
        Mood::Fine | Mood::ToOther => {
            let answers = zone.answers(name, kind)?;
            (if answers.is_empty() { 3 } else { 0 }, false, answers)
        }
    };
    let mut asked = question.get(..length + 4)?.to_vec();
    if mood == Mood::ToOther {
        // The last letter before the root.
        asked[length - 2] ^= 1;
    }
    let whole = answers.concat();
    let is_cut = is_cut || is_udp && 12 + asked.len() + whole.len() > MAX_UDP;
    let count = if is_cut { 0 } else { answers.len() };
    let [high, low] = u16::try_from(count).expect("an answer").to_be_bytes();
    let mut out = query.get(..2)?.to_vec();
    let flags = 0x81 | u8::from(is_cut) << 1;
    out.extend_from_slice(&[flags, 0x80 | code, 0, 1, high, low, 0, 0, 0, 0]);
    out.extend(asked);
    if !is_cut {
        out.extend(whole);
    }
    Some(out)
}

impl Zone {
    /// The records that answer a question.
    fn answers(&self, name: String, kind: u16) -> Option<Vec<Vec<u8>>> {
        let mut answers: Vec<Vec<u8>> = self.beside.get(&name).cloned().into_iter().collect();
        let (mut of, mut seen) = (name, HashSet::new());
        // As a server that resolves: the alias and what it stands for.
        while let Some(alias) = self.records.get(&(of.clone(), CNAME)) {
            answers.push(record(&of, CNAME, self.ttl, &alias[0]));
            if self.one_alias_an_answer || !seen.insert(of) {
                return Some(answers);
            }
            of = decoded(&alias[0])?.0;
        }
        let found = self.records.get(&(of.clone(), kind)).into_iter().flatten();
        answers.extend(found.map(|data| record(&of, kind, self.ttl, data)));
        Some(answers)
    }
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
