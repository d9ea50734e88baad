//! All rules, compiled, and which of them a request matches. First come the rules that match the
//! request regardless of the client; this is computed before the client's entry is read. Of these,
//! some may apply to certain clients only.

use std::cell::OnceCell;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use http::header::USER_AGENT;
use http::{HeaderMap, HeaderValue, Method, StatusCode};

use super::chosen::{Chosen, choose};
use super::crawler::{Claim, ClaimState, Crawler, Evidence, MAX_CRAWLERS, Verify};
use super::entries::{Denial, Exempt, Jail, Limit, MAX_DENIALS, MAX_LIMITS, Per, Trap, Traps};
use super::feed::Feeds;
use super::list::NetList;
use super::literals::{Condition, Gathering, Literals};
use super::matcher::{Looking, Matcher};
use super::paths::{Marks, Paths, Reach};
use super::rule::Rule;
use super::sent::Asking;
use crate::lookup::Origin;
use crate::path::{self, Strictly};
use crate::proof::Suffixes;
use crate::spans::Spans;

/// The content of rules.json and its lists, before it is compiled.
#[derive(Clone, Debug, Default)]
pub struct Parts {
    /// Clients that skip steps 4 to 11 (RULE-1).
    pub allow: NetList,
    /// Clients that are refused at step 4 (RULE-1).
    pub deny: NetList,
    /// Rules whose paths ban a client that requests them (RULE-3).
    pub traps: Traps,
    /// Further limits; the first [`MAX_LIMITS`] count.
    pub limits: Vec<Limit>,
    /// The first [`MAX_LIMITS`] count.
    pub jails: Vec<Jail>,
    /// In the order of the file; the first [`MAX_DENIALS`] count.
    pub denials: Vec<Denial>,
    /// The first [`MAX_DENIALS`] count.
    pub exempt: Vec<Exempt>,
    /// Lists from elsewhere by name, for whoever asks who is on one (FEED-1).
    pub feeds: Feeds,
    /// The first [`MAX_CRAWLERS`] count.
    pub crawlers: Vec<Arc<Crawler>>,
}

/// The compiled rules.
#[derive(Clone, Debug, Default)]
pub struct RuleSet {
    /// Clients that skip steps 4 to 11 (RULE-1).
    pub allow: NetList,
    /// Clients that are refused at step 4 (RULE-1).
    pub deny: NetList,
    /// Lists from elsewhere by name, for whoever asks who is on one (FEED-1).
    pub feeds: Feeds,
    traps: Vec<Trap>,
    limits: Vec<Limit>,
    jails: Vec<Jail>,
    denials: Vec<Denial>,
    exempt: Vec<Letting>,
    /// The crawlers, each with the condition of its `User-Agent`.
    crawlers: Vec<(Arc<Crawler>, Condition)>,
    /// A bit for each crawler that is verified by DNS.
    by_names: u64,
    /// The suffixes of their names.
    suffixes: Arc<Suffixes>,
    /// The ranges of the crawlers that are verified by feeds.
    crawler_ranges: Arc<Spans>,
    /// The paths of all but the exempt entries.
    paths: Paths,
    /// The limits, jails and denials without a path.
    anywhere: Marks,
    /// The literals of all.
    literals: Literals,
    /// Whether any rule must be checked before a request is forwarded.
    asks_requests: bool,
    /// Whether one of these, or a jail, depends on the client.
    asks_client: bool,
    /// Whether clients share the counts of a limit.
    shares: bool,
    /// The shortest time after which a client counts as known for a limit.
    remembers_after: Option<Duration>,
}

/// An exempt entry, with its paths in the strict reading (RULE-7).
#[derive(Clone, Debug)]
struct Letting {
    exempt: Exempt,
    /// None if it has no path.
    paths: Option<(Vec<String>, Reach)>,
}

impl Letting {
    fn of(exempt: Exempt) -> Self {
        let paths = exempt.matcher.paths();
        let reach = paths.first().map(|first| first.reach);
        let paths = paths.iter().map(|of| path::prefix(&of.path)).collect();
        let paths = reach.map(|reach| (paths, reach));
        Self { exempt, paths }
    }

    fn has(&self, path: &Strictly<'_>) -> bool {
        match &self.paths {
            None => true,
            Some((paths, Reach::Below)) => path.is_below(paths),
            Some((paths, Reach::Itself)) => path.is_one_of(paths),
        }
    }
}

impl RuleSet {
    /// Rules with these limits and jails only.
    pub fn new(
        allow: NetList,
        deny: NetList,
        traps: Traps,
        limits: Vec<Limit>,
        jails: Vec<Jail>,
    ) -> Self {
        Self::of(Parts {
            allow,
            deny,
            traps,
            limits,
            jails,
            ..Parts::default()
        })
    }

    /// Compiles rules.
    pub fn of(mut parts: Parts) -> Self {
        parts.limits.truncate(MAX_LIMITS);
        parts.jails.truncate(MAX_LIMITS);
        parts.denials.truncate(MAX_DENIALS);
        parts.exempt.truncate(MAX_DENIALS);
        parts.crawlers.truncate(MAX_CRAWLERS);
        let Traps { traps, paths } = parts.traps;
        let mut made = Self {
            allow: parts.allow,
            deny: parts.deny,
            feeds: parts.feeds,
            asks_requests: !(traps.is_empty()
                && parts.limits.is_empty()
                && parts.denials.is_empty()
                && parts.exempt.is_empty()
                && parts.crawlers.is_empty()),
            remembers_after: (parts.limits.iter())
                .filter_map(|limit| limit.spare_known)
                .min(),
            shares: parts.limits.iter().any(|limit| limit.per != Per::Client),
            traps,
            paths,
            ..Self::default()
        };
        let mut all = Gathering::default();
        for (number, limit) in parts.limits.iter_mut().enumerate() {
            made.add(&mut limit.matcher, Marks::limit(number), &mut all);
        }
        for (number, jail) in parts.jails.iter_mut().enumerate() {
            made.add(&mut jail.matcher, Marks::jail(number), &mut all);
        }
        for (number, denial) in parts.denials.iter_mut().enumerate() {
            made.add(&mut denial.matcher, Marks::denial(number), &mut all);
        }
        for exempt in &mut parts.exempt {
            exempt.matcher.gather(&mut all);
            made.asks_client |= exempt.matcher.asks_client();
        }
        made.add_crawlers(parts.crawlers, &mut all);
        Self {
            limits: parts.limits,
            jails: parts.jails,
            denials: parts.denials,
            exempt: parts.exempt.into_iter().map(Letting::of).collect(),
            literals: all.compile(),
            ..made
        }
    }

    /// Adds the paths and the literals of a rule that restricts.
    fn add(&mut self, matcher: &mut Matcher, marks: Marks, all: &mut Gathering) {
        matcher.gather(all);
        self.asks_client |= matcher.asks_client();
        if matcher.paths().is_empty() {
            self.anywhere.add(marks);
        }
        for of in matcher.paths() {
            self.paths.add(&of.path, of.case, of.reach, marks);
        }
    }

    /// Adds the crawlers and their literals.
    fn add_crawlers(&mut self, crawlers: Vec<Arc<Crawler>>, all: &mut Gathering) {
        let (mut suffixes, mut ranges) = (Vec::new(), Vec::new());
        for (number, crawler) in crawlers.into_iter().enumerate() {
            let literals = crawler.user_agent.iter().map(String::as_str);
            let condition = all.add(&USER_AGENT, literals);
            match &crawler.verify {
                Verify::Dns(of) => {
                    self.by_names |= 1 << number;
                    suffixes.extend(of.iter().cloned());
                }
                Verify::Feed(feed) => ranges.extend(feed.list.netblocks()),
            }
            self.crawlers.push((crawler, condition));
        }
        self.suffixes = Arc::new(Suffixes::new(suffixes));
        self.crawler_ranges = Arc::new(ranges.into_iter().collect());
    }

    /// The rules that a request matches, regardless of the client. Costs nothing without rules.
    pub fn matched<'a>(&'a self, asking: &Asking<'_>) -> Matched<'a> {
        if !self.asks_requests {
            return Matched::default();
        }
        let looking = Looking::new(&self.literals);
        let mut matched = Matched {
            set: Some(self),
            ..Matched::default()
        };
        if !self.exempt.is_empty() {
            let path = Strictly::read(asking.path);
            let matches = |letting: &Letting| {
                letting.has(&path) && letting.exempt.matcher.matches(asking, &looking)
            };
            matched.exempt = choose(&self.exempt, u64::MAX, matches);
        }
        if !self.crawlers.is_empty() {
            let claims = |(_, condition): &(_, Condition)| looking.has(asking, *condition);
            matched.claimed = choose(&self.crawlers, u64::MAX, claims);
        }
        let mut found = self.paths.find(asking.path);
        found.add(self.anywhere);
        let is_asked = |matcher: &Matcher| matcher.matches(asking, &looking);
        if found.denials != 0 {
            let matches = |denial: &Denial| is_asked(&denial.matcher);
            matched.denials = choose(&self.denials, found.denials, matches);
        }
        if found.limits != 0 {
            let matches = |limit: &Limit| is_asked(&limit.matcher);
            matched.limits = Chosen::of(&self.limits, found.limits.into(), matches);
        }
        let trap = found.trap.and_then(|trap| usize::try_from(trap).ok());
        matched.trap = trap.and_then(|trap| self.traps.get(trap));
        matched
    }

    /// The jails that count an answer of the application to a client of this origin with this
    /// claim.
    pub fn jails<'a>(
        &'a self,
        status: StatusCode,
        asking: &Asking<'_>,
        origin: impl FnOnce() -> Option<Origin>,
        claim: Option<&Claim>,
    ) -> impl Iterator<Item = &'a Jail> {
        let is_asked = self.asks_client && !self.jails.is_empty();
        let origin = is_asked.then(origin).flatten().unwrap_or_default();
        self.jails_where(asking, origin, claim, move |jail| {
            jail.statuses.contains(&status)
        })
    }

    /// The jails that `chosen` selects and that may count the answer to a request. `chosen` is
    /// asked first.
    pub fn jails_where<'a>(
        &'a self,
        asking: &Asking<'_>,
        origin: Origin,
        claim: Option<&Claim>,
        choice: impl Fn(&Jail) -> bool,
    ) -> impl Iterator<Item = &'a Jail> {
        // Computed once, and only if a jail is selected.
        let found = OnceCell::new();
        let looking = Looking::new(&self.literals);
        let matches = move |(index, jail): &(usize, &Jail)| {
            let find = || self.paths.find(asking.path).jails | self.anywhere.jails;
            choice(jail)
                && found.get_or_init(find) >> index & 1 == 1
                && jail.matcher.matches_client(origin, claim)
                && jail.matcher.matches(asking, &looking)
        };
        let jails = self.jails.iter().enumerate();
        jails.filter(matches).map(|(_, jail)| jail)
    }

    /// All jails, in the order of the file.
    pub fn every_jail(&self) -> impl Iterator<Item = &Jail> {
        self.jails.iter()
    }

    /// Whether clients share the counts of a limit (SHARE).
    pub const fn shares(&self) -> bool {
        self.shares
    }

    /// The time after which clients are remembered as known, if a limit asks for it (SHARE-4).
    pub const fn remembers_after(&self) -> Option<Duration> {
        self.remembers_after
    }

    /// The fields that rules ask for.
    pub fn fields_asked_for(&self) -> impl Iterator<Item = &str> {
        let matchers = (self.limits.iter().map(|limit| &limit.matcher))
            .chain(self.jails.iter().map(|jail| &jail.matcher))
            .chain(self.denials.iter().map(|denial| &denial.matcher))
            .chain(self.exempt.iter().map(|letting| &letting.exempt.matcher));
        let per = self.limits.iter().filter_map(|limit| match &limit.per {
            Per::Field(name) => Some(name.as_str()),
            _ => None,
        });
        let of_crawlers = self.crawlers.iter().map(|_| "user-agent");
        matchers
            .flat_map(Matcher::fields_asked_for)
            .chain(per)
            .chain(of_crawlers)
    }

    /// The ranges of crawlers that feeds name (CRAWL-4).
    pub const fn crawler_ranges(&self) -> &Arc<Spans> {
        &self.crawler_ranges
    }

    /// The suffixes of names that can verify a crawler.
    pub const fn suffixes(&self) -> &Arc<Suffixes> {
        &self.suffixes
    }

    /// The crawlers, in the order of the file.
    pub fn crawlers(&self) -> impl Iterator<Item = &Arc<Crawler>> {
        self.crawlers.iter().map(|(crawler, _)| crawler)
    }

    /// The denials that refuse a verified crawler on some path, whatever its origin.
    pub fn denials_of<'a>(&'a self, crawler: &Arc<Crawler>) -> impl Iterator<Item = &'a Denial> {
        let claim = Claim {
            crawler: Arc::clone(crawler),
            state: ClaimState::Verified,
        };
        let agents = crawler.user_agent.iter();
        let address = crawler.some_address();
        let address = address.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        let sent: Vec<HeaderMap> = agents.map(|agent| of_agent(agent)).collect();
        let is_denied = move |denial: &&Denial| {
            let matcher = &denial.matcher;
            let path = matcher.paths().first().map_or("/", |first| &first.path);
            let matches = |sent: &HeaderMap| {
                let (method, looking) = (&Method::GET, Looking::new(&self.literals));
                let asking = Asking {
                    path,
                    method,
                    address,
                    sent,
                };
                matcher.matches(&asking, &looking)
            };
            matcher.matches_client(Origin::default(), Some(&claim)) && sent.iter().any(matches)
        };
        self.denials.iter().filter(is_denied)
    }

    /// The jails, in the order of the file.
    pub fn all_jails(&self) -> &[Jail] {
        &self.jails
    }

    /// The limits, in the order of the file.
    pub fn all_limits(&self) -> &[Limit] {
        &self.limits
    }

    /// Every rule and every list, for the metrics.
    pub fn rules(&self) -> impl Iterator<Item = &Arc<Rule>> {
        let limits = self.limits.iter().map(|limit| &limit.rule);
        let jails = self.jails.iter().map(|jail| &jail.rule);
        let lists = self.allow.sources().chain(self.deny.sources());
        let traps = self.traps.iter().map(|trap| &trap.rule);
        let denials = self.denials.iter().map(|denial| &denial.rule);
        let exempt = self.exempt.iter().map(|letting| &letting.exempt.rule);
        (lists.chain(limits).chain(traps).chain(jails))
            .chain(denials)
            .chain(exempt)
    }
}

/// The head of a request with this `User-Agent` alone.
fn of_agent(agent: &str) -> HeaderMap {
    let value = HeaderValue::from_str(agent).ok();
    value.map(|value| (USER_AGENT, value)).into_iter().collect()
}

/// The rules that a request matches.
#[derive(Clone, Copy, Debug, Default)]
pub struct Matched<'a> {
    /// The trap that it fell into.
    pub trap: Option<&'a Trap>,
    /// The limits that count it.
    pub limits: Limits<'a>,
    /// A bit for each denial.
    denials: u64,
    /// A bit for each exempt entry.
    exempt: u64,
    /// A bit for each crawler that the request claims to be.
    claimed: u64,
    /// The rules they belong to; none if nothing matches.
    set: Option<&'a RuleSet>,
}

/// The limits that count a request, in the order of the file.
pub type Limits<'a> = Chosen<'a, Limit>;

impl<'a> Matched<'a> {
    /// Whether the request claims to be a crawler.
    pub const fn has_claims(&self) -> bool {
        self.claimed != 0
    }

    /// The suffixes of names that would verify the request's claim; none if names cannot verify it.
    pub fn asks_names(&self) -> Option<&'a Arc<Suffixes>> {
        let set = self.set?;
        (self.claimed & set.by_names != 0).then_some(&set.suffixes)
    }

    /// The claim of the request. Of several claims, a verified one wins over one that may still be
    /// verified.
    pub fn claim(&self, evidence: Evidence<'_>) -> Option<Claim> {
        let mut best: Option<Claim> = None;
        let set = self.set.filter(|_| self.claimed != 0)?;
        let claimed = Chosen {
            all: &set.crawlers,
            chosen: self.claimed,
        };
        for (crawler, _) in claimed.iter() {
            let state = crawler.state(evidence);
            let is_better = match state {
                ClaimState::Verified => true,
                ClaimState::Unproven => best.as_ref().is_none_or(|of| of.state == ClaimState::Fake),
                ClaimState::Fake => best.is_none(),
            };
            if is_better {
                let crawler = Arc::clone(crawler);
                best = Some(Claim { crawler, state });
            }
            if state == ClaimState::Verified {
                break;
            }
        }
        best
    }

    /// The rules that apply to a client of this origin with this claim. `origin` is called only if
    /// a rule depends on it.
    #[must_use]
    pub fn of_client(self, origin: impl FnOnce() -> Origin, claim: Option<&Claim>) -> Self {
        let Some(set) = self.set.filter(|set| set.asks_client) else {
            return self;
        };
        let origin = origin();
        let is_from = |matcher: &Matcher| matcher.matches_client(origin, claim);
        Self {
            limits: Chosen::of(self.limits.all, self.limits.chosen, |limit| {
                is_from(&limit.matcher)
            }),
            denials: choose(&set.denials, self.denials, |denial| {
                is_from(&denial.matcher)
            }),
            exempt: choose(&set.exempt, self.exempt, |letting| {
                is_from(&letting.exempt.matcher)
            }),
            ..self
        }
    }

    /// The entry of `exempt` that lets the request through, if one does (MATCH-4).
    pub fn exempt(&self) -> Option<&'a Arc<Rule>> {
        let first = usize::try_from(self.exempt.trailing_zeros()).ok()?;
        let letting = self.set?.exempt.get(first)?;
        Some(&letting.exempt.rule)
    }

    /// The entry of `denials` that refuses the request regardless of the client; none if the client
    /// may matter.
    pub fn denial_of_anybody(&self) -> Option<&'a Denial> {
        let asks_client = self.set?.asks_client || self.has_claims() || self.exempt != 0;
        (!asks_client).then(|| self.denial()).flatten()
    }

    /// The entry of `denials` that refuses it: the first of the file (MATCH-3).
    pub fn denial(&self) -> Option<&'a Denial> {
        let first = usize::try_from(self.denials.trailing_zeros()).ok()?;
        self.set?.denials.get(first)
    }
}
