//! The literals that rules look for in fields: the denial that refuses a request is the first whose
//! literal a plain search finds (MATCH-1, MATCH-2, MATCH-3).
//!
//! Each line of the input is one of: `u` and a literal of `User-Agent`, `a` and a literal of
//! `Accept`, each of a denial of its own; `U` and `A` with a line of those fields; anything else is
//! left out.
#![no_main]

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use http::header::{ACCEPT, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use libfuzzer_sys::fuzz_target;
use weir_fuzz::text;
use weir_shared::rules::{
    Asking, Denial, FieldIs, FieldRule, Further, MAX_DENIALS, MAX_LITERAL, MIN_LITERAL, Matcher,
    Parts, Remembered, Rule, RuleKind, RuleSet, Told,
};

/// Bytes of a line of a field that are looked at (MATCH-2).
const LOOKED_AT: usize = 1024;

fuzz_target!(|bytes: &[u8]| {
    let mut literals: Vec<(HeaderName, String)> = Vec::new();
    let mut fields = HeaderMap::new();
    for line in bytes.split(|byte| *byte == b'\n') {
        let Some((kind, line)) = line.split_first() else {
            continue;
        };
        let name = if kind.eq_ignore_ascii_case(&b'u') {
            USER_AGENT
        } else {
            ACCEPT
        };
        match kind {
            b'u' | b'a' => {
                let fits = (MIN_LITERAL..=MAX_LITERAL).contains(&line.len());
                if let Ok(literal) = std::str::from_utf8(line)
                    && fits
                    && literals.len() < MAX_DENIALS
                {
                    literals.push((name, literal.to_owned()));
                }
            }
            b'U' | b'A' => {
                if let Ok(value) = HeaderValue::from_bytes(line) {
                    fields.append(name, value);
                }
            }
            _ => {}
        }
    }

    let plain = literals.iter().position(|(name, literal)| {
        let literal = literal.to_ascii_lowercase();
        fields.get_all(name).iter().any(|line| {
            let line = line.as_bytes();
            let line = line[..line.len().min(LOOKED_AT)].to_ascii_lowercase();
            line.windows(literal.len())
                .any(|part| part == literal.as_bytes())
        })
    });
    let denials = literals.iter().enumerate();
    let denials = denials.map(|(index, (name, literal))| Denial {
        rule: Arc::new(Rule::new(RuleKind::Denial, index.to_string())),
        matcher: Matcher::default().with(further(name, literal)),
        answer: None,
    });
    let rules = RuleSet::of(Parts {
        denials: denials.collect(),
        ..Parts::default()
    });
    let sent = Remembered {
        fields,
        query: Told::Known(None),
        known: None,
    };
    let matched = rules.matched(&Asking {
        path: "/",
        method: &Method::GET,
        address: IpAddr::V4(Ipv4Addr::new(203, 0, 113, 7)),
        sent: &sent,
    });
    let denied = matched.denial().map(|denial| denial.rule.name.clone());
    assert_eq!(
        denied,
        plain.map(|index| index.to_string()),
        "{}",
        text(bytes)
    );
    let of_anybody = matched.denial_of_anybody();
    assert_eq!(of_anybody.map(|denial| denial.rule.name.clone()), denied);
});

fn further(name: &HeaderName, literal: &str) -> Further {
    if *name == USER_AGENT {
        return Further {
            user_agent: vec![vec![literal.to_owned()]],
            ..Further::default()
        };
    }
    Further {
        fields: vec![FieldRule {
            name: name.clone(),
            is: FieldIs::Has(literal.to_owned()),
        }],
        ..Further::default()
    }
}
