//! `X-Forwarded-For` and `Forwarded` lines: the walk agrees with a naive twin, and whatever a
//! client wrote, the entry that the trusted proxy added to it is the client (CLIENT-3, CLIENT-4).
#![no_main]

use std::net::{IpAddr, Ipv4Addr};

use http::header::FORWARDED;
use http::{HeaderMap, HeaderName, HeaderValue};
use libfuzzer_sys::fuzz_target;
use weir_dataplane::identity::{X_FORWARDED_FOR, identify};
use weir_dataplane::message::Known;

const ADDED: IpAddr = IpAddr::V4(Ipv4Addr::new(203, 0, 113, 7));

fuzz_target!(|bytes: &[u8]| {
    let lines: Vec<&[u8]> = bytes
        .split(|byte| *byte == b'\n')
        .filter(|line| HeaderValue::from_bytes(line).is_ok())
        .collect();
    assert_eq!(walk(&X_FORWARDED_FOR, &lines), twin(&lines));
    // Never a panic, whatever it finds.
    walk(&FORWARDED, &lines);

    let [written @ .., host] = lines.as_slice() else {
        return;
    };
    let host: Vec<u8> = host
        .iter()
        .flat_map(|byte| match byte {
            b'"' | b'\\' => vec![b'\\', *byte],
            _ => vec![*byte],
        })
        .collect();
    let element = [b"host=\"", host.as_slice(), b"\";for=203.0.113.7"].concat();
    let turned = [b"for=203.0.113.7;host=\"", host.as_slice(), b"\""].concat();
    for (header, added) in [
        (X_FORWARDED_FOR, b"203.0.113.7".as_slice()),
        (FORWARDED, &element),
        (FORWARDED, &turned),
    ] {
        // On a line of its own, and at the end of the client's line.
        let apart = [written, &[added]].concat();
        assert_eq!(walk(&header, &apart), ADDED, "{}", weir_fuzz::text(added));
        if let [before @ .., last] = written {
            let joined = [last, b", ".as_slice(), added].concat();
            let joined = [before, &[joined.as_slice()]].concat();
            assert_eq!(walk(&header, &joined), ADDED, "{}", weir_fuzz::text(added));
        }
    }
});

fn walk(header: &HeaderName, lines: &[&[u8]]) -> IpAddr {
    let mut headers = HeaderMap::new();
    for line in lines {
        headers.append(header, HeaderValue::from_bytes(line).expect("it was one"));
    }
    let (sender, settings) = weir_fuzz::sender(weir_fuzz::peer(1), true, header);
    identify(sender, &settings, &headers, Known::of(&headers)).address
}

/// The rule as it stands: all lines as one list, read from its end.
fn twin(lines: &[&[u8]]) -> IpAddr {
    let mut client = weir_fuzz::peer(1);
    if lines.is_empty() {
        return client;
    }
    let list = lines.join(&b',');
    for entry in list.rsplit(|byte| *byte == b',').take(64) {
        let Some(address) = std::str::from_utf8(entry).ok().and_then(address) else {
            break;
        };
        client = address;
        if !weir_fuzz::trusted().contains(address) {
            break;
        }
    }
    client
}

/// `address`, `address%zone`, `[address]`, `[address]:port`, `address:port` of IPv4; quoted or not.
fn address(entry: &str) -> Option<IpAddr> {
    let entry = entry.trim_matches([' ', '\t']).trim_matches('"');
    let is_port = |port: &str| {
        !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()) && port.parse::<u16>().is_ok()
    };
    let bare = match (entry.strip_prefix('['), entry.matches(':').count()) {
        (Some(rest), _) => match rest.split_once(']')? {
            (inside, "") => inside,
            (inside, port) if is_port(port.strip_prefix(':')?) => inside,
            _ => return None,
        },
        (None, 1) => match entry.split_once(':')? {
            (inside, port) if is_port(port) => inside,
            _ => return None,
        },
        _ => entry,
    };
    let address: IpAddr = bare.split('%').next()?.parse().ok()?;
    Some(address.to_canonical())
}
