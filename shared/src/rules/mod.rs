//! The rules of rules.json as the data plane reads them: compiled once, immutable, part of a
//! [`crate::snapshot::Snapshot`] (RULE).
//!
//! The reader of the file and the lists makes a [`RuleSet`]; the ladder asks it which rules a
//! request matches. The counts of a client are stored with the client.

mod chosen;
mod crawler;
mod entries;
mod feed;
mod list;
mod literals;
mod matcher;
mod names;
mod paths;
mod quota;
mod rule;
mod sent;
mod set;
mod spelling;

pub use chosen::Chosen;
pub use crawler::{
    Claim, ClaimState, Crawler, CrawlerCounts, CrawlerWord, Evidence, Fallen, MAX_CRAWLERS,
    Purpose, Verify,
};
pub use entries::{
    Denial, Exempt, Jail, Limit, MAX_DENIALS, MAX_LIMITS, MAX_NAMES, MAX_NETBLOCKS, MAX_TRAP_PATHS,
    Per, SharedKey, Trap, Traps, is_root,
};
pub use feed::{Feed, Feeds, MAX_FEEDS};
pub use list::{ListHit, NetList};
pub use literals::{MAX_LITERAL, MAX_LITERALS, MIN_LITERAL};
pub use matcher::{FieldIs, FieldRule, Further, Matcher, QueryRule};
pub use quota::Quota;
pub use rule::{Rule, RuleKind};
pub use sent::{Asking, Remembered, Sent, Told, is_read_as};
pub use set::{Limits, Matched, Parts, RuleSet};
pub use spelling::Case;

#[cfg(test)]
mod tests;
