//! Step 10: one request against every limit of its client (LIMIT, RULE-2, RULE-5); and what the
//! application's answer means for the client: the jails that count it, for its status (RULE-4) or
//! because the application says so (APP-2). Pure but for the entries that are charged.
//!
//! A limit bans or only refuses. One that bans counts every request, also one that another limit
//! refuses (LIMIT-2), and its ban comes before every 429. Those that only refuse count nothing but
//! what passes all of them, so that the time that they name is true: they are all asked first, and
//! charged together.

use std::sync::Arc;

use http::StatusCode;
use weir_shared::ban::Scope;
use weir_shared::client::Client;
use weir_shared::clock::Now;
use weir_shared::rules::{
    self, Asking, Claim, Crawler, Jail, Limit, Per, Rule, RuleSet, SharedKey,
};
use weir_shared::settings::{LimitSettings, OnLimit};
use weir_shared::verdict::{LimitHit, LimitKind, Limits};
use weir_shared::window::{PerSpan, Span};

use crate::clients::entry::{Entry, Exceeded};
use crate::clients::shared_counts::{Full, Sharing};
use crate::clients::table::Table;
use crate::clients::{Bucket, BucketSize, charge_windows, own_break};

/// A request under way ends nobody knows when: the shortest time that `Retry-After` can name.
const SOON_MS: u64 = 1000;

/// What the settings say of step 10 besides the limits themselves.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Charging {
    /// `WAF_ON_LIMIT`
    pub on_limit: OnLimit,
    /// `WAF_RATE_LIMIT_PER_SECOND`, `WAF_RATE_LIMIT_BURST`
    pub bucket: Option<BucketSize>,
    /// `WAF_MAX_REQUESTS_PER_CLIENT`
    pub max_under_way: Option<u32>,
}

/// The parts of a request that decide which limits count it, and whether a ban follows.
#[derive(Clone, Copy, Default)]
pub struct Counted<'a> {
    /// The limits of rules.json that it matches, which come after the six.
    pub limits: rules::Limits<'a>,
    /// Where the jails are that may count its answer.
    pub jails: Option<(&'a RuleSet, &'a Asking<'a>)>,
    /// The page of another site asked for it: no ban follows (RULE-8).
    pub other_site: bool,
    /// The client is this crawler: nothing that it does bans it (CRAWL-4).
    pub crawler: Option<&'a Arc<Crawler>>,
    /// What it is to the counts that clients share; none where no limit has any.
    pub sharing: Option<Sharing<'a>>,
}

/// A limit that refuses a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refused<'a> {
    /// Which, and when the request would fit.
    pub exceeded: Exceeded,
    /// The rule, if it is one of rules.json.
    pub rule: Option<&'a Arc<Rule>>,
    /// Which of its counts, if clients share it.
    pub shared: Option<SharedKey>,
}

impl<'a> Refused<'a> {
    /// By a limit of the settings.
    const fn of(exceeded: Exceeded) -> Self {
        Self {
            exceeded,
            rule: None,
            shared: None,
        }
    }

    const fn by(rule: &'a Arc<Rule>, exceeded: Exceeded) -> Self {
        Self {
            rule: Some(rule),
            ..Self::of(exceeded)
        }
    }

    /// By a count that clients share.
    fn together(entry: &mut Entry, full: Full<'a>) -> Self {
        let limit = LimitHit::Rule(full.quota.span);
        let exceeded = entry.exceeded(limit, full.quota.limit, full.fits_in_ms, full.bans);
        Self {
            shared: Some(full.key),
            ..Self::by(full.rule, exceeded)
        }
    }
}

/// Whether a limit of rules.json counts each client by itself, and bans.
fn bans(limit: &&Limit) -> bool {
    limit.on_limit == OnLimit::Ban && limit.per == Per::Client
}

/// Whether it counts each client by itself, and only refuses: a verified crawler each of these.
fn refuses(limit: &Limit, is_crawler: bool) -> bool {
    (limit.on_limit == OnLimit::Refuse || is_crawler) && limit.per == Per::Client
}

/// The windows of a rule without room for one more.
fn full_quotas<'a>(entry: &Entry, limit: &'a Limit, now: Now) -> impl Iterator<Item = Refused<'a>> {
    limit.quotas.iter().filter_map(move |quota| {
        let mut window = entry.rule_window(&limit.rule, quota.span);
        let fits_in_ms = window.fits_in(quota.span, now.wall_ms, quota.limit, 1);
        window.add(quota.span, now.wall_ms, 1);
        let hit = LimitHit::Rule(quota.span);
        let exceeded = Exceeded::refusing(hit, quota.limit, fits_in_ms);
        let over = window.is_over(quota.span, now.wall_ms, quota.limit);
        over.then(|| Refused::by(&limit.rule, exceeded))
    })
}

impl Charging {
    /// Those among the settings.
    pub fn of(limits: &LimitSettings) -> Self {
        Self {
            on_limit: limits.on_limit,
            bucket: limits.per_second.map(|per_second| BucketSize {
                per_second,
                burst: limits.burst.unwrap_or(per_second),
            }),
            max_under_way: limits.max_under_way,
        }
    }

    /// Charges one request; gives the limit that refuses it, one that bans first.
    pub fn charge<'a>(
        &self,
        entry: &mut Entry,
        limits: &Limits,
        counted: Counted<'a>,
        now: Now,
    ) -> Option<Refused<'a>> {
        if let Some(crawler) = counted.crawler {
            return self
                .of_client(true)
                .charge_crawler(entry, limits, counted, crawler, now);
        }
        let (rules, other_site) = (counted.limits, counted.other_site);
        let mut over: Option<Refused<'a>> = None;
        if self.on_limit == OnLimit::Ban {
            let exceeded = entry.charge_request(limits, now.wall_ms, other_site);
            over = exceeded.map(Refused::of);
            let is_held_back = entry.may_be_over_bytes() || entry.is_known_to_jails();
            // Mostly nothing else is bounded but what is under way.
            if self.bucket.is_none() && rules.is_empty() && !is_held_back {
                return over.or_else(|| self.concurrent(entry).map(Refused::of));
            }
        }
        for Limit { rule, quotas, .. } in rules.iter().filter(bans) {
            let exceeded = entry.charge_rule(rule, quotas, now.wall_ms, other_site);
            if let Some(exceeded) = exceeded
                && over.is_none_or(|over| exceeded.bans && !over.exceeded.bans)
            {
                over = Some(Refused::by(rule, exceeded));
            }
        }
        let origin = entry.origin();
        let sharing = (counted.sharing.as_ref()).filter(|sharing| !sharing.is_trusted(now));
        if let Some(sharing) = sharing
            && let Some(full) = sharing.charge_bans(rules.iter(), origin, other_site, now)
            && over.is_none_or(|over| full.bans && !over.exceeded.bans)
        {
            over = Some(Refused::together(entry, full));
        }
        if over.is_some() {
            return over;
        }
        if let Some(refused) = self.refused(entry, limits, counted, now) {
            return Some(refused);
        }
        // The last of all: what they count is counted for everybody.
        if let Some(sharing) = sharing
            && let Some(full) = sharing.take(rules.iter(), (origin, entry.standing()), now)
        {
            return Some(Refused::together(entry, full));
        }
        self.take(entry, counted, now);
        None
    }

    /// What holds for a client: no limit of the settings bans a verified crawler (CRAWL-4).
    #[must_use]
    pub const fn of_client(self, is_crawler: bool) -> Self {
        Self {
            on_limit: if is_crawler {
                OnLimit::Refuse
            } else {
                self.on_limit
            },
            ..self
        }
    }

    /// Charges one request of a verified crawler. What it shares with others does not count it
    /// (SHARE-3), and jails count it without refusing it.
    fn charge_crawler<'a>(
        &self,
        entry: &mut Entry,
        limits: &Limits,
        counted: Counted<'a>,
        crawler: &'a Arc<Crawler>,
        now: Now,
    ) -> Option<Refused<'a>> {
        let counted = Counted {
            jails: None,
            ..counted
        };
        if let Some(refused) = self.refused(entry, limits, counted, now) {
            return Some(refused);
        }
        let sharing = counted.sharing.as_ref();
        if let Some(full) = sharing.and_then(|sharing| sharing.take_crawler(crawler, now)) {
            let refused = Refused::together(entry, full);
            return Some(Refused::by(&crawler.rule, refused.exceeded));
        }
        self.take(entry, counted, now);
        None
    }

    /// The first of the limits that only refuse which has no room for one more request, with the
    /// time until all of them have.
    fn refused<'a>(
        &self,
        entry: &mut Entry,
        limits: &Limits,
        counted: Counted<'a>,
        now: Now,
    ) -> Option<Refused<'a>> {
        let windows = match self.on_limit {
            OnLimit::Ban => full_bytes(entry, limits, now),
            OnLimit::Refuse => LimitKind::ALL.map(|kind| full_window(entry, limits, kind, now)),
        };
        let entry = &*entry;
        let of_client = [self.concurrent(entry), self.second(entry, now)];
        let of_client = of_client.into_iter().chain(windows).flatten();
        let is_crawler = counted.crawler.is_some();
        let of_rules = counted.limits.iter();
        let of_rules = of_rules.filter(|limit| refuses(limit, is_crawler));
        let of_rules = of_rules.flat_map(|limit| full_quotas(entry, limit, now));
        let of_jails = full_jail(entry, counted, now);
        let all = of_client.map(Refused::of).chain(of_rules).chain(of_jails);
        all.reduce(|first, next| {
            let waits = first.exceeded.fits_in_ms.zip(next.exceeded.fits_in_ms);
            let fits_in_ms = waits.map(|(wait, other)| wait.max(other));
            let exceeded = Exceeded {
                fits_in_ms,
                ..first.exceeded
            };
            Refused { exceeded, ..first }
        })
    }

    fn concurrent(&self, entry: &Entry) -> Option<Exceeded> {
        let max = self.max_under_way?;
        let exceeded = Exceeded::refusing(LimitHit::Concurrent, max.into(), Some(SOON_MS));
        (entry.under_way() >= max).then_some(exceeded)
    }

    fn second(&self, entry: &Entry, now: Now) -> Option<Exceeded> {
        let size = self.bucket?;
        let wait_ns = entry.bucket()?.at(size, now.mono_ns).wait_ns(size);
        (wait_ns > 0).then(|| {
            let wait_ms = Some(wait_ns.div_ceil(1_000_000));
            Exceeded::refusing(LimitHit::Second, size.per_second.into(), wait_ms)
        })
    }

    /// Counts a request that passes.
    fn take(&self, entry: &mut Entry, counted: Counted<'_>, now: Now) {
        if let Some(size) = self.bucket {
            let bucket = entry.bucket().map_or_else(
                || Bucket::full(size, now.mono_ns),
                |bucket| bucket.at(size, now.mono_ns),
            );
            entry.further().bucket = Some(bucket.take());
        }
        if self.on_limit == OnLimit::Refuse {
            for span in Span::ALL {
                entry.requests.get_mut(span).add(span, now.wall_ms, 1);
            }
        }
        let is_crawler = counted.crawler.is_some();
        let rules = counted.limits.iter();
        for limit in rules.filter(|limit| refuses(limit, is_crawler)) {
            entry.add_to_rule(&limit.rule, &limit.quotas, now.wall_ms);
        }
    }

    /// A request passes the ladder. True if it counts as under way, until [`Entry::end_request`].
    pub const fn begin(&self, entry: &mut Entry) -> bool {
        let counts = self.max_under_way.is_some();
        if counts {
            entry.begin_request();
        }
        counts
    }

    /// Charges the bytes of one request whose answer has ended; gives the limit that bans for them
    /// (LIMIT-5). Where limits only refuse, the next request is told.
    pub fn charge_bytes(
        &self,
        entry: &mut Entry,
        limits: &Limits,
        wall_ms: u64,
        bytes: u64,
        other_site: bool,
    ) -> Option<Exceeded> {
        match self.on_limit {
            OnLimit::Ban => entry.charge_bytes(limits, wall_ms, bytes, other_site),
            OnLimit::Refuse => {
                for span in Span::ALL {
                    entry.bytes.get_mut(span).add(span, wall_ms, bytes);
                }
                None
            }
        }
    }
}

impl Entry {
    /// Charges one request (LIMIT-1, LIMIT-2); names the shortest window that is over. Every window
    /// counts, also one whose limit is off: the counts outlive a change of settings.
    ///
    /// A ban follows only where the client's own requests are over the limit, and this is one of
    /// them: what another site asks for bans nobody (RULE-8).
    pub fn charge_request(
        &mut self,
        limits: &Limits,
        wall_ms: u64,
        other_site: bool,
    ) -> Option<Exceeded> {
        if other_site {
            let part = &mut self.other_sites_mut().requests;
            charge_windows(part, &PerSpan::default(), wall_ms, 1);
        }
        let over = charge_windows(&mut self.requests, &limits.requests, wall_ms, 1)?;
        let part = self.other_sites().map(|part| &part.requests);
        let own = own_break(over, &self.requests, part, &limits.requests, wall_ms)
            .filter(|_| !other_site);
        let (span, limit) = own.unwrap_or(over);
        let window = self.requests.get(span);
        let fits_in_ms = window.fits_in(span, wall_ms, limit, 1);
        let hit = LimitHit::Window(LimitKind::requests(span));
        Some(self.exceeded(hit, limit, fits_in_ms, own.is_some()))
    }

    /// Charges the bytes of one request whose answer has ended (LIMIT-5); as for requests.
    pub fn charge_bytes(
        &mut self,
        limits: &Limits,
        wall_ms: u64,
        bytes: u64,
        other_site: bool,
    ) -> Option<Exceeded> {
        if other_site {
            let part = &mut self.other_sites_mut().bytes;
            charge_windows(part, &PerSpan::default(), wall_ms, bytes);
        }
        let over = charge_windows(&mut self.bytes, &limits.bytes, wall_ms, bytes)?;
        self.set_over_bytes(true);
        let part = self.other_sites().map(|part| &part.bytes);
        let own =
            own_break(over, &self.bytes, part, &limits.bytes, wall_ms).filter(|_| !other_site);
        let (span, limit) = own.unwrap_or(over);
        let hit = LimitHit::Window(LimitKind::bytes(span));
        Some(self.exceeded(hit, limit, None, own.is_some()))
    }
}

/// The windows of bytes that are over where limits ban: of a client that was not banned for it.
fn full_bytes(entry: &mut Entry, limits: &Limits, now: Now) -> [Option<Exceeded>; 6] {
    if !entry.may_be_over_bytes() {
        return [None; 6];
    }
    let of_kind = |kind: LimitKind| {
        let full = kind
            .counts_bytes()
            .then(|| full_window(entry, limits, kind, now));
        full.flatten()
    };
    let over = LimitKind::ALL.map(of_kind);
    entry.set_over_bytes(over.iter().any(Option::is_some));
    over
}

/// The first jail that has no room for the answer to a request, and would not ban for it.
fn full_jail<'a>(entry: &Entry, counted: Counted<'a>, now: Now) -> Option<Refused<'a>> {
    let (rules, asking) = counted.jails.filter(|_| entry.is_known_to_jails())?;
    let full = |jail: &Jail| entry.full_jail(jail, now.wall_ms, counted.other_site);
    let jail = rules
        .jails_where(asking, entry.origin(), None, |jail| full(jail).is_some())
        .next()?;
    full(jail).map(|exceeded| Refused::by(&jail.rule, exceeded))
}

/// A window of requests without room for one more, or one of bytes that is over its limit: what a
/// request will carry is not known before.
fn full_window(entry: &Entry, limits: &Limits, kind: LimitKind, now: Now) -> Option<Exceeded> {
    let limit = (*limits.get(kind))?;
    let (windows, amount) = if kind.counts_bytes() {
        (&entry.bytes, 0)
    } else {
        (&entry.requests, 1)
    };
    let (span, mut window) = (kind.span(), *windows.get(kind.span()));
    window.add(span, now.wall_ms, amount);
    window.is_over(span, now.wall_ms, limit).then(|| {
        let fits_in_ms = windows.get(span).fits_in(span, now.wall_ms, limit, amount);
        Exceeded::refusing(LimitHit::Window(kind), limit, fits_in_ms)
    })
}

/// An answer of the application, to a request that is served, or to one of a log.
pub struct Answered<'a, C> {
    /// Who gets it.
    pub client: Client,
    /// The request.
    pub asking: Asking<'a>,
    /// Its status, where jails count it by that.
    pub status: Option<StatusCode>,
    /// The names of the jails that are to count it whatever it is.
    pub named: Option<C>,
    /// The crawler that it says it is.
    pub claim: Option<&'a Claim>,
    /// The page of another site asked for it (RULE-8), or a verified crawler did (CRAWL-4): it is
    /// counted, and bans nobody.
    pub other_site: bool,
    /// When it came.
    pub now: Now,
}

/// A jail that is full, and bans.
pub struct Jailed {
    /// Which window of it.
    pub exceeded: Exceeded,
    /// The jail.
    pub rule: Arc<Rule>,
    /// What its bans cover.
    pub scope: Scope,
}

impl<'n, C: Iterator<Item = &'n str> + Clone> Answered<'_, C> {
    /// Charges the jails that count it, each once; gives the first that bans for it. `fallen` is
    /// told of each that is full.
    pub fn charge_jails(
        &self,
        table: &Table,
        rules: &RuleSet,
        mut fallen: impl FnMut(&Arc<Rule>),
    ) -> Option<Jailed> {
        let origin = || table.get(self.client, |entry| entry.origin());
        let is_named = |jail: &&Jail| {
            let mut names = self.named.clone().into_iter().flatten();
            names.any(|name| name == jail.rule.name)
        };
        let by_status = (self.status.into_iter())
            .flat_map(|status| rules.jails(status, &self.asking, origin, self.claim))
            .filter(|jail| !is_named(jail));
        let named = self.named.as_ref().map(|_| rules.every_jail());
        let named = named.into_iter().flatten().filter(is_named);
        let mut jailed = None;
        for jail in by_status.chain(named) {
            let exceeded = table.update(self.client, self.now, |entry| {
                table.changed(self.client, entry);
                let wall_ms = self.now.wall_ms;
                entry.charge_rule(&jail.rule, &jail.quotas, wall_ms, self.other_site)
            });
            if exceeded.is_some() {
                fallen(&jail.rule);
            }
            if let Some(exceeded) = exceeded.filter(|exceeded| exceeded.bans) {
                jailed.get_or_insert_with(|| Jailed {
                    exceeded,
                    rule: Arc::clone(&jail.rule),
                    scope: jail.scope,
                });
            }
        }
        jailed
    }
}

#[cfg(test)]
mod tests;
