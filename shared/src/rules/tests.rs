use http::header::HOST;
use http::{HeaderMap, HeaderValue, Method};
use proptest::prelude::*;

use super::*;
use crate::netblock::Netblock;

fn rule(kind: RuleKind, name: &str) -> Arc<Rule> {
    Arc::new(Rule::new(kind, name.to_owned()))
}

fn limit(name: &str, matcher: Matcher) -> Limit {
    Limit {
        rule: rule(RuleKind::Limit, name),
        matcher,
        quotas: vec![Quota {
            span: RuleSpan::Minute,
            limit: 1,
        }],
        on_limit: OnLimit::Ban,
    }
}

fn with_limits(limits: Vec<Limit>) -> RuleSet {
    RuleSet::new(
        NetList::default(),
        NetList::default(),
        Traps::default(),
        limits,
        vec![],
    )
}

fn traps(traps: &[(&str, &[&str])]) -> Traps {
    let mut found = Traps::default();
    for (name, paths) in traps {
        found.add(rule(RuleKind::Trap, name), *paths);
    }
    found
}

fn hosts(host: &str) -> HeaderMap {
    HeaderMap::from_iter([(HOST, HeaderValue::try_from(host).unwrap())])
}

/// RULE-2: a path is a prefix of whole segments, or exact, after everything in it is resolved;
/// methods as they are written, the host without its port and in any case.
#[test]
fn limits_match_path_method_and_host() {
    let rules = with_limits(vec![
        limit(
            "login",
            Matcher::new(Some(("/login", false)), vec![Method::POST], None),
        ),
        limit("exact", Matcher::new(Some(("/login", true)), vec![], None)),
        limit("host", Matcher::new(None, vec![], Some("Example.org:8080"))),
        limit(
            "all",
            Matcher::new(Some(("/", false)), vec![], Some("other")),
        ),
        limit("root", Matcher::new(Some(("/", true)), vec![], None)),
    ]);
    let matched = |method: Method, path: &str, host: &str| -> Vec<String> {
        let headers = hosts(host);
        let asking = Asking {
            path,
            method: &method,
            host: Host::Among(&headers),
        };
        let limits = rules.matched(&asking).limits.iter();
        limits.map(|limit| limit.rule.name.clone()).collect()
    };
    for path in [
        "/login",
        "//login",
        "/%6cogin",
        "/x/../login",
        "/a/..//./login",
    ] {
        assert_eq!(
            matched(Method::POST, path, "a"),
            ["login", "exact"],
            "{path}"
        );
    }
    assert_eq!(matched(Method::POST, "/login/", "a"), ["login"]);
    assert_eq!(matched(Method::POST, "/login//2fa", "a"), ["login"]);
    assert_eq!(matched(Method::GET, "/login", "a"), ["exact"]);
    assert_eq!(matched(Method::POST, "/loginx", "a"), [""; 0]);
    for host in [
        "example.org",
        "EXAMPLE.org:1",
        "example.org.",
        "example.org.:80",
    ] {
        assert_eq!(matched(Method::GET, "/x", host), ["host"], "{host}");
    }
    assert_eq!(matched(Method::GET, "/x", "www.example.org"), [""; 0]);
    assert_eq!(matched(Method::GET, "/", "other"), ["all", "root"]);
    assert_eq!(matched(Method::OPTIONS, "*", "example.org"), ["host"]);
}

/// RULE-2: an IPv6 address is a host as well.
#[test]
fn a_host_can_be_an_address() {
    let rules = with_limits(vec![limit(
        "v6",
        Matcher::new(None, vec![], Some("[2001:db8::1]")),
    )]);
    for (host, matches) in [
        ("[2001:db8::1]:80", true),
        ("[2001:DB8::1]", true),
        ("[2001:db8::2]", false),
    ] {
        let headers = hosts(host);
        let asking = Asking {
            path: "/",
            method: &Method::GET,
            host: Host::Among(&headers),
        };
        assert_eq!(!rules.matched(&asking).limits.is_empty(), matches, "{host}");
    }
}

/// RULE-3: a path is exact, and with a slash at its end the folder itself and everything below.
#[test]
fn traps_are_paths_and_folders() {
    let traps = traps(&[
        ("one", &["/.env", "/.git/", "/a/b/"]),
        ("two", &["/.env", "/a"]),
    ]);
    for (path, expected) in [
        ("/.env", Some("one")),
        ("/.env/", None),
        ("/.envx", None),
        ("/.git", Some("one")),
        ("/.git/", Some("one")),
        ("/.git/config", Some("one")),
        ("/.github", None),
        ("/a", Some("two")),
        ("/a/b", Some("one")),
        ("/a/c", None),
        ("/", None),
        ("*", None),
    ] {
        let found = traps.find(path).map(|rule| rule.name.as_str());
        assert_eq!(found, expected, "{path}");
    }
}

/// RULE-4: jails are chosen by status first, then as limits are.
#[test]
fn jails_match_status_and_path() {
    let jail = |name: &str, path: Option<&str>, statuses: &[u16]| Jail {
        rule: rule(RuleKind::Jail, name),
        matcher: Matcher::new(path.map(|path| (path, false)), vec![], None),
        statuses: statuses
            .iter()
            .map(|status| StatusCode::from_u16(*status).unwrap())
            .collect(),
        quotas: vec![],
    };
    let jails = vec![
        jail("all", None, &[404]),
        jail("auth", Some("/login"), &[401, 404]),
    ];
    let rules = RuleSet::new(
        NetList::default(),
        NetList::default(),
        Traps::default(),
        vec![],
        jails,
    );
    for (status, path, expected) in [
        (404, "/x", &["all"][..]),
        (404, "//login/x", &["all", "auth"]),
        (401, "/login", &["auth"]),
        (401, "/x", &[]),
        (200, "/login", &[]),
    ] {
        let asking = Asking {
            path,
            method: &Method::GET,
            host: Host::Is(None),
        };
        let status = StatusCode::from_u16(status).unwrap();
        let found: Vec<_> = rules
            .jails(status, &asking)
            .map(|jail| &jail.rule.name)
            .collect();
        assert_eq!(found, expected, "{status} {path}");
    }
}

fn path_of(pieces: &'static [&'static str]) -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(pieces), 0..8)
        .prop_map(|pieces| format!("/{}", pieces.concat()))
}

/// The naive twin of a path's form: decoded, then segment by segment.
fn plain(path: &str) -> String {
    let decoded = path
        .replace("%61", "a")
        .replace("%2E", ".")
        .replace("%2e", ".");
    let mut kept: Vec<&str> = Vec::new();
    let segments: Vec<&str> = decoded.split('/').skip(1).collect();
    for segment in &segments {
        match *segment {
            "" | "." => {}
            ".." => drop(kept.pop()),
            _ => kept.push(segment),
        }
    }
    let last = segments.last().copied().unwrap_or_default();
    let slash = matches!(last, "" | "." | "..") && !kept.is_empty();
    format!("/{}{}", kept.join("/"), if slash { "/" } else { "" })
}

const PIECES: &[&str] = &[
    "/", "/", "/", "a", "b", "ab", ".", "..", "%61", "%2e", "%2E",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    /// RULE-2, RULE-3: the form in which paths are compared agrees with a naive twin.
    #[test]
    fn the_form_of_a_path_agrees_with_its_naive_twin(path in path_of(PIECES)) {
        prop_assert_eq!(path::rule_form(&path), plain(&path), "{}", path);
    }

    /// RULE-2, RULE-3: prefixes, exact paths and folders agree with a comparison of whole lists of
    /// segments.
    #[test]
    fn paths_agree_with_their_naive_twin(
        rules in prop::collection::vec((path_of(&["/", "a", "b", "ab"]), any::<bool>()), 1..6),
        path in path_of(PIECES),
    ) {
        let plain_path = plain(&path);
        let segments = |path: &str| -> Vec<String> { path.trim_end_matches('/').split('/').map(str::to_owned).collect() };
        let limits = rules.iter().enumerate().map(|(index, (path, exact))| {
            limit(&index.to_string(), Matcher::new(Some((path, *exact)), vec![], None))
        });
        let set = with_limits(limits.collect());
        let headers = HeaderMap::new();
        let asking = Asking { path: &path, method: &Method::GET, host: Host::Among(&headers) };
        let found: Vec<String> = set.matched(&asking).limits.iter().map(|limit| limit.rule.name.clone()).collect();
        let twin: Vec<String> = rules.iter().enumerate().filter(|(_, (rule, exact))| {
            let rule = plain(rule);
            if *exact { rule == plain_path } else { segments(&plain_path).starts_with(&segments(&rule)) }
        }).map(|(index, _)| index.to_string()).collect();
        prop_assert_eq!(found, twin);

        let mut traps = Traps::default();
        for (index, (path, _)) in rules.iter().enumerate() {
            traps.add(rule(RuleKind::Trap, &index.to_string()), [path]);
        }
        let caught = rules.iter().any(|(rule, _)| {
            let rule = plain(rule);
            match rule.strip_suffix('/') {
                Some(folder) => segments(&plain_path).starts_with(&segments(folder)),
                None => rule == plain_path,
            }
        });
        prop_assert_eq!(traps.find(&path::rule_form(&path)).is_some(), caught);
    }
}

fn address(bits: u32, six: bool) -> std::net::IpAddr {
    if six {
        std::net::IpAddr::V6(
            ((0x2001_0db8_u128 << 96) | u128::from(bits) << 64 | u128::from(bits)).into(),
        )
    } else {
        std::net::IpAddr::V4(bits.into())
    }
}

proptest! {
    /// RULE-1: a list answers as a walk over all its members does, with the narrowest that covers
    /// the address, and of equal ones the first.
    #[test]
    fn a_list_agrees_with_its_naive_twin(
        members in prop::collection::vec((0u32..1 << 20, 8u8..=32, any::<bool>()), 0..60),
        probes in prop::collection::vec((0u32..1 << 20, any::<bool>()), 40),
    ) {
        let members: Vec<_> = members.into_iter().enumerate().map(|(index, (bits, length, six))| {
            let length = if six { length * 4 } else { length };
            (Netblock::masked(address(bits << 6, six), length), rule(RuleKind::Deny, &index.to_string()))
        }).collect();
        let list = NetList::new(members.clone());
        for (bits, six) in probes {
            let address = address(bits << 6 | 1, six);
            let covering = members.iter().filter(|(netblock, _)| netblock.contains(address));
            // `max_by_key` gives the last of equal ones: from behind, that is the first.
            let twin = covering.rev().max_by_key(|(netblock, _)| netblock.net().prefix_len());
            let found = list.find(address).map(|hit| (hit.netblock, hit.source));
            prop_assert_eq!(found.as_ref(), twin);
            prop_assert_eq!(list.contains(address), twin.is_some());
        }
    }
}

/// RULE-1: 100,000 netblocks of every length, nested and apart, IPv4 and IPv6, at the ends of the
/// address space as well: the list answers as a walk over all members does.
#[test]
fn a_list_of_100_000_agrees_with_its_naive_twin() {
    let source = rule(RuleKind::Deny, "drop.txt");
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    let mut members: Vec<Netblock> = ["0.0.0.0/32", "255.255.255.255/32", "::/128", "ffff::/16"]
        .map(|text| text.parse().unwrap())
        .into();
    while members.len() < MAX_NETBLOCKS {
        let bits = next() as u32;
        let six = next() % 4 == 0;
        let length = 14 + (next() % 19) as u8;
        members.push(Netblock::masked(
            address(bits, six),
            if six { 32 + length } else { length },
        ));
    }
    let list = NetList::new(members.iter().map(|member| (*member, Arc::clone(&source))));
    let ends = [
        "0.0.0.0",
        "0.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "ffff::1",
    ];
    let mut probes: Vec<std::net::IpAddr> = ends.map(|text| text.parse().unwrap()).into();
    probes.extend((0..200).map(|_| address(next() as u32, next() % 4 == 0)));
    // Some that a narrow member covers.
    probes.extend(
        members
            .iter()
            .step_by(500)
            .map(|member| member.net().addr()),
    );
    let mut covered = 0;
    for probe in probes {
        let twin = members
            .iter()
            .filter(|member| member.contains(probe))
            .max_by_key(|member| member.net().prefix_len());
        assert_eq!(
            list.find(probe).map(|hit| hit.netblock).as_ref(),
            twin,
            "{probe}"
        );
        covered += usize::from(twin.is_some());
    }
    assert!(covered > 200, "{covered}");
}
