use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn netblocks(list: &ListText) -> Vec<String> {
    list.netblocks.iter().map(ToString::to_string).collect()
}

fn read(text: &str) -> ListText {
    parse(text.as_bytes(), MAX_LISTED).unwrap()
}

/// FEED-2: lists in the forms in which Google, Bing, Apple, OpenAI, AWS, Cloudflare, Spamhaus and
/// FireHOL publish theirs are read whole: every netblock in its order, and no line skipped.
#[test]
fn published_lists_are_read_as_they_are() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/lists");
    let expected: [(&str, &[&str]); 10] = [
        (
            "google.json",
            &[
                "2001:db8:4801:10::/64",
                "2001:db8:4801:11::/64",
                "192.0.2.0/27",
                "192.0.2.32/27",
            ],
        ),
        ("bing.json", &["198.51.100.0/28", "198.51.100.16/28"]),
        ("apple.json", &["203.0.113.0/25", "203.0.113.128/26"]),
        (
            "openai.json",
            &["192.0.2.64/28", "192.0.2.80/28", "192.0.2.96/32"],
        ),
        (
            "aws.json",
            &["198.51.100.64/26", "198.51.100.64/26", "2001:db8:f000::/36"],
        ),
        (
            "cloudflare.json",
            &["203.0.113.0/24", "198.51.100.0/24", "2001:db8:cf00::/40"],
        ),
        ("cloudflare.txt", &["203.0.113.0/24", "198.51.100.0/24"]),
        (
            "spamhaus.json",
            &["192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24"],
        ),
        ("spamhaus.txt", &["192.0.2.0/24", "198.51.100.0/24"]),
        (
            "firehol.netset",
            &["192.0.2.0/26", "198.51.100.7/32", "203.0.113.0/24"],
        ),
    ];
    let files = std::fs::read_dir(folder).unwrap();
    assert_eq!(files.count(), expected.len(), "each has its netblocks here");
    for (name, netblocks_of) in expected {
        let bytes = std::fs::read(format!("{folder}/{name}")).unwrap();
        let list = parse(&bytes, MAX_LISTED).unwrap();
        assert_eq!(netblocks(&list), netblocks_of, "{name}");
        assert_eq!(list.skipped, 0, "{name}");
    }
}

/// RULE-1, FEED-2: comments of both sorts, blanks, Windows line ends, a byte order mark and ranges
/// are read; a line that is no netblock is skipped, and the first five are reported with their
/// numbers.
#[test]
fn a_text_has_one_netblock_or_range_a_line() {
    let text = "\u{feff}192.0.2.0/24\r\n; DROP\n198.51.100.7 ; SBL1\n\n# c\n  2001:db8::/32 # x\nno\n203.0.113.1-9\n1.2.3.4/33\n{\n}\n[\n192.0.2.4 - 192.0.2.9\n2001:db8::1-2001:db8::2\n9.0.0.1-1.0.0.9\n";
    let list = read(text);
    assert_eq!(
        netblocks(&list),
        [
            "192.0.2.0/24",
            "198.51.100.7/32",
            "2001:db8::/32",
            "192.0.2.4/30",
            "192.0.2.8/31",
            "2001:db8::1/128",
            "2001:db8::2/128",
        ]
    );
    let first: &[usize] = &[7, 8, 9, 10, 11];
    assert_eq!((list.skipped, list.first_skipped.as_slice()), (7, first));
    assert_eq!(parse(b"\xff\xfe\n", 1).unwrap().skipped, 1);
    assert_eq!(read("<!DOCTYPE html>\n<p>Sign in</p>\n").skipped, 2);
}

/// FEED-2: JSON that is cut, or followed by something else, is one fault with its place, and
/// nothing of the list is used.
#[test]
fn json_with_a_fault_is_no_list() {
    let end = ": expected one whole JSON document, or one a line";
    for (text, fault) in [
        (
            r#"{"prefixes":[{"ipv4Prefix":"192.0.2.0/24"},"#,
            "line 1, column 43, at \"/prefixes/1\": EOF while parsing a value",
        ),
        (
            "{\"a/b\":\n{\"c\":\"192.0.2.1\" x}}",
            "line 2, column 18, at \"/a~1b\": expected `,` or `}`",
        ),
        (
            "{\"cidr\":\"192.0.2.0/24\"}\n\n{\"cidr\":\"198.51.10",
            "line 3, column 18, at \"/cidr\": EOF while parsing a string",
        ),
        (
            "{\"cidr\":\"192.0.2.0/24\"}\n192.0.2.0/24\n",
            "line 2, column 6, at \"\": trailing characters",
        ),
        ("[1] [2]", "line 1, column 5, at \"\": trailing characters"),
    ] {
        let told = parse(text.as_bytes(), MAX_LISTED).unwrap_err().to_string();
        assert_eq!(told, format!("{fault}{end}"), "{text}");
    }
    let deep = "[".repeat(100_000);
    let told = parse(deep.as_bytes(), 1).unwrap_err().to_string();
    assert!(told.contains("recursion limit exceeded"), "{told}");
    assert!(told.len() < 500, "{told}");
}

/// FEED-2: no more netblocks are read than there is room for, in any notation.
#[test]
fn a_list_is_bounded() {
    let range = "::1-ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe";
    for text in [
        range.to_owned(),
        json!([range]).to_string(),
        format!("\"{range}\"\n[]"),
    ] {
        assert_eq!(read(&text).netblocks.len(), 254, "{text}");
        assert!(parse(text.as_bytes(), 254).is_ok());
        let full = parse(text.as_bytes(), 253).unwrap_err();
        assert_eq!(full, Unusable::TooMany(253), "{text}");
    }
}

/// FEED-2: a fault of a netblock in JSON names its place: in the document, or in its line.
#[test]
fn a_netblock_has_a_place() {
    let places = |text: &str| {
        let mut places = Vec::new();
        each(text.as_bytes(), 9, &mut |found| {
            places.push((found.line, found.pointer.to_owned(), found.text.to_owned()));
        })
        .unwrap();
        places
    };
    let at = |line: Option<usize>, pointer: &str, text: &str| {
        (line, pointer.to_owned(), text.to_owned())
    };
    assert_eq!(
        places("{\"a\":[1,{\"b\":\"192.0.2.1\"}],\n\"c~\":\"192.0.2.2\"}"),
        [
            at(None, "/a/1/b", "192.0.2.1"),
            at(None, "/c~0", "192.0.2.2"),
        ]
    );
    assert_eq!(
        places("{\"a\":\"192.0.2.1\"}\n\n[\"192.0.2.2\"]\n"),
        [
            at(Some(1), "/a", "192.0.2.1"),
            at(Some(3), "/0", "192.0.2.2"),
        ]
    );
    assert_eq!(places("\n192.0.2.1 # x"), [at(Some(2), "", "192.0.2.1")]);
}

/// A text that may be a netblock, as people write them, and what is nearly one.
fn written() -> impl Strategy<Value = String> {
    let v4 = any::<u32>().prop_map(|bits| std::net::Ipv4Addr::from(bits).to_string());
    let near = (
        0u32..300,
        0u32..300,
        prop::sample::select(vec!["-", " - ", "--"]),
    );
    let near = near.prop_map(|(first, last, dash)| {
        let [first, last] = [first, last].map(|end| std::net::Ipv4Addr::from(u32::MAX - 299 + end));
        format!("{first}{dash}{last}")
    });
    prop_oneof![
        v4,
        (any::<u32>(), 0u8..35)
            .prop_map(|(bits, length)| format!("{}/{length}", std::net::Ipv4Addr::from(bits))),
        (any::<u128>(), 0u8..130)
            .prop_map(|(bits, length)| format!("{}/{length}", std::net::Ipv6Addr::from(bits))),
        near,
        prop::sample::select(vec![
            "",
            "AMAZON",
            "eu-central-1",
            "2026-11-21-16-00-00",
            "fe80::1%eth0",
            "::ffff:192.0.2.1",
            "192.0.2.1-2001:db8::1",
            "1.2.3",
            "::1-::f",
            "-",
            "1-",
        ])
        .prop_map(str::to_owned),
    ]
}

/// The addresses that a text stands for, as first and last of each netblock, joined where one
/// follows the other.
fn joined(netblocks: impl IntoIterator<Item = Netblock>) -> Vec<(IpAddr, IpAddr)> {
    let mut joined: Vec<(IpAddr, IpAddr)> = Vec::new();
    for netblock in netblocks {
        let (first, last) = (netblock.net().network(), netblock.net().broadcast());
        let follows = |end: IpAddr| match (end, first) {
            (IpAddr::V4(end), IpAddr::V4(first)) => {
                end.to_bits().checked_add(1) == Some(first.to_bits())
            }
            (IpAddr::V6(end), IpAddr::V6(first)) => {
                end.to_bits().checked_add(1) == Some(first.to_bits())
            }
            _ => false,
        };
        match joined.last_mut() {
            Some((_, end)) if follows(*end) => *end = last,
            _ => joined.push((first, last)),
        }
    }
    joined
}

/// The same, naively; none where the text is no netblock.
fn naive(text: &str) -> Option<(IpAddr, IpAddr)> {
    if let Some((first, last)) = text.split_once('-') {
        let first: IpAddr = first.trim().parse().ok()?;
        let last: IpAddr = last.trim().parse().ok()?;
        let fits = first.is_ipv4() == last.is_ipv4() && first <= last;
        return fits.then_some((first, last));
    }
    let netblock: Netblock = text.parse().ok()?;
    Some((netblock.net().network(), netblock.net().broadcast()))
}

fn walk(value: &Value, texts: &mut Vec<String>) {
    match value {
        Value::String(text) => texts.push(text.clone()),
        Value::Array(items) => items.iter().for_each(|item| walk(item, texts)),
        Value::Object(members) => members.values().for_each(|value| walk(value, texts)),
        _ => {}
    }
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        4 => written().prop_map(Value::from),
        1 => prop::sample::select(vec![json!(null), json!(true), json!(-1), json!(1.5), json!(u64::MAX)]),
    ];
    leaf.prop_recursive(4, 40, 6, |inside| {
        let names = prop::sample::select(vec!["a", "ip/v4", "~", "", "192.0.2.1"]);
        prop_oneof![
            prop::collection::vec(inside.clone(), 0..6).prop_map(Value::from),
            prop::collection::vec((names, inside), 0..5).prop_map(|members| {
                let members = members
                    .into_iter()
                    .map(|(name, value)| (name.to_owned(), value));
                Value::Object(members.collect())
            }),
        ]
    })
}

/// FEED-2: blanks around a netblock or a range mean nothing, in a text and in a string of JSON.
#[test]
fn blanks_around_a_netblock_mean_nothing() {
    for text in [
        "192.0.2.0/31",
        "192.0.2.0-192.0.2.1",
        "192.0.2.0 - 192.0.2.1",
    ] {
        let blanks = format!(" {text}\t");
        for list in [read(&blanks), read(&json!([blanks]).to_string())] {
            assert_eq!(netblocks(&list), ["192.0.2.0/31"], "{text}");
        }
    }
}

/// FEED-2: lines of white space that JSON does not know are blank all the same, before and after a
/// document; a fault has its line in the file.
#[test]
fn blank_lines_are_around_a_document() {
    for text in [
        "\n\"192.0.2.1\"\n\n\u{c}\u{c}\t",
        "\n\u{c}\n\"192.0.2.1\"",
        "\u{c}\n[\n\"192.0.2.1\"\n]\n\u{c}",
    ] {
        assert_eq!(read(text).netblocks.len(), 1, "{text:?}");
    }
    let fault = parse(b"\x0c\n[\n  x]", MAX_LISTED).unwrap_err();
    assert!(fault.to_string().starts_with("line 3, column 3"), "{fault}");
}

/// RULE-1: the report about a line that is no netblock has the beginning of the line.
#[test]
fn a_bad_line_is_told_short() {
    let told = expected(&"ä".repeat(41));
    assert!(
        told.starts_with(&format!("\"{}…\" is not", "ä".repeat(40))),
        "{told}"
    );
    assert!(expected(&"x".repeat(40)).starts_with(&format!("\"{}\" is not", "x".repeat(40))));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// FEED-2: a text has the netblocks of its lines, each as if it stood alone, and a range has
    /// exactly its addresses in as few netblocks as there can be.
    #[test]
    fn a_text_agrees_with_its_lines(lines in prop::collection::vec(written(), 0..20)) {
        for text in &lines {
            let list = read(text);
            match naive(text) {
                None => prop_assert!(list.netblocks.is_empty(), "{}", text),
                Some(expected) => {
                    prop_assert_eq!(joined(list.netblocks.iter().copied()), [expected], "{}", text);
                    for pair in list.netblocks.windows(2) {
                        let [one, next] = pair else { unreachable!() };
                        let wider = Netblock::masked(one.net().addr(), one.net().prefix_len() - 1);
                        prop_assert!(!(wider.covers(*next) && one.net().prefix_len() == next.net().prefix_len()));
                    }
                }
            }
        }
        let list = read(&lines.join(" # c\n"));
        let alone: Vec<Netblock> = lines.iter().flat_map(|line| read(line).netblocks).collect();
        prop_assert_eq!(list.netblocks, alone);
        let bad = lines.iter().filter(|line| !line.is_empty() && naive(line).is_none());
        prop_assert_eq!(list.skipped, bad.count());
    }

    /// FEED-2: in JSON exactly those strings count that would be a netblock as a line, at every
    /// level, in one document or in one document a line.
    #[test]
    fn json_agrees_with_a_walk(values in prop::collection::vec(value(), 1..5)) {
        let mut texts = Vec::new();
        values.iter().for_each(|value| walk(value, &mut texts));
        let expected: Vec<Netblock> = texts.iter().flat_map(|text| read(text).netblocks).collect();
        let document = Value::from(values.clone());
        for text in [document.to_string(), serde_json::to_string_pretty(&document).unwrap()] {
            prop_assert_eq!(&read(&text).netblocks, &expected, "{}", text);
        }
        let mut lines = vec!["{}".to_owned()];
        lines.extend(values.iter().map(Value::to_string));
        let lines = lines.join("\r\n");
        prop_assert_eq!(&read(&lines).netblocks, &expected, "{}", lines);
    }

    /// FEED-2: any bytes lead to a result, with never more netblocks than there is room for.
    #[test]
    fn any_bytes_are_read(begin in prop::sample::select(vec!["", "{\"a\":", "[", "\"", "\u{feff}["]),
        bytes in prop::collection::vec(any::<u8>(), 0..200), room in 0usize..3) {
        let bytes = [begin.as_bytes(), &bytes].concat();
        if let Ok(list) = parse(&bytes, room) {
            prop_assert!(list.fits(room));
        }
    }
}
