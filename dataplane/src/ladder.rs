//! Every check of section 3, in order: the whole ladder.
//!
//! Pure: no sockets, no files, no clock. It charges the client table, because a count and its check are one step; it
//! sends nothing. What to do with a decision is `request.rs`.

use std::net::IpAddr;

use http::Method;
use weir_shared::ban::Expiry;
use weir_shared::client::Client;
use weir_shared::clock::Now;
use weir_shared::escalation::{Policy, next_expiry};
use weir_shared::netblock::{NetSet, Netblock, PrefixLengths};
use weir_shared::path;
use weir_shared::settings::Settings;
use weir_shared::snapshot::Snapshot;
use weir_shared::verdict::{Action, Group};

use crate::clients::limits::{Broken, Charge, Limits};
use crate::clients::table::Table;

/// What the operator set and the process never changes.
#[derive(Clone, Debug)]
pub struct Rules {
    /// `WAF_ALLOW_NETS`
    pub allow_nets: NetSet,
    /// `WAF_DENY_NETS`
    pub deny_nets: NetSet,
    /// `WAF_EXEMPT_PATHS`, normalised
    pub exempt_paths: Vec<String>,
    /// `WAF_RATE_LIMIT_*`, `WAF_BYTES_LIMIT_*`
    pub limits: Limits,
    /// `WAF_MAX_BODY_SIZE`
    pub max_body_size: Option<u64>,
    /// `WAF_BAN_FIRST` …
    pub ban_policy: Policy,
    /// `WAF_BAN_IPV4_PREFIX`, `WAF_BAN_IPV6_PREFIX`
    pub ban_prefixes: PrefixLengths,
    /// Whether the estimates are wanted for the log or for RateLimit fields. They cost six divisions.
    pub wants_counts: bool,
}

impl Rules {
    /// The rules among the settings.
    pub fn of(settings: &Settings) -> Self {
        use weir_shared::settings::{LogRequests, RateLimitHeaders};
        Self {
            allow_nets: settings.allow_nets.clone(),
            deny_nets: settings.deny_nets.clone(),
            exempt_paths: settings.exempt_paths.clone(),
            limits: Limits {
                requests: settings.rate_limits,
                bytes: settings.byte_limits,
            },
            max_body_size: settings.max_body_size,
            ban_policy: settings.ban_policy,
            ban_prefixes: settings.ban_prefixes,
            wants_counts: settings.log_requests != LogRequests::Off
                || settings.rate_limit_headers == RateLimitHeaders::Always,
        }
    }
}

/// What the ladder asks of a request.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// Its method.
    pub method: &'a Method,
    /// Its path, as written.
    pub path: &'a str,
    /// Who limits and bans are charged to (step 2, `identity.rs`).
    pub client: Client,
    /// The client's full address.
    pub address: IpAddr,
    /// `Content-Length`, if there is one.
    pub content_length: Option<u64>,
}

/// What the ladder decided.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Decision {
    /// Which list the client stands on.
    pub group: Group,
    /// Where the request goes.
    pub verdict: Verdict,
    /// Whether the rate limits counted it; only then are its bytes charged (LIMIT-5).
    pub counted: bool,
    /// The client's estimates, this request included, where something wants them.
    pub counts: Option<[u64; 6]>,
}

/// Where a request goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The health check: no check, no count, no log line.
    Health,
    /// Refused; in observe mode it goes on all the same (CHECK-3).
    Refuse(Refusal),
    /// Under `/_waf/`: answered by the service, never forwarded (CHECK-1).
    Own,
    /// To the application.
    Forward,
    /// The snapshot was older than the client's last reset: load a new one and ask again (LIMIT-6).
    StartOver,
}

/// Why a request is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// `WAF_DENY_NETS`
    DeniedNet,
    /// An active ban; the latest end of those that cover the client, `u64::MAX` for never.
    Banned {
        /// Milliseconds since 1970.
        until_ms: u64,
    },
    /// A broken limit.
    RateLimited {
        /// Which.
        broken: Broken,
        /// The end of the ban that follows; none where no ban can be made.
        ban: Option<Expiry>,
    },
    /// `Content-Length` over `WAF_MAX_BODY_SIZE`.
    BodyTooLarge,
}

impl Refusal {
    /// The action that the log, the metrics and the history are told.
    pub const fn action(self) -> Action {
        match self {
            Self::DeniedNet => Action::DeniedNet,
            Self::Banned { .. } => Action::Banned,
            Self::RateLimited { .. } => Action::RateLimited,
            Self::BodyTooLarge => Action::BodyTooLarge,
        }
    }
}

/// The whole ladder. The first answer wins; the order is that of the specification's section 3.
pub fn decide(
    rules: &Rules,
    snapshot: &Snapshot,
    table: &Table,
    asked: &Asked<'_>,
    now: Now,
) -> Decision {
    let own = path::is_own(asked.path);

    // 1. The health check.
    if own && is_health_check(asked) {
        return not_counted(Group::Default, Verdict::Health);
    }
    let passed = if own { Verdict::Own } else { Verdict::Forward };

    // 2. The client is identified: `asked.client`.
    // 3. Allow nets skip steps 4 to 11.
    if rules.allow_nets.contains(asked.address) {
        return not_counted(Group::Allow, passed);
    }
    // 4. Deny nets.
    if rules.deny_nets.contains(asked.address) {
        return not_counted(Group::Deny, Verdict::Refuse(Refusal::DeniedNet));
    }
    // 5. Country lists, where the lookup is already known: come with the lookups.
    // 6. The ban ledger: every active ban that covers the client.
    if let Some(until_ms) = snapshot.bans.active_until(asked.client, now.wall_ms) {
        return not_counted(
            Group::Default,
            Verdict::Refuse(Refusal::Banned { until_ms }),
        );
    }
    // 7. Lookup, 8. country lists with the fresh answer: come with the lookups.
    // 9. Exempt paths skip steps 10 and 11.
    if path::is_exempt(asked.path, &rules.exempt_paths) {
        return not_counted(Group::Default, passed);
    }
    // 10. The request is counted against its windows.
    let (charge, counts) = table.seen(asked.client, now, |entry| {
        let charge = entry.charge_request(&rules.limits, snapshot.generation, now.wall_ms);
        (
            charge,
            rules.wants_counts.then(|| entry.counts(now.wall_ms)),
        )
    });
    let verdict = match charge {
        Charge::Stale => Verdict::StartOver,
        Charge::Over(broken) => {
            let ban = snapshot
                .can_ban
                .then(|| expiry_of_next_ban(rules, snapshot, asked.client, now));
            Verdict::Refuse(Refusal::RateLimited { broken, ban })
        }
        // 11. The announced body is too large.
        Charge::Within if is_too_large(rules, asked) => Verdict::Refuse(Refusal::BodyTooLarge),
        // 12. Ours, 13. the application's.
        Charge::Within => passed,
    };
    Decision {
        group: Group::Default,
        verdict,
        counted: true,
        counts,
    }
}

/// An outcome that the rate limits do not count. That the client was seen is noted with its history, at the end.
const fn not_counted(group: Group, verdict: Verdict) -> Decision {
    Decision {
        group,
        verdict,
        counted: false,
        counts: None,
    }
}

fn is_health_check(asked: &Asked<'_>) -> bool {
    asked.path == "/_waf/health" && (asked.method == Method::GET || asked.method == Method::HEAD)
}

fn is_too_large(rules: &Rules, asked: &Asked<'_>) -> bool {
    matches!((rules.max_body_size, asked.content_length), (Some(limit), Some(length)) if length > limit)
}

/// The control plane will come to the same end: both ask the same function the same question (BAN-1).
pub fn expiry_of_next_ban(rules: &Rules, snapshot: &Snapshot, client: Client, now: Now) -> Expiry {
    let netblock = Netblock::of(client, rules.ban_prefixes);
    next_expiry(
        &rules.ban_policy,
        snapshot.bans.last_ended(netblock, now.wall_ms),
        now.wall_ms,
    )
}
