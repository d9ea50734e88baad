//! What stands before the first request: the PROXY header of a trusted proxy (EDGE-4), how many
//! connections may wait for theirs, and the bytes of a protocol that is not spoken here (EDGE-5).

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io::{self, Read as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;

use bytes::Bytes;
use socket2::SockRef;
use tokio::net::TcpStream;
use tokio::sync::Notify;
use weir_shared::client::fold;

/// The longest line of version 1, with its end.
const LONGEST_V1: usize = 107;
/// Bytes before the addresses of version 2.
const FIXED_V2: usize = 16;
/// The longest block behind them that is read: addresses, and what a TLS terminator adds.
const LONGEST_V2: usize = 4096;
/// The type of the entry that holds a checksum.
const CHECKSUM: u8 = 0x03;

/// What bytes at the beginning of a connection are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Parsed {
    /// More of a header has to come.
    Partial,
    /// A header of this length.
    Header {
        /// Who connected; none where the proxy speaks for itself, or does not know.
        source: Option<IpAddr>,
        /// Bytes of the header.
        length: usize,
    },
    /// No header, or a faulty one.
    Malformed,
}

/// Reads a header at the beginning of `read`.
pub fn parse(read: &[u8]) -> Parsed {
    let begins = |with: &[u8]| {
        read.iter()
            .zip(with)
            .all(|(byte, expected)| byte == expected)
    };
    let parsed = if begins(PROXY_V2) {
        version_2(read)
    } else if begins(PROXY_V1) {
        version_1(read)
    } else {
        None
    };
    parsed.unwrap_or(Parsed::Malformed)
}

/// None where it is malformed.
fn version_1(read: &[u8]) -> Option<Parsed> {
    let Some(end) = read
        .windows(2)
        .take(LONGEST_V1 - 1)
        .position(|two| two == b"\r\n")
    else {
        return (read.len() < LONGEST_V1).then_some(Parsed::Partial);
    };
    let line = std::str::from_utf8(read.get(..end)?).ok()?;
    let length = end + 2;
    let mut words = line.split(' ').skip(1);
    let family = words.next()?;
    if family == "UNKNOWN" {
        // Whatever follows is not looked at.
        return Some(Parsed::Header {
            source: None,
            length,
        });
    }
    let (source, destination) = (words.next()?, words.next()?);
    let ports = [words.next()?, words.next()?];
    if words.next().is_some() || !ports.into_iter().all(is_port) {
        return None;
    }
    let source = match family {
        "TCP4" => {
            destination.parse::<Ipv4Addr>().ok()?;
            IpAddr::V4(source.parse().ok()?)
        }
        "TCP6" => {
            destination.parse::<Ipv6Addr>().ok()?;
            IpAddr::V6(source.parse().ok()?)
        }
        _ => return None,
    };
    let source = Some(fold(source));
    Some(Parsed::Header { source, length })
}

/// Decimal digits without leading zeros.
fn is_port(text: &str) -> bool {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    digits && (text == "0" || !text.starts_with('0')) && text.parse::<u16>().is_ok()
}

/// None where it is malformed.
fn version_2(read: &[u8]) -> Option<Parsed> {
    let Some((&fixed, _)) = read.split_first_chunk::<FIXED_V2>() else {
        return Some(Parsed::Partial);
    };
    let [.., command, family, high, low] = fixed;
    let behind = usize::from(u16::from_be_bytes([high, low]));
    // Version and command: 2, and LOCAL or PROXY.
    if !matches!(command, 0x20 | 0x21) || behind > LONGEST_V2 {
        return None;
    }
    let length = FIXED_V2 + behind;
    let Some(header) = read.get(..length) else {
        return Some(Parsed::Partial);
    };
    let block = header.get(FIXED_V2..)?;
    if command == 0x20 {
        // The proxy speaks for itself: the block is skipped.
        return Some(Parsed::Header {
            source: None,
            length,
        });
    }
    let (source, entries) = match family {
        0x00 => (None, block),
        0x11 => {
            let (octets, _) = block.split_first_chunk::<4>()?;
            (Some(IpAddr::from(*octets)), block.get(12..)?)
        }
        0x21 => {
            let (octets, _) = block.split_first_chunk::<16>()?;
            (Some(IpAddr::from(*octets)), block.get(36..)?)
        }
        // A Unix socket: it has no address that says anything here.
        0x31 => (None, block.get(216..)?),
        _ => return None,
    };
    are_sound(header, entries).then_some(Parsed::Header {
        source: source.map(fold),
        length,
    })
}

/// Whether the entries behind the addresses fill their place, and a checksum among them is right.
fn are_sound(header: &[u8], entries: &[u8]) -> bool {
    let mut rest = entries;
    while !rest.is_empty() {
        let Some((&[kind, high, low], behind)) = rest.split_first_chunk::<3>() else {
            return false;
        };
        let length = usize::from(u16::from_be_bytes([high, low]));
        let Some((value, next)) = behind.split_at_checked(length) else {
            return false;
        };
        if kind == CHECKSUM {
            let Ok(sum) = <[u8; 4]>::try_from(value) else {
                return false;
            };
            let at = header.len() - behind.len();
            if crc32c(header, at) != u32::from_be_bytes(sum) {
                return false;
            }
        }
        rest = next;
    }
    true
}

/// CRC-32C (RFC 3720 appendix B.4) of a header in which the four bytes at `at` count as zero.
fn crc32c(header: &[u8], at: usize) -> u32 {
    let mut crc = u32::MAX;
    for (index, byte) in header.iter().enumerate() {
        let byte = if (at..at + 4).contains(&index) {
            0
        } else {
            *byte
        };
        crc ^= u32::from(byte);
        for _ in 0..8 {
            let carry = crc & 1;
            crc = (crc >> 1) ^ (0x82f6_3b78 * carry);
        }
    }
    !crc
}

/// Why there is no header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoHeader {
    /// The peer closed without a word, as those do that only look whether somebody listens.
    Silent,
    /// There is none, or it is malformed or cut off.
    Malformed,
}

/// Who connected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// The connection's own peer: it sent no header.
    Peer,
    /// The connection's own peer: its header says so (LOCAL), or names nobody (UNKNOWN).
    ProxyItself,
    /// The client that the header names.
    Client(IpAddr),
}

/// What the beginning of a connection says of it.
#[derive(Debug)]
pub struct Named {
    /// Who connected.
    pub who: Source,
    /// What was read behind it.
    pub early: Bytes,
}

impl Named {
    /// A connection without a header.
    pub const fn peer(early: Bytes) -> Self {
        let who = Source::Peer;
        Self { who, early }
    }
}

/// The header of a connection as it comes in.
#[derive(Default)]
pub struct Header {
    read: Vec<u8>,
}

impl Header {
    /// Reads what is there, past the runtime's readiness; none where more has to come.
    pub fn read_at_once(&mut self, stream: &TcpStream) -> Option<Result<Named, NoHeader>> {
        let mut piece = [0; 1024];
        let count = match (&*SockRef::from(stream)).read(&mut piece) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
            read => read.unwrap_or(0),
        };
        self.take(piece.get(..count).unwrap_or_default())
    }

    /// Reads the rest of it.
    ///
    /// # Errors
    /// [`NoHeader`]
    pub async fn read(mut self, stream: &TcpStream) -> Result<Named, NoHeader> {
        loop {
            stream.readable().await.map_err(|_| NoHeader::Malformed)?;
            let mut piece = [0; 1024];
            let count = match stream.try_read(&mut piece) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                read => read.unwrap_or(0),
            };
            if let Some(named) = self.take(piece.get(..count).unwrap_or_default()) {
                return named;
            }
        }
    }

    /// Takes what was read; no bytes are the end of the connection.
    fn take(&mut self, piece: &[u8]) -> Option<Result<Named, NoHeader>> {
        if piece.is_empty() {
            let is_silent = self.read.is_empty();
            return Some(Err(if is_silent {
                NoHeader::Silent
            } else {
                NoHeader::Malformed
            }));
        }
        self.read.extend_from_slice(piece);
        match parse(&self.read) {
            Parsed::Partial => None,
            Parsed::Header { source, length } => {
                let early = Bytes::from(std::mem::take(&mut self.read)).slice(length..);
                let who = source.map_or(Source::ProxyItself, Source::Client);
                Some(Ok(Named { who, early }))
            }
            Parsed::Malformed => Some(Err(NoHeader::Malformed)),
        }
    }
}

/// So many may wait, of one worker. They have no slot among the connections yet.
pub const MAX_UNNAMED: usize = 128;

/// Those that wait, by age.
#[derive(Default)]
pub struct Unnamed {
    waiting: RefCell<BTreeMap<u64, Rc<Notify>>>,
    next: Cell<u64>,
}

impl Unnamed {
    /// Waits for what leads to the name; none where this gave way to another.
    pub async fn wait<T>(&self, naming: impl Future<Output = T>) -> Option<T> {
        let number = self.next.get();
        self.next.set(number.wrapping_add(1));
        let gives_way = Rc::new(Notify::new());
        {
            let mut waiting = self.waiting.borrow_mut();
            if waiting.len() >= MAX_UNNAMED
                && let Some((_, oldest)) = waiting.pop_first()
            {
                oldest.notify_one();
            }
            waiting.insert(number, Rc::clone(&gives_way));
        }
        let _place = Place(self, number);
        let (mut naming, mut gives_way) = (pin!(naming), pin!(gives_way.notified()));
        poll_fn(|cx| match naming.as_mut().poll(cx) {
            Poll::Ready(named) => Poll::Ready(Some(named)),
            Poll::Pending => gives_way.as_mut().poll(cx).map(|()| None),
        })
        .await
    }
}

/// The place of one that waits.
struct Place<'a>(&'a Unnamed, u64);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.waiting.borrow_mut().remove(&self.1);
    }
}

/// Bytes that tell a protocol.
pub const LONGEST: usize = 16;
/// A line of each protocol a minute.
const SILENCE_MS: u64 = 60_000;
/// How version 2 of the PROXY protocol begins.
pub const PROXY_V2: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
/// How version 1 begins.
pub const PROXY_V1: &[u8] = b"PROXY ";

/// A protocol by its first bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Foreign {
    /// A TLS handshake.
    Tls,
    /// A PROXY header.
    Proxy,
    /// A request in HTTP/1.1, or the beginning of HTTP/2.
    Http,
}

impl Foreign {
    /// What these first bytes are of, if that can be told.
    pub fn of(first: &[u8]) -> Option<Self> {
        let v2 = PROXY_V2.get(..first.len().min(PROXY_V2.len()));
        if first.starts_with(b"\x16\x03") || first == b"\x16" {
            Some(Self::Tls)
        } else if first.starts_with(PROXY_V1)
            || first.len() >= 5 && v2.is_some_and(|beginning| first.starts_with(beginning))
            // A reader of HTTP may have skipped the empty lines.
            || first.starts_with(b"\0\r\nQUIT\n")
        {
            Some(Self::Proxy)
        } else if first.first().is_some_and(u8::is_ascii_uppercase) {
            Some(Self::Http)
        } else {
            None
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Tls => "TLS",
            Self::Proxy => "the PROXY protocol",
            Self::Http => "plain HTTP",
        }
    }
}

/// When a line was written last of each protocol, milliseconds since 1970.
static LAST: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];

/// Says, once a minute for each protocol, that a peer speaks it where something else is spoken.
pub fn tell(foreign: Foreign, peer: IpAddr, spoken: &str, now_ms: u64) {
    let [tls, proxy, http] = &LAST;
    let last = match foreign {
        Foreign::Tls => tls,
        Foreign::Proxy => proxy,
        Foreign::Http => http,
    };
    let before = last.load(Relaxed);
    let is_due = now_ms.saturating_sub(before) >= SILENCE_MS;
    // Of two workers at the same moment one writes.
    if is_due
        && last
            .compare_exchange(before, now_ms, Relaxed, Relaxed)
            .is_ok()
    {
        let name = foreign.name();
        tracing::warn!(%peer, "the peer speaks {name}; this port is {spoken}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn v2(command: u8, family: u8, block: &[u8]) -> Vec<u8> {
        let mut header = PROXY_V2.to_vec();
        header.extend([command, family]);
        header.extend(u16::try_from(block.len()).unwrap().to_be_bytes());
        header.extend(block);
        header
    }

    fn v4_block(entries: &[u8]) -> Vec<u8> {
        let mut block = vec![203, 0, 113, 7, 192, 0, 2, 1, 0x30, 0x39, 0, 80];
        block.extend(entries);
        block
    }

    fn found(source: Option<&str>, length: usize) -> Parsed {
        let source = source.map(|text| text.parse().unwrap());
        Parsed::Header { source, length }
    }

    /// EDGE-4: what version 1 may say.
    #[test]
    fn lines_of_version_1_are_read() {
        for (line, source) in [
            (
                "PROXY TCP4 203.0.113.7 192.0.2.1 12345 80",
                Some("203.0.113.7"),
            ),
            ("PROXY TCP6 2001:db8::7 ::1 0 65535", Some("2001:db8::7")),
            ("PROXY TCP6 ::ffff:203.0.113.7 ::1 1 2", Some("203.0.113.7")),
            ("PROXY UNKNOWN", None),
            ("PROXY UNKNOWN ffff:f...f:ffff 1 2 garbage", None),
        ] {
            let bytes = format!("{line}\r\nGET / HTTP/1.1\r\n");
            assert_eq!(
                parse(bytes.as_bytes()),
                found(source, line.len() + 2),
                "{line}"
            );
        }
    }

    /// EDGE-4: nothing else is taken for a header.
    #[test]
    fn malformed_lines_of_version_1_are_refused() {
        let long = format!("PROXY UNKNOWN {}\r\n", "x".repeat(100));
        for line in [
            "GET / HTTP/1.1\r\n",
            "proxy TCP4 203.0.113.7 192.0.2.1 1 2\r\n",
            "PROXY  TCP4 203.0.113.7 192.0.2.1 1 2\r\n",
            "PROXY TCP4 203.0.113.7 192.0.2.1 1\r\n",
            "PROXY TCP4 203.0.113.7 192.0.2.1 1 2 3\r\n",
            "PROXY TCP4 203.0.113.7 192.0.2.1 01 2\r\n",
            "PROXY TCP4 203.0.113.7 192.0.2.1 1 65536\r\n",
            "PROXY TCP4 203.0.113.7 192.0.2.1 1 +2\r\n",
            "PROXY TCP4 203.0.113.07 192.0.2.1 1 2\r\n",
            "PROXY TCP4 2001:db8::7 192.0.2.1 1 2\r\n",
            "PROXY TCP6 203.0.113.7 192.0.2.1 1 2\r\n",
            "PROXY UDP4 203.0.113.7 192.0.2.1 1 2\r\n",
            "PROXY TCP4 203.0.113.7\t192.0.2.1 1 2\r\n",
            "PROXY\r\n",
            &long,
        ] {
            assert_eq!(parse(line.as_bytes()), Parsed::Malformed, "{line:?}");
        }
    }

    /// EDGE-4: each family of version 2; LOCAL is the connection's own peer, whatever follows.
    #[test]
    fn headers_of_version_2_are_read() {
        let v6: Vec<u8> = [
            &[0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7][..],
            &[0; 20],
        ]
        .concat();
        for (header, source) in [
            (v2(0x21, 0x11, &v4_block(b"")), Some("203.0.113.7")),
            (
                v2(0x21, 0x11, &v4_block(b"\x01\x00\x02h2\x04\x00\x00")),
                Some("203.0.113.7"),
            ),
            (v2(0x21, 0x21, &v6), Some("2001:db8::7")),
            (v2(0x21, 0x31, &[0; 216]), None),
            (v2(0x21, 0x00, b""), None),
            (v2(0x20, 0x00, b""), None),
            (v2(0x20, 0x11, b"anything"), None),
        ] {
            let length = header.len();
            let bytes = [&header[..], b"GET"].concat();
            assert_eq!(parse(&bytes), found(source, length), "{header:?}");
            for cut in 1..length {
                assert_eq!(parse(&bytes[..cut]), Parsed::Partial, "{cut} of {header:?}");
            }
        }
    }

    /// EDGE-4: a checksum is checked; the value is that of the published algorithm.
    #[test]
    fn a_checksum_is_checked() {
        assert_eq!(crc32c(b"123456789", 100), 0xe306_9283);
        let mut header = v2(0x21, 0x11, &v4_block(b"\x03\x00\x04\0\0\0\0"));
        let length = header.len();
        let sum = crc32c(&header, length - 4).to_be_bytes();
        header[length - 4..].copy_from_slice(&sum);
        assert_eq!(parse(&header), found(Some("203.0.113.7"), length));
        // Not the type of the entry: of another type it is no checksum.
        for at in (14..28).chain(29..length) {
            let mut wrong = header.clone();
            wrong[at] ^= 0x40;
            assert!(!matches!(parse(&wrong), Parsed::Header { .. }), "{at}");
        }
    }

    /// EDGE-4: what is too short, too long, or of no family known is refused.
    #[test]
    fn malformed_headers_of_version_2_are_refused() {
        for header in [
            v2(0x11, 0x11, &v4_block(b"")),
            v2(0x22, 0x11, &v4_block(b"")),
            v2(0x21, 0x12, &v4_block(b"")),
            v2(0x21, 0x41, &v4_block(b"")),
            v2(0x21, 0x11, &v4_block(b"")[..11]),
            v2(0x21, 0x21, &[0; 35]),
            v2(0x21, 0x31, &[0; 215]),
            v2(0x21, 0x11, &v4_block(b"\x01")),
            v2(0x21, 0x11, &v4_block(b"\x01\x00\x02h")),
            v2(0x21, 0x11, &v4_block(b"\x03\x00\x03abc")),
            v2(0x20, 0x00, &vec![0; LONGEST_V2 + 1]),
        ] {
            assert_eq!(parse(&header), Parsed::Malformed, "{header:?}");
        }
    }

    proptest! {
        /// EDGE-4: no bytes panic, none wait for more than the longest header, and what is a header
        /// stays one, and the same, whatever follows.
        #[test]
        fn any_bytes_are_judged(
            beginning in prop_oneof![Just(&b""[..]), Just(PROXY_V1), Just(&PROXY_V2[..]), Just(&b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00"[..])],
            bytes in proptest::collection::vec(any::<u8>(), 0..300),
            more in proptest::collection::vec(any::<u8>(), 0..50),
        ) {
            let bytes = [beginning, &bytes].concat();
            let parsed = parse(&bytes);
            let with_more = [&bytes[..], &more].concat();
            match parsed {
                Parsed::Partial => prop_assert!(bytes.len() < FIXED_V2 + LONGEST_V2),
                Parsed::Header { length, .. } => {
                    prop_assert!(length <= bytes.len());
                    prop_assert_eq!(parse(&with_more), parsed);
                }
                Parsed::Malformed => prop_assert_eq!(parse(&with_more), parsed),
            }
        }
    }
}

#[cfg(test)]
mod foreign_tests {
    use super::*;

    /// EDGE-5: each protocol is known by its first bytes, and nothing else is taken for one.
    #[test]
    fn protocols_are_known_by_their_first_bytes() {
        assert_eq!(Foreign::of(b"\x16\x03\x01\x02\x00\x01"), Some(Foreign::Tls));
        assert_eq!(Foreign::of(b"PROXY TCP4 192.0"), Some(Foreign::Proxy));
        assert_eq!(Foreign::of(PROXY_V2), Some(Foreign::Proxy));
        assert_eq!(Foreign::of(b"\0\r\nQUIT\n!"), Some(Foreign::Proxy));
        assert_eq!(Foreign::of(b"GET / HTTP/1.1\r\n"), Some(Foreign::Http));
        for other in [&b""[..], b"\r\n\r\nGET", b"\x80\x2e\x01", b"get / "] {
            assert_eq!(Foreign::of(other), None, "{other:?}");
        }
    }
}
