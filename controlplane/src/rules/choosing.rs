//! `match` of rules.json: which requests a rule applies to, in its JSON form (MATCH-1).

use std::collections::HashMap;
use std::sync::Arc;

use http::{HeaderName, Method};
use serde::Deserialize;
use weir_shared::rules::{
    Case, ClaimState, CrawlerWord, Feeds, FieldIs, FieldRule, Further, Matcher, QueryRule,
};
use weir_shared::settings::{Asns, Countries};

use super::agent_file::{Agents, literal};

/// `match`
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Match {
    pub(super) paths: Vec<String>,
    pub(super) exact: bool,
    pub(super) exact_case: bool,
    pub(super) methods: Vec<String>,
    pub(super) host: Option<String>,
    pub(super) user_agent: Vec<Literal>,
    pub(super) user_agent_file: Option<String>,
    pub(super) fields: Vec<Field>,
    pub(super) query: Option<Query>,
    pub(super) countries: Vec<CountryWord>,
    pub(super) asns: Vec<AsnWord>,
    /// The name of a feed.
    pub(super) list: Option<String>,
    pub(super) crawler: Option<Words>,
}

/// A word or a list of words.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected a word or a list of 1 to 64 words")]
pub(super) enum Words {
    One(String),
    Some(Vec<String>),
}

/// A text to search for.
#[derive(Debug, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct Literal(pub(super) String);

impl TryFrom<String> for Literal {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match literal(&text) {
            Ok(()) => Ok(Self(text)),
            Err(why) => Err(why),
        }
    }
}

/// An entry of `fields`. The schema ensures that it has one of `is` and `has`.
#[derive(Debug, Deserialize)]
pub(super) struct Field {
    pub(super) name: FieldName,
    pub(super) is: Option<Is>,
    pub(super) has: Option<Literal>,
}

/// The name of a field.
#[derive(Debug, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct FieldName(HeaderName);

impl TryFrom<String> for FieldName {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let name = HeaderName::from_bytes(text.as_bytes());
        name.map(Self).map_err(|_| {
            format!("{text:?} is not the name of a field: expected one such as accept-language")
        })
    }
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Is {
    Absent,
    Present,
}

/// `query`
#[derive(Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "expected \"present\", \"absent\" or a list of 1 to 64 names of 1 to 256 characters"
)]
pub(super) enum Query {
    Is(Is),
    Names(Vec<String>),
}

/// An entry of `countries`.
#[derive(Debug, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct CountryWord(String);

impl TryFrom<String> for CountryWord {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let is_country = text.parse::<weir_shared::lookup::Country>().is_ok();
        if text == "unknown" || is_country {
            return Ok(Self(text));
        }
        Err(format!(
            "{text:?} is not a country: expected two letters, such as DE, or unknown"
        ))
    }
}

/// An entry of `asns`.
#[derive(Debug, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct AsnWord(String);

impl TryFrom<String> for AsnWord {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match Asns::default().add(&text) {
            Ok(()) => Ok(Self(text)),
            Err(_) => Err(format!(
                "{text:?} is not an AS number: expected one such as AS64496, or unknown"
            )),
        }
    }
}

/// The files of literals, by name.
pub(super) type AgentFiles = HashMap<String, Arc<Agents>>;

impl Match {
    /// The matcher for the data plane.
    pub(super) fn matcher(&self, files: &AgentFiles, feeds: &Feeds) -> Matcher {
        let paths = self.paths.iter().map(String::as_str);
        let case = if self.exact_case {
            Case::Exact
        } else {
            Case::Folded
        };
        let methods = methods(&self.methods);
        Matcher::of_paths(paths, self.exact, methods, self.host.as_deref())
            .with_case(case)
            .with(self.further(files, feeds))
    }

    fn further(&self, files: &AgentFiles, feeds: &Feeds) -> Further {
        let mut user_agent = Vec::new();
        if !self.user_agent.is_empty() {
            let literals = self.user_agent.iter().map(|literal| literal.0.clone());
            user_agent.push(literals.collect());
        }
        if let Some(name) = &self.user_agent_file {
            // A file that cannot be read counts as empty: it matches no request.
            let agents = files.get(name);
            user_agent.push(
                agents
                    .map(|agents| agents.literals.clone())
                    .unwrap_or_default(),
            );
        }
        let mut countries = Countries::default();
        for CountryWord(word) in &self.countries {
            match word.parse() {
                Ok(country) => {
                    countries.codes.insert(country);
                }
                Err(_) => countries.unknown = true,
            }
        }
        let mut asns = Asns::default();
        for AsnWord(word) in &self.asns {
            // Checked when the file was read.
            let _ = asns.add(word);
        }
        Further {
            user_agent,
            fields: self.fields.iter().filter_map(Field::rule).collect(),
            query: self.query.as_ref().map(|query| match query {
                Query::Is(Is::Absent) => QueryRule::Absent,
                Query::Is(Is::Present) => QueryRule::Present,
                Query::Names(names) => QueryRule::Names(names.clone()),
            }),
            countries: (!self.countries.is_empty()).then_some(countries),
            asns: (!self.asns.is_empty()).then_some(asns),
            // The check has ensured that there is one.
            list: self.list.as_ref().and_then(|name| feeds.get(name)).cloned(),
            crawler: (self.crawler_words().iter())
                .map(|word| CrawlerWord::of(word))
                .collect(),
        }
    }

    /// The words of `crawler`.
    pub(super) fn crawler_words(&self) -> &[String] {
        match &self.crawler {
            None => &[],
            Some(Words::One(word)) => std::slice::from_ref(word),
            Some(Words::Some(words)) => words,
        }
    }

    /// The pointer to one of these words.
    pub(super) fn crawler_pointer(&self, pointer: &str, index: usize) -> String {
        match &self.crawler {
            Some(Words::Some(_)) => format!("{pointer}/crawler/{index}"),
            Some(Words::One(_)) | None => format!("{pointer}/crawler"),
        }
    }

    /// Whether only verified crawlers match: no client can claim that by what it sends.
    fn is_for_verified(&self) -> bool {
        let is_verified = |word: &String| match CrawlerWord::of(word) {
            CrawlerWord::State(state) => state == ClaimState::Verified,
            CrawlerWord::Purpose(_) | CrawlerWord::Name(_) => true,
        };
        let words = self.crawler_words();
        !words.is_empty() && words.iter().all(is_verified)
    }

    /// The number of literals in rules.json itself.
    pub(super) fn literals(&self) -> usize {
        let of_fields = self.fields.iter().filter(|field| field.has.is_some());
        self.user_agent.len() + of_fields.count()
    }

    /// The member that needs lookups, if there is one.
    pub(super) fn needs_lookups(&self) -> Option<&'static str> {
        let of_countries = (!self.countries.is_empty()).then_some("countries");
        of_countries.or((!self.asns.is_empty()).then_some("asns"))
    }

    /// Checks what a schema cannot express. The error has a pointer and a sentence.
    pub(super) fn judge(
        &self,
        path: impl Fn(&str) -> Result<(), String>,
    ) -> Result<(), (String, String)> {
        for (index, written) in self.paths.iter().enumerate() {
            path(written).map_err(|why| (format!("/paths/{index}"), why))?;
        }
        if let Some(name) = &self.host {
            host(name).map_err(|why| ("/host".to_owned(), why))?;
        }
        for (member, is_set) in [("exact", self.exact), ("exact_case", self.exact_case)] {
            if is_set && self.paths.is_empty() {
                let message = format!("{member:?} needs \"paths\"");
                return Err((format!("/{member}"), message));
            }
        }
        if (self.user_agent_file.as_ref()).is_some_and(|name| name.contains('\0')) {
            let message = "expected the name of a file, without a NUL".to_owned();
            return Err(("/user_agent_file".to_owned(), message));
        }
        Ok(())
    }

    /// Checks that no client can make itself exempt by what it sends (MATCH-4).
    pub(super) fn judge_exempt(&self) -> Result<(), (String, String)> {
        if self.exact_case {
            let message = "what lets requests through always minds capital and small letters";
            return Err(("/exact_case".to_owned(), message.to_owned()));
        }
        let names_clients = self.needs_lookups().is_some() || self.list.is_some();
        if self.paths.is_empty() && !names_clients && !self.is_for_verified() {
            let message = "expected \"paths\", \"countries\", \"asns\", \"list\" or a verified \"crawler\": all else is what a client writes, which could write itself free";
            return Err((String::new(), message.to_owned()));
        }
        Ok(())
    }
}

impl Field {
    fn rule(&self) -> Option<FieldRule> {
        let is = match (&self.is, &self.has) {
            (Some(Is::Absent), _) => FieldIs::Absent,
            (Some(Is::Present), _) => FieldIs::Present,
            (None, Some(Literal(literal))) => FieldIs::Has(literal.clone()),
            (None, None) => return None,
        };
        let name = self.name.0.clone();
        Some(FieldRule { name, is })
    }
}

/// Refuses a name that no host can have: such a rule would match nothing.
pub(super) fn host(name: &str) -> Result<(), String> {
    let strange = |c: char| !c.is_ascii_graphic() || matches!(c, '*' | '/' | '?' | '#' | '@' | ',');
    if name.contains(strange) {
        return Err(format!(
            "{name:?} is not a host: expected one name or address as a client sends it, such as www.example.com, without wildcards"
        ));
    }
    Ok(())
}

/// The methods of these names. The schema has ensured that each is a method.
pub(super) fn methods(names: &[String]) -> Vec<Method> {
    let methods = names.iter().map(|name| Method::from_bytes(name.as_bytes()));
    methods.filter_map(Result::ok).collect()
}
