//! Warnings about settings that work, and may cost a site its place in a search index (CRAWL-6).

use std::sync::Arc;

use http::StatusCode;
use weir_shared::ban::{Ban, Expiry};
use weir_shared::rules::{Crawler, Denial, Purpose, RuleSet, Verify};
use weir_shared::settings::{BanResponse, Settings};
use weir_shared::spans::Spans;

/// The warnings, one sentence each. `bans` are all held bans.
pub(crate) fn of(
    rules: &RuleSet,
    settings: &Settings,
    bans: &[Arc<Ban>],
    now_ms: u64,
) -> Vec<String> {
    let mut warnings = Vec::new();
    let otherwise = settings.bans.deny_response;
    let otherwise = otherwise.unwrap_or(settings.bans.response);
    let engines = rules
        .crawlers()
        .filter(|one| one.purpose == Purpose::Search);
    let denied_nets: Spans = (rules.deny.netblocks())
        .chain(settings.lists.deny_nets.blocks().iter().copied())
        .collect();
    for engine in engines {
        warnings.extend(listed(engine, &denied_nets, otherwise));
        warnings.extend(banned(engine, bans, now_ms));
        let denials = rules.denials_of(engine);
        warnings.extend(denials.filter_map(|denial| denied(denial, engine, otherwise)));
    }
    if rules.crawlers().next().is_none() {
        let counts_404 = (rules.all_jails().iter())
            .filter(|jail| jail.statuses.contains(&StatusCode::NOT_FOUND));
        warnings.extend(counts_404.map(|jail| {
            format!(
                "the jail {:?} counts 404 and rules.json names no crawler: a search engine that asks for pages that are gone would be banned; weir crawlers prints those that can prove who they are",
                jail.rule.name
            )
        }));
    }
    warnings
}

/// How a search index reads this refusal, if it takes it as lasting; none if the engine comes again
/// later.
fn lasting(answer: BanResponse) -> Option<String> {
    match answer {
        BanResponse::Drop => Some("no answer".to_owned()),
        // After 429 and server errors a page stays in the index.
        BanResponse::Status(status)
            if status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error() =>
        {
            None
        }
        BanResponse::Status(status) => Some(status.as_str().to_owned()),
    }
}

/// A warning if a list would answer a search engine with a lasting refusal.
fn listed(engine: &Crawler, denied: &Spans, answer: BanResponse) -> Option<String> {
    let Verify::Feed(feed) = &engine.verify else {
        return None;
    };
    let range = feed.list.netblocks().find(|range| denied.meet(*range))?;
    let what = lasting(answer)?;
    Some(format!(
        "a list that denies would give the verified crawler {:?} {what} from {range}: a search engine drops a page for that",
        engine.rule.name
    ))
}

/// A warning if a permanent ban covers a search engine, whatever its response.
fn banned(engine: &Crawler, bans: &[Arc<Ban>], now_ms: u64) -> Option<String> {
    let Verify::Feed(feed) = &engine.verify else {
        return None;
    };
    let endless = bans.iter().filter(|ban| {
        ban.ban_expires == Expiry::Permanent && ban.is_active(now_ms) && !ban.observed
    });
    let endless: Spans = endless.map(|ban| ban.netblock).collect();
    let range = feed.list.netblocks().find(|range| endless.meet(*range))?;
    Some(format!(
        "a permanent ban refuses the verified crawler {:?} from {range}: a search engine drops a site for that; weir bans lift ends it",
        engine.rule.name
    ))
}

/// A warning if a denial would answer a search engine with a lasting refusal.
fn denied(denial: &Denial, engine: &Crawler, otherwise: BanResponse) -> Option<String> {
    let what = lasting(denial.answer.unwrap_or(otherwise))?;
    Some(format!(
        "the denial {:?} would give the verified crawler {:?} {what}: a search engine drops a page for that; \"answer\": 429 leaves it where it is",
        denial.rule.name, engine.rule.name
    ))
}
