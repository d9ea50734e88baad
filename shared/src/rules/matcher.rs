//! Which requests a rule matches (MATCH-1, RULE-2, RULE-4).

use std::cell::OnceCell;
use std::sync::Arc;

use http::header::USER_AGENT;
use http::{HeaderName, Method};

use super::crawler::{Claim, CrawlerWord};
use super::feed::Feed;
use super::literals::{Condition, Found, Gathering, Literals};
use super::paths::Reach;
use super::sent::{Asking, Told};
use super::spelling::Case;
use crate::lookup::Origin;
use crate::settings::{Asns, Countries};

/// The conditions on a request. An absent condition matches every request.
#[derive(Clone, Debug, Default)]
pub struct Matcher {
    paths: Vec<RulePath>,
    methods: Vec<Method>,
    host: Option<String>,
    more: Option<Box<More>>,
}

/// The path of a rule, as written.
#[derive(Clone, Debug)]
pub(super) struct RulePath {
    pub(super) path: String,
    pub(super) case: Case,
    pub(super) reach: Reach,
}

/// Conditions that few rules have. An absent condition matches every request.
#[derive(Clone, Debug, Default)]
pub struct Further {
    /// The `User-Agent` contains a literal of each of these sets, in any case.
    pub user_agent: Vec<Vec<String>>,
    /// All of these conditions on fields.
    pub fields: Vec<FieldRule>,
    /// The condition on the query.
    pub query: Option<QueryRule>,
    /// The client's country is one of these.
    pub countries: Option<Countries>,
    /// Its AS is.
    pub asns: Option<Asns>,
    /// An entry of this feed covers its address.
    pub list: Option<Arc<Feed>>,
    /// It claims to be a crawler that one of these words matches; empty matches every client.
    pub crawler: Vec<CrawlerWord>,
}

/// What a field is like.
#[derive(Clone, Debug)]
pub struct FieldRule {
    /// Its name.
    pub name: HeaderName,
    /// What it is like.
    pub is: FieldIs,
}

/// What a field is like.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FieldIs {
    /// Not sent.
    Absent,
    /// Sent, empty or not.
    Present,
    /// One of its lines has this literal, in any case.
    Has(String),
}

/// A condition on the query.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum QueryRule {
    /// Not there, or empty.
    Absent,
    /// There.
    Present,
    /// One of these names is in it.
    Names(Vec<String>),
}

/// The same, with its literals in the automaton.
#[derive(Clone, Debug)]
struct More {
    further: Further,
    /// Of each set of `user_agent`.
    agents: Vec<Condition>,
    /// Of each field that is to have a literal.
    fields: Vec<Option<Condition>>,
    /// Of the names of which one is to be in the query.
    names: Option<Condition>,
}

/// The automaton's result for a request, computed once and only if it is needed.
#[derive(Debug)]
pub(super) struct Looking<'r> {
    literals: &'r Literals,
    found: OnceCell<Found>,
    named: OnceCell<Found>,
}

impl<'r> Looking<'r> {
    pub(super) const fn new(literals: &'r Literals) -> Self {
        Self {
            literals,
            found: OnceCell::new(),
            named: OnceCell::new(),
        }
    }

    /// Whether a request fulfils a condition.
    pub(super) fn has(&self, asking: &Asking<'_>, condition: Condition) -> bool {
        let found = self.found.get_or_init(|| self.literals.find(asking));
        found.has(condition)
    }

    /// The same of one that the query fulfils.
    fn has_name(&self, asking: &Asking<'_>, condition: Condition) -> bool {
        let named = self.named.get_or_init(|| self.literals.find_names(asking));
        named.has(condition)
    }
}

impl Matcher {
    /// A matcher; `path` comes with whether it must equal the whole path. No methods means any
    /// method.
    pub fn new(path: Option<(&str, bool)>, methods: Vec<Method>, host: Option<&str>) -> Self {
        let (path, exact) = path.unzip();
        Self::of_paths(path, exact.unwrap_or(false), methods, host)
    }

    /// A matcher with several paths, of which one must match.
    pub fn of_paths<'p>(
        paths: impl IntoIterator<Item = &'p str>,
        exact: bool,
        methods: Vec<Method>,
        host: Option<&str>,
    ) -> Self {
        let paths = paths.into_iter().map(|path| RulePath {
            path: path.to_owned(),
            case: Case::default(),
            reach: if exact { Reach::Itself } else { Reach::Below },
        });
        Self {
            paths: paths.collect(),
            methods,
            host: host.map(|host| host_name(host).to_ascii_lowercase()),
            more: None,
        }
    }

    /// Sets whether the path is compared with regard to case.
    #[must_use]
    pub fn with_case(mut self, case: Case) -> Self {
        for path in &mut self.paths {
            path.case = case;
        }
        self
    }

    /// Adds these conditions.
    #[must_use]
    pub fn with(mut self, further: Further) -> Self {
        self.more = Some(Box::new(More {
            further,
            agents: Vec::new(),
            fields: Vec::new(),
            names: None,
        }));
        self
    }

    /// Its paths, which the tree of all paths matches (`paths.rs`).
    pub(super) fn paths(&self) -> &[RulePath] {
        &self.paths
    }

    /// Adds its literals to those of all rules.
    pub(super) fn gather(&mut self, all: &mut Gathering) {
        let Some(more) = &mut self.more else {
            return;
        };
        let sets = more.further.user_agent.iter();
        more.agents = sets
            .map(|set| all.add(&USER_AGENT, set.iter().map(String::as_str)))
            .collect();
        let of_field = |field: &FieldRule| match &field.is {
            FieldIs::Has(literal) => Some(all.add(&field.name, std::iter::once(literal.as_str()))),
            FieldIs::Absent | FieldIs::Present => None,
        };
        more.fields = more.further.fields.iter().map(of_field).collect();
        more.names = match &more.further.query {
            Some(QueryRule::Names(names)) => Some(all.add_names(names)),
            Some(QueryRule::Absent | QueryRule::Present) | None => None,
        };
    }

    /// Whether it matches a request whose path matches, regardless of the client. Applications read
    /// methods in any case.
    pub(super) fn matches(&self, asking: &Asking<'_>, looking: &Looking<'_>) -> bool {
        let is_asked = |method: &Method| {
            let asked = asking.method;
            method == asked || method.as_str().eq_ignore_ascii_case(asked.as_str())
        };
        (self.methods.is_empty() || self.methods.iter().any(is_asked))
            && self.host.as_ref().is_none_or(|host| {
                let sent = asking.sent.host_sent();
                let sent = sent.and_then(|sent| std::str::from_utf8(sent).ok());
                sent.is_some_and(|sent| host_name(sent).eq_ignore_ascii_case(host))
            })
            && (self.more.as_ref()).is_none_or(|more| more.matches(asking, looking))
    }

    /// The fields that it asks for, `host` among them.
    pub(super) fn fields_asked_for(&self) -> impl Iterator<Item = &str> {
        let further = self.more.as_ref().map(|more| &more.further);
        let agents = further.filter(|further| !further.user_agent.is_empty());
        let fields = further.into_iter().flat_map(|further| &further.fields);
        let fields = fields.map(|field| field.name.as_str());
        let host = self.host.as_ref().map(|_| "host");
        (fields.chain(agents.map(|_| "user-agent"))).chain(host)
    }

    /// Whether it depends on the client.
    pub(super) fn asks_client(&self) -> bool {
        (self.more.as_deref()).is_some_and(|More { further, .. }| {
            further.countries.is_some() || further.asns.is_some() || !further.crawler.is_empty()
        })
    }

    /// Whether it matches a client of this origin with this claim.
    pub(super) fn matches_client(&self, origin: Origin, claim: Option<&Claim>) -> bool {
        let Some(More { further, .. }) = self.more.as_deref() else {
            return true;
        };
        let (countries, asns) = (&further.countries, &further.asns);
        let is_meant = |word: &CrawlerWord| claim.is_some_and(|claim| word.matches(claim));
        (countries.as_ref()).is_none_or(|countries| countries.cover(origin.country))
            && asns.as_ref().is_none_or(|asns| asns.cover(origin.asn))
            && (further.crawler.is_empty() || further.crawler.iter().any(is_meant))
    }

    /// The words of `match.crawler`.
    pub fn crawler_words(&self) -> &[CrawlerWord] {
        (self.more.as_ref()).map_or(&[], |more| &more.further.crawler)
    }
}

impl More {
    fn matches(&self, asking: &Asking<'_>, looking: &Looking<'_>) -> bool {
        let Further { query, list, .. } = &self.further;
        (list.as_ref()).is_none_or(|feed| feed.contains(asking.address))
            && (query.as_ref()).is_none_or(|query| query.matches(asking, self.names, looking))
            && (self.further.fields.iter().zip(&self.fields))
                .all(|(field, condition)| field.matches(asking, *condition, looking))
            && (self.agents.iter()).all(|agents| looking.has(asking, *agents))
    }
}

impl FieldRule {
    fn matches(
        &self,
        asking: &Asking<'_>,
        condition: Option<Condition>,
        looking: &Looking<'_>,
    ) -> bool {
        let mut is_there = false;
        let mut note = |_: &[u8]| is_there = true;
        match self.is {
            FieldIs::Absent => {
                let told = asking.sent.each_line(&self.name, &mut note);
                told == Told::Known(()) && !is_there
            }
            FieldIs::Present => {
                asking.sent.each_spelling(&self.name, &mut note);
                is_there
            }
            FieldIs::Has(_) => condition.is_some_and(|one| looking.has(asking, one)),
        }
    }
}

impl QueryRule {
    fn matches(
        &self,
        asking: &Asking<'_>,
        names: Option<Condition>,
        looking: &Looking<'_>,
    ) -> bool {
        let is_empty = |query: Option<&str>| query.is_none_or(str::is_empty);
        match (self, asking.sent.query_sent()) {
            (_, Told::Unknown) => false,
            (Self::Absent, Told::Known(query)) => is_empty(query),
            (Self::Present, Told::Known(query)) => !is_empty(query),
            (Self::Names(_), Told::Known(_)) => {
                names.is_some_and(|one| looking.has_name(asking, one))
            }
        }
    }
}

/// A host without its port and without a trailing dot.
fn host_name(host: &str) -> &str {
    let name = match host.rsplit_once(':') {
        // A colon inside brackets belongs to an IPv6 address.
        Some((name, port)) if !port.contains(']') => name,
        _ => host,
    };
    name.strip_suffix('.').unwrap_or(name)
}

#[cfg(test)]
mod tests;
