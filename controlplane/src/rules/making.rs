//! Makes the rules in force at a given time from rules.json and its lists.

use std::collections::HashMap;
use std::sync::Arc;

use http::StatusCode;
use weir_shared::netblock::Netblock;
use weir_shared::rules::{
    Case, Crawler, CrawlerCounts, Denial, Exempt, Feed, Feeds, Further, Jail, Limit, Matcher,
    NetList, Per, Quota, Rule, RuleKind, Verify,
};
use weir_shared::settings::{BanResponse, OnLimit};
use weir_shared::units::Time;
use weir_shared::window::RuleSpan;

use super::choosing::{AgentFiles, Match, methods};
use super::document::{self, Answer, Member, Quotas, RulesFile, Which, Word};
use super::entry::Entry;
use super::list_file::{FILE, LISTS};
use crate::feeds::wanted::{Use, Wanted};
use crate::netblock_list::ListText;

/// Files of lists, by their names.
type ListTexts = HashMap<String, Arc<ListText>>;

/// Rules by name, kept over edits so that counts and hits continue.
pub(super) type Known = HashMap<(RuleKind, String), Arc<Rule>>;

/// The counts of crawlers by name, kept over edits.
pub(super) type Counted = HashMap<String, Arc<CrawlerCounts>>;

/// One compilation.
pub(super) struct Making<'a> {
    pub(super) known: &'a Known,
    /// Files of literals.
    pub(super) agents: &'a AgentFiles,
    /// The feeds.
    pub(super) feeds: &'a Feeds,
    pub(super) kept: Known,
    pub(super) counted: &'a Counted,
    pub(super) now_ms: u64,
    pub(super) ends_ms: Option<u64>,
    pub(super) ended_ms: Option<u64>,
}

impl Making<'_> {
    /// The limits in force.
    pub(super) fn limits(&mut self, file: &RulesFile) -> Vec<Limit> {
        let mut limits = Vec::new();
        for limit in &file.limits {
            if self.holds(limit.until) {
                limits.push(Limit {
                    rule: self.rule(RuleKind::Limit, &limit.name),
                    matcher: self.matcher(&limit.which, limit.matching.as_ref()),
                    quotas: quotas(&limit.quotas),
                    on_limit: match limit.follows() {
                        document::OnLimit::Ban => OnLimit::Ban,
                        document::OnLimit::Refuse => OnLimit::Refuse,
                    },
                    per: per(&limit.per),
                    spare_known: limit.spare_known.and_then(|spared| spared.0),
                });
            }
        }
        limits
    }

    /// The jails in force.
    pub(super) fn jails(&mut self, file: &RulesFile) -> Vec<Jail> {
        let mut jails = Vec::new();
        for jail in &file.jails {
            let status = |status: &u16| StatusCode::from_u16(*status).ok();
            if self.holds(jail.until) {
                jails.push(Jail {
                    rule: self.rule(RuleKind::Jail, &jail.name),
                    matcher: self.matcher(&jail.which, jail.matching.as_ref()),
                    statuses: jail.statuses.iter().filter_map(status).collect(),
                    quotas: quotas(&jail.quotas),
                    scope: jail.ban,
                });
            }
        }
        jails
    }

    /// The denials in force.
    pub(super) fn denials(&mut self, file: &RulesFile) -> Vec<Denial> {
        let mut denials = Vec::new();
        for denial in &file.denials {
            if self.holds(denial.until) {
                denials.push(Denial {
                    rule: self.rule(RuleKind::Denial, &denial.name),
                    matcher: denial.matching.matcher(self.agents, self.feeds),
                    answer: denial.answer.and_then(|answer| match answer {
                        Answer::Status(status) => {
                            StatusCode::from_u16(status).ok().map(BanResponse::Status)
                        }
                        Answer::Word(Word::Drop) => Some(BanResponse::Drop),
                    }),
                });
            }
        }
        denials
    }

    /// Denials of the autonomous systems and countries of decision streams (FEED-7).
    pub(super) fn places(&mut self, wanted: &[Wanted]) -> Vec<Denial> {
        let mut denials = Vec::new();
        let feeds = self.feeds;
        for wanted in wanted.iter().filter(|wanted| wanted.crowdsec.is_some()) {
            let Some(feed) = feeds.get(&wanted.name) else {
                continue;
            };
            let asns = (!feed.asns.is_empty()).then(|| Further {
                asns: Some(feed.asns.clone()),
                ..Further::default()
            });
            let countries = (!feed.countries.codes.is_empty()).then(|| Further {
                countries: Some(feed.countries.clone()),
                ..Further::default()
            });
            for further in [asns, countries].into_iter().flatten() {
                denials.push(Denial {
                    rule: self.rule(RuleKind::Denial, &wanted.name),
                    matcher: Matcher::new(None, Vec::new(), None).with(further),
                    answer: None,
                });
            }
        }
        denials
    }

    /// The exempt entries in force.
    pub(super) fn exempt(&mut self, file: &RulesFile) -> Vec<Exempt> {
        let mut all = Vec::new();
        for exempt in &file.exempt {
            if self.holds(exempt.until) {
                let rule = self.rule(RuleKind::Exempt, &exempt.name);
                let matcher = exempt.matching.matcher(self.agents, self.feeds);
                all.push(Exempt { rule, matcher });
            }
        }
        all
    }

    /// The crawlers in force.
    pub(super) fn crawlers(&mut self, file: &RulesFile) -> Vec<Arc<Crawler>> {
        let mut crawlers = Vec::new();
        for crawler in &file.crawlers {
            let verify = match &crawler.verify {
                document::Verify::Dns(dns) => {
                    Verify::Dns(dns.iter().map(|suffix| suffix.0.clone()).collect())
                }
                document::Verify::Feed(name) => {
                    let feed = self.feeds.get(name).map(Arc::clone);
                    // The check has ensured that there is one.
                    Verify::Feed(feed.unwrap_or_else(|| Arc::new(Feed::none(name))))
                }
            };
            if !self.holds(crawler.until) {
                continue;
            }
            let counts = self.counted.get(&crawler.name).map(Arc::clone);
            crawlers.push(Arc::new(Crawler {
                rule: self.rule(RuleKind::Crawler, &crawler.name),
                purpose: crawler.purpose,
                user_agent: (crawler.user_agent.iter())
                    .map(|literal| literal.0.clone())
                    .collect(),
                verify,
                quotas: quotas(&crawler.limits),
                counts: counts.unwrap_or_default(),
            }));
        }
        crawlers
    }

    /// Whether an entry has not ended. Notes a future end, to compile again then, and a past end,
    /// because a clock that is set back puts the entry into force again.
    pub(super) fn holds(&mut self, until: Option<Time>) -> bool {
        let Some(Time(until)) = until else {
            return true;
        };
        let holds = until > self.now_ms;
        if holds {
            self.ends_ms = Some(self.ends_ms.map_or(until, |end| end.min(until)));
        } else {
            self.ended_ms = self.ended_ms.max(Some(until));
        }
        holds
    }

    /// The rule of this name: the earlier one, if it existed.
    pub(super) fn rule(&mut self, kind: RuleKind, name: &str) -> Arc<Rule> {
        let key = (kind, name.to_owned());
        if let Some(rule) = self.kept.get(&key).or_else(|| self.known.get(&key)) {
            let rule = Arc::clone(rule);
            self.kept.insert(key, Arc::clone(&rule));
            return rule;
        }
        let rule = Arc::new(Rule::new(kind, name.to_owned()));
        self.kept.insert(key, Arc::clone(&rule));
        rule
    }

    fn matcher(&self, which: &Which, matching: Option<&Match>) -> Matcher {
        if let Some(matching) = matching {
            return matching.matcher(self.agents, self.feeds);
        }
        let path = which.path.as_deref().map(|path| (path, which.is_exact()));
        let methods = methods(&which.methods);
        Matcher::new(path, methods, which.host.as_deref()).with_case(case(which.minds_case()))
    }

    /// One of the two lists: its netblocks, the lists in files, and the feeds that are used for it.
    pub(super) fn list(
        &mut self,
        (kind, used): (RuleKind, Use),
        members: &[Member],
        (lists, listed): (&ListTexts, &[(Netblock, &Entry)]),
        wanted: &[Wanted],
    ) -> NetList {
        let mut all: Vec<(Netblock, Arc<Rule>)> = Vec::new();
        for member in members {
            if !self.holds(member.until) {
                continue;
            }
            if let Some(netblock) = member.netblock {
                all.push((netblock, self.rule(kind, FILE)));
            }
            if let Some((name, text)) = member
                .file
                .as_ref()
                .and_then(|name| lists.get_key_value(name))
            {
                let rule = self.rule(kind, name);
                all.extend(
                    text.netblocks
                        .iter()
                        .map(|netblock| (*netblock, Arc::clone(&rule))),
                );
            }
        }
        for (netblock, entry) in listed {
            if self.holds(entry.until) {
                all.push((*netblock, self.rule(kind, LISTS)));
            }
        }
        let feeds = self.feeds;
        for wanted in wanted.iter().filter(|feed| feed.used == Some(used)) {
            let Some(feed) = feeds.get(&wanted.name) else {
                continue;
            };
            let rule = self.rule(kind, &wanted.name);
            let netblocks = feed.list.netblocks();
            all.extend(netblocks.map(|netblock| (netblock, Arc::clone(&rule))));
        }
        NetList::new(all)
    }
}

pub(super) const fn case(exact: bool) -> Case {
    if exact { Case::Exact } else { Case::Folded }
}

fn per(per: &document::Per) -> Per {
    match per {
        document::Per::Client => Per::Client,
        document::Per::Netblock => Per::Netblock,
        document::Per::Asn => Per::Asn,
        document::Per::Country => Per::Country,
        document::Per::All => Per::All,
        document::Per::Field(document::FieldName(name)) => Per::Field(name.clone()),
    }
}

fn quotas(quotas: &Quotas) -> Vec<Quota> {
    [
        (RuleSpan::Second, quotas.per_second),
        (RuleSpan::Minute, quotas.per_minute),
        (RuleSpan::Hour, quotas.per_hour),
        (RuleSpan::Day, quotas.per_day),
    ]
    .into_iter()
    .filter_map(|(span, limit)| limit.map(|limit| Quota { span, limit }))
    .collect()
}
