use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue};
use proptest::prelude::*;

use super::super::tests::ANYBODY;
use super::*;
use crate::origin::AsNumber;
use crate::rules::{Denial, Exempt, Feed, Parts, Remembered, Rule, RuleKind, RuleSet};

/// A head with these fields.
fn head(fields: &[(&'static str, &str)], query: Option<&str>) -> Remembered {
    let mut all = HeaderMap::new();
    for (name, value) in fields {
        let value = HeaderValue::from_bytes(value.as_bytes()).unwrap();
        all.append(HeaderName::from_static(name), value);
    }
    Remembered {
        fields: all,
        query: Told::Known(query.map(str::to_owned)),
        known: None,
    }
}

fn denials(matchers: impl IntoIterator<Item = Matcher>) -> RuleSet {
    let denial = |(index, matcher)| Denial {
        rule: Arc::new(Rule::new(RuleKind::Denial, format!("d{index}"))),
        matcher,
        answer: None,
    };
    RuleSet::of(Parts {
        denials: matchers.into_iter().enumerate().map(denial).collect(),
        ..Parts::default()
    })
}

/// The name of the denial that refuses a request to a client from there.
fn denied(rules: &RuleSet, path: &str, sent: &Remembered, origin: Origin) -> Option<String> {
    let asking = Asking {
        path,
        method: &Method::GET,
        address: ANYBODY,
        sent,
    };
    let matched = rules.matched(&asking).of_client(|| origin, None);
    matched.denial().map(|denial| denial.rule.name.clone())
}

fn anywhere(further: Further) -> Matcher {
    Matcher::default().with(further)
}

fn agents(literals: &[&str]) -> Further {
    Further {
        user_agent: vec![literals.iter().map(|&literal| literal.to_owned()).collect()],
        ..Further::default()
    }
}

/// MATCH-1, MATCH-2: a literal is found in any case and anywhere in the first 1,024 bytes of one of
/// the lines of a field, and in no other field.
#[test]
fn literals_are_found_in_their_field() {
    let has = |literal: &str| Further {
        fields: vec![FieldRule {
            name: HeaderName::from_static("accept"),
            is: FieldIs::Has(literal.to_owned()),
        }],
        ..Further::default()
    };
    let rules = denials([
        anywhere(agents(&["GPTBot", "claude"])),
        anywhere(has("html")),
    ]);
    let denied = |fields: &[(&'static str, &str)]| {
        denied(&rules, "/", &head(fields, None), Origin::default())
    };
    let late = format!("{}gptbot", "x".repeat(1019));
    let just = format!("{}gptbot", "x".repeat(1018));
    for (fields, name) in [
        (
            &[("user-agent", "Mozilla/5.0 (gptBOT/1.0)")][..],
            Some("d0"),
        ),
        (
            &[("user-agent", "x"), ("user-agent", "a Claude b")],
            Some("d0"),
        ),
        (&[("user-agent", &just)], Some("d0")),
        (&[("user-agent", &late)], None),
        (&[("user-agent", "text/html")], None),
        (&[("accept", "GPTBot")], None),
        (&[("accept", "text/HTML")], Some("d1")),
        (
            &[("accept", "text/HTML"), ("user-agent", "GPTBot")],
            Some("d0"),
        ),
        // Two lines are not one.
        (&[("user-agent", "GPT"), ("user-agent", "Bot")], None),
        (&[], None),
    ] {
        assert_eq!(denied(fields).as_deref(), name, "{fields:?}");
    }
}

/// MATCH-1: fields and query members match if they are present, absent, or have a name in any
/// encoding. Parts of a request that a log does not hold match nothing.
#[test]
fn fields_and_queries_are_there_or_not() {
    let field = |is| FieldRule {
        name: HeaderName::from_static("accept-language"),
        is,
    };
    let with_field = |is| Further {
        fields: vec![field(is)],
        ..Further::default()
    };
    let with_query = |query| Further {
        query: Some(query),
        ..Further::default()
    };
    let facet = || QueryRule::Names(vec!["facet".to_owned()]);
    let one = |further: Further, sent: &Remembered| {
        let rules = denials([anywhere(further)]);
        denied(&rules, "/", sent, Origin::default()).is_some()
    };
    let without = head(&[], None);
    let with = head(&[("accept-language", "")], None);
    assert!(one(with_field(FieldIs::Absent), &without));
    assert!(!one(with_field(FieldIs::Absent), &with));
    assert!(one(with_field(FieldIs::Present), &with));
    assert!(!one(with_field(FieldIs::Present), &without));
    for (query, absent, names) in [
        (None, true, false),
        (Some(""), true, false),
        (Some("facet"), false, true),
        (Some("a=b&facet=1"), false, true),
        (Some("a=b;facet=1"), false, true),
        (Some("a=b;c=facet"), false, false),
        (Some("f%61cet=1"), false, true),
        (Some("f%2561cet=1"), false, true),
        (Some("facet[]=1&facet[0]=2"), false, true),
        (Some("facet%5B%5D=1"), false, true),
        (Some("FACET=1"), false, true),
        (Some("%46acet=1"), false, true),
        (Some("+facet=1"), false, true),
        (Some("%20%09facet[=1"), false, true),
        (Some("facet%00x=1"), false, true),
        (Some("%00facet=1"), false, false),
        (Some("fa.cet=1"), false, false),
        (Some("facet+=1"), false, false),
        (Some("xfacet=1&q=facet"), false, false),
        (Some("facets=1"), false, false),
    ] {
        let sent = head(&[], query);
        assert_eq!(
            one(with_query(QueryRule::Absent), &sent),
            absent,
            "{query:?}"
        );
        assert_eq!(
            one(with_query(QueryRule::Present), &sent),
            !absent,
            "{query:?}"
        );
        assert_eq!(one(with_query(facet()), &sent), names, "{query:?}");
    }
    let unknown = Remembered {
        query: Told::Unknown,
        known: Some(&[]),
        ..Remembered::default()
    };
    for is in [FieldIs::Absent, FieldIs::Present] {
        assert!(!one(with_field(is), &unknown));
    }
    for query in [QueryRule::Absent, QueryRule::Present, facet()] {
        assert!(!one(with_query(query), &unknown));
    }
}

/// MATCH-1: a name in a query matches the rule's name if PHP reads it so: `_` for a dot, a blank or
/// an unclosed bracket.
#[test]
fn names_of_a_query_are_read_as_php_reads_them() {
    let further = |name: &str| Further {
        query: Some(QueryRule::Names(vec![name.to_owned()])),
        ..Further::default()
    };
    for name in ["by_size", "by.size", "By_Size"] {
        let rules = denials([anywhere(further(name))]);
        for (query, is_it) in [
            ("by_size=1", true),
            ("by.size=1", true),
            ("by%20size=1", true),
            ("by+size=1", true),
            ("by[size=1", true),
            ("BY%5bSIZE=1", true),
            ("by_size[]=1", true),
            ("by-size=1", false),
            ("bysize=1", false),
            ("by__size=1", false),
        ] {
            let sent = head(&[], Some(query));
            let found = denied(&rules, "/", &sent, Origin::default()).is_some();
            assert_eq!(found, is_it, "{name}: {query}");
        }
    }
}

/// MATCH-1: a field that a rule requires, alone or with a literal, is found under every name that
/// CGI reads as the same; a field that a rule forbids is searched as it is spelled. A rule with an
/// underscore means only that spelling.
#[test]
fn fields_are_found_in_every_spelling() {
    let field = |name, is| Further {
        fields: vec![FieldRule {
            name: HeaderName::from_static(name),
            is,
        }],
        ..Further::default()
    };
    let rules = denials([
        anywhere(field("x-original-url", FieldIs::Present)),
        anywhere(field("x-scanner", FieldIs::Has("nuclei".to_owned()))),
        anywhere(field("x_api_key", FieldIs::Present)),
        anywhere(field("x-there", FieldIs::Absent)),
    ]);
    for (sent, name) in [
        ("x-original-url", Some("d0")),
        ("x_original_url", Some("d0")),
        ("x.original_url", Some("d0")),
        ("xooriginal-url", None),
        ("x-original-url2", None),
        ("x_scanner", Some("d1")),
        ("x_api_key", Some("d2")),
        ("x-api-key", None),
    ] {
        let sent = head(&[("x-there", ""), (sent, "a Nuclei")], None);
        let found = denied(&rules, "/", &sent, Origin::default());
        assert_eq!(found.as_deref(), name, "{sent:?}");
    }
    let spelled = head(&[("x_there", "")], None);
    let found = denied(&rules, "/", &spelled, Origin::default());
    assert_eq!(found.as_deref(), Some("d3"));
}

/// MATCH-3, MATCH-5: the first rule of the file wins, and a client without a lookup matches only
/// `unknown`.
#[test]
fn where_a_client_comes_from_counts() {
    let asns = |words: &[&str]| {
        let mut asns = Asns::default();
        words.iter().for_each(|word| asns.add(word).unwrap());
        Further {
            asns: Some(asns),
            ..Further::default()
        }
    };
    let countries = Further {
        countries: Some(Countries {
            codes: ["DE".parse().unwrap()].into(),
            unknown: false,
        }),
        ..Further::default()
    };
    let rules = denials([
        anywhere(asns(&["AS64496", "64497"])),
        anywhere(countries),
        anywhere(asns(&["unknown"])),
    ]);
    let from = |country: Option<&str>, asn| {
        let origin = Origin {
            country: country.map(|code| code.parse().unwrap()),
            asn: AsNumber::new(asn),
        };
        denied(&rules, "/", &head(&[], None), origin)
    };
    assert_eq!(from(Some("DE"), 64_496).as_deref(), Some("d0"));
    assert_eq!(from(Some("FR"), 64_497).as_deref(), Some("d0"));
    assert_eq!(from(Some("DE"), 15_169).as_deref(), Some("d1"));
    assert_eq!(from(Some("FR"), 15_169), None);
    assert_eq!(from(Some("FR"), 0).as_deref(), Some("d2"));
    assert_eq!(from(None, 0).as_deref(), Some("d2"));
    for wrong in ["AS0", "64512", "AS64496 Name", "DE", ""] {
        assert!(Asns::default().add(wrong).is_err(), "{wrong}");
    }
}

/// MATCH-4, RULE-7: an exempt entry reads a path as it is written; a path of it that ends with a
/// slash is the folder and everything below it.
#[test]
fn exempt_entries_are_strict() {
    let exempt = |matcher| {
        let rule = Arc::new(Rule::new(RuleKind::Exempt, "assets".to_owned()));
        RuleSet::of(Parts {
            exempt: vec![Exempt { rule, matcher }],
            ..Parts::default()
        })
    };
    let below = exempt(Matcher::of_paths(["/static/", "/img"], false, vec![], None));
    let whole = exempt(Matcher::of_paths(["/robots.txt"], true, vec![], None));
    for (rules, path, expected) in [
        (&below, "/static/a.css", true),
        (&below, "/static", true),
        (&below, "/x/../img/a", true),
        (&below, "/staticx", false),
        (&below, "/Static/a", false),
        (&below, "/static/..%2fadmin", false),
        (&below, "/static//../admin", false),
        (&whole, "/robots.txt", true),
        (&whole, "/robots.txt/a", false),
        (&whole, "/robots.txt%2f..", false),
    ] {
        let asking = Asking {
            path,
            method: &Method::GET,
            address: ANYBODY,
            sent: &(),
        };
        let is_exempt = rules.matched(&asking).exempt().is_some();
        assert_eq!(is_exempt, expected, "{path}");
    }
}

/// A rule of few words, and what it asks in the plainest way.
#[derive(Clone, Debug)]
struct Plain {
    path: Option<&'static str>,
    agents: Vec<String>,
    language: Option<FieldIs>,
    query: Option<&'static str>,
    asn: Option<u32>,
}

impl Plain {
    fn matcher(&self) -> Matcher {
        let asns = self.asn.map(|asn| Asns {
            numbers: AsNumber::new(asn).into_iter().collect(),
            unknown: false,
        });
        let language = self.language.clone().map(|is| FieldRule {
            name: HeaderName::from_static("accept-language"),
            is,
        });
        let query = self
            .query
            .map(|name| QueryRule::Names(vec![name.to_owned()]));
        let agents = Some(self.agents.clone()).filter(|agents| !agents.is_empty());
        Matcher::of_paths(self.path, false, vec![], None).with(Further {
            list: None,
            user_agent: agents.into_iter().collect(),
            fields: language.into_iter().collect(),
            query,
            countries: None,
            asns,
            crawler: Vec::new(),
        })
    }

    /// The naive twin.
    fn matches(&self, path: &str, agent: &str, language: Option<&str>, q: &str, asn: u32) -> bool {
        let contains = |text: &str, literal: &str| {
            text.to_ascii_lowercase()
                .contains(&literal.to_ascii_lowercase())
        };
        let below = |rule: &str| path == rule || path.starts_with(&format!("{rule}/"));
        let field = match (&self.language, language) {
            (None, _) | (Some(FieldIs::Present), Some(_)) | (Some(FieldIs::Absent), None) => true,
            (Some(FieldIs::Has(literal)), Some(language)) => contains(language, literal),
            _ => false,
        };
        self.path.is_none_or(below)
            && (self.agents.is_empty() || self.agents.iter().any(|one| contains(agent, one)))
            && field
            && (self.query).is_none_or(|name| {
                q.split('&')
                    .any(|pair| pair.split('=').next() == Some(name))
            })
            && self.asn.is_none_or(|number| number == asn)
    }
}

/// Texts that hold one another.
fn texts() -> impl Strategy<Value = String> {
    let pieces = prop::sample::select(&["bot", "Bot", "gpt", "ot/", "tgp", "crawl", " "][..]);
    prop::collection::vec(pieces, 1..5).prop_map(|pieces| pieces.concat())
}

fn literals() -> impl Strategy<Value = String> {
    texts().prop_filter("long enough", |text| text.len() >= 3)
}

fn plain() -> impl Strategy<Value = Plain> {
    let is = prop_oneof![
        Just(FieldIs::Absent),
        Just(FieldIs::Present),
        literals().prop_map(FieldIs::Has),
    ];
    (
        prop::option::of(prop::sample::select(&["/a", "/a/b", "/c"][..])),
        prop::collection::vec(literals(), 0..4),
        prop::option::of(is),
        prop::option::of(prop::sample::select(&["q", "facet"][..])),
        prop::option::of(1..3u32),
    )
        .prop_map(|(path, agents, language, query, asn)| Plain {
            path,
            agents,
            language,
            query,
            asn,
        })
}

proptest! {
    /// MATCH-1, MATCH-2, MATCH-3: one automaton for the literals of all rules agrees with each rule
    /// alone.
    #[test]
    fn the_matcher_agrees_with_its_naive_twin(
        rules in prop::collection::vec(plain(), 0..12),
        path in prop::sample::select(&["/a", "/a/b/c", "/c", "/d", "/ab"][..]),
        agent in texts(),
        language in prop::option::of(texts()),
        query in prop::sample::select(&["", "q=1", "x=1&facet=2", "qq=1"][..]),
        asn in 1..4u32,
    ) {
        let set = denials(rules.iter().map(Plain::matcher));
        let mut fields = vec![("user-agent", &*agent)];
        fields.extend(language.as_deref().map(|language| ("accept-language", language)));
        let sent = head(&fields, Some(query));
        let origin = Origin { country: None, asn: AsNumber::new(asn) };
        let twin = rules
            .iter()
            .position(|rule| rule.matches(path, &agent, language.as_deref(), query, asn));
        prop_assert_eq!(
            denied(&set, path, &sent, origin),
            twin.map(|index| format!("d{index}"))
        );
    }
}

/// MATCH-1, FEED-1: `list` matches clients that an entry of the feed covers, together with all
/// other members; a feed without a version covers nobody.
#[test]
fn a_list_covers_who_asks() {
    let entries = ["192.0.2.0/24", "2001:db8:5::/48", "198.51.100.7"];
    let entries = entries.map(|text| text.parse().unwrap());
    let feed = Feed::new("drop", entries, 1_000, 0);
    assert_eq!(
        (feed.taken_ms(), feed.confirmed_ms()),
        (Some(1_000), Some(1_000))
    );
    feed.confirm(2_000);
    assert_eq!(
        (feed.taken_ms(), feed.confirmed_ms()),
        (Some(1_000), Some(2_000))
    );
    assert_eq!(feed.list.netblocks().collect::<Vec<_>>(), entries);
    let none = Feed::none("drop");
    assert_eq!((none.taken_ms(), none.confirmed_ms()), (None, None));
    let agents = vec![vec!["bot".to_owned()]];
    let rules = [feed, none].map(|feed| {
        denials([Matcher::default().with(Further {
            list: Some(Arc::new(feed)),
            user_agent: agents.clone(),
            ..Further::default()
        })])
    });
    let [with, without] = rules;
    for (address, agent, is_meant) in [
        ("192.0.2.9", "A Bot", true),
        ("192.0.2.9", "A browser", false),
        ("192.0.3.9", "A Bot", false),
        ("2001:db8:5:6::7", "A Bot", true),
        ("2001:db8:6::7", "A Bot", false),
        ("::ffff:198.51.100.7", "A Bot", true),
    ] {
        let sent = head(&[("user-agent", agent)], None);
        let asking = Asking {
            path: "/",
            method: &Method::GET,
            address: address.parse().unwrap(),
            sent: &sent,
        };
        let is_denied = |rules: &RuleSet| rules.matched(&asking).denial().is_some();
        assert_eq!(is_denied(&with), is_meant, "{address} {agent}");
        assert!(!is_denied(&without), "{address} {agent}");
    }
}
