use std::sync::Arc;

use http::header::HOST;
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use proptest::prelude::*;

use super::paths::{Marks, Paths, Reach};
use super::*;
use crate::ban::Scope;
use crate::netblock::Netblock;
use crate::settings::OnLimit;
use crate::window::RuleSpan;

/// Who asks, where that makes no difference.
pub(super) const ANYBODY: std::net::IpAddr =
    std::net::IpAddr::V4(std::net::Ipv4Addr::new(203, 0, 113, 7));

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
        per: super::entries::Per::Client,
        spare_known: None,
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

fn trap(name: &str) -> Trap {
    Trap {
        rule: rule(RuleKind::Trap, name),
        scope: Scope::Client,
    }
}

fn traps(traps: &[(&str, &[&str])]) -> Traps {
    let mut found = Traps::default();
    for (name, paths) in traps {
        found.add(trap(name), *paths);
    }
    found
}

fn hosts(host: &str) -> HeaderMap {
    HeaderMap::from_iter([(HOST, HeaderValue::try_from(host).unwrap())])
}

/// RULE-2: a path is a prefix of whole segments, or exact, after all its escapes and dot segments
/// are resolved; the host matches without its port and in any case.
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
            address: ANYBODY,
            sent: &headers,
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
            address: ANYBODY,
            sent: &headers,
        };
        assert_eq!(!rules.matched(&asking).limits.is_empty(), matches, "{host}");
    }
}

fn get(path: &str) -> Asking<'_> {
    Asking {
        path,
        method: &Method::GET,
        address: ANYBODY,
        sent: &(),
    }
}

fn with_traps(traps: Traps) -> RuleSet {
    let (allow, deny) = (NetList::default(), NetList::default());
    RuleSet::new(allow, deny, traps, vec![], vec![])
}

/// RULE-3, RULE-7: a trap is its paths and everything below them, a file's path among them; the
/// outermost decides.
#[test]
fn a_trap_covers_what_is_below() {
    let rules = with_traps(traps(&[
        ("one", &["/.env", "/.git/", "/a/b/"]),
        ("two", &["/.env", "/a/b/c", "/x.php"]),
    ]));
    for (path, expected) in [
        ("/.env", Some("one")),
        ("/.env/", Some("one")),
        ("/.envx", None),
        ("/.git", Some("one")),
        ("/.git/", Some("one")),
        ("/.git/config", Some("one")),
        ("/.github", None),
        ("/a", None),
        ("/a/b", Some("one")),
        ("/a/b/c", Some("one")),
        ("/x.php/y", Some("two")),
        ("/", None),
        ("*", None),
    ] {
        let found = rules.matched(&get(path)).trap;
        assert_eq!(
            found.map(|trap| trap.rule.name.as_str()),
            expected,
            "{path}"
        );
    }
}

/// RULE-7: a path that an application could read as the path of a rule matches the rule.
#[test]
fn a_rule_matches_every_spelling() {
    let whole =
        |name: &str, path: &str| limit(name, Matcher::new(Some((path, true)), vec![], None));
    let below =
        |name: &str, path: &str| limit(name, Matcher::new(Some((path, false)), vec![], None));
    let rules = with_limits(vec![
        below("login", "/login"),
        whole("whole", "/login"),
        below("at", "/admin@old"),
        below("café", "/café"),
        below("git", "/.git/config"),
        whole("root", "/"),
        below("strange", "/..;/manager"),
    ]);
    let names = |path: &str| -> Vec<String> {
        let limits = rules.matched(&get(path)).limits.iter();
        limits.map(|limit| limit.rule.name.clone()).collect()
    };
    for path in [
        "/login",
        "/Login",
        "/LOGIN",
        "/login;a=b",
        "/login/",
        "/login%2F",
        "/login%2f",
        "/login%20",
        "/login%09",
        "/login.",
        "/login%2e",
        "/login..%20",
        "/%6Cogin",
        "/%256cogin",
        "/lo%67in;x=y/",
        "/x/..;/login",
        "/x/..;a/login",
        "/x/%2e%2e/login",
        "/x/%252e%252e%2flogin",
        "/x%2f..%2flogin",
        "/x/..%20/login",
        "/./login",
        "//login",
        "/%5clogin",
        "/x%5c..%5clogin",
        "/;a=b/login",
        "/login%3fx=y",
        "/login%23x",
        "/login%00.html",
        "/login%3bx=y",
        "/login;%2fx",
        "/a//../login",
        "/a%2fb/../login",
    ] {
        assert_eq!(names(path), ["login", "whole"], "{path}");
    }
    for path in [
        "/login/x",
        "/login/../x",
        "/LOGIN%2Fx",
        "/login;x/y",
        "/x/..;/login/y",
    ] {
        assert_eq!(names(path), ["login"], "{path}");
    }
    for path in [
        "/admin@old",
        "/admin%40old",
        "/admin%40OLD/x",
        "/admin%2540old",
    ] {
        assert_eq!(names(path), ["at"], "{path}");
    }
    for path in ["/café", "/caf%C3%A9", "/caf%c3%a9/x", "/CAF%C3%89"] {
        assert_eq!(names(path), ["café"], "{path}");
    }
    for path in [
        "/.git/config",
        "/.git%2fconfig",
        "/.GIT/Config",
        "/%5c.git%5cconfig",
        "/.git./config",
    ] {
        assert_eq!(names(path), ["git"], "{path}");
    }
    for path in ["/", "//", "/.", "/%2e", "/;x", "/%20"] {
        assert_eq!(names(path), ["root"], "{path}");
    }
    assert_eq!(names("/..;/manager/html"), ["strange"]);
    for path in [
        "/loginx",
        "/login-x",
        "/x/login",
        "/log",
        "/lo/gin",
        "/login%252520",
        "/caf",
        "/x;/login",
    ] {
        assert_eq!(names(path), [""; 0], "{path}");
    }
}

/// RULE-7: a rule can ask for the exact case; everything else is read as loosely as without that.
#[test]
fn exact_case_minds_the_case_alone() {
    let of = |path, whole| Matcher::new(Some((path, whole)), vec![], None).with_case(Case::Exact);
    let mut paths = Traps::default();
    paths.add_with_case(trap("trap"), Case::Exact, ["/WEB-INF"]);
    let (allow, deny) = (NetList::default(), NetList::default());
    let limits = vec![
        limit("below", of("/API", false)),
        limit("whole", of("/API", true)),
    ];
    let rules = RuleSet::new(allow, deny, paths, limits, vec![]);
    let limits = |path: &str| rules.matched(&get(path)).limits.iter().count();
    assert_eq!(
        ["/API", "/API;x", "/x/..;/API", "/%41PI%20"].map(limits),
        [2; 4]
    );
    assert_eq!(["/API/x", "/API%2fx"].map(limits), [1; 2]);
    assert_eq!(["/api", "/Api", "/api;x", "/%61PI"].map(limits), [0; 4]);
    assert!(rules.matched(&get("/WEB-INF/web.xml")).trap.is_some());
    assert!(rules.matched(&get("/web-inf/web.xml")).trap.is_none());
}

/// RULE-7: methods are compared in capital letters.
#[test]
fn methods_match_in_any_case() {
    let rules = with_limits(vec![
        limit("post", Matcher::new(None, vec![Method::POST], None)),
        limit(
            "purge",
            Matcher::new(None, vec![Method::from_bytes(b"purge").unwrap()], None),
        ),
    ]);
    for (method, expected) in [
        ("POST", 1),
        ("post", 1),
        ("PoSt", 1),
        ("PURGE", 1),
        ("GET", 0),
        ("POSTS", 0),
    ] {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let asking = Asking {
            method: &method,
            ..get("/")
        };
        assert_eq!(
            rules.matched(&asking).limits.iter().count(),
            expected,
            "{method}"
        );
    }
}

/// RULE-7: a path with too many readings to check matches every rule; a path that is only long, or
/// has only `..` segments, does not.
#[test]
fn a_path_takes_a_bounded_number_of_looks() {
    let names: Vec<String> = (0..2000).map(|number| format!("/d{number}/x")).collect();
    let mut all = Traps::default();
    all.add(trap("many"), &names);
    let rules = with_traps(all);
    let trapped = |path: &str| rules.matched(&get(path)).trap.is_some();
    let climbing: String = (0..2000).map(|number| format!("/d{number}/..;")).collect();
    assert!(trapped(&climbing));
    assert!(!trapped(&"/..".repeat(5000)));
    assert!(!trapped(&"/A%20b".repeat(5000)));
    assert!(!trapped(&format!("{}/d1", "/..".repeat(1000))));
    assert!(trapped(&format!("{}/d1/x", "/..".repeat(1000))));
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
        scope: Scope::Client,
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
            address: ANYBODY,
            sent: &(),
        };
        let status = StatusCode::from_u16(status).unwrap();
        let found: Vec<_> = rules
            .jails(status, &asking, || None, None)
            .map(|jail| &jail.rule.name)
            .collect();
        assert_eq!(found, expected, "{status} {path}");
    }
}

fn path_of(pieces: &'static [&'static str]) -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(pieces), 0..8)
        .prop_map(|pieces| format!("/{}", pieces.concat()))
}

/// One of the ways in which an application may read a path: a bit for each of its habits.
#[derive(Clone, Copy, Debug)]
struct Habits {
    decodings: u32,
    backslash: bool,
    cuts_parameters: bool,
    trims: bool,
    merges: bool,
    resolves: bool,
    resolves_first: bool,
    folds: bool,
    ends_at_mark: bool,
    is_of_a_rule: bool,
}

impl Habits {
    fn all() -> impl Iterator<Item = Self> {
        (0..3 << 8).map(|bits: u32| {
            let has = |bit: u32| bits >> bit & 1 == 1;
            Self {
                decodings: bits >> 8,
                backslash: has(0),
                cuts_parameters: has(1),
                trims: has(2),
                merges: has(3),
                resolves: has(4),
                resolves_first: has(5),
                folds: has(6),
                ends_at_mark: has(7),
                is_of_a_rule: false,
            }
        })
    }

    /// The segments of a path; one that is empty at the end is none.
    fn read(self, path: &str) -> Vec<String> {
        let mut text = path.to_owned();
        if self.resolves_first {
            text = format!("/{}", resolved(text.split('/').skip(1)).join("/"));
        }
        for _ in 0..self.decodings {
            text = decoded(&text);
        }
        if self.ends_at_mark {
            text.truncate(text.find(['?', '#']).unwrap_or(text.len()));
        }
        if self.backslash {
            text = text.replace('\\', "/");
        }
        if self.folds {
            text = text.to_lowercase();
        }
        let cut = |segment: &str| -> String {
            let mut segment = segment;
            if self.cuts_parameters {
                segment = segment.split(';').next().unwrap();
            }
            if self.trims && segment != "." && segment != ".." {
                let trimmed = segment.trim_end_matches(['.', ' ']);
                // Nobody writes a rule for a segment that is nothing.
                if !(trimmed.is_empty() && self.is_of_a_rule) {
                    segment = trimmed;
                }
            }
            segment.to_owned()
        };
        let mut segments: Vec<String> = text.split('/').skip(1).map(cut).collect();
        if self.merges {
            segments.retain(|segment| !segment.is_empty());
        }
        if self.resolves {
            segments = resolved(segments.iter().map(String::as_str));
        }
        if segments.last().is_some_and(String::is_empty) {
            segments.pop();
        }
        segments
    }
}

fn resolved<'a>(segments: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut kept: Vec<String> = Vec::new();
    for segment in segments {
        match segment {
            "." => {}
            ".." => drop(kept.pop()),
            _ => kept.push(segment.to_owned()),
        }
    }
    kept
}

fn decoded(text: &str) -> String {
    let (bytes, mut at, mut out) = (text.as_bytes(), 0, Vec::new());
    while at < bytes.len() {
        let code = text.get(at + 1..at + 3).filter(|_| bytes[at] == b'%');
        match code.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) if byte.is_ascii() => {
                out.push(byte);
                at += 3;
            }
            _ => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8(out).unwrap()
}

const PIECES: &[&str] = &[
    "/", "/", "/", "/", "a", "b", "ab", "A", ".", "..", "..", "%61", "%2561", "%2e", "%2E%2e",
    "%252e", "%2f", "%252F", "\\", "%5c", ";", "%3b", ";x", "%20", "%2520", "%3f", "%23", "%",
];
const PLAIN_PIECES: &[&str] = &["/", "/", "a", "b", "ab", ".a", "-"];

/// The limits of these paths, whole or with what is below, that match a path.
fn found(rules: &[(String, bool)], path: &str) -> Vec<usize> {
    let limits = rules.iter().enumerate().map(|(index, (path, whole))| {
        limit(
            &index.to_string(),
            Matcher::new(Some((path, *whole)), vec![], None),
        )
    });
    let set = with_limits(limits.collect());
    let limits = set.matched(&get(path)).limits.iter();
    limits
        .map(|limit| limit.rule.name.parse().unwrap())
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8000))]

    /// RULE-7: if an application reads a path as a rule's path, or as one below it, the rule
    /// matches; the same for traps and limits.
    #[test]
    fn no_reading_of_a_path_gets_past_a_rule(
        rules in prop::collection::vec((path_of(&["/", "/", "a", "b", "ab", "A", "%61", "%2f", ";x", "a.", ".b"]), any::<bool>()), 1..5),
        path in path_of(PIECES),
    ) {
        let found = found(&rules, &path);
        for habits in Habits::all() {
            let read = habits.read(&path);
            for (index, (rule, whole)) in rules.iter().enumerate() {
                // Nobody cuts the parameters off a rule that names them.
                let rule_habits = Habits { is_of_a_rule: true, cuts_parameters: false, resolves: true, merges: true, ..habits };
                let rule_read = rule_habits.read(rule);
                let matches = if *whole { rule_read == read } else { read.starts_with(&rule_read) };
                prop_assert!(!matches || found.contains(&index), "{} is {} as {:?}", path, rule, habits);
            }
        }
        let mut traps = Traps::default();
        traps.add(trap("trap"), rules.iter().map(|(path, _)| path));
        let below: Vec<_> = rules.iter().map(|(path, _)| (path.clone(), false)).collect();
        let trapped = with_traps(traps).matched(&get(&path)).trap.is_some();
        prop_assert_eq!(trapped, !self::found(&below, &path).is_empty());
    }

    /// RULE-2, RULE-3: for a path with only one reading, a rule agrees with a comparison of whole
    /// lists of segments.
    #[test]
    fn a_plain_path_is_matched_exactly(
        rules in prop::collection::vec((path_of(PLAIN_PIECES), any::<bool>()), 1..6),
        path in path_of(PLAIN_PIECES),
    ) {
        let segments = |path: &str| -> Vec<String> {
            path.split('/').filter(|segment| !segment.is_empty()).map(str::to_owned).collect()
        };
        let read = segments(&path);
        let twin: Vec<usize> = rules.iter().enumerate().filter(|(_, (rule, whole))| {
            let rule = segments(rule);
            if *whole { rule == read } else { read.starts_with(&rule) }
        }).map(|(index, _)| index).collect();
        prop_assert_eq!(found(&rules, &path), twin);
    }

    /// RULE-7: the fast walk of a plain path gives the same result as the careful walk.
    #[test]
    fn the_short_way_and_the_long_way_agree(
        rules in prop::collection::vec((path_of(PLAIN_PIECES), any::<bool>()), 1..6),
        path in path_of(PIECES),
    ) {
        let mut paths = Paths::default();
        for (index, (rule, whole)) in rules.iter().enumerate() {
            let reach = if *whole { Reach::Itself } else { Reach::Below };
            paths.add(rule, Case::Folded, reach, Marks { limits: 1 << index, ..Marks::default() });
        }
        if spelling::is_plain(&path) {
            prop_assert_eq!(paths.find(&path), paths.find_loosely(&path));
        }
    }

    /// RULE-7: no text panics, as a rule or as a request.
    #[test]
    fn no_path_panics(rule_path in "/\\PC*", path in "/\\PC*") {
        let _ = (found(&[(rule_path.clone(), true)], &path), is_root(&rule_path));
        prop_assert_eq!(found(&[(rule_path.clone(), false)], &rule_path), [0]);
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

/// RULE-1, FEED-6: 500,000 netblocks of every length, nested and apart, IPv4 and IPv6, at the ends
/// of the address space as well: the list answers as a walk over all members does.
#[test]
fn a_list_of_500_000_agrees_with_its_naive_twin() {
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
            .step_by(2500)
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

/// CRAWL-2: a client that claims to be several crawlers counts as a verified one, else as one that
/// may still be verified; a client without a claim counts as none.
#[test]
fn of_several_claims_the_best_counts() {
    let crawler = |name: &str, verify| {
        Arc::new(Crawler {
            rule: rule(RuleKind::Crawler, name),
            purpose: Purpose::Search,
            user_agent: vec![format!("{name}bot")],
            verify,
            quotas: vec![],
            counts: Arc::default(),
        })
    };
    let now_ms = 1_795_276_800_000;
    let feed = |netblock: &str| {
        let netblocks = [netblock.parse().unwrap()];
        Verify::Feed(Arc::new(Feed::new("feed", netblocks, now_ms, now_ms)))
    };
    let set = RuleSet::of(Parts {
        crawlers: vec![
            crawler("elsewhere", feed("198.51.100.0/24")),
            crawler("named", Verify::Dns(vec![".named.example".to_owned()])),
            crawler("listed", feed("203.0.113.0/24")),
        ],
        ..Parts::default()
    });
    let ours: [Box<str>; 1] = ["a.named.example".into()];
    let claim = |agent: &'static str, names: Option<&[Box<str>]>| {
        let sent: http::HeaderMap = [(http::header::USER_AGENT, agent.parse().unwrap())]
            .into_iter()
            .collect();
        let matched = set.matched(&Asking {
            sent: &sent,
            ..get("/")
        });
        let claim = matched.claim(Evidence {
            address: "203.0.113.7".parse().unwrap(),
            names,
            now_ms,
        });
        let asks = matched.asks_names().is_some();
        let of = |claim: Claim| (claim.crawler.rule.name.clone(), claim.state);
        (claim.map(of), asks)
    };
    use ClaimState::{Fake, Unproven, Verified};
    for (agent, names, expected, asks) in [
        ("curl", None, None, false),
        ("ListedBot/1", None, Some(("listed", Verified)), false),
        ("elsewherebot", None, Some(("elsewhere", Fake)), false),
        (
            "elsewherebot namedbot",
            None,
            Some(("named", Unproven)),
            true,
        ),
        (
            "elsewherebot namedbot",
            Some(&[][..]),
            Some(("elsewhere", Fake)),
            true,
        ),
        (
            "elsewherebot namedbot",
            Some(&ours[..]),
            Some(("named", Verified)),
            true,
        ),
        ("namedbot listedbot", None, Some(("listed", Verified)), true),
    ] {
        let expected = expected.map(|(name, state): (&str, _)| (name.to_owned(), state));
        assert_eq!(claim(agent, names), (expected, asks), "{agent}");
    }
}
