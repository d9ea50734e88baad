//! Records of any bytes as lines of the request log: each is one line of JSON, without a control
//! character in it, and says what the record holds (LOG-2).
#![no_main]

use std::sync::LazyLock;

use http::{StatusCode, Version};
use libfuzzer_sys::fuzz_target;
use serde_json::{Map, Value, json};
use weir_controlplane::request_log::lines;
use weir_schema::strict::{self, Fault};
use weir_shared::client::Client;
use weir_shared::record::{Batch, Record, Text};
use weir_shared::rules::{ClaimState, Purpose};
use weir_shared::settings::{LogFormat, Settings, load};
use weir_shared::verdict::{Action, Counts, Group, LimitHit, LimitKind};

static SETTINGS: LazyLock<Settings> = LazyLock::new(|| {
    let settings = [
        ("WAF_UPSTREAM", "http://127.0.0.1:9000"),
        ("WAF_INSTANCE_NAME", "a\"b\\\u{e9}"),
        ("WAF_LOG_REQUEST_HEADERS", "Accept, X-Own, Cookie"),
    ];
    let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned()));
    load(settings).expect("sound settings").settings
});

static COMBINED: LazyLock<Settings> = LazyLock::new(|| {
    let mut combined = SETTINGS.clone();
    combined.log.format = LogFormat::Combined;
    combined
});

/// The texts of a record, as they are named in a line.
const TEXTS: [&str; 16] = [
    "request_id",
    "forwarded_for",
    "method",
    "host",
    "path",
    "query",
    "user_agent",
    "referer",
    "content_type",
    "response_content_type",
    "cache_control",
    "location",
    "country",
    "asn",
    "as_name",
    "application",
];

fuzz_target!(|bytes: &[u8]| {
    let mut bytes = Bytes(bytes);
    let mut batch = Batch::default();
    let mut told = Vec::new();
    for _ in 0..=bytes.number() % 3 {
        batch.add(|batch| {
            let (record, members) = record(&mut bytes, batch);
            told.push(members);
            record
        });
    }
    let combined = lines(&COMBINED, &batch);
    assert!(
        combined
            .iter()
            .all(|byte| (b' '..=b'~').contains(byte) || *byte == b'\n')
    );
    assert_eq!(
        combined.iter().filter(|byte| **byte == b'\n').count(),
        told.len()
    );
    assert_eq!(
        combined.iter().filter(|byte| **byte == b'"').count(),
        6 * told.len()
    );
    let written = lines(&SETTINGS, &batch);
    let written = std::str::from_utf8(&written).expect("a line is UTF-8");
    assert_eq!(written.matches('\n').count(), told.len());
    assert!(written.ends_with('\n'));
    for (line, told) in written.lines().zip(told) {
        let breaks = |c: char| c.is_control() || "\u{2028}\u{2029}\u{202e}\u{2066}".contains(c);
        assert!(!line.contains(breaks), "{line:?}");
        if let Err(error) = strict::parse(line.as_bytes()) {
            // A log is not signed: it may hold larger numbers and texts.
            assert!(!matches!(error.fault, Fault::Syntax(_)), "{error}: {line}");
            assert!(!error.to_string().contains("twice"), "{error}: {line}");
        }
        let line: Map<String, Value> = serde_json::from_str(line).expect("a line is an object");
        assert_eq!(line["event"], "request");
        assert_eq!(line["instance"], "a\"b\\\u{e9}");
        for (name, value) in told {
            assert_eq!(line.get(name), value.as_ref(), "{name}");
        }
    }
});

/// A record, and what its line should say.
// long: flat list of the members of a record.
fn record(bytes: &mut Bytes, batch: &mut Batch) -> (Record, Vec<(&'static str, Option<Value>)>) {
    let mut members = Vec::new();
    let texts: [Text; TEXTS.len()] = TEXTS.map(|name| {
        let text = bytes.text();
        members.push((name, text.map(|text| Value::from(weir_fuzz::text(text)))));
        batch.keep(text)
    });
    let [
        request_id,
        forwarded_for,
        method,
        host,
        path,
        query,
        user_agent,
        referer,
        content_type,
        response_content_type,
        cache_control,
        location,
        country,
        asn,
        as_name,
        application,
    ] = texts;
    let (claimed, kinds) = (bytes.text(), bytes.number() as usize);
    let crawler = claimed.map(|name| {
        let purpose = Purpose::ALL[kinds % Purpose::ALL.len()];
        let state = ClaimState::ALL[kinds / Purpose::ALL.len() % ClaimState::ALL.len()];
        let told = json!({
            "name": weir_fuzz::text(name),
            "purpose": purpose.name(),
            "state": state.name(),
        });
        (told, (batch.keep(Some(name)), purpose, state))
    });
    members.push(("crawler", crawler.as_ref().map(|(told, _)| told.clone())));
    let values: Vec<(usize, http::HeaderValue)> = (0..2)
        .filter_map(|place| Some((place, http::HeaderValue::from_bytes(bytes.text()?).ok()?)))
        .collect();
    let headers: Map<String, Value> = values
        .iter()
        .map(|(place, value)| {
            let name = ["accept", "x-own"][*place];
            (name.to_owned(), weir_fuzz::text(value.as_bytes()).into())
        })
        .collect();
    members.push(("headers", (!headers.is_empty()).then_some(headers.into())));
    let headers = batch.keep_headers(values.iter().map(|(place, value)| (*place, value)));

    let address = weir_fuzz::peer(bytes.number() as u8);
    let action = Action::ALL[bytes.number() as usize % Action::ALL.len()];
    let [content_length, requested, answered] = [(); 3].map(|()| bytes.number());
    let flags = bytes.number();
    let flag = |bit: u32| flags >> bit & 1 > 0;
    let counts = flag(0).then(|| [(); 6].map(|()| bytes.number()));
    members.extend([
        ("client", Some(Client::of(address).to_string().into())),
        ("address", Some(address.to_string().into())),
        ("action", Some(action.name().into())),
        ("content_length", flag(1).then_some(content_length.into())),
        ("has_cookie", Some(flag(2).into())),
        ("has_authorization", Some(flag(3).into())),
        ("websocket", Some(flag(4).into())),
        ("other_site", flag(8).then_some(true.into())),
        ("status", flag(5).then_some(429.into())),
        ("enforced", Some(flag(6).into())),
        ("limit_hit", flag(7).then_some("minute".into())),
        (
            "counts",
            counts.map(|counts| {
                let names = LimitKind::ALL.map(LimitKind::name);
                names.into_iter().zip(counts.map(Value::from)).collect()
            }),
        ),
        (
            "bytes",
            Some(
                [("request", requested), ("response", answered)]
                    .into_iter()
                    .collect(),
            ),
        ),
    ]);
    let record = Record {
        at_ms: bytes.number() % 253_402_300_800_000,
        request_id,
        client: Client::of(address),
        address,
        group: Group::Default,
        other_site: flag(8),
        forwarded_for,
        scheme: "http",
        method,
        host,
        path,
        query,
        version: Version::HTTP_11,
        user_agent,
        referer,
        content_type,
        content_length: flag(1).then_some(content_length),
        headers,
        has_authorization: flag(3),
        has_cookie: flag(2),
        websocket: flag(4),
        status: flag(5).then_some(StatusCode::TOO_MANY_REQUESTS),
        response_content_type,
        cache_control,
        location,
        action,
        enforced: flag(6),
        ban: None,
        limit_hit: flag(7).then_some(LimitHit::ALL[0]),
        shared: None,
        application,
        crawler: crawler.map(|(_, held)| held),
        rule: None,
        list: None,
        limit_percent: None,
        bytes_percent: None,
        country,
        asn,
        as_name,
        counts: counts.map(
            |[minute, hour, day, minute_bytes, hour_bytes, day_bytes]| Counts {
                requests: [minute, hour, day].into(),
                bytes: [minute_bytes, hour_bytes, day_bytes].into(),
            },
        ),
        request_bytes: requested,
        response_bytes: answered,
        total_us: bytes.number(),
        lookup_wait_us: flag(8).then(|| bytes.number()),
        connect_us: None,
        first_byte_us: None,
    };
    (record, members)
}

/// What is left of the input.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, count: usize) -> &'a [u8] {
        let (taken, left) = self.0.split_at(count.min(self.0.len()));
        self.0 = left;
        taken
    }

    /// A text after its length; none for a length of 255.
    fn text(&mut self) -> Option<&'a [u8]> {
        match self.take(1) {
            [255] => None,
            length => Some(self.take(length.first().map_or(0, |length| usize::from(*length)))),
        }
    }

    /// A number after how many bytes it has.
    fn number(&mut self) -> u64 {
        let count = self
            .take(1)
            .first()
            .map_or(0, |count| usize::from(count % 9));
        self.take(count)
            .iter()
            .fold(0, |number, byte| number << 8 | u64::from(*byte))
    }
}
